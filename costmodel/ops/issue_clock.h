#pragma once
#include <array>
#include <cstdint>

#include "costmodel/units/units.h"

namespace foldwise::costmodel {

/// Effect of a piece of the model on three clocks. The host issues ops, the device runs them in order, and copies to
/// the host run one after another. An op moves host to host + issue, and device to max(device, host) + run. A copy
/// moves host in the same way, and copies to max(copies, device, host) + run. A synchronisation moves host to max(host,
/// device) + stall. If it copies to the host itself, it also waits for the copies before it. All this is linear in
/// max-plus algebra. So a piece is a 3 x 3 matrix and a sequence of pieces is the product, exact for any head start of
/// a clock. Source: docs/formulas.md#host.
class IssueClock {
 public:
  IssueClock();
  /// The host spends `issue` on an op, and then the device runs it for `run`.
  void op(Seconds issue, Seconds run);
  /// The host spends `issue` on a copy of a result of the device, and the copy takes `run`.
  void copy(Seconds issue, Seconds run);
  /// The host waits until the device is done, and then for `stall`. `by_copy`: it also waits for earlier copies.
  void synchronise(Seconds stall, bool by_copy = false);
  [[nodiscard]] IssueClock then(const IssueClock& next) const;
  [[nodiscard]] IssueClock repeated(std::int64_t times) const;

  /// Time until the device is done if all clocks start together.
  [[nodiscard]] Seconds elapsed() const;
  /// Time per repetition in a long sequence of this piece: the largest cycle mean of the matrix.
  [[nodiscard]] Seconds period() const;
  /// Time that the host spends on issuing, without synchronisations.
  [[nodiscard]] Seconds issue() const { return issue_; }
  /// Time that the device spends on running.
  [[nodiscard]] Seconds run() const { return run_; }

 private:
  enum Clock : std::uint8_t { kHost, kDevice, kCopies };
  static constexpr std::array kClocks{kHost, kDevice, kCopies};
  // Entry xy: the least time from the start of clock x to the end of clock y.
  std::array<std::array<Seconds, 3>, 3> ends_;
  Seconds issue_{}, run_{};
};

}  // namespace foldwise::costmodel
