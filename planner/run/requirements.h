#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "costmodel/model/model.h"
#include "costmodel/parallel/options.h"

// Versions of libraries that a run's options need (Field::limited).
namespace foldwise::planner {

struct Requirement {
  std::string library;  ///< "Transformer Engine"
  std::string version;  ///< Lowest version: "2.14"; empty: any.
  std::string because;  ///< What needs it: "software.experts fused".
};

/// One requirement for each library, in the order of the table of fields. Each has the highest of the versions needed.
[[nodiscard]] std::vector<Requirement> requirements(const costmodel::ModelSpec& model,
                                                    const costmodel::TrainingOptions& options);
/// Whether a version is below another; "2.9.1" is below "2.14".
[[nodiscard]] bool older(const std::string& version, const std::string& than);
/// "Transformer Engine 2.14, DeepEP"
[[nodiscard]] std::string requirements_text(const std::vector<Requirement>& requirements);
/// [{library, version, because}]
[[nodiscard]] nlohmann::json requirements_json(const std::vector<Requirement>& requirements);

}  // namespace foldwise::planner
