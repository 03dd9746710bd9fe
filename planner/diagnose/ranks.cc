#include "planner/diagnose/ranks.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>

#include "costmodel/step/stage_pieces.h"

namespace foldwise::planner {
namespace {

using Ranks = std::vector<std::int64_t>;

constexpr std::string_view kTransfers = "send_recv";
constexpr double kLargeMessage = 1 << 20;  ///< Bytes. Smaller messages are bound by NCCL's latency, not by the link.

/// A collective of a step in the traces of some of its ranks.
struct Collective {
  struct Part {
    std::size_t trace, event;
    std::int64_t length;
    double bytes;
  };
  std::vector<Part> parts;
  [[nodiscard]] const Part& last() const { return *std::ranges::min_element(parts, {}, &Part::length); }
};

/// Kind and group as in ops, ranks, name of the collective, and its index among equal ones.
using CollectiveKey = std::tuple<std::string, std::string, Ranks, std::string, std::size_t>;

/// Data that an NCCL kernel moves, and its ranks.
struct Moved {
  Ranks ranks;
  double bytes = 0.0;  ///< The larger of the bytes that this rank sends and receives.
};

Moved moved_by(const Trace& trace, const GpuEvent& e) {
  Moved moved;
  const auto group = e.group < 0 ? trace.groups.end() : trace.groups.find(trace.name(e.group));
  if (group != trace.groups.end()) moved.ranks = group->second;
  if (e.message < 0) return moved;
  const Message& message = trace.messages[static_cast<std::size_t>(e.message)];
  if (!message.ranks.empty()) moved.ranks = message.ranks;
  moved.bytes = static_cast<double>(std::max(message.sent, message.received));
  return moved;
}

/// By index of a kernel that does transfers: the transfers that its thread requested since the previous kernel.
std::map<std::size_t, Moved> transfers_of(const Trace& trace, const MappedKernels& kernels) {
  using Kernel = std::tuple<std::int32_t, std::int64_t, std::size_t>;  // Thread and time of its launch, index.
  std::vector<Kernel> all;
  for (std::size_t i = 0; i < trace.gpu.size(); ++i) {
    const auto launch = trace.launches.find(trace.gpu[i].correlation);
    if (kernels.ops[static_cast<std::size_t>(kernels.op[i])].kind == kTransfers && launch != trace.launches.end())
      all.emplace_back(launch->second.thread, launch->second.time.begin, i);
  }
  std::ranges::sort(all);
  std::map<std::size_t, Moved> result;
  for (const Transfer& transfer : trace.transfers) {
    const auto kernel = std::ranges::lower_bound(all, Kernel{transfer.thread, transfer.time, 0});
    if (kernel == all.end() || std::get<0>(*kernel) != transfer.thread || transfer.message < 0) continue;
    const Message& message = trace.messages[static_cast<std::size_t>(transfer.message)];
    Moved& moved = result[std::get<2>(*kernel)];
    for (const std::int64_t rank : {trace.rank, message.source, message.target})
      if (rank >= 0 && std::ranges::find(moved.ranks, rank) == moved.ranks.end()) moved.ranks.push_back(rank);
    std::ranges::sort(moved.ranks);
    moved.bytes = std::max(moved.bytes, static_cast<double>(std::max(message.sent, message.received)));
  }
  return result;
}

std::map<CollectiveKey, Collective> collectives_of(const std::vector<Trace>& traces,
                                                   const std::vector<MappedKernels>& kernels,
                                                   const std::vector<Span>& steps) {
  std::map<CollectiveKey, Collective> all;
  for (std::size_t t = 0; t < traces.size(); ++t) {
    const Trace& trace = traces[t];
    const std::map<std::size_t, Moved> transfers = transfers_of(trace, kernels[t]);
    std::map<std::pair<std::string, Ranks>, std::size_t> count;
    for (std::size_t i = 0; i < trace.gpu.size(); ++i) {
      const GpuEvent& e = trace.gpu[i];
      if (e.time.begin < steps[t].begin || e.time.begin >= steps[t].end) continue;
      const KernelOp& op = kernels[t].ops[static_cast<std::size_t>(kernels[t].op[i])];
      const auto transfer = transfers.find(i);
      Moved moved = transfer == transfers.end() ? moved_by(trace, e) : transfer->second;
      // Point-to-point transfers are counted per trace: the k-th one of a rank has another partner than the next
      // rank's.
      std::string name = op.kind == kTransfers             ? "of trace " + std::to_string(t)
                         : e.collective < 0 || e.group < 0 ? ""
                                                           : trace.name(e.group) + ' ' + trace.name(e.collective);
      if (name.empty()) continue;
      const std::size_t number = count[{name, moved.ranks}]++;
      Collective& collective = all[{op.kind, op.group, std::move(moved.ranks), std::move(name), number}];
      collective.parts.push_back({t, i, e.time.length(), moved.bytes});
    }
  }
  return all;
}

void add_waits(const std::map<CollectiveKey, Collective>& collectives, RankComparison& result) {
  for (const auto& [key, collective] : collectives) {
    if (collective.parts.size() < 2) continue;
    const Collective::Part& last = collective.last();
    std::int64_t longest = 0;
    for (const Collective::Part& part : collective.parts) {
      const std::int64_t wait = part.length - last.length;
      longest = std::max(longest, wait);
      result.waits[part.trace][part.event] = wait;
      result.ranks[part.trace].waited_s += seconds(wait);
      ++result.ranks[part.trace].of;
    }
    ++result.ranks[last.trace].last;
    result.ranks[last.trace].waited_for_s += seconds(longest);
  }
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// Comparable groups: same kind and group, equal number of ranks, all inside nodes or all across.
using LinkClass = std::tuple<std::string, std::string, std::size_t, bool>;

std::vector<LinkReport> links_of(const std::map<CollectiveKey, Collective>& collectives, std::int64_t ranks_per_node) {
  struct Call {
    double bytes, seconds;
  };
  std::map<std::tuple<std::string, std::string, Ranks>, std::vector<Call>> calls;
  for (const auto& [key, collective] : collectives) {
    const auto& [kind, group, ranks, name, number] = key;
    const Collective::Part& last = collective.last();
    if (ranks.size() >= 2 && last.bytes >= kLargeMessage && last.length > 0)
      calls[{kind, group, ranks}].push_back({last.bytes, seconds(last.length)});
  }
  std::vector<LinkReport> links;
  std::vector<LinkClass> classes;
  for (const auto& [key, of] : calls) {
    const auto& [kind, group, ranks] = key;
    LinkReport link;
    link.kind = kind;
    link.group = group;
    link.ranks = ranks;
    link.calls = static_cast<std::int64_t>(of.size());
    const double largest = std::ranges::max_element(of, {}, &Call::bytes)->bytes;
    for (const Call& call : of) {
      link.bytes += call.bytes;
      if (call.bytes >= 0.5 * largest) link.bandwidth = std::max(link.bandwidth, call.bytes / call.seconds);
    }
    const std::int64_t node = ranks.front() / ranks_per_node;
    const bool crosses = std::ranges::any_of(ranks, [&](std::int64_t rank) { return rank / ranks_per_node != node; });
    classes.emplace_back(kind, group, ranks.size(), crosses);
    links.push_back(std::move(link));
  }
  for (std::size_t i = 0; i < links.size(); ++i) {
    std::vector<double> others;
    for (std::size_t j = 0; j < links.size(); ++j)
      if (j != i && classes[j] == classes[i]) others.push_back(links[j].bandwidth);
    if (others.empty()) continue;
    links[i].of_others = median(std::move(others));
    links[i].lost_s = std::max(0.0, links[i].bytes / links[i].bandwidth - links[i].bytes / *links[i].of_others);
  }
  std::ranges::stable_sort(links, std::ranges::greater{}, &LinkReport::lost_s);
  return links;
}

/// Predicted rows per pass through the experts of a layer.
double predicted_rows(const costmodel::Step& step) {
  double rows = 0.0;
  const costmodel::PieceOptions options(step.context);
  for (std::size_t i = 0; i < step.composition.num_stages(); ++i)
    costmodel::visit_stage(
        step.context, step.kinds, step.content(i), costmodel::PieceOrder::kByKind,
        [&](const costmodel::StagePiece& piece) {
          for (const costmodel::Piece part : costmodel::parts_of(piece.piece))
            for (const costmodel::Op& op : costmodel::part_ops(options.of(piece), part, piece).forward)
              if (const auto* gemm = std::get_if<costmodel::GemmWork>(&op.work))
                if (to_string(op.module) == "experts") rows = gemm->m * static_cast<double>(gemm->groups);
        });
  return rows;
}

/// Rows of the first product of each pass through the experts of an MoE layer.
std::vector<std::int64_t> rows_of(const Trace& trace) {
  std::vector<char> grouped(trace.names.size());
  for (std::size_t i = 0; i < trace.names.size(); ++i) grouped[i] = is_grouped_product(trace.names[i]) ? 1 : 0;
  std::vector<std::int64_t> rows;
  std::set<std::pair<std::int64_t, std::int64_t>> sizes;  // Sizes of weights: one for each product of a layer.
  for (const HostEvent& e : trace.host) {
    if (grouped[static_cast<std::size_t>(e.name)] == 0 || e.shapes < 0) continue;
    const std::vector<Shape>& shapes = trace.shapes[static_cast<std::size_t>(e.shapes)];
    if (shapes.empty() || shapes[0].size() != 2) continue;
    rows.push_back(shapes[0][0]);
    sizes.emplace(shapes[0][1], shapes.size() > 1 && shapes[1].size() >= 2 ? shapes[1][0] : 0);
  }
  const std::size_t products = std::max<std::size_t>(1, sizes.size());
  std::vector<std::int64_t> passes;
  for (std::size_t i = 0; i < rows.size(); i += products) passes.push_back(rows[i]);
  return passes;
}

/// As rows_of(), for traces without sizes: rows received in each exchange over EP in which a rank sends its own tokens,
/// that is, as many rows as balanced routing gives. Those are dispatch in forward and combine in backward.
std::vector<std::int64_t> received_rows(const Trace& trace, const MappedKernels& kernels, double balanced,
                                        std::int64_t row_bytes) {
  std::vector<std::int64_t> rows;
  for (std::size_t i = 0; i < trace.gpu.size(); ++i) {
    const KernelOp& op = kernels.ops[static_cast<std::size_t>(kernels.op[i])];
    if (op.kind != "all_to_all" || trace.gpu[i].message < 0) continue;
    const Message& message = trace.messages[static_cast<std::size_t>(trace.gpu[i].message)];
    if (static_cast<double>(message.sent) == balanced * static_cast<double>(row_bytes))
      rows.push_back(message.received / row_bytes);
  }
  return rows;
}

Ranks expert_group(const Trace& trace) {
  const auto group = trace.groups.find("EXPERT_MODEL_PARALLEL_GROUP");
  return group == trace.groups.end() ? Ranks{} : group->second;
}

std::optional<ExpertRows> add_rows(const std::vector<Trace>& traces, const std::vector<MappedKernels>& kernels,
                                   const costmodel::Step& step, std::vector<RankReport>& ranks) {
  const double predicted = predicted_rows(step);
  const std::int64_t row_bytes = 2 * step.context.model.hidden_size;  // bf16.
  std::vector<std::vector<std::int64_t>> rows;
  rows.reserve(traces.size());
  for (std::size_t t = 0; t < traces.size(); ++t) {
    rows.push_back(rows_of(traces[t]));
    if (rows.back().empty() && predicted > 0.0)
      rows.back() = received_rows(traces[t], kernels[t], predicted, row_bytes);
  }
  const auto mean = [](const std::vector<std::int64_t>& of) {
    return of.empty() ? 0.0 : std::accumulate(of.begin(), of.end(), 0.0) / static_cast<double>(of.size());
  };
  for (std::size_t t = 0; t < traces.size(); ++t) ranks[t].rows = mean(rows[t]);
  if (rows[0].empty()) return std::nullopt;
  ExpertRows result;
  result.passes = static_cast<std::int64_t>(rows[0].size());
  result.predicted = predicted;
  result.mean = mean(rows[0]);
  std::vector<std::size_t> same;  // Ranks whose experts share the tokens of the first rank's passes.
  for (std::size_t t = 0; t < traces.size(); ++t)
    if (expert_group(traces[t]) == expert_group(traces[0]) && rows[t].size() == rows[0].size()) same.push_back(t);
  double busiest = 0.0, all = 0.0;
  for (std::size_t k = 0; k < rows[0].size(); ++k) {
    const std::size_t most = *std::ranges::max_element(same, {}, [&](std::size_t t) { return rows[t][k]; });
    ++ranks[most].busiest;
    busiest += static_cast<double>(rows[most][k]);
    for (const std::size_t t : same) all += static_cast<double>(rows[t][k]);
  }
  result.mean_of_ranks = all / static_cast<double>(same.size() * rows[0].size());
  if (all > 0.0) result.busiest_over_mean = busiest * static_cast<double>(same.size()) / all;
  return result;
}

}  // namespace

RankComparison compare_ranks(const std::vector<Trace>& traces, const std::vector<MappedKernels>& kernels,
                             const std::vector<Span>& steps, const costmodel::Step& step) {
  RankComparison result;
  const std::int64_t ranks_per_node = step.context.hardware.network.ranks_per_domain;
  const std::vector<GpuSpeed> speeds = speeds_beside(traces, kernels, steps);
  for (std::size_t t = 0; t < traces.size(); ++t) {
    result.waits.emplace_back(traces[t].gpu.size(), 0);
    RankReport& rank = result.ranks.emplace_back();
    rank.rank = traces[t].rank;
    rank.node = std::max<std::int64_t>(0, rank.rank) / ranks_per_node;
    rank.speed = speeds[t];
  }
  const auto collectives = collectives_of(traces, kernels, steps);
  add_waits(collectives, result);
  result.links = links_of(collectives, ranks_per_node);
  result.rows = add_rows(traces, kernels, step, result.ranks);
  return result;
}

}  // namespace foldwise::planner
