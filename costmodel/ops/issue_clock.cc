#include "costmodel/ops/issue_clock.h"

#include <algorithm>
#include <limits>

namespace foldwise::costmodel {
namespace {

/// No path from one clock to the other.
constexpr Seconds kNever{-std::numeric_limits<double>::infinity()};

}  // namespace

IssueClock::IssueClock() : host_device_(kNever), device_host_(kNever) {}

void IssueClock::op(Seconds issue, Seconds run) {
  host_host_ += issue;
  device_host_ += issue;
  host_device_ = std::max(host_device_, host_host_) + run;
  device_device_ = std::max(device_device_, device_host_) + run;
  issue_ += issue;
  run_ += run;
}

void IssueClock::synchronise(Seconds stall) {
  host_host_ = std::max(host_host_, host_device_) + stall;
  device_host_ = std::max(device_host_, device_device_) + stall;
}

IssueClock IssueClock::then(const IssueClock& next) const {
  IssueClock both;
  both.host_host_ = std::max(host_host_ + next.host_host_, host_device_ + next.device_host_);
  both.host_device_ = std::max(host_host_ + next.host_device_, host_device_ + next.device_device_);
  both.device_host_ = std::max(device_host_ + next.host_host_, device_device_ + next.device_host_);
  both.device_device_ = std::max(device_host_ + next.host_device_, device_device_ + next.device_device_);
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

Seconds IssueClock::elapsed() const { return std::max(host_device_, device_device_); }

Seconds IssueClock::period() const {
  return std::max({host_host_, device_device_, 0.5 * (host_device_ + device_host_)});
}

}  // namespace foldwise::costmodel
