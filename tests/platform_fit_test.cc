#include "benchmarks/accuracy/platform_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "costmodel/step/step.h"
#include "hwprofiles/load/profile.h"
#include "planner/report/validation.h"

namespace foldwise::accuracy::platform_fit_test {
namespace {

using namespace planner;
using testing::SizeIs;

// With a factor for each machine, does a fit tell what one price is beside another from how fast machines are, which
// without it it takes for prices?
TEST(PlatformFit, TellsPricesFromMachines) {
  const std::map<std::string, double> speeds{{"fast", 0.8}, {"slow", 1.3}};
  constexpr double kOp = 1.5;  // Relative to a module.
  RunList list = load_runs(FW_ACCURACY_DIR "/runs/h200x2_runs.json");
  for (std::size_t i = 0; i < list.runs.size(); ++i) {
    planner::Run& run = list.runs[i];
    const auto& [name, speed] = *std::next(speeds.begin(), i % 3 == 0 ? 0 : 1);
    run.json["host"] = name;
    run.measured = {};
    run.measured.step_time_s =
        costmodel::predict(
            costmodel::compose_step(
                run.model, run.options,
                hwprofiles::scaled(profile_of(run), {{"/host/module", speed}, {"/host/eager_op", speed * kOp}})),
            false)
            .step_time.to<double>();
  }
  const std::vector<FieldGroup> fields{{"/host/module"}, {"/host/eager_op"}};
  const Validation validation = validate({list});
  const PlatformFit fit = fit_platform(validation, fields, true), one = fit_platform(validation, fields);
  ASSERT_THAT(fit.machines, SizeIs(2));
  EXPECT_NEAR(fit.groups[1].factor / fit.groups[0].factor, kOp, 0.02 * kOp);
  EXPECT_NEAR(fit.machines[1].factor / fit.machines[0].factor, 1.3 / 0.8, 0.02 * 1.3 / 0.8);
  EXPECT_LT(fit.training.mape, 0.5);
  EXPECT_GT(one.training.mape, 2.0 * fit.training.mape);
  EXPECT_TRUE(one.machines.empty());
}

}  // namespace
}  // namespace foldwise::accuracy::platform_fit_test
