#pragma once
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "planner/search/search.h"

// Why a layout that the user has in mind is no plan.
namespace foldwise::planner {

/// Values that fields may have, by key.
using Asked = std::map<std::string, std::vector<nlohmann::json>>;

struct WhyNot {
  Asked asked;
  /// Rules that what was asked breaks ("grid.experts_div_ep: --expert-model-parallel-size 3 does not divide ..."), as
  /// least_refused() finds them. Empty: some candidate is valid, or none was found to be refused.
  std::vector<std::string> refused;
  std::optional<Plan> plan;          ///< The fastest that was found with it and fits.
  std::optional<Shortage> shortage;  ///< Without `ways`: valid, and nothing that fits was found.
  bool proven = false;               ///< That no other with it is faster, or that none fits.
};

/// Searches the problem with these values of the named fields, instead of what else the problem says of them. A small
/// search. Requires values that mistake_in() accepts. `goes_on` returns whether to go on.
[[nodiscard]] WhyNot why_not(const PlanProblem& problem, Asked asked, const std::function<bool()>& goes_on = {});

}  // namespace foldwise::planner
