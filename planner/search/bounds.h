#pragma once
#include "costmodel/ops/block_cost.h"

// What a rank must at least spend on its work: sums of the costs of pieces, whatever stages they come to lie in.
namespace foldwise::planner {

/// Work of one micro-batch, both directions. Sums add up.
struct Load {
  Seconds forward{}, backward{};                  ///< Compute, and communication that nothing hides.
  Seconds copy_forward{}, copy_backward{};        ///< Copies over the host link, which run beside them.
  Seconds compute_forward{}, compute_backward{};  ///< Part of them that the power limit stretches.
  Seconds saving{};                               ///< That EP overlap takes off a merged pair.
  Seconds issue{};                                ///< Of the host.
  Seconds products{}, unclocked{};                ///< As BlockCost::mix and BlockCost::unclocked.
  Load& operator+=(const Load& other);
  [[nodiscard]] Load times(double count) const;
};
[[nodiscard]] Load load_of(const costmodel::BlockCost& cost, Seconds saving);

/// Least time of a stage with this work: what stage_cost (costmodel/step) makes of it, without what it adds for
/// synchronisation, transfers and the head start of the host. Never more for a part of the work, and for two parts
/// together never more than apart.
[[nodiscard]] Seconds at_least(const Load& load);

/// What it adds for the power limit, by direction, where the rank is idle for `idle` besides. Less for more idle time.
struct Stretch {
  Seconds forward{}, backward{};
};
[[nodiscard]] Stretch stretch_of(const Load& load, Seconds idle);

}  // namespace foldwise::planner
