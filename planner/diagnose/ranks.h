#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/step/step.h"
#include "planner/diagnose/gpu_speed.h"
#include "planner/diagnose/kernel_map.h"
#include "planner/diagnose/trace.h"

// Compares the traces of several ranks, and infers from each what its group did.
namespace foldwise::planner {

/// Waits of one rank, and waits for it.
struct RankReport {
  std::int64_t rank = 0, node = 0;  ///< Nodes are NVLink domains.
  double waited_s = 0.0;            ///< In the collectives of a step, for ranks that arrive later.
  double waited_for_s = 0.0;  ///< Sum over the collectives to which this rank came last: longest wait of another rank.
  std::int64_t last = 0, of = 0;  ///< Collectives to which it came last, and all its collectives.
  GpuSpeed speed;                 ///< Relative to the other ranks.
  double rows = 0.0;              ///< Mean rows of its experts per pass through an MoE layer. 0: not recorded.
  std::int64_t busiest = 0;       ///< Passes in which no other traced rank's experts had more rows.
};

/// Rows of experts, from the sizes of grouped products; if sizes are not recorded, from the bytes that all-to-alls over
/// EP receive.
struct ExpertRows {
  std::int64_t passes = 0;     ///< Through the experts of an MoE layer: forward; from all-to-alls also backward.
  double predicted = 0.0;      ///< Per pass: balanced, unless the run states an imbalance.
  double mean = 0.0;           ///< Mean over passes of the first trace.
  double mean_of_ranks = 0.0;  ///< The same over all traced ranks of its expert group.
  /// Rows of the busiest traced rank of a pass relative to the mean of the ranks, over all passes; 1 for a single
  /// trace.
  double busiest_over_mean = 1.0;
};

/// Traffic of a group of ranks, compared with groups that do the same.
struct LinkReport {
  std::string kind, group;          ///< "all_to_all", "ep".
  std::vector<std::int64_t> ranks;  ///< Two ranks for point-to-point.
  std::int64_t calls = 0;           ///< Per step.
  double bytes = 0.0;               ///< Per step: the larger of the bytes that a rank sends and receives.
  double bandwidth = 0.0;           ///< Bytes per second of the fastest large call, which waited least.
  std::optional<double> of_others;  ///< Median bandwidth of the other groups; nullopt if there are none.
  double lost_s = 0.0;              ///< Time that its calls would save at that bandwidth.
};

struct RankComparison {
  /// [traces, Trace::gpu] nanoseconds at the start of a collective spent waiting for another rank. The k-th collective
  /// of a kind in a group is the same one on all ranks and ends on all at once, so the shortest one came last.
  std::vector<std::vector<std::int64_t>> waits;
  std::vector<RankReport> ranks;   ///< [traces]
  std::optional<ExpertRows> rows;  ///< Nullopt: not recorded.
  std::vector<LinkReport> links;   ///< Slowest relative to the others first.
};

/// `steps`: the same step in each trace.
[[nodiscard]] RankComparison compare_ranks(const std::vector<Trace>& traces, const std::vector<MappedKernels>& kernels,
                                           const std::vector<Span>& steps, const costmodel::Step& step);

}  // namespace foldwise::planner
