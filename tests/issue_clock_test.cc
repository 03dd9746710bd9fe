// Does the host's clock limit the device as clocks walked op by op would? The 3 x 3 matrices against the walk that they
// stand for, and closed forms of the cases that matter: a slow host, a slow device, a synchronisation a layer, behind
// copies to the host.
#include "costmodel/ops/issue_clock.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

namespace foldwise::costmodel::issue_clock_test {
namespace {

struct Step {
  enum Kind { kOp, kCopy, kSynchronise, kByCopy } kind;
  int issue, run;  ///< Microseconds; a synchronisation stalls for `issue`.
};

rc::Gen<std::vector<Step>> steps() {
  return rc::gen::container<std::vector<Step>>(rc::gen::apply(
      [](int kind, int issue, int run) {
        return Step{static_cast<Step::Kind>(std::max(0, kind - 3)), issue, run};
      },
      rc::gen::inRange(0, 7), rc::gen::inRange(0, 50), rc::gen::inRange(0, 50)));
}

IssueClock clock_of(const std::vector<Step>& list) {
  IssueClock clock;
  for (const Step& step : list) {
    const Seconds issue = microseconds(step.issue), run = microseconds(step.run);
    if (step.kind == Step::kOp)
      clock.op(issue, run);
    else if (step.kind == Step::kCopy)
      clock.copy(issue, run);
    else
      clock.synchronise(issue, step.kind == Step::kByCopy);
  }
  return clock;
}

/// The definition: walks all clocks from 0.
int walked(const std::vector<Step>& list) {
  int host = 0, device = 0, copies = 0;
  for (const Step& step : list) {
    switch (step.kind) {
      case Step::kOp:
        host += step.issue;
        device = std::max(device, host) + step.run;
        break;
      case Step::kCopy:
        host += step.issue;
        copies = std::max({copies, device, host}) + step.run;
        break;
      case Step::kSynchronise:
        host = std::max(host, device) + step.issue;
        break;
      case Step::kByCopy:
        host = std::max({host, device, copies}) + step.issue;
        break;
    }
  }
  return device;
}

double us(Seconds time) { return time.to<double>() * 1e6; }

// Is the closed form of host and device what walking them op by op gives?
RC_GTEST_PROP(IssueClock, ElapsedIsTheWalk, ()) {
  const std::vector<Step> list = *steps();
  RC_ASSERT(std::abs(us(clock_of(list).elapsed()) - walked(list)) < 1e-6);
}

// Is the product of two pieces their sequence?
RC_GTEST_PROP(IssueClock, ProductIsTheSequence, ()) {
  const std::vector<Step> a = *steps(), b = *steps();
  std::vector<Step> both = a;
  both.insert(both.end(), b.begin(), b.end());
  RC_ASSERT(std::abs(us(clock_of(a).then(clock_of(b)).elapsed()) - walked(both)) < 1e-6);
}

// Is a power of a piece its repetition?
RC_GTEST_PROP(IssueClock, RepeatedIsTheSequence, ()) {
  const std::vector<Step> once = *steps();
  const int times = *rc::gen::inRange(1, 12);
  std::vector<Step> list;
  for (int i = 0; i < times; ++i) list.insert(list.end(), once.begin(), once.end());
  RC_ASSERT(std::abs(us(clock_of(once).repeated(times).elapsed()) - walked(list)) < 1e-6);
}

// Is the largest cycle mean what a repetition takes in a long sequence?
RC_GTEST_PROP(IssueClock, PeriodIsWhatLongSequencesTake, ()) {
  std::vector<Step> once = *steps();
  // Without an op the device's clock does not advance, and only this kind of synchronisation waits for copies.
  once.push_back({Step::kOp, 1, 1});
  once.push_back({Step::kByCopy, 1, 0});
  std::vector<Step> list;
  constexpr int kTimes = 400;
  for (int i = 0; i < kTimes; ++i) list.insert(list.end(), once.begin(), once.end());
  int whole = 1;  // Issue and run of one repetition, all of which may come before or after.
  for (const Step& step : once) whole += step.issue + step.run;
  RC_ASSERT(std::abs(us(clock_of(once).period()) - walked(list) / double{kTimes}) <= whole / double{kTimes} + 1e-6);
}

TEST(IssueClock, WithoutSynchronisationTheSlowerOfTheTwoCounts) {
  EXPECT_NEAR(us(clock_of({{Step::kOp, 10, 3}, {Step::kOp, 10, 30}}).period()), 33.0, 1e-9);
  EXPECT_NEAR(us(clock_of({{Step::kOp, 20, 3}, {Step::kOp, 20, 30}}).period()), 40.0, 1e-9);
}

TEST(IssueClock, AfterASynchronisationTheDeviceWaitsForTheFirstLaunch) {
  // Host: 5 us stall, then 10 us for an op of 100 us: the device idles for 15 us of every 115.
  EXPECT_NEAR(us(clock_of({{Step::kSynchronise, 5, 0}, {Step::kOp, 10, 100}}).period()), 115.0, 1e-9);
}

TEST(IssueClock, ASynchronisationByCopyWaitsForTheCopiesBeforeIt) {
  // A GEMM of 100 us whose output takes 40 us to the host; then a stall of 5 us and an op of 10 us that runs for 7.
  EXPECT_NEAR(
      us(clock_of({{Step::kOp, 1, 100}, {Step::kCopy, 1, 40}, {Step::kByCopy, 5, 0}, {Step::kOp, 10, 7}}).elapsed()),
      101.0 + 40.0 + 5.0 + 10.0 + 7.0, 1e-9);
  // A synchronisation that copies nothing to the host does not wait for copies.
  EXPECT_NEAR(us(clock_of({{Step::kOp, 1, 100}, {Step::kCopy, 1, 40}, {Step::kSynchronise, 5, 0}, {Step::kOp, 10, 7}})
                     .elapsed()),
              101.0 + 5.0 + 10.0 + 7.0, 1e-9);
}

}  // namespace
}  // namespace foldwise::costmodel::issue_clock_test
