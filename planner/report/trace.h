#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "costmodel/step/step_timeline.h"

// Pictures of a step: a trace for Perfetto and chrome://tracing, and one page of SVG for a browser.
namespace foldwise::planner {

/// Trace-event format: a process per pipeline rank, a thread per stream, flows from a transfer to the task that waited
/// for it, a counter of allocated memory per rank. Times are in microseconds. At most about `most_tasks` tasks of
/// chunks are drawn: of more, the first and the last ones of each rank, with one slice for what is left out between
/// them. Source: "Trace Event Format", Google, 2016.
[[nodiscard]] nlohmann::json trace_json(const costmodel::StepTimeline& timeline, const std::string& title,
                                        std::size_t most_tasks = 20'000);

/// The schedule: a row per pipeline rank, a box per task, coloured by what it computes. Bounded as the trace is.
[[nodiscard]] std::string schedule_svg(const costmodel::StepTimeline& timeline, const std::string& title,
                                       std::size_t most_tasks = 20'000);

}  // namespace foldwise::planner
