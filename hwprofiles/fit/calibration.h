#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "hwprofiles/fit/record_fit.h"
#include "hwprofiles/records/reader.h"

namespace foldwise::hwprofiles {

/// A profile made from the records of one device.
struct Calibration {
  std::vector<FittedCurve> curves;
  std::string base;     ///< Built-in profile that the other numbers come from.
  std::string profile;  ///< Text of the new profile, readable by `--system`.
};

/// Fits `records` and writes a profile named `name`. If `base` describes the same device, numbers without a fit are
/// taken from `base`. If not, they are also copied from `base`, but marked as assumed. Throws config::ConfigError: no
/// such base, or no curve could be fitted.
[[nodiscard]] Calibration calibrate(const Records& records, const std::string& name, const std::string& base,
                                    std::uint64_t seed);

}  // namespace foldwise::hwprofiles
