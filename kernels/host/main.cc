// foldwise-kernels: measures this machine's CPU, and appends one JSON record per setting to a file
// (hwprofiles/records).
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <tbb/task_arena.h>
#include <tbb/version.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <Eigen/Core>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "hwprofiles/records/record.h"
#include "kernels/host/settings.h"

namespace foldwise::kernels {

void time(hwprofiles::Measurement& measurement, const Effort& effort, const std::function<void()>& kernel) {
  measurement.warmups = effort.warmups;
  for (int i = 0; i < effort.warmups; ++i) kernel();
  for (int i = 0; i < effort.samples; ++i) {
    const auto start = std::chrono::steady_clock::now();
    kernel();
    measurement.samples_us.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
}

namespace {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown CPU";
}

hwprofiles::Session session() {
  const std::time_t now = std::time(nullptr);
  return {
      .id = fmt::format("{}-{}", now, getpid()),
      .program = "foldwise-kernels",
      .started = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now)),
      .device = cpu_name(),
      .devices = tbb::this_task_arena::max_concurrency(),
      .libraries = {{"eigen", fmt::format("{}.{}.{}", EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION)},
                    {"tbb", fmt::format("{}.{}", TBB_VERSION_MAJOR, TBB_VERSION_MINOR)}},
      .build = "gcc " __VERSION__};
}

constexpr int kRounds = 2;

int run(const std::string& out, const std::vector<std::string>& only, bool list, const Effort& effort) {
  std::vector<Setting> settings;
  for (const auto& kind : {gemm_settings, memory_settings, copy_settings, launch_settings})
    for (Setting& setting : kind(effort))
      if (only.empty() || std::find(only.begin(), only.end(), setting.measurement.kernel) != only.end())
        settings.push_back(std::move(setting));
  if (list) {
    for (const Setting& setting : settings) fmt::print("{}\n", hwprofiles::setting_of(setting.measurement));
    return 0;
  }
  hwprofiles::RecordFile file(out, session());
  const std::size_t all = settings.size();
  std::erase_if(settings, [&](const Setting& setting) { return file.has(setting.measurement); });
  // In rounds, so that seconds of other work on the machine do not affect all samples of a setting. Its last line
  // counts.
  const int rounds = effort.quick ? 1 : kRounds;
  const std::size_t runs = static_cast<std::size_t>(rounds) * settings.size();
  const bool watched = isatty(STDERR_FILENO) == 1;
  std::size_t done = 0;
  int wrong = 0;
  for (int round = 0; round < rounds; ++round)
    for (Setting& setting : settings) {
      if (watched) fmt::print(stderr, "\r\033[K{} of {}: {}", ++done, runs, setting.measurement.kernel);
      setting.run(setting.measurement);
      if (setting.measurement.correct) {
        file.append(setting.measurement);
        continue;
      }
      fmt::print(stderr, "{}: wrong by {:.2g}, not recorded\n", hwprofiles::setting_of(setting.measurement),
                 setting.measurement.max_relative_error);
      ++wrong;
    }
  if (watched) fmt::print(stderr, "\r\033[K");
  fmt::print(stderr, "{} of {} settings measured, {} were in {}\n", settings.size(), all, all - settings.size(), out);
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace foldwise::kernels

int main(int argc, char** argv) {
  CLI::App app("Measures this machine's CPU and appends one JSON record a setting to a file");
  std::string out;
  std::vector<std::string> only;
  bool list = false;
  foldwise::kernels::Effort effort;
  auto* file =
      app.add_option("--out", out, "File of records (JSON Lines); settings that it has are not measured again");
  app.add_option("--only", only, "Kernels to measure: gemm, memory, copy, launch")->delimiter(',');
  app.add_flag("--list", list, "Print the settings instead")->excludes(file);
  app.add_flag("--quick", effort.quick, "A few settings of each kernel, three samples each");
  app.add_option("--samples", effort.samples, "Timed calls a setting and round")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (effort.quick && app.count("--samples") == 0) effort.samples = 3;
  if (!list && out.empty()) {
    fmt::print(stderr, "foldwise-kernels: give --out FILE or --list\n");
    return 2;
  }
  try {
    return foldwise::kernels::run(out, only, list, effort);
  } catch (const std::exception& error) {
    fmt::print(stderr, "foldwise-kernels: {}\n", error.what());
    return 1;
  }
}
