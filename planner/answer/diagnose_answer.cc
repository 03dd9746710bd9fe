#include "planner/answer/diagnose_answer.h"

#include <fmt/format.h>

#include <vector>

#include "costmodel/config/diagnostics.h"
#include "costmodel/config/input_file.h"
#include "costmodel/config/plain_text.h"
#include "planner/launch/export.h"
#include "planner/launch/import.h"
#include "planner/launch/log_starts.h"
#include "planner/launch/training_log.h"

namespace foldwise::planner {

Run with_logged_time(Run run, const std::string& log) {
  const std::string text = config::plain_text(config::read_input_file(log));
  const std::vector<LogStart> starts = starts_in(text);
  const LogStart* start = start_to_read(starts, 0);
  const LogIterations iterations =
      read_iterations(start == nullptr ? text : std::string(start->text), run.options.pipeline.global_batch);
  if (iterations.steady == 0)
    throw config::ConfigError(
        {{{log, 0, ""},
          iterations.unmeasured.empty()
              ? "expected a log with steady iterations (\"iteration N/ M | ...\"), found none"
              : fmt::format("expected a log with steady iterations, found none: {}", iterations.unmeasured)}});
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
