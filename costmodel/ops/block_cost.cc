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

// Adds one direction's ops: sums by stream, then hides communication under the compute of its own overlap class.
void add_direction(const BuildContext& context, const std::vector<Op>& ops, bool backward, BlockCost& cost) {
  DirectionCost& sum = backward ? cost.backward : cost.forward;
  std::array<Seconds, kOverlaps> class_compute{}, class_comm{};
  for (const Op& op : ops) {
    const Seconds time = op_time(op, context.hardware);
    const auto overlap = static_cast<std::size_t>(op.overlap);
    if (!captured(context.options.cuda_graph, op))
      sum.issue += static_cast<double>(op.launches) * context.hardware.host.launch;
    if (std::holds_alternative<HostSyncWork>(op.work)) {
      if (!captured(context.options.cuda_graph, op)) sum.sync += time;
    } else if (std::holds_alternative<HostCopyWork>(op.work)) {
      sum.copy += time;
    } else if (is_communication(op)) {
      class_comm[overlap] += time;
      if (is_exchange(op) && op.phase != Phase::kRecompute) {
        NodeTimes& n = cost.nodes;
        (op.node == Node::kDispatch ? (backward ? n.dispatch_backward : n.dispatch_forward)
                                    : (backward ? n.combine_backward : n.combine_forward)) += time;
      }
    } else {
      class_compute[overlap] += time;
      NodeTimes& n = cost.nodes;
      (!backward                   ? n.forward
       : op.phase == Phase::kWgrad ? n.wgrad
                                   : n.dgrad)[static_cast<std::size_t>(op.node)] += time;
      if (op.phase != Phase::kRecompute) cost.flops += op_flops(op);
    }
  }
  for (std::size_t i = 0; i < kOverlaps; ++i) {
    sum.compute += class_compute[i];
    const bool hides = static_cast<Overlap>(i) != Overlap::kNone;
    const Seconds exposed = hides ? std::max(Seconds{}, class_comm[i] - class_compute[i]) : class_comm[i];
    sum.comm += exposed;
  }
}

// Of Transformer Engine's linears; the router's weight gradient is an ordinary tensor.
Bytes distinct_weight_gradients(const OpList& list) {
  std::vector<std::pair<double, std::int64_t>> shapes;
  Bytes sum{};
  for (const Op& op : list.backward) {
    const auto* gemm = std::get_if<GemmWork>(&op.work);
    if (gemm == nullptr || op.phase != Phase::kWgrad || op.name == "router") continue;
    const std::pair shape{gemm->m, gemm->n};
    if (std::find(shapes.begin(), shapes.end(), shape) != shapes.end()) continue;
    shapes.push_back(shape);
    sum += Bytes{2.0 * gemm->m * static_cast<double>(gemm->n)};
  }
  return sum;
}

}  // namespace

bool captured(const CudaGraph& graph, const Op& op) {
  if (graph.impl == GraphImpl::kNone) return false;
  if (graph.impl == GraphImpl::kFullIteration || graph.modules.empty()) return true;
  return op.captured_by.intersects(graph.modules);
}

DirectionCost& DirectionCost::operator+=(const DirectionCost& other) {
  compute += other.compute;
  comm += other.comm;
  copy += other.copy;
  sync += other.sync;
  issue += other.issue;
  return *this;
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

// In sequence: `other` runs after this one in forward.
BlockCost& BlockCost::operator+=(const BlockCost& other) {
  forward += other.forward;
  backward += other.backward;
  nodes += other.nodes;
  memory += other.memory;
  rematerialised += other.rematerialised;
  captured += other.captured;
  until_dispatched += other.until_dispatched;
  delayed += other.delayed;
  cache += other.cache;
  setup_cache += other.setup_cache;
  host_bytes += other.host_bytes;
  parameters += other.parameters;
  flops += other.flops;
  return *this;
}

BitSet<RecomputeModule> recomputed_modules(const TrainingOptions& options) {
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

BlockCost block_cost(const BuildContext& context, OpList list, BitSet<RecomputeModule> recompute) {
  BlockCost cost;
  cost.parameters = parameters(list);
  const RecomputeEdit recomputed = apply_recompute(list, recompute);
  const OffloadEdit offloaded = apply_offload(list, context.options.offload.modules);
  add_direction(context, list.forward, false, cost);
  add_direction(context, list.backward, true, cost);
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
  for (const Op& op : list.backward) {
    const auto* gemm = std::get_if<GemmWork>(&op.work);
    if (gemm == nullptr || op.phase != Phase::kWgrad || op.module != Module::kExperts) continue;
    const auto rows = static_cast<double>(gemm->groups * gemm->k);
    cost.delayed += Bytes{
        rows * (2.0 * gemm->m + saved_input_bytes(context.options.precision, true) * static_cast<double>(gemm->n))};
  }
  cost.weight_gradients = distinct_weight_gradients(list);
  cost.rematerialised = recomputed.rematerialised;
  cost.host_bytes = offloaded.host_bytes;
  return cost;
}

double exchange_sm_share(const TrainingOptions& options, const Hardware& hardware) {
  // DeepEP: default of --moe-flex-dispatcher-num-sms. HybridEP: moe_hybridep_num_sms of the published recipes. NCCL:
  // its send/receive channels, one SM each (32 at most; 16 is what eight-GPU all-to-alls use,
  // docs/measuring.md#collectives).
  const double sms = options.dispatcher == Dispatcher::kDeepEp     ? 20.0
                     : options.dispatcher == Dispatcher::kHybridEp ? 32.0
                                                                   : 16.0;
  return sms / static_cast<double>(hardware.sms);
}

Seconds ep_overlap_saving(const NodeTimes& n, bool delay_wgrad, double sm_share) {
  const auto pre = static_cast<std::size_t>(Node::kPreDispatch), mlp = static_cast<std::size_t>(Node::kMlp),
             combine = static_cast<std::size_t>(Node::kCombine);
  // Windows in the host's issue order (core/models/common/model_chunk_schedule_plan.py): combine backward beside the
  // other micro-batch's attention forward; dispatch forward beside the experts' dgrad; dispatch backward beside the
  // experts' wgrad (when delayed) and forward; combine forward beside the attention's backward.
  const Seconds attention_forward = n.forward[pre];
  const Seconds experts_dgrad = n.dgrad[mlp] + (delay_wgrad ? Seconds{} : n.wgrad[mlp]);
  const Seconds experts_forward = n.forward[mlp] + (delay_wgrad ? n.wgrad[mlp] : Seconds{});
  const Seconds attention_backward = n.dgrad[pre] + n.wgrad[pre] + n.dgrad[combine];
  const Seconds hidden = std::min(n.combine_backward, attention_forward) + std::min(n.dispatch_forward, experts_dgrad) +
                         std::min(n.dispatch_backward, experts_forward) +
                         std::min(n.combine_forward, attention_backward);
  return hidden * (1.0 - sm_share);
}

}  // namespace foldwise::costmodel
