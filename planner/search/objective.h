#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "planner/search/search.h"

// Other questions than "what is the fastest plan", answered by several searches for that one.
namespace foldwise::planner {

/// One of those searches. It may end as soon as it answers its question, so its plan need not be the fastest.
struct Tried {
  std::int64_t num_gpus = 1;
  Bytes memory_allowed{};  ///< A device; less headroom.
  Seconds step_time{};     ///< Of the fastest plan that it found; 0: none.
  Bytes peak_memory{};     ///< Of the plan within the limit that needs least, or of the fastest; 0: none.
  bool within = false;     ///< The limit of the step time.
  bool proven = false;     ///< Where none is within: that there is none.
};

struct Answered {
  PlanProblem problem;         ///< That `result` answers.
  PlanResult result;           ///< Plans within the limit; none: none was found.
  Seconds limit{};             ///< Of the step time.
  std::vector<Tried> tried{};  ///< In the order of the searches.
};

using Report = std::function<bool(const Progress&)>;

/// The plans of least peak memory whose step takes no longer than `limit`, or, if not given, than (1 + slack) times the
/// fastest plan's. The memory that a plan may use is bisected, to 1 % of the device's; the answer is the fastest plans
/// within the least that was found to do. Each search has the problem's effort: one that ends without a plan and
/// unproven counts as "none".
[[nodiscard]] Answered least_memory(const PlanProblem& problem, std::optional<Seconds> limit, double slack,
                                    const Report& progress = {});

/// The fewest GPUs whose best plan takes no longer than `limit`. From `num_gpus` the size is halved as long as that is
/// so, if it is not so at the start doubled until it is, or until twice as many are not faster; then each size between
/// the last two is asked, from below. Beyond an NVLink domain sizes are whole machines, and no more than the cluster
/// has. `problem_of` may throw ConfigError for another size than the first: no candidate is valid there.
[[nodiscard]] Answered fewest_gpus(std::int64_t num_gpus, Seconds limit,
                                   const std::function<PlanProblem(std::int64_t num_gpus)>& problem_of,
                                   const Report& progress = {});

}  // namespace foldwise::planner
