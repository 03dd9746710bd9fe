#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "planner/search/search.h"

// Questions other than "what is the fastest plan". Each is answered by several searches for a fastest plan.
namespace foldwise::planner {

/// One of these searches. It may end as soon as it answers its question, so its plan need not be the fastest.
struct Tried {
  std::int64_t num_gpus = 1;
  Bytes memory_allowed{};  ///< Per device, without headroom.
  Seconds step_time{};     ///< Fastest plan that was found; 0 if none.
  Bytes peak_memory{};  ///< Of the plan within the limit that needs least memory, otherwise of the fastest plan; 0 if
                        ///< none.
  bool within = false;  ///< Whether `step_time` is within the limit.
  bool proven = false;  ///< No plan is within the limit, and this is proven.
};

struct Answered {
  PlanProblem problem;         ///< The problem that `result` answers.
  PlanResult result;           ///< Plans within the limit; empty if none was found.
  Seconds limit{};             ///< Longest step time.
  std::vector<Tried> tried{};  ///< In the order of the searches.
};

using Report = std::function<bool(const Progress&)>;

/// Minimizes peak memory over the plans whose step takes no longer than `limit`, by default (1 + slack) times the
/// fastest plan's step. It bisects the memory that a plan may use, to 1 % of the device's. The answer has the fastest
/// plans within the least memory for which one was found. Each search has the problem's effort; one that ends without a
/// plan and without a proof counts as "none".
[[nodiscard]] Answered least_memory(const PlanProblem& problem, std::optional<Seconds> limit, double slack,
                                    const Report& progress = {});

/// The fewest GPUs whose best plan takes no longer than `limit`. If `num_gpus` suffices, the size is halved until it
/// does not. Otherwise it is doubled until it does, or until twice as many GPUs are not faster. Then each size between
/// the last two is asked, from below. Sizes beyond an NVLink domain are whole machines, at most as many as the cluster
/// has. `problem_of` may throw ConfigError for any size but the first: that size has no valid candidate.
[[nodiscard]] Answered fewest_gpus(std::int64_t num_gpus, Seconds limit,
                                   const std::function<PlanProblem(std::int64_t num_gpus)>& problem_of,
                                   const Report& progress = {});

}  // namespace foldwise::planner
