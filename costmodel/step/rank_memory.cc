#include "costmodel/step/rank_memory.h"

#include <algorithm>
#include <numeric>

#include "costmodel/ops/dispatcher.h"
#include "costmodel/parallel/process_groups.h"

namespace foldwise::costmodel {
namespace {

struct Caches {
  Bytes setup{};          ///< After set-up.
  Bytes always{};         ///< From the first step on.
  Bytes between_steps{};  ///< Only between steps, in addition: a step's walk counts it itself, or it is gone.
  Bytes rests{};          ///< Part of `between_steps` that recomputation and offloading change.
};

// Bytes that a rank holds besides its static state. Source: docs/memory.md#rest.
Caches rank_caches(const StepContext& context, const Composition& c, std::int64_t rank) {
  const TrainingOptions& o = context.options;
  const Software& software = o.layer.software;
  const RankShape shape = rank_shape(context.model, o.layer);
  const auto h = static_cast<double>(context.model.hidden_size), s = static_cast<double>(o.layer.seq_len);
  const double ta = shape.attention_tokens, th = shape.tokens * h;
  Caches caches;
  double leaves = 0.0, kept_leaves = 0.0, layers = 0.0;
  bool loss = false, moe = false, mtp = false;
  std::uint32_t mixers = 0, mlps = 0;
  for (auto i = static_cast<std::size_t>(rank); i < c.num_stages(); i += static_cast<std::size_t>(o.pipeline.pp)) {
    const StageCost& stage = c.stage(i);
    caches.setup += stage.cost.setup_cache;
    caches.always += stage.cost.cache;
    caches.rests += stage.cost.memory.rests;
    loss = loss || stage.loss;
    mtp = mtp || stage.mtp;
    mixers |= stage.mixers;
    mlps |= stage.mlps;
    moe = moe || stage.moe_layers > 0;
    layers += static_cast<double>(stage.layers);
    // The leaf behind the held probabilities and its gradient: one for each chunk that receives its input; under EP
    // overlap one for each MoE layer. Recomputed layers count their own.
    if (o.pipeline.overlaps.ep_a2a)
      leaves += static_cast<double>(stage.moe_layers);
    else if (i > 0 && stage.moe_layers > 0 && o.layer.recompute.granularity != RecomputeGranularity::kFull)
      kept_leaves += 1.0;
  }
  caches.rests += Bytes{4.0 * th * kept_leaves};
  caches.between_steps = caches.rests + Bytes{4.0 * th * leaves};
  if (o.layer.cuda_graph.impl == GraphImpl::kTransformerEngine) {
    // Static inputs of each graph: hidden states and, with attention, a boolean mask, even a causal one. All graphs
    // share one set of output gradients (hidden states; with the router also norm output and FP32 scores) and one input
    // gradient.
    const CudaGraph& graph = o.layer.cuda_graph;
    const bool whole = graph.modules.empty(), router = whole || graph.modules.contains(GraphModule::kMoeRouter);
    const double mask = whole || graph.modules.contains(GraphModule::kAttn)
                            ? static_cast<double>(o.layer.micro_batch) * s * s / static_cast<double>(o.layer.cp)
                            : 0.0;
    const double in_flight = o.pipeline.pp == 1 ? 1.0
                                                : static_cast<double>(peak_in_flight(c.times.shape, rank)) /
                                                      static_cast<double>(c.times.shape.vpp);
    const double shared =
        4.0 * th + (router ? 2.0 * th + 4.0 * shape.tokens * static_cast<double>(context.model.moe.experts) : 0.0);
    caches.always +=
        Bytes{layers * in_flight * (2.0 * th + mask) + shared} + 2.0 * context.hardware.overheads.workspace;
  }
  // cuBLAS workspaces: one for torch's forward thread, one for autograd's, one of TE, and four of TE's grouped GEMM.
  const double handles = 2.0 + (software.transformer_engine ? (moe ? 5.0 : 1.0) : 0.0);
  caches.always += handles * context.hardware.overheads.workspace;
  for (std::size_t kind = 0; kind < c.dummies.mixer.size(); ++kind)
    if ((mixers >> kind & 1u) != 0) caches.always += c.dummies.mixer[kind];
  for (std::size_t kind = 0; kind < c.dummies.mlp.size(); ++kind)
    if ((mlps >> kind & 1u) != 0) caches.always += c.dummies.mlp[kind];
  if (mtp) caches.always += c.dummies.mtp;
  if (loss) caches.always += c.dummies.head;
  // Megatron's own column-parallel linears gather their input for weight gradients into one buffer. These are the head,
  // and all of them without TE.
  if (o.layer.splits_sequence() && (loss || !software.transformer_engine)) caches.always += Bytes{2.0 * ta * h};
  if (dispatcher_spec(o.layer.dispatcher).gathers_all && moe)
    caches.always += Bytes{2.0 * th * static_cast<double>(o.layer.ep * o.layer.etp)};
  if (!software.fused_attention)  // One score matrix that all layers share.
    caches.always +=
        Bytes{2.0 * static_cast<double>(o.layer.micro_batch) * static_cast<double>(context.model.query_heads()) /
              static_cast<double>(o.layer.tp) * s * s / static_cast<double>(o.layer.cp)};
  return caches;
}

// DeepEP and HybridEP make their buffers in the first MoE layer that runs, and all layers share them.
Bytes dispatcher_buffers(const StepContext& context, const Composition& c, std::int64_t rank) {
  const TrainingOptions& o = context.options;
  const MoeSpec& moe = context.model.moe;
  for (auto i = static_cast<std::size_t>(rank); i < c.num_stages(); i += static_cast<std::size_t>(o.pipeline.pp))
    if (c.stage(i).moe_layers > 0)
      return exchange_buffers(
          o.layer.dispatcher,
          {.group = group_shape(o.layout(), Group::kEtpEp, context.hardware.network),
           .tokens = rank_shape(context.model, o.layer).tokens,
           .hidden = static_cast<double>(moe.latent_size > 0 ? moe.latent_size : context.model.hidden_size),
           .experts = moe.experts,
           .kernel_sms = exchange_kernel(context.hardware.network, o.layer.dispatcher).sms});
  return {};
}

// NCCL's buffers, in terms that explain the device memory beside torch's of 63 runs within 0.09 GiB, rms
// (benchmarks/accuracy/started.py --outside): one communicator each for data parallelism, TP, CP and PP, two for EP,
// and buffers for each rank that a rank sends to. NCCL divides its channels among many such ranks, so that those beyond
// a node of eight are taken to need none.
Bytes nccl_buffers(const StepContext& context) {
  constexpr std::int64_t kMostPeers = 7;
  const Layout l = context.options.layout();
  const auto peers = [&](std::int64_t ranks) { return static_cast<double>(std::min(ranks - 1, kMostPeers)); };
  const double communicators = (l.world() > 1 ? 1.0 : 0.0) + (l.tp > 1 ? 1.0 : 0.0) + (l.cp > 1 ? 1.0 : 0.0) +
                               (l.pp > 1 ? 1.0 : 0.0) + (l.ep > 1 ? 2.0 : 0.0);
  const double sent_to = peers(l.cp) + peers(std::min<std::int64_t>(l.pp, 2)) + peers(l.ep);
  return communicators * context.hardware.overheads.communicator + sent_to * context.hardware.overheads.peer;
}

// A buffer of the hidden states of a micro-batch for each product with TP overlap: eight for what is gathered, in the
// products' precision, and four for what is reduced and scattered. The names of 2.7 to 2.17 are the same, and four runs
// on two GPUs have 12.0 of BF16. Source: initialize_ub in transformer_engine/pytorch/module/base.py.
Bytes user_buffers(const StepContext& context) {
  constexpr double kGathered = 8.0, kScattered = 4.0, kFp8 = 1.0, kBf16 = 2.0;
  const LayerOptions& o = context.options.layer;
  if (!o.overlaps.tp || o.tp == 1) return {};
  const double bytes = kGathered * (is_fp8(o.precision) ? kFp8 : kBf16) + kScattered * kBf16;
  return Bytes{bytes * rank_shape(context.model, o).attention_tokens * static_cast<double>(context.model.hidden_size)};
}

Bytes over_chunks(const Composition& c, std::int64_t rank, Bytes StageCost::*of_chunk) {
  Bytes bytes{};
  for (auto i = static_cast<std::size_t>(rank); i < c.num_stages(); i += static_cast<std::size_t>(c.times.shape.pp))
    bytes += c.stage(i).*of_chunk;
  return bytes;
}

// All memory except the activations of chunks in flight.
StageMemory fixed_memory(const StepContext& context, const Composition& c, std::int64_t rank) {
  const TrainingOptions& o = context.options;
  const StaticBytes fixed = static_bytes(context, c.parameters[static_cast<std::size_t>(rank)]);
  StageMemory memory;
  memory.parameters = fixed.parameters;
  memory.gradients = fixed.gradients;
  memory.optimizer = fixed.optimizer;
  memory.host = fixed.host;
  memory.returning = fixed.returning;
  const RankShape shape = rank_shape(context.model, o.layer);
  const Bytes boundary{2.0 * shape.tokens * static_cast<double>(context.model.hidden_size)};
  // Tensors of the pipeline exchange. 1F1B holds one on every rank but the first. Interleaving with overlapped P2P
  // holds about four, one on the first rank. Source: docs/memory.md#pipeline.
  if (o.pipeline.pp > 1)
    memory.buffers += (o.pipeline.vpp > 1 ? (rank == 0 ? 1.0 : 4.0) : (rank == 0 ? 0.0 : 1.0)) * boundary;
  const Caches caches = rank_caches(context, c, rank);
  memory.lasting_buffers = caches.always + fsdp_whole(c, rank);
  memory.buffers += memory.lasting_buffers;
  memory.allocated_after_setup = fixed.parameters - fixed.low_precision_copies + fixed.gradients +
                                 fixed.setup_optimizer + fixed.setup_transposes + caches.setup;
  memory.rests = caches.rests;
  const Bytes rest = fixed.parameters + fixed.gradients + fixed.optimizer + caches.always + caches.between_steps;
  memory.allocated_between_steps = rest + fixed.gradient_copies + over_chunks(c, rank, &StageCost::fsdp_between_steps);
  memory.allocated_in_optimizer =
      rest + fixed.step_extra + (o.step.fsdp_head_gathers_ahead ? Bytes{} : fsdp_whole(c, rank));
  memory.allocated_beside_chunks = memory.allocated();
  const MemoryOverheads& beside = context.hardware.overheads;
  memory.cuda_context = beside.context + (context.model.has_moe() ? beside.moe_kernels : Bytes{});
  memory.nccl = nccl_buffers(context);
  memory.dispatcher_buffers = dispatcher_buffers(context, c, rank);
  memory.user_buffers = user_buffers(context);
  memory.holes = fixed.holes;
  return memory;
}

void add_activations(const StepContext& context, Bytes activations, StageMemory& memory) {
  if (memory.allocated_in_optimizer > memory.allocated_beside_chunks + activations) {
    memory.moment = "optimizer step";
    memory.holes =
        std::max(Bytes{}, memory.allocated_beside_chunks + activations + memory.holes - memory.allocated_in_optimizer);
    memory.buffers += memory.allocated_in_optimizer - memory.allocated_beside_chunks - memory.returning;
    memory.optimizer += memory.returning;
  } else {
    memory.activations = activations;
    memory.fragmentation = context.hardware.overheads.fragmentation * activations;
  }
}

Bytes total_memory(const StepContext& context, const Composition& c, std::int64_t rank, Bytes activations,
                   Bytes graph_pools) {
  StageMemory memory = fixed_memory(context, c, rank);
  add_activations(context, activations, memory);
  return memory.total() + graph_pools;
}

}  // namespace

Bytes fsdp_whole(const Composition& c, std::int64_t rank) { return over_chunks(c, rank, &StageCost::fsdp_whole); }

PeakTable peak_table(const ScheduleShape& shape, std::int64_t rank) {
  PeakTable table;
  table.largest.assign(static_cast<std::size_t>(shape.vpp), 0.0);
  for (const InFlight& peak : in_flight_peaks(shape, rank)) {
    table.counts.insert(table.counts.end(), peak.count.begin(), peak.count.end());
    table.running.push_back(peak.running.chunk);
    table.forward.push_back(peak.running.forward());
  }
  const auto chunks = table.largest.size();
  for (std::size_t moment = 0; moment < table.running.size(); ++moment) {
    double total = 0.0;
    for (std::size_t i = 0; i < chunks; ++i) {
      const double count = table.counts[moment * chunks + i];
      table.largest[i] = std::max(table.largest[i], count);
      total += count;
    }
    table.most = std::max(table.most, total);
  }
  return table;
}

StageMemory rank_memory(const StepContext& context, const Composition& c, std::int64_t rank, const PeakTable& peaks) {
  StageMemory memory = fixed_memory(context, c, rank);
  const auto pp = static_cast<std::size_t>(context.options.pipeline.pp),
             vpp = static_cast<std::size_t>(c.times.shape.vpp);
  const auto chunk = [&](std::size_t i) -> const BlockCost& {
    return c.stage(i * pp + static_cast<std::size_t>(rank)).cost;
  };
  std::vector<double> kept(vpp), forward(vpp), backward(vpp), host(vpp),
      pool(vpp);  // High levels above what the chunk keeps.
  for (std::size_t i = 0; i < vpp; ++i) {
    const MemoryProfile& profile = chunk(i).memory;
    kept[i] = profile.kept.to<double>();
    forward[i] = (profile.forward_high - profile.kept).to<double>();
    backward[i] = (profile.backward_high - profile.kept).to<double>();
    pool[i] = chunk(i).captured.to<double>();
    host[i] = chunk(i).host_bytes.to<double>();
  }
  const auto most = [&](const std::vector<double>& bytes) {
    double highest = 0.0;
    if (std::ranges::count(bytes, 0.0) == std::ssize(bytes)) return highest;
    for (std::size_t moment = 0; moment < peaks.running.size(); ++moment)
      highest =
          std::max(highest, std::inner_product(bytes.begin(), bytes.end(), peaks.counts.data() + moment * vpp, 0.0));
    return highest;
  };
  double highest = 0.0;
  memory.moment = "forward";
  for (std::size_t moment = 0; moment < peaks.running.size(); ++moment) {
    const double* const counts = peaks.counts.data() + moment * vpp;
    const auto now = static_cast<std::size_t>(peaks.running[moment]);
    const double level =
        std::inner_product(kept.begin(), kept.end(), counts, peaks.forward[moment] ? forward[now] : backward[now]);
    if (level > highest) {
      highest = level;
      memory.moment = peaks.forward[moment] ? "forward" : "backward";
    }
  }
  memory.host += Bytes{most(host)};
  memory.graph_pools = Bytes{most(pool)};  // Assumed to be as large as the eager tensors.
  if (peaks.most > 0.0) highest += c.overlapped.to<double>();
  add_activations(context, Bytes{highest}, memory);
  return memory;
}

bool fits_host(Bytes host, const Hardware& hardware) {
  const Bytes capacity = hardware.host.memory_per_gpu;  // Zero: unknown.
  return capacity <= Bytes{} || host <= capacity;
}

bool fits(const StageMemory& memory, const Hardware& hardware, Bytes left) {
  return memory.total() <= hardware.hbm_capacity - left && fits_host(memory.host, hardware);
}

bool fits(const StepContext& context, const Composition& c, const std::vector<PeakTable>& peaks, Bytes left) {
  const Bytes capacity = context.hardware.hbm_capacity - left;
  const bool offloads = context.options.offloads();
  const auto pp = static_cast<std::size_t>(context.options.pipeline.pp);
  for (std::size_t rank = 0; rank < pp; ++rank) {
    // Cheap bounds first: every chunk in flight as small as the smallest; every chunk at its largest count at once.
    Bytes small = c.stage(rank).cost.memory.kept, most{}, extra{}, pool{};
    for (std::size_t i = rank, chunk = 0; i < c.num_stages(); i += pp, ++chunk) {
      const BlockCost& cost = c.stage(i).cost;
      const MemoryProfile& profile = cost.memory;
      small = std::min(small, profile.kept);
      most += peaks[rank].largest[chunk] * profile.kept;
      pool += peaks[rank].largest[chunk] * cost.captured;
      extra = std::max({extra, profile.forward_high - profile.kept, profile.backward_high - profile.kept});
    }
    const auto with = [&](Bytes activations, Bytes graph_pools) {
      return total_memory(context, c, static_cast<std::int64_t>(rank), activations, graph_pools);
    };
    if (with(peaks[rank].most * small, Bytes{}) > capacity) return false;
    if (!offloads && with(most + extra + c.overlapped, pool) <= capacity) continue;
    if (!fits(rank_memory(context, c, static_cast<std::int64_t>(rank), peaks[rank]), context.hardware, left))
      return false;
  }
  return true;
}

}  // namespace foldwise::costmodel
