#include "costmodel/step/data_parallel.h"

#include <algorithm>
#include <cmath>
#include <variant>

namespace foldwise::costmodel {
namespace {

// Communication beside a `window` of work: the communication left at the end of the window, and the delay of the
// window's work. Only this decides the overlap of a step's data-parallel collectives and of Megatron-FSDP's. `starts`:
// number of collectives that must wait for running kernels.
struct Beside {
  CommunicationSum left;
  Seconds delay{};
  [[nodiscard]] Seconds cost() const { return left.time + delay; }
};
Beside beside(const StepContext& context, const ComputeSum& window, const CommunicationSum& communication,
              double starts = 1.0) {
  if (communication.time <= Seconds{}) return {};
  const SideBySide both = side_by_side(window, communication, starts, context.hardware);
  return {.left = communication.scaled((both.exposed / communication.time).to<double>()),
          .delay = both.compute - window.time};
}

// Buckets of a chunk's data-parallel collectives.
struct Buckets {
  double most = 1.0;                     // Number of buckets of the dense or of the expert buffer, whichever is larger.
  Seconds gather{}, reduction{};         // Of one bucket.
  CommunicationSum gathers, reductions;  // Of all buckets, without `serial`.
  Seconds serial{};                      // Gathers beside which nothing runs.
};
Buckets buckets_of(const StepContext& context, const ParameterCount& count) {
  const auto size = static_cast<double>(bucket_size(context.options));
  const double dense = std::max(1.0, count.dense / size), expert = std::max(1.0, count.expert / size);
  Buckets buckets;
  buckets.most = std::max(dense, expert);
  const OpList ops = data_parallel_ops(context, {.dense = count.dense / dense, .expert = count.expert / expert});
  // Returns the time of the experts' collectives.
  const auto add = [&](const std::vector<Op>& list, Seconds& one, CommunicationSum& all) {
    Seconds of_experts{};
    for (const Op& op : list) {
      CommunicationSum bucket;
      bucket.add(op, op_time(op, context.hardware), context.hardware);
      one += bucket.time;
      const bool experts = communication_group(op) == Group::kEdp;
      if (experts) of_experts += expert * bucket.time;
      all += bucket.scaled(experts ? expert : dense);
    }
    return of_experts;
  };
  const Seconds expert_gathers = add(ops.forward, buckets.gather, buckets.gathers);
  add(ops.backward, buckets.reduction, buckets.reductions);
  // A bucket is gathered when the one before has been waited for (finish_param_sync in param_and_grad_buffer.py), so
  // only one is on its way while a module runs. The experts' weights of one linear are in several.
  if (expert > 1.0 && expert_gathers > Seconds{} && count.expert_tensors > 0.0) {
    const auto weights = static_cast<double>(rank_shape(context.model, context.options.layer).local_experts);
    const double of_bucket = std::ceil(size * count.expert_tensors / count.expert),
                 of_linear = std::max(1.0, weights / of_bucket);
    buckets.serial = (1.0 - 1.0 / of_linear) * expert_gathers;
    buckets.gathers = buckets.gathers.scaled(1.0 - (buckets.serial / buckets.gathers.time).to<double>());
    buckets.gather = std::min(buckets.gather, buckets.gathers.time);
  }
  return buckets;
}

}  // namespace

CommunicationSum communication_of(const std::vector<Op>& ops, const Hardware& hardware) {
  CommunicationSum sum;
  for (const Op& op : ops)
    if (is_communication(op)) sum.add(op, op_time(op, hardware), hardware);
  return sum;
}

ComputeSum compute_of(const std::vector<Op>& ops, const Hardware& hardware) {
  ComputeSum sum;
  for (const Op& op : ops)
    if (!is_communication(op)) sum.add(op, op_time(op, hardware));
  return sum;
}

Seconds piecewise(const StepContext& context, const CommunicationSum& communication, Seconds exposed,
                  const ComputeSum& window, double starts) {
  if (communication.time <= Seconds{}) return {};
  const auto share = (exposed / communication.time).to<double>();
  return exposed + beside(context, window, communication.scaled(1.0 - share), starts).cost();
}

Seconds piecewise(const StepContext& context, const CommunicationSum& communication, Seconds piece,
                  const ComputeSum& window) {
  if (communication.time <= Seconds{}) return {};
  return piecewise(context, communication, piece, window, (communication.time / piece).to<double>() - 1.0);
}

bool first_chunk_bucketed(const TrainingOptions& o) {
  return o.step.overlaps.dp_grad && !o.step.overlaps.param_gather_with_optimizer_step;
}

void add_data_parallel(const StepContext& context, std::int64_t rank, Seconds update, Composition& c) {
  const TrainingOptions& o = context.options;
  const ScheduleShape& shape = c.times.shape;
  const std::int64_t group = shape.vpp == 1 ? 1 : std::min(schedule_group_size(shape), shape.num_microbatches);
  const std::int64_t rest = shape.num_microbatches % group;
  const auto first_group = static_cast<double>(group), last_group = static_cast<double>(rest > 0 ? rest : group);
  const auto at = [&](std::int64_t chunk) { return static_cast<std::size_t>(chunk * shape.pp + rank); };
  StageTime& first = c.times.stages[at(0)];
  const StageCost& cost = c.stage(at(0));
  const bool bucketed = rank == 0 && first_chunk_bucketed(o);
  const auto mix = [&](std::int64_t chunk, Seconds length) { return c.stage(at(chunk)).cost.mix.stretch(length); };
  const Buckets buckets = bucketed ? buckets_of(context, cost.cost.parameters.trained(o.layer)) : Buckets{};

  if (o.step.overlaps.dp_param) {
    first.gather = cost.gather.time;
    if (buckets.most > 1.0)
      first.gather = buckets.serial + piecewise(context, buckets.gathers, buckets.gather,
                                                mix(0, (1.0 - 1.0 / buckets.most) * first.forward));
    if (o.step.overlaps.param_gather_with_optimizer_step) {  // It runs beside the update of the other chunks.
      const double others = 1.0 - cost.cost.parameters.total() / c.parameters[static_cast<std::size_t>(rank)].total();
      first.gather = beside(context, {.time = others * update}, cost.gather).cost();
    }
    CommunicationSum left;
    for (std::int64_t chunk = 1; chunk < shape.vpp; ++chunk) {
      StageTime& stage = c.times.stages[at(chunk)];
      stage.gather = c.stage(at(chunk)).gather.time;
      left += c.stage(at(chunk)).gather;
      const Beside b = beside(context, mix(chunk - 1, first_group * c.times.stages[at(chunk - 1)].forward), left);
      stage.first_forward_delay = b.delay;
      left = b.left;
    }
  }
  if (!o.step.overlaps.dp_grad) {  // All reductions run after the last backward.
    for (std::int64_t chunk = 0; chunk < shape.vpp; ++chunk) first.reduction += c.stage(at(chunk)).reduction.time;
    return;
  }
  CommunicationSum left;
  for (std::int64_t chunk = shape.vpp - 1; chunk > 0; --chunk) {
    c.times.stages[at(chunk)].reduction = c.stage(at(chunk)).reduction.time;
    StageTime& beside_it = c.times.stages[at(chunk - 1)];
    left += c.stage(at(chunk)).reduction;
    const Beside b = beside(context, mix(chunk - 1, last_group * beside_it.backward), left);
    beside_it.last_backward_delay = b.delay;
    left = b.left;
  }
  // Aligned reductions of an interleaved schedule start after the backward, and not bucket by bucket within it.
  first.reduction = shape.vpp == 1 && buckets.most > 1.0
                        ? piecewise(context, buckets.reductions, buckets.reduction,
                                    mix(0, (1.0 - 1.0 / buckets.most) * first.backward))
                        : cost.reduction.time;
}

Seconds bucket_checks(const StepContext& context, double buckets, bool behind) {
  const TrainingOptions& o = context.options;
  if (!o.layer.checks_for_nan() || is_fsdp(o.step.sharding)) return {};
  const HostSpec& host = context.hardware.host;
  // Between the checks of buckets that are reduced during backward the host has to get ahead again.
  const bool ahead = o.step.overlaps.dp_grad && !behind;
  return buckets * (host.bucket_check + (ahead ? host.backward_share * host.module : Seconds{}));
}

StepTail step_tail(const StepContext& context, const ParameterCount& count, const BucketCount& buckets,
                   Seconds& update) {
  StepTail tail;
  update = {};
  const OpList ops = step_ops(context, count);
  for (const Op& op : ops.backward) tail.reload += op_time(op, context.hardware);
  const double exposed = exposed_copies(ops.forward, context.hardware);
  for (const Op& op : ops.forward) {
    const Seconds time = op_time(op, context.hardware);
    if (is_communication(op))
      tail.comm += time;
    else if (std::holds_alternative<HostCopyWork>(op.work))
      tail.copy += (op.overlap == Overlap::kOffload ? exposed : 1.0) * time;
    else if (std::holds_alternative<HostUpdateWork>(op.work))
      tail.host += time;
    else
      tail.compute += time;
    if (op.updates_parameters) update += time;
  }
  // The device runs the optimizer's kernels while the host issues more of them.
  tail.idle = context.hardware.host.step + std::max(Seconds{}, optimizer_issue(context, count, buckets) - tail.compute);
  return tail;
}

}  // namespace foldwise::costmodel
