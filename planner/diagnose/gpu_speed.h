#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/diagnose/kernel_map.h"
#include "planner/diagnose/trace.h"
#include "planner/report/waterfall.h"

// How fast the GPU was: against the prediction, and against the GPUs of other ranks.
namespace foldwise::planner {

inline constexpr std::size_t kPredicted = 0, kMeasured = 1;  ///< "Runs" of a diagnosis's waterfall.

/// What makes kernels slower that makes all of them slower.
enum class SlowGpu : std::uint8_t {
  kNo,
  kClock,      ///< Products by a common factor, and what memory bounds by clearly less.
  kShared,     ///< Kernels are interrupted: another process has its turns.
  kEverything  ///< Memory-bound kernels too, and none is interrupted.
};

/// Times over those that they are compared with.
struct GpuSpeed {
  double products_s = 0.0;    ///< Seconds of all products of the step.
  double products = 1.0;      ///< Of GEMMs and attention: the median of the compared time.
  double spread = 0.0;        ///< Of theirs, the mean distance from `products`, as a share of it.
  double memory_bound = 1.0;  ///< Of the kernels that memory bounds: the median.
  double interrupted = 0.0;   ///< Share of the time of kernels that memory bounds for which these were interrupted.
  [[nodiscard]] SlowGpu slow() const;
};

/// Measured over predicted, of lines of a waterfall of both.
[[nodiscard]] GpuSpeed speed_of(const Waterfall& waterfall, const Trace& trace, const MappedKernels& kernels,
                                const Span& step);

/// Of each trace: of the same kernels of the same ops, over the median of all traces, or the faster half's slowest.
[[nodiscard]] std::vector<GpuSpeed> speeds_beside(const std::vector<Trace>& traces,
                                                  const std::vector<MappedKernels>& kernels,
                                                  const std::vector<Span>& steps);

}  // namespace foldwise::planner
