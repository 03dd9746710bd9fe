#pragma once
#include <functional>
#include <optional>
#include <string>

#include "planner/serve/message.h"

namespace foldwise::serve {

/// Sends a line of the stream; returns whether anyone still wants the rest.
using SendLine = std::function<bool(const std::string& line)>;

/// Answers /api/plan. Lines of JSON:
///   {progress: {share, work, best_s, least_s, found: [{step_time_s, peak_device_memory_gib, capacity_gib, run}]}}
///     several times a second; `found` has the plans that are new since the line before, the fastest of each layout;
///   {answer: {...}}, once, as `plan --format json` prints it; or {errors: [...]}.
/// A question with a mistake is a Response instead, and no line was sent. Never throws.
[[nodiscard]] std::optional<Response> stream_plan(const Request& request, const SendLine& send);

}  // namespace foldwise::serve
