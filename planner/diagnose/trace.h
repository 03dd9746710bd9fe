#pragma once
#include <cstdint>
#include <istream>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

// A trace of PyTorch's profiler (Kineto): what one rank's GPU and host did in a few steps.
namespace foldwise::planner {

/// Nanoseconds of the trace's own clock.
struct Span {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t length() const { return end - begin; }
};

/// A kernel, copy or fill on the GPU.
struct GpuEvent {
  Span time;
  std::int32_t name = -1;         ///< Index into Trace::names, as the next two.
  std::int32_t group = -1;        ///< NCCL: "EXPERT_MODEL_PARALLEL_GROUP"; else -1.
  std::int32_t collective = -1;   ///< NCCL: "all_to_allv"; else -1.
  std::int32_t stream = -1;       ///< Of CUDA.
  std::int64_t correlation = -1;  ///< Of the call that launched it: key of Trace::launches.
};

/// An operator of PyTorch, a node of autograd or a range that the program marks.
struct HostEvent {
  Span time;
  std::int32_t name = -1, thread = -1;
  std::int64_t sequence = -1;  ///< The same for a forward function and its node of autograd; -1: neither.
  std::int32_t shapes = -1;    ///< Index into Trace::shapes; -1: not recorded.
};

/// A call of CUDA's runtime or driver that starts work on the GPU.
struct LaunchCall {
  Span time;
  std::int32_t thread = -1;
};

using Shape = std::vector<std::int64_t>;

struct Trace {
  std::string file, device;                                 ///< "NVIDIA H200"; empty: not said.
  std::int64_t rank = -1, world_size = -1;                  ///< -1: not said.
  std::map<std::string, std::vector<std::int64_t>> groups;  ///< Ranks by description: "TENSOR_MODEL_PARALLEL_GROUP".
  std::int64_t most_allocated = -1, most_reserved = -1;     ///< Bytes of the caching allocator. -1: not recorded.
  std::vector<std::string> names;
  std::vector<std::vector<Shape>> shapes;                 ///< Of an operator's inputs.
  std::vector<GpuEvent> gpu;                              ///< By begin.
  std::vector<HostEvent> host;                            ///< By begin; of equal ones the outermost first.
  std::unordered_map<std::int64_t, LaunchCall> launches;  ///< By correlation.
  [[nodiscard]] const std::string& name(std::int32_t index) const { return names[static_cast<std::size_t>(index)]; }
};

/// Of JSON. Events longer than a day are left out. Throws as read_trace().
[[nodiscard]] Trace parse_trace(std::istream& text, const std::string& name);

/// Reads .json or gzip, event by event: it needs tens of bytes an event, not the file. Throws ConfigError: no file, no
/// JSON, cut short, no trace of PyTorch's profiler, no kernel in it.
[[nodiscard]] Trace read_trace(const std::string& path);

/// Several, with the mistakes of all in one ConfigError.
[[nodiscard]] std::vector<Trace> read_traces(const std::vector<std::string>& paths);

}  // namespace foldwise::planner
