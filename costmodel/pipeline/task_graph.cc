#include "costmodel/pipeline/task_graph.h"

#include <algorithm>
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/graph/dag_shortest_paths.hpp>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/check.h"

namespace foldwise::costmodel {
namespace {

/// Negative duration of the task at the edge's begin: the shortest path is then the longest one.
struct EdgeWeight {
  std::int64_t ps = 0;
};
using Weighted = boost::compressed_sparse_row_graph<boost::directedS, boost::no_property, EdgeWeight>;

/// Edges, collected before the graph is built.
struct Edges {
  std::vector<std::pair<std::size_t, std::size_t>> ends;
  std::vector<EdgeWeight> weights;
  explicit Edges(std::size_t count) {
    ends.reserve(count);
    weights.reserve(count);
  }
  void add(std::size_t from, std::size_t to, std::int64_t duration) {
    ends.emplace_back(from, to);
    weights.push_back({-duration});
  }
  [[nodiscard]] Weighted graph(std::size_t vertices) const {
    return {boost::edges_are_unsorted_multi_pass, ends.begin(), ends.end(), weights.begin(), vertices};
  }
};

// Longest distance from `source` to the start of every task. An edge has the duration of the task at its begin.
std::vector<std::int64_t> longest_from(const Weighted& graph, std::size_t source) {
  std::vector<std::int64_t> distance(num_vertices(graph));
  dag_shortest_paths(graph, source, boost::distance_map(distance.data()).weight_map(get(&EdgeWeight::ps, graph)));
  for (std::int64_t& d : distance) d = -d;
  return distance;
}

}  // namespace

std::int32_t TaskGraph::add(const GraphTask& task) {
  const auto number = static_cast<std::int32_t>(tasks_.size());
  const std::size_t stream = static_cast<std::size_t>(task.rank) * kStreams + static_cast<std::size_t>(task.stream);
  if (stream >= last_.size()) last_.resize((static_cast<std::size_t>(task.rank) + 1) * kStreams, -1);
  if (last_[stream] >= 0) depend(number, last_[stream]);
  last_[stream] = number;
  tasks_.push_back(task);
  return number;
}

std::vector<std::int32_t> TaskGraph::last_of_streams() const {
  std::vector<std::int32_t> last;
  std::ranges::copy_if(last_, std::back_inserter(last), [](std::int32_t task) { return task >= 0; });
  return last;
}

Execution execute(const TaskGraph& graph) {
  const std::vector<GraphTask>& tasks = graph.tasks();
  // Edges sorted by the task at their begin.
  std::vector<std::int32_t> first(tasks.size() + 1, 0), later(graph.edges().size()), waits(tasks.size(), 0);
  for (const auto& [from, to] : graph.edges()) {
    ++first[static_cast<std::size_t>(from) + 1];
    ++waits[static_cast<std::size_t>(to)];
  }
  for (std::size_t i = 0; i < tasks.size(); ++i) first[i + 1] += first[i];
  std::vector<std::int32_t> next(first.begin(), first.end() - 1);
  for (const auto& [from, to] : graph.edges())
    later[static_cast<std::size_t>(next[static_cast<std::size_t>(from)]++)] = to;

  Execution result;
  result.start_ps.assign(tasks.size(), 0);
  std::vector<std::int32_t> ready;
  for (std::size_t i = 0; i < tasks.size(); ++i)
    if (waits[i] == 0) ready.push_back(static_cast<std::int32_t>(i));
  std::size_t done = 0;
  while (!ready.empty()) {
    const auto task = static_cast<std::size_t>(ready.back());
    ready.pop_back();
    ++done;
    const std::int64_t end = result.start_ps[task] + tasks[task].duration_ps;
    result.makespan_ps = std::max(result.makespan_ps, end);
    for (auto i = static_cast<std::size_t>(first[task]); i < static_cast<std::size_t>(first[task + 1]); ++i) {
      const auto follower = static_cast<std::size_t>(later[i]);
      result.start_ps[follower] = std::max(result.start_ps[follower], end);
      if (--waits[follower] == 0) ready.push_back(later[i]);
    }
  }
  FW_CHECK(done == tasks.size(), "the schedule deadlocks: " + std::to_string(tasks.size() - done) + " of " +
                                     std::to_string(tasks.size()) + " tasks wait for each other");
  return result;
}

CriticalPath critical_path(const TaskGraph& graph) {
  const std::vector<GraphTask>& tasks = graph.tasks();
  const std::size_t begin = tasks.size(), end = begin + 1;
  const std::size_t count = 2 * tasks.size() + graph.edges().size();
  Edges downward(count), upward(count);  // From the begin to every start, and from the end to every start.
  const auto link = [&](std::size_t from, std::size_t to) {
    const std::int64_t duration = from < tasks.size() ? tasks[from].duration_ps : 0;
    downward.add(from, to, duration);
    upward.add(to, from, duration);
  };
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    link(begin, i);
    link(i, end);
  }
  for (const auto& [from, to] : graph.edges()) link(static_cast<std::size_t>(from), static_cast<std::size_t>(to));
  const Weighted down = downward.graph(end + 1);
  const std::vector<std::int64_t> head = longest_from(down, begin), tail = longest_from(upward.graph(end + 1), end);

  CriticalPath path;
  path.length_ps = head[end];
  for (std::size_t i = 0; i < tasks.size(); ++i) path.slack_ps.push_back(path.length_ps - head[i] - tail[i]);
  for (std::size_t at = begin; at != end;) {
    const auto [edge, last] = out_edges(at, down);
    const std::int64_t duration = at < tasks.size() ? tasks[at].duration_ps : 0;
    const auto on_path = std::find_if(edge, last, [&](const auto& e) {
      const std::size_t to = target(e, down);
      return head[to] == head[at] + duration && head[to] + tail[to] == path.length_ps;
    });
    at = target(*on_path, down);
    if (at != end) path.tasks.push_back(static_cast<std::int32_t>(at));
  }
  return path;
}

}  // namespace foldwise::costmodel
