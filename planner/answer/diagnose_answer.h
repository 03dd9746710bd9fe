#pragma once
#include <string>
#include <vector>

#include "planner/diagnose/diagnosis.h"

namespace foldwise::planner {

/// `run` with the step time from Megatron's log, which is free of profiler overhead. Throws ConfigError if the log has
/// no steady iteration.
[[nodiscard]] Run with_logged_time(Run run, const std::string& log);

/// diagnose(), with the command-line flags of its changes.
[[nodiscard]] Diagnosis diagnose_answer(const Run& run, const std::vector<Trace>& traces);

}  // namespace foldwise::planner
