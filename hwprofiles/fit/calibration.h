#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "hwprofiles/fit/record_fit.h"
#include "hwprofiles/records/reader.h"

namespace foldwise::hwprofiles {

/// The records of one device as a profile.
struct Calibration {
  std::vector<FittedCurve> curves;
  std::string base;     ///< Built-in profile that the rest comes from.
  std::string profile;  ///< Text of the new profile; `--system` reads it.
};

/// Fits `records` and writes a profile named `name`. Of the device that `base` describes it holds what was fitted and
/// takes the rest from `base`; of any other device everything else is copied from `base` and marked assumed. Throws
/// config::ConfigError: no such base, or no curve could be fitted.
[[nodiscard]] Calibration calibrate(const Records& records, const std::string& name, const std::string& base,
                                    std::uint64_t seed);

}  // namespace foldwise::hwprofiles
