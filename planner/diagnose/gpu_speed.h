#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/diagnose/kernel_map.h"
#include "planner/diagnose/trace.h"
#include "planner/report/waterfall.h"

// Speed of the GPU relative to the prediction, and to the GPUs of other ranks.
namespace foldwise::planner {

inline constexpr std::size_t kPredicted = 0, kMeasured = 1;  ///< Indices of the two "runs" in a diagnosis' waterfall.

/// Why all kernels are slower.
enum class SlowGpu : std::uint8_t {
  kNo,
  kClock,      ///< Products are slower by a common factor, memory-bound kernels by clearly less.
  kShared,     ///< Kernels are interrupted: another process shares the GPU.
  kEverything  ///< Memory-bound kernels too, none interrupted.
};

/// Ratios of measured to reference times.
struct GpuSpeed {
  double products_s = 0.0;    ///< Seconds of all products of the step.
  double products = 1.0;      ///< GEMMs and attention: weighted median of the ratios.
  double spread = 0.0;        ///< Mean distance of their ratios from `products`, relative to it.
  double memory_bound = 1.0;  ///< Memory-bound kernels: weighted median of the ratios.
  double interrupted = 0.0;   ///< Share of the time of memory-bound kernels during which they were interrupted.
  [[nodiscard]] SlowGpu slow() const;
};

/// Measured relative to predicted, from a waterfall of both.
[[nodiscard]] GpuSpeed speed_of(const Waterfall& waterfall, const Trace& trace, const MappedKernels& kernels,
                                const Span& step);

/// Speed of each trace: each kernel of an op relative to the median over all traces, or to the slowest of the faster
/// half.
[[nodiscard]] std::vector<GpuSpeed> speeds_beside(const std::vector<Trace>& traces,
                                                  const std::vector<MappedKernels>& kernels,
                                                  const std::vector<Span>& steps);

}  // namespace foldwise::planner
