#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "costmodel/pipeline/pipeline_graph.h"
#include "costmodel/pipeline/schedule.h"
#include "costmodel/pipeline/timeline.h"

namespace foldwise::costmodel::pipeline_test {
namespace {

// Shapes that Megatron's schedule accepts (rules pp.group_range, pp.group_rem), in addition pp = 1 with chunks.
ScheduleShape any_shape(std::int64_t max_pp, std::int64_t max_vpp, std::int64_t max_groups) {
  ScheduleShape shape;
  shape.pp = *rc::gen::inRange<std::int64_t>(1, max_pp + 1);
  shape.vpp = *rc::gen::inRange<std::int64_t>(1, max_vpp + 1);
  shape.overlap_moe_expert_parallel_comm = *rc::gen::arbitrary<bool>();
  if (shape.vpp == 1) {
    shape.num_microbatches = *rc::gen::inRange<std::int64_t>(1, max_groups * max_pp);
    return shape;
  }
  const std::int64_t group = shape.pp + *rc::gen::inRange<std::int64_t>(0, 4);
  shape.group_size = group == shape.pp ? 0 : group;
  const std::int64_t rest = *rc::gen::inRange<std::int64_t>(shape.pp, group + 1);
  shape.num_microbatches = group * *rc::gen::inRange<std::int64_t>(1, max_groups) + (rest == group ? 0 : rest);
  return shape;
}

// A study schedule with an accepted size.
ScheduleShape any_study_shape() {
  ScheduleShape shape;
  shape.kind =
      *rc::gen::element(Schedule::kGpipe, Schedule::kZbH1, Schedule::kZbV, Schedule::kDualPipe, Schedule::kDualPipeV);
  const bool dual = shape.kind == Schedule::kDualPipe || shape.kind == Schedule::kDualPipeV;
  const std::int64_t half = *rc::gen::inRange(1, 5);
  shape.pp = shape.kind == Schedule::kDualPipe ? 2 * half : half;
  shape.vpp = chunks_of(shape.kind, 1);
  shape.num_microbatches = dual ? 2 * (shape.pp + *rc::gen::inRange(0, 6)) : *rc::gen::inRange(1, 20);
  return shape;
}

// Even whole picoseconds, so that halves and doubles are exact.
Seconds ps(std::int64_t value) { return Seconds{static_cast<double>(value) * 1e-12}; }
std::int64_t to_ps(Seconds time) { return std::llround(time.to<double>() * 1e12); }
Seconds any_time(std::int64_t below) { return ps(2 * *rc::gen::inRange<std::int64_t>(0, below)); }

PipelineTimes any_times(const ScheduleShape& shape) {
  PipelineTimes times{.shape = shape, .stages = {}, .overlap_p2p = *rc::gen::arbitrary<bool>()};
  for (std::int64_t x = 0; x < shape.pp * shape.vpp; ++x) {
    times.stages.push_back({.forward = any_time(1000),
                            .backward = any_time(2000),
                            .merged_pair_saving = any_time(1500),
                            .send = any_time(300),
                            .gather = any_time(500),
                            .reduction = any_time(1000),
                            .first_forward_delay = any_time(50),
                            .last_backward_delay = any_time(50)});
  }
  if (*rc::gen::arbitrary<bool>())
    for (std::int64_t rank = 0; rank < shape.pp; ++rank) times.reload.push_back(any_time(1500));
  return times;
}

PipelineTimes equal_stages(ScheduleShape shape, Seconds forward, Seconds backward) {
  PipelineTimes times{.shape = shape, .stages = {}};
  times.stages.assign(static_cast<std::size_t>(shape.pp * shape.vpp), {.forward = forward, .backward = backward});
  return times;
}

std::string name_of(const Task& task) {
  constexpr std::array<const char*, 4> kNames = {"F", "B", "I", "W"};
  return kNames.at(static_cast<std::size_t>(task.kind)) + std::to_string(task.micro_batch) + "c" +
         std::to_string(task.chunk);
}

std::vector<std::string> names_of(const std::vector<Task>& tasks) {
  std::vector<std::string> names;
  std::transform(tasks.begin(), tasks.end(), std::back_inserter(names), name_of);
  return names;
}

// Does the schedule issue what Megatron's own code issues, in the same order?
TEST(Schedule, EqualsEveryOrderThatMegatronExecuted) {
  std::ifstream file(FW_GOLDEN_DIR "/schedule_cases.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  std::size_t ranks = 0;
  for (const nlohmann::json& example : golden.at("cases")) {
    const ScheduleShape shape{.pp = example.at("pp"),
                              .vpp = example.at("vpp").is_null() ? 1 : example.at("vpp").get<std::int64_t>(),
                              .num_microbatches = example.at("num_microbatches"),
                              .group_size = example.at("microbatch_group_size_per_vp_stage"),
                              .overlap_moe_expert_parallel_comm = example.at("overlap_moe_expert_parallel_comm")};
    for (const nlohmann::json& rank : example.at("ranks")) {
      const std::int64_t r = rank.at("pp_rank");
      SCOPED_TRACE("pp " + std::to_string(shape.pp) + " vpp " + std::to_string(shape.vpp) + " rank " +
                   std::to_string(r));
      EXPECT_EQ(num_warmup(shape, r), rank.at("num_warmup").get<std::int64_t>());
      EXPECT_EQ(peak_in_flight(shape, r), rank.at("peak_in_flight_chunks").get<std::int64_t>());
      EXPECT_EQ(names_of(rank_tasks(shape, r)), rank.at("sequence").get<std::vector<std::string>>());
      ++ranks;
    }
  }
  EXPECT_GT(ranks, 40U);
}

TEST(Schedule, OnOneRankAlternatesForwardAndBackward) {
  const ScheduleShape shape{.num_microbatches = 3};
  EXPECT_THAT(names_of(rank_tasks(shape, 0)), testing::ElementsAre("F0c0", "B0c0", "F1c0", "B1c0", "F2c0", "B2c0"));
}

// F0 ; (B0, F1) ; (B1, F2) ; B2 of combined_1f1b.py: one forward ahead.
TEST(Schedule, OnOneRankWithExpertOverlapRunsOneForwardAhead) {
  const ScheduleShape shape{.num_microbatches = 3, .overlap_moe_expert_parallel_comm = true};
  EXPECT_THAT(names_of(rank_tasks(shape, 0)), testing::ElementsAre("F0c0", "F1c0", "B0c0", "F2c0", "B1c0", "B2c0"));
  EXPECT_EQ(peak_in_flight(shape, 0), 2);
}

// Does every rank run each (micro-batch, chunk) forward once, and later backward once?
RC_GTEST_PROP(Schedule, RunsEachChunkForwardThenBackwardOnce, ()) {
  const ScheduleShape shape = any_shape(6, 4, 5);
  const std::int64_t rank = *rc::gen::inRange<std::int64_t>(0, shape.pp);
  std::map<std::pair<std::int32_t, std::int32_t>, int> state;
  std::int64_t in_flight = 0, peak = 0;
  for (const Task& task : rank_tasks(shape, rank)) {
    int& seen = state[{task.micro_batch, task.chunk}];
    RC_ASSERT(seen == (task.forward() ? 0 : 1));
    ++seen;
    in_flight += task.forward() ? 1 : -1;
    peak = std::max(peak, in_flight);
  }
  RC_ASSERT(static_cast<std::int64_t>(state.size()) == shape.num_microbatches * shape.vpp);
  RC_ASSERT(in_flight == 0);
  RC_ASSERT(peak == peak_in_flight(shape, rank));
}

// 1F1B: rank i holds min(m, pp - i) micro-batches.
RC_GTEST_PROP(Schedule, OfPlain1F1BHoldsOneMicroBatchPerRankToTheEnd, ()) {
  const ScheduleShape shape{.pp = *rc::gen::inRange(1, 20), .num_microbatches = *rc::gen::inRange(1, 60)};
  const std::int64_t rank = *rc::gen::inRange<std::int64_t>(0, shape.pp);
  RC_ASSERT(peak_in_flight(shape, rank) == std::min(shape.num_microbatches, shape.pp - rank));
}

// Do the returned moments give the exact peak of any linear memory, with any transient per kind of task?
RC_GTEST_PROP(InFlightPeaks, GiveTheSamePeakAsTheWalkOverAllTasks, ()) {
  const ScheduleShape shape = *rc::gen::arbitrary<bool>() ? any_shape(5, 4, 12) : any_study_shape();
  const std::int64_t rank = *rc::gen::inRange<std::int64_t>(0, shape.pp);
  const auto chunks = static_cast<std::size_t>(shape.vpp);
  const auto number = rc::gen::inRange<std::int64_t>(0, 1000);
  const auto kept = *rc::gen::container<std::vector<std::int64_t>>(chunks, number);
  const auto transient = *rc::gen::container<std::vector<std::int64_t>>(2 * chunks, number);
  const auto level = [&](const std::vector<std::int32_t>& count, const Task& running) {
    std::int64_t bytes = transient[static_cast<std::size_t>(running.chunk) + (running.forward() ? 0 : chunks)];
    for (std::size_t c = 0; c < chunks; ++c) bytes += count[c] * kept[c];
    return bytes;
  };
  std::vector<std::int32_t> count(chunks, 0);
  std::int64_t walked = 0;
  const std::vector<Task> tasks = rank_tasks(shape, rank);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const auto chunk = static_cast<std::size_t>(tasks[i].chunk);
    const bool in_pair = tasks[i].merged || (i > 0 && tasks[i - 1].merged);  // Holds one chunk, not two.
    if (tasks[i].forward()) ++count[chunk];
    walked = std::max(walked, level(count, tasks[i]) - (in_pair ? kept[chunk] : 0));
    if (tasks[i].frees()) --count[chunk];
  }
  std::int64_t peak = 0;
  const std::vector<InFlight> peaks = in_flight_peaks(shape, rank);
  for (const InFlight& moment : peaks) peak = std::max(peak, level(moment.count, moment.running));
  RC_ASSERT(peak == walked);
  for (const InFlight& a : peaks) {  // No element dominates another.
    for (const InFlight& b : peaks) {
      if (&a == &b || a.running.forward() != b.running.forward() || a.running.chunk != b.running.chunk) continue;
      RC_ASSERT(!std::equal(a.count.begin(), a.count.end(), b.count.begin(), std::less_equal<>()));
    }
  }
}

TEST(InFlightPeaks, OfThousandsOfMicroBatchesEqualThoseOfAFewGroups) {
  ScheduleShape few{.pp = 8, .vpp = 4, .num_microbatches = 64};
  ScheduleShape many = few;
  many.num_microbatches = 8192;
  for (std::int64_t rank = 0; rank < 8; ++rank) {
    const auto a = in_flight_peaks(few, rank), b = in_flight_peaks(many, rank);
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].count, b[i].count);
  }
}

// Do the first and last tasks of a study schedule stay when micro-batches that repeat are left out, and does its middle
// pass through the same numbers in flight?
TEST(InFlightPeaks, OfStudySchedulesNeedNoMicroBatchesThatRepeat) {
  for (const Schedule kind : {Schedule::kZbH1, Schedule::kZbV, Schedule::kDualPipe, Schedule::kDualPipeV}) {
    const ScheduleShape all{.pp = 8, .vpp = chunks_of(kind, 1), .num_microbatches = 100, .kind = kind};
    for (std::int64_t rank = 0; rank < 8; ++rank) {
      const ScheduleShape few = without_repeats(all, rank);
      EXPECT_EQ(few.num_microbatches, 20);
      const auto moments = [&](const ScheduleShape& shape) {
        std::set<std::vector<std::int64_t>> passed;
        std::vector<std::int64_t> count(static_cast<std::size_t>(shape.vpp));
        for (const Task& task : rank_tasks(shape, rank)) {
          std::int64_t& chunk = count[static_cast<std::size_t>(task.chunk)];
          if (task.forward()) ++chunk;
          std::vector<std::int64_t> moment = count;
          moment.insert(moment.end(), {static_cast<std::int64_t>(task.kind), task.chunk, task.merged ? 1 : 0});
          passed.insert(moment);
          if (task.frees()) --chunk;
        }
        return passed;
      };
      EXPECT_EQ(moments(few), moments(all)) << static_cast<int>(kind) << " rank " << rank;
    }
  }
}

// Does the even split put layers, embedding, MTP and loss where Megatron puts them?
TEST(StageLayout, EvenSplitsLayersInExecutionOrder) {
  // 8 layers on 2 ranks x 2 chunks: stage i has layers 2 i and 2 i + 1.
  const StageLayout layout = even_stages(8, 1, 2, 2);
  ASSERT_EQ(layout.stages.size(), 4U);
  EXPECT_EQ(layout.stages[0], (StageContent{.first_layer = 0, .num_layers = 2, .embedding = true}));
  EXPECT_EQ(layout.stages[2], (StageContent{.first_layer = 4, .num_layers = 2}));
  EXPECT_EQ(layout.stages[3], (StageContent{.first_layer = 6, .num_layers = 2, .mtp_layers = 1, .loss = true}));
}

// Llama 3.1 405B in Megatron-Bridge: 126 layers, embedding and loss are 128 places: 32 stages of 4.
TEST(StageLayout, CountsEmbeddingAndLossAsLayersWhenTold) {
  const StageLayout layout = even_stages(126, 0, 8, 4, true, true);
  EXPECT_EQ(layout.stages.front(), (StageContent{.first_layer = 0, .num_layers = 3, .embedding = true}));
  EXPECT_EQ(layout.stages.back(), (StageContent{.first_layer = 123, .num_layers = 3, .loss = true}));
  EXPECT_EQ(to_layout_string(layout), "Ettt|(t*4|)*30tttL");
  // 94 layers of Qwen3-235B over 4 ranks x 12 chunks: 2 places per stage.
  EXPECT_EQ(to_layout_string(even_stages(94, 0, 4, 12, true, true)), "Et|(tt|)*46tL");
}

// 14 layers on 4 ranks x 2 chunks, 2 on the first rank and 4 on the last: 4 on each rank between, half of them per
// chunk.
TEST(StageLayout, GivesTheFirstAndTheLastRankTheirCounts) {
  EXPECT_EQ(to_layout_string(first_last_stages(14, 0, 4, 2, 2, 4)),
            to_layout_string(*parse_layout("Et|tt|tt|tt|t|tt|tt|ttL", 14, 0).stages));
}

struct LayoutExample {
  const char* text;
  std::int64_t layers, mtp;
  std::size_t stages;
  std::vector<std::int64_t> first_counts;  // Decoder layers of the first stages.
  std::vector<std::int64_t> last_counts;   // Decoder layers of the last stages.
};

// Do the layout strings of published recipes expand as Megatron expands them?
TEST(ParseLayout, ExpandsTheLayoutsOfPublishedRecipes) {
  const std::vector<LayoutExample> examples{
      {"Et*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|tmL", 61, 1, 16, {4, 4}, {4, 1}},
      {"Et*4|(t*4|)*14tmL", 61, 1, 16, {4, 4}, {4, 1}},
      {"Et|(tt|)*30mL", 61, 1, 32, {1, 2}, {2, 0}},
      {"Et|(tt|)*30L", 61, 0, 32, {1, 2}, {2, 0}},
      {"Et*3|(tt|)*29,m|L", 61, 1, 32, {3, 2}, {0, 0}},
      {"E||t|L", 1, 0, 4, {0, 0}, {1, 0}},
  };
  for (const LayoutExample& example : examples) {
    SCOPED_TRACE(example.text);
    const ParsedLayout parsed = parse_layout(example.text, example.layers, example.mtp);
    ASSERT_TRUE(parsed.stages.has_value()) << parsed.error;
    const std::vector<StageContent>& stages = parsed.stages->stages;
    ASSERT_EQ(stages.size(), example.stages);
    EXPECT_TRUE(stages.front().embedding);
    EXPECT_TRUE(stages.back().loss);
    EXPECT_EQ(stages[0].num_layers, example.first_counts[0]);
    EXPECT_EQ(stages[1].num_layers, example.first_counts[1]);
    EXPECT_EQ(stages[stages.size() - 2].num_layers, example.last_counts[0]);
    EXPECT_EQ(stages.back().num_layers, example.last_counts[1]);
    std::int64_t next = 0;
    for (const StageContent& stage : stages) {
      EXPECT_EQ(stage.first_layer, next);
      next += stage.num_layers;
    }
    EXPECT_EQ(next, example.layers);
    EXPECT_LE(to_layout_string(*parsed.stages).size(), std::string(example.text).size());
    EXPECT_EQ(parse_layout(to_layout_string(*parsed.stages), example.layers, example.mtp).stages, parsed.stages);
  }
}

TEST(ParseLayout, RepeatsGroupsBeforeSingleCharactersAndACharacterMayBeABar) {
  // "(t*2|)*2" expands to "t*2|t*2|"; "|*2" makes an empty stage.
  const ParsedLayout parsed = parse_layout("E(t*2|)*2,|*2L", 4, 0);
  ASSERT_TRUE(parsed.stages.has_value()) << parsed.error;
  std::vector<std::int64_t> counts;
  for (const StageContent& stage : parsed.stages->stages) counts.push_back(stage.num_layers);
  EXPECT_THAT(counts, testing::ElementsAre(2, 2, 0, 0, 0));
}

TEST(ParseLayout, NamesWhatIsWrong) {
  const std::vector<std::tuple<const char*, std::int64_t, std::int64_t, const char*>> cases{
      {"", 0, 0, "expected exactly one E (embedding), as the first element, found 0 E"},
      {"tE|L", 1, 0, "expected exactly one E (embedding), as the first element, found 1 E behind another element"},
      {"EtE|L", 1, 0, "expected exactly one E (embedding), as the first element, found 2 E"},
      {"Et|Lt", 2, 0, "expected exactly one L (loss), as the last element, found 1 L before another element"},
      {"Et|tt", 3, 0, "expected exactly one L (loss), as the last element, found 0 L"},
      {"Et*3|L", 4, 0, "expected 4 t, one per decoder layer, found 3 t"},
      {"Et*4|L", 4, 1, "expected 1 m, one per MTP layer, found 0 m"},
      {"Et|mt|L", 2, 1, "expected every decoder layer t before the first MTP layer m, found a t after an m"},
      {"Ett|m|mL", 2, 2, "expected every m in one virtual stage, found m in 2 stages"},
      {"Et x|L", 1, 0, "expected one of E t m L | , or a repetition (...)*n or c*n, found ' '"},
      {"E(t|*3L", 1, 0, "expected one of E t m L | , or a repetition (...)*n or c*n, found '('"},
      {"Et*999999999|L", 1, 0, "expected a layout of at most 65536 characters, found a longer one"},
      {"E(t|)*99999999999999999999L", 1, 0, "expected a layout of at most 65536 characters, found a longer one"},
  };
  for (const auto& [text, layers, mtp, error] : cases) {
    const ParsedLayout parsed = parse_layout(text, layers, mtp);
    EXPECT_FALSE(parsed.stages.has_value()) << text;
    EXPECT_EQ(parsed.error, error) << text;
  }
}

// Is every layout, however uneven, printed as text that means the same?
RC_GTEST_PROP(LayoutString, ParsesBackToTheSameStages, ()) {
  StageLayout layout;
  const auto stages = *rc::gen::inRange<std::size_t>(1, 24);
  const auto period = *rc::gen::inRange<std::size_t>(1, 6);
  const auto pattern = *rc::gen::container<std::vector<std::int64_t>>(period, rc::gen::inRange<std::int64_t>(0, 7));
  std::int64_t layers = 0;
  for (std::size_t i = 0; i < stages; ++i) {
    const std::int64_t count = *rc::gen::weightedOneOf<std::int64_t>(
        {{9, rc::gen::just(pattern[i % period])}, {1, rc::gen::inRange<std::int64_t>(0, 7)}});
    layout.stages.push_back({.first_layer = layers, .num_layers = count});
    layers += count;
  }
  layout.stages.front().embedding = true;
  layout.stages.back().loss = true;
  const std::int64_t mtp = *rc::gen::inRange<std::int64_t>(0, 3);
  std::size_t last_decoder = stages - 1;
  while (last_decoder > 0 && layout.stages[last_decoder].num_layers == 0) --last_decoder;
  layout.stages[*rc::gen::inRange(last_decoder, stages)].mtp_layers = mtp;
  const std::string text = to_layout_string(layout);
  const ParsedLayout parsed = parse_layout(text, layers, mtp);
  RC_ASSERT(parsed.error.empty());
  RC_ASSERT(parsed.stages == layout);
}

TEST(LayoutString, IsShort) {
  const auto shortest = [](const char* text, std::int64_t layers, std::int64_t mtp) {
    return to_layout_string(*parse_layout(text, layers, mtp).stages);
  };
  EXPECT_EQ(shortest("Et*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|tmL", 61, 1), "E(t*4|)*15tmL");
  EXPECT_EQ(shortest("E||t|L", 1, 0), "E||t|L");
  EXPECT_EQ(shortest("EttttL", 4, 0), "Et*4L");
}

// Does the engine agree with closed forms?
// 4 ranks, 8 micro-batches, 1 + 2 us: (8 + 4 - 1) * 3 us = 33 us.
TEST(Timeline, Of1F1BWithEqualStagesIsTheTextbookMakespan) {
  const PipelineTimes times = equal_stages({.pp = 4, .num_microbatches = 8}, microseconds(1), microseconds(2));
  EXPECT_EQ(to_ps(simulate_makespan(times)), 33'000'000);
}

// Is 1F1B of equal stages m (f + b) + (p - 1)(f + b), and the lower bound met by it?
RC_GTEST_PROP(Timeline, OfEqualStagesAndFreeTransfersIsTheClosedForm, ()) {
  const std::int64_t pp = *rc::gen::inRange(1, 9), m = *rc::gen::inRange(1, 40);
  const Seconds f = any_time(1000), b = any_time(1000);
  const PipelineTimes times = equal_stages({.pp = pp, .num_microbatches = m}, f, b);
  RC_ASSERT(to_ps(simulate_makespan(times)) == to_ps(one_f_one_b_makespan(pp, m, f, b)));
  RC_ASSERT(to_ps(makespan_lower_bound(times)) == to_ps(simulate_makespan(times)));
}

// m v (f + b) + (p - 1)(f + b) with f and b per chunk: the bubble is divided by v.
RC_GTEST_PROP(Timeline, OfEqualInterleavedChunksIsTheClosedForm, ()) {
  const std::int64_t pp = *rc::gen::inRange(2, 7), vpp = *rc::gen::inRange(2, 5), m = pp * *rc::gen::inRange(1, 6);
  const Seconds f = any_time(1000), b = any_time(1000);
  const PipelineTimes times = equal_stages({.pp = pp, .vpp = vpp, .num_microbatches = m}, f, b);
  RC_ASSERT(to_ps(simulate_makespan(times)) == (m * vpp + pp - 1) * to_ps(f + b));
  RC_ASSERT(to_ps(makespan_lower_bound(times)) == to_ps(simulate_makespan(times)));
}

// Two ranks, one micro-batch, f = 1, b = 2, send = 0.5 us: F F B B and two transfers = 2 + 4 + 1 = 7 us, whether
// blocking or not.
TEST(Timeline, CountsTransfersOnThePathOfAMicroBatch) {
  PipelineTimes times = equal_stages({.pp = 2, .num_microbatches = 1}, microseconds(1), microseconds(2));
  times.stages[0].send = microseconds(0.5);
  times.stages[1].send = microseconds(99);  // The last stage sends nothing.
  EXPECT_EQ(to_ps(simulate_makespan(times)), 7'000'000);
  times.overlap_p2p = false;
  EXPECT_EQ(to_ps(simulate_makespan(times)), 7'000'000);
}

// Two ranks, 1F1B, two micro-batches, f = 1, b = 1, send = 1 us.
//   blocking:   rank 0  F0 [0,1] send [1,2]  F1 [2,3] send [3,4]  B0 waits for 5 -> [5,6]  B1 waits for 8 -> [8,9]
//               rank 1  F0 [2,3]  B0 [3,4] send [4,5]  F1 [5,6]  B1 [6,7] send [7,8]
//   overlapped: rank 0  F0 [0,1]  F1 [1,2]   B0 [5,6]  B1 [7,8]
//               rank 1  F0 [2,3]  B0 [3,4]   F1 [4,5]  B1 [5,6]
TEST(Timeline, WithBlockingTransfersKeepsTheSenderBusy) {
  PipelineTimes times = equal_stages({.pp = 2, .num_microbatches = 2}, microseconds(1), microseconds(1));
  times.stages[0].send = microseconds(1);
  times.overlap_p2p = false;
  const Timeline blocking = simulate(times);
  EXPECT_EQ(blocking.makespan_ps, 9'000'000);
  EXPECT_EQ(blocking.ranks[0][1].start_ps, 2'000'000);
  EXPECT_EQ(blocking.ranks[0][1].send_ps, 1'000'000);
  times.overlap_p2p = true;
  EXPECT_EQ(simulate(times).makespan_ps, 8'000'000);
}

TEST(Timeline, OnOneRankWithChunksHandsOverWithoutTransfers) {
  PipelineTimes times = equal_stages({.pp = 1, .vpp = 2, .num_microbatches = 3}, microseconds(1), microseconds(2));
  for (StageTime& stage : times.stages) stage.send = microseconds(50);
  EXPECT_EQ(to_ps(simulate_makespan(times)), 3 * 2 * 3 * 1'000'000);
}

// One rank, f = 2, b = 4, a pair saves 1: F0 (2) + three pairs (5 each) + B3 (4) = 21 us.
TEST(Timeline, MergesPairsUnderExpertOverlap) {
  PipelineTimes times = equal_stages({.pp = 1, .num_microbatches = 4, .overlap_moe_expert_parallel_comm = true},
                                     microseconds(2), microseconds(4));
  times.stages[0].merged_pair_saving = microseconds(1);
  const Timeline timeline = simulate(times);
  EXPECT_EQ(timeline.makespan_ps, 21'000'000);
  const ScheduledTask& f1 = timeline.ranks[0][1];
  const ScheduledTask& b0 = timeline.ranks[0][2];
  EXPECT_EQ(std::tie(f1.start_ps, f1.end_ps), std::tie(b0.start_ps, b0.end_ps));
}

TEST(Timeline, OfAScheduleThatDeadlocksIsAnError) {
  // The group is smaller than pp: rank 0 needs its second chunk before the last rank has run the first (rule
  // pp.group_range).
  const ScheduleShape shape{.pp = 3, .vpp = 2, .num_microbatches = 6, .group_size = 1};
  EXPECT_THROW((void)simulate(equal_stages(shape, microseconds(1), microseconds(1))), std::logic_error);
}

// Is the makespan of many micro-batches, which a run with fewer shows, that of all of them, to the picosecond? Stages
// are alike but for some, or differ by little, or transfers take longer than work.
RC_GTEST_PROP(Timeline, RepeatsAreLeftOutExactly, ()) {
  ScheduleShape shape = any_shape(6, 4, 3);
  shape.num_microbatches += (shape.vpp == 1 ? 1 : schedule_group_size(shape)) * *rc::gen::inRange<std::int64_t>(0, 60);
  PipelineTimes times = any_times(shape);
  const Seconds little = any_time(3);
  const bool alike = *rc::gen::arbitrary<bool>(),
             slow_network = *rc::gen::weightedElement<bool>({{3, false}, {1, true}});
  for (StageTime& stage : times.stages) {
    if (alike && *rc::gen::inRange(0, 4) != 0) {
      stage = times.stages.front();
      stage.forward += *rc::gen::arbitrary<bool>() ? little : Seconds{};
    }
    if (slow_network) stage.send *= 8.0;
  }
  RC_ASSERT(simulate(times).makespan_ps == to_ps(simulate_makespan(times)));
}

// Is the timeline one that the hardware could run: order kept, no overlap on a rank, inputs there?
RC_GTEST_PROP(Timeline, KeepsTheOrderAndTheDependencies, ()) {
  const PipelineTimes times = any_times(any_shape(5, 3, 4));
  const ScheduleShape& shape = times.shape;
  const Timeline timeline = simulate(times);
  RC_ASSERT(timeline.makespan_ps == to_ps(simulate_makespan(times)));
  std::map<std::tuple<bool, std::int64_t, std::int32_t>, ScheduledTask> by_stage;
  std::int64_t end = 0;
  for (std::int64_t rank = 0; rank < shape.pp; ++rank) {
    const auto& tasks = timeline.ranks[static_cast<std::size_t>(rank)];
    const std::vector<Task> order = rank_tasks(shape, rank);
    RC_ASSERT(tasks.size() == order.size());
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      RC_ASSERT(tasks[i].task == order[i]);
      end = std::max(end, tasks[i].end_ps + tasks[i].send_ps);
      const bool in_pair = i > 0 && shape.overlap_moe_expert_parallel_comm && !tasks[i].task.forward() &&
                           tasks[i - 1].task.forward() && tasks[i].start_ps == tasks[i - 1].start_ps &&
                           tasks[i].end_ps == tasks[i - 1].end_ps;
      if (i > 0 && !in_pair) RC_ASSERT(tasks[i].start_ps >= tasks[i - 1].end_ps + tasks[i - 1].send_ps);
      by_stage[{order[i].forward(), order[i].chunk * shape.pp + rank, order[i].micro_batch}] = tasks[i];
    }
  }
  std::int64_t last = 0;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const ScheduledTask& task = timeline.ranks[rank].back();
    RC_ASSERT(timeline.reloaded_ps[rank] ==
              task.end_ps + task.send_ps + (times.reload.empty() ? 0 : to_ps(times.reload[rank])));
    last = std::max({last, timeline.reduced_ps[rank], timeline.reloaded_ps[rank]});
  }
  RC_ASSERT(last == timeline.makespan_ps);
  RC_ASSERT(end <= last);
  const std::int64_t stages = shape.pp * shape.vpp;
  for (const auto& [key, task] : by_stage) {
    const auto& [forward, stage, micro_batch] = key;
    if (forward && stage > 0) {
      const std::int64_t send = shape.pp == 1 ? 0 : to_ps(times.stages[static_cast<std::size_t>(stage - 1)].send);
      RC_ASSERT(task.start_ps >= by_stage.at({true, stage - 1, micro_batch}).end_ps + send);
    }
    if (!forward) {
      RC_ASSERT(task.start_ps >= by_stage.at({true, stage, micro_batch}).end_ps);
      if (stage + 1 == stages) continue;
      const std::int64_t send = shape.pp == 1 ? 0 : to_ps(times.stages[static_cast<std::size_t>(stage)].send);
      RC_ASSERT(task.start_ps >= by_stage.at({false, stage + 1, micro_batch}).end_ps + send);
    }
  }
}

// Does the fast engine agree with the general one, which executes a graph of tasks and transfers, and both with the
// longest path that Boost.Graph finds?
RC_GTEST_PROP(Timeline, EqualsTheGeneralEngineAndItsCriticalPath, ()) {
  const PipelineTimes times = any_times(any_shape(5, 3, 4));
  const PipelineGraph pipeline = pipeline_graph(times);
  const Timeline fast = simulate(times), general = timeline_of(pipeline);
  RC_ASSERT(fast.makespan_ps == general.makespan_ps);
  RC_ASSERT(critical_path(pipeline.graph).length_ps == general.makespan_ps);
  RC_ASSERT(fast.ranks.size() == general.ranks.size());
  for (std::size_t rank = 0; rank < fast.ranks.size(); ++rank) RC_ASSERT(fast.ranks[rank] == general.ranks[rank]);
  RC_ASSERT(fast.reduced_ps == general.reduced_ps);
  RC_ASSERT(fast.reloaded_ps == general.reloaded_ps);
}

// Tasks of the rank that ended before backward number `backward` ended (before forward number `forward` started).
std::int64_t tasks_until_end_of_backward(const std::vector<Task>& tasks, std::int64_t backward) {
  for (std::size_t i = 0; i < tasks.size(); ++i)
    if (!tasks[i].forward() && backward-- == 0) return static_cast<std::int64_t>(i) + 1;
  return static_cast<std::int64_t>(tasks.size());
}
std::int64_t tasks_until_start_of_forward(const std::vector<Task>& tasks, std::int64_t forward) {
  for (std::size_t i = 0; i < tasks.size(); ++i)
    if (tasks[i].forward() && forward-- == 0) return static_cast<std::int64_t>(i);
  return static_cast<std::int64_t>(tasks.size());
}

// Are gathers and reductions launched where the schedule of Megatron launches them? Its two conditions, walked over the
// virtual micro-batches as forward_step_helper_preprocess and backward_step_helper_postprocess of
// megatron/core/pipeline_parallel/schedules.py walk.
RC_GTEST_PROP(Launches, AreWhereMegatronsInterleavedScheduleHasThem, ()) {
  const auto interleaved = [](const ScheduleShape& shape) { return shape.vpp > 1; };
  const ScheduleShape shape = *rc::gen::suchThat(rc::gen::exec([] { return any_shape(6, 4, 4); }), interleaved);
  const std::int64_t rank = *rc::gen::inRange<std::int64_t>(0, shape.pp), m = shape.num_microbatches;
  const std::vector<Task> table = schedule_table(shape), tasks = rank_tasks(shape, rank);
  const auto total = static_cast<std::int64_t>(table.size());
  std::vector<Launch> gathers{{0, 0}, {1, 0}}, reductions;
  for (std::int64_t k = 0; k < total && k + rank < total; ++k) {
    const Task& at = table[static_cast<std::size_t>(k + rank)];  // param_sync_virtual_microbatch_id
    const std::int32_t chunk = at.chunk + 1;                     // param_sync_chunk_id
    if (at.micro_batch == 0 && chunk > 1 && chunk < shape.vpp)
      gathers.push_back({chunk, static_cast<std::int32_t>(tasks_until_start_of_forward(tasks, k))});
  }
  std::vector<bool> launched(static_cast<std::size_t>(shape.vpp), false);
  for (std::int64_t k = rank; k < total; ++k) {
    const Task& at = table[static_cast<std::size_t>(k - rank)];  // grad_sync_virtual_microbatch_id
    if (at.micro_batch + 1 != m) continue;
    const std::int32_t chunk = static_cast<std::int32_t>(shape.vpp) - 1 - at.chunk;
    reductions.push_back({chunk, static_cast<std::int32_t>(tasks_until_end_of_backward(tasks, k))});
    launched[static_cast<std::size_t>(chunk)] = true;
  }
  for (std::size_t chunk = launched.size(); chunk-- > 0;)  // The remaining ones, after the last backward.
    if (!launched[chunk])
      reductions.push_back({static_cast<std::int32_t>(chunk), static_cast<std::int32_t>(tasks.size())});
  RC_ASSERT(gather_launches(shape, rank) == gathers);
  RC_ASSERT(reduction_launches(shape, rank) == reductions);
}

// Study schedules have no such rule: each chunk's parameters are gathered before its first forward, and its gradients
// are reduced right after its last backward.
RC_GTEST_PROP(Launches, OfStudySchedulesFollowTheChunks, ()) {
  const ScheduleShape shape = any_study_shape();
  const std::int64_t rank = *rc::gen::inRange<std::int64_t>(0, shape.pp);
  const std::vector<Task> tasks = rank_tasks(shape, rank);
  RC_ASSERT(gather_launches(shape, rank).size() == static_cast<std::size_t>(shape.vpp));
  RC_ASSERT(reduction_launches(shape, rank).size() == static_cast<std::size_t>(shape.vpp));
  for (const Launch& launch : reduction_launches(shape, rank))
    for (std::size_t i = 0; i < tasks.size(); ++i)
      if (tasks[i].chunk == launch.chunk && tasks[i].frees())
        RC_ASSERT(static_cast<std::int32_t>(i) < launch.after || (i > 0 && tasks[i - 1].merged));
}

// What do gathers and reductions cost a pipeline of equal stages? Plain 1F1B: a gather on every rank before the first
// micro-batch goes on, and one reduction. Interleaved, collectives shorter than the work beside them: those of the
// first chunk of the first rank, whatever the others take. On one rank, one of each.
RC_GTEST_PROP(DataParallel, CostsTheClosedForm, ()) {
  const std::int64_t p = *rc::gen::inRange(1, 9), v = *rc::gen::inRange(1, 5), m = p * *rc::gen::inRange(2, 6);
  const Seconds f = ps(2000) + any_time(1000), b = 2.0 * f;
  const Seconds gather = any_time(1000), reduction = any_time(2000);
  PipelineTimes times = equal_stages({.pp = p, .vpp = p == 1 ? 1 : v, .num_microbatches = m}, f, b);
  const bool plain = times.shape.vpp == 1;
  times.overlap_p2p = !plain;
  const Seconds before = simulate_makespan(times);
  for (StageTime& stage : times.stages) {
    stage.gather = gather;
    stage.reduction = reduction;
  }
  RC_ASSERT(to_ps(simulate_makespan(times)) == to_ps(before) + (plain ? p : 1) * to_ps(gather) + to_ps(reduction));
}

// A reduction that takes longer than all work after it is exposed: the step ends with the reductions of the slowest
// rank, one after another.
TEST(DataParallel, EndsTheStepWithTheReductionsThatNothingHides) {
  PipelineTimes times = equal_stages({.pp = 2, .vpp = 2, .num_microbatches = 2}, ps(10), ps(20));
  for (StageTime& stage : times.stages) stage.reduction = ps(1000);
  const Timeline timeline = simulate(times);
  // Rank 0 ends chunk 1 after backward 1 and launches its reduction there (rank 1: one backward later), then chunk 0's.
  const std::int64_t chunk_1 = timeline.ranks[0][5].end_ps;
  EXPECT_EQ(timeline.ranks[0][5].task, (Task{.kind = TaskKind::kBackward, .micro_batch = 1, .chunk = 1}));
  EXPECT_EQ(timeline.reduced_ps[0], chunk_1 + 2000);
  EXPECT_EQ(timeline.makespan_ps, std::max(timeline.reduced_ps[0], timeline.reduced_ps[1]));
}

PipelineTimes equal_split_stages(ScheduleShape shape, std::int64_t f, std::int64_t b, std::int64_t w) {
  PipelineTimes times = equal_stages(shape, ps(f), ps(b + w));
  for (StageTime& stage : times.stages) stage.weight_gradient = ps(w);
  return times;
}

/// Idle time of a rank between its first and last task.
std::int64_t pauses(const std::vector<ScheduledTask>& tasks) {
  std::int64_t pause = 0, end = tasks.front().start_ps;
  for (const ScheduledTask& task : tasks) {
    pause += std::max<std::int64_t>(0, task.start_ps - end);
    end = task.end_ps;
  }
  return pause;
}

// Does every rank of a study schedule run each forward, its input gradient and its weight gradient once, in this order,
// and does the schedule finish?
RC_GTEST_PROP(StudySchedule, RunsEveryChunkOnce, ()) {
  const ScheduleShape shape = any_study_shape();
  const std::int64_t rank = *rc::gen::inRange<std::int64_t>(0, shape.pp);
  std::map<std::pair<std::int32_t, std::int32_t>, std::string> seen;
  std::int64_t in_flight = 0, peak = 0;
  for (const Task& task : rank_tasks(shape, rank)) {
    seen[{task.micro_batch, task.chunk}] += name_of(task)[0];
    if (task.forward()) peak = std::max(peak, ++in_flight);
    if (task.frees()) --in_flight;
  }
  RC_ASSERT(static_cast<std::int64_t>(seen.size()) == chunk_microbatches(shape) * shape.vpp);
  for (const auto& [chunk, kinds] : seen) RC_ASSERT(kinds == "FB" || kinds == "FIW");
  RC_ASSERT(in_flight == 0);
  RC_ASSERT(peak == peak_in_flight(shape, rank));
  const PipelineTimes times = any_times(shape);
  RC_ASSERT(to_ps(makespan_lower_bound(times)) <= to_ps(simulate_makespan(times)));
}

// GPipe and 1F1B have the same bubble: (p - 1)(f + b).
RC_GTEST_PROP(StudySchedule, GpipeWaitsAsLongAs1F1B, ()) {
  const std::int64_t p = *rc::gen::inRange(1, 9), m = *rc::gen::inRange(1, 30);
  const Seconds f = any_time(1000), b = any_time(1000);
  const PipelineTimes times = equal_stages({.pp = p, .num_microbatches = m, .kind = Schedule::kGpipe}, f, b);
  RC_ASSERT(to_ps(simulate_makespan(times)) == to_ps(one_f_one_b_makespan(p, m, f, b)));
}

// ZB-H1: m (f + b + w) + (p - 1)(f + b - w) with b the input gradient, if the weight gradient is the shortest; and no
// rank holds more micro-batches than rank 0 of 1F1B. Source: arXiv 2401.10241, table 1.
RC_GTEST_PROP(StudySchedule, ZbH1IsTheClosedForm, ()) {
  const std::int64_t p = *rc::gen::inRange(1, 9), m = p + *rc::gen::inRange(0, 20);
  const std::int64_t w = *rc::gen::inRange(1, 1000), f = w + *rc::gen::inRange(0, 500),
                     b = w + *rc::gen::inRange(0, 500);
  const ScheduleShape shape{.pp = p, .num_microbatches = m, .kind = Schedule::kZbH1};
  RC_ASSERT(simulate(equal_split_stages(shape, f, b, w)).makespan_ps == m * (f + b + w) + (p - 1) * (f + b - w));
  for (std::int64_t rank = 0; rank < p; ++rank) RC_ASSERT(peak_in_flight(shape, rank) == std::min(p, m));
}

// ZB-V with f = b = w: no rank is idle between its first and last task. The last rank starts (p - 1) f late, so the
// step takes that longer than the work. No rank holds more than 1F1B's p stages, that is 2 p halves.
RC_GTEST_PROP(StudySchedule, ZbVHasNoBubbleWhenItsThreePassesTakeTheSame, ()) {
  const std::int64_t p = *rc::gen::inRange(1, 9), m = 2 * p - 1 + *rc::gen::inRange(0, 20);
  const std::int64_t t = *rc::gen::inRange(1, 1000);
  const ScheduleShape shape{.pp = p, .vpp = 2, .num_microbatches = m, .kind = Schedule::kZbV};
  const Timeline timeline = simulate(equal_split_stages(shape, t, t, t));
  for (const std::vector<ScheduledTask>& rank : timeline.ranks) RC_ASSERT(pauses(rank) == 0);
  RC_ASSERT(timeline.makespan_ps == 6 * m * t + (p - 1) * t);
  for (std::int64_t rank = 0; rank < p; ++rank) RC_ASSERT(peak_in_flight(shape, rank) == 2 * p);
}

// DualPipe with f = b: every rank is idle for (p / 2 - 1)(F&B + B - 3 W), with B the complete backward, if overlapping
// saves nothing (F&B = F + B). For DualPipeV the same holds for half of the ranks. At most p + 1 chunks are in flight.
// Source: README of github.com/deepseek-ai/DualPipe.
RC_GTEST_PROP(StudySchedule, DualPipeIsTheClosedForm, ()) {
  const std::int64_t half = *rc::gen::inRange(1, 9), n = 2 * half + *rc::gen::inRange(0, 10);
  const std::int64_t w = *rc::gen::inRange(1, 500), f = w + *rc::gen::inRange(0, 500), b = f;
  const std::int64_t work = 2 * n * (f + b + w), bubble = (half - 1) * (f + (b + w) + (b + w) - 3 * w);
  const ScheduleShape two{.pp = 2 * half, .vpp = 2, .num_microbatches = 2 * n, .kind = Schedule::kDualPipe};
  RC_ASSERT(simulate(equal_split_stages(two, f, b, w)).makespan_ps == work + bubble);
  const ScheduleShape folded{.pp = half, .vpp = 2, .num_microbatches = n, .kind = Schedule::kDualPipeV};
  RC_ASSERT(simulate(equal_split_stages(folded, f, b, w)).makespan_ps == work + bubble);
  for (std::int64_t rank = 0; rank < 2 * half; ++rank) RC_ASSERT(peak_in_flight(two, rank) <= 2 * half + 1);
}

// ZB-H1 on three ranks: rank 0 is two forwards ahead and runs weight gradients at once, rank 2 delays them by two.
TEST(StudySchedule, ZbH1DelaysWeightGradientsByTheRank) {
  const ScheduleShape shape{.pp = 3, .num_microbatches = 3, .kind = Schedule::kZbH1};
  EXPECT_THAT(names_of(rank_tasks(shape, 0)),
              testing::ElementsAre("F0c0", "F1c0", "F2c0", "I0c0", "W0c0", "I1c0", "W1c0", "I2c0", "W2c0"));
  EXPECT_THAT(names_of(rank_tasks(shape, 2)),
              testing::ElementsAre("F0c0", "I0c0", "F1c0", "I1c0", "F2c0", "I2c0", "W0c0", "W1c0", "W2c0"));
}

// The second direction of DualPipe enters at the last rank, so both ends of the pipeline mirror each other.
TEST(StudySchedule, DualPipeIsTheSameFromBothEnds) {
  const ScheduleShape shape{.pp = 4, .vpp = 2, .num_microbatches = 8, .kind = Schedule::kDualPipe};
  const std::vector<Task> first = rank_tasks(shape, 0), last = rank_tasks(shape, 3);
  ASSERT_EQ(first.size(), last.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    Task mirrored = last[i];
    mirrored.chunk = 1 - mirrored.chunk;
    EXPECT_EQ(first[i], mirrored);
  }
}

// Is a schedule never faster than its longest chain, and that never shorter than the work of a rank?
RC_GTEST_PROP(TaskGraph, MakespanIsTheCriticalPathAndAtLeastTheBusiestStream, ()) {
  const PipelineTimes times = any_times(*rc::gen::arbitrary<bool>() ? any_study_shape() : any_shape(5, 3, 4));
  const PipelineGraph pipeline = pipeline_graph(times);
  const std::vector<GraphTask>& tasks = pipeline.graph.tasks();
  const Execution execution = execute(pipeline.graph);
  const CriticalPath path = critical_path(pipeline.graph);
  std::map<std::pair<std::int32_t, Stream>, std::int64_t> busy;
  for (const GraphTask& task : tasks) busy[{task.rank, task.stream}] += task.duration_ps;
  for (const auto& [stream, time] : busy) RC_ASSERT(path.length_ps >= time);
  RC_ASSERT(execution.makespan_ps == path.length_ps);
  std::int64_t on_path = 0;
  for (const std::int32_t task : path.tasks) {
    on_path += tasks[static_cast<std::size_t>(task)].duration_ps;
    RC_ASSERT(path.slack_ps[static_cast<std::size_t>(task)] == 0);
  }
  RC_ASSERT(on_path == path.length_ps);
}

// Definition of slack: a task prolonged by its slack moves nothing; by one more, it moves the end by one.
RC_GTEST_PROP(TaskGraph, SlackIsHowMuchLongerATaskMayTake, ()) {
  const PipelineTimes times = any_times(*rc::gen::arbitrary<bool>() ? any_study_shape() : any_shape(4, 3, 3));
  const PipelineGraph pipeline = pipeline_graph(times);
  const CriticalPath path = critical_path(pipeline.graph);
  const auto chosen = *rc::gen::inRange<std::size_t>(0, pipeline.graph.tasks().size());
  const auto longer = [&](std::int64_t extra) {
    TaskGraph graph;
    for (std::size_t i = 0; i < pipeline.graph.tasks().size(); ++i) {
      GraphTask task = pipeline.graph.tasks()[i];
      if (i == chosen) task.duration_ps += extra;
      (void)graph.add(task);
    }
    for (const auto& [earlier, later] : pipeline.graph.edges()) graph.depend(later, earlier);
    return execute(graph).makespan_ps;
  };
  RC_ASSERT(longer(path.slack_ps[chosen]) == path.length_ps);
  RC_ASSERT(longer(path.slack_ps[chosen] + 1) == path.length_ps + 1);
}

// Parts of a task run one after another on their streams. A hidden one beside them changes nothing.
TEST(PipelineGraph, StretchesOfATaskKeepItsLength) {
  const PipelineTimes times = equal_stages({.pp = 2, .num_microbatches = 3}, ps(10), ps(20));
  const PipelineGraph pipeline =
      pipeline_graph(times, [](std::int64_t, const Task& task, const Task*, std::vector<Stretch>& out) {
        out.push_back({.stream = Stream::kHost, .duration_ps = 1});
        out.push_back({.stream = Stream::kExpert, .duration_ps = 5, .beside = true});
        out.push_back({.stream = Stream::kCompute, .duration_ps = task.forward() ? 6 : 16});
        out.push_back({.stream = Stream::kTensor, .duration_ps = 3});
      });
  EXPECT_EQ(timeline_of(pipeline).makespan_ps, (3 + 2 - 1) * 30);
  EXPECT_EQ(timeline_of(pipeline).ranks, simulate(times).ranks);
}

TEST(TaskGraph, OfTasksThatWaitForEachOtherIsAnError) {
  TaskGraph graph;
  const std::int32_t a = graph.add({.rank = 0, .duration_ps = 1}), b = graph.add({.rank = 1, .duration_ps = 1});
  graph.depend(a, b);
  graph.depend(b, a);
  EXPECT_THROW((void)execute(graph), std::logic_error);
}

// Do times behave as physics does?
RC_GTEST_PROP(Timeline, DoublesWhenEveryTimeDoubles, ()) {
  PipelineTimes times = any_times(any_shape(5, 3, 4));
  const std::int64_t once = to_ps(simulate_makespan(times)), bound = to_ps(makespan_lower_bound(times));
  for (StageTime& stage : times.stages) {
    stage.forward *= 2;
    stage.backward *= 2;
    stage.merged_pair_saving *= 2;
    stage.send *= 2;
    stage.gather *= 2;
    stage.reduction *= 2;
    stage.first_forward_delay *= 2;
    stage.last_backward_delay *= 2;
  }
  for (Seconds& reload : times.reload) reload *= 2;
  RC_ASSERT(to_ps(simulate_makespan(times)) == 2 * once);
  RC_ASSERT(to_ps(makespan_lower_bound(times)) == 2 * bound);
}

// Is a step never shorter because one of its times is longer?
RC_GTEST_PROP(Timeline, NeverShrinksWhenOneTimeGrows, ()) {
  PipelineTimes times = any_times(any_shape(5, 3, 4));
  const Seconds before = simulate_makespan(times);
  StageTime& stage = times.stages[*rc::gen::inRange<std::size_t>(0, times.stages.size())];
  const Seconds extra = any_time(1000);
  switch (*rc::gen::inRange(0, 6)) {
    case 0:
      stage.forward += extra;
      break;
    case 1:
      stage.backward += extra;
      break;
    case 2:
      stage.send += extra;
      break;
    case 3:
      stage.gather += extra;
      break;
    case 4:
      stage.reduction += extra;
      break;
    default:
      stage.merged_pair_saving = std::max(stage.merged_pair_saving - extra, Seconds{});
      break;
  }
  RC_ASSERT(simulate_makespan(times) >= before);
}

// Is the bound admissible, for any times and every mode?
RC_GTEST_PROP(MakespanLowerBound, NeverExceedsTheSimulation, ()) {
  const PipelineTimes times = any_times(any_shape(8, 4, 5));
  RC_ASSERT(to_ps(makespan_lower_bound(times)) <= to_ps(simulate_makespan(times)));
}

// With one slow stage the bound must still be useful: within 30% on a usual pipeline.
TEST(MakespanLowerBound, IsCloseOnAnUnevenPipeline) {
  PipelineTimes times = equal_stages({.pp = 8, .vpp = 2, .num_microbatches = 64}, microseconds(10), microseconds(20));
  times.stages.front().forward = microseconds(4);
  times.stages.back().backward = microseconds(28);
  for (StageTime& stage : times.stages) stage.send = microseconds(1);
  EXPECT_GT(makespan_lower_bound(times).to<double>(), 0.7 * simulate_makespan(times).to<double>());
}

}  // namespace
}  // namespace foldwise::costmodel::pipeline_test
