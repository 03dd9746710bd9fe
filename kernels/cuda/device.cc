#include "kernels/cuda/device.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

namespace foldwise::kernels {

using hwprofiles::Measurement;

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

std::size_t bytes_of(Type type, std::int64_t elements) {
  const auto count = static_cast<std::size_t>(elements);
  switch (type) {
    case Type::kBf16:
      return 2 * count;
    case Type::kFp8E4m3:
    case Type::kFp8E5m2:
      return count;
    case Type::kFp4E2m1:
      return count / 2;
    case Type::kFp32:
      return 4 * count;
  }
  throw std::logic_error("type");
}

DeviceFacts device_facts(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "device properties");
  int sm_khz = 0, memory_khz = 0;
  check(cudaDeviceGetAttribute(&sm_khz, cudaDevAttrClockRate, device), "SM clock");
  check(cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, device), "memory clock");
  return {.name = properties.name,
          .capability = properties.major * 10 + properties.minor,
          .sms = properties.multiProcessorCount,
          .l2_bytes = static_cast<std::size_t>(properties.l2CacheSize),
          .memory_bytes = properties.totalGlobalMem,
          .sm_hz = 1e3 * sm_khz,
          .memory_rate = 2.0 * 1e3 * memory_khz * properties.memoryBusWidth / 8.0};
}

// Dense FLOPs per clock of an SM: NVIDIA's architecture white papers (A100 2048 BF16; H100 4096 BF16, 8192 FP8; B200
// twice that, FP4 32768).
double DeviceFacts::peak(const std::string& format) const {
  double per_clock = capability >= 100 ? 8192.0 : capability >= 90 ? 4096.0 : 2048.0;
  if (format == "fp8") per_clock *= capability >= 89 ? 2.0 : 0.0;
  if (format == "fp8_block") per_clock *= capability == 90 ? 2.0 : 0.0;
  if (format == "mxfp8") per_clock *= capability >= 100 ? 2.0 : 0.0;
  if (format == "nvfp4") per_clock *= capability >= 100 ? 4.0 : 0.0;
  return per_clock * sms * sm_hz;
}

Buffer::Buffer(std::size_t bytes) : size_(bytes) {
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), "device memory");
  data_.reset(data);
}

Stream::Stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  stream_.reset(stream);
}

Event::Event(unsigned flags) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, flags), "event");
  event_.reset(event);
}

double microseconds(const Event& from, const Event& to) {
  float milliseconds = 0.0F;
  check(cudaEventElapsedTime(&milliseconds, from, to), "elapsed time");
  return 1e3 * static_cast<double>(milliseconds);
}

Pool::Pool(Type type, std::size_t bytes, cudaStream_t stream) : buffer_(bytes) {
  const auto elements = static_cast<std::int64_t>(type == Type::kFp4E2m1 ? 2 * bytes : bytes / bytes_of(type, 1));
  fill_normal(buffer_.data(), type, elements, 1 + static_cast<std::uint64_t>(type), stream);
}

void* Pool::take(std::size_t bytes) {
  const std::size_t aligned = (bytes + 255) / 256 * 256;
  if (aligned > buffer_.size()) throw Unsupported("larger than the memory set aside for operands");
  if (next_ + aligned > buffer_.size()) next_ = 0;
  void* slice = buffer_.as<std::byte>() + next_;
  next_ += aligned;
  return slice;
}

Device::Device(int ordinal, Effort effort)
    : facts_(device_facts(ordinal)),
      effort_(effort),
      lead_in_(4 * facts_.l2_bytes),
      pools_(static_cast<std::size_t>(Type::kFp32) + 1) {}

Pool& Device::pool(Type type) {
  std::unique_ptr<Pool>& pool = pools_[static_cast<std::size_t>(type)];
  if (!pool) pool = std::make_unique<Pool>(type, facts_.memory_bytes / (bytes_of(type, 2) > 2 ? 10 : 32), stream());
  return *pool;
}

Pool& Device::results() {
  if (!results_) results_ = std::make_unique<Pool>(facts_.memory_bytes / 6);
  return *results_;
}

int Device::rotations(double bytes) const {
  return std::clamp(static_cast<int>(std::ceil(2.0 * static_cast<double>(facts_.l2_bytes) / bytes)), 1, 64);
}

namespace {}  // namespace

Graph::Graph(cudaStream_t stream, const std::function<void()>& work) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin of capture");
  work();
  check(cudaStreamEndCapture(stream, &graph), "end of capture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "CUDA graph");
  executable_.reset(executable);
}

void Device::time(Measurement& measurement, int rotations, const std::function<void(int)>& launch) {
  time_graphs(measurement, rotations, 0.0, launch);
}

void Device::time_sustained(Measurement& measurement, int rotations, const std::function<void(int)>& launch) {
  constexpr double kLoadSeconds = 1.5;
  time_graphs(measurement, rotations, kLoadSeconds, launch);
}

void Device::time_graph_replays(Measurement& measurement, const std::function<void()>& work) const {
  measurement.warmups = 3;
  const Graph graph(stream(), work);
  for (int i = -measurement.warmups; i < effort_.samples; ++i) {
    const auto start = std::chrono::steady_clock::now();
    graph.launch(stream());
    synchronize();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    if (i >= 0) measurement.samples_us.push_back(took.count());
  }
}

void Device::time_graphs(Measurement& measurement, int rotations, double load_s,
                         const std::function<void(int)>& launch) {
  constexpr int kMostCalls = 256, kFewestSamples = 5;
  // Pause after a sample of a GEMM, relative to the sample. GEMMs without pauses exceed the power limit, which would
  // make clocks (up to 30 % lower) depend on earlier settings. Sustained load is measured separately. Memory-bound
  // kernels stay below the limit and lose up to 10 % after a pause, so their samples run without one, as in a step.
  constexpr double kRest = 3.0;
  constexpr double kMostUs = 5e4;  // for all samples together, unless the minimum number takes longer
  measurement.warmups = 3;
  std::vector<Event> marks(2);
  for (int i = 0; i < measurement.warmups; ++i) {
    check(cudaEventRecord(marks[0], stream()), "event");
    launch(i % rotations);
    check(cudaEventRecord(marks[1], stream()), "event");
  }
  synchronize();
  const double once = microseconds(marks[0], marks[1]);
  const int calls =
      std::clamp(static_cast<int>(std::ceil(effort_.sample_us / once)), std::min(rotations, 32), kMostCalls);
  const int samples = std::clamp(static_cast<int>(kMostUs / (once * calls)), kFewestSamples, effort_.samples);
  marks.resize(static_cast<std::size_t>(samples) + 1);
  const bool rests = measurement.flops > 0.0 && load_s == 0.0;
  const Graph graph(stream(), [&] {
    for (int i = 0; i < calls; ++i) launch(i % rotations);
  });
  graph.launch(stream());  // uploads the graph
  synchronize();
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed_s = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  while (elapsed_s() < load_s) {
    graph.launch(stream());
    synchronize();
  }
  measurement.samples_us.clear();
  if (!rests) {
    for (std::size_t i = 0; i < marks.size(); ++i) {
      if (i > 0) graph.launch(stream());
      check(cudaEventRecord(marks[i], stream()), "event");
    }
    synchronize();
    for (std::size_t i = 1; i < marks.size(); ++i)
      measurement.samples_us.push_back(microseconds(marks[i - 1], marks[i]) / calls);
    return;
  }
  for (int i = 0; i < samples; ++i) {
    // The host queues the sample during this memset, which also clears the L2 cache.
    check(cudaMemsetAsync(lead_in_.data(), i, lead_in_.size(), stream()), "lead-in");
    check(cudaEventRecord(marks[0], stream()), "event");
    graph.launch(stream());
    check(cudaEventRecord(marks[1], stream()), "event");
    synchronize();
    const double sample_us = microseconds(marks[0], marks[1]);
    measurement.samples_us.push_back(sample_us / calls);
    if (i + 1 < samples)  // The pause before the next setting is the time to create and check it.
      std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(kRest * sample_us));
  }
}

namespace {

// NVML is optional: loaded from the driver at run time. Signatures and constants of nvml.h, version 12.
class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr || call<int()>("nvmlInit_v2")() != 0) library_ = nullptr;
  }
  explicit operator bool() const { return library_ != nullptr; }
  template <typename Signature>
  [[nodiscard]] Signature* call(const char* name) const {
    return reinterpret_cast<Signature*>(dlsym(library_, name));
  }

 private:
  void* library_;
};

const Nvml& nvml() {
  static const Nvml library;
  return library;
}

}  // namespace

std::map<std::string, double> clocks(int device) {
  std::map<std::string, double> found;
  if (!nvml()) return found;
  void* handle = nullptr;
  char bus[32] = {};
  check(cudaDeviceGetPCIBusId(bus, sizeof bus, device), "bus id");
  if (nvml().call<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2")(bus, &handle) != 0) return found;
  constexpr int kSmClock = 1, kMemoryClock = 2;
  unsigned value = 0;
  const auto clock = nvml().call<int(void*, int, unsigned*)>("nvmlDeviceGetClockInfo");
  if (clock(handle, kSmClock, &value) == 0) found["sm_mhz"] = value;
  if (clock(handle, kMemoryClock, &value) == 0) found["memory_mhz"] = value;
  if (nvml().call<int(void*, unsigned*)>("nvmlDeviceGetEnforcedPowerLimit")(handle, &value) == 0)
    found["power_limit_w"] = 1e-3 * value;
  if (nvml().call<int(void*, unsigned*)>("nvmlDeviceGetPowerUsage")(handle, &value) == 0)
    found["power_w"] = 1e-3 * value;
  return found;
}

std::string driver_version() {
  char version[96] = {};
  if (nvml() && nvml().call<int(char*, unsigned)>("nvmlSystemGetDriverVersion")(version, sizeof version) == 0)
    return version;
  int number = 0;
  check(cudaDriverGetVersion(&number), "driver version");
  return "CUDA " + std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

}  // namespace foldwise::kernels
