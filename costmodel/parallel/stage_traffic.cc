#include "costmodel/parallel/stage_traffic.h"

#include <numeric>

#include "costmodel/check.h"

namespace foldwise::costmodel {

ShortJob short_job(const Layout& layout, const Network& network) {
  // If pipeline ranks are adjacent, all of them are one stretch of ranks that repeats.
  const std::int64_t stretches = layout.tp_pp_dp ? 1 : layout.pp, stage = layout.world() / stretches;
  const std::int64_t of_dp = stage / layout.dp, span = leaf_span(network);
  if (span > stage) return {.layout = layout, .repeats = {}};
  // After a period all groups begin anew, except data-parallel ones. These are rings with a member at the same place.
  const std::int64_t period = std::lcm(span, std::lcm(of_dp, layout.etp * layout.ep));
  FW_CHECK(period >= 1);
  // Both ends of a pipeline rank differ: rings close there, and domains are shared with another pipeline rank. An end
  // reaches to the next member of a ring, which is a period or the next domain away.
  const std::int64_t end = period + span, times = (stage - 3 * end) / period;
  if (times < 1) return {.layout = layout, .repeats = {}};
  ShortJob job{.layout = layout, .repeats = {}};
  job.layout.dp -= times * period / of_dp;
  const std::int64_t kept = stage - times * period;
  for (std::int64_t rank = 0; rank < stretches; ++rank)
    job.repeats.push_back({.at = (rank * kept + 2 * end) / span * span, .period = period, .times = times});
  return job;
}

Fabric routed(const StageTraffic& traffic, const Layout& layout, const ShortJob& job, const Network& network,
              Bandwidth host_link) {
  Layout stage = job.layout;
  stage.pp = 1;
  stage.tp_pp_dp = false;
  const std::int64_t size = stage.world(), neighbours = stage.tp * stage.cp;
  const auto global = [&](std::int64_t pipeline_rank, std::int64_t in_stage) {
    return job.layout.tp_pp_dp
               ? in_stage % neighbours + neighbours * (pipeline_rank + job.layout.pp * (in_stage / neighbours))
               : pipeline_rank * size + in_stage;
  };
  Fabric fabric(network, host_link, job.layout.world(), job.repeats);
  const auto groups_of = [&](Group group) {
    if (group == Group::kPp) return process_groups(job.layout, "embd");  // The op belongs to the first and last stage.
    std::vector<RankGroup> groups = process_groups(stage, to_string(group));
    for (RankGroup& members : groups)
      for (std::int64_t& member : members) member = global(traffic.rank, member);
    return groups;
  };
  const auto members = [&](const Layout& l, Group group) {
    return static_cast<double>(group_shape(l, group, network).ranks);
  };
  for (const auto& [key, bytes] : traffic.collectives) {
    const auto& [kind, group] = key;
    Bytes own = bytes;  // Bytes with which rings of the remaining members carry the load of the full rings.
    if (const double all = members(layout, group), kept = members(job.layout, group); all != kept) {
      FW_CHECK(kind != CollectiveKind::kAllToAll);
      own *= wire_factor(kind, all) / wire_factor(kind, kept);
    }
    for (const RankGroup& ranks : groups_of(group)) fabric.collective(kind, ranks, own);
  }
  for (const auto& [to_rank, bytes] : traffic.sent)
    for (std::int64_t i = 0; i < size; ++i) fabric.send(global(traffic.rank, i), global(to_rank, i), bytes);
  for (const auto& [group, volume] : traffic.exchanges)
    for (const RankGroup& ranks : groups_of(group)) fabric.exchange(ranks, volume);
  if (traffic.to_host > Bytes{})
    for (std::int64_t i = 0; i < size; ++i) fabric.copy_to_host(global(traffic.rank, i), traffic.to_host);
  return fabric;
}

}  // namespace foldwise::costmodel
