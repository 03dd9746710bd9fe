#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/step/prediction.h"
#include "planner/diagnose/kernel_map.h"
#include "planner/diagnose/trace.h"

// A step of a trace. Every nanosecond is assigned to what the GPU did or waited for.
namespace foldwise::planner {

/// Steps by GPU work: each ends with the last kernel that its host range launched. Host ranges are "ProfilerStep#N",
/// else "iteration N"; without them a step is the time between the last kernels of two optimizer steps. Throws
/// ConfigError if there is no complete step.
[[nodiscard]] std::vector<Span> steps_of(const Trace& trace, const MappedKernels& kernels);

/// Part of a step, named as in DetailEntry, with the additional kinds below.
struct TracedLine {
  costmodel::Cause cause = costmodel::Cause::kCompute;
  std::string kind, module, group;
  bool recomputed = false;
  std::int64_t exposed_ns = 0;  ///< Its part of the step. Kernels that run at once share the time equally.
  std::int64_t busy_ns = 0;     ///< Time of its kernels, ignoring overlap. For the host: same as exposed.
  std::int64_t count = 0;       ///< Number of kernels or gaps.
  std::int64_t longest_ns = 0;  ///< For the host: the longest gap.
  /// Nanoseconds by kernel name, longest first. For the host: by range or Python call, if recorded.
  std::vector<std::pair<std::string, std::int64_t>> names{};
};

struct TracedStep {
  Span time;
  std::vector<TracedLine> lines;        ///< Longest first. They add up to `time` exactly.
  std::int64_t kernel_ns = 0;           ///< Busy time of all kernels.
  std::int64_t found_ns[4] = {};        ///< Its parts by FoundBy.
  std::vector<std::int64_t> linear_ns;  ///< [MappedKernels::linear] median time of their kernels; 0: there are none.
};

/// Kinds of lines that the op list lacks: one of communication, then those of the host.
inline constexpr std::string_view kWaitForRank = "wait for a rank", kOutside = "outside PyTorch",
                                  kDataLoading = "data loading", kGarbageCollection = "garbage collection",
                                  kCheckpointing = "checkpointing";

/// `waits`: [Trace::gpu] nanoseconds at the start of a collective spent waiting for another rank; empty: not known.
[[nodiscard]] TracedStep traced_step(const Trace& trace, const MappedKernels& kernels, const Span& step,
                                     const std::vector<std::int64_t>& waits = {});

}  // namespace foldwise::planner
