#include "costmodel/ops/edit.h"

#include <iterator>
#include <utility>
#include <vector>

namespace foldwise::costmodel {

RecomputeEdit apply_recompute(OpList& list, BitSet<RecomputeModule> selected) {
  RecomputeEdit edit;
  if (selected.empty()) return edit;
  std::vector<Op> replayed;
  for (Op& op : list.forward) {
    if (op.replayed_by.intersects(selected)) {
      Op again = op;
      again.phase = Phase::kRecompute;
      again.keeps.clear();
      again.weights.clear();
      replayed.push_back(std::move(again));
    }
    std::erase_if(op.keeps, [&](const Tensor& tensor) {
      const bool freed = tensor.freed_by.intersects(selected);
      if (freed) edit.rematerialised += tensor.bytes;
      return freed;
    });
  }
  list.backward.insert(list.backward.begin(), std::make_move_iterator(replayed.begin()),
                       std::make_move_iterator(replayed.end()));
  return edit;
}

OffloadEdit apply_offload(OpList& list, BitSet<OffloadModule> selected, Bytes min_bytes) {
  OffloadEdit edit;
  if (selected.empty()) return edit;
  std::vector<Op> to_host, from_host;
  for (Op& op : list.forward) {
    std::erase_if(op.keeps, [&](const Tensor& tensor) {
      if (!tensor.offloaded_by.intersects(selected) || tensor.bytes < min_bytes) return false;
      edit.host_bytes += tensor.bytes;
      Op copy;
      copy.name = tensor.name;
      copy.module = op.module;
      copy.node = op.node;
      copy.overlap = Overlap::kOffload;
      copy.captured_by = op.captured_by;
      copy.work = HostCopyWork{tensor.bytes, true};
      to_host.push_back(copy);
      copy.phase = Phase::kDgrad;
      copy.work = HostCopyWork{tensor.bytes, false};
      from_host.push_back(std::move(copy));
      return true;
    });
  }
  std::move(to_host.begin(), to_host.end(), std::back_inserter(list.forward));
  list.backward.insert(list.backward.begin(), std::make_move_iterator(from_host.begin()),
                       std::make_move_iterator(from_host.end()));
  return edit;
}

}  // namespace foldwise::costmodel
