#pragma once
#include <string>
#include <vector>

#include "planner/diagnose/diagnosis.h"

namespace foldwise::planner {

/// The run with the step time that Megatron's log has: what a step takes without a profiler. Throws ConfigError: the
/// log has no steady iteration.
[[nodiscard]] Run with_logged_time(Run run, const std::string& log);

/// diagnose(), with the flags of its changes.
[[nodiscard]] Diagnosis diagnose_answer(const Run& run, const std::vector<Trace>& traces);

}  // namespace foldwise::planner
