#include "planner/report/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "planner/report/markup.h"

namespace foldwise::planner {
namespace {

using costmodel::Activity;
using costmodel::ScheduledTask;
using costmodel::StepTimeline;
using costmodel::Stream;
using costmodel::TaskKind;
using nlohmann::json;

constexpr auto kStreamNames =
    costmodel::names_of<Stream>("compute", "TP/CP", "EP", "DP", "PP send activations", "PP send gradients",
                                "copies to host", "copies from host", "host");

// Trace viewers keep whole nanoseconds and drop a slice that starts before the previous one of its thread ends, even by
// a rounding error. A duration is therefore the difference of two rounded times.
std::int64_t nanoseconds(std::int64_t ps) { return ps / 1000; }
double microseconds(std::int64_t ps) { return static_cast<double>(nanoseconds(ps)) / 1000.0; }
double duration_us(std::int64_t start_ps, std::int64_t end_ps) {
  return static_cast<double>(nanoseconds(end_ps) - nanoseconds(start_ps)) / 1000.0;
}

std::string_view kind_name(TaskKind kind) {
  constexpr auto kNames = costmodel::names_of<TaskKind>("forward", "backward", "input gradient", "weight gradient");
  return kNames.at(static_cast<std::size_t>(kind));
}

/// "F3", "B3.1" in chunk 1; a merged pair is "F5 | B3".
std::string task_name(const std::vector<ScheduledTask>& tasks, std::size_t i) {
  constexpr auto kLetters = costmodel::names_of<TaskKind>("F", "B", "I", "W");
  const costmodel::Task& task = tasks[i].task;
  std::string name = fmt::format("{}{}", kLetters.at(static_cast<std::size_t>(task.kind)), task.micro_batch);
  if (task.chunk > 0) name += fmt::format(".{}", task.chunk);
  return task.merged ? name + " | " + task_name(tasks, i + 1) : name;
}

/// Tasks of a rank that are drawn: all, or the first and the last ones. A merged pair is never cut.
class Window {
 public:
  Window(const StepTimeline& timeline, std::size_t most_tasks) {
    const std::size_t share = std::max<std::size_t>(2, most_tasks / std::max<std::size_t>(1, timeline.ranks.size()));
    for (const std::vector<ScheduledTask>& tasks : timeline.ranks) {
      if (tasks.size() <= share) {
        left_out_.emplace_back(tasks.size(), tasks.size());
        continue;
      }
      std::size_t begin = share / 2, end = tasks.size() - share / 2;
      if (tasks[begin - 1].task.merged) ++begin;
      if (tasks[end - 1].task.merged) --end;
      left_out_.emplace_back(begin, end);
    }
  }
  [[nodiscard]] bool contains(std::size_t rank, std::int32_t task) const {
    const auto i = static_cast<std::size_t>(task);
    return task < 0 || i < left_out_[rank].first || i >= left_out_[rank].second;
  }
  /// First, and one past the last.
  [[nodiscard]] std::pair<std::size_t, std::size_t> left_out(std::size_t rank) const { return left_out_[rank]; }
  [[nodiscard]] bool complete(std::size_t rank) const { return left_out_[rank].first == left_out_[rank].second; }

 private:
  std::vector<std::pair<std::size_t, std::size_t>> left_out_;
};

std::string slice_name(const StepTimeline& timeline, const StepTimeline::Slice& slice) {
  if (slice.task < 0) return std::string(slice.name);
  const std::string task =
      task_name(timeline.ranks[static_cast<std::size_t>(slice.rank)], static_cast<std::size_t>(slice.task));
  if (slice.stream == Stream::kSendActivations || slice.stream == Stream::kSendGradients) return "send " + task;
  return slice.activity == Activity::kCompute ? task : fmt::format("{} {}", task, to_string(slice.activity));
}

// Process and thread ids are unique and start at 1. Perfetto treats thread 0 as the main thread and gives it the id of
// its process, so id 0 would merge rank 2's first stream with its third.
std::size_t pid_of(std::size_t rank) { return rank + 1; }
std::size_t tid_of(std::size_t rank, std::size_t stream) { return 1000 * pid_of(rank) + stream; }
std::size_t pid_of(const StepTimeline::Slice& slice) { return pid_of(static_cast<std::size_t>(slice.rank)); }
std::size_t tid_of(const StepTimeline::Slice& slice) {
  return tid_of(static_cast<std::size_t>(slice.rank), static_cast<std::size_t>(slice.stream));
}

json metadata(const char* what, std::size_t pid, std::size_t tid, json arguments) {
  return {{"name", what}, {"ph", "M"}, {"ts", 0}, {"pid", pid}, {"tid", tid}, {"args", std::move(arguments)}};
}

}  // namespace

json trace_json(const StepTimeline& timeline, const std::string& title, std::size_t most_tasks) {
  const Window window(timeline, most_tasks);
  json events = json::array();
  std::vector<std::array<bool, costmodel::kStreams>> used(timeline.ranks.size());
  const auto drawn = [&](const StepTimeline::Slice& slice) {
    return slice.duration_ps > 0 && window.contains(static_cast<std::size_t>(slice.rank), slice.task);
  };
  for (const StepTimeline::Slice& slice : timeline.slices) {
    if (!drawn(slice)) continue;
    used[static_cast<std::size_t>(slice.rank)][static_cast<std::size_t>(slice.stream)] = true;
    json arguments = {{"activity", to_string(slice.activity)}};
    if (slice.slack_ps >= 0) arguments["slack_us"] = microseconds(slice.slack_ps);
    if (slice.task >= 0) {
      const costmodel::Task& task =
          timeline.ranks[static_cast<std::size_t>(slice.rank)][static_cast<std::size_t>(slice.task)].task;
      arguments["micro_batch"] = task.micro_batch;
      arguments["chunk"] = task.chunk;
    }
    events.push_back({{"name", slice_name(timeline, slice)},
                      {"cat", slice.slack_ps == 0 ? "critical" : "task"},
                      {"ph", "X"},
                      {"ts", microseconds(slice.start_ps)},
                      {"dur", duration_us(slice.start_ps, slice.start_ps + slice.duration_ps)},
                      {"pid", pid_of(slice)},
                      {"tid", tid_of(slice)},
                      {"args", std::move(arguments)}});
  }
  std::int64_t id = 0;
  for (const StepTimeline::Flow& flow : timeline.flows) {
    const StepTimeline::Slice& from = timeline.slices[static_cast<std::size_t>(flow.from)];
    const StepTimeline::Slice& to = timeline.slices[static_cast<std::size_t>(flow.to)];
    if (!drawn(from) || !drawn(to)) continue;
    const auto end = [&](const char* phase, const StepTimeline::Slice& slice, std::int64_t at) {
      json event = {{"name", "dependency"},   {"cat", "dependency"},  {"ph", phase},         {"id", id},
                    {"ts", microseconds(at)}, {"pid", pid_of(slice)}, {"tid", tid_of(slice)}};
      if (*phase == 'f') event["bp"] = "e";  // Binds to the slice around it, not to the next one.
      events.push_back(std::move(event));
    };
    end("s", from, from.start_ps);
    end("f", to, to.start_ps);
    ++id;
  }
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    for (const StepTimeline::Level& level : timeline.memory[rank])
      if (window.contains(rank, level.task))
        events.push_back({{"name", "allocated memory"},
                          {"ph", "C"},
                          {"ts", microseconds(level.at_ps)},
                          {"pid", pid_of(rank)},
                          {"tid", tid_of(rank, 0)},
                          {"args", {{"GiB", in_gib(level.allocated)}}}});
    if (!window.complete(rank)) {
      const auto [begin, end] = window.left_out(rank);
      const std::int64_t start = timeline.ranks[rank][begin].start_ps, stop = timeline.ranks[rank][end].start_ps;
      events.push_back({{"name", fmt::format("{} tasks left out", end - begin)},
                        {"cat", "left out"},
                        {"ph", "X"},
                        {"ts", microseconds(start)},
                        {"dur", duration_us(start, stop)},
                        {"pid", pid_of(rank)},
                        {"tid", tid_of(rank, static_cast<std::size_t>(Stream::kCompute))},
                        {"args", json::object()}});
    }
    events.push_back(
        metadata("process_name", pid_of(rank), tid_of(rank, 0), {{"name", fmt::format("pipeline rank {}", rank)}}));
    events.push_back(metadata("process_sort_index", pid_of(rank), tid_of(rank, 0), {{"sort_index", rank}}));
    for (std::size_t stream = 0; stream < costmodel::kStreams; ++stream) {
      if (!used[rank][stream]) continue;
      events.push_back(
          metadata("thread_name", pid_of(rank), tid_of(rank, stream), {{"name", kStreamNames.at(stream)}}));
      events.push_back(metadata("thread_sort_index", pid_of(rank), tid_of(rank, stream), {{"sort_index", stream}}));
    }
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const json& a, const json& b) { return a["ts"].get<double>() < b["ts"].get<double>(); });
  return {{"displayTimeUnit", "ms"}, {"otherData", {{"title", title}}}, {"traceEvents", std::move(events)}};
}

namespace {

// From the Okabe-Ito palette, which colour-blind readers can distinguish.
constexpr auto kTaskColours = costmodel::names_of<TaskKind>("#56b4e9", "#009e73", "#8fd3b6", "#e69f00");
constexpr std::string_view kEndColour = "#cc79a7", kLeftOutColour = "#dddddd", kIdleColour = "#f6f6f6";

}  // namespace

std::string schedule_svg(const StepTimeline& timeline, const std::string& title, std::size_t most_tasks) {
  constexpr double kLeft = 60.0, kWidth = 1800.0, kRow = 34.0, kBox = 28.0, kTop = 64.0;
  const Window window(timeline, most_tasks);
  const auto x = [&](std::int64_t ps) {
    return kLeft + kWidth * static_cast<double>(ps) / static_cast<double>(std::max<std::int64_t>(1, timeline.end_ps));
  };
  const double height = kTop + kRow * static_cast<double>(timeline.ranks.size()) + 30.0;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n<title>{}</title>\n<text x=\"{}\" y=\"18\" font-size=\"14\">{}</text>\n",
      kLeft + kWidth + 20.0, height, escaped(title), kLeft, escaped(title));
  double legend = kLeft;
  const auto entry = [&](std::string_view colour, std::string_view name) {
    out += fmt::format(
        "<rect x=\"{:.0f}\" y=\"30\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{:.0f}\" y=\"40\">{}"
        "</text>\n",
        legend, colour, legend + 16.0, name);
    legend += 24.0 + 7.0 * static_cast<double>(name.size());
  };
  for (const TaskKind kind :
       {TaskKind::kForward, TaskKind::kBackward, TaskKind::kInputGradient, TaskKind::kWeightGradient})
    entry(kTaskColours.at(static_cast<std::size_t>(kind)), kind_name(kind));
  entry(kEndColour, "end of the step");
  entry(kIdleColour, "waiting");

  const auto box = [&](std::int64_t start, std::int64_t end, double y, double box_height, std::string_view colour,
                       std::string_view label, std::string_view tip) {
    const double width = x(end) - x(start);
    out += fmt::format(R"(<g><title>{}</title><rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}" fill="{}")",
                       escaped(tip), x(start), y, width, box_height, colour);
    if (width > 3.0) out += R"( stroke="#ffffff" stroke-width="0.5")";
    out += "/>";
    if (width > 6.0 * static_cast<double>(label.size()) + 2.0)
      out += fmt::format(R"(<text x="{:.2f}" y="{:.1f}" text-anchor="middle">{}</text>)", x(start) + width / 2.0,
                         y + box_height / 2.0 + 4.0, escaped(label));
    out += "</g>\n";
  };
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const double y = kTop + kRow * static_cast<double>(rank);
    const std::vector<ScheduledTask>& tasks = timeline.ranks[rank];
    out += fmt::format("<text x=\"4\" y=\"{:.1f}\">rank {}</text>\n", y + kBox / 2.0 + 4.0, rank);
    box(0, timeline.end_ps, y, kBox, kIdleColour, "", "waiting");
    bool second_of_pair = false;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      const ScheduledTask& scheduled = tasks[i];
      const bool pair = scheduled.task.merged || second_of_pair;
      // Both tasks of a pair span its whole time; each has half of the row.
      const double top = second_of_pair ? y + kBox / 2.0 : y, high = pair ? kBox / 2.0 : kBox;
      second_of_pair = scheduled.task.merged;
      if (!window.contains(rank, static_cast<std::int32_t>(i))) continue;
      const auto kind = static_cast<std::size_t>(scheduled.task.kind);
      box(scheduled.start_ps, scheduled.end_ps, top, high, kTaskColours.at(kind),
          fmt::format("{}", scheduled.task.micro_batch),
          fmt::format("{} of micro-batch {}, chunk {}: {:.3f} to {:.3f} ms", kind_name(scheduled.task.kind),
                      scheduled.task.micro_batch, scheduled.task.chunk, 1e-9 * static_cast<double>(scheduled.start_ps),
                      1e-9 * static_cast<double>(scheduled.end_ps)));
    }
    if (!window.complete(rank)) {
      const auto [begin, end] = window.left_out(rank);
      const std::string text = fmt::format("{} tasks left out", end - begin);
      box(tasks[begin].start_ps, tasks[end].start_ps, y, kBox, kLeftOutColour, text, text);
    }
  }
  for (const StepTimeline::Slice& slice : timeline.slices)
    if (slice.task < 0 && slice.in_sequence && slice.duration_ps > 0)
      box(slice.start_ps, slice.start_ps + slice.duration_ps, kTop + kRow * slice.rank, kBox, kEndColour, slice.name,
          fmt::format("{}: {:.3f} ms", slice.name, 1e-9 * static_cast<double>(slice.duration_ps)));
  for (int tick = 0; tick <= 10; ++tick) {
    const std::int64_t at = timeline.end_ps / 10 * tick;
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.4g} s</text>\n", x(at), height - 10.0,
                       1e-12 * static_cast<double>(at));
  }
  return out + "</svg>\n";
}

}  // namespace foldwise::planner
