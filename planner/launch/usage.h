#pragma once
#include <optional>
#include <string>
#include <vector>

// How a script that takes its sizes as arguments is called, where its comments or a *.md beside it show it.
namespace foldwise::planner {

struct ShownCall {
  std::vector<std::string> arguments;
  std::string where;  ///< "line 2" or "README.md, line 129".
};

/// The first call of `name` ("sh run.sh dsw 7B 1 ...") in a comment of `text`, else in a file of `folder` (empty: none
/// is looked at).
[[nodiscard]] std::optional<ShownCall> shown_call(const std::string& text, const std::string& folder,
                                                  const std::string& name);

}  // namespace foldwise::planner
