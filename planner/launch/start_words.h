#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/launch/arguments.h"
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

/// The values of the option where it is given last; null: it is not.
[[nodiscard]] const std::vector<std::string>* values_of(const std::vector<Given>& given, const std::string& name);

/// The first values of these options, joined by hyphens: a family and a size. Empty if one is not given.
[[nodiscard]] std::string joined(const std::vector<Given>& given, const std::vector<std::string>& names);

/// A positive number of an option, or of a variable ("$NNODES").
[[nodiscard]] std::optional<std::int64_t> number_of(const std::vector<Given>& given,
                                                    const std::map<std::string, std::string>& environment,
                                                    const std::string& name);

/// The product of such numbers; nothing if one of them is missing or it does not fit 64 bits.
[[nodiscard]] std::optional<std::int64_t> product_of(const std::vector<Given>& given,
                                                     const std::map<std::string, std::string>& environment,
                                                     const std::vector<std::string>& names);

/// The flag that sets a member of Megatron's Namespace to these values. Nothing if that is the value without a flag, or
/// no flag can set it.
[[nodiscard]] std::optional<Argument> argument_for(const std::string& dest, const std::vector<std::string>& given,
                                                   int line);

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
