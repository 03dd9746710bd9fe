#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/step/prediction.h"
#include "planner/diagnose/kernel_map.h"
#include "planner/diagnose/trace.h"

// A step of a trace, every nanosecond of it given to what the GPU did, or waited for.
namespace foldwise::planner {

/// Steps by the work on the GPU: each ends when the last kernel that its host part launched does. Host parts are
/// ranges that say so ("ProfilerStep#N", else "iteration N"); without them, from one optimizer's last kernel to the
/// next one's. Throws ConfigError: there is no whole step.
[[nodiscard]] std::vector<Span> steps_of(const Trace& trace, const MappedKernels& kernels);

/// Part of a step, named as DetailEntry; beside its kinds, what stands below.
struct TracedLine {
  costmodel::Cause cause = costmodel::Cause::kCompute;
  std::string kind, module, group;
  bool recomputed = false;
  std::int64_t exposed_ns = 0;  ///< Its share of the step; where several kernels run at once, in equal parts.
  std::int64_t busy_ns = 0;     ///< Of its kernels, whatever ran beside them. Of the host: as exposed.
  std::int64_t count = 0;       ///< Kernels, or gaps.
  std::int64_t longest_ns = 0;  ///< Of the host: the longest gap.
  /// Kernels by nanoseconds, the longest first. Of the host, where the trace says it: ranges and calls of Python.
  std::vector<std::pair<std::string, std::int64_t>> names{};
};

struct TracedStep {
  Span time;
  std::vector<TracedLine> lines;        ///< Longest first; they add up to `time` exactly.
  std::int64_t kernel_ns = 0;           ///< Of all kernels, busy.
  std::int64_t found_ns[4] = {};        ///< Of those by FoundBy.
  std::vector<std::int64_t> linear_ns;  ///< [MappedKernels::linear] the median of their kernels; 0: there is none.
};

/// Kinds of lines that the op list has not: of communication, and of the host.
inline constexpr std::string_view kWaitForRank = "wait for a rank", kOutside = "outside PyTorch",
                                  kDataLoading = "data loading", kGarbageCollection = "garbage collection",
                                  kCheckpointing = "checkpointing";

/// `waits`: [Trace::gpu] nanoseconds at its begin for which a collective waits for another rank; empty: not known.
[[nodiscard]] TracedStep traced_step(const Trace& trace, const MappedKernels& kernels, const Span& step,
                                     const std::vector<std::int64_t>& waits = {});

}  // namespace foldwise::planner
