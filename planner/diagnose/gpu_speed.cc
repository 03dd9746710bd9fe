#include "planner/diagnose/gpu_speed.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace foldwise::planner {
namespace {

// Thresholds. In 39 steps alone on an H100, `products` was 0.80 to 1.02, `spread` 0.02 to 0.10 (a router in FP32) and
// `interrupted` 0. Beside another process, which ran in turns of 2 to 3 ms, `interrupted` was 0.27 to 0.47. A lower
// clock slowed memory-bound kernels by 0.08 of the slowdown of products on an H100, and by 0.52 on an H200, whose
// memory is faster at equal clocks. If all kernels slow down alike the ratio is 1.
constexpr double kSlow = 1.1, kCommon = 0.1, kTurns = 0.05, kOfMemory = 0.75;
constexpr std::int64_t kTurn = 1'000'000;  ///< ns.

/// Products whose time depends on the clock alone. Grouped GEMMs also depend on the rows of each expert.
bool shows_clock(const std::string& kind) { return is_product(kind) && kind != "grouped_gemm"; }

/// A ratio of times, and its denominator as the weight.
using Ratio = std::pair<double, double>;

double median(std::vector<Ratio>& ratios) {
  std::ranges::sort(ratios);
  double all = 0.0, below = 0.0;
  for (const auto& [ratio, weight] : ratios) all += weight;
  for (const auto& [ratio, weight] : ratios)
    if ((below += weight) >= 0.5 * all) return ratio;
  return 1.0;
}

void set_ratios(std::vector<Ratio> products, std::vector<Ratio> memory_bound, GpuSpeed& speed) {
  speed.products = median(products);
  speed.memory_bound = median(memory_bound);
  double all = 0.0, apart = 0.0;
  for (const auto& [ratio, weight] : products) {
    all += weight;
    apart += weight * std::abs(ratio / speed.products - 1.0);
  }
  speed.spread = all > 0.0 ? apart / all : 0.0;
}

const KernelOp& op_of(const MappedKernels& kernels, std::size_t event) {
  return kernels.ops[static_cast<std::size_t>(kernels.op[event])];
}

/// Kernels of the step except the optimizer's, where equal kernels work on lists of different lengths.
template <typename Visit>
void visit_kernels(const Trace& trace, const MappedKernels& kernels, const Span& step, const Visit& visit) {
  for (std::size_t i = 0; i < trace.gpu.size(); ++i) {
    const GpuEvent& e = trace.gpu[i];
    const KernelOp& op = op_of(kernels, i);
    if (e.time.begin >= step.begin && e.time.begin < step.end && op.module != "optimizer") visit(e, op);
  }
}

/// Sets the members that depend on the trace alone.
void set_own(const Trace& trace, const MappedKernels& kernels, const Span& step, GpuSpeed& speed) {
  std::map<std::pair<const KernelOp*, std::int32_t>, std::vector<std::int64_t>> equal;
  visit_kernels(trace, kernels, step, [&](const GpuEvent& e, const KernelOp& op) {
    if (is_product(op.kind)) speed.products_s += seconds(e.time.length());
    if (op.kind == "memory_bound") equal[{&op, e.name}].push_back(e.time.length());
  });
  double all = 0.0, interrupted = 0.0;
  for (auto& [key, times] : equal) {
    std::ranges::sort(times);
    const std::int64_t usual = times[(times.size() - 1) / 4];
    for (const std::int64_t time : times) {
      all += static_cast<double>(time);
      if (usual < kTurn && time - usual >= kTurn) interrupted += static_cast<double>(time - usual);
    }
  }
  speed.interrupted = all > 0.0 ? interrupted / all : 0.0;
}

}  // namespace

SlowGpu GpuSpeed::slow() const {
  if (products < kSlow) return SlowGpu::kNo;
  if (interrupted > kTurns) return SlowGpu::kShared;
  if (spread > kCommon) return SlowGpu::kNo;
  return memory_bound - 1.0 < kOfMemory * (products - 1.0) ? SlowGpu::kClock : SlowGpu::kEverything;
}

GpuSpeed speed_of(const Waterfall& waterfall, const Trace& trace, const MappedKernels& kernels, const Span& step) {
  std::vector<Ratio> products, memory_bound;
  for (const ExplainedTime& line : waterfall.lines) {
    const double predicted = line.seconds[kPredicted], measured = line.seconds[kMeasured];
    if (predicted <= 0.0 || measured <= 0.0) continue;
    if (shows_clock(line.kind)) products.emplace_back(measured / predicted, predicted);
    if (line.kind == "memory_bound") memory_bound.emplace_back(measured / predicted, predicted);
  }
  GpuSpeed speed;
  set_ratios(std::move(products), std::move(memory_bound), speed);
  set_own(trace, kernels, step, speed);
  return speed;
}

std::vector<GpuSpeed> speeds_beside(const std::vector<Trace>& traces, const std::vector<MappedKernels>& kernels,
                                    const std::vector<Span>& steps) {
  struct Times {
    double sum = 0.0, count = 0.0;
    [[nodiscard]] double mean() const { return sum / count; }
  };
  using Key = std::tuple<std::string, std::string, bool, std::string>;
  std::map<Key, std::vector<Times>> all;
  for (std::size_t t = 0; t < traces.size(); ++t)
    visit_kernels(traces[t], kernels[t], steps[t], [&](const GpuEvent& e, const KernelOp& op) {
      if (!shows_clock(op.kind) && op.kind != "memory_bound") return;
      if (op.module == "experts" || op.module == "dispatch") return;  // Their work depends on the rank's rows.
      auto& times = all[{op.kind, op.module, op.recomputed, traces[t].name(e.name)}];
      times.resize(traces.size());
      times[t].sum += static_cast<double>(e.time.length());
      times[t].count += 1.0;
    });
  std::vector<std::vector<Ratio>> products(traces.size()), memory_bound(traces.size());
  for (const auto& [key, times] : all) {
    std::vector<double> means;
    for (const Times& one : times)
      if (one.count > 0.0 && one.sum > 0.0) means.push_back(one.mean());
    if (means.size() < traces.size()) continue;
    std::ranges::sort(means);
    const double usual = means[(means.size() - 1) / 2];
    auto& ratios = shows_clock(std::get<0>(key)) ? products : memory_bound;
    for (std::size_t t = 0; t < traces.size(); ++t)
      ratios[t].emplace_back(times[t].mean() / usual, usual * times[t].count);
  }
  std::vector<GpuSpeed> speeds(traces.size());
  for (std::size_t t = 0; t < traces.size(); ++t) {
    set_ratios(std::move(products[t]), std::move(memory_bound[t]), speeds[t]);
    set_own(traces[t], kernels[t], steps[t], speeds[t]);
  }
  return speeds;
}

}  // namespace foldwise::planner
