// Measures this machine's CUDA devices and appends one record per line to a file (hwprofiles/records). Description of
// the kernels: docs/measuring.md#gpu-kernels.
#include <cublasLt.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <optional>

#include "hwprofiles/records/record.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/settings.h"
#include "kernels/cuda/world.h"

#ifdef FW_HAVE_CUDNN
#include <cudnn.h>
#endif
#ifdef FW_HAVE_NCCL
#include <nccl.h>
#endif

namespace foldwise::kernels {
namespace {

using hwprofiles::Measurement;
using hwprofiles::Session;

// cuBLAS, cuDNN 9 and NCCL use the same version numbers: 91900 is 9.19.0.
std::string dotted(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

std::map<std::string, std::string> library_versions() {
  int runtime = 0;
  check(cudaRuntimeGetVersion(&runtime), "runtime version");
  std::map<std::string, std::string> found{{"cuda", fmt::format("{}.{}", runtime / 1000, runtime % 1000 / 10)},
                                           {"cublasLt", dotted(cublasLtGetVersion())}};
#ifdef FW_HAVE_CUDNN
  found["cudnn"] = dotted(cudnnGetVersion());
#endif
#ifdef FW_HAVE_NCCL
  int nccl = 0;
  if (ncclGetVersion(&nccl) == ncclSuccess) found["nccl"] = dotted(static_cast<std::size_t>(nccl));
#endif
  return found;
}

Session session(const Topology& topology) {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  Session made{.program = "foldwise-kernels-cuda",
               .started = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now)),
               .device = device_facts(0).name,
               .devices = topology.devices() * topology.world().size(),
               .driver = driver_version(),
               .libraries = library_versions(),
               .build = FW_BUILD,
               .clocks = clocks(0),
               .hosts = topology.hosts(),
               .nvlink_domain = topology.domain(),
               .nics = nics()};
  made.id = fmt::format("{}-{}x{}", made.started, made.devices, made.device);
  return made;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Four significant digits, the accuracy of a sample, keep files readable.
double rounded(double value) { return std::strtod(fmt::format("{:.4g}", value).c_str(), nullptr); }

std::string text(const Measurement& m) {
  std::string line = m.kernel;
  for (const auto& [key, value] : m.of) line += " " + value;
  for (const auto& [key, value] : m.shape) line += fmt::format(" {}={}", key, value);
  return line;
}

void report(const Setting& setting, const Measurement& m) {
  if (!m.correct) {
    fmt::print(stderr, "{}: WRONG, relative error {:.2e}\n", text(m), m.max_relative_error);
    return;
  }
  const double us = median(m.samples_us);
  std::string line = fmt::format("{}: {:.4g} us", text(m), us);
  if (setting.floor_us > 0.0)
    line += fmt::format(", floor {:.4g} us ({:.0f} %)", setting.floor_us, 100.0 * setting.floor_us / us);
  if (m.flops > 0.0) line += fmt::format(", {:.0f} TFLOPS", m.flops / us / 1e6);
  if (m.flops == 0.0 && m.bytes > 0.0) line += fmt::format(", {:.0f} GB/s", m.bytes / us / 1e3);
  fmt::print(stderr, "{}, error {:.1e}\n", line, m.max_relative_error);
}

struct Options {
  std::vector<std::string> only;
  std::string out;
  int samples = 9, devices = 0, domain = 0;
  bool list = false, quick = false, thorough = false;
};

/// A kernel kind, in running order. Creates its settings when it is its turn.
struct Kind {
  std::string name;
  std::function<std::vector<Setting>()> settings;
};

/// Half of the GEMM settings, spread over weights, phases and numbers of rows. The fit stays as good in half the time.
std::vector<Setting> halved(std::vector<Setting> settings) {
  std::size_t index = 0;
  std::erase_if(settings, [&](const Setting&) {
    const std::size_t of_four = index++ % 4;
    return of_four == 1 || of_four == 2;
  });
  return settings;
}

std::vector<Kind> kinds(std::optional<Device>& device, const Effort& effort, const Options& options,
                        const Topology& topology) {
  const auto on_device = [&, quick = options.quick](auto make) {
    return [&device, effort, quick, make] {
      if (!device) device.emplace(0, effort);
      return make(*device, quick);
    };
  };
  const auto products = [&, all = options.quick || options.thorough](auto make) {
    return [settings = on_device(make), all] { return all ? settings() : halved(settings()); };
  };
  return {
      {"copy", on_device(copy_settings)},
      {"launch", on_device(launch_settings)},
      {"memory", on_device(memory_settings)},
      {"gemm", products(gemm_settings)},
      {"grouped_gemm", products(grouped_gemm_settings)},
#ifdef FW_HAVE_CUDNN
      {"attention", products(attention_settings)},
#endif
#ifdef FW_HAVE_NCCL
      {"collective", [&, effort] { return collective_settings(topology, effort, options.quick); }},
      {"overlap", [&, effort] { return overlap_settings(topology, effort, options.quick); }},
#endif
  };
}

/// Returns whether all kernels were correct. `first`: this process tells the others which settings are done.
bool measure(const std::vector<Setting>& settings, bool first, hwprofiles::RecordFile* file) {
  bool correct = true;
  for (const Setting& setting : settings) {
    Measurement m = setting.measurement;
    bool known = file != nullptr && file->has(m);
    if (setting.world != nullptr) setting.world->broadcast(&known, sizeof known);
    if (known) continue;
    try {
      setting.run(m);
    } catch (const Unsupported& reason) {
      if (first) fmt::print(stderr, "{}: left out, {}\n", text(m), reason.what());
      continue;
    }
    correct = correct && m.correct;
    if (!first) continue;
    report(setting, m);
    for (double& sample : m.samples_us) sample = rounded(sample);
    m.max_relative_error = rounded(m.max_relative_error);
    if (file != nullptr)
      file->append(m);
    else
      fmt::print("{}\n", hwprofiles::to_json_line(m));
  }
  return correct;
}

int run(const Options& options) {
  const World world;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) devices = 0;
  if (options.devices > 0) devices = std::min(devices, options.devices);
  const Topology topology(world, devices, options.domain);
  if (!topology.trouble().empty()) {
    if (topology.first()) fmt::print(stderr, "foldwise-kernels-cuda: {}\n", topology.trouble());
    return 2;
  }
  const Effort effort{.samples = options.samples};
  std::optional<Device> device;
  std::vector<Kind> all = kinds(device, effort, options, topology);
  for (const std::string& name : options.only)
    if (std::none_of(all.begin(), all.end(), [&](const Kind& kind) { return kind.name == name; })) {
      if (topology.first())
        fmt::print(stderr,
                   "foldwise-kernels-cuda: --only: no kernel \"{}\" in this build; --list shows what there is\n", name);
      return 2;
    }
  if (!topology.first())  // Only the first process measures single-device kernels.
    std::erase_if(all, [](const Kind& kind) { return kind.name != "collective" && kind.name != "overlap"; });
  std::optional<hwprofiles::RecordFile> file;
  if (!options.out.empty() && topology.first()) file.emplace(options.out, session(topology));
  if (options.out.empty() && !options.list && topology.first())
    fmt::print("{}\n", hwprofiles::to_json_line(session(topology)));
  bool correct = true;
  for (const Kind& kind : all) {
    if (!options.only.empty() && std::find(options.only.begin(), options.only.end(), kind.name) == options.only.end())
      continue;
    const auto start = std::chrono::steady_clock::now();
    const std::vector<Setting> settings = kind.settings();
    if (options.list) {
      if (topology.first())
        for (const Setting& setting : settings) fmt::print("{}\n", text(setting.measurement));
      continue;
    }
    correct = measure(settings, topology.first(), file ? &*file : nullptr) && correct;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (topology.first())
      fmt::print(stderr, "-- {}: {} settings, {:.1f} s\n", kind.name, settings.size(), took.count());
  }
  return correct ? 0 : 1;
}

}  // namespace
}  // namespace foldwise::kernels

int main(int argc, char** argv) {
  CLI::App app("Measure this machine's CUDA devices; records as JSON Lines");
  foldwise::kernels::Options options;
  app.add_flag("--list", options.list, "Print the settings and measure nothing");
  app.add_option("--only", options.only,
                 "Kernels: copy, launch, memory, gemm, grouped_gemm, attention, collective, overlap")
      ->delimiter(',');
  app.add_option("--out", options.out, "File to append to; what it holds already is not measured again");
  CLI::Option* quick = app.add_flag("--quick", options.quick, "A few settings of each kernel: a minute");
  app.add_flag("--thorough", options.thorough, "All products, not every other one: five minutes")->excludes(quick);
  app.add_option("--samples", options.samples, "Timed samples a setting")->check(CLI::Range(1, 1000));
  app.add_option("--devices", options.devices, "Devices used at most")->check(CLI::Range(1, 1024));
  app.add_option("--nvlink-domain", options.domain, "Devices that share NVLink, of several hosts too; else a host's")
      ->check(CLI::Range(1, 1024));
  CLI11_PARSE(app, argc, argv);
  try {
    return foldwise::kernels::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "foldwise-kernels-cuda: {}\n", error.what());
    return 1;
  }
}
