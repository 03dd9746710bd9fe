#include "planner/rules/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "planner/cli/commands.h"
#include "planner/cli/terminal.h"
#include "planner/run/fields.h"

namespace foldwise::cli {

namespace pages {
[[nodiscard]] const std::string* embedded_file(std::string_view name);  // Made by hwprofiles/embed.cmake.
}

namespace {

/// A row of the table in docs/rules.md.
struct Page {
  std::string id, demands, note;
};

std::vector<Page> read_pages() {
  std::vector<Page> result;
  std::istringstream lines(*pages::embedded_file("rules.md"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `")) continue;
    std::array<std::string, 3> cells;
    std::size_t at = 1;
    for (std::string& cell : cells) {
      std::size_t end = at;
      do end = line.find('|', end + 1);
      while (end != std::string::npos && line[end - 1] == '\\');
      if (end == std::string::npos) break;
      cell = line.substr(at, end - at);
      cell.erase(0, cell.find_first_not_of(' '));
      cell.erase(cell.find_last_not_of(' ') + 1);
      at = end + 1;
    }
    cells[0].erase(std::remove(cells[0].begin(), cells[0].end(), '`'), cells[0].end());
    result.push_back({cells[0], cells[1], cells[2]});
  }
  return result;
}

const std::vector<Page>& all_pages() {
  static const std::vector<Page> list = read_pages();
  return list;
}

struct RulesOptions {
  std::string name, format = "text";
};

nlohmann::json rule_json(const planner::Rule& rule) {
  const auto page = std::ranges::find(all_pages(), rule.id, &Page::id);
  const bool found = page != all_pages().end();
  return {{"rule", rule.id},
          {"demands", found ? page->demands : ""},
          {"note", found ? page->note : ""},
          {"flags", planner::with_flags(rule.flags)},
          {"fields", rule.keys},
          {"releases", rule.releases.named ? nlohmann::json(rule.releases.text()) : nlohmann::json(nullptr)}};
}

std::string rule_text(const nlohmann::json& rule) {
  const planner::Screen screen = screen_of_stdout();
  std::string out = screen.in(fmt::emphasis::bold, rule.at("rule").get<std::string>()) + '\n';
  for (const auto& [name, key] : {std::pair{"Demands", "demands"}, {"Note", "note"}, {"Flags", "flags"}})
    if (const auto text = rule.at(key).get<std::string>(); !text.empty()) out += planner::line_of(screen, name, {text});
  if (const auto keys = rule.at("fields").get<std::vector<std::string>>(); !keys.empty())
    out += planner::line_of(screen, "Fields", {fmt::format("{}", fmt::join(keys, ", "))});
  out += planner::line_of(
      screen, "Releases",
      {rule.at("releases").is_null() ? std::string("of every run")
                                     : rule.at("releases").get<std::string>() + ", where a run names its release"});
  return out;
}

std::string list_text() {
  const planner::Screen screen = screen_of_stdout();
  planner::Table table({"<rule", "<demands"});
  for (const planner::Rule& rule : planner::rules())
    table.add({std::string(rule.id), rule_json(rule).at("demands").get<std::string>()});
  return table.text(0, screen.width) + "foldwise rules NAME says the rest\n";
}

int rules(const RulesOptions& options) {
  const auto& list = planner::rules();
  if (options.name.empty()) {
    if (options.format == "text") {
      print_result(list_text());
      return kDone;
    }
    nlohmann::json all = nlohmann::json::array();
    for (const planner::Rule& rule : list) all.push_back(rule_json(rule));
    print_result(nlohmann::json{{"rules", std::move(all)}});
    return kDone;
  }
  const auto found = std::ranges::find(list, std::string_view(options.name), &planner::Rule::id);
  if (found == list.end())
    throw config::ConfigError(
        {{{"command line", 0, options.name}, "no rule" + config::nearest_hint(options.name, rule_names())}});
  const nlohmann::json rule = rule_json(*found);
  if (options.format == "json")
    print_result(rule);
  else
    print_result(rule_text(rule));
  return kDone;
}

}  // namespace

std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (const planner::Rule& rule : planner::rules()) names.emplace_back(rule.id);
  return names;
}

void add_rules(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<RulesOptions>();
  CLI::App* command = app.add_subcommand("rules", "Say what a rule demands, and where Megatron checks it");
  command->add_option("name", options->name, "A rule: epov.cg_impl; none: all of them")->group(kQuestion);
  add_format(*command, options->format);
  command->callback([options, &chosen] { chosen = [options] { return rules(*options); }; });
}

}  // namespace foldwise::cli
