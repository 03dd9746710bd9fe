#pragma once
#include <cstdint>

#include "costmodel/units/units.h"

namespace foldwise::costmodel {

/// What a piece of the model does to two clocks: the host's, which issues its ops, and the device's, which runs them in
/// order. An op moves them to host + issue and max(device, host) + run; a synchronisation moves the host to
/// max(host, device) + stall. Both are linear in max-plus algebra, so a piece is a 2 x 2 matrix and a sequence of
/// pieces is their product: exact, for any head start of the host. Source: docs/formulas.md#host.
class IssueClock {
 public:
  IssueClock();
  /// The host spends `issue` on an op, then the device runs it for `run`.
  void op(Seconds issue, Seconds run);
  /// The host waits until the device is done, and `stall` longer.
  void synchronise(Seconds stall);
  [[nodiscard]] IssueClock then(const IssueClock& next) const;
  [[nodiscard]] IssueClock repeated(std::int64_t times) const;

  /// Time until the device is done when both clocks start together.
  [[nodiscard]] Seconds elapsed() const;
  /// Time per repetition of the piece in a long sequence: the largest mean over the cycles of the matrix.
  [[nodiscard]] Seconds period() const;
  /// What the host spends on issuing, synchronisations apart.
  [[nodiscard]] Seconds issue() const { return issue_; }
  /// What the device spends on running.
  [[nodiscard]] Seconds run() const { return run_; }

 private:
  // Entry xy: the least that clock y ends after clock x started.
  Seconds host_host_{}, host_device_, device_host_, device_device_{};
  Seconds issue_{}, run_{};
};

}  // namespace foldwise::costmodel
