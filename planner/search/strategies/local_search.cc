#include "planner/search/strategies/local_search.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <vector>

#include "planner/search/strategies/state.h"

namespace foldwise::planner {
namespace {

Neighbourhood around(const SearchState& search, const Solution& centre) {
  return neighbourhood_of(search.problem, search.order, search.order.in_order(centre.assignment, search.order.size()),
                          centre.options);
}

}  // namespace

void LocalSearch::begin(const SearchState& search) { left_ = search.share(search.parameters.local_share); }

bool LocalSearch::step(SearchState& search) {
  const std::int64_t before = search.effort();
  const bool moved = left_ > 0 && move(search, search.parameters.local_centres, before + left_);
  left_ -= search.effort() - before;
  return moved;
}

void LocalSearch::descend(SearchState& search, std::int64_t effort) {
  const Incumbents& incumbents = search.incumbents;
  const std::int64_t end = search.effort() + effort;
  for (double before = incumbents.fastest(); search.effort() < end && move(search, 1, end);
       before = incumbents.fastest())
    if (incumbents.fastest() < before) search.refine(incumbents.first(1));
}

void LocalSearch::repair(SearchState& search, const Solution& start, std::int64_t end) {
  const Neighbourhood near = around(search, start);
  static_cast<void>(any_faster(search, {search.order.in_order(start.assignment, search.order.size())}, start, end) ||
                    any_faster(search, near.ones, start, end) || any_faster(search, near.twos, start, end));
}

/// False if all incumbents were centres already.
bool LocalSearch::move(SearchState& search, std::size_t from, std::int64_t end) {
  for (const Solution& centre : search.incumbents.first(from))
    if (centres_.insert({centre.assignment, centre.options.pipeline.layout}).second) {
      const Neighbourhood near = around(search, centre);
      static_cast<void>(any_faster(search, near.ones, centre, end) || any_faster(search, near.twos, centre, end));
      return true;
    }
  return false;
}

bool LocalSearch::any_faster(SearchState& search, const std::vector<Assignment>& neighbours, const Solution& centre,
                             std::int64_t end) {
  const std::size_t batch = search.parameters.local_batch;
  bool any = false;
  for (std::size_t from = 0; from < neighbours.size() && !any && search.effort() < end; from += batch) {
    std::vector<Explored> tried(std::min(batch, neighbours.size() - from));
    tbb::parallel_for(std::size_t{0}, tried.size(),
                      [&](std::size_t i) { tried[i] = search.worker().faster_than(centre, neighbours[from + i]); });
    search.offer(tried);
    any = std::ranges::any_of(tried, [](const Explored& explored) { return !explored.found.empty(); });
  }
  return any;
}

}  // namespace foldwise::planner
