#pragma once
#include <map>
#include <string>
#include <vector>

// Finds example calls of a script that takes its sizes as arguments, in its comments or in *.md files beside it.
namespace foldwise::planner {

struct ShownCall {
  std::map<std::string, std::string> variables;  ///< Set for this call: "TP=1 ./finetune.sh ...", or exported before.
  std::vector<std::string> arguments;            ///< At least one.
  std::string where;                             ///< "line 2" or "README.md, line 129".
};

/// The calls of `name` ("sh run.sh dsw 7B 1 ...", "./run.sh 7B") in comments of `text`, then in the files of `folder`
/// (empty: none). Calls with equal arguments are listed once.
[[nodiscard]] std::vector<ShownCall> shown_calls(const std::string& text, const std::string& folder,
                                                 const std::string& name);

}  // namespace foldwise::planner
