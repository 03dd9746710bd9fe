#include "costmodel/parallel/process_groups.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace foldwise::costmodel::process_groups_test {
namespace {

// Are the process groups those that Megatron's RankGenerator creates, in its order?
TEST(ProcessGroups, EqualEveryListThatMegatronMade) {
  std::ifstream file(FW_GOLDEN_DIR "/rank_cases.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  std::size_t lists = 0;
  for (const nlohmann::json& example : golden.at("cases")) {
    const Layout layout{.tp = example.at("tp"),
                        .cp = example.at("cp"),
                        .dp = example.at("dp"),
                        .pp = example.at("pp"),
                        .ep = example.at("ep"),
                        .etp = example.at("etp"),
                        .tp_pp_dp = example.at("order") == "tp-cp-ep-pp-dp"};
    ASSERT_EQ(layout.world(), example.at("world_size").get<std::int64_t>());
    EXPECT_EQ(layout.edp(), example.at("edp").get<std::int64_t>());
    for (const char* grid : {"dense_groups", "expert_groups"}) {
      for (const auto& [name, groups] : example.at(grid).items()) {
        EXPECT_EQ(process_groups(layout, name), groups.get<std::vector<RankGroup>>())
            << example.at("note") << ": " << name;
        ++lists;
      }
    }
  }
  EXPECT_EQ(lists, 14U * 15U);
}

TEST(ProcessGroups, OfAnUnknownNameAreAnError) { EXPECT_THROW((void)process_groups({}, "dp-cp"), std::logic_error); }

// Any folded layout: the expert grid divides the ranks of a stage in another way.
Layout any_layout() {
  const auto small = rc::gen::element<std::int64_t>(1, 2, 3, 4, 6, 8);
  Layout layout{.tp = *small, .cp = *small, .dp = *small, .pp = *rc::gen::inRange<std::int64_t>(1, 5)};
  const std::int64_t stage = layout.tp * layout.cp * layout.dp;
  layout.etp = *rc::gen::element<std::int64_t>(1, layout.tp);
  layout.ep = 1;
  for (std::int64_t n = stage / layout.etp; n > 1;) {  // A random divisor of the rest, from its factors.
    std::int64_t factor = 2;
    while (n % factor != 0) ++factor;
    if (*rc::gen::arbitrary<bool>()) layout.ep *= factor;
    n /= factor;
  }
  if (*rc::gen::arbitrary<bool>()) {
    layout.tp_pp_dp = true;
    layout.cp = 1;
    layout.ep = layout.tp / layout.etp;
  }
  return layout;
}

// Does every list of groups cut the world into disjoint groups of one size?
RC_GTEST_PROP(ProcessGroups, CutTheWorldIntoEqualParts, ()) {
  const Layout layout = any_layout();
  for (const char* name : {"tp", "cp", "dp", "pp", "dp_cp", "tp_cp", "tp_dp", "tp_dp_cp", "mp_tp_pp", "etp", "ep",
                           "edp", "etp_ep", "etp_ep_pp"}) {
    std::set<std::int64_t> seen;
    const std::vector<RankGroup> groups = process_groups(layout, name);
    for (const RankGroup& group : groups) {
      RC_ASSERT(group.size() == groups.front().size());
      seen.insert(group.begin(), group.end());
    }
    RC_ASSERT(static_cast<std::int64_t>(seen.size()) == layout.world());
    RC_ASSERT(static_cast<std::int64_t>(groups.size() * groups.front().size()) == layout.world());
  }
}

// Worst shape found by counting the members of every group per domain: fewest in a domain, most domains.
GroupShape counted(const std::vector<RankGroup>& groups, std::int64_t domain) {
  GroupShape shape{.ranks = static_cast<std::int64_t>(groups.front().size()),
                   .ranks_per_domain = static_cast<std::int64_t>(groups.front().size())};
  std::int64_t domains = 1;
  for (const RankGroup& members : groups) {
    std::map<std::int64_t, std::int64_t> per_domain;
    for (const std::int64_t rank : members) ++per_domain[rank / domain];
    for (const auto& [index, count] : per_domain) shape.ranks_per_domain = std::min(shape.ranks_per_domain, count);
    domains = std::max(domains, static_cast<std::int64_t>(per_domain.size()));
  }
  if (domains * shape.ranks_per_domain != shape.ranks) shape.uneven_domains = domains;
  return shape;
}

// Does the closed form of a group's shape agree with counting the members of every group per domain?
RC_GTEST_PROP(GroupShape, EqualsCountingTheMembersPerDomain, ()) {
  const Layout layout = any_layout();
  const std::int64_t domain = *rc::gen::element<std::int64_t>(1, 2, 3, 4, 5, 6, 7, 8, 12, 18, 36, 64, 72);
  const std::vector<std::pair<Group, const char*>> named{
      {Group::kTp, "tp"},        {Group::kCp, "cp"},      {Group::kEp, "ep"},
      {Group::kEtp, "etp"},      {Group::kDp, "dp"},      {Group::kEdp, "edp"},
      {Group::kEtpEp, "etp_ep"}, {Group::kDpCp, "dp_cp"}, {Group::kPp, "pp"}};
  for (const auto& [group, name] : named)
    RC_ASSERT(group_shape(layout, group, domain) == counted(process_groups(layout, name), domain));
}

// DeepSeek-V3 on 256 GPUs, EP64 PP4, 64 GPUs of an NVL72 rack in use: experts stay inside, EDP = 1, and so does data
// parallelism.
TEST(GroupShape, OfExpertsThatFillARackStaysInside) {
  const Layout layout{.dp = 64, .pp = 4, .ep = 64};
  EXPECT_EQ(group_shape(layout, Group::kEp, 64), (GroupShape{.ranks = 64, .ranks_per_domain = 64}));
  EXPECT_EQ(group_shape(layout, Group::kEp, 8), (GroupShape{.ranks = 64, .ranks_per_domain = 8}));
  EXPECT_EQ(group_shape(layout, Group::kPp, 64), (GroupShape{.ranks = 4, .ranks_per_domain = 1}));
  EXPECT_EQ(group_shape(layout, Group::kNone, 64), (GroupShape{.ranks = 1, .ranks_per_domain = 1}));
}

// DP64 over nodes of eight, in 4 instances of 16: an instance spans two nodes, and the four ranks of one place span
// four.
TEST(PartShape, CountsTheMembersOfAPart) {
  Network network;
  const Layout layout{.dp = 64};
  EXPECT_EQ(part_shape(layout, Group::kDpCp, 16, 1, network), (GroupShape{.ranks = 16, .ranks_per_domain = 8}));
  EXPECT_EQ(part_shape(layout, Group::kDpCp, 4, 16, network), (GroupShape{.ranks = 4, .ranks_per_domain = 1}));
  EXPECT_EQ(part_shape(layout, Group::kDpCp, 64, 1, network), group_shape(layout, Group::kDpCp, network));
}

// 12 expert ranks over nodes of 8: 8 on the first, 4 on the second. The smaller share and two domains count.
TEST(GroupShape, OfAGroupThatStraddlesNodesIsItsSmallestShare) {
  const GroupShape shape = group_shape({.dp = 24, .ep = 12}, Group::kEp, 8);
  EXPECT_EQ(shape, (GroupShape{.ranks = 12, .ranks_per_domain = 4, .uneven_domains = 2}));
  EXPECT_EQ(shape.domains(), 2);
}

// PP2 on 12 GPUs in nodes of 8: the data-parallel group of the first stage lies in one node, that of the second has two
// ranks there and four in the next. TP3 on 9 GPUs: only the third group straddles nodes.
TEST(GroupShape, IsThatOfTheWorstGroup) {
  EXPECT_EQ(group_shape({.dp = 6, .pp = 2}, Group::kDp, 8),
            (GroupShape{.ranks = 6, .ranks_per_domain = 2, .uneven_domains = 2}));
  EXPECT_EQ(group_shape({.tp = 3, .dp = 2}, Group::kTp, 8), (GroupShape{.ranks = 3, .ranks_per_domain = 3}));
  EXPECT_EQ(group_shape({.tp = 3, .dp = 3}, Group::kTp, 8),
            (GroupShape{.ranks = 3, .ranks_per_domain = 1, .uneven_domains = 2}));
}

}  // namespace
}  // namespace foldwise::costmodel::process_groups_test
