#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/launch/export.h"
#include "planner/run/requirements.h"

// Checks a launch with the user's own Megatron-LM, without a GPU: runs planner/launch/check_arguments.py in the user's
// Python.
namespace foldwise::planner {

/// An installed library that is older than the plan needs.
struct TooOld {
  Requirement needed;
  std::string found;
};

struct Verdict {
  bool accepted = false;
  std::string stage;  ///< Stage of the failure: "import", "parse", "validate", "config"; empty: none.
  std::string error;  ///< Megatron's own message.
  std::string at;     ///< "megatron/training/arguments.py:1642"; empty: not in Megatron's code.
  std::vector<std::pair<std::string, std::string>> versions;  ///< Installed libraries.
  std::vector<TooOld> too_old;
  std::vector<std::string> notes;  ///< What was not checked.

  [[nodiscard]] bool holds() const { return accepted && too_old.empty(); }
};

/// Runs `python` (a name on PATH or a path) on the Megatron-LM in the folder `megatron`. Throws ConfigError if one of
/// them does not exist.
[[nodiscard]] Verdict verdict_of(const Launch& launch, const Run& run, const std::string& megatron,
                                 const std::string& python);
/// "accepted by ...", or what is refused and where, one per line.
[[nodiscard]] std::string verdict_text(const Verdict& verdict, const std::string& megatron);
/// {accepted, stage, error, at, versions, too_old [{library, needs, found}], notes}
[[nodiscard]] nlohmann::json verdict_json(const Verdict& verdict);

}  // namespace foldwise::planner
