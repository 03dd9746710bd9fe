#include "costmodel/ops/memory_profile.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace foldwise::costmodel {

MemoryProfile& MemoryProfile::operator+=(const MemoryProfile& next) {
  forward_high = std::max(forward_high + next.rests, kept + next.forward_high);
  backward_high = std::max(kept + next.backward_high, next.rests + backward_high);
  kept += next.kept;
  rests += next.rests;
  return *this;
}

// The highest level is reached in the first or the last piece, because between them the level changes by kept - rests
// per piece.
MemoryProfile MemoryProfile::repeated(std::int64_t times) const {
  if (times <= 0) return {};
  const auto before = static_cast<double>(times - 1);
  const Bytes others = before * std::max(kept, rests);
  return {.kept = kept + before * kept,
          .rests = rests + before * rests,
          .forward_high = forward_high + others,
          .backward_high = backward_high + others};
}

MemoryProfile walk(const OpList& list, const std::function<bool(const Op&)>& captured) {
  const auto counts = [&](const Op& op) { return !captured || !captured(op); };
  std::int32_t last_step = 0;
  for (const auto* ops : {&list.forward, &list.backward})
    for (const Op& op : *ops) {
      last_step = std::max(last_step, op.step);
      for (const Tensor& tensor : op.keeps) last_step = std::max(last_step, tensor.step);
    }
  std::vector<Bytes> freed(static_cast<std::size_t>(last_step) + 1);  // By the backward of each step.
  MemoryProfile profile;
  for (const Op& op : list.forward)
    if (counts(op))
      for (const Tensor& tensor : op.keeps) profile.rests += tensor.rests;
  Bytes level = profile.rests, high = level, held{};
  const auto run = [&](const Op& op) {
    if (!counts(op)) return;
    level += op.holds;
    held += op.holds;
    Bytes dropped =
        std::min(op.releases, held);  // Captured ops hold nothing here; their tensors are in the graph's pool.
    held -= dropped;
    for (const Tensor& tensor : op.keeps) {
      level += tensor.bytes;
      freed[static_cast<std::size_t>(tensor.step)] += tensor.bytes;
      if (op.phase != Phase::kRecompute) {  // The new tensor replaces the resting one, which backward does not free.
        freed[static_cast<std::size_t>(tensor.step)] -= tensor.rests;
        dropped += tensor.rests;
      }
    }
    high = std::max(high, level + transient_bytes(op));
    level -= dropped;
  };
  for (const Op& op : list.forward) run(op);
  profile.kept = level;
  profile.forward_high = std::max(high, level);

  high = level;
  for (std::size_t i = 0; i < list.backward.size(); ++i) {
    const Op& op = list.backward[i];
    run(op);
    if (op.phase == Phase::kRecompute) continue;
    const bool last_of_step = i + 1 == list.backward.size() || list.backward[i + 1].step != op.step;
    for (auto step = static_cast<std::size_t>(op.step); last_of_step && step < freed.size(); ++step)
      level -= std::exchange(freed[step], Bytes{});
    high = std::max(high, level);
  }
  profile.backward_high = high;
  return profile;
}

void append(OpList& list, OpList next) {
  std::int32_t steps = 0;
  for (const auto* ops : {&list.forward, &list.backward})
    for (const Op& op : *ops) {
      steps = std::max(steps, op.step + 1);
      for (const Tensor& tensor : op.keeps) steps = std::max(steps, tensor.step + 1);
    }
  for (auto* ops : {&next.forward, &next.backward})
    for (Op& op : *ops) {
      op.step += steps;
      for (Tensor& tensor : op.keeps) tensor.step += steps;
    }
  std::move(next.forward.begin(), next.forward.end(), std::back_inserter(list.forward));
  std::move(list.backward.begin(), list.backward.end(), std::back_inserter(next.backward));
  list.backward = std::move(next.backward);
}

}  // namespace foldwise::costmodel
