#pragma once
#include <string>

#include "costmodel/pipeline/timeline.h"

// Limits on the times of a schedule. A timeline counts picoseconds in 64 bits.
namespace foldwise::costmodel {

/// Limit of simulate() and related functions; 2^63 ps are 9.2e6 s. Beyond it they throw std::range_error with
/// too_long().
inline constexpr Seconds kMostSeconds{9.0e6};
/// Limit of predicted steps, 11 days. Changes of such a run that answers try stay below kMostSeconds.
inline constexpr Seconds kLongestStep{1.0e6};

/// Upper bound of simulate(), O(pp * vpp): every chunk is taken to be as slow as the slowest one.
[[nodiscard]] Seconds makespan_upper_bound(const PipelineTimes& times);

/// Error text with its remedy: "its schedule may take 2e+07 s; ...".
[[nodiscard]] std::string too_long(Seconds bound, Seconds most);

}  // namespace foldwise::costmodel
