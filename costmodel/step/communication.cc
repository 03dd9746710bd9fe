#include "costmodel/step/communication.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <variant>

namespace foldwise::costmodel {
namespace {

/// Of a step: a schedule's times are whole picoseconds, and lines of the detail below it are left out.
constexpr double kRounding = 1e-9;

/// Tier that bounds a message, and what one GPU sends over it.
std::pair<std::string, Bytes> slowest_tier(const LinkBytes& bytes) {
  if (bytes.spine > Bytes{}) return {"spine", bytes.spine};
  if (bytes.nic > Bytes{}) return {"nic", bytes.nic};
  return {"nvlink", bytes.nvlink};
}

/// Sums of a step by kind, group and tier, and the messages behind them.
class Traffic {
 public:
  explicit Traffic(const StepContext& context) : context_(context) {}

  /// `times` runs of a list.
  void add(const OpList& list, double times) {
    for (const std::vector<Op>* ops : {&list.forward, &list.backward})
      for (const Op& op : *ops) add(op, times);
  }

  /// `times` transfers to the rank of another stage.
  void send(const Op& op, std::int64_t to_rank, double times) {
    add(op, times, false);
    sent_[to_rank] += times * std::get<CollectiveWork>(op.work).bytes;
  }

  void add(const Op& op, double times, bool in_group = true) {
    if (const auto* copy = std::get_if<HostCopyWork>(&op.work); copy != nullptr && copy->to_host)
      to_host_ += times * copy->bytes;
    if (!is_communication(op)) return;
    const auto [tier, bytes] = slowest_tier(link_bytes(op));
    Entry& entry = entries_[{std::string(kind_name(op)), std::string(group_name(op)), tier}];
    entry.bytes += times * bytes;
    CommunicationSum alone;
    alone.add(op, op_time(op, context_.hardware), context_.hardware);
    entry.alone += alone.scaled(times);
    if (!in_group) return;
    if (const auto* w = std::get_if<CollectiveWork>(&op.work)) collectives_[{w->kind, w->group}] += times * w->bytes;
    if (const auto* w = std::get_if<ExchangeWork>(&op.work)) {
      ExchangeVolume& sum = exchanges_[w->group];
      sum.to_ranks += times * w->volume.to_ranks;
      sum.to_domains += times * w->volume.to_domains;
    }
  }

  /// Longest first; what `detail` says of a kind and group is exposed, of its tiers alike. The rest runs beside
  /// `compute`, which slows it down.
  [[nodiscard]] std::vector<CommunicationEntry> entries(const std::vector<DetailEntry>& detail,
                                                        const ComputeSum& compute, Seconds step) const {
    std::map<std::pair<std::string, std::string>, Seconds> exposed, total;
    for (const DetailEntry& line : detail)
      if (line.cause == "exposed_communication") exposed[{line.kind, line.group}] += line.seconds;
    for (const auto& [key, sums] : entries_) total[{std::get<0>(key), std::get<1>(key)}] += sums.alone.time;
    std::vector<CommunicationEntry> result;
    for (const auto& [key, sums] : entries_) {
      CommunicationEntry entry;
      entry.bytes = sums.bytes;
      std::tie(entry.kind, entry.group, entry.tier) = key;
      const Seconds all = total[{entry.kind, entry.group}];
      if (all > Seconds{}) entry.exposed = exposed[{entry.kind, entry.group}] * (sums.alone.time / all).to<double>();
      const Seconds rest = sums.alone.time - entry.exposed;
      if (rest > kRounding * step)
        entry.hidden = rest / shared_pace(compute, sums.alone, 0.0, context_.hardware).communication;
      result.push_back(std::move(entry));
    }
    std::stable_sort(result.begin(), result.end(), [](const CommunicationEntry& x, const CommunicationEntry& y) {
      return x.exposed + x.hidden > y.exposed + y.hidden;
    });
    return result;
  }

  /// Every message of the GPUs of pipeline rank `rank` routed over the fabric.
  [[nodiscard]] std::vector<LinkLoad> busiest_links(std::int64_t rank) const {
    const Layout& layout = context_.options.layout();
    Layout stage = layout;
    stage.pp = 1;
    const std::int64_t first = rank * stage.world();
    Fabric fabric(context_.hardware.network, context_.hardware.host.link_to_host, layout.world());
    const auto groups_of = [&](Group group) {
      if (group == Group::kPp) return process_groups(layout, "embd");  // Whose op it is: first and last stage.
      std::vector<RankGroup> groups = process_groups(stage, to_string(group));
      for (RankGroup& members : groups)
        for (std::int64_t& member : members) member += first;
      return groups;
    };
    for (const auto& [key, bytes] : collectives_)
      for (const RankGroup& members : groups_of(key.second)) fabric.collective(key.first, members, bytes);
    for (const auto& [to_rank, bytes] : sent_)
      for (std::int64_t i = 0; i < stage.world(); ++i) fabric.send(first + i, to_rank * stage.world() + i, bytes);
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
  struct Entry {
    Bytes bytes{};
    CommunicationSum alone;
  };

  const StepContext& context_;
  std::map<std::tuple<std::string, std::string, std::string>, Entry> entries_;
  std::map<std::pair<CollectiveKind, Group>, Bytes> collectives_;
  std::map<Group, ExchangeVolume> exchanges_;
  std::map<std::int64_t, Bytes> sent_;  ///< To another stage, by its rank.
  Bytes to_host_{};
};

}  // namespace

CommunicationReport communication_report(const Step& step, const Prediction& prediction) {
  const StepContext& context = step.context;
  const Composition& c = step.composition;
  const ScheduleShape& shape = step.shape();
  const bool fsdp = shards_gradients(context.options.step.sharding);
  const auto rank = prediction.critical_stage, pp = static_cast<std::size_t>(shape.pp);
  const auto m = static_cast<double>(chunk_microbatches(shape));
  const PieceOptions options(context);
  PerPiece<std::vector<OpList>> pieces;

  Traffic traffic(context);
  ComputeSum compute;
  for (std::size_t i = rank; i < c.num_stages(); i += pp) {
    visit_stage(context, step.kinds, step.content(i), PieceOrder::kByKind, [&](const StagePiece& piece) {
      const auto build = [&] {
        std::vector<OpList> lists;
        for (const Piece part : parts_of(piece.piece)) lists.push_back(part_ops(options.of(piece), part, piece));
        return lists;
      };
      for (const OpList& list : pieces.get(piece, build)) traffic.add(list, m * static_cast<double>(piece.times));
    });
    const std::int64_t position =
        position_of(shape, static_cast<std::int64_t>(rank), static_cast<std::int64_t>(i / pp));
    if (transfers(shape, position)) traffic.send(stage_transfer(context), rank_of(shape, position + 1), m);
    if (transfers(shape, position - 1))  // The gradient of its input.
      traffic.send(stage_transfer(context), rank_of(shape, position - 1), m);
    const StageCost& stage = c.stage(i);
    compute += stage.cost.mix;
    traffic.add(data_parallel_ops(context, stage.cost.parameters.trained(context.options.layer)), 1.0);
    if (fsdp) traffic.add(fsdp_ops(context, stage.cost.parameters), m);
  }
  traffic.add(step_ops(context, c.parameters[rank].trained(context.options.layer)), 1.0);
  return {.entries = traffic.entries(prediction.detail, compute, prediction.step_time),
          .links = traffic.busiest_links(static_cast<std::int64_t>(rank))};
}

}  // namespace foldwise::costmodel
