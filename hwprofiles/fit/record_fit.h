#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hwprofiles/fit/curve_fit.h"

namespace foldwise::hwprofiles {

/// Default seed for assigning settings to validation folds.
inline constexpr std::uint64_t kFitSeed = 1;

/// Fits every curve that `records` measure and sets it in `hw`, in an order in which later fits may use earlier ones:
/// memory-bound kernels, GEMMs by format, grouped GEMMs, the clock under sustained load, attention by head dimension,
/// host copies, launches, contention, collectives inside an NVLink domain. `profile`: the JSON that `hw` was loaded
/// from.
[[nodiscard]] std::vector<FittedCurve> fit_records(costmodel::Hardware& hw, const nlohmann::json& profile,
                                                   const std::vector<Measurement>& records, std::uint64_t seed);

/// Parameters of GEMM fits: share of the peak by phase, launch and wave overhead.
[[nodiscard]] std::vector<Parameter> gemm_parameters(const std::string& format,
                                                     const std::vector<Measurement>& samples);
/// Rates, launches and tiles of an attention row, for the directions and formats in `samples`.
[[nodiscard]] std::vector<Parameter> attention_parameters(const std::string& row,
                                                          const std::vector<Measurement>& samples);

}  // namespace foldwise::hwprofiles
