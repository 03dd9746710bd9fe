#pragma once
#include <map>
#include <string>
#include <vector>

// How a script that takes its sizes as arguments is called, where its comments or a *.md beside it show it.
namespace foldwise::planner {

struct ShownCall {
  std::map<std::string, std::string> variables;  ///< Set for this call: "TP=1 ./finetune.sh ...".
  std::vector<std::string> arguments;            ///< One or more.
  std::string where;                             ///< "line 2" or "README.md, line 129".
};

/// The calls of `name` ("sh run.sh dsw 7B 1 ...", "./run.sh 7B") in comments of `text`, then in the files of `folder`
/// (empty: none is looked at), each of other arguments once.
[[nodiscard]] std::vector<ShownCall> shown_calls(const std::string& text, const std::string& folder,
                                                 const std::string& name);

}  // namespace foldwise::planner
