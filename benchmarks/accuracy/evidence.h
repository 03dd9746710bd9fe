#pragma once
#include <string>
#include <vector>

#include "planner/report/validation.h"

namespace foldwise::accuracy {

/// hwprofiles/data/evidence.json: what those rows chose together that have a step time of all ranks. (Where one ran
/// alone, its collectives were copies.)
[[nodiscard]] std::string evidence_text(const std::vector<const planner::Validation*>& validations);

}  // namespace foldwise::accuracy
