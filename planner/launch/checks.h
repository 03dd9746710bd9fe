#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "planner/launch/arguments.h"

// What Megatron-LM refuses of its arguments before there is a run: contradictions that a run file cannot state, and
// options that the cost model has no use for. What a run file can state is refused by the rules (planner/rules).
namespace foldwise::planner {

/// A start of Megatron: its arguments, the variables that it reads, and how many ranks there are.
struct Start {
  const Settings& settings;
  const std::map<std::string, std::string>& environment;
  std::int64_t world = 1;
  bool hopper_or_older = true;  ///< Compute capability below 10.
  bool trains = true;           ///< Else it generates text.
  const Release& release;
};

struct ArgumentCheck {
  std::string_view id;       ///< As docs/rules.md lists it.
  std::string_view members;  ///< Of the Namespace, that it looks at, the first is where it is reported.
  bool (*violated)(const Start&);
  std::string_view message;
  ReleaseSpan releases{};  ///< That check it.
};
/// In Megatron's order.
[[nodiscard]] const std::vector<ArgumentCheck>& argument_checks();

/// Adds every violated check to `diagnostics`, at the line of its first member that is given.
void check_arguments(const Start& start, const std::string& file, config::Diagnostics& diagnostics);

}  // namespace foldwise::planner
