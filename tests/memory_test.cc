// Is the memory of every rank right? 34 runs of Megatron-LM core_v0.16.1 on four H200, with and without Transformer
// Engine: peak, level after set-up and level between steps, as torch counted them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "costmodel/step/prediction.h"
#include "planner/run/run_file.h"

namespace foldwise::planner {
namespace {

constexpr double kPeakPct = 1.0, kPeakRmsPct = 0.2, kSetupAndRestPct = 0.3;

double error_pct(Bytes predicted, double measured_gib) {
  return 100.0 * (predicted.to<double>() / 1073741824.0 / measured_gib - 1.0);
}

void check(const std::string& file, std::size_t runs) {
  const RunList list = load_runs(std::string(FW_DATA_DIR) + "/runs/" + file);
  ASSERT_EQ(list.runs.size(), runs);
  double square = 0.0;
  std::size_t ranks = 0;
  for (const Run& run : list.runs) {
    const costmodel::Prediction prediction = costmodel::predict(run.model, run.options, run.hardware);
    const std::vector<double>& peaks = run.measured.peak_memory_gib_per_rank;
    ASSERT_EQ(peaks.size(), static_cast<std::size_t>(run.num_gpus)) << run.id;
    ASSERT_TRUE(run.measured.allocated_after_setup_gib && run.measured.allocated_between_steps_gib) << run.id;
    EXPECT_NEAR(error_pct(prediction.memory[0].allocated_after_setup, *run.measured.allocated_after_setup_gib), 0.0,
                kSetupAndRestPct)
        << run.id << " after set-up";
    EXPECT_NEAR(error_pct(prediction.memory[0].allocated_between_steps, *run.measured.allocated_between_steps_gib), 0.0,
                kSetupAndRestPct)
        << run.id << " between steps";
    for (std::size_t rank = 0; rank < peaks.size(); ++rank) {
      const std::size_t stage = rank * prediction.memory.size() / peaks.size();
      const double error = error_pct(prediction.memory[stage].allocated(), peaks[rank]);
      EXPECT_NEAR(error, 0.0, kPeakPct) << run.id << " peak of rank " << rank;
      square += error * error;
      ++ranks;
    }
  }
  EXPECT_LT(std::sqrt(square / static_cast<double>(ranks)), kPeakRmsPct);
}

TEST(MeasuredMemory, OfEveryRankIsReachedWithTransformerEngine) { check("h200x4_te_runs.json", 20); }
TEST(MeasuredMemory, OfEveryRankIsReachedWithLocalLayers) { check("h200x4_runs.json", 14); }

}  // namespace
}  // namespace foldwise::planner
