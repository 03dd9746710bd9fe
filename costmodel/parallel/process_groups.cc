#include "costmodel/parallel/process_groups.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>

#include "costmodel/check.h"
#include "costmodel/enums.h"
#include "costmodel/units/integers.h"

namespace foldwise::costmodel {
namespace {

/// Axes of a grid as bits of a selection. On the expert grid kTp is ETP.
enum Axis : unsigned { kTp = 1, kCp = 2, kEp = 4, kDp = 8, kPp = 16 };

struct AxisSize {
  Axis axis;
  std::int64_t size;
};

/// Dense grid TP x CP x DP x PP or expert grid ETP x EP x EDP x PP, with the leftmost axis fastest: Megatron's order
/// tp-cp-ep-dp-pp, or tp-cp-ep-pp-dp.
using Grid = std::array<AxisSize, 5>;

Grid make_grid(const Layout& layout, bool expert) {
  const AxisSize tp{kTp, expert ? layout.etp : layout.tp}, cp{kCp, expert ? 1 : layout.cp};
  const AxisSize ep{kEp, expert ? layout.ep : 1}, dp{kDp, expert ? layout.edp() : layout.dp}, pp{kPp, layout.pp};
  if (layout.tp_pp_dp) return {tp, cp, ep, pp, dp};
  return {tp, cp, ep, dp, pp};
}

/// Rank offsets of all combinations of the selected axes' indices (or of the other axes' if not `selected`), first axis
/// fastest.
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

/// All groups of one kind. There are `blocks` blocks of size * stride consecutive ranks. Each block is cut into
/// `stride` groups that take every stride'th rank.
struct Groups {
  std::int64_t size, stride, blocks;
  [[nodiscard]] std::int64_t block() const { return size * stride; }
};

Groups every(std::int64_t size, std::int64_t stride, const Layout& layout) {
  return {size, stride, std::max<std::int64_t>(1, layout.world() / (size * stride))};
}

Groups groups_of(const Layout& layout, Group group) {
  FW_CHECK(!layout.tp_pp_dp || layout.cp == 1);                  // Otherwise DP x CP does not have a single stride.
  const std::int64_t between = layout.tp_pp_dp ? layout.pp : 1;  // Pipeline ranks between data-parallel ones.
  switch (group) {
    case Group::kNone:
      return every(1, 1, layout);
    case Group::kTp:
      return every(layout.tp, 1, layout);
    case Group::kCp:
      return every(layout.cp, layout.tp, layout);
    case Group::kDpCp:
      return every(layout.dp_cp(), layout.tp * between, layout);  // CP and DP are adjacent, so one stride serves both.
    case Group::kDp:
      return every(layout.dp, layout.tp * layout.cp * between, layout);
    case Group::kEtp:
      return every(layout.etp, 1, layout);
    case Group::kEp:
      return every(layout.ep, layout.etp, layout);
    case Group::kEtpEp:
      return every(layout.etp * layout.ep, 1, layout);
    case Group::kEdp:
      return every(layout.edp(), layout.etp * layout.ep * between, layout);
    case Group::kPp:
      return every(layout.pp, layout.tp * layout.cp * (layout.tp_pp_dp ? 1 : layout.dp), layout);
  }
  return {1, 1, 1};
}

/// Number of blocks after which the places within `unit` ranks repeat.
std::int64_t distinct_blocks(const Groups& groups, std::int64_t unit) {
  return std::min(groups.blocks, unit / std::gcd(groups.block(), unit));
}

/// Largest number of units of `unit` consecutive ranks in which a group has members.
std::int64_t most_units(const Groups& groups, std::int64_t unit) {
  const auto [size, stride, blocks] = groups;
  if (stride >= unit) return size;
  std::int64_t most = 1;
  for (std::int64_t block = 0; block < distinct_blocks(groups, unit); ++block) {
    const std::int64_t last =
        std::min(unit, block * groups.block() % unit + stride) - 1;  // Latest start within a unit.
    most = std::max(most, (last + (size - 1) * stride) / unit + 1);
  }
  return most;
}

/// Fewest members in any domain of a group whose first member is rank `start` of a domain.
std::int64_t fewest_members(std::int64_t size, std::int64_t stride, std::int64_t domain, std::int64_t start) {
  const std::int64_t first = std::min(size, ceil_div(domain - start, stride));
  if (first == size) return size;
  const std::int64_t end = start + (size - 1) * stride, last = end % domain / stride + 1;
  const std::int64_t between = end / domain - 1;  // Domains with domain / stride members each, rounded up or down.
  const std::int64_t fewest = std::min(first, last);
  return between > 0 ? std::min(fewest, (size - first - last) / between) : fewest;
}

GroupShape shape_of(const Groups& groups, std::int64_t domain) {
  FW_CHECK(domain >= 1);
  const auto [size, stride, blocks] = groups;
  if (stride >= domain) return {.ranks = size, .ranks_per_domain = 1};
  if (domain % groups.block() == 0) return {.ranks = size, .ranks_per_domain = size};
  if (groups.block() % domain == 0 && domain % stride == 0) return {.ranks = size, .ranks_per_domain = domain / stride};
  GroupShape shape{.ranks = size, .ranks_per_domain = size};
  for (std::int64_t block = 0; block < distinct_blocks(groups, domain); ++block)
    for (std::int64_t i = 0; i < stride; ++i)
      shape.ranks_per_domain =
          std::min(shape.ranks_per_domain, fewest_members(size, stride, domain, (block * groups.block() + i) % domain));
  const std::int64_t domains = most_units(groups, domain);
  if (shape.ranks_per_domain * domains != size) shape.uneven_domains = domains;
  return shape;
}

GroupShape shape_of(const Groups& groups, const Network& network) {
  GroupShape shape = shape_of(groups, network.ranks_per_domain);
  if (network.domains_per_leaf > 0)
    shape.leaves = most_units(groups, network.domains_per_leaf * network.ranks_per_domain);
  return shape;
}

}  // namespace

std::vector<RankGroup> process_groups(const Layout& layout, std::string_view name) {
  const auto* const named = std::find_if(kNamedGroups.begin(), kNamedGroups.end(),
                                         [&](const NamedGroup& candidate) { return candidate.name == name; });
  FW_CHECK(named != kNamedGroups.end(), "no process group is called " + std::string(name));
  std::vector<RankGroup> groups = enumerate(make_grid(layout, named->expert), named->mask);
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
  return shape_of(groups_of(layout, group), ranks_per_domain);
}

GroupShape group_shape(const Layout& layout, Group group, const Network& network) {
  return shape_of(groups_of(layout, group), network);
}

GroupShape part_shape(const Layout& layout, Group group, std::int64_t ranks, std::int64_t step,
                      const Network& network) {
  return shape_of(every(ranks, step * groups_of(layout, group).stride, layout), network);
}

}  // namespace foldwise::costmodel
