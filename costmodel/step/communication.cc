#include "costmodel/step/communication.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <variant>

#include "costmodel/parallel/stage_traffic.h"

namespace foldwise::costmodel {
namespace {

/// Share of a step that is ignored: schedules have whole picoseconds, and smaller lines of the detail are left out.
constexpr double kRounding = 1e-9;

/// The slowest tier of a message, and the bytes that one GPU sends over it.
std::pair<std::string, Bytes> slowest_tier(const LinkBytes& bytes) {
  if (bytes.spine > Bytes{}) return {"spine", bytes.spine};
  if (bytes.nic > Bytes{}) return {"nic", bytes.nic};
  return {"nvlink", bytes.nvlink};
}

/// Sums over a step by kind, group and tier, and the messages behind them.
class Traffic {
 public:
  /// Traffic of a pipeline rank's GPUs.
  Traffic(const StepContext& context, std::int64_t rank) : context_(context) { traffic_.rank = rank; }

  /// Adds `times` runs of a list.
  void add(const OpList& list, double times) {
    for (const std::vector<Op>* ops : {&list.forward, &list.backward})
      for (const Op& op : *ops) add(op, times);
  }

  /// Adds `times` transfers to the rank of another stage.
  void send(const Op& op, std::int64_t to_rank, double times) {
    add(op, times, false);
    traffic_.sent[to_rank] += times * std::get<CollectiveWork>(op.work).bytes;
  }

  void add(const Op& op, double times, bool in_group = true) {
    if (const auto* copy = std::get_if<HostCopyWork>(&op.work); copy != nullptr && copy->to_host)
      traffic_.to_host += times * copy->bytes;
    if (!is_communication(op)) return;
    const auto [tier, bytes] = slowest_tier(link_bytes(op));
    Entry& entry = entries_[{std::string(kind_name(op)), std::string(group_name(op)), tier}];
    entry.bytes += times * bytes;
    CommunicationSum alone;
    alone.add(op, op_time(op, context_.hardware), context_.hardware);
    entry.alone += alone.scaled(times);
    if (!in_group) return;
    if (const auto* w = std::get_if<CollectiveWork>(&op.work))
      traffic_.collectives[{w->kind, w->group}] += times * w->bytes;
    if (const auto* w = std::get_if<ExchangeWork>(&op.work)) {
      ExchangeVolume& sum = traffic_.exchanges[w->group];
      sum.to_ranks += times * w->volume.to_ranks;
      sum.to_domains += times * w->volume.to_domains;
    }
  }

  /// Entries, longest first. The exposed time of a kind and group in `detail` is shared by its tiers in proportion. The
  /// rest runs beside `compute`, which slows it down.
  [[nodiscard]] std::vector<CommunicationEntry> entries(const std::vector<DetailEntry>& detail,
                                                        const ComputeSum& compute, Seconds step) const {
    std::map<std::pair<std::string, std::string>, Seconds> exposed, total;
    for (const DetailEntry& line : detail)
      if (line.cause == Cause::kCommunication) exposed[{line.kind, line.group}] += line.seconds;
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
        entry.hidden = rest / shared_pace(compute, sums.alone, 1.0, context_.hardware).communication;
      result.push_back(std::move(entry));
    }
    std::stable_sort(result.begin(), result.end(), [](const CommunicationEntry& x, const CommunicationEntry& y) {
      return x.exposed + x.hidden > y.exposed + y.hidden;
    });
    return result;
  }

  /// The busiest link of each tier, with every message routed.
  [[nodiscard]] std::vector<LinkLoad> busiest_links() const {
    const Network& network = context_.hardware.network;
    const Layout layout = context_.options.layout();
    return routed(traffic_, layout, short_job(layout, network), network, context_.hardware.host.link_to_host).busiest();
  }

 private:
  struct Entry {
    Bytes bytes{};
    CommunicationSum alone;
  };

  const StepContext& context_;
  std::map<std::tuple<std::string, std::string, std::string>, Entry> entries_;
  StageTraffic traffic_;
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

  Traffic traffic(context, static_cast<std::int64_t>(rank));
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
  return {.entries = traffic.entries(prediction.detail(), compute, prediction.step_time),
          .links = traffic.busiest_links()};
}

}  // namespace foldwise::costmodel
