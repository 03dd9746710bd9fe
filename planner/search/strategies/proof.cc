#include "planner/search/strategies/proof.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "planner/search/strategies/state.h"

namespace foldwise::planner {
namespace {

Node take_first(SearchState& search) {
  Node node = search.open.top();
  search.open.pop();
  return node;
}

/// All choices of experts below choices of attention.
std::vector<Node> children_of(SearchState& search, const std::vector<Node>& nodes) {
  constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
  std::vector<Assignment> attentions;
  std::ranges::transform(nodes, std::back_inserter(attentions), &Node::assignment);
  std::vector<Node> all;
  for (std::vector<Node>& list : search.children(attentions, search.incumbents.limit(), kAll, true))
    std::ranges::move(list, std::back_inserter(all));
  search.nodes += static_cast<std::int64_t>(all.size());
  return all;
}

/// Number of choices of experts with bounds below `known`.
std::int64_t doubtful(const std::vector<Node>& experts, double known) {
  return std::ranges::count_if(experts, [&](const Node& node) { return node.bound < known; });
}

bool too_many(const SearchState& search, std::int64_t nodes) {
  return nodes * search.parameters.node_effort > search.left();
}

std::int64_t effort_of_visit(const SearchParameters& p, const Node& node) {
  return p.first_effort << std::min(node.visits, p.most_visits);
}

/// Raises the bounds of the choices of attention with the least bounds: each gets the least bound of its choices of
/// experts. These are not opened.
void raise_bounds(SearchState& search, double limit) {
  const auto raises = [&](const Node& node) {
    return node.level == Level::kAttention && node.visits == 0 && node.bound < limit;
  };
  SearchState::OpenNodes& open = search.open;
  const std::int64_t end = search.effort() + search.share(search.parameters.bounds_share);
  while (!open.empty() && raises(open.top()) && search.effort() < end) {
    std::vector<Assignment> attentions;
    for (; attentions.size() < search.parameters.batch && !open.empty() && raises(open.top()); open.pop())
      attentions.push_back(open.top().assignment);
    const std::vector<std::vector<Node>> below = search.children(attentions, limit, 1, false);
    for (std::size_t i = 0; i < attentions.size(); ++i) {
      const auto least = std::ranges::min_element(below[i], {}, &Node::bound);
      open.push({least == below[i].end() ? limit : least->bound, attentions[i], Level::kAttention, 1});
    }
  }
}

}  // namespace

bool Proof::step(SearchState& search) {
  const double known = search.incumbents.fastest();
  std::vector<Node> experts = open_children(search, known);
  const std::int64_t all = doubtful(experts, known);
  for (Node& node : experts) search.open.push(std::move(node));
  if (too_many(search, all))
    raise_bounds(search, known);
  else
    explore(search, known, all);
  return false;
}

std::vector<Node> Proof::open_children(SearchState& search, double known) {
  std::vector<Node> experts;
  const auto below = [&] { return !search.open.empty() && search.open.top().bound < known; };
  while (search.found() && below() && !too_many(search, doubtful(experts, known)) && search.goes_on()) {
    std::vector<Node> attentions;
    while (attentions.size() < search.parameters.batch && below())
      (search.open.top().level == Level::kAttention ? attentions : experts).push_back(take_first(search));
    std::ranges::move(children_of(search, attentions), std::back_inserter(experts));
  }
  return experts;
}

void Proof::explore(SearchState& search, double known, std::int64_t all) {
  const SearchParameters& p = search.parameters;
  SearchState::OpenNodes& open = search.open;
  const std::int64_t begin = search.effort();
  std::int64_t left = all;  // Nodes that may still be faster than `known`.
  const auto below_limit = [&] { return !open.empty() && open.top().bound < search.incumbents.limit(); };
  const auto affordable = [&] {
    return open.top().level == Level::kAttention || effort_of_visit(p, open.top()) <= search.left();
  };
  const auto improved = [&] {  // The neighbourhood of a better incumbent is searched first.
    return search.incumbents.fastest() < (1.0 - p.enough) * known && search.may_improve();
  };
  const auto hopeless = [&] {
    const std::int64_t spent = search.effort() - begin;
    return p.trying_share * spent > search.problem.effort && left * spent > p.patience * (all - left) * search.left();
  };
  std::size_t batch = 2;
  while (below_limit() && affordable() && search.goes_on() && !improved() && !hopeless()) {
    std::vector<Node> attentions, experts;
    batch = std::min(batch, static_cast<std::size_t>(search.left() / p.first_effort + 1));
    while (experts.size() < batch && attentions.size() < p.proof_batch && below_limit())
      (open.top().level == Level::kAttention ? attentions : experts).push_back(take_first(search));
    if (experts.size() == batch) batch = std::min(2 * batch, p.proof_batch);
    for (Node& node : children_of(search, attentions)) open.push(std::move(node));
    std::vector<Explored> explored(experts.size());
    tbb::parallel_for(std::size_t{0}, experts.size(), [&](std::size_t i) {
      const Node& node = experts[i];
      explored[i] = search.worker(node.visits == 0)
                        .explore(node.assignment, search.incumbents, {.most = effort_of_visit(p, node)});
    });
    for (std::size_t i = 0; i < experts.size(); ++i) {
      const double bound = std::max(experts[i].bound, explored[i].left);
      if (std::isfinite(bound)) open.push({bound, experts[i].assignment, Level::kExperts, experts[i].visits + 1});
      if (experts[i].bound < known && bound >= known) --left;
    }
    search.offer(explored);
  }
}

}  // namespace foldwise::planner
