#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hwprofiles/load/profile.h"
#include "hwprofiles/records/reader.h"
#include "planner/report/validation.h"

// Predictions against measured kernels: output of `validate` for record files.
namespace foldwise::planner {

struct ValidatedKernel {
  hwprofiles::Measurement measurement;
  std::string kind;  ///< Group of the summary: "gemm bf16 forward", "memory rope", "collective all_reduce".
  double measured_us = 0.0, predicted_us = 0.0, error_pct = 0.0;
  std::vector<std::string> outside;  ///< "k 65536 is outside the 512 to 36864 that /gemm/bf16 was fitted to"
};

struct KernelValidation {
  std::string system;
  std::vector<ValidatedKernel> rows;
  std::map<std::string, std::int64_t>
      skipped;  ///< Count by kind of the records without an op in the model or a curve in the profile.
  std::vector<config::Diagnostic> warnings;  ///< From reading the files.
};

[[nodiscard]] KernelValidation validate(const std::vector<hwprofiles::Records>& files,
                                        const hwprofiles::Profile& profile);

[[nodiscard]] nlohmann::json validation_json(const KernelValidation& validation);
[[nodiscard]] std::string validation_text(const KernelValidation& validation);

}  // namespace foldwise::planner
