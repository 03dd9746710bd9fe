#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "kernels/cuda/memory_kernels.h"
#include "kernels/cuda/settings.h"

namespace foldwise::kernels {
namespace {

using hwprofiles::Measurement;

class PinnedBuffer {
 public:
  explicit PinnedBuffer(std::size_t bytes) { check(cudaMallocHost(&data_, bytes), "pinned memory"); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  ~PinnedBuffer() { cudaFreeHost(data_); }
  [[nodiscard]] void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

constexpr std::size_t kMostBytes = std::size_t{1} << 30;

struct HostSide {
  PinnedBuffer to_device{kMostBytes}, from_device{kMostBytes};
  Stream back;
  Event fork{cudaEventDisableTiming}, join{cudaEventDisableTiming};
};

struct CopySet {
  void *from, *to;
};

bool same_bytes(const void* device_a, const void* b, std::size_t bytes, cudaMemcpyKind kind) {
  std::vector<char> left(bytes), right(bytes);
  check(cudaMemcpy(left.data(), device_a, bytes, cudaMemcpyDeviceToHost), "compare");
  if (kind == cudaMemcpyDeviceToDevice)
    check(cudaMemcpy(right.data(), b, bytes, cudaMemcpyDeviceToHost), "compare");
  else
    std::memcpy(right.data(), b, bytes);
  return left == right;
}

void time_and_note(Device& device, Measurement& m, bool correct, int rotations,
                   const std::function<void(int)>& launch) {
  m.correct = correct;
  if (correct) device.time(m, rotations, launch);
}

Setting device_copy(Device& device, std::int64_t size, bool own) {
  const auto bytes = static_cast<std::size_t>(size);
  return {.measurement = {.kernel = "copy",
                          .of = {{"direction", "d2d"}, {"by", own ? "kernel" : "driver"}},
                          .shape = {{"bytes", size}},
                          .bytes = 2.0 * static_cast<double>(size)},
          .floor_us = 2e6 * static_cast<double>(size) / device.facts().memory_rate,
          .run = [=, &device](Measurement& m) {
            std::vector<CopySet> sets;
            const int rotations = device.rotations(m.bytes);
            sets.reserve(static_cast<std::size_t>(rotations));
            for (int i = 0; i < rotations; ++i)
              sets.push_back({device.pool(Type::kBf16).take(bytes), device.results().take(bytes)});
            const auto launch = [&](int i) {
              const CopySet& set = sets[static_cast<std::size_t>(i)];
              if (own)
                copy(set.from, set.to, size, device.stream());
              else
                check(cudaMemcpyAsync(set.to, set.from, bytes, cudaMemcpyDeviceToDevice, device.stream()), "copy");
            };
            launch(0);
            device.synchronize();
            const bool correct =
                same_bytes(sets[0].to, sets[0].from, std::min(bytes, std::size_t{1} << 26), cudaMemcpyDeviceToDevice);
            time_and_note(device, m, correct, rotations, launch);
          }};
}

// Copies `size` bytes in one direction or in both at once.
Setting host_copy(Device& device, const std::shared_ptr<HostSide>& host, std::int64_t size, bool to_device,
                  bool to_host) {
  const auto bytes = static_cast<std::size_t>(size);
  const char* direction = to_device && to_host ? "both" : to_device ? "h2d" : "d2h";
  return {
      .measurement = {.kernel = "copy",
                      .of = {{"direction", direction}},
                      .shape = {{"bytes", size}},
                      .bytes = static_cast<double>(size) * (to_device && to_host ? 2.0 : 1.0)},
      // PCIe 5.0 x16: 63 GB/s in each direction, without packet headers.
      .floor_us = static_cast<double>(size) / 63e3,
      .run = [=, &device](Measurement& m) {
        void *from = device.pool(Type::kBf16).take(bytes), *to = device.results().take(bytes);
        std::memset(host->to_device.data(), 0x5a, bytes);
        const auto launch = [&](int) {
          if (to_device && to_host) {
            check(cudaEventRecord(host->fork, device.stream()), "fork");
            check(cudaStreamWaitEvent(host->back, host->fork, 0), "fork");
          }
          cudaStream_t back = to_device ? static_cast<cudaStream_t>(host->back) : device.stream();
          if (to_device)
            check(cudaMemcpyAsync(to, host->to_device.data(), bytes, cudaMemcpyHostToDevice, device.stream()), "copy");
          if (to_host)
            check(cudaMemcpyAsync(host->from_device.data(), from, bytes, cudaMemcpyDeviceToHost, back), "copy");
          if (to_device && to_host) {
            check(cudaEventRecord(host->join, host->back), "join");
            check(cudaStreamWaitEvent(device.stream(), host->join, 0), "join");
          }
        };
        launch(0);
        device.synchronize();
        const std::size_t compared = std::min(bytes, std::size_t{1} << 24);
        const bool correct = (!to_device || same_bytes(to, host->to_device.data(), compared, cudaMemcpyHostToDevice)) &&
                             (!to_host || same_bytes(from, host->from_device.data(), compared, cudaMemcpyDeviceToHost));
        time_and_note(device, m, correct, 1, launch);
      }};
}

Setting launches(Device& device, std::int64_t kernels, bool graph) {
  return {.measurement = {.kernel = "launch",
                          .of = {{"mode", graph ? "graph" : "stream"}},
                          .shape = {{"kernels", kernels}}},
          .run = [=, &device](Measurement& m) {
            auto* data = static_cast<float*>(device.results().take(1024));
            const auto work = [&] {
              for (std::int64_t i = 0; i < kernels; ++i) fill_zero(data, 256, device.stream());
            };
            work();
            device.synchronize();
            std::array<float, 256> values{};
            check(cudaMemcpy(values.data(), data, sizeof values, cudaMemcpyDeviceToHost), "result");
            m.correct = std::all_of(values.begin(), values.end(), [](float x) { return x == 0.0F; });
            if (graph) {
              device.time_graph_replays(m, work);
              return;
            }
            m.warmups = 3;
            for (int i = -m.warmups; i < device.effort().samples; ++i) {
              const auto start = std::chrono::steady_clock::now();
              work();
              device.synchronize();
              const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
              if (i >= 0) m.samples_us.push_back(took.count());
            }
          }};
}

}  // namespace

std::vector<Setting> copy_settings(Device& device, bool quick) {
  std::vector<Setting> settings;
  for (std::int64_t bytes = 1 << 20; bytes <= (std::int64_t{2} << 30); bytes *= quick ? 32 : 4) {
    settings.push_back(device_copy(device, bytes, true));
    settings.push_back(device_copy(device, bytes, false));
  }
  const auto host = std::make_shared<HostSide>();
  for (std::int64_t bytes = 1 << 12; bytes <= static_cast<std::int64_t>(kMostBytes); bytes *= quick ? 64 : 8) {
    settings.push_back(host_copy(device, host, bytes, true, false));
    settings.push_back(host_copy(device, host, bytes, false, true));
    settings.push_back(host_copy(device, host, bytes, true, true));
  }
  return settings;
}

std::vector<Setting> launch_settings(Device& device, bool quick) {
  std::vector<Setting> settings;
  for (const std::int64_t kernels : {1, 10, 100, 1000})
    for (const bool graph : {false, true})
      if (!quick || kernels == 100) settings.push_back(launches(device, kernels, graph));
  return settings;
}

}  // namespace foldwise::kernels
