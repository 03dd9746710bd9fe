#pragma once
#include <cstdint>
#include <vector>

#include "costmodel/step/model_costs.h"

// Which layers each stage gets.
namespace foldwise::costmodel {

/// Stages of the options' pipeline_layout, or the even split. The options must satisfy the rules.
[[nodiscard]] StageLayout stage_layout(const ModelSpec& model, const TrainingOptions& options);

/// Contiguous layers on pp * vpp virtual stages so that the slowest stage is as fast as possible; earlier stages are
/// filled first. The embedding starts the first stage; MTP and loss end the last. Fewer layers than stages: stages may
/// be empty.
[[nodiscard]] StageLayout balanced_stages(const ModelKinds& kinds, const ModelCosts& costs, std::int64_t mtp_layers,
                                          std::int64_t pp, std::int64_t vpp);

/// Likewise so that the busiest rank, over all of its chunks, has as little work as possible, and its chunks share that
/// evenly. For layers of one kind no split has a less busy rank. `mtp_before_loss`: the MTP layers have the place
/// before the last stage. Requires a stage for each.
[[nodiscard]] StageLayout rank_balanced_stages(const ModelKinds& kinds, const ModelCosts& costs,
                                               std::int64_t mtp_layers, bool mtp_before_loss, std::int64_t pp,
                                               std::int64_t vpp);

/// The splits that are worth trying, each once: Megatron's even ones (with embedding and loss counted as layers or
/// not), where they exist, and those above. Even ones alone for a hybrid model, which takes no layout string.
[[nodiscard]] std::vector<StageLayout> splits_to_try(const ModelSpec& model, const ModelKinds& kinds,
                                                     const ModelCosts& costs, std::int64_t pp, std::int64_t vpp);

}  // namespace foldwise::costmodel
