#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/config/output_file.h"
#include "hwprofiles/fit/calibration.h"
#include "planner/cli/commands.h"
#include "planner/cli/outputs.h"
#include "planner/cli/terminal.h"
#include "planner/report/accuracy.h"
#include "planner/report/error_learning.h"
#include "planner/report/ordering.h"
#include "planner/report/platform_fit.h"
#include "planner/report/readings.h"
#include "planner/report/record_validation.h"
#include "planner/report/roles.h"
#include "planner/report/validation.h"
#include "planner/run/near_names.h"

namespace foldwise::cli {
namespace {

struct ValidateOptions {
  std::vector<std::string> files, hosts;
  std::string system;
  std::string write_residuals, write_evidence;
  std::vector<std::string> fit;
  bool per_machine = false, vary_readings = false;
  std::string bounds, write_bounds;
  std::vector<std::string> explain;
  bool rows = false;
  std::string format = "text";
};

const planner::Explanations explanations = {{"skipped", "why rows were not predicted"},
                                            {"groups", "errors by model, system, precision and release"},
                                            {"memory", "levels of memory of single ranks"},
                                            {"inferred", "keys that no source states"},
                                            {"roles", "rows that set numbers of the model"},
                                            {"causes", "what errors come from, and how often intervals hold them"},
                                            {"order", "whether runs of one question are predicted in their order"}};

planner::Validation validated(const std::vector<std::string>& files) {
  std::vector<planner::RunList> lists;
  lists.reserve(files.size());
  for (const std::string& file : files) lists.push_back(planner::load_runs(file));
  return planner::validate(std::move(lists));
}

int validate_records(const ValidateOptions& options) {
  for (const auto& [option, given] : {std::pair{"--write-residuals", !options.write_residuals.empty()},
                                      {"--write-evidence", !options.write_evidence.empty()},
                                      {"--hosts", !options.hosts.empty()},
                                      {"--fit", !options.fit.empty()},
                                      {"--vary-readings", options.vary_readings},
                                      {"--bounds", !options.bounds.empty()},
                                      {"--write-bounds", !options.write_bounds.empty()}})
    if (given) throw config::ConfigError({{{"command line", 0, option}, "only of measured runs, not of records"}});
  std::vector<hwprofiles::Records> files;
  for (const std::string& file : options.files) files.push_back(hwprofiles::read_records(file));
  const std::string& device = files.front().sessions.back().device;
  const std::string system =
      options.system.empty() ? hwprofiles::system_of_device(device) : planner::system_meant(options.system);
  if (system.empty())
    throw config::ConfigError(
        {{{"command line", 0, ""},
          fmt::format("no built-in system describes \"{}\": give --system with one or with a profile", device)}});
  const planner::KernelValidation validation = planner::validate(files, hwprofiles::load_profile(system));
  for (const config::Diagnostic& warning : validation.warnings) print_note(warning.text());
  if (options.format == "json")
    print_result(planner::validation_json(validation));
  else
    print_result(planner::validation_text(validation));
  return kDone;
}

[[noreturn]] void nothing_predicted(const char* option) {
  throw config::ConfigError({{{"command line", 0, option}, "no row was predicted, so there is nothing to write"}});
}

bool is_records(const std::string& file) { return file.ends_with(".jsonl"); }

int validate(const ValidateOptions& options) {
  if (std::all_of(options.files.begin(), options.files.end(), is_records)) return validate_records(options);
  if (std::any_of(options.files.begin(), options.files.end(), is_records))
    throw config::ConfigError(
        {{{"command line", 0, ""}, "give measured runs (.json) or kernel records (.jsonl), not both"}});
  if (!options.system.empty())
    throw config::ConfigError({{{"command line", 0, "--system"}, "only of kernel records (.jsonl): runs name theirs"}});
  const planner::Validation validation = validated(options.files), hosts = validated(options.hosts);
  if (!options.fit.empty()) {
    std::vector<planner::FieldGroup> groups;
    for (const std::string& list : options.fit) groups.push_back(CLI::detail::split(list, ','));
    const planner::PlatformFit fitted = planner::fit_platform(validation, groups, options.per_machine);
    if (options.format == "json")
      print_result(planner::platform_fit_json(fitted));
    else
      print_result(planner::platform_fit_text(fitted));
    return kDone;
  }
  const planner::Learnt learnt = planner::learn_errors(validation, planner::built_in_roles(), hosts);
  if (!options.write_residuals.empty()) {
    if (learnt.errors.causes.empty())
      throw config::ConfigError({{{"command line", 0, "--write-residuals"},
                                  "nothing to learn from: it takes predicted rows of two groups (model, system and "
                                  "software) that state micro_batch and recompute"}});
    planner::write_errors(learnt.errors, options.write_residuals);
    print_note(fmt::format("residuals written to {}; the next build uses them", options.write_residuals));
  }
  if (!options.write_evidence.empty()) {
    config::write_output_file(options.write_evidence, planner::evidence_text({&validation, &hosts}));
    print_note(fmt::format("evidence written to {}; the next build uses it", options.write_evidence));
  }
  std::vector<planner::VariedReading> varied;
  if (options.vary_readings) varied = planner::vary_readings(validation, planner::built_in_roles());
  const std::vector<planner::Accuracy> groups = planner::accuracy(validation, planner::built_in_roles(), varied);
  if (options.format == "json") {
    nlohmann::json result = planner::validation_json(validation, planner::built_in_errors());
    result["accuracy"] = planner::accuracy_json(groups);
    result["coverage"] = planner::coverage_json(learnt.coverage);
    result["orderings"] = planner::orderings_json(planner::orderings(validation, planner::built_in_roles()));
    if (options.vary_readings) result["readings"] = planner::readings_json(validation, varied);
    print_result(result);
  } else {
    const planner::Screen screen = screen_of_stdout();
    std::string text = planner::validation_text(screen, validation, options.rows);
    const auto add = [&](const std::string& part) {
      if (!part.empty()) text += '\n' + part;
    };
    add(planner::accuracy_text(groups));
    if (!varied.empty()) add(planner::readings_text(validation, varied));
    const auto section = [&](const char* name, const auto& part) {
      if (planner::is_asked(options.explain, name)) add(part());
    };
    section("skipped", [&] { return planner::skipped_text(screen, validation); });
    section("groups", [&] { return planner::statistics_text(validation); });
    section("memory", [&] { return planner::memory_by_rank(validation); });
    section("inferred", [&] { return planner::inferences_text(screen, validation); });
    section("roles", [&] { return planner::roles_text(validation, planner::built_in_roles()); });
    section("causes", [&] { return planner::errors_text(learnt); });
    section("order",
            [&] { return planner::orderings_text(planner::orderings(validation, planner::built_in_roles())); });
    print_result(text);
  }
  if (!options.write_bounds.empty() && groups.empty()) nothing_predicted("--write-bounds");
  if (!options.write_bounds.empty()) planner::write_accuracy_bounds(groups, options.write_bounds);
  std::vector<std::string> outside;
  if (!options.bounds.empty()) outside = planner::outside_bounds(groups, options.bounds);
  for (const std::string& line : outside) print_note(line);
  return validation.found_bug || !outside.empty() ? kOurBug : kDone;
}

}  // namespace

void add_validate(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<ValidateOptions>();
  CLI::App* command = app.add_subcommand("validate", "Predict measured runs or kernels and print the errors");
  command->add_option("files", options->files, "Lists of measured runs (.json), or records of kernels (.jsonl)")
      ->required()
      ->expected(1, 1000);
  command->add_option("--system", options->system,
                      "System that predicts the records; default: the one of their device");
  command->add_flag("--rows", options->rows, "List every row, not only the ten worst")->group(kOutput);
  add_explain(*command, options->explain, explanations);
  add_format(*command, options->format);
  add_output_file(*command, "--write-residuals", options->write_residuals,
                  "Also write the step-time errors by cause to this file");
  add_output_file(*command, "--write-evidence", options->write_evidence,
                  "Also write what runs chose together to this file: plan --evidence reads it");
  command
      ->add_option("--hosts", options->hosts,
                   "Also learn from these runs of single machines of our own, and count how often intervals hold them")
      ->expected(1, 1000);
  CLI::Option* fit = command->add_option("--fit", options->fit,
                                         "Instead: fit profile fields to the step times and print them; fields joined "
                                         "by commas share one factor (/host/module,/host/eager_op)");
  command
      ->add_flag("--per-machine", options->per_machine,
                 "Beside the factors of --fit one on all of them for each machine (a row's `host`)")
      ->needs(fit);
  command->add_flag("--vary-readings", options->vary_readings,
                    "Also take back each reading of what sources leave unsaid, and print the errors without it");
  command->add_option("--bounds", options->bounds,
                      "End with 1 if the errors of a group of rows have left what this file says");
  add_output_file(*command, "--write-bounds", options->write_bounds, "Write such a file from the errors of today");
  for (const char* other :
       {"--write-residuals", "--write-evidence", "--hosts", "--vary-readings", "--bounds", "--write-bounds"})
    fit->excludes(command->get_option(other));
  command->callback([options, &chosen] { chosen = [options] { return validate(*options); }; });
}

}  // namespace foldwise::cli
