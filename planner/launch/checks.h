#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "planner/launch/arguments.h"

// Checks of Megatron-LM's own arguments: contradictions that a run file cannot express, and options that the cost model
// does not use. The rules (planner/rules) check what a run file can express.
namespace foldwise::planner {

/// A start of Megatron: its arguments, the environment variables that it reads, and the number of ranks.
struct Start {
  const Settings& settings;
  const std::map<std::string, std::string>& environment;
  std::int64_t world = 1;
  bool hopper_or_older = true;  ///< Compute capability below 10.
  bool trains = true;           ///< False: it generates text.
  const Release& release;
};

struct ArgumentCheck {
  std::string_view id;       ///< As in docs/rules.md.
  std::string_view members;  ///< Members of the Namespace that it reads. It is reported at the first.
  bool (*violated)(const Start&);
  std::string_view message;
  ReleaseSpan releases{};  ///< Releases that have the check.
};
/// All checks, in Megatron's order.
[[nodiscard]] const std::vector<ArgumentCheck>& argument_checks();

/// Reports every violated check at the line of the first of its members that is given.
void check_arguments(const Start& start, const std::string& file, config::Diagnostics& diagnostics);

}  // namespace foldwise::planner
