#include "costmodel/step/prediction.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <variant>

#include "costmodel/ops/edit.h"
#include "costmodel/step/composition.h"

namespace foldwise::costmodel {
namespace {

// Share of a rank's chunks that run merged, forward beside backward, under EP overlap.
double merged_share(const ScheduleShape& shape, std::int64_t rank) {
  const auto total = static_cast<double>(shape.num_microbatches * shape.vpp);
  const double alone = shape.pp == 1 ? 1.0 : static_cast<double>(num_warmup(shape, rank));
  return (total - alone) / total;
}

// Transfers of stage i for one micro-batch: its output forward, the gradient of its input back.
Seconds blocking_sends(const Composition& c, std::size_t i) {
  return (i + 1 < c.num_stages() ? c.times.stages[i].send : Seconds{}) +
         (i > 0 ? c.times.stages[i - 1].send : Seconds{});
}

// Seconds of a pipeline rank over a whole step, by cause; everything but the bubble.
StagePrediction rank_busy(const BuildContext& context, const Composition& c, std::int64_t rank) {
  const TrainingOptions& o = context.options;
  const auto m = static_cast<double>(o.num_microbatches());
  const auto pp = static_cast<std::size_t>(o.layout.pp);
  StagePrediction p;
  Seconds saving{};
  for (auto i = static_cast<std::size_t>(rank); i < c.num_stages(); i += pp) {
    const BlockCost& cost = c.stage(i).cost;
    p.layers += c.stage(i).layers;
    for (const DirectionCost* d : {&cost.forward, &cost.backward}) {
      p.compute += m * d->compute;
      p.exposed_communication += m * d->comm;
      p.exposed_copy += m * d->exposed_copy();
      p.host += m * d->host();
    }
    p.forward += c.times.stages[i].forward;
    p.backward += c.times.stages[i].backward;
    saving += c.stage(i).saving;
    if (!c.times.overlap_p2p && o.layout.pp > 1) p.exposed_communication += m * blocking_sends(c, i);
  }
  if (o.overlaps.ep_a2a) p.exposed_communication -= m * saving * merged_share(c.times.shape, rank);
  const StepTail& tail = c.tails[static_cast<std::size_t>(rank)];
  p.compute += tail.compute;
  p.exposed_communication += tail.comm;
  p.exposed_copy += tail.copy;
  return p;
}

Seconds busy(const StagePrediction& p) { return p.compute + p.exposed_communication + p.exposed_copy + p.host; }

// Sums op times by (cause, kind, module, group).
class Detail {
 public:
  explicit Detail(const BuildContext& context) : context_(context) {}

  void add(OpList list, BitSet<RecomputeModule> recompute, double times, double exchange_share) {
    apply_recompute(list, recompute);
    apply_offload(list, context_.options.offload.modules);
    add(list.forward, times, exchange_share);
    add(list.backward, times, exchange_share);
  }
  void add_entry(std::string cause, std::string kind, std::string module, std::string group, Seconds seconds) {
    sums_[{std::move(cause), std::move(kind), std::move(module), std::move(group)}] += seconds;
  }
  // Largest first. Causes are scaled so that they add up to the breakdown: what copies hide, and by how much issuing
  // kernels exceeds executing them, is known only for a whole piece, not for an op.
  [[nodiscard]] std::vector<DetailEntry> entries(const Breakdown& breakdown) const {
    // Host time is stalls, which ops have, and late launches, which are shared out by the number of launches.
    const auto part = [](const std::string& cause, const std::string& kind) {
      return cause == "host" && kind == "launch" ? std::string("launch") : cause;
    };
    std::map<std::string, Seconds> totals;
    for (const auto& [key, seconds] : sums_) totals[part(std::get<0>(key), std::get<1>(key))] += seconds;
    const std::map<std::string, Seconds> targets = {{"compute", breakdown.compute},
                                                    {"exposed_communication", breakdown.exposed_communication},
                                                    {"exposed_copy", breakdown.exposed_copy},
                                                    {"host", std::min(totals["host"], breakdown.host)},
                                                    {"launch", std::max(Seconds{}, breakdown.host - totals["host"])}};
    std::vector<DetailEntry> result;
    for (const auto& [key, seconds] : sums_) {
      const auto& [cause, kind, module, group] = key;
      const std::string name = part(cause, kind);
      const Seconds scaled =
          totals[name] > Seconds{} ? seconds * (targets.at(name) / totals[name]).to<double>() : Seconds{};
      if (scaled > 1e-9 * breakdown.total()) result.push_back({cause, kind, module, group, scaled});
    }
    std::stable_sort(result.begin(), result.end(),
                     [](const DetailEntry& a, const DetailEntry& b) { return a.seconds > b.seconds; });
    return result;
  }

 private:
  void add(const std::vector<Op>& ops, double times, double exchange_share) {
    std::map<Overlap, std::pair<Seconds, Seconds>> classes;  // Compute, communication.
    for (const Op& op : ops) {
      auto& sums = classes[op.overlap];
      (is_communication(op) ? sums.second : sums.first) += op_time(op, context_.hardware);
    }
    for (const Op& op : ops) {
      const Seconds time = times * op_time(op, context_.hardware);
      const std::string kind{kind_name(op)}, module{to_string(op.module)}, group{group_name(op)};
      if (is_communication(op)) {
        double share = op.module == Module::kDispatch ? exchange_share : 1.0;
        const auto& [compute, comm] = classes[op.overlap];
        if (op.overlap != Overlap::kNone && comm > Seconds{})
          share *= std::max(0.0, ((comm - compute) / comm).to<double>());
        add_entry("exposed_communication", kind, module, group, share * time);
      } else if (std::holds_alternative<HostCopyWork>(op.work)) {
        add_entry("exposed_copy", kind, module, group, time);
      } else if (std::holds_alternative<HostSyncWork>(op.work)) {
        add_entry("host", kind, module, group, time);
      } else {
        add_entry("compute", kind, module, group, time);
        add_entry("host", "launch", module, "",
                  times * static_cast<double>(op.launches) * context_.hardware.host.launch);
      }
    }
  }

  const BuildContext& context_;
  std::map<std::tuple<std::string, std::string, std::string, std::string>, Seconds> sums_;
};

std::vector<DetailEntry> rank_detail(const BuildContext& context, const Composition& c, const StageLayout& layout,
                                     std::int64_t rank, const Breakdown& breakdown, const StagePrediction& stage) {
  const ModelSpec& model = context.model;
  const TrainingOptions& o = context.options;
  const auto m = static_cast<double>(o.num_microbatches());
  const BitSet<RecomputeModule> recompute = recomputed_modules(o);
  Detail detail(context);
  // Share of the EP exchange that stays exposed on this rank.
  double exchange_share = 1.0;
  if (o.overlaps.ep_a2a) {
    Seconds exchange{}, saving{};
    for (auto i = static_cast<std::size_t>(rank); i < c.num_stages(); i += static_cast<std::size_t>(o.layout.pp))
      saving += c.stage(i).saving;
    const ModelKinds kinds = model_kinds(model);
    const ModelCosts costs = model_costs(context, kinds);
    for (auto i = static_cast<std::size_t>(rank); i < layout.stages.size();
         i += static_cast<std::size_t>(o.layout.pp)) {
      const StageContent& content = layout.stages[i];
      for (std::size_t k = 0; k < kinds.kinds.size(); ++k) {
        const auto first = static_cast<std::size_t>(content.first_layer);
        const double n = kinds.prefix[k][first + static_cast<std::size_t>(content.num_layers)] - kinds.prefix[k][first];
        const NodeTimes& t = costs.covered[k].nodes;
        exchange += n * (t.dispatch_forward + t.combine_forward + t.dispatch_backward + t.combine_backward);
      }
    }
    if (exchange > Seconds{})
      exchange_share = std::max(0.0, 1.0 - (saving / exchange).to<double>() * merged_share(c.times.shape, rank));
  }
  for (auto i = static_cast<std::size_t>(rank); i < layout.stages.size(); i += static_cast<std::size_t>(o.layout.pp)) {
    const StageContent& content = layout.stages[i];
    for (std::int64_t l = 0; l < content.num_layers; ++l) {
      const LayerSpec& layer = model.layers[static_cast<std::size_t>(content.first_layer + l)];
      detail.add(mixer_ops(context, layer), recompute, m, exchange_share);
      detail.add(mlp_ops(context, layer), recompute, m, exchange_share);
    }
    if (content.embedding) detail.add(embedding_ops(context), {}, m, 1.0);
    for (std::int64_t depth = 0; depth < content.mtp_layers; ++depth) {
      detail.add(mtp_ops(context), {}, m, 1.0);
      for (const LayerSpec& layer : model.mtp_layers) {
        detail.add(mixer_ops(context, layer), recompute, m, exchange_share);
        detail.add(mlp_ops(context, layer), recompute, m, exchange_share);
      }
    }
    if (content.loss) detail.add(head_ops(context, 1 + model.mtp_num_layers), {}, m, 1.0);
  }
  if (!c.times.overlap_p2p && stage.exposed_communication > Seconds{}) {
    Seconds sends{};
    for (auto i = static_cast<std::size_t>(rank); i < c.num_stages(); i += static_cast<std::size_t>(o.layout.pp))
      sends += blocking_sends(c, i);
    detail.add_entry("exposed_communication", "send_recv", "pipeline", "pp", m * sends);
  }
  const StepTail& tail = c.tails[static_cast<std::size_t>(rank)];
  detail.add_entry("compute", "memory_bound", "optimizer", "", tail.compute);
  detail.add_entry("exposed_communication", "reduce_scatter+all_gather", "gradients", "dp_cp", tail.comm);
  detail.add_entry("exposed_copy", "host_copy", "optimizer", "", tail.copy);
  return detail.entries(breakdown);
}

}  // namespace

Prediction finish(const BuildContext& context, const StageLayout& layout, const Composition& c, bool with_detail) {
  const TrainingOptions& o = context.options;
  Prediction p;
  const Seconds makespan = simulate_makespan(c.times);
  p.step_time = step_time(c, makespan);
  for (std::int64_t rank = 0; rank < o.layout.pp; ++rank) {
    StagePrediction stage = rank_busy(context, c, rank);
    stage.bubble = std::max(Seconds{}, p.step_time - busy(stage));
    stage.peak_chunks_in_flight = peak_in_flight(c.times.shape, rank);
    p.stages.push_back(stage);
    p.memory.push_back(rank_memory(context, c, rank, peak_table(c.times.shape, rank)));
    p.peak_memory = std::max(p.peak_memory, p.memory.back().total());
    if (busy(stage) > busy(p.stages[p.critical_stage])) p.critical_stage = p.stages.size() - 1;
  }
  p.fits = std::all_of(p.memory.begin(), p.memory.end(),
                       [&](const StageMemory& memory) { return costmodel::fits(memory, context.hardware); });
  const StagePrediction& critical = p.stages[p.critical_stage];
  p.breakdown = {critical.compute, critical.exposed_communication, critical.exposed_copy, Seconds{}, critical.host};
  // Rounding to picoseconds and the averaging of merged pairs stay below this line; the parts add up by construction.
  p.breakdown.bubble = p.step_time - p.breakdown.total();
  const auto tokens = static_cast<double>(o.global_batch * o.seq_len), gpus = static_cast<double>(o.layout.world());
  const auto seconds = p.step_time.to<double>();
  p.tokens_per_s_per_gpu = tokens / seconds / gpus;
  const double flops = megatron_flops(context.model, tokens, tokens * static_cast<double>(o.seq_len), o.layout.tp);
  p.model_tflops_per_gpu = flops / seconds / gpus / 1e12;
  p.mfu_pct = 100.0 * p.model_tflops_per_gpu * 1e12 / context.hardware.mfu_peak(o.precision).to<double>();
  if (with_detail)
    p.detail = rank_detail(context, c, layout, static_cast<std::int64_t>(p.critical_stage), p.breakdown, critical);
  return p;
}

Prediction predict(const ModelSpec& model, const TrainingOptions& options, const Hardware& hardware) {
  const BuildContext context{model, options, hardware};
  const StageLayout layout = stage_layout(model, options);
  const ModelKinds kinds = model_kinds(model);
  return finish(context, layout, compose(context, kinds, model_costs(context, kinds), layout), true);
}

}  // namespace foldwise::costmodel
