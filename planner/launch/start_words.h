#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "planner/launch/sandbox.h"

// The words of a start: which options and overrides it gives, and which program trains.
namespace foldwise::planner {

/// A name with its values, in order. Names of options have no "--" and "_" for "-"; names of overrides have no "+".
struct Given {
  std::string name, word;
  std::vector<std::string> values;
};

/// Options and, if the program has them, `overrides` ("model.bf16=true"). `shorts`: long names of short options.
[[nodiscard]] std::vector<Given> given_in(const std::vector<std::string>& words, bool overrides,
                                          const std::map<std::string, std::string>& shorts);

/// The words after the programs around it and after the script or module that Python runs.
[[nodiscard]] std::vector<std::string> own_words(const Started& started);

/// The words without the programs around it, up to 64 KiB.
[[nodiscard]] std::string own_text(const Started& started);

/// Whether there is this one value, in any case.
[[nodiscard]] bool says(const std::vector<std::string>& values, std::string_view what);

/// The items of "[a,b]" or "a,b".
[[nodiscard]] std::vector<std::string> items_of(std::string text);

/// The program that `started` trains with, if it is known to do so without Megatron; else empty.
[[nodiscard]] std::string other_trainer(const Started& started);

}  // namespace foldwise::planner
