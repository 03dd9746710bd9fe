#include "planner/diagnose/kernel_profiles.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <utility>

#include "costmodel/config/diagnostics.h"
#include "costmodel/step/prediction.h"
#include "planner/diagnose/diagnosis.h"
#include "planner/diagnose/kernel_map.h"
#include "planner/foldwise.h"
#include "planner/report/screen.h"

namespace foldwise::planner {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 10> kKinds = {"gemm",   "attention", "memory_bound", "quantize", "communication",
                                                     "copies", "idle",      "overlap",      "unknown",  "unnamed"};

void add_prediction(const costmodel::StagePrediction& stage, ProfiledRun& run) {
  for (const auto& [line, seconds] : predicted_lines(stage)) {
    const auto& [cause, whole_kind, module, group] = line;
    std::string kind = whole_kind;
    if (kind.starts_with(kRecomputed)) kind.erase(0, kRecomputed.size());
    if (kind == "grouped_gemm") kind = "gemm";
    if (cause == to_string(costmodel::Cause::kCommunication)) kind = "communication";
    if (cause == to_string(costmodel::Cause::kCopy)) kind = "copies";
    if (cause == to_string(costmodel::Cause::kHost)) kind = "idle";
    run.kinds[kind].predicted_s += seconds[0];
  }
}

ProfiledRun profiled(const Run& run, const KernelProfile& profile) {
  ProfiledRun result;
  result.id = run.id;
  double known = 0.0, all = 1e-3 * profile.kernels_rest_ms, computing = all;
  result.kinds["unnamed"].measured_s = all;
  for (const auto& [name, ms] : profile.kernels) {
    const double time = 1e-3 * ms;
    const std::string kind = kernel_kind(name);
    all += time;
    if (kind != "unknown") known += time;
    if (is_communication(kind) || is_host_copy(name)) continue;
    result.kinds[kind].measured_s += time;
    computing += time;
  }
  result.kinds["overlap"].measured_s = 1e-3 * profile.compute_ms - computing;
  result.kinds["communication"].measured_s = 1e-3 * profile.exposed_comm_ms;
  result.kinds["copies"].measured_s = 1e-3 * profile.exposed_host_copy_ms;
  result.kinds["idle"].measured_s = 1e-3 * (profile.wall_ms - profile.busy_ms);
  result.recognised = all > 0.0 ? known / all : 1.0;
  const costmodel::Prediction prediction = costmodel::predict(foldwise::compose(run));
  add_prediction(prediction.stages.at(0), result);
  result.step = {prediction.step_time.to<double>(), 1e-3 * profile.wall_ms};
  return result;
}

}  // namespace

std::vector<ProfiledRun> profiled_runs(const RunList& list) {
  std::vector<ProfiledRun> result;
  for (const Run& run : list.runs)
    if (run.measured.kernel_profile) result.push_back(profiled(run, *run.measured.kernel_profile));
  if (result.empty())
    throw config::ConfigError({{{config::kArguments, 0, ""},
                                "expected runs with measured.kernel_profile_rank0 among --profiles, found none"}});
  return result;
}

json profiled_runs_json(const std::vector<ProfiledRun>& runs) {
  json rows = json::array();
  for (const ProfiledRun& run : runs) {
    json kinds = json::array();
    for (const auto& [kind, time] : run.kinds)
      kinds.push_back({{"kind", kind}, {"predicted_s", time.predicted_s}, {"measured_s", time.measured_s}});
    rows.push_back({{"id", run.id},
                    {"predicted_s", run.step.predicted_s},
                    {"measured_s", run.step.measured_s},
                    {"recognised", run.recognised},
                    {"kinds", std::move(kinds)}});
  }
  return {{"profiles", std::move(rows)}};
}

std::string profiled_runs_text(const std::vector<ProfiledRun>& runs) {
  std::vector<std::string> titles = {"<run", "step"};
  titles.insert(titles.end(), kKinds.begin(), kKinds.end());
  titles.emplace_back("recognised %");
  Table table(titles);
  const auto both = [](const KindTime& time) {
    return fmt::format("{:.0f} / {:.0f}", 1e3 * time.predicted_s, 1e3 * time.measured_s);
  };
  for (const ProfiledRun& run : runs) {
    std::vector<std::string> cells = {run.id, both(run.step)};
    for (const std::string_view kind : kKinds) {
      const auto found = run.kinds.find(std::string(kind));
      cells.push_back(found == run.kinds.end() ? "" : both(found->second));
    }
    cells.push_back(fmt::format("{:.1f}", 100.0 * run.recognised));
    table.add(std::move(cells));
  }
  return "Milliseconds of a step, predicted / measured\n" + table.text();
}

}  // namespace foldwise::planner
