#pragma once
#include <cstdint>
#include <vector>

#include "costmodel/step/model_costs.h"

// Splits of layers into stages.
namespace foldwise::costmodel {

/// Stages of the options' pipeline_layout, or the even split. The options must satisfy the rules.
[[nodiscard]] StageLayout stage_layout(const ModelSpec& model, const TrainingOptions& options);

/// Contiguous layers on pp * vpp virtual stages, with the slowest stage as fast as possible. Earlier stages are filled
/// first. The embedding is on the first stage, MTP and loss on the last. With fewer layers than stages, stages may be
/// empty.
[[nodiscard]] StageLayout balanced_stages(const ModelKinds& kinds, const ModelCosts& costs, std::int64_t mtp_layers,
                                          std::int64_t pp, std::int64_t vpp);

/// The same with as little work as possible for the busiest rank, over all its chunks, which share the work evenly. For
/// layers of one kind no split has a less busy rank. `mtp_before_loss`: the MTP layers have the stage before the last.
/// Requires a stage for each.
[[nodiscard]] StageLayout rank_balanced_stages(const ModelKinds& kinds, const ModelCosts& costs,
                                               std::int64_t mtp_layers, bool mtp_before_loss, std::int64_t pp,
                                               std::int64_t vpp);

/// The splits worth trying, without duplicates: Megatron's even ones (with embedding and loss counted as layers or not)
/// if they exist, and the two above. A hybrid model has only even ones, because it takes no layout string.
[[nodiscard]] std::vector<StageLayout> splits_to_try(const ModelSpec& model, const ModelKinds& kinds,
                                                     const ModelCosts& costs, std::int64_t pp, std::int64_t vpp);

}  // namespace foldwise::costmodel
