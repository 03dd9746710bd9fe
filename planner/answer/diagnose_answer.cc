#include "planner/answer/diagnose_answer.h"

#include <vector>

#include "costmodel/config/diagnostics.h"
#include "costmodel/config/input_file.h"
#include "planner/launch/export.h"
#include "planner/launch/import.h"
#include "planner/launch/training_log.h"

namespace foldwise::planner {

Run with_logged_time(Run run, const std::string& log) {
  const LogIterations iterations = read_iterations(config::read_input_file(log));
  if (iterations.steady == 0)
    throw config::ConfigError(
        {{{log, 0, ""}, "expected a log with steady iterations (\"iteration N/ M | ...\"), found none"}});
  run.measured.step_time_s = iterations.measured.at("step_time_s").get<double>();
  return run;
}

Diagnosis diagnose_answer(const Run& run, const std::vector<Trace>& traces) {
  Diagnosis diagnosis = diagnose(run, traces);
  // A change that no release has beside the run's other values is none, if Megatron can be told the run itself.
  const bool told = argument_changes(run, run.options).has_value();
  std::erase_if(diagnosis.changes, [&](Suggestion& suggestion) {
    const auto changes = argument_changes(run, suggestion.change.options);
    if (!changes) return told;
    suggestion.flags.emplace();
    for (const ArgumentChange& change : *changes) suggestion.flags->push_back(change.text());
    return false;
  });
  return diagnosis;
}

}  // namespace foldwise::planner
