#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/launch/export.h"
#include "planner/run/requirements.h"

// What the user's own Megatron-LM says of a launch, without a GPU: planner/launch/check_arguments.py in the user's
// Python.
namespace foldwise::planner {

/// A library that is installed in an older version than the plan needs.
struct TooOld {
  Requirement needed;
  std::string found;
};

struct Verdict {
  bool accepted = false;
  std::string stage;  ///< Where it stopped: "import", "parse", "validate", "config"; empty: nowhere.
  std::string error;  ///< Megatron's own words.
  std::string at;     ///< "megatron/training/arguments.py:1642"; empty: no place in it.
  std::vector<std::pair<std::string, std::string>> versions;  ///< Installed libraries.
  std::vector<TooOld> too_old;
  std::vector<std::string> notes;  ///< What was not checked.

  [[nodiscard]] bool holds() const { return accepted && too_old.empty(); }
};

/// Runs `python` (a name on PATH or a path) on the Megatron-LM in the folder `megatron`. Throws ConfigError where one
/// of them is none.
[[nodiscard]] Verdict verdict_of(const Launch& launch, const Run& run, const std::string& megatron,
                                 const std::string& python);
/// "accepted by ...", or what is refused and where; a line each.
[[nodiscard]] std::string verdict_text(const Verdict& verdict, const std::string& megatron);
/// {accepted, stage, error, at, versions, too_old [{library, needs, found}], notes}
[[nodiscard]] nlohmann::json verdict_json(const Verdict& verdict);

}  // namespace foldwise::planner
