#pragma once
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "costmodel/network/fabric.h"
#include "costmodel/parallel/options.h"
#include "costmodel/parallel/process_groups.h"

// Load of the links in a step from the GPUs of one pipeline rank.
namespace foldwise::costmodel {

/// Bytes that each GPU of pipeline rank `rank` sends in a step.
struct StageTraffic {
  std::int64_t rank = 0;
  std::map<std::pair<CollectiveKind, Group>, Bytes> collectives;  ///< In each group, as collective_time defines them.
  std::map<Group, ExchangeVolume> exchanges;
  std::map<std::int64_t, Bytes> sent;  ///< To its peer on another pipeline rank.
  Bytes to_host{};
};

/// A job with fewer data-parallel ranks whose links have the same loads and names as in the whole job. The places of
/// groups in domains and below leaf switches repeat after a period: the least common multiple of the repeating groups
/// and of leaf_span(). So of each pipeline rank (of all together, if pipeline ranks are adjacent) only a beginning and
/// an end are kept in which every case occurs. That is a few periods, however large the job is. A shorter job is not
/// changed.
struct ShortJob {
  Layout layout;
  std::vector<Fabric::Repeat> repeats;
};
[[nodiscard]] ShortJob short_job(const Layout& layout, const Network& network);

/// Routes every message of the traffic of a pipeline rank of `layout` over the GPUs of `job`, which is short_job() or
/// {layout, {}} for the whole job. All-to-alls and exchanges do not run over data-parallel groups.
[[nodiscard]] Fabric routed(const StageTraffic& traffic, const Layout& layout, const ShortJob& job,
                            const Network& network, Bandwidth host_link);

}  // namespace foldwise::costmodel
