#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/step/step.h"
#include "planner/diagnose/gpu_speed.h"
#include "planner/diagnose/kernel_map.h"
#include "planner/diagnose/trace.h"

// What traces of several ranks say about each other; and what one says about the group that its rank is in.
namespace foldwise::planner {

/// A rank that the others wait for, or that waits.
struct RankReport {
  std::int64_t rank = 0, node = 0;  ///< Nodes are NVLink domains.
  double waited_s = 0.0;            ///< In collectives of a step, for ranks that come later.
  double waited_for_s = 0.0;        ///< By the rank that waited longest, in each collective that this one came to last.
  std::int64_t last = 0, of = 0;    ///< Collectives that it came to last, of how many.
  GpuSpeed speed;                   ///< Beside the other ranks.
  double rows = 0.0;                ///< Of its experts, a pass through an MoE layer: the mean. 0: not recorded.
  std::int64_t busiest = 0;         ///< Passes in which no other traced rank's experts had more rows.
};

/// Rows of experts, from the sizes that grouped products were given; where those are not recorded, from what
/// all-to-alls over EP receive.
struct ExpertRows {
  std::int64_t passes = 0;     ///< Through the experts of an MoE layer: forward; from all-to-alls backward too.
  double predicted = 0.0;      ///< Of a pass: balanced, but for what the run says.
  double mean = 0.0;           ///< Over passes, of the first trace.
  double mean_of_ranks = 0.0;  ///< The same of all traced ranks of its expert group.
  /// Of the busiest traced rank of a pass over the mean of the ranks, over passes; 1 with a single trace.
  double busiest_over_mean = 1.0;
};

/// What a group of ranks moves, beside groups that do the same.
struct LinkReport {
  std::string kind, group;          ///< "all_to_all", "ep".
  std::vector<std::int64_t> ranks;  ///< Two of them: of a pair.
  std::int64_t calls = 0;           ///< Of a step.
  double bytes = 0.0;               ///< Of a step: the larger of what a rank gives and gets.
  double bandwidth = 0.0;           ///< Bytes a second, of the fastest of the large calls: the one that waited least.
  std::optional<double> of_others;  ///< The median of the other groups' bandwidths; none: there is no other.
  double lost_s = 0.0;              ///< What its calls would take less at that.
};

struct RankComparison {
  /// [traces, Trace::gpu] nanoseconds at its begin for which a collective waits for another rank: the k-th one of a
  /// kind in a group is the same on all its ranks and ends on all together, so who takes least time came last.
  std::vector<std::vector<std::int64_t>> waits;
  std::vector<RankReport> ranks;   ///< [traces]
  std::optional<ExpertRows> rows;  ///< None: neither is recorded.
  std::vector<LinkReport> links;   ///< The slowest beside the others first.
};

/// `steps`: of each trace, the same step.
[[nodiscard]] RankComparison compare_ranks(const std::vector<Trace>& traces, const std::vector<MappedKernels>& kernels,
                                           const std::vector<Span>& steps, const costmodel::Step& step);

}  // namespace foldwise::planner
