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

// Output of `predict`. The keys of the JSON form are documented in docs/output.md.
namespace foldwise::planner {

/// Count of the numbers of a system's profile by kind: "datasheet", "measured", "fitted", "assumed".
using ProvenanceCounts = std::map<std::string, std::int64_t>;

/// Highest allocated memory over the pipeline stages: torch.cuda.max_memory_allocated of the largest rank.
[[nodiscard]] Bytes peak_allocated(const costmodel::Prediction& prediction);

/// Warning for a run that fits although PyTorch's allocator would reserve more than the GPU has. Empty if it would not,
/// or if reserved memory is unknown (costmodel/step/reserved_memory.h).
[[nodiscard]] std::string pressed_note(const costmodel::Prediction& prediction, Bytes capacity);

/// Percent of Megatron's FLOP count for keys that no query reads: outside the window, or not selected by an indexer.
[[nodiscard]] double unread_keys_pct(const costmodel::ModelSpec& model, const costmodel::LayerOptions& options);

/// A note on unread_keys_pct() to print below MFU; empty if it is below 1 %.
[[nodiscard]] std::string unread_keys_note(const costmodel::ModelSpec& model, const costmodel::LayerOptions& options);

[[nodiscard]] nlohmann::json prediction_json(const Run& run, const costmodel::Prediction& prediction,
                                             const std::optional<Interval>& interval);

/// Sections of `predict --explain`: memory by stage, with reserved memory and, from `imbalance`, the memory for uneven
/// routing; time by stage and op; the interval; and the assumptions.
[[nodiscard]] std::string memory_text(const Run& run, const costmodel::Prediction& prediction,
                                      const std::optional<costmodel::Imbalance>& imbalance);
[[nodiscard]] std::string time_text(const Run& run, const costmodel::Prediction& prediction);
[[nodiscard]] std::string interval_text(const Screen& screen, const std::optional<Interval>& interval);
[[nodiscard]] std::string assumptions_text(const Screen& screen, const Run& run, const ProvenanceCounts& provenance);

/// A note for schedules that Megatron lacks; else empty.
[[nodiscard]] std::string study_note(costmodel::Schedule schedule);

/// Dense and expert layout: "tp 2 x cp 1 x dp 4 x pp 8, vpp 4; etp 1 x ep 8".
[[nodiscard]] std::string layout_text(const costmodel::Layout& layout);

}  // namespace foldwise::planner
