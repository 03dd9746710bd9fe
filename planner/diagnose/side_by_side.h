#pragma once
#include <nlohmann/json.hpp>

#include "planner/diagnose/diagnosis.h"
#include "planner/diagnose/trace.h"
#include "planner/run/run_file.h"

namespace foldwise::planner {

/// Trace-event format (planner/report/trace.h): the predicted step and, as another process that starts at the same
/// time, the measured one. The latter has one thread per GPU stream and one slice per kernel, named by its op. `trace`:
/// the trace of `diagnosis`. A kernel that starts before the previous one of its stream ends is drawn from that end on.
[[nodiscard]] nlohmann::json side_by_side(const Run& run, const Trace& trace, const Diagnosis& diagnosis);

}  // namespace foldwise::planner
