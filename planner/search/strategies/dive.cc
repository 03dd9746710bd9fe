#include "planner/search/strategies/dive.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "planner/search/strategies/state.h"

namespace foldwise::planner {
namespace {

/// The choice of attention with the least bound for each size of TP and of the micro-batch.
std::vector<Assignment> most_promising(SearchState& search) {
  std::map<std::pair<std::int64_t, std::int64_t>, Assignment> by_sizes;
  for (SearchState::OpenNodes open = search.open; !open.empty(); open.pop()) {
    const costmodel::LayerOptions o = search.worker().options_of(open.top().assignment);
    by_sizes.try_emplace({o.tp, o.micro_batch}, open.top().assignment);
  }
  std::vector<Assignment> list;
  list.reserve(by_sizes.size());
  for (const auto& [sizes, assignment] : by_sizes) list.push_back(assignment);
  return list;
}

}  // namespace

bool Dive::step(SearchState& search) {
  const SearchParameters& p = search.parameters;
  std::vector<std::vector<Node>> children =
      search.children(most_promising(search), search.incumbents.limit(), p.dive_rounds, false);
  for (std::vector<Node>& list : children) std::sort(list.begin(), list.end());
  const auto explore = [&](std::size_t round, Budget budget) {
    std::vector<Node> nodes;
    for (const std::vector<Node>& list : children)
      if (round < list.size()) nodes.push_back(list[round]);
    search.explore(std::move(nodes), budget);
  };
  for (std::size_t round = 0; round < p.dive_rounds; ++round) {
    if ((round > 0 && search.effort() >= search.share(p.dive_share)) || !search.goes_on()) break;
    explore(round, p.dive);
  }
  // Where hardly anything fits, the choices with the least bounds do not.
  for (std::size_t round = 0; round < p.dive_rounds && !search.found(); ++round) {
    if (!search.may_improve() || !search.goes_on()) break;
    explore(round, {.most = p.neighbour_effort});
  }
  return false;
}

}  // namespace foldwise::planner
