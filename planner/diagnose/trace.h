#pragma once
#include <cstdint>
#include <istream>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

// What one rank's GPU and host did in a few steps, as PyTorch's profiler (Kineto) or Nsight Systems recorded it.
namespace foldwise::planner {

/// Nanoseconds of the trace's own clock.
struct Span {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t length() const { return end - begin; }
};
/// ns. For a shorter time, nothing of PyTorch is mere Python between operators.
inline constexpr std::int64_t kPause = 1'000'000;
[[nodiscard]] inline double seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

/// A kernel, copy or fill on the GPU.
struct GpuEvent {
  Span time;
  std::int32_t name = -1;         ///< Index into Trace::names, as the next two.
  std::int32_t group = -1;        ///< NCCL: "EXPERT_MODEL_PARALLEL_GROUP"; else -1.
  std::int32_t collective = -1;   ///< NCCL: "all_to_allv"; else -1.
  std::int32_t message = -1;      ///< NCCL: index into Trace::messages; -1: not recorded.
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

/// What a kernel of NCCL moves.
struct Message {
  std::int64_t sent = 0, received = 0;    ///< Bytes of the tensors that it is given and that it fills.
  std::vector<std::int64_t> ranks;        ///< Of its group; empty: not said.
  std::int64_t source = -1, target = -1;  ///< Ranks, of a transfer between two.
  bool operator<(const Message& other) const {
    return std::tie(sent, received, ranks, source, target) <
           std::tie(other.sent, other.received, other.ranks, other.source, other.target);
  }
};

/// The host asks for a transfer between two ranks: a kernel of NCCL does several at once, and does not say which.
struct Transfer {
  std::int64_t time = 0;
  std::int32_t thread = -1, message = -1;
};

/// The caching allocator gives memory of the GPU, or takes it back.
struct Allocation {
  std::int64_t time = 0, bytes = 0;     ///< Taken back: below 0.
  std::int64_t address = 0, total = 0;  ///< Bytes allocated after it.
  std::int32_t thread = -1;
};

struct Trace {
  std::string file, device;                                 ///< "NVIDIA H200"; empty: not said.
  std::int64_t rank = -1, world_size = -1;                  ///< -1: not said.
  std::map<std::string, std::vector<std::int64_t>> groups;  ///< Ranks by description: "TENSOR_MODEL_PARALLEL_GROUP".
  std::int64_t most_allocated = -1, most_reserved = -1;     ///< Bytes of the caching allocator. -1: not recorded.
  std::vector<std::string> names;
  std::vector<std::vector<Shape>> shapes;  ///< Of an operator's inputs.
  std::vector<Message> messages;
  std::vector<Transfer> transfers;                        ///< By time.
  std::vector<Allocation> allocations;                    ///< By time; empty without profile_memory=True.
  std::vector<GpuEvent> gpu;                              ///< By begin.
  std::vector<HostEvent> host;                            ///< By begin; of equal ones the outermost first.
  std::vector<HostEvent> frames;                          ///< Likewise: Python's calls of kPause and more (with_stack).
  std::unordered_map<std::int64_t, LaunchCall> launches;  ///< By correlation.
  [[nodiscard]] const std::string& name(std::int32_t index) const { return names[static_cast<std::size_t>(index)]; }
  void sort();  ///< Brings transfers, allocations and events into their orders.
};

/// Throws config::ConfigError of a file of a profiler.
[[noreturn]] void reject(const std::string& file, std::string message);

/// Of JSON. Events longer than a day are left out. Throws as read_trace().
[[nodiscard]] Trace parse_trace(std::istream& text, const std::string& name);

/// Of a file. More would take gigabytes.
inline constexpr std::size_t kMostEvents = 10'000'000;

/// Reads .json or gzip, event by event: it needs tens of bytes an event, not the file; that is one trace. Of what `nsys
/// export --type sqlite` writes, one for each process (nsys.h). Throws ConfigError: no file, no JSON, cut short, no
/// trace of PyTorch's profiler, no kernel in it, more than kMostEvents, more text in a value or in all that differ than
/// a profiler writes.
[[nodiscard]] std::vector<Trace> read_trace(const std::string& path);

/// Of several files, with the mistakes of all in one ConfigError.
[[nodiscard]] std::vector<Trace> read_traces(const std::vector<std::string>& paths);

}  // namespace foldwise::planner
