#pragma once
#include <optional>
#include <string>
#include <vector>

#include "costmodel/step/prediction.h"
#include "planner/report/screen.h"
#include "planner/run/run_file.h"
#include "planner/search/sensitivity.h"
#include "planner/uncertainty/error_model.h"

// Lines with a label that describe a run, for the screens of `plan` and `predict`.
namespace foldwise::planner {

/// "deepseek-v3 671B (37B active) on 256 x gb200-nvl72   seq 4096   batch 4096 ...": one line, or two on a narrow
/// screen.
[[nodiscard]] std::string headline(const Screen& screen, const Run& run, const std::string& precision,
                                   const std::vector<std::string>& besides);
/// Step time, interval, tokens/s, TFLOPS and MFU. `name`: label of the line.
[[nodiscard]] std::string step_lines(const Screen& screen, const std::string& name,
                                     const costmodel::Prediction& prediction, const std::optional<Interval>& interval);
[[nodiscard]] std::string layout_lines(const Screen& screen, const costmodel::ModelSpec& model,
                                       const costmodel::TrainingOptions& options);
/// Memory of the fullest rank by kind, with a bar if the screen has bars. `p99`: imbalance of random routing; nullopt
/// for dense models.
[[nodiscard]] std::string memory_lines(const Screen& screen, const Run& run, const costmodel::Prediction& prediction,
                                       const std::optional<costmodel::Imbalance>& p99);
/// Shares of the busiest rank's step time.
[[nodiscard]] std::string time_lines(const Screen& screen, const costmodel::Prediction& prediction);
/// Types of the optimizer states and gradients, which strongly affect memory. `otherwise`: the result with the other
/// type of states.
[[nodiscard]] std::string numerics_line(const Screen& screen, const costmodel::TrainingOptions& options,
                                        const std::string& otherwise = "");

/// A choice of a run besides its layout: "recompute", "recompute moe_act layernorm".
struct RunChoice {
  std::string key, text;
  std::string without;  ///< Text for a run without this choice, when compared with one that has it: "no recomputation".
};
/// Choices of memory, overlap and experts, and other searched options that differ from Megatron's defaults.
[[nodiscard]] std::vector<RunChoice> run_choices(const costmodel::ModelSpec& model,
                                                 const costmodel::TrainingOptions& options);
/// Choices in which a run differs from another; empty if only the layouts differ.
[[nodiscard]] std::string differing_choices(const std::vector<RunChoice>& run, const std::vector<RunChoice>& other);

/// Output of `predict` without --explain.
[[nodiscard]] std::string run_screen(const Screen& screen, const Run& run, const costmodel::Prediction& prediction,
                                     const std::optional<Interval>& interval,
                                     const std::optional<costmodel::Imbalance>& p99, const Insight& insight);

}  // namespace foldwise::planner
