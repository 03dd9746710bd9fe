#include "costmodel/ops/block_cost.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "costmodel/ops/edit.h"

namespace foldwise::costmodel {
namespace {

bool is_exchange(const Op& op) {
  return is_communication(op) && (op.node == Node::kDispatch || op.node == Node::kCombine) &&
         op.module == Module::kDispatch;
}

bool is_product(const Op& op) {
  return std::holds_alternative<GemmWork>(op.work) || std::holds_alternative<AttentionWork>(op.work);
}

// Share of its clock that the power limit leaves to a product that never pauses.
double sustained_share(const BuildContext& context, const Op& op) {
  if (!is_product(op)) return 1.0;
  const auto* gemm = std::get_if<GemmWork>(&op.work);
  return gemm != nullptr ? sustained_clock(context.hardware, gemm->format, context.num_gpus)
                         : sustained_attention(context.hardware, context.num_gpus);
}

std::vector<ClockStep> clock_steps(const BuildContext& context, const std::vector<Op>& ops,
                                   const std::array<OverlapShares, kOverlaps>& shares) {
  const CudaGraph& graph = context.options.cuda_graph;
  std::vector<ClockStep> steps;
  steps.reserve(ops.size());
  // Attention and MLP of a dense layer are one graph (_te_cuda_graph_capture in transformer_layer.py, Core 0.16.1). Its
  // replay is counted with the attention.
  bool in_graph = !ops.empty() && graph.modules.contains(GraphModule::kAttn) &&
                  ops.front().captured_by.contains(GraphModule::kMlp) && captured(graph, ops.front());
  for (const Op& op : ops) {
    Seconds issue = issue_time(op, context.hardware);
    if (captured(graph, op)) {  // A callable of the framework replays a region; the step replays a full iteration.
      issue = in_graph || graph.impl == GraphImpl::kFullIteration ? Seconds{} : context.hardware.host.module;
      in_graph = true;
    } else {
      in_graph = false;
    }
    using Kind = ClockStep::Kind;
    if (const auto* wait = std::get_if<HostSyncWork>(&op.work); wait != nullptr) {
      const Kind kind = wait->to_host ? Kind::kSynchroniseByCopy : Kind::kSynchronise;
      steps.push_back(in_graph ? ClockStep{} : ClockStep{kind, issue, op_time(op, context.hardware)});
    } else if (const auto* copy = std::get_if<HostCopyWork>(&op.work); copy != nullptr) {
      steps.push_back(copy->to_host ? ClockStep{Kind::kCopyToHost, issue, op_time(op, context.hardware)}
                                    : ClockStep{Kind::kOp, issue});
    } else {
      const OverlapShares& share = shares[static_cast<std::size_t>(op.overlap)];
      const Seconds time = op_time(op, context.hardware);
      steps.push_back({.issue = issue,
                       .run = (is_communication(op) ? share.exposed : share.stretch) * time,
                       .throttled = (1.0 / sustained_share(context, op) - 1.0) * time});
    }
  }
  return steps;
}

void advance(IssueClock& clock, const ClockStep& step, Seconds run) {
  switch (step.kind) {
    case ClockStep::Kind::kOp:
      return clock.op(step.issue, run);
    case ClockStep::Kind::kCopyToHost:
      return clock.copy(step.issue, run);
    case ClockStep::Kind::kSynchronise:
    case ClockStep::Kind::kSynchroniseByCopy:
      clock.op(step.issue, Seconds{});
      clock.synchronise(run, step.kind == ClockStep::Kind::kSynchroniseByCopy);
  }
}

// Clocks of one direction's nodes. The exchange has its own stream.
using NodeClocks = std::array<IssueClock, kNodes>;

// Order: TransformerLayerSchedulePlan.run in megatron/core/models/common/model_chunk_schedule_plan.py.
void add_pair(const NodeClocks& forward, const NodeClocks& backward, BlockCost& cost) {
  const auto f = [&](Node node) { return forward[static_cast<std::size_t>(node)]; };
  const auto b = [&](Node node) { return backward[static_cast<std::size_t>(node)]; };
  cost.pair_begin = b(Node::kCombine);
  cost.pair = f(Node::kPreDispatch)
                  .then(b(Node::kMlp))
                  .then(f(Node::kDispatch))
                  .then(b(Node::kDispatch))
                  .then(f(Node::kMlp))
                  .then(f(Node::kCombine))
                  .then(b(Node::kPreDispatch));
}

// Adds one direction's ops: sums by stream, then hides communication under the compute of its own overlap class.
NodeClocks add_direction(const BuildContext& context, const std::vector<Op>& ops, bool backward, BlockCost& cost) {
  DirectionCost& sum = backward ? cost.backward : cost.forward;
  const std::array<OverlapShares, kOverlaps> shares = overlap_shares(context, ops);
  for (const Op& op : ops) {
    const Seconds time = op_time(op, context.hardware);
    if (is_product(op)) {
      sum.products += time;
      if (std::holds_alternative<AttentionWork>(op.work)) sum.attention += time;
      sum.unclocked += (1.0 - sustained_share(context, op)) * time;
    }
    const OverlapShares& share = shares[static_cast<std::size_t>(op.overlap)];
    if (std::holds_alternative<HostSyncWork>(op.work)) continue;
    if (std::holds_alternative<HostCopyWork>(op.work)) {
      sum.copy += time;
    } else if (is_communication(op)) {
      sum.comm += share.exposed * time;
      if (is_exchange(op) && op.phase != Phase::kRecompute) {
        NodeTimes& n = cost.nodes;
        (op.node == Node::kDispatch ? (backward ? n.dispatch_backward : n.dispatch_forward)
                                    : (backward ? n.combine_backward : n.combine_forward))
            .add(op, time, context.hardware);
      }
    } else {
      sum.compute += share.stretch * time;
      if (!is_product(op)) sum.warm += (1.0 - context.hardware.power.memory_pause) * share.stretch * time;
      cost.mix.add(op, time);
      NodeTimes& n = cost.nodes;
      (!backward                   ? n.forward
       : op.phase == Phase::kWgrad ? n.wgrad
                                   : n.dgrad)[static_cast<std::size_t>(op.node)]
          .add(op, time);
      if (op.phase != Phase::kRecompute) cost.flops += op_flops(op);
    }
  }
  NodeClocks nodes;
  const std::vector<ClockStep> steps = clock_steps(context, ops, shares);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    advance(sum.clock, steps[i], steps[i].run);
    advance(sum.sustained, steps[i], steps[i].run + steps[i].throttled);
    advance(nodes[static_cast<std::size_t>(ops[i].node)], steps[i], is_exchange(ops[i]) ? Seconds{} : steps[i].run);
  }
  return nodes;
}

Bytes distinct_weight_gradients(const OpList& list) {
  std::vector<GradientShape> shapes;
  Bytes sum{};
  for (const Op& op : list.backward) {
    const auto shape = dummy_gradient(op);
    if (!shape || std::find(shapes.begin(), shapes.end(), *shape) != shapes.end()) continue;
    shapes.push_back(*shape);
    sum += bf16_bytes(*shape);
  }
  return sum;
}

}  // namespace

std::optional<GradientShape> dummy_gradient(const Op& op) {
  const auto* gemm = std::get_if<GemmWork>(&op.work);
  if (gemm == nullptr || !op.dummy_gradient) return std::nullopt;
  return GradientShape{gemm->m, gemm->n};
}

Bytes bf16_bytes(const GradientShape& shape) { return Bytes{2.0 * shape.first * static_cast<double>(shape.second)}; }

HostIdle host_idle(const IssueClock& forward, const IssueClock& backward) {
  const IssueClock both = forward.then(backward);
  const Seconds idle = std::max(Seconds{}, both.period() - both.run());
  // Forward falls behind first. The rest is backward's.
  const Seconds first = std::min(idle, std::max(Seconds{}, forward.elapsed() - forward.run()));
  return {first, idle - first};
}

HostIdle beside_copies(const BlockCost& cost, const HostIdle& idle) {
  return {std::max(Seconds{}, idle.forward - cost.forward.exposed_copy()),
          std::max(Seconds{}, idle.backward - cost.backward.exposed_copy())};
}

Seconds pair_saving(const BlockCost& cost, Seconds idle, Seconds hidden) {
  if (hidden <= Seconds{}) return {};
  const DirectionCost& f = cost.forward;
  const DirectionCost& b = cost.backward;
  const Seconds device = f.compute + f.comm + b.compute + b.comm;
  const Seconds pair = std::max({cost.pair.period(), device - hidden, f.copy, b.copy});
  return std::max(Seconds{}, f.device() + b.device() + idle - pair);
}

std::vector<ClockStep> clock_steps(const BuildContext& context, const std::vector<Op>& ops) {
  return clock_steps(context, ops, overlap_shares(context, ops));
}

bool captured(const CudaGraph& graph, const Op& op) {
  if (graph.impl == GraphImpl::kNone) return false;
  if (graph.impl == GraphImpl::kFullIteration || graph.modules.empty()) return true;
  return op.captured_by.intersects(graph.modules);
}

NodeTimes& NodeTimes::operator+=(const NodeTimes& other) {
  for (std::size_t i = 0; i < kNodes; ++i) {
    forward[i] += other.forward[i];
    dgrad[i] += other.dgrad[i];
    wgrad[i] += other.wgrad[i];
  }
  dispatch_forward += other.dispatch_forward;
  combine_forward += other.combine_forward;
  dispatch_backward += other.dispatch_backward;
  combine_backward += other.combine_backward;
  return *this;
}

// `other` follows in forward order.
BlockCost& BlockCost::operator+=(const BlockCost& other) {
  const auto add = [](DirectionCost& sum, const DirectionCost& more) {
    sum.compute += more.compute;
    sum.comm += more.comm;
    sum.copy += more.copy;
    sum.products += more.products;
    sum.attention += more.attention;
    sum.unclocked += more.unclocked;
    sum.warm += more.warm;
  };
  add(forward, other.forward);
  add(backward, other.backward);
  forward.clock = forward.clock.then(other.forward.clock);
  backward.clock = other.backward.clock.then(backward.clock);
  forward.sustained = forward.sustained.then(other.forward.sustained);
  backward.sustained = other.backward.sustained.then(backward.sustained);
  pair = pair.then(other.pair_begin).then(other.pair);
  nodes += other.nodes;
  memory += other.memory;
  rematerialised += other.rematerialised;
  captured += other.captured;
  until_dispatched += other.until_dispatched;
  cache += other.cache;
  setup_cache += other.setup_cache;
  host_bytes += other.host_bytes;
  offloaded += other.offloaded;
  parameters += other.parameters;
  mix += other.mix;
  flops += other.flops;
  return *this;
}

BitSet<RecomputeModule> recomputed_modules(const LayerOptions& options) {
  switch (options.recompute.granularity) {
    case RecomputeGranularity::kNone:
      return {};
    case RecomputeGranularity::kSelective:
      return options.recompute.modules;
    case RecomputeGranularity::kFull:
      return {RecomputeModule::kFull};
  }
  return {};
}

BlockCost block_cost(const BuildContext& context, OpList list) {
  BlockCost cost;
  cost.parameters = parameters(list);
  const RecomputeEdit recomputed = apply_recompute(list, recomputed_modules(context.options));
  const OffloadEdit offloaded = apply_offload(list, context.options.offload_modules, context.layout().world());
  const NodeClocks forward = add_direction(context, list.forward, false, cost);
  add_pair(forward, add_direction(context, list.backward, true, cost), cost);
  const CudaGraph& graph = context.options.cuda_graph;
  const auto in_pool = [&](const Op& op) { return captured(graph, op); };
  cost.memory = graph.impl == GraphImpl::kTransformerEngine ? walk(list, in_pool) : walk(list);
  if (graph.impl == GraphImpl::kTransformerEngine)
    for (const Op& op : list.forward)
      for (const Tensor& tensor : op.keeps)
        if (in_pool(op)) {
          cost.captured += tensor.bytes;
          cost.cache += tensor.rests;
        }
  for (const Op& op : list.forward) {
    cost.cache += op.cache;
    cost.setup_cache += op.setup_cache;
    if (op.node != Node::kPreDispatch && op.node != Node::kDispatch) continue;
    cost.until_dispatched += op.holds;
    for (const Tensor& tensor : op.keeps) cost.until_dispatched += tensor.bytes;
  }
  cost.weight_gradients = distinct_weight_gradients(list);
  cost.rematerialised = recomputed.rematerialised;
  cost.host_bytes = offloaded.host_bytes;
  cost.offloaded = offloaded.offloaded;
  return cost;
}

std::array<OverlapShares, kOverlaps> overlap_shares(const BuildContext& context, const std::vector<Op>& ops) {
  std::array<ComputeSum, kOverlaps> compute{};
  std::array<CommunicationSum, kOverlaps> communication{};
  std::array<double, kOverlaps> starts{};
  for (const Op& op : ops) {
    const auto i = static_cast<std::size_t>(op.overlap);
    if (op.overlap == Overlap::kNone) continue;
    if (is_communication(op)) {
      communication[i].add(op, op_time(op, context.hardware), context.hardware);
      // User buffers and ring steps are launched before the kernels beside them, so they do not wait.
      if (op.overlap == Overlap::kSharedExpert) starts[i] += 1.0;
    } else if (!std::holds_alternative<HostSyncWork>(op.work) && !std::holds_alternative<HostCopyWork>(op.work)) {
      compute[i].add(op, op_time(op, context.hardware));
    }
  }
  std::array<OverlapShares, kOverlaps> shares{};
  for (std::size_t i = 0; i < kOverlaps; ++i) {
    if (communication[i].time <= Seconds{}) continue;
    const SideBySide both = side_by_side(compute[i], communication[i], starts[i], context.hardware);
    shares[i].exposed = (both.exposed / communication[i].time).to<double>();
    if (compute[i].time > Seconds{}) shares[i].stretch = (both.compute / compute[i].time).to<double>();
  }
  return shares;
}

Seconds ep_overlap_saving(const NodeTimes& n, bool delay_wgrad, const Hardware& hardware) {
  const auto pre = static_cast<std::size_t>(Node::kPreDispatch), mlp = static_cast<std::size_t>(Node::kMlp),
             combine = static_cast<std::size_t>(Node::kCombine);
  // Windows in the host's issue order (core/models/common/model_chunk_schedule_plan.py): combine backward beside the
  // other micro-batch's attention forward; dispatch forward beside the experts' dgrad and wgrad; dispatch backward
  // beside the experts' forward; combine forward beside the attention's backward. A delayed wgrad is issued once
  // dispatch backward may begin. It runs beside that, except for the part that runs while dispatch forward still
  // continues.
  const ComputeSum& attention_forward = n.forward[pre];
  ComputeSum experts_dgrad = n.dgrad[mlp], experts_forward = n.forward[mlp], attention_backward = n.dgrad[pre];
  const ComputeSum& wgrad = n.wgrad[mlp];
  Seconds early = wgrad.time;
  if (delay_wgrad) {
    ComputeSum both = experts_dgrad;
    both += wgrad;
    const SharedPace pace = shared_pace(both, n.dispatch_forward, 1.0, hardware);
    const Seconds needed = pace.wait + pace.compute / pace.communication * n.dispatch_forward.time;
    early = std::clamp(needed - experts_dgrad.time, Seconds{}, wgrad.time);
  }
  experts_dgrad += wgrad.stretch(early);
  experts_forward += wgrad.stretch(wgrad.time - early);
  attention_backward += n.wgrad[pre];
  attention_backward += n.dgrad[combine];
  const auto saved = [&](const CommunicationSum& exchange, const ComputeSum& window) {
    const Seconds apart = window.time + exchange.time;
    return std::max(Seconds{}, apart - side_by_side(window, exchange, 1.0, hardware).elapsed());
  };
  return saved(n.combine_backward, attention_forward) + saved(n.dispatch_forward, experts_dgrad) +
         saved(n.dispatch_backward, experts_forward) + saved(n.combine_forward, attention_backward);
}

}  // namespace foldwise::costmodel
