#pragma once
#include "costmodel/parallel/options.h"

namespace foldwise {

/// What recipes choose beyond Megatron's defaults: Transformer Engine's kernels for experts and loss, a distributed
/// optimizer, overlaps of data parallelism.
inline costmodel::TrainingOptions usual_options() {
  costmodel::TrainingOptions o;
  o.layer.dispatcher = costmodel::Dispatcher::kAllToAll;
  o.layer.software.experts = costmodel::Experts::kGrouped;
  o.layer.software.cross_entropy = costmodel::CrossEntropy::kTransformerEngine;
  o.layer.software.fused_permute = o.layer.software.router_fp32 = true;
  o.step.sharding = costmodel::Sharding::kDdpDistributedOptimizer;
  o.step.overlaps.dp_grad = o.step.overlaps.dp_param = true;
  o.step.optimizer.reuse_grad_buffer = true;
  return o;
}

}  // namespace foldwise
