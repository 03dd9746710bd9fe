#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "costmodel/pipeline/task_graph.h"
#include "costmodel/pipeline/timeline.h"

// A schedule as a graph of tasks, for any order and any streams.
namespace foldwise::costmodel {

/// A part of a chunk's task on one stream. The stretches of a task run one after another, except those with `beside`.
struct Stretch {
  Stream stream = Stream::kCompute;
  std::int64_t duration_ps = 0;
  std::int32_t label = 0;  ///< For the caller.
  bool beside = false;     ///< Hidden: it starts with the task, and nothing waits for it.
};

/// Adds the stretches of a rank's task, or of the merged pair if `second` is set. In sequence they take as long as the
/// task: ChunkTicks::of or merged_pair. Delays by collectives beside a first forward or last backward come after them.
using Stretches =
    std::function<void(std::int64_t rank, const Task& task, const Task* second, std::vector<Stretch>& out)>;

/// Labels of stretches that the caller does not provide.
inline constexpr std::int32_t kTransferLabel = -1, kGatherLabel = -2, kReductionLabel = -3, kDelayLabel = -4,
                              kReloadLabel = -5;

struct PipelineGraph {
  struct Placed {
    Task task;
    std::int32_t first = 0, last = 0;  ///< Its first and last stretch in sequence. A merged pair shares both.
    std::int32_t beside = -1;          ///< Its hidden stretch, if any; the last, if several.
    std::int32_t send = -1;            ///< Its transfer, if any.
    std::int32_t before = -1, input = -1, gather = -1;  ///< Tasks that its first stretch waits for; -1: none.
    std::int32_t sent = -1, taken = -1;  ///< Likewise, if blocked: the transfer before, and its receiver's task.
    std::int64_t blocked_ps = 0;         ///< How long the rank waits for its own transfers after the task.
  };
  TaskGraph graph;
  std::vector<std::vector<Placed>> ranks;  ///< [pp], in issue order.
  std::vector<std::int32_t> last;          ///< [pp] The rank's last reduction, or -1.
  std::vector<std::int32_t> reload;        ///< [pp] The reload of the rank's optimizer states, or -1.
  std::vector<std::int32_t> labels;        ///< By task of the graph.
};

/// Every rank's order with its transfers, by the rules of simulate(). Without `stretches` a task is one stretch of
/// compute.
[[nodiscard]] PipelineGraph pipeline_graph(const PipelineTimes& times, const Stretches& stretches = {});

[[nodiscard]] Timeline timeline_of(const PipelineGraph& pipeline);

}  // namespace foldwise::costmodel
