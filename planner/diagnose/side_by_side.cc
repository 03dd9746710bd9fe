#include "planner/diagnose/side_by_side.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "costmodel/step/step_timeline.h"
#include "planner/report/trace.h"

namespace foldwise::planner {
namespace {

using nlohmann::json;

std::string name_of_op(const KernelOp& op) {
  const std::string& of = op.group.empty() ? op.module : op.group;
  return fmt::format("{}{}{}{}", op.recomputed ? "recomputed " : "", op.kind, of.empty() ? "" : " ", of);
}

}  // namespace

json side_by_side(const Run& run, const Trace& trace, const Diagnosis& diagnosis) {
  json result = trace_json(costmodel::step_timeline(*diagnosis.composed, diagnosis.prediction),
                           fmt::format("{}: predicted and measured", run.id));
  json& events = result["traceEvents"];
  std::size_t pid = 0;
  for (const json& event : events) pid = std::max(pid, event.value("pid", std::size_t{0}));
  ++pid;

  std::map<std::int32_t, std::pair<std::size_t, std::int64_t>> streams;  // Thread and end of its last slice.
  const auto describe = [&](const char* what, std::size_t tid, json arguments) {
    events.push_back(
        {{"name", what}, {"ph", "M"}, {"ts", 0}, {"pid", pid}, {"tid", tid}, {"args", std::move(arguments)}});
  };
  const auto microseconds = [](std::int64_t ns) { return static_cast<double>(ns) / 1000.0; };
  const Span& measured = diagnosis.measured.time;
  for (std::size_t i = 0; i < trace.gpu.size(); ++i) {
    const GpuEvent& kernel = trace.gpu[i];
    auto& [tid, drawn_until] =
        streams.try_emplace(kernel.stream, 1000 * pid + streams.size(), measured.begin).first->second;
    const std::int64_t begin = std::max(kernel.time.begin, drawn_until), end = std::min(kernel.time.end, measured.end);
    if (end <= begin) continue;
    drawn_until = end;
    const KernelOp& op = diagnosis.kernels.ops[static_cast<std::size_t>(diagnosis.kernels.op[i])];
    events.push_back({{"name", name_of_op(op)},
                      {"cat", op.kind},
                      {"ph", "X"},
                      {"ts", microseconds(begin - measured.begin)},
                      {"dur", microseconds(end - begin)},
                      {"pid", pid},
                      {"tid", tid},
                      {"args", {{"kernel", trace.name(kernel.name)}}}});
  }
  const std::string rank = diagnosis.rank < 0 ? "" : fmt::format("rank {}, ", diagnosis.rank);
  describe("process_name", 1000 * pid, {{"name", fmt::format("measured: {}pipeline rank {}", rank, diagnosis.stage)}});
  describe("process_sort_index", 1000 * pid, {{"sort_index", -1}});
  for (const auto& [stream, thread] : streams)
    describe("thread_name", thread.first, {{"name", fmt::format("stream {}", stream)}});
  std::stable_sort(events.begin(), events.end(),
                   [](const json& a, const json& b) { return a["ts"].get<double>() < b["ts"].get<double>(); });
  return result;
}

}  // namespace foldwise::planner
