#include "costmodel/step/composition.h"

#include <algorithm>

#include "costmodel/step/data_parallel.h"

namespace foldwise::costmodel {
namespace {

ParameterCount rank_parameters(const Composition& c, std::int64_t rank) {
  ParameterCount count;
  const auto pp = static_cast<std::size_t>(c.times.shape.pp);
  for (auto i = static_cast<std::size_t>(rank); i < c.num_stages(); i += pp) count += c.stage(i).cost.parameters;
  return count;
}

// Buckets of a rank's gradients. Only the first chunk of the first rank has several a buffer. They are counted where
// each is checked; elsewhere they only say how many tensors a shard has parts of.
BucketCount rank_buckets(const StepContext& context, const ModelKinds& kinds, const ModelCosts& costs,
                         const StageLayout& layout, const Composition& c, std::int64_t rank) {
  const TrainingOptions& o = context.options;
  BucketCount buckets;
  for (auto i = static_cast<std::size_t>(rank); i < c.num_stages(); i += static_cast<std::size_t>(o.pipeline.pp)) {
    const ParameterCount count = c.stage(i).cost.parameters.trained(o.layer);
    const bool bucketed = i == 0 && first_chunk_bucketed(o);
    if (bucketed && o.layer.checks_for_nan()) {
      const StageContent& content = layout.stages[stage_of(c.times.shape, layout.stages.size(), 0)];
      const auto buffers = filled_buffers(context, kinds, costs, content, true);
      for (const bool quantised : {false, true}) {
        buckets.dense += static_cast<double>(buffers[gradient_buffer(false, quantised)].buckets());
        buckets.expert += static_cast<double>(buffers[gradient_buffer(true, quantised)].buckets());
      }
    } else {
      const auto of = [&](double parameters) {
        const double full = bucketed ? parameters / static_cast<double>(bucket_size(o)) : 0.0;
        return parameters > 0.0 ? std::max(1.0, full) : 0.0;
      };
      buckets.dense += of(count.dense);
      buckets.expert += of(count.expert);
    }
  }
  return buckets;
}

}  // namespace

ScheduleShape schedule_shape(const TrainingOptions& o) {
  return {.pp = o.pipeline.pp,
          .vpp = chunks_of(o.pipeline.schedule, o.pipeline.vpp),
          .num_microbatches = o.num_microbatches(),
          .group_size = o.pipeline.microbatch_group_size,
          .overlap_moe_expert_parallel_comm = o.pipeline.overlaps.ep_a2a,
          .kind = o.pipeline.schedule};
}

std::size_t stage_of(const ScheduleShape& shape, std::size_t num_stages, std::size_t chunk_and_rank) {
  const auto i = static_cast<std::int64_t>(chunk_and_rank);
  return static_cast<std::size_t>(position_of(shape, i % shape.pp, i / shape.pp)) % num_stages;
}

Composition compose(const StepContext& context, const ModelKinds& kinds, const ModelCosts& costs,
                    const StageLayout& layout) {
  const TrainingOptions& o = context.options;
  Composition c;
  c.times.shape = schedule_shape(o);
  c.times.overlap_p2p = !blocks_on_transfers(o);
  c.dummies = costs.dummies;
  c.overlapped = costs.overlapped;
  c.index.reserve(static_cast<std::size_t>(c.times.shape.pp * c.times.shape.vpp));
  c.times.stages.reserve(c.index.capacity());
  std::vector<std::uint16_t> distinct;  // [stages]
  distinct.reserve(layout.stages.size());
  for (std::size_t i = 0; i < layout.stages.size(); ++i) {
    const StageContent& content = layout.stages[i];
    if (i == 0 || !same_pieces(kinds, layout.stages[i - 1], content))
      c.distinct.push_back(stage_cost(context, kinds, costs, content));
    distinct.push_back(static_cast<std::uint16_t>(c.distinct.size() - 1));
  }
  const auto chunks = static_cast<std::size_t>(c.times.shape.pp * c.times.shape.vpp);
  for (std::size_t i = 0; i < chunks; ++i) {
    c.index.push_back(distinct[stage_of(c.times.shape, distinct.size(), i)]);
    const StageCost& stage = c.stage(i);
    c.times.stages.push_back({.forward = stage.forward(),
                              .backward = stage.backward(),
                              .merged_pair_saving = stage.saving,
                              .send = stage.send,
                              .weight_gradient = stage.weight_gradient});
  }
  Seconds update{};
  for (std::int64_t rank = 0; rank < o.pipeline.pp; ++rank) {
    ParameterCount count = rank_parameters(c, rank);
    if (rank == 0 && first_chunk_bucketed(o) && buckets_add_padding(context, costs)) {
      const ParameterCount& chunk = c.stage(0).cost.parameters;
      const StageContent& content = layout.stages[stage_of(c.times.shape, layout.stages.size(), 0)];
      const ParameterCount in_buckets = buffer_padding(context, kinds, costs, content, chunk, true);
      count.padding += in_buckets.padding - chunk.padding;
      count.low_precision_padding += in_buckets.low_precision_padding - chunk.low_precision_padding;
    }
    const bool same = rank > (first_chunk_bucketed(o) ? 1 : 0) && count == c.parameters.back();
    c.parameters.push_back(count);
    if (same) {
      c.tails.push_back(c.tails.back());
      c.tails.back().parameters = {};
    } else {
      const BucketCount buckets = rank_buckets(context, kinds, costs, layout, c, rank);
      c.tails.push_back(step_tail(context, count.trained(o.layer), buckets, update));
      const DirectionCost& backward = c.stage(static_cast<std::size_t>(rank)).cost.backward;
      c.tails.back().idle += bucket_checks(context, buckets.total(), backward.clock.issue() >= backward.clock.run());
    }
    if (!o.step.overlaps.dp_param)
      for (auto i = static_cast<std::size_t>(rank); i < c.num_stages(); i += static_cast<std::size_t>(o.pipeline.pp))
        c.tails.back().parameters += c.stage(i).gather.time;
    if (o.step.offload.optimizer_states) c.times.reload.push_back(c.tails.back().reload);
    add_data_parallel(context, rank, update, c);
  }
  return c;
}

Seconds step_time(const Composition& c, Seconds makespan) {
  Seconds tail{};
  for (const StepTail& t : c.tails) tail = std::max(tail, t.total());
  return makespan + tail;
}

}  // namespace foldwise::costmodel
