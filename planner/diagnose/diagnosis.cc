#include "planner/diagnose/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "costmodel/step/prediction.h"
#include "planner/diagnose/findings.h"
#include "planner/foldwise.h"

namespace foldwise::planner {
namespace {

using costmodel::Cause;
using costmodel::DetailEntry;
using costmodel::kPowerLimit;
constexpr double kWorthChanging = 0.01;  ///< Share of the predicted step. Smaller gains are not suggested.

/// Kind of a trace's line, in the terms of predicted lines.
std::string kind_of(const TracedLine& line) { return (line.recomputed ? std::string(kRecomputed) : "") + line.kind; }

void add(Cause cause, const std::string& kind, const std::string& module, const std::string& group, std::size_t run,
         double time, ExplainedLines& lines) {
  if (time == 0.0) return;
  auto& seconds = lines[{std::string(to_string(cause)), kind, module, group}];
  seconds.resize(2, 0.0);
  seconds[run] += time;
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

// The run's hardware with a host that fits the measured host waits, without the profiler's cost if the run states it.
// Other differences are left alone: they have other causes.
costmodel::Hardware site_of(const Run& run, Diagnosis& d) {
  d.site_step_s = d.predicted_s();
  const hwprofiles::Profile profile = profile_of(run);
  if (!(profile.hardware == run.hardware)) return run.hardware;
  const HostWaits waits = host_waits(d);
  Run measured = run;
  measured.measured = {};
  measured.measured.step_time_s = d.predicted_s() + waits.measured * waits.own() - waits.predicted;
  d.site = fit_site({measured}, "site", built_in_errors());
  d.site_step_s = d.site->after.front();
  return site_hardware(profile, d.site->factors());
}

}  // namespace

double power_stretch(const costmodel::StagePrediction& stage) {
  // The power limit is not a kernel: its time is spread over all compute in proportion.
  double compute = 0.0, limit = 0.0;
  for (const DetailEntry& e : stage.detail)
    if (e.cause == Cause::kCompute) (e.kind == kPowerLimit ? limit : compute) += e.seconds.to<double>();
  return compute > 0.0 ? 1.0 + limit / compute : 1.0;
}

ExplainedLines predicted_lines(const costmodel::StagePrediction& stage) {
  ExplainedLines lines;
  const double stretch = power_stretch(stage);
  for (const DetailEntry& e : stage.detail) {
    if (e.kind == kPowerLimit) continue;
    const double slower = e.cause == Cause::kCompute ? stretch : 1.0;
    const double whole = e.seconds.to<double>() * slower, again = e.recomputed.to<double>() * slower;
    const bool communicates = e.cause == Cause::kCommunication;
    add(e.cause, e.kind, communicates ? "" : e.module, e.group, kPredicted, whole - again, lines);
    add(e.cause, std::string(kRecomputed) + e.kind, e.module, e.group, kPredicted, again, lines);
  }
  // Pipeline transfers wait for their peer, so a trace cannot distinguish them from the bubble.
  add(Cause::kCommunication, "send_recv", "", "pp", kPredicted, stage.bubble.to<double>(), lines);
  return lines;
}

const TracedLine* traced_line(const TracedStep& step, const ExplainedTime& line) {
  const auto found = std::ranges::find_if(step.lines, [&](const TracedLine& m) {
    return to_string(m.cause) == line.cause && kind_of(m) == line.kind && m.module == line.module &&
           m.group == line.group;
  });
  return found == step.lines.end() ? nullptr : &*found;
}

Diagnosis diagnose(const Run& run, const std::vector<Trace>& traces) {
  check(run, traces);
  Diagnosis d;
  d.composed = std::make_shared<const costmodel::Step>(foldwise::compose(run));
  d.prediction = foldwise::predict(run, *d.composed);
  std::vector<MappedKernels> kernels;
  kernels.reserve(traces.size());
  std::vector<std::vector<Span>> steps;
  steps.reserve(traces.size());
  for (const Trace& trace : traces) {
    kernels.push_back(map_kernels(trace, *d.composed));
    steps.push_back(steps_of(trace, kernels.back()));
  }
  d.file = traces[0].file;
  d.device = traces[0].device;
  d.rank = traces[0].rank;
  d.unprofiled_s = run.measured.step_time_s;
  d.stage = stage_of(run, traces[0], d.prediction);
  d.most_allocated = traces[0].most_allocated;
  d.most_reserved = traces[0].most_reserved;
  d.memory = traced_memory(traces[0], kernels[0]);
  std::vector<std::size_t> by_length;
  for (std::size_t i = 0; i < steps[0].size(); ++i) {
    d.steps.push_back(seconds(steps[0][i].length()));
    by_length.push_back(i);
  }
  std::ranges::stable_sort(by_length, {}, [&](std::size_t i) { return d.steps[i]; });
  d.step = by_length[(by_length.size() - 1) / 2];
  std::vector<Span> same;
  same.reserve(steps.size());
  for (const std::vector<Span>& of : steps) same.push_back(of[std::min(d.step, of.size() - 1)]);
  d.ranks = compare_ranks(traces, kernels, same, *d.composed);
  d.measured = traced_step(traces[0], kernels[0], same[0], d.ranks.waits[0]);
  d.kernels = std::move(kernels[0]);
  ExplainedLines lines = predicted_lines(d.prediction.stages[d.stage]);
  for (const TracedLine& line : d.measured.lines)
    add(line.cause, kind_of(line), line.module, line.group, kMeasured, seconds(line.exposed_ns), lines);
  d.waterfall = waterfall_of(lines, {d.predicted_s(), d.measured_s()});
  d.waterfall.stage = d.stage;
  d.waterfall.busiest = false;
  d.speed = speed_of(d.waterfall, traces[0], d.kernels, same[0]);
  d.reasons = reasons_of(d);
  d.findings = findings_of(d);
  const costmodel::Hardware site = site_of(run, d);
  for (const Change& change : neighbours({run.model, site, run.num_gpus}, run.options).changes) {
    if (d.changes.size() == 3 || change.step_time.to<double>() > (1.0 - kWorthChanging) * d.site_step_s) break;
    if (change.fits_host && change.peak_memory <= run.hardware.hbm_capacity) d.changes.push_back({change});
  }
  return d;
}

}  // namespace foldwise::planner
