#pragma once
#include <array>
#include <cstdint>

#include "costmodel/units/units.h"

namespace foldwise::costmodel {

/// What a piece of the model does to three clocks: the host's, which issues its ops, the device's, which runs them in
/// order, and that of the copies to the host, which follow each other. An op moves the first two to host + issue and
/// max(device, host) + run, a copy the third to max(copies, device, host) + run. A synchronisation moves the host to
/// max(host, device) + stall; if it is a copy to the host itself, it also waits for the copies before it. All this is
/// linear in max-plus algebra, so a piece is a 3 x 3 matrix and a sequence of pieces is their product: exact, for any
/// head start of a clock. Source: docs/formulas.md#host.
class IssueClock {
 public:
  IssueClock();
  /// The host spends `issue` on an op, then the device runs it for `run`.
  void op(Seconds issue, Seconds run);
  /// The host spends `issue` on a copy of what the device has made, which takes `run`.
  void copy(Seconds issue, Seconds run);
  /// The host waits until the device is done, and `stall` longer; `by_copy`: until earlier copies are, too.
  void synchronise(Seconds stall, bool by_copy = false);
  [[nodiscard]] IssueClock then(const IssueClock& next) const;
  [[nodiscard]] IssueClock repeated(std::int64_t times) const;

  /// Time until the device is done when all clocks start together.
  [[nodiscard]] Seconds elapsed() const;
  /// Time per repetition of the piece in a long sequence: the largest mean over the cycles of the matrix.
  [[nodiscard]] Seconds period() const;
  /// What the host spends on issuing, synchronisations apart.
  [[nodiscard]] Seconds issue() const { return issue_; }
  /// What the device spends on running.
  [[nodiscard]] Seconds run() const { return run_; }

 private:
  enum Clock : std::uint8_t { kHost, kDevice, kCopies };
  static constexpr std::array kClocks{kHost, kDevice, kCopies};
  // Entry xy: the least that clock y ends after clock x started.
  std::array<std::array<Seconds, 3>, 3> ends_;
  Seconds issue_{}, run_{};
};

}  // namespace foldwise::costmodel
