#include "costmodel/parallel/process_groups.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "costmodel/check.h"
#include "costmodel/enums.h"

namespace foldwise::costmodel {
namespace {

/// Axes of a grid, as bits of a selection. kTp of the expert grid is ETP.
enum Axis : unsigned { kTp = 1, kCp = 2, kEp = 4, kDp = 8, kPp = 16 };

struct AxisSize {
  Axis axis;
  std::int64_t size;
};

/// Dense grid TP x CP x DP x PP or expert grid ETP x EP x EDP x PP, leftmost axis fastest.
using Grid = std::array<AxisSize, 5>;

Grid make_grid(const Layout& layout, bool expert, RankOrder order) {
  const AxisSize tp{kTp, expert ? layout.etp : layout.tp}, cp{kCp, expert ? 1 : layout.cp};
  const AxisSize ep{kEp, expert ? layout.ep : 1}, dp{kDp, expert ? layout.edp() : layout.dp}, pp{kPp, layout.pp};
  if (order == RankOrder::kTpCpEpDpPp) return {tp, cp, ep, dp, pp};
  return {tp, cp, ep, pp, dp};
}

/// Every combination of the selected (or, if not, the other) axes' indices as a rank offset, first axis fastest.
std::vector<std::int64_t> offsets(const Grid& grid, unsigned mask, bool selected) {
  std::vector<std::int64_t> result{0};
  std::int64_t stride = 1;
  for (const AxisSize& axis : grid) {
    if (((mask & axis.axis) != 0) == selected) {
      const std::size_t inner = result.size();
      for (std::int64_t index = 1; index < axis.size; ++index) {
        for (std::size_t i = 0; i < inner; ++i) result.push_back(result[i] + index * stride);
      }
    }
    stride *= axis.size;
  }
  return result;
}

std::vector<RankGroup> enumerate(const Grid& grid, unsigned mask) {
  const std::vector<std::int64_t> members = offsets(grid, mask, true);
  std::vector<RankGroup> groups;
  for (const std::int64_t base : offsets(grid, mask, false)) {
    RankGroup& group = groups.emplace_back();
    group.reserve(members.size());
    for (const std::int64_t member : members) group.push_back(base + member);
  }
  return groups;
}

struct NamedGroup {
  std::string_view name;
  bool expert;
  unsigned mask;
};
constexpr std::array kNamedGroups = {
    NamedGroup{"tp", false, kTp},
    NamedGroup{"cp", false, kCp},
    NamedGroup{"dp", false, kDp},
    NamedGroup{"pp", false, kPp},
    NamedGroup{"dp_cp", false, kDp | kCp},
    NamedGroup{"tp_cp", false, kTp | kCp},
    NamedGroup{"tp_dp", false, kTp | kDp},
    NamedGroup{"tp_dp_cp", false, kTp | kDp | kCp},
    NamedGroup{"mp_tp_pp", false, kTp | kPp},
    NamedGroup{"embd", false, kPp},
    NamedGroup{"etp", true, kTp},
    NamedGroup{"ep", true, kEp},
    NamedGroup{"edp", true, kDp},
    NamedGroup{"etp_ep", true, kTp | kEp},
    NamedGroup{"etp_ep_pp", true, kTp | kEp | kPp},
};

/// Ranks 0, stride, 2 stride, ... (`size` of them): the group of rank 0 in the default order.
struct Progression {
  std::int64_t size, stride;
};

Progression group_of_rank_0(const Layout& layout, Group group) {
  switch (group) {
    case Group::kNone:
      return {1, 1};
    case Group::kTp:
      return {layout.tp, 1};
    case Group::kCp:
      return {layout.cp, layout.tp};
    case Group::kDpCp:
      return {layout.dp_cp(), layout.tp};  // CP and DP are neighbours: one stride serves both.
    case Group::kDp:
      return {layout.dp, layout.tp * layout.cp};
    case Group::kEtp:
      return {layout.etp, 1};
    case Group::kEp:
      return {layout.ep, layout.etp};
    case Group::kEtpEp:
      return {layout.etp * layout.ep, 1};
    case Group::kEdp:
      return {layout.edp(), layout.etp * layout.ep};
    case Group::kPp:
      return {layout.pp, layout.tp * layout.cp * layout.dp};
  }
  return {1, 1};
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

GroupShape shape_of(std::int64_t size, std::int64_t stride, std::int64_t domain) {
  FW_CHECK(domain >= 1);
  if (stride >= domain) return {.ranks = size, .ranks_per_domain = 1};
  // Domain d holds the members k with d * domain <= k * stride < (d + 1) * domain: ceil((d + 1) domain / stride) -
  // ceil(d domain / stride) of them, which is domain / stride rounded up or down. Only the last domain holds fewer.
  const std::int64_t whole = (size - 1) * stride / domain;  // Domains before the last one.
  const std::int64_t in_whole = ceil_div(whole * domain, stride);
  const std::int64_t in_last = size - in_whole;
  if (whole == 0) return {.ranks = size, .ranks_per_domain = size};
  const std::int64_t rounded_up = ceil_div(domain, stride);
  const std::int64_t smallest_whole = in_whole < whole * rounded_up ? domain / stride : rounded_up;
  return {.ranks = size, .ranks_per_domain = std::min(smallest_whole, in_last)};
}

GroupShape shape_of(std::int64_t size, std::int64_t stride, const Network& network) {
  GroupShape shape = shape_of(size, stride, network.ranks_per_domain);
  if (network.domains_per_leaf == 0) return shape;
  const std::int64_t ranks_per_leaf = network.domains_per_leaf * network.ranks_per_domain;
  shape.leaves = std::min(size, (size - 1) * stride / ranks_per_leaf + 1);
  return shape;
}

}  // namespace

std::vector<RankGroup> process_groups(const Layout& layout, std::string_view name, RankOrder order) {
  const auto* const named = std::find_if(kNamedGroups.begin(), kNamedGroups.end(),
                                         [&](const NamedGroup& candidate) { return candidate.name == name; });
  FW_CHECK(named != kNamedGroups.end(), "no process group is called " + std::string(name));
  std::vector<RankGroup> groups = enumerate(make_grid(layout, named->expert, order), named->mask);
  if (name == "embd") {  // First and last rank of every pipeline.
    for (RankGroup& group : groups) {
      if (group.size() > 2) group = {group.front(), group.back()};
    }
  }
  return groups;
}

std::string_view to_string(Group group) {
  constexpr auto kNames = names_of<Group>("", "tp", "cp", "ep", "etp", "etp_ep", "dp_cp", "edp", "pp", "dp");
  return kNames.at(static_cast<std::size_t>(group));
}

GroupShape group_shape(const Layout& layout, Group group, std::int64_t ranks_per_domain) {
  const auto [size, stride] = group_of_rank_0(layout, group);
  return shape_of(size, stride, ranks_per_domain);
}

GroupShape group_shape(const Layout& layout, Group group, const Network& network) {
  const auto [size, stride] = group_of_rank_0(layout, group);
  return shape_of(size, stride, network);
}

GroupShape part_shape(const Layout& layout, Group group, std::int64_t ranks, std::int64_t step,
                      const Network& network) {
  return shape_of(ranks, step * group_of_rank_0(layout, group).stride, network);
}

}  // namespace foldwise::costmodel
