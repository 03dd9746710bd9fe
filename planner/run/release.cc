#include "planner/run/release.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "costmodel/config/diagnostics.h"
#include "costmodel/config/json.h"

namespace foldwise::planner::release_data {
std::span<const std::pair<std::string, std::string>> embedded_files();
}

namespace foldwise::planner {
namespace {

Release read_release(const config::Document& document) {
  config::Diagnostics diagnostics;
  config::ObjectReader in(document, diagnostics);
  Release release;
  release.name = in.required_string("name");
  if (auto core = in.object("megatron_core")) {
    release.tag = core->string("tag").value_or("");
    release.commit = core->required_string("commit");
    release.date = core->required_string("date");
    core->finish();
  }
  if (auto entry = in.object("entry")) {
    release.gpt_entry = entry->required_string("gpt");
    release.hybrid_entry = entry->required_string("hybrid");
    entry->finish();
  }
  for (config::ObjectReader& component : in.objects("stack")) {
    release.stack.push_back({.name = component.required_string("name"),
                             .version = component.required_string("version"),
                             .source = component.required_string("source")});
    component.finish();
  }
  in.finish();
  diagnostics.throw_if_any();
  return release;
}

std::vector<Release> load_releases() {
  std::vector<Release> list;
  for (const auto& [name, text] : release_data::embedded_files())
    list.push_back(read_release(config::Document::parse(text, "release " + name)));
  // Tags of equal length sort like their numbers.
  std::ranges::sort(list, {}, [](const Release& r) { return std::tuple(!r.numbered(), r.name); });
  for (std::size_t i = 0; i < list.size(); ++i) list[i].order = static_cast<int>(i);
  return list;
}

int place_of(std::string_view name) {
  const auto found = std::ranges::find(releases(), name, &Release::name);
  if (found == releases().end()) throw std::logic_error(fmt::format("no release \"{}\"", name));
  return found->order;
}

}  // namespace

const std::vector<Release>& releases() {
  static const std::vector<Release> list = load_releases();
  return list;
}

const std::vector<std::string>& release_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Release& release : releases()) list.push_back(release.name);
    return list;
  }();
  return names;
}

const std::vector<const Release*>& numbered_releases() {
  static const std::vector<const Release*> list = [] {
    std::vector<const Release*> numbered;
    for (const Release& release : releases())
      if (release.numbered()) numbered.insert(numbered.begin(), &release);
    return numbered;
  }();
  return list;
}

const Release& newest_release() { return *numbered_releases().front(); }

const Release* find_release(std::string_view text) {
  for (const std::string_view prefix : {"core_v", "v"})
    if (text.starts_with(prefix)) {
      text.remove_prefix(prefix.size());
      break;
    }
  const Release* found = nullptr;
  for (const Release& release : releases()) {
    if (release.name == text) return &release;
    if (!release.numbered() || !release.name.starts_with(std::string(text) + '.')) continue;
    if (found != nullptr) return nullptr;
    found = &release;
  }
  return text.empty() ? nullptr : found;
}

std::string mistake_in_release(std::string_view text) {
  if (find_release(text) != nullptr) return "";
  return fmt::format("expected a release of Megatron-Core ({}), found \"{}\"{}", fmt::join(release_names(), ", "), text,
                     config::nearest_hint(std::string(text), release_names()));
}

std::string ReleaseSpan::text() const {
  const auto name = [](int order) -> const std::string& { return releases().at(static_cast<std::size_t>(order)).name; };
  if (first > 0 && last != INT_MAX)
    return first == last ? fmt::format("in {} alone", name(first))
                         : fmt::format("in {} to {}", name(first), name(last));
  if (first > 0) return "since " + name(first);
  return last != INT_MAX ? "until " + name(last) : "";
}

ReleaseSpan in_releases(std::string_view since, std::string_view until) {
  ReleaseSpan span{.named = true};
  if (!since.empty()) span.first = place_of(since);
  if (!until.empty()) span.last = place_of(until);
  return span;
}

}  // namespace foldwise::planner
