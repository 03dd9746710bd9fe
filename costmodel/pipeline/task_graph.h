#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "costmodel/enums.h"

// Tasks on the streams of every pipeline rank, with their dependencies. It is independent of models and schedules.
namespace foldwise::costmodel {

/// A stream runs a rank's tasks one after another, in the order in which they were added.
enum class Stream : std::uint8_t {
  kCompute,
  kTensor,  ///< TP and CP collectives.
  kExpert,  ///< EP exchange, ETP.
  kData,    ///< Gradient reduction and parameter gather.
  kSendActivations,
  kSendGradients,
  kCopyToHost,
  kCopyFromHost,
  kHost,
};
inline constexpr std::size_t kStreams = enumerators<Stream>();

struct GraphTask {
  std::int32_t rank = 0;
  Stream stream = Stream::kCompute;
  std::int64_t duration_ps = 0;
};

class TaskGraph {
 public:
  /// Adds a task and returns its number. It runs after the last task added to the same stream of the same rank.
  std::int32_t add(const GraphTask& task);
  /// `task` starts after `earlier` has ended. Either may have been added first.
  void depend(std::int32_t task, std::int32_t earlier) { edges_.emplace_back(earlier, task); }

  [[nodiscard]] const std::vector<GraphTask>& tasks() const { return tasks_; }
  /// The last task of every stream of every rank that has one.
  [[nodiscard]] std::vector<std::int32_t> last_of_streams() const;
  /// Edges (earlier, later), including those of the streams.
  [[nodiscard]] const std::vector<std::pair<std::int32_t, std::int32_t>>& edges() const { return edges_; }

 private:
  std::vector<GraphTask> tasks_;
  std::vector<std::pair<std::int32_t, std::int32_t>> edges_;
  std::vector<std::int32_t> last_;  ///< [rank * kStreams + stream] last task, or -1.
};

struct Execution {
  std::vector<std::int64_t> start_ps;  ///< By task.
  std::int64_t makespan_ps = 0;
};
/// Starts every task as soon as all tasks that it waits for have ended. Time is integer, and the result does not depend
/// on the order in which tasks of different streams were added. O(tasks + edges). Throws std::logic_error if tasks wait
/// for each other.
[[nodiscard]] Execution execute(const TaskGraph& graph);

struct CriticalPath {
  std::vector<std::int32_t> tasks;     ///< A longest chain, from first to last.
  std::vector<std::int64_t> slack_ps;  ///< By task: how much longer it could take without a later end.
  std::int64_t length_ps = 0;          ///< Length of the chain; equals the makespan.
};
/// Computed with Boost.Graph, independently of execute().
[[nodiscard]] CriticalPath critical_path(const TaskGraph& graph);

}  // namespace foldwise::costmodel
