#pragma once
#include <nlohmann/json.hpp>
#include <set>
#include <string>

// The only place where text becomes part of a script. A shell or Python reads the text of a run file back unchanged and
// executes none of it.
namespace foldwise::planner {

/// One word for a shell. It is unchanged if none of its characters is special, else single-quoted. Throws
/// std::logic_error for a NUL, which no argument can hold.
[[nodiscard]] std::string shell_word(const std::string& text);

/// A Python literal of texts, numbers, True, False, None, and lists of these.
[[nodiscard]] std::string python_literal(const nlohmann::json& value);

/// Text for a comment of a shell or Python: on one line, with line breaks and control characters as "\n" and "\u0007".
[[nodiscard]] std::string comment_text(const std::string& text);

/// Turns placeholders for the reader, `NAME=<YOUR_TOKEN>` and `NAME="<some folder>"`, into texts. bash would read them
/// as two redirections, there or where the variable is used. Each is added to `found`.
[[nodiscard]] std::string with_placeholders(const std::string& script, std::set<std::string>& found);

}  // namespace foldwise::planner
