#include "costmodel/step/stage_cost.h"

#include <algorithm>
#include <array>
#include <cmath>

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
    d.attention *= times;
    d.unclocked *= times;
    d.warm *= times;
    d.clock = d.clock.repeated(std::llround(times));
    d.sustained = d.sustained.repeated(std::llround(times));
  };
  direction(result.forward);
  direction(result.backward);
  result.pair = cost.pair.repeated(std::llround(times));
  result.nodes = {};   // Beyond a layer only a pair's saving is needed.
  result.memory = {};  // Composed in the order of the layers (stage_parts).
  result.captured *= times;
  result.cache *= times;
  result.setup_cache *= times;
  result.host_bytes *= times;
  result.offloaded *= times;
  result.mix = cost.mix.stretch(times * cost.mix.time);
  result.flops *= times;
  result.parameters *= times;
  return result;
}

// Idle time of the GPU if the host waits for it after every batched transfer (batch_p2p_sync, on by default;
// _communicate in megatron/core/pipeline_parallel/p2p_communication.py). Host and device then begin each task together.
// The first stage receives nothing before a forward, the last one nothing before a backward.
HostIdle blocking_idle(const IssueClock& forward, const IssueClock& backward, bool first, bool last) {
  const auto idle = [](const IssueClock& clock) { return std::max(Seconds{}, clock.elapsed() - clock.run()); };
  HostIdle result{idle(forward), idle(backward)};
  if (first)
    result.forward = std::max(Seconds{}, idle(backward.then(forward)) - result.backward);
  else if (last)
    result.backward = std::max(Seconds{}, idle(forward.then(backward)) - result.forward);
  return result;
}

// Stretches the products of each direction by the share of their clocks that the power limit takes: 1 - (1 - sustained)
// x duty, where the duty is their share of the direction's time. Before it makes the direction longer, the stretch
// hides copies and fills idle time that the host causes. It cannot fill `stays`, the idle time that remains if products
// never pause, as after a synchronisation. With EP overlap a direction's time is half a pair's, and the other
// micro-batch runs during idle time. Attention loses more at the same clock, by the share `more_of_attention`. Source:
// docs/formulas.md#power.
void throttle(StageCost& stage, const HostIdle& stays, double more_of_attention) {
  const Seconds saved = stage.saving / 2.0;
  const auto direction = [&](DirectionCost& d, Seconds& host, Seconds idle) {
    if (stage.hidden > Seconds{}) idle = Seconds{};
    if (d.unclocked <= Seconds{}) return 1.0;
    const Seconds alone = d.device() + host;
    const double products = d.products.to<double>(), lost = (d.unclocked / d.products).to<double>(),
                 period = (alone - saved).to<double>(),
                 others = std::max(0.0, (d.compute + d.comm + idle - stage.hidden / 2.0 - d.products).to<double>()),
                 warm = std::min(d.warm.to<double>(), others);
    auto stretched = limited_products(d.products, lost, Seconds{others - warm}).to<double>();
    // In a longer period the duty is the share of the period: x (1 - lost x / cooling) = products.
    if (const double cooling = period - warm; stretched + others < period)
      stretched = (1.0 - std::sqrt(1.0 - 4.0 * lost * products / cooling)) * cooling / (2.0 * lost);
    stretched += more_of_attention * (stretched / products - 1.0) * d.attention.to<double>();
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

// Whether the schedule runs input and weight gradients separately.
bool splits_backward(Schedule schedule) { return schedule != Schedule::kOneF1B && schedule != Schedule::kGpipe; }

// Time that layers wait for copies, if the first `offloaded` of them are offloaded whole. Layer i has left the device
// before layer N - n + i begins its forward. It returns from the time when layer N - 1 - n + i begins its backward.
// Source: DefaultOffloadSynchronizer in transformer_engine/pytorch/cpu_offload.py. `forward`, `backward`, `out` and
// `back` are times of one layer.
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

// Whether a stage has the embedding table: for its input, for MTP, or for a tied head.
bool has_table(const ModelSpec& model, const StageContent& content) {
  return content.embedding || content.mtp_layers > 0 || (content.loss && model.share_embeddings_and_output_weights);
}
// Whether other stages have the table too.
bool shares_table(const StepContext& context) {
  const ModelSpec& model = context.model;
  return context.options.pipeline.pp > 1 && (model.share_embeddings_and_output_weights || model.mtp_num_layers > 0);
}
// Whether an MTP depth uses the parameters of the previous depth.
bool repeats_parameters(const ModelSpec& model, const StagePiece& mtp) {
  return model.mtp_use_repeated_layer && mtp.depth > 0;
}

// Memory of the pieces in their order, including what recomputation and offloading hold of several layers at once.
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
    if (piece.piece == Piece::kMtp) {  // Includes its layers.
      add(costs.mtp, 1, true);
      if (repeats_parameters(context.model, piece)) parts.back().parameters = nullptr;
    }
    if (!piece.decoder()) return;
    const BlockCost& layer = costs.of(piece);
    add(layer, piece.times, true);
    ++decoders;
    group = std::max(group, layer.rematerialised);
    input = std::max(input, layer.memory.kept);
    if (o.pipeline.cpu_offloading_num_layers > 0)  // Whole layers have their tensors on the device while they run.
      hold(parts.back().memory, layer.offloaded);
    else
      offloaded = std::max(offloaded, layer.offloaded);
  });
  const auto layers = std::span(parts).subspan(content.embedding ? 1 : 0, decoders);
  if (o.layer.recompute.granularity == RecomputeGranularity::kFull &&
      o.pipeline.recompute.method == RecomputeMethod::kUniform && o.pipeline.recompute.num_layers > 1) {
    // One input is kept per group of layers. The group is rebuilt as a whole, including its inner inputs.
    const auto size =
        static_cast<double>(std::min(o.pipeline.recompute.num_layers, std::max<std::int64_t>(1, content.num_layers)));
    for (ChunkPart& layer : layers) {
      const Bytes gone = (1.0 - 1.0 / size) * layer.memory.kept;
      layer.memory.kept -= gone;
      layer.memory.forward_high -= gone;
      layer.memory.backward_high += (size - 1.0) * (group + input) - gone;
    }
  }
  // Fine-grained offloading: the last layer's tensors stay on the device, also beside the head. In backward the next
  // layer's return early.
  for (ChunkPart& layer : layers) hold(layer.memory, offloaded);
  if (content.loss) hold(parts.back().memory, offloaded);
  return parts;
}

// A layer with the host time of Megatron-FSDP: gradients are reduced in backward, and parameters gathered in both
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

std::array<GradientBuffer, kGradientBuffers> filled_buffers(const StepContext& context, const ModelKinds& kinds,
                                                            const ModelCosts& costs, const StageContent& content,
                                                            bool bucketed) {
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
    // Position embeddings, then the table. The table has its own bucket if other stages have it too.
    const std::vector<BufferTensors::Run>& runs = costs.embedding_tensors.runs;
    for (const BufferTensors::Run& run : runs) {
      if (shares_table(context) && &run == &runs.back()) buffers[run.buffer].end_bucket();
      buffers[run.buffer].add(run.tensors);
    }
  }
  for (GradientBuffer& buffer : buffers) buffer.end_bucket();
  return buffers;
}

ParameterCount buffer_padding(const StepContext& context, const ModelKinds& kinds, const ModelCosts& costs,
                              const StageContent& content, const ParameterCount& parameters, bool bucketed) {
  ParameterCount padding;
  if (context.options.step.sharding != Sharding::kDdpDistributedOptimizer) return padding;
  const auto buffers = filled_buffers(context, kinds, costs, content, bucketed);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
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
  const auto granule =
      static_cast<std::int64_t>(bits & (~bits + 1));  // The largest power of two that divides all sizes.
  const auto buffers = gradient_buffers(context.options, true);
  return !std::all_of(buffers.begin(), buffers.end(), [&](const auto& b) { return b.ends_fall_on(granule); });
}

namespace {

// Builds a stage from its pieces to its times. Each step adds what is known only after the steps before it.
class StageBuilder {
 public:
  StageBuilder(const StepContext& context, const ModelKinds& kinds, const ModelCosts& costs,
               const StageContent& content)
      : context_(context), kinds_(kinds), costs_(costs), content_(content), o_(context.options) {}

  StageCost build() {
    add_pieces();
    add_parameters();
    add_memory_and_fsdp();
    wait_for_offloaded_layers();
    add_transfers();
    add_host();
    return stage_;
  }

 private:
  void add(const BlockCost& cost, double times = 1.0) {
    if (times == 1.0)
      stage_.cost += cost;
    else
      stage_.cost += scaled(cost, times);
    if (splits_backward(o_.pipeline.schedule))
      for (const ComputeSum& node : cost.nodes.wgrad) stage_.weight_gradient += times * node.time;
  }

  void add_pieces() {
    stage_.layers = content_.num_layers + content_.mtp_layers;
    stage_.loss = content_.loss;
    stage_.mtp = content_.mtp_layers > 0;
    visit_stage(context_, kinds_, content_, PieceOrder::kByKind, [&](const StagePiece& piece) {
      if (piece.layer != nullptr) note_kind(piece);
      if (piece.piece == Piece::kEmbedding) add(costs_.embedding);
      if (piece.piece == Piece::kHead) add(costs_.head);
      if (piece.piece == Piece::kMtp) add_mtp(piece);
      if (piece.decoder()) add_layers(piece);
    });
  }

  void note_kind(const StagePiece& piece) {
    stage_.moe_layers += piece.layer->mlp == MlpKind::kMoe ? piece.times : 0;
    if (piece.layer->mixer != kNoMixer) stage_.mixers |= 1u << static_cast<unsigned>(piece.layer->mixer);
    stage_.mlps |= 1u << static_cast<unsigned>(piece.layer->mlp);
  }

  /// Whether Megatron-FSDP's hooks run around each unit. FSDP2's host time was not measured.
  [[nodiscard]] bool hooked() const { return shards_gradients(o_.step.sharding) && o_.megatron_fsdp(); }

  void add_mtp(const StagePiece& piece) {  // Includes its layers.
    BlockCost depth = costs_.mtp;
    if (repeats_parameters(context_.model, piece)) depth.parameters = {};
    stage_.hidden += costs_.mtp_saving;
    add(hooked() ? as_unit(context_, depth, costs_.mtp_tensors) : depth);
  }

  void add_layers(const StagePiece& piece) {
    const BlockCost& layer = costs_.of(piece);
    const auto times = static_cast<double>(piece.times);
    if (hooked())
      add(as_unit(context_, layer, costs_.layer_tensors[static_cast<std::size_t>(piece.kind)]), times);
    else
      add(layer, times);
    layers_.forward += times * layer.forward.busy();
    layers_.backward += times * layer.backward.busy();
    stage_.hidden += times * costs_.saving_of(piece);
  }

  void add_parameters() {
    ParameterCount& parameters = stage_.cost.parameters;
    const ParameterCount& embedding = costs_.embedding.parameters;
    if (has_table(context_.model, content_)) {
      if (!content_.embedding) parameters += embedding;
      if (shares_table(context_) && !o_.layer.lora) parameters.shared_embedding = embedding.embedding;
    }
    parameters += buffer_padding(context_, kinds_, costs_, content_, parameters, false);
    const OpList collectives = data_parallel_ops(context_, parameters.trained(o_.layer));
    stage_.gather = communication_of(collectives.forward, context_.hardware);
    stage_.reduction = communication_of(collectives.backward, context_.hardware);
  }

  void add_memory_and_fsdp() {
    const std::vector<ChunkPart> parts = stage_parts(context_, kinds_, costs_, content_);
    if (!shards_gradients(o_.step.sharding)) {
      stage_.cost.memory = chunk_memory(parts);
      return;
    }
    const FsdpMemory memory = fsdp_memory(o_, parts, dropped_transpose_bytes(o_, context_.hardware));
    stage_.cost.memory = memory.memory;
    stage_.fsdp_buffers = memory.buffers;
    stage_.fsdp_whole = memory.whole;
    stage_.fsdp_between_steps = memory.between_steps;
    const OpList fsdp = fsdp_ops(context_, stage_.cost.parameters);
    const double in_units = 1.0 - memory.outside;
    hide(fsdp.forward, in_units / units(), 0.0, stage_.cost.forward);
    hide(fsdp.backward, in_units * memory.last_gather,
         memory.outside_gradients > 0.0 ? memory.outside_gradients : 1.0 / units(), stage_.cost.backward);
  }

  [[nodiscard]] double units() const { return static_cast<double>(std::max<std::int64_t>(1, stage_.layers)); }

  /// Hides gathers and reductions unit by unit under the compute of other units, except the given shares.
  void hide(const std::vector<Op>& ops, double gathers, double reductions, DirectionCost& direction) {
    const ComputeSum kernels = compute_of(ops, context_.hardware);
    stage_.cost.mix += kernels;
    direction.compute += kernels.time;
    direction.run(Seconds{}, kernels.time);
    const CommunicationSum comm = communication_of(ops, context_.hardware);
    Seconds exposed{};
    for (const Op& op : ops)
      if (is_communication(op))
        exposed += (op.phase == Phase::kWgrad ? reductions : gathers) * op_time(op, context_.hardware);
    const double starts = std::max(1.0, units() - 1.0);
    const Seconds waits = piecewise(context_, comm, exposed, stage_.cost.mix.stretch(direction.compute), starts);
    direction.comm += waits;
    direction.run(Seconds{}, waits);
  }

  void wait_for_offloaded_layers() {
    if (o_.pipeline.cpu_offloading_num_layers <= 0 || content_.num_layers <= 0) return;
    const std::int64_t offloaded = covered_layers(o_, content_.num_layers);
    const double layer = 1.0 / static_cast<double>(content_.num_layers), copy = 1.0 / static_cast<double>(offloaded);
    DirectionCost &forward = stage_.cost.forward, &backward = stage_.cost.backward;
    const LayerWaits waits = layer_waits(content_.num_layers, offloaded, layer * layers_.forward,
                                         layer * layers_.backward, copy * forward.copy, copy * backward.copy);
    forward.copy_wait = waits.forward;
    backward.copy_wait = waits.backward;
  }

  /// Transfers of activations to the next stage, and of gradients back. Beside a task, its rank receives another task's
  /// input and sends an earlier task's output, unless it waits for both.
  void add_transfers() {
    if (o_.pipeline.pp <= 1) return;
    const Op op = stage_transfer(context_);
    CommunicationSum transfer;
    transfer.add(op, op_time(op, context_.hardware), context_.hardware);
    stage_.send = transfer.time;
    if (blocks_on_transfers(o_)) return;
    const SharedPace pace = shared_pace(stage_.cost.mix, transfer, 0.0, context_.hardware);
    stage_.send = transfer.time / pace.communication;
    const double transfers = (content_.embedding ? 0.0 : 1.0) + (content_.loss ? 0.0 : 1.0);
    const auto lose = [&](DirectionCost& direction, Seconds& lost) {
      lost = side_by_side(direction.compute, transfers * transfer.time, pace).compute - direction.compute;
      direction.comm += lost;
      direction.run(Seconds{}, lost);
    };
    lose(stage_.cost.forward, stage_.forward_transfers);
    lose(stage_.cost.backward, stage_.backward_transfers);
  }

  void add_host() {
    // Nodes of a layer's schedule plan: attention, dispatch, experts and combine; without experts attention and MLP.
    const std::int64_t nodes = o_.pipeline.overlaps.ep_a2a ? 2 * stage_.layers + 2 * stage_.moe_layers : 0;
    const HostSpec& host = context_.hardware.host;
    const Seconds plan = host.task + static_cast<double>(nodes) * host.node;
    BlockCost& cost = stage_.cost;
    cost.pair.op(2.0 * plan, Seconds{});
    for (DirectionCost* direction : {&cost.forward, &cost.backward}) direction->run(plan, Seconds{});
    const bool blocks = blocks_on_transfers(o_) && o_.pipeline.pp > 1;
    const auto idle = [&](const IssueClock& forward, const IssueClock& backward) {
      return blocks ? blocking_idle(forward, backward, content_.embedding, content_.loss)
                    : host_idle(forward, backward);
    };
    stage_.host = beside_copies(cost, idle(cost.forward.clock, cost.backward.clock));
    stage_.saving = pair_saving(cost, stage_.host.total(), stage_.hidden);
    throttle(stage_, idle(cost.forward.sustained, cost.backward.sustained),
             std::max(0.0, context_.hardware.power.attention_stretch - 1.0));
  }

  const StepContext& context_;
  const ModelKinds& kinds_;
  const ModelCosts& costs_;
  const StageContent& content_;
  const TrainingOptions& o_;
  StageCost stage_;
  struct {
    Seconds forward{}, backward{};
  } layers_;  ///< Only the decoder layers.
};

}  // namespace

StageCost stage_cost(const StepContext& context, const ModelKinds& kinds, const ModelCosts& costs,
                     const StageContent& content) {
  return StageBuilder(context, kinds, costs, content).build();
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
