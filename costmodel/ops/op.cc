#include "costmodel/ops/op.h"

#include <cmath>
#include <numeric>

namespace foldwise::costmodel {
namespace {

template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

constexpr auto kCollectiveNames = names_of<CollectiveKind>("all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                                           "send_recv", "dispatch", "combine", "broadcast");

GemmPhase gemm_phase(Phase phase) {
  return phase == Phase::kDgrad ? GemmPhase::kDgrad : phase == Phase::kWgrad ? GemmPhase::kWgrad : GemmPhase::kForward;
}

}  // namespace

const ExchangeKernel& exchange_kernel(const Network& network, Dispatcher dispatcher) {
  return network.exchange.at(static_cast<std::size_t>(dispatcher));
}

std::string_view to_string(Module module) {
  constexpr auto kNames = names_of<Module>("embedding", "attention", "mlp", "router", "dispatch", "experts",
                                           "shared_experts", "mtp", "head", "loss", "optimizer", "gradients");
  return kNames.at(static_cast<std::size_t>(module));
}

Bytes transient_bytes(const Op& op) { return std::accumulate(op.transient.begin(), op.transient.end(), Bytes{}); }

Seconds op_time(const Op& op, const Hardware& hw) {
  return std::visit(
      Overloaded{
          [&](const GemmWork& w) {
            const auto rows = static_cast<std::int64_t>(std::ceil(w.m));
            if (rows <= 0) return Seconds{};
            const GemmPhase phase = gemm_phase(op.phase);
            const auto time = [&](std::int64_t m, std::int64_t groups) {
              return gemm_time(hw, w.format, phase, m, w.n, w.k, groups, w.accumulate_fp32,
                               w.grouping == Grouping::kOneKernel);
            };
            if (w.grouping != Grouping::kOneByOne) return time(rows, w.groups);
            // Experts have different numbers of rows. On average a quarter tile more is computed, as for groups
            // (gemm_time).
            constexpr std::int64_t kTileRows = 128;
            const Seconds one =
                phase == GemmPhase::kWgrad ? time(rows, 1) : 0.75 * time(rows, 1) + 0.25 * time(rows + kTileRows, 1);
            return static_cast<double>(w.groups) * one;
          },
          [&](const AttentionWork& w) {
            return w.stretch * attention_time(hw, w.head_dim, w.flops, w.query_rows, w.backward, w.fp8, w.window);
          },
          [&](const MemoryWork& w) {
            const auto kernels = static_cast<double>(w.kernels);
            return kernels * memory_time(hw, w.op, w.bytes / kernels);
          },
          [&](const SoftwareWork& w) { return software_time(hw, w.kernel, w.elements, w.groups); },
          [&](const CollectiveWork& w) { return collective_time(hw.network, w.kind, w.bytes, w.shape); },
          [&](const ExchangeWork& w) {
            return exchange_time(hw.network, exchange_kernel(hw.network, w.dispatcher), w.kind, w.volume, w.shape);
          },
          [&](const HostCopyWork& w) { return hw.host.link_latency + w.bytes / hw.host.link(w.to_host, w.gpus); },
          [&](const HostUpdateWork& w) { return w.elements * hw.host.update; },
          [&](const HostSyncWork& w) { return hw.host.sync + (w.micro_batch ? hw.host.micro_batch : Seconds{}); },
      },
      op.work);
}

Seconds issue_time(const Op& op, const Hardware& hw) {
  const Seconds launch = is_communication(op) ? hw.host.collective : op.eager ? hw.host.eager_op : hw.host.launch;
  // A grouped product of Transformer Engine visits one weight tensor per expert, in forward and for the weights'
  // gradients.
  const auto* gemm = op.eager ? nullptr : std::get_if<GemmWork>(&op.work);
  const bool walks =
      gemm != nullptr && gemm->groups > 1 && gemm->grouping != Grouping::kOneByOne && op.phase != Phase::kDgrad;
  // A quantizing linear counts once per direction. With experts run one by one there are as many as experts.
  const bool quantizes = gemm != nullptr && op.phase != Phase::kWgrad && gemm->format != MathFormat::kBf16 &&
                         gemm->format != MathFormat::kFp32;
  const std::int64_t linears = !quantizes ? 0 : gemm->grouping == Grouping::kOneByOne ? gemm->groups : 1;
  const auto* memory = std::get_if<MemoryWork>(&op.work);
  const bool measures = memory != nullptr && memory->op == MemoryOp::kAmax;  // For the scale of current scaling.
  const bool backward = op.phase == Phase::kDgrad || op.phase == Phase::kWgrad;
  return (backward ? hw.host.backward_share : 1.0) *
         (static_cast<double>(op.launches) * launch + static_cast<double>(op.modules) * hw.host.module +
          static_cast<double>(walks ? gemm->groups : 0) * hw.host.expert_weight +
          static_cast<double>(op.quantised) * (measures ? hw.host.amax : hw.host.quantize) +
          static_cast<double>(linears) * hw.host.quantized_linear +
          static_cast<double>(op.checkpoints) * hw.host.checkpoint +
          static_cast<double>(op.cp_attentions) * hw.host.cp_attention);
}

std::vector<MemoryWork> attention_backward_passes(double query_rows, double key_rows, double qk_dim, double v_dim) {
  std::vector<MemoryWork> passes{{MemoryOp::kStridedCopy, Bytes{4.0 * query_rows * v_dim}},
                                 {MemoryOp::kElementwise, Bytes{6.0 * query_rows * qk_dim}}};
  if (key_rows < query_rows) passes.push_back({MemoryOp::kElementwise, Bytes{4.0 * (query_rows + key_rows) * qk_dim}});
  return passes;
}

Flops op_flops(const Op& op) {
  if (const auto* gemm = std::get_if<GemmWork>(&op.work))
    return Flops{2.0 * gemm->m * static_cast<double>(gemm->groups) * static_cast<double>(gemm->n) *
                 static_cast<double>(gemm->k)};
  if (const auto* attention = std::get_if<AttentionWork>(&op.work)) return attention->flops;
  return Flops{};
}

bool is_communication(const Op& op) {
  return std::holds_alternative<CollectiveWork>(op.work) || std::holds_alternative<ExchangeWork>(op.work);
}

LinkBytes link_bytes(const Op& op) {
  if (const auto* w = std::get_if<CollectiveWork>(&op.work)) return link_bytes(w->kind, w->bytes, w->shape);
  if (const auto* w = std::get_if<ExchangeWork>(&op.work)) return link_bytes(w->volume, w->shape);
  return {};
}

Group communication_group(const Op& op) {
  if (const auto* w = std::get_if<CollectiveWork>(&op.work)) return w->group;
  if (const auto* w = std::get_if<ExchangeWork>(&op.work)) return w->group;
  return Group::kNone;
}

std::string_view kind_name(const Op& op) {
  return std::visit(Overloaded{
                        [](const GemmWork& w) { return std::string_view{w.groups > 1 ? "grouped_gemm" : "gemm"}; },
                        [](const AttentionWork&) { return std::string_view{"attention"}; },
                        [](const MemoryWork& w) {
                          return std::string_view{
                              w.op == MemoryOp::kQuantize || w.op == MemoryOp::kAmax ? "quantize" : "memory_bound"};
                        },
                        [](const SoftwareWork&) { return std::string_view{"memory_bound"}; },
                        [](const CollectiveWork& w) { return kCollectiveNames.at(static_cast<std::size_t>(w.kind)); },
                        [](const ExchangeWork& w) { return kCollectiveNames.at(static_cast<std::size_t>(w.kind)); },
                        [](const HostCopyWork&) { return std::string_view{"host_copy"}; },
                        [](const HostUpdateWork&) { return std::string_view{"host_update"}; },
                        [](const HostSyncWork&) { return std::string_view{"host_sync"}; },
                    },
                    op.work);
}

std::string_view group_name(const Op& op) { return to_string(communication_group(op)); }

}  // namespace foldwise::costmodel
