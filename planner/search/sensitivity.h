#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "costmodel/enums.h"
#include "costmodel/hardware/hardware.h"
#include "costmodel/step/prediction.h"
#include "planner/rules/rules.h"
#include "planner/search/changes.h"

// What a run's step is made of, and what better hardware or one other choice would make of it. Every number is a
// prediction of its own.
namespace foldwise::planner {

/// Shares of the busiest rank's step by what they are spent on; they add up to 1.
struct Walls {
  double compute = 0.0;        ///< Kernels of the model and the optimizer.
  double memory = 0.0;         ///< What lack of memory costs: recomputation, waiting for offloaded tensors.
  double communication = 0.0;  ///< Collectives and transfers that nothing hides.
  double host = 0.0;           ///< GPU idle: the host issues too slowly, or synchronises.
  double bubble = 0.0;         ///< Waiting for other pipeline ranks.
  double memory_used = 0.0;    ///< Not a share of the step: fullest rank's memory over the device's.
};
/// Requires a prediction with detail.
[[nodiscard]] Walls walls(const costmodel::Prediction& prediction, const costmodel::Hardware& hardware);

/// What of a system may be more.
enum class Resource : std::uint8_t { kFlops, kPower, kHbmBandwidth, kHbmCapacity, kNvlink, kNic, kHost };
inline constexpr std::size_t kResources = costmodel::enumerators<Resource>();
/// "flops", "power", "hbm_bandwidth", "hbm_capacity", "nvlink", "nic", "host".
[[nodiscard]] std::string_view to_string(Resource resource);

/// The hardware with `factor` times as much of the resource. Kernels keep the shares of the peaks that they reach, and
/// what has another limit (launches, SMs, latencies) stays.
///   flops: peaks of the products and rates of attention. The power limit stays, so clocks may take it back;
///   power: the limit alone;
///   HBM bandwidth: all kernels by their bytes;
///   NVLink, NIC: bandwidths, not latencies;
///   host: every price of issuing, over the factor; copies over the host link stay.
[[nodiscard]] costmodel::Hardware with_more(costmodel::Hardware hardware, Resource resource, double factor);

struct Sensitivity {
  Resource resource = Resource::kFlops;
  Seconds step_time{};  ///< With more of it. Of memory: of the fastest neighbour that then fits, or the run itself.
  Seconds gain{};       ///< Against the run as it is. Of memory: against the fastest neighbour that fits now.
};

/// What a user may do about a run.
struct Insight {
  static constexpr double kMore = 1.1;  ///< Times as much of a resource.
  Walls walls;
  std::vector<Sensitivity> sensitivities;  ///< What gains most first.
  /// What gains most; none: nothing gains a thousandth of the step. If the run does not fit, memory.
  std::optional<Resource> binding;
  Neighbours neighbours;
  std::optional<Change> best;                   ///< The fastest neighbour that fits and is faster. None: none is.
  std::optional<Change> best_with_more_memory;  ///< Likewise, with kMore times the device's memory.
};

/// `headroom`: share of the device's memory that changes leave free, as plans do. The prediction is the run's own, with
/// detail.
[[nodiscard]] Insight insight(const Problem& problem, const costmodel::TrainingOptions& options,
                              const costmodel::Prediction& prediction, double headroom);

}  // namespace foldwise::planner
