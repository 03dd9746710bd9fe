#pragma once
#include <vector>

#include "planner/diagnose/diagnosis.h"

namespace foldwise::planner {

/// What of a diagnosis' other members stands out: findings of a hundredth of the step and more.
[[nodiscard]] std::vector<Finding> findings_of(const Diagnosis& diagnosis);

/// Its waterfall's differences by reason.
[[nodiscard]] std::vector<Reason> reasons_of(const Diagnosis& diagnosis);

}  // namespace foldwise::planner
