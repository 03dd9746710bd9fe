#include "costmodel/step/fsdp_buffers.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "costmodel/ops/step_ops.h"

namespace foldwise::costmodel {
namespace {

// Parameters are counted in elements.
struct FsdpModule {
  const MemoryProfile* memory = nullptr;
  double parameters = 0.0, trained = 0.0;
  Bytes transposes{};  // While it runs.
  bool unit = false;
};

class Walk {
 public:
  Walk(const TrainingOptions& o, std::span<const ChunkPart> parts, double transposes)
      : gathers_(o.step.sharding == Sharding::kFsdp), gradient_bytes_(gradient_bytes(o)) {
    double units = 0.0, bytes = 0.0;
    for (const ChunkPart& part : parts) {
      const auto times = static_cast<double>(part.times);
      const ParameterCount count = part.parameters == nullptr ? ParameterCount{} : in_shards(o, *part.parameters);
      modules_.insert(modules_.end(), static_cast<std::size_t>(part.times),
                      {&part.memory, count.total(), count.trained(o.layer).total(),
                       Bytes{transposes * quantised(part.parameters)}, part.layer});
      const double gathered =
          times * fsdp_gathered_bytes(o, count.total(), count.quantised_dense + count.quantised_expert);
      if (part.layer) {
        units += times;
        in_units_ += times * count.total();
        bytes += gathered;
      } else if (gathers_) {
        whole_ += Bytes{gathered};
      }
    }
    if (in_units_ > 0.0) parameter_bytes_ = bytes / in_units_;
    for (const FsdpModule& module : modules_)
      units_before_.push_back(units_before_.back() + (module.unit ? module.parameters : 0.0));
    // suggested_communication_unit_size. Its comment calls a billion a cap, but the code takes the larger value.
    constexpr double kLeast = 1e9;
    most_queued_ =
        std::max(kLeast, gathers_ ? 2.0 * in_units_ / std::max(1.0, units) : static_cast<double>(bucket_size(o)));
    if (o.step.fsdp_head_gathers_ahead) by_head_ = ahead_of(0, most_queued_ / 2.0);
  }

  [[nodiscard]] FsdpMemory result() const {
    FsdpMemory result{.memory = {}, .whole = whole_, .between_steps = whole_ + gathered_between_steps()};
    double all = 0.0, trained = 0.0, trained_in_units = 0.0;
    for (const FsdpModule& module : modules_) {
      all += module.parameters;
      trained += module.trained;
      trained_in_units += module.unit ? module.trained : 0.0;
    }
    if (all > 0.0) result.outside = 1.0 - in_units_ / all;
    if (trained > 0.0) result.outside_gradients = 1.0 - trained_in_units / trained;
    // What a unit gathers ahead of itself comes first, in the order of the buckets (all_gather_params() in
    // param_and_grad_buffer.py sorts them).
    const auto last = std::find_if(modules_.rbegin(), modules_.rend(), [](const FsdpModule& m) { return m.unit; });
    if (last != modules_.rend() && in_units_ > 0.0)
      result.last_gather =
          (last->parameters + ahead_before(static_cast<std::size_t>(modules_.rend() - last) - 1)) / in_units_;
    MemoryProfile& memory = result.memory;
    Bytes before{}, after{};  // Kept by earlier modules, and left at rest by later ones.
    for (const FsdpModule& module : modules_) memory.rests += module.memory->rests;
    after = memory.rests;
    double gathered_most = 0.0, waiting_most = 0.0;
    for (std::size_t i = 0; i < modules_.size(); ++i) {
      const double gathered = gathered_in_forward(i);
      gathered_most = std::max(gathered_most, gathered);
      after -= modules_[i].memory->rests;
      memory.forward_high =
          std::max(memory.forward_high, before + modules_[i].memory->forward_high + after + modules_[i].transposes +
                                            Bytes{parameter_bytes_ * gathered});
      before += modules_[i].memory->kept;
    }
    memory.kept = before;
    std::deque<double> queue;
    double queued = 0.0;
    for (std::size_t i = modules_.size(); i-- > 0;) {
      const FsdpModule& module = modules_[i];
      const double gathered = gathered_in_backward(i), waiting = queued + module.trained;
      gathered_most = std::max(gathered_most, gathered);
      waiting_most = std::max(waiting_most, waiting);
      before -= module.memory->kept;
      memory.backward_high =
          std::max(memory.backward_high, before + module.memory->backward_high + after + module.transposes +
                                             Bytes{parameter_bytes_ * gathered + gradient_bytes_ * waiting});
      after += module.memory->rests;
      // When a module's gradients are complete, older ones leave the queue until it is short enough.
      for (; queued > most_queued_; queue.pop_front()) queued -= queue.front();
      queue.push_back(module.trained);
      queued += module.trained;
    }
    result.buffers = Bytes{parameter_bytes_ * gathered_most + gradient_bytes_ * waiting_most};
    return result;
  }

 private:
  static double quantised(const ParameterCount* count) {
    return count == nullptr ? 0.0 : count->quantised_dense + count->quantised_expert;
  }
  // Elements of the units gathered ahead from module `first` on, at least `least`, or before it: as many as make half a
  // queue.
  [[nodiscard]] double ahead_of(std::size_t first, double least) const {
    const auto begin = units_before_.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = std::lower_bound(begin, units_before_.end(), *begin + least);
    return (end == units_before_.end() ? units_before_.back() : *end) - *begin;
  }
  [[nodiscard]] double ahead_before(std::size_t first) const {
    const auto end = units_before_.begin() + static_cast<std::ptrdiff_t>(first);
    const auto begin = std::upper_bound(units_before_.begin(), end, *end - most_queued_ / 2.0);
    return *end - (begin == units_before_.begin() ? 0.0 : *std::prev(begin));
  }
  [[nodiscard]] bool head(std::size_t i) const { return i + 1 == modules_.size() && !modules_[i].unit; }
  // The end of a step gathers the embedding again and half a queue ahead of it, first the others outside units
  // (start_param_sync() in megatron_fsdp.py).
  [[nodiscard]] Bytes gathered_between_steps() const {
    if (!gathers_ || modules_.empty()) return {};
    double ahead = most_queued_ / 2.0;
    for (std::size_t i = 1; i < modules_.size(); ++i)
      if (!modules_[i].unit) ahead -= modules_[i].parameters;
    return Bytes{parameter_bytes_ * ahead_of(0, std::max(0.0, ahead))};
  }
  // Modules outside units have the first groups. So the head gathers the first units ahead, in vain. Since 0.18.2 it
  // gathers nothing ahead: the first backward marks all modules, and only units are unmarked again.
  [[nodiscard]] double gathered_in_forward(std::size_t i) const {
    if (!gathers_) return 0.0;
    if (head(i)) return by_head_;
    if (!modules_[i].unit) return ahead_of(i, most_queued_ / 2.0);
    return modules_[i].parameters + ahead_of(i + 1, most_queued_ / 2.0);
  }
  // Beside the head, the units gathered in vain are still there. The unit before the head gathers those ahead that are
  // not among them, and these are freed. It frees nothing if it finds all that it needs.
  [[nodiscard]] double gathered_in_backward(std::size_t i) const {
    if (!gathers_) return 0.0;
    if (head(i)) return by_head_;
    if (!modules_[i].unit) return 0.0;
    if (i + 1 == modules_.size() || !head(i + 1)) return modules_[i].parameters + ahead_before(i);
    if (by_head_ >= in_units_) return by_head_;
    return modules_[i].parameters + std::min(ahead_before(i), units_before_[i] - std::min(units_before_[i], by_head_));
  }

  bool gathers_;
  double gradient_bytes_;
  std::vector<FsdpModule> modules_;
  std::vector<double> units_before_ = {0.0};  ///< [modules + 1] elements of units before a module.
  double in_units_ = 0.0;
  double parameter_bytes_ = 2.0;  ///< Bytes per gathered element, averaged over the units.
  Bytes whole_{};
  double most_queued_ = 0.0;  ///< Elements of gradients that wait for their reduction. Half as many are gathered ahead.
  double by_head_ = 0.0;      ///< Elements that the head gathers ahead.
};

}  // namespace

MemoryProfile chunk_memory(std::span<const ChunkPart> parts) {
  MemoryProfile memory;
  for (const ChunkPart& part : parts) memory += part.memory.repeated(part.times);
  return memory;
}

FsdpMemory fsdp_memory(const TrainingOptions& o, std::span<const ChunkPart> parts, double transposes) {
  if (o.megatron_fsdp()) return Walk(o, parts, transposes).result();
  // TorchTitan, on FSDP2: two units each of parameters and gradients.
  FsdpMemory result{.memory = chunk_memory(parts)};
  double all = 0.0, units = 0.0;
  for (const ChunkPart& part : parts) {
    const auto times = static_cast<double>(part.times);
    if (part.parameters != nullptr) all += times * part.parameters->total();
    if (part.layer) units += times;
  }
  result.last_gather = 1.0 / std::max(1.0, units);
  result.whole = Bytes{2.0 * (o.step.sharding == Sharding::kFsdp ? 4.0 : 2.0) * all / std::max(1.0, units)};
  return result;
}

}  // namespace foldwise::costmodel
