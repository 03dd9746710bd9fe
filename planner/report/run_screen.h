#pragma once
#include <optional>
#include <string>
#include <vector>

#include "costmodel/step/prediction.h"
#include "planner/report/screen.h"
#include "planner/run/run_file.h"
#include "planner/search/sensitivity.h"
#include "planner/uncertainty/error_model.h"

// What `plan` and `predict` say of a run on one screen: lines that begin with a name.
namespace foldwise::planner {

/// "deepseek-v3 671B (37B active) on 256 x gb200-nvl72   seq 4096   batch 4096 ...": one line, or two on a narrow
/// screen.
[[nodiscard]] std::string headline(const Screen& screen, const Run& run, const std::string& precision,
                                   const std::vector<std::string>& besides);
/// Step, interval, tokens/s, TFLOPS and MFU. `name`: of the line.
[[nodiscard]] std::string step_lines(const Screen& screen, const std::string& name,
                                     const costmodel::Prediction& prediction, const std::optional<Interval>& interval);
[[nodiscard]] std::string layout_lines(const Screen& screen, const costmodel::ModelSpec& model,
                                       const costmodel::TrainingOptions& options);
/// What fills the fullest rank, by kind: a bar where the screen has them. `p99`: of random routing; none: no experts.
[[nodiscard]] std::string memory_lines(const Screen& screen, const Run& run, const costmodel::Prediction& prediction,
                                       const std::optional<costmodel::Imbalance>& p99);
/// Shares of the busiest rank's step.
[[nodiscard]] std::string time_lines(const Screen& screen, const costmodel::Prediction& prediction);
/// The types of the optimizer's states and of gradients: they decide what fits. `otherwise`: what the states' other
/// type would give.
[[nodiscard]] std::string numerics_line(const Screen& screen, const costmodel::TrainingOptions& options,
                                        const std::string& otherwise = "");

/// A choice of a run that a layout does not have: "recompute", "recompute moe_act layernorm".
struct RunChoice {
  std::string key, text;
  std::string without;  ///< What a run that does not have it is called beside one that has: "no recomputation".
};
/// How it saves memory, overlaps, and runs its experts, and what else differs from Megatron's defaults of what a search
/// chooses.
[[nodiscard]] std::vector<RunChoice> run_choices(const costmodel::ModelSpec& model,
                                                 const costmodel::TrainingOptions& options);
/// What a run does otherwise than another; empty: nothing but its layout.
[[nodiscard]] std::string differing_choices(const std::vector<RunChoice>& run, const std::vector<RunChoice>& other);

/// What `predict` prints first.
[[nodiscard]] std::string run_screen(const Screen& screen, const Run& run, const costmodel::Prediction& prediction,
                                     const std::optional<Interval>& interval,
                                     const std::optional<costmodel::Imbalance>& p99, const Insight& insight);

}  // namespace foldwise::planner
