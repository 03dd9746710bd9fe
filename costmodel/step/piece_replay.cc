#include "costmodel/step/piece_replay.h"

#include <algorithm>
#include <variant>

namespace foldwise::costmodel {
namespace {

// Size of the weight gradient that `op` adds to main_grad, if autograd passed it as a separate tensor. It is BF16: 2 of
// the 10 bytes per element that the sum reads and writes.
Bytes handed_over(const Op& op) {
  const auto* work = std::get_if<MemoryWork>(&op.work);
  return work != nullptr && work->op == MemoryOp::kReduce ? work->bytes / 5.0 : Bytes{};
}

Bytes sized(const InPiece& in, Bytes balanced, Bytes loaded) {
  return std::max(Bytes{}, balanced + in.excess / (kLoad - 1.0) * (loaded - balanced));
}

// Number of ops at the begin of the piece's backward that recompute it.
std::size_t recomputed(const InPiece& in) {
  const std::vector<Op>& ops = in.piece->balanced.backward;
  const auto first = std::ranges::find_if(ops, [](const Op& op) { return op.phase != Phase::kRecompute; });
  return static_cast<std::size_t>(first - ops.begin());
}

}  // namespace

void Clocks::issue(const ClockStep& step, std::int32_t launches) {
  host_ += step.issue;
  if (step.kind == ClockStep::Kind::kCopyToHost) {
    copies_ = std::max({copies_, device_, host_}) + step.run;
    return;
  }
  if (step.kind == ClockStep::Kind::kSynchroniseByCopy) host_ = std::max(host_, copies_);
  if (step.synchronises()) return synchronise(step.run);
  for (queued_ += launches; queued_ > kLaunchQueue && !queue_.empty(); queue_.pop_front()) {
    host_ = std::max(host_, queue_.front().first);
    queued_ -= queue_.front().second;
  }
  device_ = std::max(device_, host_) + step.run;
  queue_.emplace_back(device_, launches);
}

void Clocks::synchronise(Seconds stall) {
  host_ = std::max(host_, device_) + stall;
  queue_.clear();
  queued_ = 0;
}

void Clocks::device_waits(Seconds until) { device_ = std::max(device_, until); }

void PieceReplay::forward(InPiece& in) {
  const std::vector<Op>& ops = in.piece->balanced.forward;
  in.kept.reserve(ops.size());
  run(in, ops, in.piece->loaded.forward, in.piece->forward_steps, 0, ops.size(), [](std::size_t) {});
}

void PieceReplay::drop(InPiece& in) {
  for (const auto& [step, block] : std::exchange(in.kept, {})) {
    in.dropped.emplace_back(step, allocator_.size(block));
    allocator_.free(block);
  }
}

void PieceReplay::rebuild(InPiece& in) {
  for (const auto& [step, bytes] : in.dropped) in.kept.emplace_back(step, allocator_.allocate(bytes));
  run(in, in.piece->balanced.backward, in.piece->loaded.backward, in.piece->backward_steps, 0, recomputed(in),
      [](std::size_t) {});
  in.rebuilt = true;
}

void PieceReplay::backward(InPiece& in) {
  const std::vector<Op>& ops = in.piece->balanced.backward;
  const std::size_t begin = in.rebuilt ? recomputed(in) : 0;
  run(in, ops, in.piece->loaded.backward, in.piece->backward_steps, begin, ops.size(), [&](std::size_t i) {
    const bool last_of_step = i + 1 == ops.size() || ops[i + 1].step != ops[i].step;
    if (ops[i].phase != Phase::kRecompute && last_of_step) free_from(in, ops[i].step);
  });
  free_from(in, 0);
  for (const auto& [key, block] : in.rests) {
    const auto [held, inserted] = in.resting->try_emplace(key, block);
    if (!inserted) allocator_.free(std::exchange(held->second, block));
  }
  for (const auto& [key, bytes] : in.allocated_by_backward)
    if (in.resting->find(key) == in.resting->end()) in.resting->emplace(key, allocator_.allocate(bytes));
}

void PieceReplay::begin_step() {
  synchronise();
  step_ = clocks_.host();
}

void PieceReplay::host_works(Seconds time) {
  clocks_.host_works(time);
  look();
}

void PieceReplay::synchronise() {
  clocks_.synchronise({});
  look();
}

// Tells the allocator how far the device is: as far as the host knows. A capture of the whole iteration knows the order
// of its nodes (graph_capture_record_stream_reuse), so there everything captured before has passed.
void PieceReplay::look() {
  const bool capture = graph_.impl == GraphImpl::kFullIteration;
  allocator_.set_time(capture ? std::max(clocks_.host(), clocks_.device()) : clocks_.host());
}

template <typename After>
void PieceReplay::run(InPiece& in, const std::vector<Op>& ops, const std::vector<Op>& loaded,
                      const std::vector<ClockStep>& steps, std::size_t begin, std::size_t end, const After& after) {
  Working held, working;
  for (std::size_t i = begin; i < end; ++i) {
    const Op& op = ops[i];
    clocks_.issue(steps[i], op.launches);
    if (graph_.impl == GraphImpl::kTransformerEngine && captured(graph_, op)) continue;
    if (const auto* copy = std::get_if<HostCopyWork>(&op.work); copy != nullptr) {
      if (copy->to_host && !waits_for_copies_)
        allocator_.free_after(allocator_.allocate(copy->bytes), clocks_.copies());
      look();
      continue;  // It needs nothing for itself, so what the previous op needed is available to the next one.
    }
    if (op.holds > Bytes{}) {
      const Bytes bytes = sized(in, op.holds, loaded[i].holds);
      held.emplace_back(allocator_.allocate(bytes), bytes);
    }
    for (std::size_t k = 0; k < op.keeps.size(); ++k) keep(in, op, i, k, loaded[i].keeps[k].bytes);
    needs(in, op, loaded[i], working);
    if (const auto shape = dummy_gradient(op);
        shape && in.piece->dummies.contains(*shape) && dummies_.insert(*shape).second)
      (void)allocator_.allocate(bf16_bytes(*shape));
    const Bytes gradient = side_stream_ ? handed_over(op) : Bytes{};
    if (op.releases > Bytes{}) {
      for (const auto& [block, bytes] : held)
        gradient > Bytes{} ? allocator_.free_after(block, clocks_.device()) : allocator_.free(block);
      held.clear();
    }
    if (gradient > Bytes{})
      std::erase_if(working, [&](const auto& tensor) {
        if (tensor.second != gradient) return false;
        allocator_.free_after(tensor.first, clocks_.device());
        return true;
      });
    after(i);
    look();
  }
  for (const auto* list : {&held, &working})
    for (const auto& [block, bytes] : *list) allocator_.free(block);
}

std::size_t PieceReplay::stream_of(const InPiece& in, const Op& op) const {
  if (op.overlap == Overlap::kSharedExpert && !is_communication(op))
    return kSharedExperts + (shared_expert_streams_ ? in.position % kTorchStreams : 0);
  const bool exchange = is_communication(op) && (op.node == Node::kDispatch || op.node == Node::kCombine);
  return exchanges_apart_ && exchange ? kExchange : kCompute;
}

// Tensors that an op needs for itself. A tensor of the same size as one that the previous op needed is the same tensor:
// the gradient that it computed, or its output.
void PieceReplay::needs(const InPiece& in, const Op& op, const Op& loaded, Working& working) {
  const std::size_t stream = stream_of(in, op);
  for (std::size_t k = 0; k < op.transient.size(); ++k) {
    const Bytes bytes = sized(in, op.transient[k], loaded.transient[k]);
    const auto same =
        std::find_if(working.begin(), working.end(), [&](const auto& held) { return held.second == bytes; });
    if (same == working.end()) {
      missing_.push_back(bytes);
    } else {
      now_.push_back(*same);
      working.erase(same);
    }
  }
  // A tensor that another stream used is reusable after the device has passed that use (record_stream).
  for (const auto& [block, bytes] : working)
    allocator_.stream(block) != stream ? allocator_.free_after(block, clocks_.device()) : allocator_.free(block);
  for (const Bytes bytes : missing_) now_.emplace_back(allocator_.allocate(bytes, stream), bytes);
  working.swap(now_);
  now_.clear();
  missing_.clear();
}

void PieceReplay::keep(InPiece& in, const Op& op, std::size_t i, std::size_t k, Bytes loaded) {
  const Tensor& tensor = op.keeps[k];
  const bool rests = tensor.rests > Bytes{} && op.phase != Phase::kRecompute, exists = tensor.bytes > Bytes{};
  const bool received = in.received && tensor.block_input;
  const Block block = received ? *std::exchange(in.received, std::nullopt)
                      : exists ? allocator_.allocate(sized(in, tensor.bytes, loaded), stream_of(in, op))
                               : Block{};
  if (rests) {
    if (const auto old = in.resting->find({i, k}); old != in.resting->end()) {
      allocator_.free(old->second);
      in.resting->erase(old);
    }
    if (exists)
      in.rests.emplace_back(TensorKey{i, k}, block);
    else
      in.allocated_by_backward.emplace_back(TensorKey{i, k}, tensor.rests);
  } else if (exists) {
    const auto behind = std::ranges::upper_bound(in.kept, tensor.step, {}, &std::pair<std::int32_t, Block>::first);
    in.kept.emplace(behind, tensor.step, block);
  }
}

void PieceReplay::free_from(InPiece& in, std::int32_t step) {
  const auto first = std::ranges::lower_bound(in.kept, step, {}, &std::pair<std::int32_t, Block>::first);
  for (auto at = first; at != in.kept.end(); ++at) allocator_.free(at->second);
  in.kept.erase(first, in.kept.end());
}

}  // namespace foldwise::costmodel
