// Benchmarks of what users wait for: reading a model, costs of a layer, composing and bounding a candidate, simulating
// a schedule, a whole search. Run: build/release/benchmarks/foldwise-benchmarks
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "costmodel/pipeline/pipeline_graph.h"
#include "costmodel/step/communication.h"
#include "costmodel/step/composition.h"
#include "costmodel/step/rank_memory.h"
#include "costmodel/step/reserved_memory.h"
#include "costmodel/step/stage_split.h"
#include "hwprofiles/load/profile.h"
#include "planner/foldwise.h"
#include "planner/models/models.h"
#include "planner/report/prediction_report.h"
#include "planner/rules/rules.h"
#include "planner/run/defaults.h"
#include "planner/search/search.h"

namespace {

using namespace foldwise;             // NOLINT(google-build-using-namespace)
using namespace foldwise::costmodel;  // NOLINT(google-build-using-namespace)

planner::PlanProblem deepseek_on_gb200() {
  return plan_problem({.model = "deepseek-v3",
                       .system = "gb200-nvl72",
                       .num_gpus = 256,
                       .global_batch = 4096,
                       .precisions = {Precision::kMxfp8}});
}

/// One of the problem's candidates.
TrainingOptions published(const planner::PlanProblem& p) {
  std::map<std::string, nlohmann::json> stated = p.stated;
  stated["precision"] = "mxfp8";
  TrainingOptions o = planner::options_of(planner::load_defaults(p.defaults), p.model, p.hardware, stated);
  o.set_layout({.tp = 1, .cp = 1, .dp = 64, .pp = 4, .vpp = 4, .ep = 64, .etp = 1});
  o.layer.dispatcher = Dispatcher::kHybridEp;
  return o;
}

void count_candidates(benchmark::State& state, double per_iteration = 1.0) {
  state.counters["candidates/s"] = benchmark::Counter(per_iteration, benchmark::Counter::kIsIterationInvariantRate);
}

void read_model(benchmark::State& state) {
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(planner::load_model("deepseek-v3"));
}
BENCHMARK(read_model)->Unit(benchmark::kMicrosecond);

// Time to report a mistake in a run file and in a profile. tests/defects_test prints that of every reader, including
// program start.
template <typename Read>
void refuse(benchmark::State& state, const Read& read) {
  for ([[maybe_unused]] auto _ : state) {
    try {
      read();
      state.SkipWithError("it was taken");
    } catch (const config::ConfigError& error) {
      benchmark::DoNotOptimize(error.what());
    }
  }
}
void refuse_run_file(benchmark::State& state) {
  refuse(state, [] {
    static_cast<void>(parse_run(R"({"model": "deepseek-v3", "system": "h100-sxm-80gb", "num_gpus": 64, "tp": "x"})"));
  });
}
BENCHMARK(refuse_run_file)->Unit(benchmark::kMicrosecond);
void refuse_profile(benchmark::State& state) {
  refuse(state, [] {
    static_cast<void>(hwprofiles::parse_profile(R"({"base": "h200", "hbm": {"bandwith": 1}})", "profile.json"));
  });
}
BENCHMARK(refuse_profile)->Unit(benchmark::kMicrosecond);

// Op lists of every kind of layer and their times: once per (TP, CP, EP, ETP, micro-batch, recomputation, ...).
void layer_costs(benchmark::State& state) {
  const planner::PlanProblem p = deepseek_on_gb200();
  const TrainingOptions o = published(p);
  const ModelKinds kinds = model_kinds(p.model);
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(model_costs({p.model, o, p.hardware}, kinds));
}
BENCHMARK(layer_costs)->Unit(benchmark::kMicrosecond);

// One candidate in the inner loop of the search: split into stages, compose, check memory, bound the step time.
void compose_candidate(benchmark::State& state) {
  const planner::PlanProblem p = deepseek_on_gb200();
  const TrainingOptions o = published(p);
  const StepContext context{p.model, o, p.hardware};
  const ModelKinds kinds = model_kinds(p.model);
  const ModelCosts costs = model_costs(context, kinds);
  std::vector<PeakTable> peaks;
  for (std::int64_t rank = 0; rank < o.pipeline.pp; ++rank) peaks.push_back(peak_table(schedule_shape(o), rank));
  for ([[maybe_unused]] auto _ : state) {
    const Composition c =
        compose(context, kinds, costs, balanced_stages(kinds, costs, 1, o.pipeline.pp, o.pipeline.vpp));
    benchmark::DoNotOptimize(fits(context, c, peaks));
    benchmark::DoNotOptimize(makespan_lower_bound(c.times));
  }
  count_candidates(state);
}
BENCHMARK(compose_candidate)->Unit(benchmark::kMicrosecond);

void check_rules(benchmark::State& state) {
  const planner::PlanProblem p = deepseek_on_gb200();
  const TrainingOptions o = published(p);
  for ([[maybe_unused]] auto _ : state)
    benchmark::DoNotOptimize(planner::first_violated({p.model, p.hardware, p.num_gpus}, o));
  count_candidates(state);
}
BENCHMARK(check_rules);

PipelineTimes interleaved(std::int64_t pp, std::int64_t vpp, std::int64_t micro_batches) {
  PipelineTimes times;
  times.shape = {.pp = pp, .vpp = vpp, .num_microbatches = micro_batches};
  times.stages.assign(
      static_cast<std::size_t>(pp * vpp),
      {.forward = Seconds{1e-3}, .backward = Seconds{2e-3}, .merged_pair_saving = Seconds{}, .send = Seconds{1e-5}});
  return times;
}

void count_tasks(benchmark::State& state, const ScheduleShape& shape) {
  state.counters["tasks/s"] = benchmark::Counter(static_cast<double>(2 * shape.pp * shape.vpp * shape.num_microbatches),
                                                 benchmark::Counter::kIsIterationInvariantRate);
  state.counters["simulations/s"] = benchmark::Counter(1.0, benchmark::Counter::kIsIterationInvariantRate);
}

// The fast engine, which the search uses. Arguments: ranks, chunks per rank, micro-batches.
void simulate_interleaved(benchmark::State& state) {
  const PipelineTimes times = interleaved(state.range(0), state.range(1), state.range(2));
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(simulate_makespan(times));
  count_tasks(state, times.shape);
}
BENCHMARK(simulate_interleaved)
    ->Args({4, 4, 64})
    ->Args({8, 4, 64})
    ->Args({16, 4, 256})
    ->Args({16, 8, 512})
    ->Unit(benchmark::kMicrosecond);

// The general engine: builds and executes the graph of tasks and transfers.
void simulate_graph(benchmark::State& state) {
  const PipelineTimes times = interleaved(state.range(0), state.range(1), state.range(2));
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(timeline_of(pipeline_graph(times)));
  count_tasks(state, times.shape);
}
BENCHMARK(simulate_graph)->Args({8, 4, 64})->Args({16, 8, 512})->Unit(benchmark::kMillisecond);

void predict_run(benchmark::State& state) {
  const planner::PlanProblem p = deepseek_on_gb200();
  TrainingOptions o = published(p);
  o.pipeline.layout = "Et*4|(t*4|)*14tmL";
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(predict(p.model, o, p.hardware));
  count_candidates(state);
}
BENCHMARK(predict_run)->Unit(benchmark::kMicrosecond);

// A call of the library: parsing and predicting a run file's text (range 0), and the answer as JSON (range 1).
// benchmarks/python_predict.py measures the Python package in the same way.
void predict_run_file(benchmark::State& state) {
  const std::string text = R"({"model": "qwen3-30b-a3b", "system": "h100-sxm-80gb", "num_gpus": 16, "precision": "bf16",
    "tp": 1, "pp": 2, "ep": 8, "micro_batch": 1, "global_batch": 64, "seq_len": 4096})";
  for ([[maybe_unused]] auto _ : state) {
    const Run run = parse_run(text, "benchmark");
    Prediction prediction = costmodel::predict(compose(run));
    benchmark::DoNotOptimize(prediction);
    if (state.range(0) == 1) benchmark::DoNotOptimize(planner::prediction_json(run, prediction, {}).dump());
  }
}
BENCHMARK(predict_run_file)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);

// Work of the command `predict`, including reserved memory and the traffic on each link. Argument: GPUs. The time must
// not grow with the cluster.
void predict_run_with_links(benchmark::State& state) {
  const planner::PlanProblem p = deepseek_on_gb200();
  TrainingOptions o = published(p);
  const std::int64_t dp = state.range(0) / o.pipeline.pp;
  o.set_layout({.tp = 1, .cp = 1, .dp = dp, .pp = 4, .vpp = 4, .ep = 64, .etp = 1});
  o.pipeline.layout = "Et*4|(t*4|)*14tmL";
  o.pipeline.global_batch = 64 * dp;
  for ([[maybe_unused]] auto _ : state) {
    const Step step = compose_step(p.model, o, p.hardware);
    Prediction prediction = predict(step);
    add_reserved(step, prediction);
    benchmark::DoNotOptimize(communication_report(step, prediction));
  }
}
BENCHMARK(predict_run_with_links)->Arg(256)->Arg(262'144)->Unit(benchmark::kMillisecond);

// `foldwise plan --top 1` without its explanations. The memory peak is the process's so far: select a single search
// with --benchmark_filter to measure its own.
void search(benchmark::State& state, const PlanRequest& request) {
  planner::PlanProblem p = plan_problem(request);
  p.top = 1;
  p.threads = static_cast<int>(state.range(0));
  planner::PlanResult result;
  for ([[maybe_unused]] auto _ : state) result = planner::plan(p);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters = {{"candidates", result.enumerated},
                    {"nodes", static_cast<double>(result.nodes)},
                    {"composed", static_cast<double>(result.composed)},
                    {"simulated", static_cast<double>(result.simulated)},
                    {"proven", result.proven ? 1.0 : 0.0},
                    {"step_s", result.plans.empty() ? 0.0 : result.plans.front().prediction.step_time.to<double>()},
                    {"peak_MiB", static_cast<double>(usage.ru_maxrss) / 1024.0}};
}

void register_search(const std::string& model, const std::string& system, std::int64_t gpus, std::int64_t batch,
                     const std::vector<std::int64_t>& threads) {
  PlanRequest request;
  request.model = model;
  request.system = system;
  request.num_gpus = gpus;
  request.global_batch = batch;
  auto* const timed = benchmark::RegisterBenchmark(
      ("search/" + model + "/" + std::to_string(gpus) + "x" + system).c_str(), search, request);
  timed->Unit(benchmark::kSecond)->UseRealTime()->Iterations(1);
  for (const std::int64_t count : threads) timed->Arg(count);
}

}  // namespace

int main(int argc, char** argv) {
  register_search("deepseek-v3", "gb200-nvl72", 256, 4096, {1, 2});
  register_search("deepseek-v3", "h100-sxm-80gb", 1024, 8192, {2});
  register_search("kimi-k2", "gb300-nvl72", 512, 8192, {2});
  register_search("qwen3-235b-a22b", "h100-sxm-80gb", 16384, 65536, {2});
  register_search("llama3-70b", "h100-sxm-80gb", 64, 128, {2});
  for (const std::string& model : planner::built_in_models()) register_search(model, "h100-sxm-80gb", 64, 512, {2});
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
