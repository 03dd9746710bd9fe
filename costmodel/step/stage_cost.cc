#include "costmodel/step/stage_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "costmodel/step/data_parallel.h"
#include "costmodel/step/fsdp_buffers.h"

namespace foldwise::costmodel {
namespace {

BlockCost scaled(const BlockCost& cost, double times) {
  BlockCost result = cost;
  const auto direction = [times](DirectionCost& d) {
    d.compute *= times;
    d.comm *= times;
    d.copy *= times;
    d.products *= times;
    d.unclocked *= times;
    d.clock = d.clock.repeated(std::llround(times));
    d.sustained = d.sustained.repeated(std::llround(times));
  };
  direction(result.forward);
  direction(result.backward);
  result.pair = cost.pair.repeated(std::llround(times));
  result.nodes = {};   // Only the saving of a pair is needed beyond a layer.
  result.memory = {};  // Composed in the order of the layers (stage_parts).
  result.captured *= times;
  result.cache *= times;
  result.setup_cache *= times;
  result.host_bytes *= times;
  result.offloaded *= times;
  result.mix = cost.mix.stretch(times * cost.mix.time);
  result.flops *= times;
  ParameterCount& p = result.parameters;
  for (double* value : {&p.dense, &p.expert, &p.quantised_dense, &p.quantised_expert, &p.tp_replicated, &p.embedding,
                        &p.dense_rounding, &p.expert_rounding, &p.adapters_dense, &p.adapters_expert})
    *value *= times;
  return result;
}

// Idle time of the GPU where the host waits for it after every batched transfer (batch_p2p_sync, on by default;
// _communicate in megatron/core/pipeline_parallel/p2p_communication.py): host and device begin the next task together.
// The first stage receives nothing before a forward, the last nothing before a backward.
HostIdle blocking_idle(const IssueClock& forward, const IssueClock& backward, bool first, bool last) {
  const auto idle = [](const IssueClock& clock) { return std::max(Seconds{}, clock.elapsed() - clock.run()); };
  HostIdle result{idle(forward), idle(backward)};
  if (first)
    result.forward = std::max(Seconds{}, idle(backward.then(forward)) - result.backward);
  else if (last)
    result.backward = std::max(Seconds{}, idle(forward.then(backward)) - result.forward);
  return result;
}

// Stretches the products of each direction by what the power limit takes of their clocks: 1 - (1 - sustained) x duty,
// where the duty is their share of the direction's time. Before it makes the direction longer, the stretch hides copies
// and fills what the host leaves idle, except for `stays`: what is idle too if products never pause, as after a
// synchronisation. With EP overlap a direction's time is half a pair's, and the other micro-batch runs in what is idle.
// Source: docs/formulas.md#power.
void throttle(StageCost& stage, const HostIdle& stays) {
  const Seconds saved = stage.saving / 2.0;
  const auto direction = [&](DirectionCost& d, Seconds& host, Seconds idle) {
    if (stage.hidden > Seconds{}) idle = Seconds{};
    if (d.unclocked <= Seconds{}) return 1.0;
    const Seconds alone = d.device() + host;
    const double products = d.products.to<double>(), lost = (d.unclocked / d.products).to<double>(),
                 period = (alone - saved).to<double>(),
                 others = std::max(0.0, (d.compute + d.comm + idle - stage.hidden / 2.0 - d.products).to<double>());
    auto stretched = limited_products(d.products, lost, Seconds{others}).to<double>();
    // Within a longer period the duty is its share: x (1 - lost x / period) = products.
    if (stretched + others < period)
      stretched = (1.0 - std::sqrt(1.0 - 4.0 * lost * products / period)) * period / (2.0 * lost);
    const double stretch = 1.0 + (stretched - products) / d.compute.to<double>();
    d.compute *= stretch;
    host = std::max({Seconds{}, idle - d.exposed_copy(), alone - d.device()});
    const Seconds in_pair{std::max(period, stretched + others)};
    if (stage.hidden > Seconds{})  // A pair has less idle time for the stretch to fill.
      stage.saving += d.device() + host - in_pair - saved;
    return stretch;
  };
  direction(stage.cost.forward, stage.host.forward, stays.forward);
  stage.weight_gradient *= direction(stage.cost.backward, stage.host.backward, stays.backward);
  stage.saving = std::max(Seconds{}, stage.saving);
}

// Schedules that run input and weight gradients apart.
bool splits_backward(Schedule schedule) { return schedule != Schedule::kOneF1B && schedule != Schedule::kGpipe; }

// What layers wait for copies of the first `offloaded` of them, which are offloaded whole: layer i has left the device
// before layer N - n + i begins its forward, and comes back from when layer N - 1 - n + i begins its backward. Source:
// DefaultOffloadSynchronizer in transformer_engine/pytorch/cpu_offload.py. Per layer: `forward`, `backward`, and a copy
// either way.
struct LayerWaits {
  Seconds forward{}, backward{};
};
LayerWaits layer_waits(std::int64_t layers, std::int64_t offloaded, Seconds forward, Seconds backward, Seconds out,
                       Seconds back) {
  if (offloaded <= 0 || offloaded >= layers) return {};
  std::vector<Seconds> done(static_cast<std::size_t>(offloaded));
  const auto nth = [&](std::int64_t i) -> Seconds& { return done[static_cast<std::size_t>(i)]; };
  Seconds now{}, link{};
  for (std::int64_t i = 0; i < layers; ++i) {
    if (const std::int64_t gone = i - (layers - offloaded); gone >= 0) now = std::max(now, nth(gone));
    now += forward;
    if (i < offloaded) nth(i) = link = std::max(now, link) + out;
  }
  LayerWaits waits{.forward = now - static_cast<double>(layers) * forward};
  now = link = {};
  for (std::int64_t i = layers; i-- > 0;) {
    if (const std::int64_t next = i - (layers - 1 - offloaded); next >= 0 && next < offloaded)
      nth(next) = link = std::max(now, link) + back;
    if (i < offloaded) now = std::max(now, nth(i));
    now += backward;
  }
  waits.backward = now - static_cast<double>(layers) * backward;
  return waits;
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
// Whether an MTP depth uses the parameters of the one before.
bool repeats_parameters(const ModelSpec& model, const StagePiece& mtp) {
  return model.mtp_use_repeated_layer && mtp.depth > 0;
}

// The pieces' memory in their order, with what recomputation and offloading hold of several layers at a time.
std::vector<ChunkPart> stage_parts(const StepContext& context, const ModelKinds& kinds, const ModelCosts& costs,
                                   const StageContent& content) {
  const TrainingOptions& o = context.options;
  std::vector<ChunkPart> parts;
  std::size_t decoders = 0;
  Bytes group{}, input{}, offloaded{};
  const auto hold = [](MemoryProfile& memory, Bytes bytes) {
    memory.forward_high += bytes;
    memory.backward_high += bytes;
  };
  visit_stage(context, kinds, content, PieceOrder::kForward, [&](const StagePiece& piece) {
    const auto add = [&](const BlockCost& cost, std::int64_t times, bool layer) {
      parts.push_back({cost.memory, &cost.parameters, times, layer});
    };
    if (piece.piece == Piece::kEmbedding) add(costs.embedding, 1, false);
    if (piece.piece == Piece::kHead) add(costs.head, 1, false);
    if (piece.piece == Piece::kMtp) {  // With its layers.
      add(costs.mtp, 1, true);
      if (repeats_parameters(context.model, piece)) parts.back().parameters = nullptr;
    }
    if (!piece.decoder()) return;
    const BlockCost& layer = costs.of(piece);
    add(layer, piece.times, true);
    ++decoders;
    group = std::max(group, layer.rematerialised);
    input = std::max(input, layer.memory.kept);
    if (o.pipeline.cpu_offloading_num_layers > 0)  // Whole layers: each has its tensors while it runs.
      hold(parts.back().memory, layer.offloaded);
    else
      offloaded = std::max(offloaded, layer.offloaded);
  });
  const auto layers = std::span(parts).subspan(content.embedding ? 1 : 0, decoders);
  if (o.layer.recompute.granularity == RecomputeGranularity::kFull &&
      o.pipeline.recompute.method == RecomputeMethod::kUniform && o.pipeline.recompute.num_layers > 1) {
    // One input is kept per group of layers; a whole group is rebuilt at a time, its inner inputs with it.
    const auto size =
        static_cast<double>(std::min(o.pipeline.recompute.num_layers, std::max<std::int64_t>(1, content.num_layers)));
    for (ChunkPart& layer : layers) {
      const Bytes gone = (1.0 - 1.0 / size) * layer.memory.kept;
      layer.memory.kept -= gone;
      layer.memory.forward_high -= gone;
      layer.memory.backward_high += (size - 1.0) * (group + input) - gone;
    }
  }
  // Fine-grained: the last layer's tensors stay, also beside the head; in backward the next ones are back early.
  for (ChunkPart& layer : layers) hold(layer.memory, offloaded);
  if (content.loss) hold(parts.back().memory, offloaded);
  return parts;
}

// A layer with what Megatron-FSDP costs the host: gradients reduced in backward, parameters gathered in both
// directions.
BlockCost as_unit(const StepContext& context, BlockCost layer, const BufferTensors& tensors) {
  const HostSpec& host = context.hardware.host;
  const Seconds issue = host.fsdp_unit + static_cast<double>(tensors.tensors()) * host.fsdp_parameter;
  if (context.options.step.sharding == Sharding::kFsdp) layer.forward.run(issue, Seconds{});
  layer.backward.run(issue, Seconds{});
  return layer;
}

}  // namespace

bool blocks_on_transfers(const TrainingOptions& o) {
  return o.pipeline.vpp == 1 && o.pipeline.schedule == Schedule::kOneF1B;
}

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
  visit_stage(context, kinds, content, bucketed ? PieceOrder::kReverse : PieceOrder::kByKind,
              [&](const StagePiece& piece) {
                if (piece.piece == Piece::kHead) add(costs.head_tensors, 1);
                if (piece.piece == Piece::kMtp && !repeats_parameters(context.model, piece)) add(costs.mtp_tensors, 1);
                if (piece.decoder()) add(costs.layer_tensors[static_cast<std::size_t>(piece.kind)], piece.times);
              });
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

bool buckets_add_padding(const StepContext& context, const ModelCosts& costs) {
  std::uint64_t bits = costs.embedding_tensors.bits | costs.mtp_tensors.bits | costs.head_tensors.bits;
  for (const BufferTensors& layer : costs.layer_tensors) bits |= layer.bits;
  const auto granule = static_cast<std::int64_t>(bits & (~bits + 1));  // The power of two that divides all of them.
  const auto buffers = gradient_buffers(context.options, true);
  return !std::all_of(buffers.begin(), buffers.end(), [&](const auto& b) { return b.ends_fall_on(granule); });
}

StageCost stage_cost(const StepContext& context, const ModelKinds& kinds, const ModelCosts& costs,
                     const StageContent& content) {
  const TrainingOptions& o = context.options;
  StageCost stage;
  stage.layers = content.num_layers + content.mtp_layers;
  stage.loss = content.loss;
  stage.mtp = content.mtp_layers > 0;
  const bool splits = splits_backward(o.pipeline.schedule);
  const bool hooked = shards_gradients(o.step.sharding) && o.megatron_fsdp();  // Of FSDP2 the host was not measured.
  Seconds layers_forward{}, layers_backward{};
  const auto add = [&](const BlockCost& cost, double times = 1.0) {
    if (times == 1.0)
      stage.cost += cost;
    else
      stage.cost += scaled(cost, times);
    if (splits)
      for (const ComputeSum& wgrad : cost.nodes.wgrad) stage.weight_gradient += times * wgrad.time;
  };
  visit_stage(context, kinds, content, PieceOrder::kByKind, [&](const StagePiece& piece) {
    switch (piece.piece) {
      case Piece::kEmbedding:
        return add(costs.embedding);
      case Piece::kHead:
        return add(costs.head);
      case Piece::kMtp: {  // With its layers.
        BlockCost depth = costs.mtp;
        if (repeats_parameters(context.model, piece)) depth.parameters = {};
        stage.hidden += costs.mtp_saving;
        return add(hooked ? as_unit(context, depth, costs.mtp_tensors) : depth);
      }
      case Piece::kLayer:
      case Piece::kMixer:
      case Piece::kMlp:
        stage.moe_layers += piece.layer->mlp == MlpKind::kMoe ? piece.times : 0;
        if (piece.layer->mixer != kNoMixer) stage.mixers |= 1u << static_cast<unsigned>(piece.layer->mixer);
        stage.mlps |= 1u << static_cast<unsigned>(piece.layer->mlp);
        if (!piece.decoder()) return;
        if (hooked)
          add(as_unit(context, costs.of(piece), costs.layer_tensors[static_cast<std::size_t>(piece.kind)]),
              static_cast<double>(piece.times));
        else
          add(costs.of(piece), static_cast<double>(piece.times));
        layers_forward += static_cast<double>(piece.times) * costs.of(piece).forward.busy();
        layers_backward += static_cast<double>(piece.times) * costs.of(piece).backward.busy();
        stage.hidden += static_cast<double>(piece.times) * costs.saving_of(piece);
    }
  });
  if (has_table(context.model, content)) {
    if (!content.embedding) stage.cost.parameters += costs.embedding.parameters;
    if (shares_table(context) && !o.layer.lora)
      stage.cost.parameters.shared_embedding = costs.embedding.parameters.embedding;
  }
  stage.cost.parameters += buffer_padding(context, kinds, costs, content, stage.cost.parameters, false);
  const std::vector<ChunkPart> parts = stage_parts(context, kinds, costs, content);
  const OpList collectives = data_parallel_ops(context, stage.cost.parameters.trained(o.layer));
  stage.gather = communication_of(collectives.forward, context.hardware);
  stage.reduction = communication_of(collectives.backward, context.hardware);
  if (!shards_gradients(o.step.sharding)) {
    stage.cost.memory = chunk_memory(parts);
  } else {
    const FsdpMemory memory = fsdp_memory(o, parts);
    stage.cost.memory = memory.memory;
    stage.fsdp_buffers = memory.buffers;
    stage.fsdp_whole = memory.whole;
    const OpList fsdp = fsdp_ops(context, stage.cost.parameters);
    const auto hide = [&](const std::vector<Op>& ops, DirectionCost& direction) {
      const ComputeSum kernels = compute_of(ops, context.hardware);
      stage.cost.mix += kernels;
      direction.compute += kernels.time;
      direction.run(Seconds{}, kernels.time);
      const CommunicationSum comm = communication_of(ops, context.hardware);
      // Gathered and reduced unit by unit beside the compute of other units; the first unit has nothing to hide under.
      const auto units = static_cast<double>(std::max<std::int64_t>(1, stage.layers));
      const Seconds waits = piecewise(context, comm, comm.time / units, stage.cost.mix.stretch(direction.compute));
      direction.comm += waits;
      direction.run(Seconds{}, waits);
    };
    hide(fsdp.forward, stage.cost.forward);
    hide(fsdp.backward, stage.cost.backward);
  }
  if (o.pipeline.cpu_offloading_num_layers > 0 && content.num_layers > 0) {
    const std::int64_t offloaded = covered_layers(o, content.num_layers);
    const double layer = 1.0 / static_cast<double>(content.num_layers), copy = 1.0 / static_cast<double>(offloaded);
    const LayerWaits waits = layer_waits(content.num_layers, offloaded, layer * layers_forward, layer * layers_backward,
                                         copy * stage.cost.forward.copy, copy * stage.cost.backward.copy);
    stage.cost.forward.copy_wait = waits.forward;
    stage.cost.backward.copy_wait = waits.backward;
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
      direction.run(Seconds{}, lost);
    };
    lose(stage.cost.forward, stage.forward_transfers);
    lose(stage.cost.backward, stage.backward_transfers);
  }
  // Nodes of a layer's schedule plan: attention, dispatch, experts and combine, or attention and MLP.
  const std::int64_t nodes = o.pipeline.overlaps.ep_a2a ? 2 * stage.layers + 2 * stage.moe_layers : 0;
  const Seconds plan = context.hardware.host.task + static_cast<double>(nodes) * context.hardware.host.node;
  stage.cost.pair.op(2.0 * plan, Seconds{});
  for (DirectionCost* direction : {&stage.cost.forward, &stage.cost.backward}) direction->run(plan, Seconds{});
  const bool blocks = blocks_on_transfers(o) && o.pipeline.pp > 1;
  const auto idle = [&](const IssueClock& forward, const IssueClock& backward) {
    return blocks ? blocking_idle(forward, backward, content.embedding, content.loss) : host_idle(forward, backward);
  };
  stage.host = beside_copies(stage.cost, idle(stage.cost.forward.clock, stage.cost.backward.clock));
  stage.saving = pair_saving(stage.cost, stage.host.total(), stage.hidden);
  throttle(stage, idle(stage.cost.forward.sustained, stage.cost.backward.sustained));
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

}  // namespace foldwise::costmodel
