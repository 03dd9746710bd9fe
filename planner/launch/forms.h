#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "planner/launch/arguments.h"
#include "planner/run/run_file.h"

// How fields of a run file are said in Megatron's arguments where they are more than one argument with the field's
// value.
namespace foldwise::planner {

struct ArgumentWriting {
  const Run& run;
  const Release& release;
  Settings& settings;
  /// What no argument says.
  std::function<void(std::string_view key, std::string message)> refuse;

  [[nodiscard]] const costmodel::TrainingOptions& options() const { return run.options; }
};

struct ArgumentReading {
  const Settings& settings;
  /// Notes what Megatron makes of the arguments.
  std::function<void(std::string_view key, std::string why)> infer;
  /// A choice that is not modelled, given by this member of the Namespace.
  std::function<void(std::string_view dest, std::string message)> refuse;
};

/// How a field is said where it is not one argument that holds its value.
struct Form {
  std::string_view key;
  std::vector<std::string> members;  ///< Of the Namespace, that are read.
  nlohmann::json (*says)(const ArgumentWriting&) =
      nullptr;                                ///< What the first of them is given; null: nothing. Empty: never said.
  void (*write)(ArgumentWriting&) = nullptr;  ///< Instead, where there are several.
  nlohmann::json (*read)(ArgumentReading&) =
      nullptr;  ///< Null: the run file is silent. Empty: the first member's value.
};

/// Empty rows stand for fields that no argument says.
[[nodiscard]] const std::vector<Form>& forms();
/// Null: the field is one argument, which the table of fields names.
[[nodiscard]] const Form* form_of(std::string_view key);

}  // namespace foldwise::planner
