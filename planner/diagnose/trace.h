#pragma once
#include <cstdint>
#include <istream>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

// A few steps of one rank's GPU and host, recorded by PyTorch's profiler (Kineto) or Nsight Systems.
namespace foldwise::planner {

/// Nanoseconds of the trace's clock.
struct Span {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t length() const { return end - begin; }
};
/// ns. Shorter gaps between operators are ordinary Python, not time outside PyTorch.
inline constexpr std::int64_t kPause = 1'000'000;
[[nodiscard]] inline double seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

struct GpuEvent {
  Span time;
  std::int32_t name = -1;         ///< Index into Trace::names, like the next two.
  std::int32_t group = -1;        ///< NCCL: "EXPERT_MODEL_PARALLEL_GROUP"; else -1.
  std::int32_t collective = -1;   ///< NCCL: "all_to_allv"; else -1.
  std::int32_t message = -1;      ///< NCCL: index into Trace::messages; -1: not recorded.
  std::int32_t stream = -1;       ///< CUDA stream.
  std::int64_t correlation = -1;  ///< Key into Trace::launches: the call that launched it.
};

/// A PyTorch operator, an autograd node or a range that the program marks.
struct HostEvent {
  Span time;
  std::int32_t name = -1, thread = -1;
  std::int64_t sequence = -1;  ///< Shared by a forward function and its autograd node; -1: neither.
  std::int32_t shapes = -1;    ///< Index into Trace::shapes; -1: not recorded.
};

/// A call of the CUDA runtime or driver that starts GPU work.
struct LaunchCall {
  Span time;
  std::int32_t thread = -1;
};

using Shape = std::vector<std::int64_t>;

/// Data that an NCCL kernel moves.
struct Message {
  std::int64_t sent = 0, received = 0;    ///< Bytes of its input and output tensors.
  std::vector<std::int64_t> ranks;        ///< Ranks of its group; empty: not recorded.
  std::int64_t source = -1, target = -1;  ///< Ranks of a point-to-point transfer.
  bool operator<(const Message& other) const {
    return std::tie(sent, received, ranks, source, target) <
           std::tie(other.sent, other.received, other.ranks, other.source, other.target);
  }
};

/// A host request for a point-to-point transfer. One NCCL kernel runs several of them, and does not record which.
struct Transfer {
  std::int64_t time = 0;
  std::int32_t thread = -1, message = -1;
};

/// An allocation or deallocation by the caching allocator.
struct Allocation {
  std::int64_t time = 0, bytes = 0;     ///< Negative: deallocation.
  std::int64_t address = 0, total = 0;  ///< Bytes allocated after it.
  std::int32_t thread = -1;
};

struct Trace {
  std::string file, device;                                 ///< "NVIDIA H200"; empty: not recorded.
  std::int64_t rank = -1, world_size = -1;                  ///< -1: not recorded.
  std::map<std::string, std::vector<std::int64_t>> groups;  ///< Ranks by description: "TENSOR_MODEL_PARALLEL_GROUP".
  std::int64_t most_allocated = -1, most_reserved = -1;     ///< Bytes of the caching allocator; -1: not recorded.
  std::vector<std::string> names;
  std::vector<std::vector<Shape>> shapes;  ///< Shapes of an operator's inputs.
  std::vector<Message> messages;
  std::vector<Transfer> transfers;      ///< By time.
  std::vector<Allocation> allocations;  ///< By time; empty without profile_memory=True.
  std::vector<GpuEvent> gpu;            ///< By begin.
  std::vector<HostEvent> host;          ///< By begin; of events with equal begin the outermost first.
  std::vector<HostEvent> frames;        ///< In the same order: Python calls of at least kPause (with_stack).
  std::unordered_map<std::int64_t, LaunchCall> launches;  ///< By correlation.
  [[nodiscard]] const std::string& name(std::int32_t index) const { return names[static_cast<std::size_t>(index)]; }
  void sort();  ///< Sorts transfers, allocations and events into the orders above.
};

/// Throws config::ConfigError about a profiler's file.
[[noreturn]] void reject(const std::string& file, std::string message);

/// Parses Kineto's JSON. Events longer than a day are left out. Throws as read_trace() does.
[[nodiscard]] Trace parse_trace(std::istream& text, const std::string& name);

/// Per file. More events would need gigabytes of memory.
inline constexpr std::size_t kMostEvents = 10'000'000;

/// Reads the traces of a file: one of a .json or gzip file, one per process of a file by `nsys export --type sqlite`
/// (nsys.h). JSON is read event by event, in tens of bytes of memory per event. Throws ConfigError: no file, not JSON,
/// truncated, not a trace of PyTorch's profiler, no kernels, more than kMostEvents, or larger texts than a profiler
/// writes.
[[nodiscard]] std::vector<Trace> read_trace(const std::string& path);

/// Reads several files. Throws one ConfigError with the mistakes of all.
[[nodiscard]] std::vector<Trace> read_traces(const std::vector<std::string>& paths);

}  // namespace foldwise::planner
