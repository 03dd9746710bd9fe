#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "planner/report/screen.h"
#include "planner/run/run_file.h"
#include "planner/search/fitting.h"

// The part of `predict` about a run that does not fit. The keys of the JSON form are documented in docs/output.md.
namespace foldwise::planner {

/// Each change, with the complete run file after it.
[[nodiscard]] nlohmann::json fitting_json(const Run& run, const Fitting& fitting);

[[nodiscard]] std::string fitting_text(const Fitting& fitting, const Screen& screen = {});

}  // namespace foldwise::planner
