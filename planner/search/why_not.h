#pragma once
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "planner/search/search.h"

// Why a layout that the user has in mind is not a plan.
namespace foldwise::planner {

/// Values of fields, by key.
using Asked = std::map<std::string, std::vector<nlohmann::json>>;

struct WhyNot {
  Asked asked;
  /// Rules that the asked values break ("grid.experts_div_ep: --expert-model-parallel-size 3 does not divide ..."), as
  /// least_refused() lists them. Empty if some candidate is valid, or if no candidate was found to be refused.
  std::vector<std::string> refused;
  std::optional<Plan> plan;          ///< The fastest plan found with these values that fits.
  std::optional<Shortage> shortage;  ///< Without `ways`. Set if some candidate is valid but none was found that fits.
  bool proven = false;               ///< No other plan with these values is faster, or none fits.
};

/// Searches the problem with these values of the named fields, which replace the problem's own. The search is small.
/// mistake_in() must accept the values. `goes_on` returns whether to go on.
[[nodiscard]] WhyNot why_not(const PlanProblem& problem, Asked asked, const std::function<bool()>& goes_on = {});

}  // namespace foldwise::planner
