#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "costmodel/step/prediction.h"
#include "planner/report/screen.h"
#include "planner/run/run_file.h"
#include "planner/uncertainty/error_model.h"

// What `predict` prints. The keys of the JSON form are documented in docs/output.md.
namespace foldwise::planner {

/// How many numbers of a system's profile are of each kind: "datasheet", "measured", "fitted", "assumed".
using ProvenanceCounts = std::map<std::string, std::int64_t>;

/// Highest allocated memory over the pipeline stages: what the largest rank's torch.cuda.max_memory_allocated reports.
[[nodiscard]] Bytes peak_allocated(const costmodel::Prediction& prediction);

/// What torch's allocator would reserve where that is more than the GPU has, though the run fits; empty where it is
/// not, or is not known (costmodel/step/reserved_memory.h).
[[nodiscard]] std::string pressed_note(const costmodel::Prediction& prediction, Bytes capacity);

/// How much of Megatron's FLOP count is for keys that no query reads: beyond a window, or not picked by an indexer.
[[nodiscard]] double unread_keys_pct(const costmodel::ModelSpec& model, const costmodel::LayerOptions& options);

/// A line that says so below figures of MFU; empty where it is less than 1 %.
[[nodiscard]] std::string unread_keys_note(const costmodel::ModelSpec& model, const costmodel::LayerOptions& options);

[[nodiscard]] nlohmann::json prediction_json(const Run& run, const costmodel::Prediction& prediction,
                                             const std::optional<Interval>& interval);

/// What `predict --explain` says besides: memory by stage, with what torch reserves and, of `imbalance`, what uneven
/// routing needs; the step by stage and op; how far it may be off; and what is assumed.
[[nodiscard]] std::string memory_text(const Run& run, const costmodel::Prediction& prediction,
                                      const std::optional<costmodel::Imbalance>& imbalance);
[[nodiscard]] std::string time_text(const Run& run, const costmodel::Prediction& prediction);
[[nodiscard]] std::string interval_text(const Screen& screen, const std::optional<Interval>& interval);
[[nodiscard]] std::string assumptions_text(const Screen& screen, const Run& run, const ProvenanceCounts& provenance);

/// A line that says so of a schedule that only a study would use.
[[nodiscard]] std::string study_note(costmodel::Schedule schedule);

/// "tp 2 x cp 1 x dp 4 x pp 8, vpp 4; etp 1 x ep 8": the two grids.
[[nodiscard]] std::string layout_text(const costmodel::Layout& layout);

}  // namespace foldwise::planner
