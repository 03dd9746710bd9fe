#pragma once
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "costmodel/network/fabric.h"
#include "costmodel/parallel/options.h"
#include "costmodel/parallel/process_groups.h"

// What the GPUs of one pipeline rank put on which link in a step.
namespace foldwise::costmodel {

/// What each of the GPUs of pipeline rank `rank` sends, summed over a step.
struct StageTraffic {
  std::int64_t rank = 0;
  std::map<std::pair<CollectiveKind, Group>, Bytes> collectives;  ///< In each group; as collective_time defines them.
  std::map<Group, ExchangeVolume> exchanges;
  std::map<std::int64_t, Bytes> sent;  ///< To its peer of another pipeline rank.
  Bytes to_host{};
};

/// A job with fewer data-parallel ranks, each of whose links carries what one of the whole job's does and has its name.
/// Where groups lie in domains and below leaf switches repeats after a number of ranks (the least common multiple of
/// the groups that repeat and of leaf_span), so of every pipeline rank (of all together, where they are neighbours) a
/// beginning and an end are kept in which all that there is occurs: some periods, whatever the size of the job. A job
/// of fewer stays as it is.
struct ShortJob {
  Layout layout;
  std::vector<Fabric::Repeat> repeats;
};
[[nodiscard]] ShortJob short_job(const Layout& layout, const Network& network);

/// Every message of the traffic of a pipeline rank of `layout` routed, over the GPUs of `job`: short_job, or for the
/// whole of it {layout, {}}. All-to-alls and exchanges do not run over data-parallel groups.
[[nodiscard]] Fabric routed(const StageTraffic& traffic, const Layout& layout, const ShortJob& job,
                            const Network& network, Bandwidth host_link);

}  // namespace foldwise::costmodel
