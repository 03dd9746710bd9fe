#pragma once
#include <string>
#include <string_view>
#include <unordered_map>

#include "costmodel/config/diagnostics.h"

// The lines of a JSON text's values, which the JSON library does not keep.
namespace foldwise::config {

/// Line of each value of the JSON text by JSON pointer. `file` and `first_line` are the text's place in messages.
/// Reports syntax errors, duplicate keys, and texts with too many levels or values.
[[nodiscard]] std::unordered_map<std::string, int> lines_of_values(std::string_view text, const std::string& file,
                                                                   int first_line, Diagnostics& diagnostics);

/// A key as a step of a JSON pointer.
[[nodiscard]] std::string pointer_step(std::string_view key);

}  // namespace foldwise::config
