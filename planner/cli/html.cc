#include "planner/cli/html.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <utility>

#include "costmodel/config/output_file.h"
#include "hwprofiles/load/profile.h"
#include "planner/cli/commands.h"
#include "planner/cli/outputs.h"
#include "planner/launch/quote.h"
#include "planner/report/facts.h"

namespace foldwise::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kMostSystems = 4;  ///< Systems with their numbers in a page: 0.1 MB each.

std::string& remembered() {
  static std::string line;
  return line;
}

/// Systems, with their overrides, of the run files in an answer; if it has none, of its problem.
void find_systems(const json& value, std::set<std::pair<std::string, std::string>>& systems) {
  if (value.is_object() && value.contains("system") && value["system"].is_string())
    systems.emplace(value["system"].get<std::string>(), value.value("system_overrides", json()).dump());
  if (value.is_structured())
    for (const json& part : value) find_systems(part, systems);
}

json systems_json(const json& answer) {
  std::set<std::pair<std::string, std::string>> systems;
  find_systems(answer, systems);
  json result = json::array();
  for (const auto& [name, overrides] : systems) {
    if (result.size() == kMostSystems) break;
    const hwprofiles::Profile profile = hwprofiles::load_profile(name, json::parse(overrides));
    result.push_back({{"name", name}, {"overrides", json::parse(overrides)}, {"facts", planner::facts_json(profile)}});
  }
  return result;
}

}  // namespace

void remember_command(int argc, const char* const* argv) {
  std::string line = "foldwise";
  for (int i = 1; i < argc; ++i) line += ' ' + planner::shell_word(argv[i]);
  remembered() = line;
}

const std::string& command_line() { return remembered(); }

void add_html(CLI::App& command, std::string& path) {
  add_output_file(command, "--html", path, "Write the answer as one page for a browser: tables, charts, sources");
}

std::string page_text(const std::string& kind, const json& answer, std::vector<planner::Picture> pictures) {
  return planner::html({.kind = kind,
                        .command = command_line(),
                        .program = version(),
                        .answer = with_schema(answer),
                        .systems = systems_json(answer),
                        .pictures = std::move(pictures)});
}

void write_page(const std::string& path, const std::string& kind, const json& answer,
                std::vector<planner::Picture> pictures) {
  if (!path.empty()) config::write_output_file(path, page_text(kind, answer, std::move(pictures)));
}

}  // namespace foldwise::cli
