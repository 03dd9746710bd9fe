#pragma once
#include <string>
#include <vector>

#include "planner/report/validation.h"

namespace foldwise::accuracy {

/// hwprofiles/data/evidence.json: the combinations of choices in rows with a step time of all ranks. (A rank that ran
/// alone had copies instead of collectives.)
[[nodiscard]] std::string evidence_text(const std::vector<const planner::Validation*>& validations);

}  // namespace foldwise::accuracy
