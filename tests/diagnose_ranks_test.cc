#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/diagnose/diagnosis.h"
#include "planner/foldwise.h"

namespace foldwise::planner::diagnose_ranks_test {
namespace {

Trace trace_of(const std::string& name, std::size_t rank = 0) {
  return read_trace(std::string(FW_TRACES_DIR) + "/" + name + ".rank" + std::to_string(rank) + ".json.gz").at(0);
}

Run run_of(const std::string& name) { return load_run(std::string(FW_TRACES_DIR) + "/" + name + ".json"); }

/// The same training on `gpus` GPUs, with proportionally more micro-batches.
Run on_gpus(Run run, std::int64_t gpus) {
  run.options.step.dp = run.options.step.dp * gpus / run.num_gpus;
  run.options.pipeline.global_batch = run.options.pipeline.global_batch * gpus / run.num_gpus;
  run.num_gpus = gpus;
  return run;
}

/// The trace as seen by another rank of a job of `world` GPUs. Ranks of its groups are increased by `first`.
Trace as_rank(Trace trace, std::int64_t rank, std::int64_t world, std::int64_t first = 0) {
  trace.rank = rank;
  trace.world_size = world;
  for (auto& [name, ranks] : trace.groups)
    for (std::int64_t& one : ranks) one += first;
  for (Message& message : trace.messages)
    for (std::int64_t& one : message.ranks) one += first;
  return trace;
}

/// The trace with GPU events prolonged by `more`, in nanoseconds. All that begins or ends after such an event's end is
/// delayed by the same, on the host too.
Trace with_longer(Trace trace, const std::function<std::int64_t(const Trace&, std::size_t)>& more) {
  std::vector<std::pair<std::int64_t, std::int64_t>> later;  // Time from which on, and total delay.
  for (std::size_t i = 0; i < trace.gpu.size(); ++i)
    if (const std::int64_t extra = more(trace, i); extra > 0) later.emplace_back(trace.gpu[i].time.end, extra);
  std::ranges::sort(later);
  for (std::size_t i = 1; i < later.size(); ++i) later[i].second += later[i - 1].second;
  const auto moved = [&](std::int64_t time) {
    const auto after = std::ranges::upper_bound(later, time, {}, &std::pair<std::int64_t, std::int64_t>::first);
    return after == later.begin() ? time : time + std::prev(after)->second;
  };
  const auto move = [&](Span& span) { span = {moved(span.begin), moved(span.end)}; };
  for (GpuEvent& e : trace.gpu) move(e.time);
  for (HostEvent& e : trace.host) move(e.time);
  for (auto& [correlation, launch] : trace.launches) move(launch.time);
  return trace;
}

/// with_longer() for kernels of these kinds and, unless empty, this module: `factor` times as long.
Trace slowed(const Trace& trace, const Run& run, const std::vector<std::string>& kinds, const std::string& module,
             double factor, double* seconds = nullptr) {
  const MappedKernels kernels = map_kernels(trace, foldwise::compose(run));
  return with_longer(trace, [&](const Trace& of, std::size_t i) -> std::int64_t {
    const KernelOp& op = kernels.ops[static_cast<std::size_t>(kernels.op[i])];
    if (std::ranges::find(kinds, op.kind) == kinds.end() || (!module.empty() && op.module != module)) return 0;
    const auto extra = static_cast<std::int64_t>((factor - 1.0) * static_cast<double>(of.gpu[i].time.length()));
    if (seconds != nullptr) *seconds += 1e-9 * static_cast<double>(extra);
    return extra;
  });
}

const std::vector<std::string> products = {"gemm", "attention"};

testing::Matcher<const std::vector<Finding>&> has(const std::string& what) {
  return testing::Contains(testing::Field(&Finding::what, testing::HasSubstr(what)));
}

const Finding& finding(const Diagnosis& d, const std::string& what) {
  static const Finding none;
  const auto found =
      std::ranges::find_if(d.findings, [&](const Finding& f) { return f.what.find(what) != f.what.npos; });
  return found == d.findings.end() ? none : *found;
}

// Is a GPU that its power limit throttles told from one that draws less power, by how much, and what does it cost? Two
// real steps of Llama, taken as two ranks: nvidia-smi read medians of 1470 and 1815 MHz while they drew more than 450
// W, and medians of steps without a profiler are 537.3 and 442.9 ms.
TEST(DiagnoseRanks, AThrottledGpuIsFoundBesideAnother) {
  const auto run = on_gpus(run_of("h100-llama-base"), 2);
  const Diagnosis d =
      diagnose(run, {as_rank(trace_of("h100-llama-base"), 0, 2), as_rank(trace_of("h100-llama-cool"), 1, 2)});
  ASSERT_EQ(d.ranks.ranks.size(), 2U);
  EXPECT_NEAR(d.ranks.ranks[0].speed.products, 1815.0 / 1470.0, 0.05 * 1815.0 / 1470.0);
  EXPECT_EQ(d.ranks.ranks[0].speed.slow(), SlowGpu::kClock);
  EXPECT_EQ(d.ranks.ranks[1].speed.slow(), SlowGpu::kNo);
  ASSERT_THAT(d.findings, has("the GPU of rank 0 is slower than those of other ranks: throttled"));
  EXPECT_NEAR(finding(d, "throttled").seconds, 0.5373 - 0.4429, 0.2 * (0.5373 - 0.4429));
}

// Is a low clock of a single trace the first finding, and its size what it costs? GEMMs and attention of a real step
// that take 1.3 times as long, as at 1 / 1.3 of the clock.
TEST(DiagnoseRanks, AThrottledGpuIsFoundAlone) {
  const auto run = run_of("h100-llama-base");
  double truth = 0.0;
  const Diagnosis d = diagnose(run, {slowed(trace_of("h100-llama-base"), run, products, "", 1.3, &truth)});
  EXPECT_EQ(d.speed.slow(), SlowGpu::kClock);
  ASSERT_FALSE(d.findings.empty());
  EXPECT_EQ(d.findings[0].what, "the GPU is throttled: its clock is low");
  EXPECT_NEAR(d.findings[0].seconds, truth, 0.2 * truth);
}

// Are slow kernels of one module no low clock, with the shape that is off, and are slow kernels of every kind none
// either? By hand: two sequences of 4 096 tokens, 4 096 wide; gate and up of 14 336 are one product.
TEST(DiagnoseRanks, SlowKernelsAreNoLowClock) {
  const auto run = run_of("h100-llama-base");
  for (const auto& [module, factor, shape] :
       {std::tuple{"attention", 2.0, "forward, 8192 x (6144|4096) x 4096 at [0-9]+ TFLOP/s"},
        {"mlp", 1.6, "forward, 8192 x (28672 x 4096|4096 x 14336) at [0-9]+ TFLOP/s"}}) {
    double truth = 0.0;
    const Diagnosis one = diagnose(run, {slowed(trace_of("h100-llama-base"), run, {"gemm"}, module, factor, &truth)});
    EXPECT_EQ(one.speed.slow(), SlowGpu::kNo) << module;
    ASSERT_FALSE(one.findings.empty()) << module;
    EXPECT_EQ(one.findings[0].what, std::string("kernels of ") + module);
    EXPECT_NEAR(one.findings[0].seconds, truth, 0.2 * truth) << module;
    EXPECT_THAT(one.findings[0].evidence, testing::ContainsRegex(shape));
  }
  const auto moe = run_of("h100-qwen3-memory");
  const Diagnosis every = diagnose(moe, {slowed(trace_of("h100-qwen3-memory"), moe,
                                                {"gemm", "grouped_gemm", "attention", "memory_bound"}, "", 2.0)});
  EXPECT_EQ(every.speed.slow(), SlowGpu::kEverything);
}

// Is a process beside ours, which takes turns on the GPU, no low clock?
TEST(DiagnoseRanks, AnotherProcessIsNoLowClock) {
  const Diagnosis d = diagnose(run_of("h100-llama-neighbour"), {trace_of("h100-llama-neighbour")});
  EXPECT_EQ(d.speed.slow(), SlowGpu::kShared);
}

// Are changes predicted at the host that the step waited for? Two ranks of one machine's fast host wait less than
// predicted; another process on the GPU says nothing of the host, and a program that sleeps is no slow host.
TEST(DiagnoseRanks, ChangesAreThoseOfTheSitesHost) {
  const auto host = [](const Diagnosis& d) { return d.site.value().parameters.front(); };
  const auto ep2 = run_of("ep2-skew"), shared = run_of("h100-llama-neighbour"), sleeps = run_of("mixtral-sleep");
  const Diagnosis fast = diagnose(ep2, {trace_of("ep2-skew")}),
                  same = diagnose(shared, {trace_of("h100-llama-neighbour")}),
                  slept = diagnose(sleeps, {trace_of("mixtral-sleep")});
  ASSERT_EQ(host(fast).resource, Resource::kHost);
  EXPECT_GT(host(fast).factor, 1.2);
  EXPECT_LT(fast.site_step_s, fast.predicted_s());
  for (const Suggestion& suggestion : fast.changes)
    EXPECT_LT(suggestion.change.step_time.to<double>(), fast.site_step_s);
  EXPECT_EQ(host(same).factor, 1.0);
  EXPECT_EQ(same.site_step_s, same.predicted_s());
  EXPECT_GE(host(slept).factor, 1.0);
  EXPECT_LE(slept.site_step_s, slept.predicted_s() * (1.0 + 1e-9));
}

// Are the rows of each rank's experts what their router sent them? Real steps of two ranks: each layer and micro-batch
// has 2 048 tokens a rank, 8 experts each, so both together have 32 768 rows in each of 2 layers x 2 micro-batches.
TEST(DiagnoseRanks, ExpertsOfOneRankHaveMoreRows) {
  const auto run = run_of("ep2-skew");
  const Diagnosis d = diagnose(run, {trace_of("ep2-skew", 0), trace_of("ep2-skew", 1)});
  ASSERT_TRUE(d.ranks.rows.has_value());
  EXPECT_EQ(d.ranks.rows->passes, 4);
  EXPECT_EQ(d.ranks.rows->predicted, 16384.0);
  EXPECT_EQ(d.ranks.ranks[0].rows + d.ranks.ranks[1].rows, 32768.0);
  EXPECT_EQ(d.ranks.ranks[0].busiest, 4);
  EXPECT_NEAR(d.ranks.rows->busiest_over_mean, d.ranks.ranks[0].rows / 16384.0, 1e-9);
  EXPECT_GT(d.ranks.rows->busiest_over_mean, 1.3);
}

// Do all-to-alls say the same where sizes of operators are not recorded?
TEST(DiagnoseRanks, ExchangesTellRowsToo) {
  const auto run = run_of("ep2-skew");
  const std::vector<Trace> whole = {trace_of("ep2-skew", 0), trace_of("ep2-skew", 1)};
  std::vector<Trace> without = whole;
  for (Trace& trace : without)
    for (HostEvent& e : trace.host) e.shapes = -1;
  const Diagnosis a = diagnose(run, whole), b = diagnose(run, without);
  ASSERT_TRUE(b.ranks.rows.has_value());
  EXPECT_EQ(b.ranks.rows->passes, 2 * a.ranks.rows->passes);
  EXPECT_EQ(b.ranks.rows->busiest_over_mean, a.ranks.rows->busiest_over_mean);
  for (std::size_t t = 0; t < 2; ++t) EXPECT_EQ(b.ranks.ranks[t].rows, a.ranks.ranks[t].rows);
}

// Is that a finding where experts take much of the step, and its size what the busiest rank's experts take longer than
// balanced ones would? The same steps with experts' products 40 times as long: on the rank with n of 16 384 rows more
// than balanced, n / rows of their time is the imbalance's.
TEST(DiagnoseRanks, UnevenExpertsCostTheBusiestRanksTime) {
  const auto run = run_of("ep2-skew");
  const std::vector<Trace> traces = {slowed(trace_of("ep2-skew", 0), run, {"grouped_gemm"}, "experts", 40.0),
                                     slowed(trace_of("ep2-skew", 1), run, {"grouped_gemm"}, "experts", 40.0)};
  const Diagnosis both = diagnose(run, traces), alone = diagnose(run, {traces[0]});
  double experts = 0.0;
  for (const TracedLine& line : both.measured.lines)
    if (line.module == "experts" && line.cause == costmodel::Cause::kCompute)
      experts += 1e-9 * static_cast<double>(line.exposed_ns);
  const double truth = experts * (1.0 - 16384.0 / both.ranks.ranks[0].rows);
  EXPECT_NEAR(finding(both, "experts are uneven").seconds, truth, 0.01 * truth);
  EXPECT_NEAR(finding(alone, "this rank's experts get more rows").seconds, truth, 0.01 * truth);
}

// Is a link at half rate found among links that do the same? The two ranks with experts, twice: of the second pair,
// ranks 2 and 3, each all-to-all takes twice as long.
TEST(DiagnoseRanks, ASlowLinkIsFoundAmongOthers) {
  const auto run = on_gpus(run_of("ep2-skew"), 4);
  const auto slow = [&](std::size_t rank) {
    return slowed(as_rank(trace_of("ep2-skew", rank), 2 + static_cast<std::int64_t>(rank), 4, 2), run, {"all_to_all"},
                  "", 2.0);
  };
  const Diagnosis d =
      diagnose(run, {as_rank(trace_of("ep2-skew", 0), 0, 4), as_rank(trace_of("ep2-skew", 1), 1, 4), slow(0), slow(1)});
  ASSERT_FALSE(d.ranks.links.empty());
  const LinkReport& link = d.ranks.links[0];
  EXPECT_EQ(link.kind, "all_to_all");
  EXPECT_EQ(link.ranks, (std::vector<std::int64_t>{2, 3}));
  ASSERT_TRUE(link.of_others.has_value());
  EXPECT_NEAR(*link.of_others / link.bandwidth, 2.0, 0.01);
  EXPECT_NEAR(link.lost_s, 0.5 * link.bytes / link.bandwidth, 0.01 * link.lost_s);
  ASSERT_THAT(d.findings, has("a slow link: all_to_all over ep between ranks 2, 3"));
  EXPECT_EQ(finding(d, "a slow link").seconds, link.lost_s);
}

// Are the pipeline's transfers known, whose kernels do not say what they move? By hand: four micro-batches of 2 048 x 4
// 096 bf16 numbers go forth and back in five calls of the first rank, of which three do both.
TEST(DiagnoseRanks, TransfersHaveAPairAndASize) {
  const Diagnosis d = diagnose(run_of("pp2"), {trace_of("pp2", 0)});
  ASSERT_EQ(d.ranks.links.size(), 1U);
  EXPECT_EQ(d.ranks.links[0].kind, "send_recv");
  EXPECT_EQ(d.ranks.links[0].ranks, (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(d.ranks.links[0].calls, 5);
  EXPECT_EQ(d.ranks.links[0].bytes, 5.0 * 2048 * 4096 * 2);
}

/// Number of collectives of a trace by kind and group.
std::map<std::pair<std::string, std::string>, int> collectives_of(const Run& run, const Trace& trace) {
  std::map<std::pair<std::string, std::string>, int> count;
  const costmodel::Step step = foldwise::compose(run);
  const MappedKernels kernels = map_kernels(trace, step);
  for (const std::int32_t index : kernels.op)
    if (const KernelOp& op = kernels.ops[static_cast<std::size_t>(index)];
        op.kind == "all_to_all" || op.kind == "reduce_scatter" || op.kind == "send_recv")
      ++count[{op.kind, op.group}];
  return count;
}

// Are groups known by their ranks, or by what the job's groups do, where the trace does not name them? Of two ranks,
// with data parallelism alone, with experts on both, and with a pipeline.
TEST(DiagnoseRanks, GroupsAreKnownByTheirRanksToo) {
  for (const auto& [name, kind, group] : {std::tuple{"x2-llama-no-overlap", "reduce_scatter", "dp_cp"},
                                          {"ep2-skew", "all_to_all", "ep"},
                                          {"pp2", "send_recv", "pp"}}) {
    const auto run = run_of(name);
    Trace trace = trace_of(name);
    const auto named = collectives_of(run, trace);
    for (GpuEvent& e : trace.gpu) e.group = -1;
    EXPECT_EQ(collectives_of(run, trace), named) << name;
    EXPECT_GT(named.at({kind, group}), 0) << name;
  }
}

// Is a node found whose ranks come late? The two ranks with experts as 0 and 8 of 16 GPUs, eight a node; on rank 0 each
// collective takes 10 ms more, which it waits for rank 8.
TEST(DiagnoseRanks, ALateNodeIsFound) {
  const auto run = on_gpus(run_of("ep2-skew"), 16);
  const auto renumbered = [](Trace trace, std::int64_t rank) {
    for (auto& [name, ranks] : trace.groups) std::ranges::replace(ranks, std::int64_t{1}, std::int64_t{8});
    for (Message& message : trace.messages) std::ranges::replace(message.ranks, std::int64_t{1}, std::int64_t{8});
    return as_rank(std::move(trace), rank, 16);
  };
  std::int64_t collectives = 0;
  const Trace waiting = with_longer(renumbered(trace_of("ep2-skew", 0), 0), [&](const Trace& of, std::size_t i) {
    const bool is_collective = of.gpu[i].collective >= 0;
    collectives += is_collective ? 1 : 0;
    return is_collective ? std::int64_t{10'000'000} : 0;
  });
  const Diagnosis d = diagnose(run, {waiting, renumbered(trace_of("ep2-skew", 1), 8)});
  EXPECT_EQ(d.ranks.ranks[0].node, 0);
  EXPECT_EQ(d.ranks.ranks[1].node, 1);
  EXPECT_GT(2 * d.ranks.ranks[1].last, d.ranks.ranks[1].of);
  EXPECT_GT(d.ranks.ranks[1].waited_for_s, 0.5 * 0.01 * static_cast<double>(collectives));
  ASSERT_THAT(d.findings, has("collectives wait for rank 8"));
  EXPECT_THAT(finding(d, "collectives wait").evidence, testing::HasSubstr("of node 1"));
}

}  // namespace
}  // namespace foldwise::planner::diagnose_ranks_test
