#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "hwprofiles/records/record.h"

// A CUDA device for measurements: its properties, memory with random numbers, and timing.
namespace foldwise::kernels {

/// The device or library does not support a setting, which is then left out.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws std::runtime_error with `what` unless `status` is success.
void check(cudaError_t status, const char* what);

enum class Type { kBf16, kFp8E4m3, kFp8E5m2, kFp4E2m1, kFp32 };
[[nodiscard]] std::size_t bytes_of(Type type, std::int64_t elements);

struct DeviceFacts {
  std::string name;
  int capability = 0;  ///< 90 = sm_90
  int sms = 0;
  std::size_t l2_bytes = 0, memory_bytes = 0;
  double sm_hz = 0.0;        ///< Highest clock of the SMs.
  double memory_rate = 0.0;  ///< Peak memory bandwidth in B/s.
  /// Dense FLOP/s of the tensor cores at the highest clock; 0 if the device does not support the format.
  [[nodiscard]] double peak(const std::string& format) const;
};
[[nodiscard]] DeviceFacts device_facts(int device);

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes);
  [[nodiscard]] void* data() const { return data_.get(); }
  template <typename T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_.get());
  }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(void* data) const { cudaFree(data); }
  };
  std::unique_ptr<void, Free> data_;
  std::size_t size_ = 0;
};

class Stream {
 public:
  Stream();
  operator cudaStream_t() const { return stream_.get(); }

 private:
  struct Destroy {
    void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
  };
  std::unique_ptr<CUstream_st, Destroy> stream_;
};

class Event {
 public:
  explicit Event(unsigned flags = cudaEventDefault);
  operator cudaEvent_t() const { return event_.get(); }

 private:
  struct Destroy {
    void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  };
  std::unique_ptr<CUevent_st, Destroy> event_;
};

/// A CUDA graph of the work that `work` queues on `stream`.
class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& work);
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(executable_.get(), stream), "graph launch"); }

 private:
  struct Destroy {
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  std::unique_ptr<CUgraphExec_st, Destroy> executable_;
};

[[nodiscard]] double microseconds(const Event& from, const Event& to);

/// Writes normal random numbers of variance 1 to `elements` elements of `type` at `data`.
void fill_normal(void* data, Type type, std::int64_t elements, std::uint64_t seed, cudaStream_t stream);
void fill(float* data, float value, std::int64_t elements, cudaStream_t stream);

/// data[i] = factor * ((first + i) mod 251): small integers, whose sums over a few ranks are exact.
void fill_ramp(float* data, float factor, std::int64_t first, std::int64_t elements, cudaStream_t stream);
/// Number of elements that differ from those of fill_ramp().
[[nodiscard]] std::int64_t ramp_errors(const float* data, float factor, std::int64_t first, std::int64_t elements,
                                       cudaStream_t stream);

/// Device memory handed out in slices, cyclically. Consecutive operands have different addresses, so that the L2 cache
/// does not hold them.
class Pool {
 public:
  explicit Pool(std::size_t bytes) : buffer_(bytes) {}
  /// Filled with random numbers.
  Pool(Type type, std::size_t bytes, cudaStream_t stream);
  /// 256 B aligned. Throws Unsupported for more bytes than the pool has.
  [[nodiscard]] void* take(std::size_t bytes);

 private:
  Buffer buffer_;
  std::size_t next_ = 0;
};

/// Number and length of the samples of a setting.
struct Effort {
  int samples = 9;
  double sample_us = 400.0;  ///< Minimum duration of a sample, which repeats the call.
};

/// A device that runs single-device kernels. Creates pools on first use.
class Device {
 public:
  Device(int ordinal, Effort effort);

  [[nodiscard]] const DeviceFacts& facts() const { return facts_; }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  [[nodiscard]] const Effort& effort() const { return effort_; }
  [[nodiscard]] Pool& pool(Type type);
  /// Memory for results, not initialised.
  [[nodiscard]] Pool& results();
  /// Number of operand sets that together exceed twice the L2 cache if one call touches `bytes`.
  [[nodiscard]] int rotations(double bytes) const;
  void synchronize() const { check(cudaStreamSynchronize(stream_), "kernel"); }

  /// Times `launch(i)`, which uses operand set i of `rotations`. It may fork from stream() if it joins again. A sample
  /// is the mean over the calls of one CUDA graph. The device pauses between samples with FLOPs only.
  void time(hwprofiles::Measurement& measurement, int rotations, const std::function<void(int)>& launch);
  /// Host time from launching a CUDA graph of `work` until it ends.
  void time_graph_replays(hwprofiles::Measurement& measurement, const std::function<void()>& work) const;
  /// As time(), after 1.5 s of the same work without pause, so that the power limit has set the clocks.
  void time_sustained(hwprofiles::Measurement& measurement, int rotations, const std::function<void(int)>& launch);

 private:
  void time_graphs(hwprofiles::Measurement& measurement, int rotations, double load_s,
                   const std::function<void(int)>& launch);

  DeviceFacts facts_;
  Effort effort_;
  Stream stream_;
  Buffer lead_in_;
  std::vector<std::unique_ptr<Pool>> pools_;  // by Type
  std::unique_ptr<Pool> results_;
};

/// Current SM clock in MHz from the driver; empty without NVML. Keys as in Session::clocks.
[[nodiscard]] std::map<std::string, double> clocks(int device);
[[nodiscard]] std::string driver_version();

class World;

/// A kernel setting: its description, and how to check and time it.
struct Setting {
  hwprofiles::Measurement measurement;
  double floor_us = 0.0;         ///< The larger of FLOPs over peak and bytes over bandwidth.
  const World* world = nullptr;  ///< All its processes run it together; nullptr: this one alone.
  std::function<void(hwprofiles::Measurement&)> run;
};

}  // namespace foldwise::kernels
