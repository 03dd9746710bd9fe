#include "planner/diagnose/findings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "planner/report/screen.h"
#include "planner/run/fields.h"

namespace foldwise::planner {
namespace {

using costmodel::Cause;
using costmodel::kPowerLimit;

constexpr double kWorthNaming = 0.01;  ///< Share of the measured step. Smaller differences are not findings.
constexpr double kSlowLink = 0.7;      ///< Share of the others' bandwidth. A NIC at half rate is below it, noise above.

bool is(const ExplainedTime& line, Cause cause) { return line.cause == to_string(cause); }
bool runs_again(const ExplainedTime& line) { return line.kind.starts_with(kRecomputed); }
double more(const ExplainedTime& line) { return line.seconds[kMeasured] - line.seconds[kPredicted]; }

std::string longest_kernels(const TracedLine& line) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(2, line.names.size()); ++i)
    text += fmt::format("{}{} {:.1f} ms", i == 0 ? "" : ", ", shortened(line.names[i].first, 50),
                        static_cast<double>(line.names[i].second) * 1e-6);
  return text;
}

/// Extra time of a line because the GPU runs all kernels more slowly.
double slow_part(const ExplainedTime& line, const GpuSpeed& speed) {
  const SlowGpu slow = speed.slow();
  const double predicted = line.seconds[kPredicted], measured = line.seconds[kMeasured];
  if (slow == SlowGpu::kNo || !is(line, Cause::kCompute) || runs_again(line) || predicted <= 0.0 || measured <= 0.0)
    return 0.0;
  if (is_product(line.kind)) return predicted * (speed.products - 1.0);
  if (slow == SlowGpu::kShared) return std::max(0.0, measured - predicted);
  return slow == SlowGpu::kEverything ? predicted * (speed.memory_bound - 1.0) : 0.0;
}

const char* name_of(SlowGpu slow) {
  switch (slow) {
    case SlowGpu::kNo:
      break;
    case SlowGpu::kClock:
      return "low clock";
    case SlowGpu::kShared:
      return "another process on the GPU";
    case SlowGpu::kEverything:
      return "all kernels slower";
  }
  return "";
}

std::string evidence_of(const GpuSpeed& speed, std::string_view beside) {
  const std::string clock =
      speed.slow() == SlowGpu::kClock ? fmt::format(", as at {:.0f} % of that clock", 100.0 / speed.products) : "";
  return fmt::format(
      "GEMMs and attention take {:.2f} times what {}{}; they are {:.0f} % apart; kernels bound by memory take {:.2f} "
      "times, and are interrupted for {:.0f} % of their time",
      speed.products, beside, clock, 100.0 * speed.spread, speed.memory_bound, 100.0 * speed.interrupted);
}

/// Reaction of the power limit: while no product runs the GPU cools, and the products that follow run faster
/// (docs/formulas.md#power, for the predicted step as a whole).
class Power {
 public:
  explicit Power(const Diagnosis& d) {
    double limit = 0.0, products = 0.0;
    for (const costmodel::DetailEntry& e : d.prediction.stages[d.stage].detail) {
      if (e.kind == kPowerLimit) limit += e.seconds.to<double>();
      if (is_product(e.kind)) products += e.seconds.to<double>();
    }
    others_ = d.predicted_s() - products - limit;
    stretched_ = products + limit;
    lost_ = stretched_ > 0.0 ? limit / stretched_ * d.predicted_s() / stretched_ : 0.0;
    if (d.speed.slow() != SlowGpu::kNo) lost_ = 0.0;
    products_ = products;
  }

  /// Increase of the step time for `seconds` more without products.
  [[nodiscard]] double of(double seconds) const {
    if (lost_ <= 0.0 || seconds <= 0.0) return seconds;
    return seconds + costmodel::limited_products(Seconds{products_}, lost_, Seconds{others_ + seconds}).to<double>() -
           stretched_;
  }

 private:
  double lost_ = 0.0, products_ = 0.0, stretched_ = 0.0, others_ = 0.0;
};

Finding of_communication(const ExplainedTime& line, const TracedStep& step, const Power& power) {
  const double predicted = line.seconds[kPredicted], measured = line.seconds[kMeasured];
  const TracedLine* m = traced_line(step, line);
  Finding finding{fmt::format("{} over {} that nothing hides", line.kind, line.group.empty() ? "?" : line.group),
                  power.of(more(line)),
                  fmt::format("{:.1f} ms exposed, predicted {:.1f} ms", 1e3 * measured, 1e3 * predicted)};
  if (m != nullptr)
    finding.evidence +=
        fmt::format("; {} kernels take {:.1f} ms in all", m->count, static_cast<double>(m->busy_ns) * 1e-6);
  return finding;
}

/// Time of a module's kernels beyond the prediction, over all kinds.
struct ModuleTime {
  double products = 0.0, others = 0.0;  ///< Extra seconds.
  std::string evidence;
};

/// The module's linear layer whose forward GEMM is furthest below the predicted rate; empty if sizes are not recorded
/// or no layer is too slow.
std::string slowest_shape(const Diagnosis& d, const std::string& module) {
  constexpr double kAbove = 1.02, kTera = 1e12;
  const double stretch = power_stretch(d.prediction.stages[d.stage]);
  double worst = kAbove;
  std::string text;
  for (std::size_t i = 0; i < d.kernels.linear.size(); ++i) {
    const LinearProduct& linear = d.kernels.linear[i];
    const double measured = seconds(d.measured.linear_ns[i]), predicted = linear.time.to<double>() * stretch;
    if (linear.module != module || measured < worst * predicted) continue;
    worst = measured / predicted;
    const double flops = 2.0 * linear.m * static_cast<double>(linear.n) * static_cast<double>(linear.k);
    text = fmt::format("; forward, {:.0f} x {} x {} at {:.0f} TFLOP/s, predicted {:.0f}", linear.m, linear.n, linear.k,
                       flops / measured / kTera, flops / predicted / kTera);
  }
  return text;
}

void add_line(const ExplainedTime& line, const Diagnosis& d, ModuleTime& module) {
  (is_product(line.kind) ? module.products : module.others) += more(line) - slow_part(line, d.speed);
  module.evidence += fmt::format("{}{} {:.1f} ms, predicted {:.1f} ms", module.evidence.empty() ? "" : "; ", line.kind,
                                 1e3 * line.seconds[kMeasured], 1e3 * line.seconds[kPredicted]);
  if (const TracedLine* m = traced_line(d.measured, line); m != nullptr && !m->names.empty())
    module.evidence += fmt::format(", {} kernels: {}", m->count, longest_kernels(*m));
  if (line.kind == "gemm" && more(line) > 0.0) module.evidence += slowest_shape(d, line.module);
}

void add_slow_gpus(const Diagnosis& d, std::vector<Finding>& findings) {
  const SlowGpu slow = d.speed.slow();
  if (slow != SlowGpu::kNo) {
    double slower = 0.0;
    for (const ExplainedTime& line : d.waterfall.lines) slower += slow_part(line, d.speed);
    const char* what = slow == SlowGpu::kClock    ? "the GPU is throttled: its clock is low"
                       : slow == SlowGpu::kShared ? "all kernels are slower: another process uses the GPU"
                                                  : "all kernels are slower, by one factor: another process beside "
                                                    "them (MPS), or a slower GPU than the run's system";
    findings.push_back({what, slower, evidence_of(d.speed, "is predicted")});
  }
  if (d.ranks.ranks.size() < 2) return;
  for (const RankReport& r : d.ranks.ranks) {
    const SlowGpu of_rank = r.speed.slow();
    if (of_rank == SlowGpu::kNo || (r.rank == d.rank && slow != SlowGpu::kNo)) continue;
    findings.push_back({fmt::format("the GPU of rank {} is slower than those of other ranks: {}", r.rank,
                                    of_rank == SlowGpu::kClock ? "throttled, its clock is low" : name_of(of_rank)),
                        r.speed.products_s * (1.0 - 1.0 / r.speed.products),
                        evidence_of(r.speed, "they take on other ranks")});
  }
}

void add_waits(const Diagnosis& d, double waited, std::vector<Finding>& findings) {
  if (d.ranks.ranks.size() < 2) return;
  const RankReport& late = *std::ranges::max_element(d.ranks.ranks, {}, &RankReport::waited_for_s);
  std::map<std::int64_t, double> by_node;
  for (const RankReport& r : d.ranks.ranks) by_node[r.node] += r.waited_for_s;
  std::string nodes;
  if (by_node.size() > 1)
    for (const auto& [node, seconds] : by_node) nodes += fmt::format(", of node {} {:.1f} ms", node, 1e3 * seconds);
  findings.push_back(
      {late.rank == d.rank ? "collectives wait for other ranks"
                           : fmt::format("collectives wait for rank {}", late.rank),
       waited,
       fmt::format("rank {} came last to {} of {} collectives of the step; others wait {:.1f} ms for it{}", late.rank,
                   late.last, late.of, 1e3 * late.waited_for_s, nodes)});
}

void add_experts(const Diagnosis& d, std::vector<Finding>& findings) {
  if (!d.ranks.rows) return;
  const ExpertRows& rows = *d.ranks.rows;
  std::int64_t experts_ns = 0;
  for (const TracedLine& line : d.measured.lines)
    if (line.module == "experts" && line.cause == Cause::kCompute) experts_ns += line.exposed_ns;
  const double experts = seconds(experts_ns);
  if (d.ranks.ranks.size() > 1) {
    const RankReport& busiest = *std::ranges::max_element(d.ranks.ranks, {}, &RankReport::busiest);
    // Time of the experts if every rank had the mean number of rows.
    const double mean = rows.mean > 0.0 ? experts * rows.mean_of_ranks / rows.mean : 0.0;
    findings.push_back({"experts are uneven: all ranks of the group wait for the one with most rows",
                        mean * (rows.busiest_over_mean - 1.0),
                        fmt::format("the busiest has {:.2f} times the mean of the ranks; in {} of {} passes that is "
                                    "rank {}",
                                    rows.busiest_over_mean, busiest.busiest, rows.passes, busiest.rank)});
  } else if (rows.predicted > 0.0 && rows.mean > rows.predicted) {
    findings.push_back({"this rank's experts get more rows than balanced routing gives",
                        experts * (1.0 - rows.predicted / rows.mean),
                        fmt::format("{:.0f} rows a pass, {:.2f} times what is predicted; {} passes", rows.mean,
                                    rows.mean / rows.predicted, rows.passes)});
  }
}

void add_links(const Diagnosis& d, std::vector<Finding>& findings) {
  for (const LinkReport& link : d.ranks.links)
    if (link.of_others && link.bandwidth < kSlowLink * *link.of_others)
      findings.push_back(
          {fmt::format("a slow link: {} over {} between ranks {}", link.kind, link.group.empty() ? "?" : link.group,
                       fmt::join(link.ranks, ", ")),
           link.lost_s,
           fmt::format("{:.1f} GB/s at best, {:.1f} GB/s between others that do the same; {} calls of the step move "
                       "{:.3f} GB",
                       1e-9 * link.bandwidth, 1e-9 * *link.of_others, link.calls, 1e-9 * link.bytes)});
}

/// Waits of the GPU that are not launch gaps, by the kind of their line.
struct HostWait {
  std::string_view kind, finding, reason;
};
constexpr HostWait kHostWaits[] = {
    {kOutside,
     "the GPU waits while nothing of PyTorch runs on the host: data, garbage collection, logging, checkpoints",
     "waiting while nothing of PyTorch runs"},
    {kDataLoading, "the GPU waits for data", "waiting for data"},
    {kGarbageCollection, "the GPU waits for Python's garbage collection", "waiting for garbage collection"},
    {kCheckpointing, "the GPU waits for a checkpoint", "waiting for a checkpoint"}};

const HostWait* host_wait_of(const ExplainedTime& line) {
  if (!is(line, Cause::kHost)) return nullptr;
  const auto* const found = std::ranges::find(kHostWaits, line.kind, &HostWait::kind);
  return found == std::end(kHostWaits) ? nullptr : found;
}

std::string longest_wait(const TracedLine& line) {
  std::string text = fmt::format("longest {:.1f} ms at a time", static_cast<double>(line.longest_ns) * 1e-6);
  if (!line.names.empty())
    text += fmt::format("; in {} for {:.1f} ms", shortened(line.names[0].first, 60),
                        static_cast<double>(line.names[0].second) * 1e-6);
  return text;
}

std::optional<std::vector<FlagBehind>> flags_of(const Finding& finding, const costmodel::TrainingOptions& options) {
  const auto texts = flags_behind(finding.what);
  if (!texts) return std::nullopt;
  std::vector<FlagBehind> flags;
  for (const std::string& text : *texts) {
    FlagBehind& behind = flags.emplace_back();
    behind.flag = with_flags(text);
    for (const std::string& key : keys_in(text)) {
      behind.field = key;
      behind.value = value_text(field(key).value.get(options));
    }
  }
  return flags;
}

/// Reason for a line's difference, except for the part in slow_part().
std::string_view reason_of(const ExplainedTime& line) {
  if (line.cause == "rest") return "rest";
  if (const HostWait* wait = host_wait_of(line)) return wait->reason;
  if (is(line, Cause::kHost)) return "waiting for the host";
  if (is(line, Cause::kCopy)) return "copies that nothing hides";
  if (is(line, Cause::kCommunication)) {
    if (line.kind == kWaitForRank) return "waiting for other ranks";
    return line.group == "pp" ? "waiting for the pipeline" : "communication that nothing hides";
  }
  return runs_again(line) || line.seconds[kPredicted] <= 0.0 ? "more kernels" : "slower kernels";
}

}  // namespace

double HostWaits::own() const {
  const double all = measured + std::max(0.0, again);
  return all > 0.0 ? std::max(0.0, 1.0 - profiler / all) : 1.0;
}

HostWaits host_waits(const Diagnosis& d) {
  HostWaits waits;
  if (d.unprofiled_s) waits.profiler = std::max(0.0, d.measured_s() - *d.unprofiled_s);
  for (const ExplainedTime& line : d.waterfall.lines) {
    if (!is(line, Cause::kHost) || host_wait_of(line) != nullptr) continue;
    if (runs_again(line)) {
      waits.again += more(line);
    } else {
      waits.predicted += line.seconds[kPredicted];
      waits.measured += line.seconds[kMeasured];
    }
  }
  return waits;
}

std::vector<Finding> findings_of(const Diagnosis& d) {
  std::vector<Finding> findings;
  const Power power(d);
  const HostWaits host = host_waits(d);
  double waited = 0.0, copied = 0.0;
  std::map<std::string, ModuleTime> modules, again;
  // Lines that form one finding: those of a module; those of the host (its module is only the next launch);
  // recomputation; waits for a rank.
  for (const ExplainedTime& line : d.waterfall.lines) {
    if (line.cause == "rest") continue;
    if (runs_again(line)) {
      (is_product(line.kind.substr(kRecomputed.size())) ? again[line.module].products : again[line.module].others) +=
          more(line);
    } else if (line.kind == kWaitForRank) {
      waited += more(line);
    } else if (const HostWait* wait = host_wait_of(line)) {
      const TracedLine* traced = traced_line(d.measured, line);
      findings.push_back(
          {std::string(wait->finding), power.of(more(line)), traced == nullptr ? "" : longest_wait(*traced)});
    } else if (is(line, Cause::kCommunication)) {
      findings.push_back(of_communication(line, d.measured, power));
    } else if (is(line, Cause::kCopy)) {
      copied += more(line);
    } else if (!is(line, Cause::kHost)) {
      add_line(line, d, modules[line.module]);
    }
  }
  for (const auto& [module, time] : modules)
    findings.push_back({fmt::format("kernels of {}", module.empty() ? "no known module" : module),
                        time.products + power.of(time.others), time.evidence});
  findings.push_back({"copies between GPU and host that nothing hides", power.of(copied),
                      fmt::format("{:.1f} ms more than predicted", 1e3 * copied)});
  findings.push_back(
      {"the GPU waits for the host to launch its kernels", power.of(host.measured * host.own() - host.predicted),
       fmt::format("idle for {:.1f} ms, predicted {:.1f} ms; ", 1e3 * host.measured, 1e3 * host.predicted) +
           (d.unprofiled_s ? fmt::format("{:.1f} ms of the host are the profiler's", 1e3 * host.profiler)
                           : "a profiler slows the host: measured.step_time_s of the run would say by how much")});
  if (!again.empty()) {
    ModuleTime all;
    for (const auto& [module, time] : again) {
      all.products += time.products;
      all.others += time.others;
      all.evidence += fmt::format("{} {:.1f} ms, ", module.empty() ? "?" : module, 1e3 * (time.products + time.others));
    }
    findings.push_back({"forward runs again in backward, beyond what recompute.* of the run says",
                        all.products + power.of(all.others - host.again * (1.0 - host.own())),
                        all.evidence + fmt::format("{:.1f} ms of them the host's", 1e3 * host.again)});
  }
  add_slow_gpus(d, findings);
  add_waits(d, power.of(waited), findings);
  add_experts(d, findings);
  add_links(d, findings);
  std::erase_if(findings, [&](const Finding& f) { return f.seconds < kWorthNaming * d.measured_s(); });
  std::ranges::stable_sort(findings, std::ranges::greater{}, &Finding::seconds);
  for (Finding& finding : findings) finding.flags = flags_of(finding, d.composed->context.options);
  return findings;
}

std::vector<Reason> reasons_of(const Diagnosis& d) {
  std::map<std::string, double, std::less<>> sums;
  const auto add = [&](std::string_view what, double seconds) {
    if (seconds != 0.0) sums.try_emplace(std::string(what), 0.0).first->second += seconds;
  };
  for (const ExplainedTime& line : d.waterfall.lines) {
    const double slow = slow_part(line, d.speed);
    add(name_of(d.speed.slow()), slow);
    add(reason_of(line), more(line) - slow);
  }
  std::vector<Reason> reasons;
  reasons.reserve(sums.size());
  constexpr double kNothing = 0.5e-9;  // Half a nanosecond.
  for (const auto& [what, seconds] : sums)
    if (std::abs(seconds) >= kNothing) reasons.push_back({what, seconds});
  std::ranges::stable_sort(reasons, std::ranges::greater{}, &Reason::seconds);
  return reasons;
}

}  // namespace foldwise::planner
