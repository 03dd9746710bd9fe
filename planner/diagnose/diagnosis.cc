#include "planner/diagnose/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "costmodel/step/prediction.h"
#include "planner/foldwise.h"
#include "planner/report/table.h"

namespace foldwise::planner {
namespace {

using costmodel::Cause;
using costmodel::DetailEntry;
using nlohmann::json;

constexpr double kWorthNaming = 0.01;  ///< Of the measured step: smaller differences are no findings.
constexpr double kSlowGpu = 1.1;  ///< slowdown_of() of 20 steps alone on an H100 was 0.90 to 1.01 (docs/diagnose.md).
constexpr std::string_view kPowerLimit = "power_limit", kMemoryBound = "memory_bound";

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }
double seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

/// Of a trace's line, as of the prediction's.
std::string kind_of(const TracedLine& line) { return (line.recomputed ? std::string(kRecomputed) : "") + line.kind; }

constexpr std::size_t kPredicted = 0, kMeasured = 1;  ///< "Runs" of the waterfall.

void add(Cause cause, const std::string& kind, const std::string& module, const std::string& group, std::size_t run,
         double time, ExplainedLines& lines) {
  if (time == 0.0) return;
  auto& seconds = lines[{std::string(to_string(cause)), kind, module, group}];
  seconds.resize(2, 0.0);
  seconds[run] += time;
}

/// How many times as long as predicted kernels take that the prediction has: the median of their predicted time, which
/// a few lines that are slow for their own reasons do not move. Of the same for those that memory bounds alone.
struct Slowdown {
  double of_all = 1.0, of_memory_bound = 1.0;
};

double median_ratio(const Waterfall& waterfall, bool memory_bound_only) {
  std::vector<std::pair<double, double>> ratios;  // And predicted seconds.
  double all = 0.0, below = 0.0;
  for (const ExplainedTime& line : waterfall.lines) {
    const double predicted = line.seconds[kPredicted], measured = line.seconds[kMeasured];
    if (line.cause != to_string(Cause::kCompute) || line.kind.starts_with(kRecomputed) || predicted <= 0.0 ||
        measured <= 0.0 || (memory_bound_only && line.kind != kMemoryBound))
      continue;
    ratios.emplace_back(measured / predicted, predicted);
    all += predicted;
  }
  std::ranges::sort(ratios);
  for (const auto& [ratio, predicted] : ratios)
    if ((below += predicted) >= 0.5 * all) return ratio;
  return 1.0;
}

/// Smaller ones are the prediction's own error.
Slowdown slowdown_of(const Waterfall& waterfall) {
  const Slowdown slow{median_ratio(waterfall, false), median_ratio(waterfall, true)};
  return slow.of_all > kSlowGpu ? slow : Slowdown{};
}

void add_measured(const TracedStep& step, ExplainedLines& lines) {
  for (const TracedLine& line : step.lines)
    add(line.cause, kind_of(line), line.module, line.group, kMeasured, seconds(line.exposed_ns), lines);
}

const TracedLine* measured_line(const TracedStep& step, const ExplainedTime& line) {
  const auto found = std::ranges::find_if(step.lines, [&](const TracedLine& m) {
    return to_string(m.cause) == line.cause && kind_of(m) == line.kind && m.module == line.module &&
           m.group == line.group;
  });
  return found == step.lines.end() ? nullptr : &*found;
}

std::string longest_kernels(const TracedLine& line) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(2, line.names.size()); ++i)
    text += fmt::format("{}{} {:.1f} ms", i == 0 ? "" : ", ", shortened(line.names[i].first, 50),
                        static_cast<double>(line.names[i].second) * 1e-6);
  return text;
}

/// What kernels of the line take longer if all take `slow` times what is predicted.
double slow_part(const ExplainedTime& line, double slow) {
  return line.seconds[kMeasured] > 0.0 ? line.seconds[kPredicted] * (slow - 1.0) : 0.0;
}

/// `slow`: what all kernels take more than predicted is another finding's.
Finding finding_of(const ExplainedTime& line, const TracedStep& step, double slow) {
  const double predicted = line.seconds[kPredicted], measured = line.seconds[kMeasured];
  Finding finding{.what = "", .seconds = measured - predicted, .evidence = ""};
  const TracedLine* m = measured_line(step, line);
  const std::string of = line.module.empty() ? "" : " of " + line.module;
  const auto times = predicted > 0.0 ? fmt::format("{:.2f} times the prediction", measured / predicted)
                                     : std::string("the prediction has none");
  if (line.cause == to_string(Cause::kCommunication)) {
    finding.what = fmt::format("{} over {} that nothing hides", line.kind, line.group.empty() ? "?" : line.group);
    finding.evidence = fmt::format("{:.1f} ms exposed, {}", 1e3 * measured, times);
    if (m != nullptr)
      finding.evidence +=
          fmt::format("; {} kernels take {:.1f} ms in all", m->count, static_cast<double>(m->busy_ns) * 1e-6);
  } else {
    if (line.cause == to_string(Cause::kCompute)) finding.seconds -= slow_part(line, slow);
    finding.what = fmt::format("{}{}", line.kind, of);
    finding.evidence = fmt::format("{:.1f} ms, {}", 1e3 * measured, times);
    if (m != nullptr && !m->names.empty())
      finding.evidence += fmt::format("; {} kernels: {}", m->count, longest_kernels(*m));
  }
  return finding;
}

/// Lines that are one finding together: the host's, whose modules only say what it launched next; what runs again;
/// waits for a rank.
std::vector<Finding> findings_of(const Diagnosis& d) {
  std::vector<Finding> findings;
  const Slowdown slow = slowdown_of(d.waterfall);
  double launched[2] = {}, waited = 0.0, host_of_again = 0.0, slower = 0.0;
  std::map<std::string, double> again;
  const std::string longest =
      fmt::format("longest {:.1f} ms at a time", static_cast<double>(d.measured.longest_outside_ns) * 1e-6);
  for (const ExplainedTime& line : d.waterfall.lines) {
    const double more = line.seconds[kMeasured] - line.seconds[kPredicted];
    const bool of_host = line.cause == to_string(Cause::kHost);
    if (line.cause == "rest") continue;
    if (line.kind.starts_with(kRecomputed)) {
      again[line.module] += more;
      if (of_host) host_of_again += more;
    } else if (line.kind == kWaitForRank) {
      waited += more;
    } else if (of_host && line.kind == kOutside) {
      findings.push_back(
          {"the GPU waits while nothing of PyTorch runs on the host: data, garbage collection, logging, checkpoints",
           more, longest});
    } else if (of_host && line.kind == kDataLoading) {
      findings.push_back({"the GPU waits for data", more, longest});
    } else if (of_host) {
      launched[kPredicted] += line.seconds[kPredicted];
      launched[kMeasured] += line.seconds[kMeasured];
    } else {
      if (line.cause == to_string(Cause::kCompute)) slower += slow_part(line, slow.of_all);
      findings.push_back(finding_of(line, d.measured, slow.of_all));
    }
  }
  if (slower > 0.0) {
    const bool shared = slow.of_memory_bound > kSlowGpu;
    findings.push_back({shared ? "all kernels are slower: another process uses the GPU"
                               : "kernels that compute are slower: the GPU's clock is low",
                        slower,
                        fmt::format("half of the predicted time takes {:.2f} times as long or longer, of kernels bound "
                                    "by memory, which a low clock leaves as they are, {:.2f} times",
                                    slow.of_all, slow.of_memory_bound)});
  }
  // What the profiler costs is the host's, which records: of each of its lines the same share.
  const double profiler = d.unprofiled_s ? std::max(0.0, d.steps[d.step] - *d.unprofiled_s) : 0.0;
  const double host = launched[kMeasured] + std::max(0.0, host_of_again);
  const double own = host > 0.0 ? std::max(0.0, 1.0 - profiler / host) : 1.0;
  findings.push_back(
      {"the GPU waits for the host to launch its kernels", launched[kMeasured] * own - launched[kPredicted],
       fmt::format("idle for {:.1f} ms, predicted {:.1f} ms; ", 1e3 * launched[kMeasured], 1e3 * launched[kPredicted]) +
           (d.unprofiled_s ? fmt::format("{:.1f} ms of the host are the profiler's", 1e3 * profiler)
                           : "a profiler slows the host: measured.step_time_s of the run would say by how much")});
  if (!again.empty()) {
    Finding finding{"forward runs again in backward, beyond what recompute.* of the run says", 0.0, ""};
    for (const auto& [module, seconds] : again) {
      finding.seconds += seconds;
      finding.evidence += fmt::format("{} {:.1f} ms, ", module.empty() ? "?" : module, 1e3 * seconds);
    }
    finding.evidence += fmt::format("{:.1f} ms of them the host's", 1e3 * host_of_again);
    finding.seconds -= host_of_again * (1.0 - own);
    findings.push_back(std::move(finding));
  }
  if (!d.waits.empty()) {
    const RankWait& late = *std::ranges::max_element(d.waits, {}, &RankWait::last);
    findings.push_back(
        {late.rank == d.rank ? "collectives wait for other ranks"
                             : fmt::format("collectives wait for rank {}", late.rank),
         waited, fmt::format("rank {} came last to {} of {} collectives of the step", late.rank, late.last, late.of)});
  }
  std::erase_if(findings, [&](const Finding& f) { return f.seconds < kWorthNaming * d.waterfall.steps[1]; });
  std::ranges::stable_sort(findings, std::ranges::greater{}, &Finding::seconds);
  return findings;
}

std::size_t stage_of(const Run& run, const Trace& trace, const costmodel::Prediction& prediction) {
  for (const auto& [group, ranks] : trace.groups) {
    if (group.find("PIPELINE_MODEL_PARALLEL") == std::string::npos || group.find("EXPERT") != std::string::npos)
      continue;
    const auto at = std::ranges::find(ranks, trace.rank);
    if (at != ranks.end() && static_cast<std::int64_t>(ranks.size()) == run.options.pipeline.pp)
      return static_cast<std::size_t>(at - ranks.begin());
  }
  return prediction.critical_stage;
}

/// Of each trace, and each GPU event, the nanoseconds for which a collective of the step waits for another rank: the
/// k-th one of a kind in a group ends on all its ranks together, so who takes least time came last.
struct Skew {
  std::vector<std::vector<std::int64_t>> waits;
  std::vector<RankWait> ranks;
};

Skew skew_of(const std::vector<Trace>& traces, const std::vector<Span>& steps) {
  struct Part {
    std::size_t trace, event;
    std::int64_t length;
  };
  using Ranks = std::vector<std::int64_t>;
  std::map<std::tuple<std::string, Ranks, std::string, std::size_t>, std::vector<Part>> all;
  Skew skew;
  for (std::size_t t = 0; t < traces.size(); ++t) {
    const Trace& trace = traces[t];
    skew.waits.emplace_back(trace.gpu.size(), 0);
    skew.ranks.emplace_back().rank = trace.rank;
    std::map<std::pair<std::string, std::string>, std::size_t> count;
    for (std::size_t i = 0; i < trace.gpu.size(); ++i) {
      const GpuEvent& e = trace.gpu[i];
      if (e.group < 0 || e.collective < 0 || e.time.begin < steps[t].begin || e.time.begin >= steps[t].end) continue;
      const std::string &group = trace.name(e.group), &collective = trace.name(e.collective);
      const auto ranks = trace.groups.find(group);
      all[{group, ranks == trace.groups.end() ? Ranks{} : ranks->second, collective, count[{group, collective}]++}]
          .push_back({t, i, e.time.length()});
    }
  }
  for (const auto& [key, parts] : all) {
    if (parts.size() < 2) continue;
    const Part& last = *std::ranges::min_element(parts, {}, &Part::length);
    for (const Part& part : parts) {
      skew.waits[part.trace][part.event] = part.length - last.length;
      skew.ranks[part.trace].waited_s += seconds(part.length - last.length);
      ++skew.ranks[part.trace].of;
    }
    ++skew.ranks[last.trace].last;
  }
  return skew;
}

void check(const Run& run, const std::vector<Trace>& traces) {
  config::Diagnostics diagnostics;
  std::set<std::int64_t> ranks;
  for (const Trace& trace : traces) {
    const auto mistake = [&](std::string message) { diagnostics.error({trace.file, 0, ""}, std::move(message)); };
    if (trace.world_size > 0 && trace.world_size != run.num_gpus)
      mistake(fmt::format("of a job of {} GPUs, but num_gpus of the run is {}", trace.world_size, run.num_gpus));
    if (traces.size() > 1 && !ranks.insert(trace.rank).second)
      mistake(fmt::format("of rank {}, as another trace", trace.rank));
  }
  diagnostics.throw_if_any();
}

}  // namespace

ExplainedLines predicted_lines(const costmodel::StagePrediction& stage) {
  // What the power limit adds is no kernel: each computing one takes its share of it.
  ExplainedLines lines;
  double compute = 0.0, limit = 0.0;
  for (const DetailEntry& e : stage.detail)
    if (e.cause == Cause::kCompute) (e.kind == kPowerLimit ? limit : compute) += e.seconds.to<double>();
  const double stretch = compute > 0.0 ? 1.0 + limit / compute : 1.0;
  for (const DetailEntry& e : stage.detail) {
    if (e.kind == kPowerLimit) continue;
    const double slower = e.cause == Cause::kCompute ? stretch : 1.0;
    const double whole = e.seconds.to<double>() * slower, again = e.recomputed.to<double>() * slower;
    const bool communicates = e.cause == Cause::kCommunication;
    add(e.cause, e.kind, communicates ? "" : e.module, e.group, kPredicted, whole - again, lines);
    add(e.cause, std::string(kRecomputed) + e.kind, e.module, e.group, kPredicted, again, lines);
  }
  // A transfer of the pipeline waits for its peer: the trace cannot tell it from the bubble.
  add(Cause::kCommunication, "send_recv", "", "pp", kPredicted, stage.bubble.to<double>(), lines);
  return lines;
}

Diagnosis diagnose(const Run& run, const std::vector<Trace>& traces) {
  check(run, traces);
  const costmodel::Step step = foldwise::compose(run);
  const costmodel::Prediction prediction = foldwise::predict(run, step);
  std::vector<MappedKernels> kernels;
  kernels.reserve(traces.size());
  std::vector<std::vector<Span>> steps;
  steps.reserve(traces.size());
  for (const Trace& trace : traces) {
    kernels.push_back(map_kernels(trace, step));
    steps.push_back(steps_of(trace, kernels.back()));
  }
  Diagnosis d;
  d.file = traces[0].file;
  d.device = traces[0].device;
  d.rank = traces[0].rank;
  d.predicted_s = prediction.step_time.to<double>();
  d.unprofiled_s = run.measured.step_time_s;
  d.stage = stage_of(run, traces[0], prediction);
  d.memory = prediction.memory.at(d.stage);
  d.most_allocated = traces[0].most_allocated;
  d.most_reserved = traces[0].most_reserved;
  std::vector<std::size_t> by_length;
  for (std::size_t i = 0; i < steps[0].size(); ++i) {
    d.steps.push_back(seconds(steps[0][i].length()));
    by_length.push_back(i);
  }
  std::ranges::stable_sort(by_length, {}, [&](std::size_t i) { return d.steps[i]; });
  d.step = by_length[(by_length.size() - 1) / 2];
  Skew skew{{{}}, {}};
  if (traces.size() > 1) {
    std::vector<Span> same;
    same.reserve(steps.size());
    for (const std::vector<Span>& of : steps) same.push_back(of[std::min(d.step, of.size() - 1)]);
    skew = skew_of(traces, same);
  }
  d.waits = skew.ranks;
  d.measured = traced_step(traces[0], kernels[0], steps[0][d.step], skew.waits[0]);
  d.kernels = std::move(kernels[0]);
  ExplainedLines lines = predicted_lines(prediction.stages[d.stage]);
  add_measured(d.measured, lines);
  d.waterfall = waterfall_of(lines, {d.predicted_s, d.steps[d.step]});
  d.waterfall.stage = d.stage;
  d.waterfall.busiest = false;
  d.findings = findings_of(d);
  const Problem problem{run.model, run.hardware, run.num_gpus};
  for (const Change& change : neighbours(problem, run.options).changes) {
    if (d.changes.size() == 3 || change.step_time > (1.0 - kWorthNaming) * prediction.step_time) break;
    if (change.fits_host && change.peak_memory <= run.hardware.hbm_capacity) d.changes.push_back(change);
  }
  return d;
}

json diagnosis_json(const Run& run, const Diagnosis& d) {
  json findings = json::array(), waits = json::array(), changes = json::array(), lines = json::array();
  for (const Finding& f : d.findings)
    findings.push_back({{"what", f.what}, {"seconds", f.seconds}, {"evidence", f.evidence}});
  for (const RankWait& w : d.waits)
    waits.push_back({{"rank", w.rank}, {"waited_s", w.waited_s}, {"came_last", w.last}, {"collectives", w.of}});
  for (const Change& c : d.changes)
    changes.push_back({{"change", c.text()}, {"step_time_s", c.step_time.to<double>()}});
  for (const TracedLine& line : d.measured.lines) {
    json names = json::array();
    for (std::size_t i = 0; i < std::min<std::size_t>(10, line.names.size()); ++i)
      names.push_back({{"name", line.names[i].first}, {"seconds", seconds(line.names[i].second)}});
    lines.push_back({{"cause", to_string(line.cause)},
                     {"kind", line.kind},
                     {"module", line.module},
                     {"group", line.group},
                     {"recomputed", line.recomputed},
                     {"exposed_s", seconds(line.exposed_ns)},
                     {"busy_s", seconds(line.busy_ns)},
                     {"count", line.count},
                     {"kernels", std::move(names)}});
  }
  const auto& found = d.measured.found_ns;
  return {{"id", run.id},
          {"trace", {{"file", d.file}, {"rank", d.rank}, {"device", d.device}, {"steps_s", d.steps}, {"step", d.step}}},
          {"stage", d.stage},
          {"predicted_s", d.predicted_s},
          {"measured_s", d.steps[d.step]},
          {"unprofiled_s", d.unprofiled_s ? json(*d.unprofiled_s) : json()},
          {"memory", d.most_allocated < 0 ? json()
                                          : json{{"allocated_gib", gib(d.most_allocated)},
                                                 {"reserved_gib", gib(d.most_reserved)},
                                                 {"predicted_allocated_gib", in_gib(d.memory.allocated())},
                                                 {"moment", d.memory.moment}}},
          {"kernel_time_s", seconds(d.measured.kernel_ns)},
          {"found_by_s",
           {{"function", seconds(found[0])},
            {"shape", seconds(found[1])},
            {"order", seconds(found[2])},
            {"nothing", seconds(found[3])}}},
          {"waterfall", waterfall_json(d.waterfall)},
          {"measured", std::move(lines)},
          {"findings", std::move(findings)},
          {"ranks", std::move(waits)},
          {"changes", std::move(changes)}};
}

std::string diagnosis_text(const Run& run, const Diagnosis& d) {
  const double measured = d.steps[d.step];
  std::string out = fmt::format(
      "{}{}: step {} of {} in {}{}\n", run.id.empty() ? run.model_name : run.id,
      fmt::format(" on {}{}", run.hardware.name, d.device.empty() ? "" : ", traced on " + d.device), d.step + 1,
      d.steps.size(), d.file, d.rank < 0 ? "" : fmt::format(", rank {}, pipeline stage {}", d.rank, d.stage));
  out += fmt::format("  measured {:.6f} s, predicted {:.6f} s: {:+.1f} %\n", measured, d.predicted_s,
                     100.0 * (measured / d.predicted_s - 1.0));
  if (d.unprofiled_s)
    out += fmt::format("  without a profiler {:.6f} s, says the run: {:+.1f} %\n", *d.unprofiled_s,
                       100.0 * (*d.unprofiled_s / d.predicted_s - 1.0));
  if (d.most_allocated >= 0)
    out += fmt::format("  allocated at most {:.2f} GiB (reserved {:.2f}), predicted {:.2f} GiB in {}: {:+.1f} %\n",
                       gib(d.most_allocated), gib(d.most_reserved), in_gib(d.memory.allocated()), d.memory.moment,
                       100.0 * (gib(d.most_allocated) / in_gib(d.memory.allocated()) - 1.0));
  const auto& found = d.measured.found_ns;
  const auto share = [&](std::int64_t ns) {
    return d.measured.kernel_ns == 0 ? 0.0
                                     : 100.0 * static_cast<double>(ns) / static_cast<double>(d.measured.kernel_ns);
  };
  out += fmt::format(
      "  {:.1f} ms of kernels: module known by function {:.1f} %, by shapes {:.1f} %, by order {:.1f} %, unknown "
      "{:.1f} "
      "%\n\n",
      static_cast<double>(d.measured.kernel_ns) * 1e-6, share(found[0]), share(found[1]), share(found[2]),
      share(found[3]));
  out += waterfall_text(d.waterfall, {"predicted", "measured"}, 20);
  out += "\nWhat makes it longer than predicted\n";
  for (const Finding& f : d.findings)
    out += fmt::format("  {:+.6f} s  {}\n               {}\n", f.seconds, f.what, wrapped(f.evidence, 84, 15));
  if (d.findings.empty()) out += "  nothing by more than 1 % of the step\n";
  if (!d.waits.empty()) {
    Table table({"rank", "waits for others s", "comes last", "of collectives"});
    for (const RankWait& w : d.waits)
      table.add(
          {std::to_string(w.rank), fmt::format("{:.6f}", w.waited_s), std::to_string(w.last), std::to_string(w.of)});
    out += "\nRanks\n" + table.text();
  }
  out += "\nSingle changes of the run that fit and that the model predicts to be faster\n";
  for (const Change& c : d.changes)
    out += fmt::format("  {:.4f} s  {}\n", c.step_time.to<double>(), wrapped(c.text(), 84, 12));
  if (d.changes.empty()) out += "  none\n";
  return out;
}

}  // namespace foldwise::planner
