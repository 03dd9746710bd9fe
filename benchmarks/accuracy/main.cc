// foldwise-accuracy, for maintainers of the model (docs/accuracy.md): errors of predictions for rows that set a number
// of the model and for others, causes of the errors, and the host prices that fit best. Writes two files that the
// product is built with: residuals and evidence.
//
//   foldwise-accuracy RUNS.json... [--hosts RUNS.json...] [--bounds FILE] [--write-residuals FILE] ...
//   foldwise-accuracy RUNS.json... --fit /host/module,/host/eager_op [--per-machine]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/accuracy/accuracy.h"
#include "benchmarks/accuracy/error_learning.h"
#include "benchmarks/accuracy/evidence.h"
#include "benchmarks/accuracy/ordering.h"
#include "benchmarks/accuracy/platform_fit.h"
#include "benchmarks/accuracy/readings.h"
#include "benchmarks/accuracy/roles.h"
#include "costmodel/config/diagnostics.h"
#include "costmodel/config/output_file.h"
#include "planner/report/validation.h"

namespace foldwise::accuracy {
namespace {

using nlohmann::json;

enum ExitCode : int { kDone = 0, kFailed = 1, kBadInput = 2 };  // The same as foldwise's.

struct Options {
  std::vector<std::string> files, hosts, fit;
  std::string write_residuals, write_evidence, bounds, write_bounds, format = "text";
  bool per_machine = false, vary_readings = false, rows = false, explain = false;
};

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }
void print(const json& value) { print(value.dump(2, ' ', false, json::error_handler_t::replace) + '\n'); }
void note(const std::string& line) { fmt::print(stderr, "{}\n", line); }

[[noreturn]] void refuse(const char* option, const std::string& why) {
  throw config::ConfigError({{{"command line", 0, option}, why}});
}

int fit(const Options& options, const planner::Validation& validation) {
  std::vector<FieldGroup> groups;
  for (const std::string& list : options.fit) groups.push_back(CLI::detail::split(list, ','));
  const PlatformFit fitted = fit_platform(validation, groups, options.per_machine);
  if (options.format == "json")
    print(platform_fit_json(fitted));
  else
    print(platform_fit_text(fitted));
  return kDone;
}

json answer_json(const planner::Validation& validation, const std::vector<Accuracy>& groups, const Learnt& learnt,
                 const std::vector<VariedReading>& varied) {
  json result = planner::validation_json(validation, planner::built_in_errors());
  for (json& row : result["rows"]) {
    row["origin"] = built_in_roles().origin(row["id"]).name;
    row["set"] = numbers_set_by(row["id"]);
  }
  result["accuracy"] = accuracy_json(groups);
  result["coverage"] = coverage_json(learnt.coverage);
  result["orderings"] = orderings_json(orderings(validation, built_in_roles()));
  if (!varied.empty()) result["readings"] = readings_json(validation, varied);
  return result;
}

std::string answer_text(const Options& options, const planner::Validation& validation,
                        const std::vector<Accuracy>& groups, const Learnt& learnt,
                        const std::vector<VariedReading>& varied) {
  const planner::Screen screen;
  std::string text = planner::validation_text(screen, validation, options.rows);
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text += '\n' + part;
  };
  add(accuracy_text(groups));
  if (!varied.empty()) add(readings_text(validation, varied));
  if (!options.explain) return text;
  add(planner::skipped_text(screen, validation));
  add(planner::statistics_text(validation));
  add(planner::memory_by_rank(validation));
  add(planner::inferences_text(screen, validation));
  add(roles_text(validation, built_in_roles()));
  add(errors_text(learnt));
  add(orderings_text(orderings(validation, built_in_roles())));
  return text;
}

int run(const Options& options) {
  const planner::Validation validation = planner::validate_files(options.files),
                            hosts = planner::validate_files(options.hosts);
  if (!options.fit.empty()) return fit(options, validation);
  const Learnt learnt = learn_errors(validation, built_in_roles(), hosts);
  if (!options.write_residuals.empty()) {
    if (learnt.errors.causes.empty())
      refuse("--write-residuals",
             "nothing to learn from: it takes predicted rows of two groups (model, system and software) that state "
             "micro_batch and recompute");
    planner::write_errors(learnt.errors, options.write_residuals);
    note(fmt::format("residuals written to {}; the next build uses them", options.write_residuals));
  }
  if (!options.write_evidence.empty()) {
    config::write_output_file(options.write_evidence, evidence_text({&validation, &hosts}));
    note(fmt::format("evidence written to {}; the next build uses it", options.write_evidence));
  }
  std::vector<VariedReading> varied;
  if (options.vary_readings) varied = vary_readings(validation, built_in_roles());
  const std::vector<Accuracy> groups = accuracy(validation, built_in_roles(), varied);
  if (options.format == "json")
    print(answer_json(validation, groups, learnt, varied));
  else
    print(answer_text(options, validation, groups, learnt, varied));
  if (!options.write_bounds.empty()) {
    if (groups.empty()) refuse("--write-bounds", "no row was predicted, so there is nothing to write");
    write_accuracy_bounds(groups, options.write_bounds);
  }
  std::vector<std::string> outside;
  if (!options.bounds.empty()) outside = outside_bounds(groups, options.bounds);
  for (const std::string& line : outside) note(line);
  return validation.found_bug || !outside.empty() ? kFailed : kDone;
}

}  // namespace
}  // namespace foldwise::accuracy

int main(int argc, char** argv) try {
  using namespace foldwise;
  accuracy::Options options;
  CLI::App app("Errors of predictions of measured runs, what they come from, and what is learnt from them",
               "foldwise-accuracy");
  app.add_option("runs", options.files, "Lists of measured runs (.json)")->required()->expected(1, 1000);
  app.add_option("--hosts", options.hosts,
                 "Also learn from these runs of single machines of our own, and count how often intervals hold them")
      ->expected(1, 1000);
  app.add_flag("--rows", options.rows, "List every row, not only the ten worst");
  app.add_flag("--explain", options.explain,
               "Also print skipped rows, groups, memory of single ranks, inferred keys, roles, causes and orders");
  app.add_option("--format", options.format, "text or json")->check(CLI::IsMember({"text", "json"}));
  app.add_option("--write-residuals", options.write_residuals, "Also write the step-time errors by cause to this file");
  app.add_option("--write-evidence", options.write_evidence,
                 "Also write what runs chose together to this file: plan --evidence reads it");
  app.add_flag("--vary-readings", options.vary_readings,
               "Also take back each reading of what sources leave unsaid, and print the errors without it");
  app.add_option("--bounds", options.bounds,
                 "End with 1 if the errors of a group of rows have left what this file says");
  app.add_option("--write-bounds", options.write_bounds, "Write such a file from the errors of today");
  CLI::Option* fit = app.add_option("--fit", options.fit,
                                    "Instead: fit profile fields to the step times and print them; fields joined by "
                                    "commas share one factor (/host/module,/host/eager_op)");
  app.add_flag("--per-machine", options.per_machine,
               "Beside the factors of --fit one on all of them for each machine (a row's `host`)")
      ->needs(fit);
  for (const char* other :
       {"--write-residuals", "--write-evidence", "--hosts", "--vary-readings", "--bounds", "--write-bounds"})
    fit->excludes(app.get_option(other));
  try {
    app.parse(argc, argv);
    return accuracy::run(options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? accuracy::kDone : accuracy::kBadInput;
  } catch (const config::ConfigError& error) {
    for (const config::Diagnostic& mistake : error.diagnostics()) accuracy::note(mistake.text());
    return accuracy::kBadInput;
  }
} catch (const std::exception& error) {
  fmt::print(stderr, "foldwise-accuracy: {}\n", error.what());
  return 1;
}
