#include "costmodel/step/communication.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <variant>

#include "costmodel/ops/edit.h"
#include "costmodel/step/composition.h"

namespace foldwise::costmodel {
namespace {

/// Tier that bounds a message, and what one GPU sends over it.
std::pair<std::string, Bytes> slowest_tier(const LinkBytes& bytes) {
  if (bytes.spine > Bytes{}) return {"spine", bytes.spine};
  if (bytes.nic > Bytes{}) return {"nic", bytes.nic};
  return {"nvlink", bytes.nvlink};
}

/// Sums of a step by kind, group and tier, and the messages behind them.
class Traffic {
 public:
  explicit Traffic(const BuildContext& context) : context_(context) {}

  /// `times` runs of a list whose EP exchange is exposed by `exchange_share`.
  void add(OpList list, BitSet<RecomputeModule> recompute, double times, double exchange_share) {
    apply_recompute(list, recompute);
    apply_offload(list, context_.options.offload.modules);
    exposed_forward_ += add(list.forward, times, exchange_share);
    exposed_backward_ += add(list.backward, times, exchange_share);
  }

  /// Ops that nothing but `exposed` of their time in all is exposed of.
  void add_partly_hidden(const std::vector<Op>& ops, double times, Seconds exposed) {
    Seconds total{};
    for (const Op& op : ops)
      if (is_communication(op)) total += times * op_time(op, context_.hardware);
    if (total <= Seconds{}) return;
    const double share = std::clamp((exposed / total).to<double>(), 0.0, 1.0);
    for (const Op& op : ops)
      if (is_communication(op)) add(op, times, share);
  }

  void add(const Op& op, double times, double exposed_share) {
    const auto [tier, bytes] = slowest_tier(link_bytes(op));
    CommunicationEntry& entry = entries_[{std::string(kind_name(op)), std::string(group_name(op)), tier}];
    const Seconds time = times * op_time(op, context_.hardware);
    entry.bytes += times * bytes;
    entry.exposed += exposed_share * time;
    entry.hidden += (1.0 - exposed_share) * time;
    if (const auto* w = std::get_if<CollectiveWork>(&op.work)) collectives_[{w->kind, w->group}] += times * w->bytes;
    if (const auto* w = std::get_if<ExchangeWork>(&op.work)) {
      ExchangeVolume& sum = exchanges_[w->group];
      sum.to_ranks += times * w->volume.to_ranks;
      sum.to_domains += times * w->volume.to_domains;
    }
  }

  /// Exposed so far by ops of forward (backward) passes.
  [[nodiscard]] Seconds exposed(bool backward) const { return backward ? exposed_backward_ : exposed_forward_; }

  [[nodiscard]] std::vector<CommunicationEntry> entries() const {
    std::vector<CommunicationEntry> result;
    for (const auto& [key, sums] : entries_) {
      CommunicationEntry entry = sums;
      std::tie(entry.kind, entry.group, entry.tier) = key;
      result.push_back(std::move(entry));
    }
    std::stable_sort(result.begin(), result.end(), [](const CommunicationEntry& a, const CommunicationEntry& b) {
      return a.exposed + a.hidden > b.exposed + b.hidden;
    });
    return result;
  }

  /// Every message of the GPUs of pipeline rank `rank` routed over the fabric.
  [[nodiscard]] std::vector<LinkLoad> busiest_links(std::int64_t rank) const {
    const Layout& layout = context_.options.layout;
    Layout stage = layout;
    stage.pp = 1;
    const std::int64_t first = rank * stage.world();
    Fabric fabric(context_.hardware.network, context_.hardware.host.link_to_host, layout.world());
    const auto groups_of = [&](Group group) {
      std::vector<RankGroup> groups = process_groups(stage, kGroupNames.at(static_cast<std::size_t>(group)));
      for (RankGroup& members : groups)
        for (std::int64_t& member : members) member += first;
      return groups;
    };
    for (const auto& [key, bytes] : collectives_) {
      const auto& [kind, group] = key;
      if (group == Group::kPp) {  // To the next stage; back goes as much, over other links.
        const std::int64_t next = (rank + 1) % layout.pp * stage.world();
        for (std::int64_t i = 0; i < stage.world(); ++i) fabric.send(first + i, next + i, 0.5 * bytes);
        continue;
      }
      for (const RankGroup& members : groups_of(group)) fabric.collective(kind, members, bytes);
    }
    for (const auto& [group, volume] : exchanges_)
      for (const RankGroup& members : groups_of(group)) fabric.exchange(members, volume);
    if (to_host_ > Bytes{})
      for (std::int64_t i = 0; i < stage.world(); ++i) fabric.copy_to_host(first + i, to_host_);

    std::vector<LinkLoad> result;
    std::set<std::string> seen;
    for (LinkLoad& link : fabric.loads())
      if (seen.insert(link.tier).second) result.push_back(std::move(link));
    return result;
  }

 private:
  /// Names of process_groups by Group.
  static constexpr std::array<std::string_view, 10> kGroupNames{"",       "tp",    "cp",  "ep", "etp",
                                                                "etp_ep", "dp_cp", "edp", "pp", "dp"};

  Seconds add(const std::vector<Op>& ops, double times, double exchange_share) {
    std::array<Seconds, kOverlaps> compute{}, communication{};
    std::array<double, kOverlaps> sms{};
    for (const Op& op : ops) {
      const auto overlap = static_cast<std::size_t>(op.overlap);
      (is_communication(op) ? communication : compute)[overlap] += op_time(op, context_.hardware);
      sms[overlap] = std::max(sms[overlap], communication_sms(op, context_.hardware.network));
    }
    Seconds exposed{};
    for (const Op& op : ops) {
      if (const auto* copy = std::get_if<HostCopyWork>(&op.work); copy != nullptr && copy->to_host)
        to_host_ += times * copy->bytes;
      if (!is_communication(op)) continue;
      const auto overlap = static_cast<std::size_t>(op.overlap);
      double share = op.module == Module::kDispatch ? exchange_share : 1.0;
      if (op.overlap != Overlap::kNone && communication[overlap] > Seconds{})
        share *= (side_by_side(compute[overlap], communication[overlap],
                               sms[overlap] / static_cast<double>(context_.hardware.sms))
                      .exposed /
                  communication[overlap])
                     .to<double>();
      add(op, times, share);
      exposed += times * share * op_time(op, context_.hardware);
    }
    return exposed;
  }

  const BuildContext& context_;
  std::map<std::tuple<std::string, std::string, std::string>, CommunicationEntry> entries_;
  std::map<std::pair<CollectiveKind, Group>, Bytes> collectives_;
  std::map<Group, ExchangeVolume> exchanges_;
  Bytes to_host_{};
  Seconds exposed_forward_{}, exposed_backward_{};
};

// Share of the EP exchange of a rank that stays exposed under EP overlap: only steady pairs of chunks run merged.
double exposed_exchange(const BuildContext& context, const Composition& c, const ModelKinds& kinds,
                        const ModelCosts& costs, const StageLayout& layout, std::int64_t rank) {
  if (!context.options.overlaps.ep_a2a) return 1.0;
  const ScheduleShape shape = schedule_shape(context.options);
  const auto pp = static_cast<std::size_t>(shape.pp);
  Seconds exchange{}, saving{};
  for (auto i = static_cast<std::size_t>(rank); i < layout.stages.size(); i += pp) {
    saving += c.stage(i).saving;
    const auto first = static_cast<std::size_t>(layout.stages[i].first_layer);
    const std::size_t last = first + static_cast<std::size_t>(layout.stages[i].num_layers);
    for (std::size_t k = 0; k < kinds.kinds.size(); ++k) {
      const NodeTimes& t = costs.covered[k].nodes;
      exchange += static_cast<double>(kinds.prefix[k][last] - kinds.prefix[k][first]) *
                  (t.dispatch_forward + t.combine_forward + t.dispatch_backward + t.combine_backward);
    }
  }
  if (exchange <= Seconds{}) return 1.0;
  const auto chunks = static_cast<double>(shape.num_microbatches * shape.vpp);
  const double alone = shape.pp == 1 ? 1.0 : static_cast<double>(num_warmup(shape, rank));
  return std::max(0.0, 1.0 - (saving / exchange).to<double>() * (chunks - alone) / chunks);
}

Op stage_transfer(const BuildContext& context) {
  const TrainingOptions& o = context.options;
  Op op;
  op.work =
      CollectiveWork{CollectiveKind::kSendRecv, Group::kPp,
                     Bytes{2.0 * rank_shape(context.model, o).tokens * static_cast<double>(context.model.hidden_size)},
                     group_shape(o.layout, Group::kPp, context.hardware.network)};
  return op;
}

}  // namespace

CommunicationReport communication_report(const ModelSpec& model, const TrainingOptions& o, const Hardware& hardware,
                                         std::int64_t rank) {
  const BuildContext context{model, o, hardware};
  const StageLayout layout = stage_layout(model, o);
  const ModelKinds kinds = model_kinds(model);
  const ModelCosts costs = model_costs(context, kinds);
  const Composition c = compose(context, kinds, costs, layout);
  const auto m = static_cast<double>(o.num_microbatches());
  const auto own = static_cast<std::size_t>(rank), pp = static_cast<std::size_t>(o.layout.pp);
  const BitSet<RecomputeModule> recompute = recomputed_modules(o);
  const double exchange_share = exposed_exchange(context, c, kinds, costs, layout, rank);

  Traffic traffic(context);
  Seconds forward{}, backward{};  // Exposed by whole stages, FSDP included.
  std::vector<Op> fsdp_forward, fsdp_backward;
  const auto add_layer = [&](const LayerSpec& layer) {
    traffic.add(mixer_ops(context, layer), recompute, m, exchange_share);
    traffic.add(mlp_ops(context, layer), recompute, m, exchange_share);
  };
  for (std::size_t i = own; i < layout.stages.size(); i += pp) {
    const StageContent& content = layout.stages[i];
    for (std::int64_t l = 0; l < content.num_layers; ++l)
      add_layer(model.layers[static_cast<std::size_t>(content.first_layer + l)]);
    if (content.embedding) traffic.add(embedding_ops(context), {}, m, 1.0);
    for (std::int64_t depth = 0; depth < content.mtp_layers; ++depth) {
      traffic.add(mtp_ops(context), {}, m, 1.0);
      for (const LayerSpec& layer : model.mtp_layers) add_layer(layer);
    }
    if (content.loss) traffic.add(head_ops(context, 1 + model.mtp_num_layers), {}, m, 1.0);
    const double transfers = m * ((i + 1 < layout.stages.size() ? 1.0 : 0.0) + (i > 0 ? 1.0 : 0.0));
    if (pp > 1 && transfers > 0.0) traffic.add(stage_transfer(context), transfers, c.times.overlap_p2p ? 0.0 : 1.0);
    if (o.sharding == Sharding::kFsdp) {
      const BlockCost& cost = c.stage(i).cost;
      forward += m * cost.forward.comm;
      backward += m * cost.backward.comm;
      const OpList fsdp = fsdp_ops(context, cost.parameters);
      fsdp_forward.insert(fsdp_forward.end(), fsdp.forward.begin(), fsdp.forward.end());
      fsdp_backward.insert(fsdp_backward.end(), fsdp.backward.begin(), fsdp.backward.end());
    }
  }
  traffic.add_partly_hidden(fsdp_forward, m, forward - traffic.exposed(false));
  traffic.add_partly_hidden(fsdp_backward, m, backward - traffic.exposed(true));

  std::vector<Op> bulk, rest;  // Data-parallel gradients and parameters; what stands between them.
  for (Op& op : step_ops(context, c.parameters[own]).forward) {
    if (!is_communication(op)) continue;
    const bool overlaps = op.name.starts_with("grad_reduce") || op.name.starts_with("param_gather");
    (overlaps ? bulk : rest).push_back(std::move(op));
  }
  traffic.add_partly_hidden(bulk, 1.0, c.tails[own].comm - c.ends[own].rest.comm);
  for (const Op& op : rest) traffic.add(op, 1.0, 1.0);
  return {.entries = traffic.entries(), .links = traffic.busiest_links(rank)};
}

}  // namespace foldwise::costmodel
