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

// The parts of a run's step, and its step on better hardware or with one choice changed. Every number is a prediction.
namespace foldwise::planner {

/// Shares of the busiest rank's step by cause. They add up to 1.
struct Walls {
  double compute = 0.0;        ///< Kernels of the model and the optimizer.
  double memory = 0.0;         ///< Cost of too little memory: recomputation, waiting for offloaded tensors.
  double communication = 0.0;  ///< Exposed collectives and transfers.
  double host = 0.0;           ///< GPU idle because the host issues too slowly or synchronises.
  double bubble = 0.0;         ///< Waiting for other pipeline ranks.
  double memory_used = 0.0;    ///< Memory of the fullest rank over the device's; not a share of the step.
};
/// Requires a prediction with detail.
[[nodiscard]] Walls walls(const costmodel::Prediction& prediction, const costmodel::Hardware& hardware);

/// A resource of a system that can be increased.
enum class Resource : std::uint8_t { kFlops, kPower, kHbmBandwidth, kHbmCapacity, kNvlink, kNic, kHost };
inline constexpr std::size_t kResources = costmodel::enumerators<Resource>();
/// "flops", "power", "hbm_bandwidth", "hbm_capacity", "nvlink", "nic", "host".
[[nodiscard]] std::string_view to_string(Resource resource);

/// The hardware with `factor` times as much of the resource. Kernels keep their shares of the peaks. Whatever has
/// another limit (launches, SMs, latencies) stays.
///   flops: peaks of the products and rates of attention. The power limit stays, so lower clocks may undo the gain;
///   power: the limit alone;
///   HBM bandwidth: all kernels, by their bytes;
///   NVLink, NIC: bandwidths, not latencies;
///   host: every price of issuing is divided by the factor; copies over the host link stay.
[[nodiscard]] costmodel::Hardware with_more(costmodel::Hardware hardware, Resource resource, double factor);

struct Sensitivity {
  Resource resource = Resource::kFlops;
  Seconds step_time{};  ///< With more of the resource. For memory: step of the fastest neighbour that then fits, or of
                        ///< the run itself.
  Seconds gain{};       ///< Against the run as it is. For memory: against the fastest neighbour that fits now.
};

/// What a user can do about a run.
struct Insight {
  static constexpr double kMore = 1.1;  ///< Factor by which a resource is increased.
  Walls walls;
  std::vector<Sensitivity> sensitivities;  ///< Largest gain first.
  /// The resource with the largest gain; nothing if none gains a thousandth of the step. Memory if the run does not
  /// fit.
  std::optional<Resource> binding;
  Neighbours neighbours;
  std::optional<Change> best;  ///< The fastest neighbour that fits and is faster; nothing if there is none.
  std::optional<Change> best_with_more_memory;  ///< The same with kMore times the device's memory.
};

/// `headroom`: share of the device's memory that changes must leave free, as plans do. `prediction` is the run's own,
/// with detail.
[[nodiscard]] Insight insight(const Problem& problem, const costmodel::TrainingOptions& options,
                              const costmodel::Prediction& prediction, double headroom);

}  // namespace foldwise::planner
