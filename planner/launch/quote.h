#pragma once
#include <nlohmann/json.hpp>
#include <set>
#include <string>

// The one place where a text becomes part of a script. Whatever a run file says, a shell or Python reads it back as
// that text and runs none of it.
namespace foldwise::planner {

/// One word of a shell: as it is where no character means something there, else between single quotes. Throws
/// std::logic_error for a NUL, which no argument can hold.
[[nodiscard]] std::string shell_word(const std::string& text);

/// A literal of Python: texts, numbers, True, False, None, and lists of them.
[[nodiscard]] std::string python_literal(const nlohmann::json& value);

/// For a comment, of either: on one line, with line breaks and other control characters as "\n" and "\u0007".
[[nodiscard]] std::string comment_text(const std::string& text);

/// A script in which `NAME=<YOUR_TOKEN>` and `NAME="<some folder>"`, which its reader is to replace, are texts: bash
/// takes them for two redirections, there or where the variable is used. `found` gets each.
[[nodiscard]] std::string with_placeholders(const std::string& script, std::set<std::string>& found);

}  // namespace foldwise::planner
