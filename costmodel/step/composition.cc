#include "costmodel/step/composition.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "costmodel/check.h"

namespace foldwise::costmodel {
namespace {

BlockCost scaled(const BlockCost& cost, double times) {
  BlockCost result = cost;
  const auto direction = [times](DirectionCost& d) {
    d.compute *= times;
    d.comm *= times;
    d.copy *= times;
    d.clock = d.clock.repeated(std::llround(times));
  };
  direction(result.forward);
  direction(result.backward);
  result.nodes = {};   // Only the saving of a pair is needed beyond a layer.
  result.memory = {};  // Composed in the order of the layers (stage_memory).
  result.captured *= times;
  result.cache *= times;
  result.setup_cache *= times;
  result.host_bytes *= times;
  result.mix = cost.mix.stretch(times * cost.mix.time);
  result.unclocked *= times;
  result.flops *= times;
  ParameterCount& p = result.parameters;
  for (double* value : {&p.dense, &p.expert, &p.quantised_dense, &p.quantised_expert, &p.tp_replicated, &p.embedding,
                        &p.dense_rounding, &p.expert_rounding, &p.adapters_dense, &p.adapters_expert})
    *value *= times;
  return result;
}

BlockCost layer_cost(const BuildContext& context, const LayerSpec& layer, BlockCache& cache) {
  BlockCost cost = cache.get(context, Piece::kMixer, layer);
  cost += cache.get(context, Piece::kMlp, layer);
  // Full recomputation rebuilds the whole layer before its backward: both halves exist at once.
  if (context.options.recompute.granularity == RecomputeGranularity::kFull)
    cost.memory = cache.get(context, Piece::kLayer, layer).memory;
  return cost;
}

ParameterCount rank_parameters(const Composition& c, std::int64_t rank) {
  ParameterCount count;
  const auto pp = static_cast<std::size_t>(c.times.shape.pp);
  for (auto i = static_cast<std::size_t>(rank); i < c.num_stages(); i += pp) count += c.stage(i).cost.parameters;
  return count;
}

CommunicationSum communication_of(const std::vector<Op>& ops, const Hardware& hardware) {
  CommunicationSum sum;
  for (const Op& op : ops) sum.add(op, op_time(op, hardware), hardware);
  return sum;
}

// Communication that runs beside `window` of work: what of it is left when the window ends, and how much longer the
// window's work takes. The one place that decides this for a step's data-parallel collectives and Megatron-FSDP's.
// `starts`: collectives that find kernels running.
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

// Communication in pieces beside the work that needs (or makes) them one after another: the first (or last) piece has
// nothing to hide under, the others run beside `window`.
Seconds piecewise(const StepContext& context, const CommunicationSum& communication, Seconds piece,
                  const ComputeSum& window) {
  if (communication.time <= Seconds{}) return {};
  const auto share = (piece / communication.time).to<double>();
  return piece + beside(context, window, communication.scaled(1.0 - share), 1.0 / share - 1.0).cost();
}

// Whether the first chunk of the first rank has its gradients in buckets; no other chunk has. Source:
// DistributedDataParallel in megatron/core/distributed/distributed_data_parallel.py.
bool first_chunk_bucketed(const TrainingOptions& o) {
  return o.step.overlaps.dp_grad && !o.step.overlaps.param_gather_with_optimizer_step;
}

// Buckets of a chunk's data-parallel collectives.
struct Buckets {
  double most = 1.0;                     // Of the dense or of the expert buffer.
  Seconds gather{}, reduction{};         // Of one bucket of each.
  CommunicationSum gathers, reductions;  // Of all.
};
Buckets buckets_of(const StepContext& context, const ParameterCount& count) {
  const auto size = static_cast<double>(bucket_size(context.options));
  const double dense = std::max(1.0, count.dense / size), expert = std::max(1.0, count.expert / size);
  Buckets buckets;
  buckets.most = std::max(dense, expert);
  const OpList ops = data_parallel_ops(context, {.dense = count.dense / dense, .expert = count.expert / expert});
  const auto add = [&](const std::vector<Op>& list, Seconds& one, CommunicationSum& all) {
    for (const Op& op : list) {
      CommunicationSum bucket;
      bucket.add(op, op_time(op, context.hardware), context.hardware);
      one += bucket.time;
      all += bucket.scaled(communication_group(op) == Group::kEdp ? expert : dense);
    }
  };
  add(ops.forward, buckets.gather, buckets.gathers);
  add(ops.backward, buckets.reduction, buckets.reductions);
  return buckets;
}

// Gathers and reductions of a rank's chunks: their times, and what they cost the work beside them. A chunk's gather
// runs beside the first group of forwards of the chunk before, its reduction beside the last group of backwards of the
// chunk before (which end later). Whether they are done in time is for the schedule to say. Source:
// docs/formulas.md#data-parallel.
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
      first.gather =
          piecewise(context, buckets.gathers, buckets.gather, mix(0, (1.0 - 1.0 / buckets.most) * first.forward));
    if (o.step.overlaps.param_gather_with_optimizer_step) {  // Beside the update of the other chunks.
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
  if (!o.step.overlaps.dp_grad) {  // All of them when the last backward has ended.
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
  // Aligned reductions of an interleaved schedule start after the backward, not bucket by bucket within it.
  first.reduction = shape.vpp == 1 && buckets.most > 1.0
                        ? piecewise(context, buckets.reductions, buckets.reduction,
                                    mix(0, (1.0 - 1.0 / buckets.most) * first.backward))
                        : cost.reduction.time;
}

// Ops of a step's end that update the parameters.
constexpr std::array<std::string_view, 4> kUpdate{"adam", "cast_to_model", "param_amax", "cast_to_fp8"};

// `update`: their time.
StepTail step_tail(const StepContext& context, const ParameterCount& count, Seconds& update) {
  StepTail tail{.host = context.hardware.host.step};
  update = {};
  for (const Op& op : step_ops(context, count).forward) {
    const Seconds time = op_time(op, context.hardware);
    if (is_communication(op))
      tail.comm += time;
    else if (std::holds_alternative<HostCopyWork>(op.work))
      tail.copy += time;
    else
      tail.compute += time;
    if (std::find(kUpdate.begin(), kUpdate.end(), op.name) != kUpdate.end()) update += time;
  }
  return tail;
}

// Plain 1F1B exchanges in batches and then waits for the device.
bool blocks_on_transfers(const TrainingOptions& o) {
  return o.pipeline.vpp == 1 && o.pipeline.schedule == Schedule::kOneF1B;
}

// Idle time of the GPU where the host waits for it after every batched transfer (batch_p2p_sync, on by default;
// _communicate in megatron/core/pipeline_parallel/p2p_communication.py): host and device begin the next task together.
// The first stage receives nothing before a forward, the last nothing before a backward.
HostIdle blocking_idle(const BlockCost& cost, bool first, bool last) {
  const DirectionCost &f = cost.forward, &b = cost.backward;
  const auto idle = [](const IssueClock& clock, Seconds device) {
    return std::max(Seconds{}, clock.elapsed() - device);
  };
  const Seconds forward_device = f.compute + f.comm, backward_device = b.compute + b.comm;
  HostIdle result{idle(f.clock, forward_device), idle(b.clock, backward_device)};
  if (first)
    result.forward =
        std::max(Seconds{}, idle(b.clock.then(f.clock), forward_device + backward_device) - result.backward);
  else if (last)
    result.backward =
        std::max(Seconds{}, idle(f.clock.then(b.clock), forward_device + backward_device) - result.forward);
  return result;
}

// Stretches the products of a micro-batch by what the power limit takes of their clocks: 1 - (1 - sustained) x duty,
// where the duty is their share of the stretched time. Source: docs/formulas.md#power.
void throttle(StageCost& stage) {
  DirectionCost &forward = stage.cost.forward, &backward = stage.cost.backward;
  const Seconds products = stage.cost.mix.products, compute = forward.compute + backward.compute;
  if (stage.cost.unclocked <= Seconds{}) return;
  const Seconds others =
      std::max(Seconds{}, forward.device() + backward.device() + stage.host.total() - stage.saving - products);
  const auto lost = (stage.cost.unclocked / products).to<double>();
  // With x the stretched products: x (1 - lost x / (x + others)) = products, a quadratic.
  const double a = 1.0 - lost, b = (others - products).to<double>(), c = -(products * others.to<double>()).to<double>();
  const Seconds stretched{(-b + std::sqrt(b * b - 4.0 * a * c)) / (2.0 * a)};
  const double stretch = 1.0 + ((stretched - products) / compute).to<double>();
  for (Seconds* time : {&forward.compute, &backward.compute, &stage.weight_gradient}) *time *= stretch;
}

// Stages of the same kinds of layers in the same order cost the same.
bool same_cost(const ModelKinds& kinds, const StageContent& a, const StageContent& b) {
  if (a.num_layers != b.num_layers || a.embedding != b.embedding || a.mtp_layers != b.mtp_layers || a.loss != b.loss)
    return false;
  const auto begin = kinds.kind.begin();
  return std::equal(begin + a.first_layer, begin + a.first_layer + a.num_layers, begin + b.first_layer);
}

// Schedules that run input and weight gradients apart.
bool splits_backward(Schedule schedule) { return schedule != Schedule::kOneF1B && schedule != Schedule::kGpipe; }

}  // namespace

std::int64_t covered_layers(const TrainingOptions& o, std::int64_t layers) {
  if (o.layer.recompute.granularity == RecomputeGranularity::kFull &&
      o.pipeline.recompute.method == RecomputeMethod::kBlock)
    return std::min(layers, o.pipeline.recompute.num_layers);
  if (o.pipeline.cpu_offloading_num_layers > 0) return std::min(layers, o.pipeline.cpu_offloading_num_layers);
  return layers;
}

LayerOptions plain_layers(const LayerOptions& covered) {
  LayerOptions plain = covered;
  plain.recompute = {};
  plain.offload_modules = {};
  return plain;
}

ModelKinds model_kinds(const ModelSpec& model) {
  ModelKinds result;
  std::vector<std::size_t> kind_of(model.layers.size());
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const auto found = std::find(result.kinds.begin(), result.kinds.end(), model.layers[i]);
    kind_of[i] = static_cast<std::size_t>(found - result.kinds.begin());
    if (found == result.kinds.end()) result.kinds.push_back(model.layers[i]);
  }
  for (const std::size_t kind : kind_of) result.kind.push_back(static_cast<std::int32_t>(kind));
  result.run_end.assign(kind_of.size(), static_cast<std::int32_t>(kind_of.size()));
  for (std::size_t i = kind_of.size(); i-- > 1;)
    result.run_end[i - 1] = kind_of[i] == kind_of[i - 1] ? result.run_end[i] : static_cast<std::int32_t>(i);
  result.prefix.assign(result.kinds.size(), std::vector<std::int32_t>(model.layers.size() + 1, 0));
  for (std::size_t k = 0; k < result.kinds.size(); ++k)
    for (std::size_t i = 0; i < kind_of.size(); ++i)
      result.prefix[k][i + 1] = result.prefix[k][i] + (kind_of[i] == k ? 1 : 0);
  return result;
}

ModelCosts model_costs(const StepContext& context, const ModelKinds& kinds, BlockCache* shared_cache) {
  BlockCache own_cache;
  BlockCache& cache = shared_cache != nullptr ? *shared_cache : own_cache;
  ModelCosts costs;
  const ModelSpec& model = context.model;
  const TrainingOptions& o = context.options;
  const BuildContext layer_context = context.layer();
  const bool partial = covered_layers(o, 1 << 30) < (1 << 30);
  const LayerOptions plain = plain_layers(o.layer);
  const BuildContext plain_context = layer_context.with(plain);
  for (const LayerSpec& kind : kinds.kinds) {
    costs.covered.push_back(layer_cost(layer_context, kind, cache));
    if (partial) costs.plain.push_back(layer_cost(plain_context, kind, cache));
    if (o.pipeline.overlaps.ep_a2a && kind.mlp == MlpKind::kMoe)
      costs.overlapped =
          std::max(costs.overlapped, costs.covered.back().until_dispatched +
                                         (o.pipeline.overlaps.delay_wgrad ? costs.covered.back().delayed : Bytes{}));
    costs.saving.push_back(
        o.pipeline.overlaps.ep_a2a
            ? ep_overlap_saving(costs.covered.back().nodes, o.pipeline.overlaps.delay_wgrad, context.hardware)
            : Seconds{});
  }
  const bool joined = !low_precision_primaries(o);
  const auto piece_tensors = [&](Piece piece, const LayerSpec& layer) {
    BufferTensors tensors = cache.tensors(layer_context, piece, layer);
    if (joined) tensors.join_quantised();
    return tensors;
  };
  const auto layer_tensors = [&](const LayerSpec& layer) {
    BufferTensors tensors = piece_tensors(Piece::kMlp, layer);
    return tensors += piece_tensors(Piece::kMixer, layer);
  };
  for (const LayerSpec& kind : kinds.kinds) costs.layer_tensors.push_back(layer_tensors(kind));
  costs.embedding_tensors = piece_tensors(Piece::kEmbedding, {});
  costs.head_tensors = piece_tensors(Piece::kHead, {});
  costs.embedding = cache.get(layer_context, Piece::kEmbedding, {});
  if (o.layer.software.transformer_engine && o.layer.software.gradient_accumulation_fusion) {
    const auto dummies = [&](const std::vector<LayerSpec>& layers) {
      for (const LayerSpec& layer : layers) {
        costs.dummies.mixer[static_cast<std::size_t>(layer.mixer)] =
            cache.get(layer_context, Piece::kMixer, layer).weight_gradients;
        costs.dummies.mlp[static_cast<std::size_t>(layer.mlp)] =
            cache.get(layer_context, Piece::kMlp, layer).weight_gradients;
      }
    };
    dummies(kinds.kinds);
    dummies(model.mtp_layers);
    if (model.mtp_num_layers > 0) costs.dummies.mtp = cache.get(layer_context, Piece::kMtp, {}).weight_gradients;
    costs.dummies.head = cache.get(layer_context, Piece::kHead, {}).weight_gradients;
  }
  costs.head = cache.get(layer_context, Piece::kHead, {});
  if (model.mtp_num_layers > 0) {
    costs.mtp = cache.get(layer_context, Piece::kMtp, {});
    for (const LayerSpec& layer : model.mtp_layers) {
      const BlockCost cost = layer_cost(layer_context, layer, cache);
      if (o.pipeline.overlaps.ep_a2a)
        costs.mtp_saving += ep_overlap_saving(cost.nodes, o.pipeline.overlaps.delay_wgrad, context.hardware);
      costs.mtp += cost;
      costs.mtp_tensors += layer_tensors(layer);
    }
    costs.mtp_tensors += piece_tensors(Piece::kMtp, {});
  }
  return costs;
}

namespace {

// Embedding, decoder layers run by run, MTP depths, head.
MemoryProfile stage_memory(const StepContext& context, const ModelKinds& kinds, const ModelCosts& costs,
                           const StageContent& content) {
  const TrainingOptions& o = context.options;
  MemoryProfile memory = content.embedding ? costs.embedding.memory : MemoryProfile{};
  const std::int64_t last = content.first_layer + content.num_layers,
                     cut = content.first_layer + covered_layers(o, content.num_layers);
  MemoryProfile layers;
  Bytes group{}, on_host{};
  for (std::int64_t first = content.first_layer; first < last;) {
    const auto i = static_cast<std::size_t>(first), k = static_cast<std::size_t>(kinds.kind[i]);
    const BlockCost& layer = first < cut ? costs.covered[k] : costs.plain[k];
    const std::int64_t end = std::min<std::int64_t>(kinds.run_end[i], first < cut ? cut : last);
    layers += layer.memory.repeated(end - first);
    group = std::max(group, layer.rematerialised);
    on_host = std::max(on_host, layer.host_bytes);
    first = end;
  }
  if (o.layer.recompute.granularity == RecomputeGranularity::kFull &&
      o.pipeline.recompute.method == RecomputeMethod::kUniform && o.pipeline.recompute.num_layers > 1) {
    // One input is kept per group of layers; a whole group is rebuilt at a time.
    const auto size =
        static_cast<double>(std::min(o.pipeline.recompute.num_layers, std::max<std::int64_t>(1, content.num_layers)));
    layers.kept /= size;
    layers.backward_high += (size - 1.0) * group;
  }
  if (!o.layer.offload_modules.empty()) {  // The last layer's tensors stay; in backward, the next ones are back early.
    layers.forward_high += on_host;
    layers.backward_high += on_host;
  }
  memory += layers;
  for (std::int64_t depth = 0; depth < content.mtp_layers; ++depth) memory += costs.mtp.memory;
  if (content.loss) {
    MemoryProfile head = costs.head.memory;
    if (!o.layer.offload_modules.empty()) {
      head.forward_high += on_host;
      head.backward_high += on_host;
    }
    memory += head;
  }
  return memory;
}

// A stage has the embedding table for its input, for MTP, or for a tied head.
bool has_table(const ModelSpec& model, const StageContent& content) {
  return content.embedding || content.mtp_layers > 0 || (content.loss && model.share_embeddings_and_output_weights);
}
// Whether other stages have it too.
bool shares_table(const StepContext& context) {
  const ModelSpec& model = context.model;
  return context.options.pipeline.pp > 1 && (model.share_embeddings_and_output_weights || model.mtp_num_layers > 0);
}

// What the gradient buffers of a chunk with `parameters` hold besides: only that is set in the result.
ParameterCount buffer_padding(const StepContext& context, const ModelKinds& kinds, const ModelCosts& costs,
                              const StageContent& content, const ParameterCount& parameters, bool bucketed) {
  ParameterCount padding;
  if (context.options.step.sharding != Sharding::kDdpDistributedOptimizer) return padding;
  std::array<GradientBuffer, kGradientBuffers> buffers = gradient_buffers(context.options, bucketed);
  const auto add = [&](const BufferTensors& piece, std::int64_t times) {
    std::array<bool, kGradientBuffers> whole{};
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      whole[i] = buffers[i].within_bucket(times * piece.aligned[i]);
      if (whole[i]) buffers[i].add_within_bucket(times * piece.aligned[i]);
    }
    if (whole == std::array{true, true, true, true}) return;
    for (std::int64_t n = 0; n < times; ++n)
      for (const BufferTensors::Run& run : piece.runs)
        if (!whole[run.buffer]) buffers[run.buffer].add(run.tensors);
  };
  if (content.loss) add(costs.head_tensors, 1);
  if (content.mtp_layers > 0) add(costs.mtp_tensors, context.model.mtp_use_repeated_layer ? 1 : content.mtp_layers);
  const auto first = static_cast<std::size_t>(content.first_layer),
             last = first + static_cast<std::size_t>(content.num_layers);
  if (bucketed)
    for (std::size_t i = last; i-- > first;) add(costs.layer_tensors[static_cast<std::size_t>(kinds.kind[i])], 1);
  else
    for (std::size_t k = 0; k < kinds.kinds.size(); ++k)
      add(costs.layer_tensors[k], kinds.prefix[k][last] - kinds.prefix[k][first]);
  if (has_table(context.model, content) && !context.options.layer.lora) {
    // Position embeddings, then the table, which is alone in a bucket where other stages have it too.
    const std::vector<BufferTensors::Run>& runs = costs.embedding_tensors.runs;
    for (const BufferTensors::Run& run : runs) {
      if (shares_table(context) && &run == &runs.back()) buffers[run.buffer].end_bucket();
      buffers[run.buffer].add(run.tensors);
    }
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    buffers[i].end_bucket();
    const auto elements = static_cast<double>(buffers[i].elements());
    padding.padding += elements;
    if (i >= gradient_buffer(false, true)) padding.low_precision_padding += elements;
  }
  padding.padding -= parameters.trained(context.options.layer).total();
  if (low_precision_primaries(context.options) && !context.options.layer.lora)
    padding.low_precision_padding -= parameters.quantised_dense + parameters.quantised_expert;
  return padding;
}

// Whether buckets can change the padding of a chunk: not where every tensor ends where a bucket may.
bool buckets_add_padding(const StepContext& context, const ModelCosts& costs) {
  std::uint64_t bits = costs.embedding_tensors.bits | costs.mtp_tensors.bits | costs.head_tensors.bits;
  for (const BufferTensors& layer : costs.layer_tensors) bits |= layer.bits;
  const auto granule = static_cast<std::int64_t>(bits & (~bits + 1));  // The power of two that divides all of them.
  const auto buffers = gradient_buffers(context.options, true);
  return !std::all_of(buffers.begin(), buffers.end(), [&](const auto& b) { return b.ends_fall_on(granule); });
}

void add_kind(const LayerSpec& layer, StageCost& stage) {
  stage.mixers |= 1u << static_cast<unsigned>(layer.mixer);
  stage.mlps |= 1u << static_cast<unsigned>(layer.mlp);
}

}  // namespace

StageCost stage_cost(const StepContext& context, const ModelKinds& kinds, const ModelCosts& costs,
                     const StageContent& content) {
  const TrainingOptions& o = context.options;
  StageCost stage;
  stage.layers = content.num_layers + content.mtp_layers;
  stage.loss = content.loss;
  stage.mtp = content.mtp_layers > 0;
  for (std::int64_t depth = 0; depth < content.mtp_layers; ++depth)
    for (const LayerSpec& layer : context.model.mtp_layers) {
      stage.moe_layers += layer.mlp == MlpKind::kMoe ? 1 : 0;
      add_kind(layer, stage);
    }
  const auto first = static_cast<std::size_t>(content.first_layer),
             last = first + static_cast<std::size_t>(content.num_layers);
  const auto cut = first + static_cast<std::size_t>(covered_layers(o, content.num_layers));
  for (std::size_t k = 0; k < kinds.kinds.size(); ++k) {
    const std::int32_t in = kinds.prefix[k][cut] - kinds.prefix[k][first],
                       out = kinds.prefix[k][last] - kinds.prefix[k][cut];
    if (in > 0) stage.cost += scaled(costs.covered[k], in);
    if (out > 0) stage.cost += scaled(costs.plain[k], out);
    stage.saving += static_cast<double>(in) * costs.saving[k];
    if (kinds.kinds[k].mlp == MlpKind::kMoe) stage.moe_layers += in + out;
    if (in + out > 0) add_kind(kinds.kinds[k], stage);
  }
  if (content.embedding) stage.cost += costs.embedding;
  for (std::int64_t depth = 0; depth < content.mtp_layers; ++depth) {
    BlockCost mtp = costs.mtp;
    if (context.model.mtp_use_repeated_layer && depth > 0) mtp.parameters = {};
    stage.cost += mtp;
    stage.saving += costs.mtp_saving;
  }
  if (content.loss) stage.cost += costs.head;  // Every MTP depth evaluates it.
  if (has_table(context.model, content)) {
    if (!content.embedding) stage.cost.parameters += costs.embedding.parameters;
    if (shares_table(context) && !o.layer.lora)
      stage.cost.parameters.shared_embedding = costs.embedding.parameters.embedding;
  }
  stage.cost.parameters += buffer_padding(context, kinds, costs, content, stage.cost.parameters, false);
  if (splits_backward(o.pipeline.schedule)) {
    const auto add = [&stage](const BlockCost& piece, double times) {
      for (const ComputeSum& wgrad : piece.nodes.wgrad) stage.weight_gradient += times * wgrad.time;
    };
    for (std::size_t k = 0; k < kinds.kinds.size(); ++k)
      add(costs.covered[k], kinds.prefix[k][last] - kinds.prefix[k][first]);
    if (content.embedding) add(costs.embedding, 1.0);
    add(costs.mtp, static_cast<double>(content.mtp_layers));
    if (content.loss) add(costs.head, 1.0);
  }
  stage.cost.memory = stage_memory(context, kinds, costs, content);
  const OpList collectives = data_parallel_ops(context, stage.cost.parameters.trained(o.layer));
  stage.gather = communication_of(collectives.forward, context.hardware);
  stage.reduction = communication_of(collectives.backward, context.hardware);
  if (shards_gradients(o.step.sharding)) {
    const OpList fsdp = fsdp_ops(context, stage.cost.parameters);
    const auto hide = [&](const std::vector<Op>& ops, DirectionCost& direction) {
      const CommunicationSum comm = communication_of(ops, context.hardware);
      // Gathered and reduced unit by unit beside the compute of other units; the first unit has nothing to hide under.
      const auto units = static_cast<double>(std::max<std::int64_t>(1, stage.layers));
      const Seconds waits = piecewise(context, comm, comm.time / units, stage.cost.mix.stretch(direction.compute));
      direction.comm += waits;
      direction.clock.op(Seconds{}, waits);
    };
    hide(fsdp.forward, stage.cost.forward);
    hide(fsdp.backward, stage.cost.backward);
  }
  CommunicationSum transfer;
  if (o.pipeline.pp > 1) {
    const Op op = stage_transfer(context);
    transfer.add(op, op_time(op, context.hardware), context.hardware);
    stage.send = transfer.time;
  }
  if (o.pipeline.pp > 1 && !blocks_on_transfers(o)) {
    // Beside a task its rank receives another one's input and sends an earlier one's output.
    const SharedPace pace = shared_pace(stage.cost.mix, transfer, 0.0, context.hardware);
    stage.send = transfer.time / pace.communication;
    const double transfers = (content.embedding ? 0.0 : 1.0) + (content.loss ? 0.0 : 1.0);
    const auto lose = [&](DirectionCost& direction, Seconds& lost) {
      lost = side_by_side(direction.compute, transfers * transfer.time, pace).compute - direction.compute;
      direction.comm += lost;
      direction.clock.op(Seconds{}, lost);
    };
    lose(stage.cost.forward, stage.forward_transfers);
    lose(stage.cost.backward, stage.backward_transfers);
  }
  for (DirectionCost* direction : {&stage.cost.forward, &stage.cost.backward})
    direction->clock.op(context.hardware.host.task, Seconds{});
  stage.host = blocks_on_transfers(o) && o.pipeline.pp > 1 ? blocking_idle(stage.cost, content.embedding, content.loss)
                                                           : host_idle(stage.cost, stage.saving);
  throttle(stage);
  return stage;
}

Op stage_transfer(const StepContext& context) {
  const TrainingOptions& o = context.options;
  Op op;
  op.work = CollectiveWork{
      CollectiveKind::kSendRecv, Group::kPp,
      Bytes{2.0 * rank_shape(context.model, o.layer).tokens * static_cast<double>(context.model.hidden_size)},
      group_shape(o.layout(), Group::kPp, context.hardware.network)};
  return op;
}

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

StageLayout stage_layout(const ModelSpec& model, const TrainingOptions& o) {
  if (o.pipeline.layout.empty())
    return even_stages(model.num_layers(), model.mtp_num_layers, o.pipeline.pp, o.pipeline.vpp);
  ParsedLayout parsed = parse_layout(o.pipeline.layout, model.num_layers(), model.mtp_num_layers);
  FW_CHECK(parsed.stages.has_value(), parsed.error);
  return *std::move(parsed.stages);
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
    if (i == 0 || !same_cost(kinds, layout.stages[i - 1], content))
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
    const bool same = rank > 0 && count == c.parameters.back();
    c.parameters.push_back(count);
    if (same) {
      c.tails.push_back(c.tails.back());
      c.tails.back().parameters = {};
    } else {
      c.tails.push_back(step_tail(context, count.trained(o.layer), update));
    }
    if (!o.step.overlaps.dp_param)
      for (auto i = static_cast<std::size_t>(rank); i < c.num_stages(); i += static_cast<std::size_t>(o.pipeline.pp))
        c.tails.back().parameters += c.stage(i).gather.time;
    add_data_parallel(context, rank, update, c);
  }
  return c;
}

StageLayout balanced_stages(const ModelKinds& kinds, const ModelCosts& costs, std::int64_t mtp_layers, std::int64_t pp,
                            std::int64_t vpp) {
  const auto stages = static_cast<std::size_t>(pp * vpp);
  const std::size_t layers = kinds.prefix.empty() ? 0 : kinds.prefix.front().size() - 1;
  const auto total = [&](const BlockCost& cost, Seconds saving) {
    const Seconds host = host_idle(cost, saving).total();
    return (cost.forward.device() + cost.backward.device() - saving + host).to<double>();
  };
  std::vector<double> before(layers + 1, 0.0);  // Seconds of the layers before layer i.
  for (std::size_t k = 0; k < kinds.kinds.size(); ++k) {
    const double seconds = total(costs.covered[k], costs.saving[k]);
    for (std::size_t i = 0; i <= layers; ++i) before[i] += kinds.prefix[k][i] * seconds;
  }
  const auto depths = static_cast<double>(mtp_layers);
  const double head = total(costs.head, {}) + depths * total(costs.mtp, costs.mtp_saving);
  const double embedding = total(costs.embedding, {});

  // First layer of each stage (and the end) when no stage may take longer than `limit`, in `first`; false if they do
  // not fit.
  std::vector<std::size_t> first(stages + 1, 0), tried(stages + 1, 0);
  const auto cut = [&](double limit) {
    for (std::size_t i = 0; i < stages; ++i) {
      const double room = limit - (i == 0 ? embedding : 0.0) - (i + 1 == stages ? head : 0.0);
      if (room < 0.0) return false;
      std::size_t next = tried[i];
      while (next < layers && before[next + 1] - before[tried[i]] <= room) ++next;
      tried[i + 1] = next;
    }
    if (tried.back() != layers) return false;
    std::swap(first, tried);
    return true;
  };
  // The slowest stage takes at least the mean, and at most that plus the largest piece that cannot be cut.
  double largest = std::max(embedding, head);
  for (std::size_t i = 0; i < layers; ++i) largest = std::max(largest, before[i + 1] - before[i]);
  const double everything = embedding + head + before[layers];
  double low = everything / static_cast<double>(stages), high = std::min(everything, low + 2.0 * largest);
  const bool found = cut(high * (1.0 + 1e-9)) || cut(everything * (1.0 + 1e-9));
  FW_CHECK(found, "no balanced split");
  const auto slowest = [&] {
    double most = 0.0;
    for (std::size_t i = 0; i < stages; ++i)
      most = std::max(
          most, before[first[i + 1]] - before[first[i]] + (i == 0 ? embedding : 0.0) + (i + 1 == stages ? head : 0.0));
    return most;
  };
  // Bisection brings the limit close; then every split found is the next limit to undercut, until none does. Times that
  // differ by less than one part in 1e12 are equal: sums of the same layers in another order.
  high = slowest();
  for (int i = 0; i < 16 && high - low > 1e-3 * high; ++i) {
    const double middle = 0.5 * (low + high);
    if (cut(middle))
      high = slowest();
    else
      low = middle;
  }
  while (cut(high * (1.0 - 1e-12))) high = slowest();
  StageLayout layout;
  layout.stages.reserve(stages);
  for (std::size_t i = 0; i < stages; ++i) {
    layout.stages.push_back({.first_layer = static_cast<std::int64_t>(first[i]),
                             .num_layers = static_cast<std::int64_t>(first[i + 1] - first[i]),
                             .embedding = i == 0,
                             .mtp_layers = i + 1 == stages ? mtp_layers : 0,
                             .loss = i + 1 == stages});
  }
  return layout;
}

Seconds step_time(const Composition& c, Seconds makespan) {
  Seconds tail{};
  for (const StepTail& t : c.tails) tail = std::max(tail, t.total());
  return makespan + tail;
}

}  // namespace foldwise::costmodel
