#pragma once
#include <nlohmann/json.hpp>

#include "planner/diagnose/diagnosis.h"
#include "planner/diagnose/trace.h"
#include "planner/run/run_file.h"

namespace foldwise::planner {

/// Trace-event format (planner/report/trace.h): the predicted step, and as a process more the measured one, from the
/// same moment on: a thread per stream of the GPU, a slice per kernel, named by its op. `trace`: the one of
/// `diagnosis`. A kernel that begins before the one ahead of it on its stream has ended is drawn from there on.
[[nodiscard]] nlohmann::json side_by_side(const Run& run, const Trace& trace, const Diagnosis& diagnosis);

}  // namespace foldwise::planner
