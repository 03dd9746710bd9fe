#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "costmodel/step/step_timeline.h"

// Timelines of a step: a trace for Perfetto and chrome://tracing, and an SVG for a browser.
namespace foldwise::planner {

/// Trace-event format: one process per pipeline rank, one thread per stream, a flow from each transfer to the task that
/// waited for it, and a counter of allocated memory per rank. Times are in microseconds. Draws about `most_tasks`
/// tasks; a longer step shows the first and the last tasks of each rank, with one slice for those left out. Source:
/// "Trace Event Format", Google, 2016.
[[nodiscard]] nlohmann::json trace_json(const costmodel::StepTimeline& timeline, const std::string& title,
                                        std::size_t most_tasks = 20'000);

/// The schedule: one row per pipeline rank, one box per task, coloured by task kind. `most_tasks` as in trace_json().
[[nodiscard]] std::string schedule_svg(const costmodel::StepTimeline& timeline, const std::string& title,
                                       std::size_t most_tasks = 20'000);

}  // namespace foldwise::planner
