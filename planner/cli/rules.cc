#include "planner/rules/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "planner/answer/rule_pages.h"
#include "planner/cli/commands.h"
#include "planner/cli/terminal.h"

namespace foldwise::cli {

namespace {

struct RulesOptions {
  std::string name, format = "text";
};

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
    table.add({std::string(rule.id), planner::rule_json(rule).at("demands").get<std::string>()});
  return table.text(0, screen.width) + "foldwise rules NAME says the rest\n";
}

int rules(const RulesOptions& options) {
  const auto& list = planner::rules();
  if (options.name.empty()) {
    if (options.format == "text") {
      print_result(list_text());
      return kDone;
    }
    print_result(planner::rules_json());
    return kDone;
  }
  const auto found = std::ranges::find(list, std::string_view(options.name), &planner::Rule::id);
  if (found == list.end())
    throw config::ConfigError(
        {{{"command line", 0, options.name}, "no rule" + config::nearest_hint(options.name, rule_names())}});
  const nlohmann::json rule = planner::rule_json(*found);
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
