#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hwprofiles/fit/curve_fit.h"

namespace foldwise::hwprofiles {

/// Deals settings out to the parts of a validation, unless the user chooses.
inline constexpr std::uint64_t kFitSeed = 1;

/// Fits every curve that `records` measure, in an order in which later ones may rest on earlier ones, and sets them in
/// `hw`: memory-bound kernels, GEMMs by format, grouped GEMMs, the clock under sustained load, attention by head
/// dimension, copies over the host link, launches, contention, collectives inside an NVLink domain. `profile` is the
/// JSON that `hw` was loaded from.
[[nodiscard]] std::vector<FittedCurve> fit_records(costmodel::Hardware& hw, const nlohmann::json& profile,
                                                   const std::vector<Measurement>& records, std::uint64_t seed);

/// Share of a GEMM's peak by phase, its launch and wave overhead: what GEMM fits change.
[[nodiscard]] std::vector<Parameter> gemm_parameters(const std::string& format,
                                                     const std::vector<Measurement>& samples);
/// Rates, launches and tiles of one attention row, for the directions and formats that `samples` have.
[[nodiscard]] std::vector<Parameter> attention_parameters(const std::string& row,
                                                          const std::vector<Measurement>& samples);

}  // namespace foldwise::hwprofiles
