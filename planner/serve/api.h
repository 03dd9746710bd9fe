#pragma once
#include "planner/serve/message.h"

// The API: docs/howto/serve.md, planner/serve/openapi.json. Answers are those that the commands print.
namespace foldwise::serve {

/// Answers every request but those of plan_stream.h. Never throws: bad input is a 4xx with the located message. Reads
/// and writes no file. Threads may call it side by side.
[[nodiscard]] Response respond(const Request& request);

}  // namespace foldwise::serve
