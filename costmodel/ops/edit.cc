#include "costmodel/ops/edit.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace foldwise::costmodel {

namespace {

using RM = RecomputeModule;

// Recomputes one module. Its tensors leave the forward ops, and copies of its ops come before the backward of the last
// step that needs them.
void recompute_module(OpList& list, RM module, RecomputeEdit& edit) {
  // Megatron's CheckpointWithoutOutput copies the rebuilt tensor into the storage that it had freed. The rebuilt tensor
  // lives until the backward of the op that made it (core/tensor_parallel/random.py).
  const bool discards_output = module == RM::kMoeAct || module == RM::kLayerNorm || module == RM::kMlaUpProj;
  std::vector<Op> replayed;
  std::vector<Tensor> orphans;  // Dropped tensors whose op does not run again; the replayed ops make them.
  std::int32_t first_needed = 0;
  const auto rebuild = [&](Op& op, const Tensor& tensor) {
    Tensor again = tensor;
    again.rests = Bytes{};
    op.keeps.push_back(again);
    if (discards_output) {
      again.step = op.step;
      op.keeps.push_back(again);
    }
  };
  for (Op& op : list.forward) {
    const bool runs_again = op.replayed_by.contains(module);
    if (runs_again) {
      if (replayed.empty()) ++op.checkpoints;
      Op again = op;
      again.phase = Phase::kRecompute;
      again.keeps.clear();
      again.weights.clear();
      op.replayed_by = {};  // A region inside another one runs again only once.
      first_needed = std::max(first_needed, op.step);
      replayed.push_back(std::move(again));
    }
    std::erase_if(op.keeps, [&](Tensor& tensor) {
      if (!tensor.freed_by.contains(module)) return false;
      edit.rematerialised += tensor.bytes;
      if (module == RM::kLayerNorm) {  // Discarded when the block's output exists.
        op.holds += tensor.bytes;
        list.forward.back().releases += tensor.bytes;
      }
      first_needed = std::max(first_needed, tensor.step);
      if (runs_again)
        rebuild(replayed.back(), tensor);
      else
        orphans.push_back(tensor);
      return tensor.rests <= Bytes{};
    });
    for (Tensor& tensor : op.keeps)  // Tensors that the module holds between steps are allocated by the next forward.
      if (tensor.freed_by.contains(module)) {
        tensor.bytes = Bytes{};
        tensor.rests += std::exchange(tensor.leaf, Bytes{});
      }
  }
  if (!replayed.empty())
    for (const Tensor& tensor : orphans) rebuild(replayed.back(), tensor);
  auto position = list.backward.begin();
  if (module != RM::kFull && module != RM::kLayerNorm)  // The norm's hook is on the block's output.
    position = std::find_if(list.backward.begin(), list.backward.end(),
                            [&](const Op& op) { return op.phase != Phase::kRecompute && op.step <= first_needed; });
  list.backward.insert(position, std::make_move_iterator(replayed.begin()), std::make_move_iterator(replayed.end()));
}

}  // namespace

RecomputeEdit apply_recompute(OpList& list, BitSet<RecomputeModule> selected) {
  RecomputeEdit edit;
  // Outer regions come first and take what lies inside them.
  for (const RM module : {RM::kFull, RM::kMoe, RM::kMlp, RM::kSharedExperts, RM::kMlaUpProj, RM::kCoreAttn, RM::kMoeAct,
                          RM::kLayerNorm, RM::kAlternateMatmuls})
    if (selected.contains(module)) recompute_module(list, module, edit);
  return edit;
}

OffloadEdit apply_offload(OpList& list, BitSet<OffloadModule> selected, std::int64_t gpus, Bytes min_bytes) {
  OffloadEdit edit;
  if (selected.empty()) return edit;
  // Tensors that are copied as soon as their op has run. Norms' tensors are also residuals. They leave after the
  // residual add at the end of the block, like whole layers (group_commit in core/transformer, Core 0.16.1).
  constexpr BitSet<OffloadModule> kAtOnce{OffloadModule::kQkvLinear, OffloadModule::kCoreAttn,
                                          OffloadModule::kAttnProj,  OffloadModule::kExpertFc1,
                                          OffloadModule::kMoeAct,    OffloadModule::kFusedGroupMlp};
  std::vector<Op> forward, late, from_host;
  for (Op& op : list.forward) {
    std::vector<Op> at_once;
    std::erase_if(op.keeps, [&](const Tensor& tensor) {
      const Bytes bytes = tensor.bytes + tensor.copied;
      if (!tensor.offloaded_by.intersects(selected) || bytes < min_bytes) return false;
      edit.host_bytes += bytes;
      edit.offloaded += tensor.bytes;
      Op copy;
      copy.name = tensor.name;
      copy.module = op.module;
      copy.node = op.node;
      copy.overlap = Overlap::kOffload;
      copy.captured_by = op.captured_by;
      copy.work = HostCopyWork{bytes, true, gpus};
      ((tensor.offloaded_by & selected).intersects(kAtOnce) ? at_once : late).push_back(copy);
      copy.phase = Phase::kDgrad;
      if (!list.backward.empty())
        copy.step = list.backward.front().step;  // It comes before backward and does not end an earlier step.
      copy.work = HostCopyWork{bytes, false, gpus};
      from_host.push_back(std::move(copy));
      return true;
    });
    forward.push_back(std::move(op));
    std::move(at_once.begin(), at_once.end(), std::back_inserter(forward));
  }
  std::move(late.begin(), late.end(), std::back_inserter(forward));
  list.forward = std::move(forward);
  list.backward.insert(list.backward.begin(), std::make_move_iterator(from_host.begin()),
                       std::make_move_iterator(from_host.end()));
  return edit;
}

}  // namespace foldwise::costmodel
