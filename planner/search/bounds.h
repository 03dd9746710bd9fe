#pragma once
#include "costmodel/ops/block_cost.h"

// What a rank must at least spend on its work: sums of the costs of pieces, whatever stages they come to lie in.
namespace foldwise::planner {

// Sums of the same times in another order differ by rounding; a bound must not cut what it equals.
inline constexpr double kRounding = 1.0 - 1e-9;

/// Work of one micro-batch in one direction. Sums add up.
struct DirectionLoad {
  Seconds work{};                   ///< Compute, and communication that nothing hides.
  Seconds compute{};                ///< Part of it that the power limit stretches.
  Seconds copy{};                   ///< Copies over the host link, which run beside it.
  Seconds products{}, unclocked{};  ///< As in DirectionCost.
  DirectionLoad& operator+=(const DirectionLoad& other);
  [[nodiscard]] DirectionLoad times(double count) const;
  /// Least time where the rank is idle for `idle` besides, that not counted: what stage_cost (costmodel/step) makes of
  /// it. More of anything but `idle` never makes it less.
  [[nodiscard]] Seconds at_least(Seconds idle = Seconds{}) const;
};

struct Load {
  DirectionLoad forward, backward;
  Seconds saving{};  ///< That EP overlap takes off a merged pair.
  Seconds issue{};   ///< Of the host.
  Load& operator+=(const Load& other);
  [[nodiscard]] Load times(double count) const;
};
[[nodiscard]] Load load_of(const costmodel::BlockCost& cost, Seconds saving);

/// Least time of both directions, without what a stage adds for synchronisation, transfers and the head start of the
/// host. For two parts together never more than apart.
[[nodiscard]] Seconds at_least(const Load& load);

}  // namespace foldwise::planner
