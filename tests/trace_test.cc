// Do viewers load what `predict --trace` and `--svg` write? The trace is held against the rules of the trace-event
// format
// ("Trace Event Format", Google, 2016), the drawing against those of XML.
#include "planner/report/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hwprofiles/load/profile.h"
#include "planner/models/models.h"
#include "tests/usual_options.h"

namespace foldwise::planner::trace_test {
namespace {

using costmodel::Schedule;
using costmodel::StepTimeline;
using costmodel::TrainingOptions;
using nlohmann::json;

TrainingOptions mixtral_run() {
  TrainingOptions o = usual_options();
  o.set_layout({.tp = 2, .cp = 1, .dp = 8, .pp = 4, .vpp = 2, .ep = 8, .etp = 1});
  o.pipeline.global_batch = 64;
  return o;
}

StepTimeline timeline_of(const TrainingOptions& options) {
  const costmodel::ModelSpec model = load_model("mixtral-8x7b");
  const costmodel::Hardware hardware = hwprofiles::load_profile("h200").hardware;
  const costmodel::Step step = costmodel::compose_step(model, options, hardware);
  return costmodel::step_timeline(step, costmodel::predict(step));
}

std::vector<TrainingOptions> runs() {
  std::vector<TrainingOptions> result{mixtral_run()};
  TrainingOptions& overlap = result.emplace_back(mixtral_run());
  overlap.pipeline.overlaps.ep_a2a = overlap.pipeline.overlaps.delay_wgrad = true;
  TrainingOptions& plain = result.emplace_back(mixtral_run());
  plain.pipeline.vpp = 1;
  plain.layer.recompute.granularity = costmodel::RecomputeGranularity::kFull;
  for (const Schedule schedule :
       {Schedule::kGpipe, Schedule::kZbH1, Schedule::kZbV, Schedule::kDualPipe, Schedule::kDualPipeV}) {
    TrainingOptions& study = result.emplace_back(mixtral_run());
    study.pipeline.schedule = schedule;
    study.pipeline.vpp = schedule == Schedule::kDualPipe ? 1 : costmodel::chunks_of(schedule, 1);
  }
  return result;
}

// Checks all requirements of the format on single events and on all together.
void expect_valid(const json& trace) {
  ASSERT_TRUE(trace.at("traceEvents").is_array());
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> slices;  // By thread: begin, end.
  std::map<std::int64_t, json> starts, ends;
  std::map<int, double> last_count;
  std::set<std::pair<int, int>> named;
  std::set<int> processes;
  double last = 0.0;
  for (const json& event : trace["traceEvents"]) {
    const auto phase = event.at("ph").get<std::string>();
    const auto at = event.at("ts").get<double>();
    const std::pair thread{event.at("pid").get<int>(), event.at("tid").get<int>()};
    ASSERT_TRUE(event.at("name").is_string());
    ASSERT_GE(at, last) << "in order of time";
    last = at;
    if (phase == "X") {
      ASSERT_GE(event.at("dur").get<double>(), 0.0);
      ASSERT_TRUE(event.at("args").is_object());
      slices[thread].emplace_back(at, at + event["dur"].get<double>());
    } else if (phase == "s" || phase == "f") {
      json& other = (phase == "s" ? starts : ends)[event.at("id").get<std::int64_t>()];
      ASSERT_TRUE(other.is_null()) << "one start and one end each";
      other = event;
      ASSERT_EQ(event.value("bp", ""), phase == "f" ? "e" : "");
    } else if (phase == "C") {
      ASSERT_FALSE(event.at("args").empty());
      for (const json& value : event["args"]) ASSERT_TRUE(value.is_number());
      ASSERT_GE(at, last_count[thread.first]);
      last_count[thread.first] = at;
    } else {
      ASSERT_EQ(phase, "M");
      if (event["name"] == "thread_name") named.insert(thread);
      if (event["name"] == "process_name") processes.insert(thread.first);
      ASSERT_THAT(event["name"].get<std::string>(),
                  testing::AnyOf("thread_name", "process_name", "thread_sort_index", "process_sort_index"));
    }
  }
  // To Perfetto, thread 0 or one with its process's number is the main thread.
  std::set<int> numbers;
  for (const auto& [thread, intervals] : slices) {
    EXPECT_TRUE(numbers.insert(thread.second).second);
    EXPECT_GT(thread.first, 0);
    EXPECT_EQ(processes.count(thread.second), 0U);
    EXPECT_TRUE(named.count(thread)) << thread.first << " " << thread.second;
    EXPECT_TRUE(processes.count(thread.first));
    // A stream does one thing at a time, even with a viewer's rounding to nanoseconds.
    const auto nanoseconds = [](double microseconds) { return std::llround(1e3 * microseconds); };
    for (std::size_t i = 1; i < intervals.size(); ++i)
      EXPECT_GE(nanoseconds(intervals[i].first),
                nanoseconds(intervals[i - 1].first) + nanoseconds(intervals[i - 1].second - intervals[i - 1].first));
  }
  const auto inside = [&](const json& event) {
    const auto at = event["ts"].get<double>();
    const auto& intervals = slices[{event["pid"].get<int>(), event["tid"].get<int>()}];
    return std::any_of(intervals.begin(), intervals.end(),
                       [at](const auto& slice) { return slice.first <= at && at <= slice.second; });
  };
  ASSERT_EQ(starts.size(), ends.size());
  for (const auto& [id, start] : starts) {
    ASSERT_TRUE(ends.count(id));
    const json& end = ends[id];
    EXPECT_NE(start["pid"], end["pid"]);
    EXPECT_EQ(start["cat"], end["cat"]);
    EXPECT_LE(start["ts"].get<double>(), end["ts"].get<double>());
    EXPECT_TRUE(inside(start));
    EXPECT_TRUE(inside(end));
  }
}

TEST(Trace, OfEveryScheduleFollowsTheFormat) {
  for (const TrainingOptions& options : runs()) {
    SCOPED_TRACE(static_cast<int>(options.pipeline.schedule));
    const json trace = trace_json(timeline_of(options), "a \"title\"");
    EXPECT_EQ(json::parse(trace.dump()), trace);
    expect_valid(trace);
    std::size_t flows = 0, counters = 0;
    std::set<int> ranks;
    for (const json& event : trace["traceEvents"]) {
      flows += event["ph"] == "s" ? 1 : 0;
      counters += event["ph"] == "C" ? 1 : 0;
      ranks.insert(event["pid"].get<int>());
    }
    EXPECT_EQ(ranks.size(), 4U);
    EXPECT_GT(flows, 0U);
    EXPECT_GT(counters, 8U);
  }
}

// One forward and one backward flow per micro-batch and boundary: 8 micro-batches, 4 x 2 - 1 boundaries.
TEST(Trace, HasAFlowPerTransfer) {
  TrainingOptions options = mixtral_run();
  options.pipeline.global_batch = 64;
  const json trace = trace_json(timeline_of(options), "");
  // Others say which task of the next rank takes what is sent before and after the pairs: of another micro-batch.
  using Place = std::array<double, 3>;  // pid, tid, microseconds
  const auto place = [](const json& event) -> Place { return {event["pid"], event["tid"], event["ts"]}; };
  std::map<Place, int> micro_batches;
  std::map<std::int64_t, Place> from;
  std::size_t flows = 0;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "X" && event["args"].contains("micro_batch"))
      micro_batches[place(event)] = event["args"]["micro_batch"];
    if (event["ph"] == "s") from[event["id"]] = place(event);
    if (event["ph"] == "f") flows += micro_batches.at(from.at(event["id"])) == micro_batches.at(place(event)) ? 1 : 0;
  }
  EXPECT_EQ(flows, 2U * 8U * 7U);
}

// 512 micro-batches through 8 chunks are 8192 tasks: the trace keeps both ends of each rank.
TEST(Trace, OfManyMicroBatchesStaysSmall) {
  TrainingOptions options = mixtral_run();
  options.pipeline.global_batch = 4096;
  const StepTimeline timeline = timeline_of(options);
  const json trace = trace_json(timeline, "", 400);
  expect_valid(trace);
  EXPECT_LT(trace["traceEvents"].size(), 400U * 12U);
  std::size_t left_out = 0;
  for (const json& event : trace["traceEvents"]) left_out += event.value("cat", "") == "left out" ? 1 : 0;
  EXPECT_EQ(left_out, 4U);
  EXPECT_LT(schedule_svg(timeline, "", 400).size(), 400U * 400U);
}

// Every element is closed, attributes are quoted, text has no bare < or &.
void expect_well_formed(const std::string& text) {
  std::vector<std::string> open;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '&') {
      const std::size_t end = text.find(';', at);
      ASSERT_NE(end, std::string::npos);
      ASSERT_THAT(text.substr(at, end - at + 1), testing::AnyOf("&amp;", "&lt;", "&gt;", "&quot;"));
      at = end + 1;
      continue;
    }
    if (text[at] != '<') {
      ++at;
      continue;
    }
    const std::size_t end = text.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = text.substr(at + 1, end - at - 1);
    ASSERT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    at = end + 1;
  }
  EXPECT_TRUE(open.empty());
}

TEST(Drawing, OfEveryScheduleIsWellFormed) {
  for (const TrainingOptions& options : runs()) {
    const StepTimeline timeline = timeline_of(options);
    const std::string svg = schedule_svg(timeline, "<a> & \"b\"");
    expect_well_formed(svg);
    std::size_t tasks = 0, boxes = 0;
    for (const auto& rank : timeline.ranks) tasks += rank.size();
    for (std::size_t at = svg.find(" of micro-batch "); at != std::string::npos;
         at = svg.find(" of micro-batch ", at + 1))
      ++boxes;
    EXPECT_EQ(boxes, tasks);
  }
}

}  // namespace
}  // namespace foldwise::planner::trace_test
