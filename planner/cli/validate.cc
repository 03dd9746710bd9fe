#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hwprofiles/load/profile.h"
#include "hwprofiles/load/systems.h"
#include "planner/cli/commands.h"
#include "planner/cli/outputs.h"
#include "planner/cli/terminal.h"
#include "planner/report/record_validation.h"
#include "planner/report/validation.h"
#include "planner/run/near_names.h"

namespace foldwise::cli {
namespace {

struct ValidateOptions {
  std::vector<std::string> files;
  std::string system;
  std::vector<std::string> explain;
  bool rows = false;
  std::string format = "text";
};

const planner::Explanations explanations = {{"skipped", "why rows were not predicted"},
                                            {"groups", "errors by model, system, precision and release"},
                                            {"memory", "levels of memory of single ranks"},
                                            {"inferred", "keys that no source states"}};

int validate_records(const ValidateOptions& options) {
  if (options.rows || !options.explain.empty())
    throw config::ConfigError(
        {{{"command line", 0, options.rows ? "--rows" : "--explain"}, "only of measured runs (.json)"}});
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

bool is_records(const std::string& file) { return file.ends_with(".jsonl"); }

/// Refuses a file that is given twice: its rows would count twice.
void check_twice(const std::vector<std::string>& files) {
  config::Diagnostics diagnostics;
  std::error_code ignored;
  for (std::size_t i = 0; i < files.size(); ++i)
    if (std::any_of(files.begin(), files.begin() + static_cast<std::ptrdiff_t>(i), [&](const std::string& other) {
          return other == files[i] || std::filesystem::equivalent(other, files[i], ignored);
        }))
      diagnostics.error({"command line", 0, ""}, fmt::format("\"{}\" is given twice", files[i]));
  diagnostics.throw_if_any();
}

int validate(const ValidateOptions& options) {
  check_twice(options.files);
  if (std::all_of(options.files.begin(), options.files.end(), is_records)) return validate_records(options);
  if (std::any_of(options.files.begin(), options.files.end(), is_records))
    throw config::ConfigError(
        {{{"command line", 0, ""}, "give measured runs (.json) or kernel records (.jsonl), not both"}});
  if (!options.system.empty())
    throw config::ConfigError({{{"command line", 0, "--system"}, "only of kernel records (.jsonl): runs name theirs"}});
  const planner::Validation validation = planner::validate_files(options.files);
  if (validation.rows.empty() && validation.out_of_memory.empty() && validation.skipped.empty())
    print_note("nothing was validated: the files have no measured run");
  if (options.format == "json") {
    print_result(planner::validation_json(validation, planner::built_in_errors()));
  } else {
    const planner::Screen screen = screen_of_stdout();
    std::string text = planner::validation_text(screen, validation, options.rows);
    const auto section = [&](const char* name, const auto& part) {
      if (!planner::is_asked(options.explain, name)) return;
      if (const std::string its = part(); !its.empty()) text += '\n' + its;
    };
    section("skipped", [&] { return planner::skipped_text(screen, validation); });
    section("groups", [&] { return planner::statistics_text(validation); });
    section("memory", [&] { return planner::memory_by_rank(validation); });
    section("inferred", [&] { return planner::inferences_text(screen, validation); });
    print_result(text);
  }
  return validation.found_bug ? kOurBug : kDone;
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
  command->callback([options, &chosen] { chosen = [options] { return validate(*options); }; });
}

}  // namespace foldwise::cli
