#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "planner/launch/arguments.h"
#include "planner/run/run_file.h"

// Conversion of fields of a run file that are not simply one argument with the field's value.
namespace foldwise::planner {

struct ArgumentWriting {
  const Run& run;
  const Release& release;
  Settings& settings;
  /// Reports a value that no argument can express.
  std::function<void(std::string_view key, std::string message)> refuse;

  [[nodiscard]] const costmodel::TrainingOptions& options() const { return run.options; }
};

struct ArgumentReading {
  const Settings& settings;
  /// Records what Megatron derives from the arguments.
  std::function<void(std::string_view key, std::string why)> infer;
  /// Reports a choice that is not modelled, at this member of the Namespace.
  std::function<void(std::string_view dest, std::string message)> refuse;
};

/// Conversion of one field to and from Megatron's arguments.
struct Form {
  std::string_view key;
  std::vector<std::string> members;  ///< Members of the Namespace that are read.
  /// Value of the first member; null: not given. nullptr: never given.
  nlohmann::json (*says)(const ArgumentWriting&) = nullptr;
  void (*write)(ArgumentWriting&) = nullptr;  ///< Replaces `says` if several members are set.
  /// Value of the field; null: the run file does not state it. nullptr: the first member's value.
  nlohmann::json (*read)(ArgumentReading&) = nullptr;
};

/// Empty rows are fields that no argument expresses.
[[nodiscard]] const std::vector<Form>& forms();
/// Null: the field is one argument, which the table of fields names.
[[nodiscard]] const Form* form_of(std::string_view key);

}  // namespace foldwise::planner
