#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hwprofiles/load/profile.h"
#include "hwprofiles/records/reader.h"
#include "planner/report/validation.h"

// Predictions against measured kernels: what `validate` computes and prints for records.
namespace foldwise::planner {

struct ValidatedKernel {
  hwprofiles::Measurement measurement;
  std::string kind;  ///< "gemm bf16 forward", "memory rope", "collective all_reduce": what the summary groups by.
  double measured_us = 0.0, predicted_us = 0.0, error_pct = 0.0;
  std::vector<std::string> outside;  ///< "k 65536 is outside the 512 to 36864 that /gemm/bf16 was fitted to"
};

struct KernelValidation {
  std::string system;
  std::vector<ValidatedKernel> rows;
  std::map<std::string, std::int64_t>
      skipped;                               ///< Records by kind for which the model has no op, or the system no curve.
  std::vector<config::Diagnostic> warnings;  ///< Of the files.
};

/// Predicts every record with the curves of `profile`.
[[nodiscard]] KernelValidation validate(const std::vector<hwprofiles::Records>& files,
                                        const hwprofiles::Profile& profile);

[[nodiscard]] nlohmann::json validation_json(const KernelValidation& validation);
[[nodiscard]] std::string validation_text(const KernelValidation& validation);

}  // namespace foldwise::planner
