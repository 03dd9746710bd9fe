#pragma once
// The only header that includes the units library. Every quantity of the cost model has one of these types.
#define DISABLE_PREDEFINED_UNITS
#define UNIT_LIB_DISABLE_IOSTREAM
#define ENABLE_PREDEFINED_POWER_UNITS
#define ENABLE_PREDEFINED_TIME_UNITS
#define ENABLE_PREDEFINED_DATA_UNITS
#define ENABLE_PREDEFINED_DATA_TRANSFER_RATE_UNITS
#include <units.h>

namespace foldwise {

using Watts = units::power::watt_t;
using Seconds = units::time::second_t;
using Bytes = units::data::byte_t;
using Bandwidth = units::data_transfer_rate::bytes_per_second_t;  ///< Decimal: 1 GB/s is 1e9 bytes a second.

/// Floating-point operations; a multiply-add counts as two. The library has no such dimension, so its substance
/// dimension is used.
using FlopUnit = units::unit<std::ratio<1>, units::category::substance_unit>;
using Flops = units::unit_t<FlopUnit>;
using FlopRate = units::unit_t<units::compound_unit<FlopUnit, units::inverse<units::time::second>>>;

inline constexpr double kGib = 1073741824.0;  ///< Bytes in a GiB (2^30).

[[nodiscard]] constexpr double in_gib(Bytes bytes) { return bytes.to<double>() / kGib; }
[[nodiscard]] constexpr Bytes from_gib(double gib) { return Bytes{gib * kGib}; }
[[nodiscard]] constexpr Bandwidth gb_per_s(double value) { return Bandwidth{value * 1e9}; }
[[nodiscard]] constexpr FlopRate tflops(double value) { return FlopRate{value * 1e12}; }
[[nodiscard]] constexpr Seconds microseconds(double value) { return Seconds{value * 1e-6}; }

}  // namespace foldwise
