#pragma once
#include <string>

#include "costmodel/pipeline/timeline.h"

// Times that a schedule can have: a timeline counts picoseconds in 64 bits.
namespace foldwise::costmodel {

/// What simulate() and its kin take; they throw std::range_error with too_long() beyond: 2^63 ps are 9.2e6 s.
inline constexpr Seconds kMostSeconds{9.0e6};
/// What is predicted, 11 days: changes of such a run, which answers try, stay below kMostSeconds.
inline constexpr Seconds kLongestStep{1.0e6};

/// A bound that simulate() never passes, O(pp * vpp): every chunk as slow as the slowest one.
[[nodiscard]] Seconds makespan_upper_bound(const PipelineTimes& times);

/// "its schedule may take 2e+07 s; ...": what is wrong, and what mends it.
[[nodiscard]] std::string too_long(Seconds bound, Seconds most);

}  // namespace foldwise::costmodel
