#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "hwprofiles/load/profile.h"

namespace foldwise::planner {

/// The number at `pointer` ("/hbm/bandwidth") of a profile, with its unit; empty if there is none.
[[nodiscard]] std::string fact_text(const hwprofiles::Profile& profile, const std::string& pointer);

/// [{field, value, kind, source, date, note}]: the source of each number of a profile (docs/output.md).
[[nodiscard]] nlohmann::json facts_json(const hwprofiles::Profile& profile);

}  // namespace foldwise::planner
