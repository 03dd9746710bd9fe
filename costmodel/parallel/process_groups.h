#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/network/network.h"
#include "costmodel/parallel/options.h"

namespace foldwise::costmodel {

using RankGroup = std::vector<std::int64_t>;

/// Process groups that Megatron creates, by the names of reference rank_cases: "tp", "cp", "dp", "pp", "dp_cp",
/// "tp_cp", "tp_dp", "tp_dp_cp", "mp_tp_pp", "embd" over the dense grid; "etp", "ep", "edp", "etp_ep", "etp_ep_pp" over
/// the expert one. Groups are listed as Megatron's RankGenerator lists them. Throws std::logic_error for an unknown
/// name. Source: RankGenerator in megatron/core/parallel_state.py.
[[nodiscard]] std::vector<RankGroup> process_groups(const Layout& layout, std::string_view name);

/// Groups of the cost model.
enum class Group { kNone, kTp, kCp, kEp, kEtp, kEtpEp, kDpCp, kEdp, kPp, kDp };
/// As process_groups calls it; "" for none.
[[nodiscard]] std::string_view to_string(Group group);

/// Shape on the network of the groups of one kind, ranks laid out one domain of `ranks_per_domain` after the other. All
/// of them wait for each other once a step, so where they lie differently the worst counts: the fewest members in a
/// domain, the most domains and the most leaf switches that any of them has. Closed form from strides: O(1) where the
/// groups divide the domains or are divided by them, else at most one look at each rank of a domain.
[[nodiscard]] GroupShape group_shape(const Layout& layout, Group group, std::int64_t ranks_per_domain);
/// The same on the domains and leaf switches of `network`.
[[nodiscard]] GroupShape group_shape(const Layout& layout, Group group, const Network& network);
/// Of parts of the groups: `ranks` of the members, every `step`th. Requires groups that `ranks` * `step` divides.
[[nodiscard]] GroupShape part_shape(const Layout& layout, Group group, std::int64_t ranks, std::int64_t step,
                                    const Network& network);

}  // namespace foldwise::costmodel
