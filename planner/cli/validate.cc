#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "planner/cli/commands.h"
#include "planner/report/platform_fit.h"
#include "planner/report/validation.h"

namespace foldwise::cli {
namespace {

struct ValidateOptions {
  std::vector<std::string> files;
  std::string write_residuals;
  std::vector<std::string> fit;
  std::string format = "text";
};

int validate(const ValidateOptions& options) {
  std::vector<planner::RunList> lists;
  for (const std::string& file : options.files) lists.push_back(planner::load_runs(file));
  const planner::Validation validation = planner::validate(std::move(lists));
  if (!options.write_residuals.empty()) {
    planner::write_residuals(planner::residuals(validation), options.write_residuals);
    fmt::print(stderr, "residuals written to {}; the next build uses them\n", options.write_residuals);
  }
  if (!options.fit.empty()) {
    std::vector<planner::FieldGroup> groups;
    for (const std::string& list : options.fit) groups.push_back(CLI::detail::split(list, ','));
    print_result(planner::platform_fit_text(planner::fit_platform(validation, groups)));
    return kDone;
  }
  if (options.format == "json")
    print_result(planner::validation_json(validation, planner::built_in_residuals()));
  else
    print_result(planner::validation_text(validation));
  return validation.found_bug ? kOurBug : kDone;
}

}  // namespace

void add_validate(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<ValidateOptions>();
  CLI::App* command = app.add_subcommand("validate", "Predict measured runs and print the errors");
  command->add_option("runs", options->files, "Files with a list of measured runs (JSON)")
      ->required()
      ->expected(1, 1000);
  command->add_option("--write-residuals", options->write_residuals,
                      "Also write the step-time errors by GPU generation to this file");
  command->add_option("--fit", options->fit,
                      "Instead: fit profile fields to the step times and print them; fields joined by commas share one "
                      "factor (/host/module,/host/eager_op)");
  add_format(*command, options->format);
  command->callback([options, &chosen] { chosen = [options] { return validate(*options); }; });
}

}  // namespace foldwise::cli
