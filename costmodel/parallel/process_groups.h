#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/network/network.h"
#include "costmodel/parallel/options.h"

namespace foldwise::costmodel {

using RankGroup = std::vector<std::int64_t>;

/// The process groups that Megatron creates, by the names of the reference rank_cases: "tp", "cp", "dp", "pp", "dp_cp",
/// "tp_cp", "tp_dp", "tp_dp_cp", "mp_tp_pp", "embd" on the dense grid; "etp", "ep", "edp", "etp_ep", "etp_ep_pp" on the
/// expert grid. The order is that of Megatron's RankGenerator. Throws std::logic_error for an unknown name. Source:
/// RankGenerator in megatron/core/parallel_state.py.
[[nodiscard]] std::vector<RankGroup> process_groups(const Layout& layout, std::string_view name);

/// Groups of the cost model.
enum class Group { kNone, kTp, kCp, kEp, kEtp, kEtpEp, kDpCp, kEdp, kPp, kDp };
/// The name for process_groups(); "" for kNone.
[[nodiscard]] std::string_view to_string(Group group);

/// Shape on the network of all groups of one kind, with ranks filling one domain of `ranks_per_domain` after the other.
/// All groups wait for each other once a step, so the worst values are used: the fewest members in a domain, the most
/// domains and the most leaf switches of any group. Closed form from strides. O(1) if the groups divide the domains or
/// are divided by them; otherwise each rank of a domain is looked at once at most.
[[nodiscard]] GroupShape group_shape(const Layout& layout, Group group, std::int64_t ranks_per_domain);
/// The same on the domains and leaf switches of `network`.
[[nodiscard]] GroupShape group_shape(const Layout& layout, Group group, const Network& network);
/// Shape of parts of the groups: `ranks` of the members with stride `step`. `ranks` * `step` must divide the groups.
[[nodiscard]] GroupShape part_shape(const Layout& layout, Group group, std::int64_t ranks, std::int64_t step,
                                    const Network& network);

}  // namespace foldwise::costmodel
