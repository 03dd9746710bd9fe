#pragma once
#include "costmodel/ops/block_cost.h"

// Lower bounds of the time that a rank spends on its work. They are sums of the costs of pieces, whichever stages the
// pieces lie in.
namespace foldwise::planner {

// Factor for bounds. The same times summed in another order differ by rounding, and a bound must not cut its equal.
inline constexpr double kRounding = 1.0 - 1e-9;

/// Work of one micro-batch in one direction. It can be added up.
struct DirectionLoad {
  Seconds work{};                           ///< Compute, and exposed communication.
  Seconds compute{};                        ///< The part of `work` that the power limit stretches.
  Seconds copy{};                           ///< Copies over the host link, which run beside `work`.
  Seconds products{}, unclocked{}, warm{};  ///< As in DirectionCost.
  DirectionLoad& operator+=(const DirectionLoad& other);
  [[nodiscard]] DirectionLoad times(double count) const;
  /// Lower bound of the time of this work on a rank that also waits for `idle`, which is not counted in it. The formula
  /// is that of stage_cost (costmodel/step). The bound never falls if any value but `idle` grows.
  [[nodiscard]] Seconds at_least(Seconds idle = Seconds{}) const;
};

struct Load {
  DirectionLoad forward, backward;
  Seconds saving{};  ///< Time that EP overlap takes off a merged pair.
  Seconds issue{};   ///< Time of the host to issue the kernels.
  Load& operator+=(const Load& other);
  [[nodiscard]] Load times(double count) const;
};
[[nodiscard]] Load load_of(const costmodel::BlockCost& cost, Seconds saving);

/// Lower bound of the time of both directions. It leaves out what a stage adds: synchronisation, transfers and the head
/// start of the host. The bound of two parts together is at most the sum of their bounds.
[[nodiscard]] Seconds at_least(const Load& load);

}  // namespace foldwise::planner
