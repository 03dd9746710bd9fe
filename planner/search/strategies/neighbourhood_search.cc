#include "planner/search/strategies/neighbourhood_search.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "planner/search/neighbourhood.h"
#include "planner/search/strategies/state.h"
#include "planner/search/threads.h"

namespace foldwise::planner {
namespace {

/// The incumbent's choice of attention and experts.
Assignment node_of(const SearchState& search, const Solution& incumbent) {
  return search.order.in_order(incumbent.assignment, search.order.end_of(Level::kExperts));
}

/// The incumbent's node and those neighbours whose bounds are below the incumbent's time, least bound first.
std::vector<Node> neighbours(SearchState& search, const Solution& incumbent) {
  const double limit = search.incumbents.fastest();
  std::vector<Assignment> near = {node_of(search, incumbent)};
  Neighbourhood moves = neighbourhood_of(search.problem, search.order, near.front(), incumbent.options);
  std::ranges::move(moves.ones, std::back_inserter(near));
  std::ranges::move(moves.twos, std::back_inserter(near));
  std::vector<std::optional<std::pair<double, Assignment>>> bounded(near.size());
  tbb::parallel_for(std::size_t{0}, near.size(), [&](std::size_t i) { bounded[i] = search.worker().node(near[i]); });
  std::vector<Node> nodes;
  std::set<Assignment> known;
  for (const auto& node : bounded)
    if (node && node->first < limit && known.insert(node->second).second)
      nodes.push_back({node->first, node->second, Level::kExperts});
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

}  // namespace

void NeighbourhoodSearch::begin(const SearchState& search) {
  const SearchParameters& p = search.parameters;
  own_ = {.budget = {.most = p.own_effort}};
  dives_ = {.budget = p.dive, .from = p.centres};
  explored_ = {.budget = {.most = p.neighbour_effort}};
  wide_ = {.budget = p.wide_dive};
  longest_ = {.budget = {.most = p.longest_effort}, .from = p.centres};
}

bool NeighbourhoodSearch::step(SearchState& search) {
  if (const std::optional<Solution> centre = next_centre(search, own_)) {
    explore_own(search, *centre);
    return true;
  }
  return explore(search, dives_) || explore(search, explored_) || explore(search, wide_) || explore_centres(search);
}

std::optional<Solution> NeighbourhoodSearch::next_centre(SearchState& search, Pass& pass) {
  for (Solution& incumbent : search.incumbents.first(pass.from))
    if (pass.centres.insert(node_of(search, incumbent)).second) return std::move(incumbent);
  return std::nullopt;
}

bool NeighbourhoodSearch::explore(SearchState& search, Pass& pass) {
  const std::optional<Solution> centre = next_centre(search, pass);
  if (!centre) return false;
  const std::vector<Node> nodes = neighbours(search, *centre);
  const double enough = (1.0 - search.parameters.enough) * search.incumbents.fastest();
  for (std::size_t from = 0; from < nodes.size() && search.incumbents.fastest() > enough && search.may_improve();) {
    std::vector<Node> some;
    for (; from < nodes.size() && some.size() < search.parameters.batch; ++from)
      if (pass.seen.insert(nodes[from].assignment).second) some.push_back(nodes[from]);
    search.explore(std::move(some), pass.budget);
  }
  return true;
}

/// Explores the node. Meanwhile the other threads, which would be idle, dive below its neighbours with as much effort
/// in all.
void NeighbourhoodSearch::explore_own(SearchState& search, const Solution& centre) {
  std::vector<Assignment> nodes = {node_of(search, centre)};
  const auto beside = static_cast<std::size_t>(own_.budget.most / dives_.budget.most);
  for (Node& node : neighbours(search, centre))
    if (nodes.size() <= beside && dives_.seen.insert(node.assignment).second)
      nodes.push_back(std::move(node.assignment));
  std::vector<Explored> explored(nodes.size());
  side_by_side(nodes.size(), [&](std::size_t i) {
    explored[i] = search.worker().explore(nodes[i], search.incumbents, i == 0 ? own_.budget : dives_.budget);
  });
  search.offer(explored);
}

/// Explores the centres' own nodes for longest, side by side. False if that was done before.
bool NeighbourhoodSearch::explore_centres(SearchState& search) {
  std::vector<Node> nodes;
  while (const std::optional<Solution> centre = next_centre(search, longest_))
    nodes.push_back({.assignment = node_of(search, *centre)});
  if (nodes.empty()) return false;
  search.explore(std::move(nodes), longest_.budget);
  return true;
}

}  // namespace foldwise::planner
