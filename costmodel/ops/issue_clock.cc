#include "costmodel/ops/issue_clock.h"

#include <algorithm>
#include <limits>

namespace foldwise::costmodel {
namespace {

/// There is no path between the clocks.
constexpr Seconds kNever{-std::numeric_limits<double>::infinity()};

}  // namespace

IssueClock::IssueClock() {
  for (auto& from : ends_) from.fill(kNever);
  for (const Clock clock : kClocks) ends_[clock][clock] = Seconds{};
}

void IssueClock::op(Seconds issue, Seconds run) {
  for (auto& from : ends_) {
    from[kHost] += issue;
    from[kDevice] = std::max(from[kDevice], from[kHost]) + run;
  }
  issue_ += issue;
  run_ += run;
}

void IssueClock::copy(Seconds issue, Seconds run) {
  for (auto& from : ends_) {
    from[kHost] += issue;
    from[kCopies] = std::max({from[kCopies], from[kDevice], from[kHost]}) + run;
  }
  issue_ += issue;
}

void IssueClock::synchronise(Seconds stall, bool by_copy) {
  for (auto& from : ends_)
    from[kHost] = std::max({from[kHost], from[kDevice], by_copy ? from[kCopies] : kNever}) + stall;
}

IssueClock IssueClock::then(const IssueClock& next) const {
  IssueClock both;
  for (const Clock x : kClocks)
    for (const Clock y : kClocks)
      both.ends_[x][y] = std::max({ends_[x][kHost] + next.ends_[kHost][y], ends_[x][kDevice] + next.ends_[kDevice][y],
                                   ends_[x][kCopies] + next.ends_[kCopies][y]});
  both.issue_ = issue_ + next.issue_;
  both.run_ = run_ + next.run_;
  return both;
}

IssueClock IssueClock::repeated(std::int64_t times) const {
  IssueClock result, power = *this;
  for (; times > 0; times /= 2) {
    if (times % 2 == 1) result = result.then(power);
    if (times > 1) power = power.then(power);
  }
  return result;
}

Seconds IssueClock::elapsed() const {
  return std::max({ends_[kHost][kDevice], ends_[kDevice][kDevice], ends_[kCopies][kDevice]});
}

Seconds IssueClock::period() const {
  const auto cycle = [this](auto... clocks) {
    const std::array path{clocks...};
    Seconds sum{};
    for (std::size_t i = 0; i < path.size(); ++i) sum += ends_[path[i]][path[(i + 1) % path.size()]];
    return sum / static_cast<double>(path.size());
  };
  return std::max({cycle(kHost), cycle(kDevice), cycle(kCopies), cycle(kHost, kDevice), cycle(kHost, kCopies),
                   cycle(kDevice, kCopies), cycle(kHost, kDevice, kCopies), cycle(kHost, kCopies, kDevice)});
}

}  // namespace foldwise::costmodel
