#pragma once
#include <cstdint>

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

}  // namespace foldwise::costmodel
