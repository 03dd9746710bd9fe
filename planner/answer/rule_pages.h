#pragma once
#include <nlohmann/json.hpp>

#include "planner/rules/rules.h"

// Rules with their rows of docs/rules.md: docs/output.md#rules.
namespace foldwise::planner {

/// {rule, demands, note, flags, fields, releases}
[[nodiscard]] nlohmann::json rule_json(const Rule& rule);
/// {rules: [...]}, all of them.
[[nodiscard]] nlohmann::json rules_json();

}  // namespace foldwise::planner
