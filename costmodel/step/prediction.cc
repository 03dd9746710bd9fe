#include "costmodel/step/prediction.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "costmodel/check.h"
#include "costmodel/step/ledger.h"
#include "costmodel/step/rank_memory.h"
#include "costmodel/step/stage_split.h"
#include "costmodel/step/step.h"

namespace foldwise::costmodel {
namespace {

// Merged (F, B) pairs of two chunks.
struct Pairs {
  std::size_t forward = 0, backward = 0;  ///< As in Composition::index.
  double count = 0.0;
  Seconds elapsed{};  ///< Duration of one pair.
};

struct Waits {
  TaskTimes tasks;
  std::vector<Pairs> pairs;
  Seconds blocked{};  ///< Waiting for the rank's own transfers.
  DataParallelCost data_parallel;
};

Waits rank_waits(const PipelineTimes& times, const std::vector<ChunkTicks>& ticks, const Timeline& timeline,
                 std::int64_t rank) {
  const std::vector<ScheduledTask>& tasks = timeline.ranks[static_cast<std::size_t>(rank)];
  const auto chunk_of = [&](const Task& task) { return static_cast<std::size_t>(task.chunk * times.shape.pp + rank); };
  const auto seconds = [](std::int64_t ps) { return Seconds{static_cast<double>(ps) * 1e-12}; };
  std::vector<Pairs> pairs;
  std::int64_t forward = 0, input = 0, weight = 0, merged = 0, blocked = 0, gather = 0, end = 0;
  for (const ScheduledTask& task : tasks) {
    gather += task.gather_ps;
    end = std::max(end, task.end_ps + task.send_ps);
  }
  std::int64_t reduction = timeline.reduced_ps[static_cast<std::size_t>(rank)] - end;
  for (auto i = static_cast<std::size_t>(rank); i < ticks.size(); i += static_cast<std::size_t>(times.shape.pp)) {
    gather += ticks[i].first_forward_delay;
    reduction += ticks[i].last_backward_delay;
  }
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks[i].task;
    if (task.merged) continue;  // The pair's second task counts for both.
    blocked += tasks[i].send_ps;
    const std::size_t at = chunk_of(task);
    const ChunkTicks& chunk = ticks[at];
    if (i > 0 && tasks[i - 1].task.merged) {
      const std::size_t first = chunk_of(tasks[i - 1].task);
      const std::int64_t elapsed = merged_pair(ticks[first], chunk);
      auto same = std::find_if(pairs.begin(), pairs.end(),
                               [&](const Pairs& p) { return p.forward == first && p.backward == at; });
      if (same == pairs.end()) same = pairs.insert(same, {first, at, 0.0, seconds(elapsed)});
      same->count += 1.0;
      merged += elapsed;
      continue;
    }
    switch (task.kind) {
      case TaskKind::kForward:
        forward += chunk.forward;
        break;
      case TaskKind::kBackward:
        input += chunk.of(TaskKind::kInputGradient);
        weight += chunk.weight_gradient;
        break;
      case TaskKind::kInputGradient:
      case TaskKind::kWeightGradient:
        (task.kind == TaskKind::kInputGradient ? input : weight) += chunk.of(task.kind);
        break;
    }
  }
  const std::int64_t reload =
      timeline.reloaded_ps[static_cast<std::size_t>(rank)] - timeline.reduced_ps[static_cast<std::size_t>(rank)];
  return {.tasks = {seconds(forward), seconds(input), seconds(weight), seconds(merged)},
          .pairs = std::move(pairs),
          .blocked = seconds(blocked),
          .data_parallel = {.gather = seconds(gather),
                            .reduction = seconds(reduction),
                            .reload = seconds(std::max<std::int64_t>(0, reload))}};
}

// Lines of all micro-batches of a rank, for pairs and for tasks that run alone.
std::vector<LedgerLine> lines_of_tasks(const Composition& c, const std::vector<ChunkLedger>& chunks, std::int64_t rank,
                                       const std::vector<Pairs>& pairs) {
  const auto m = static_cast<double>(chunk_microbatches(c.times.shape));
  std::vector<LedgerLine> lines;
  for (auto i = static_cast<std::size_t>(rank); i < chunks.size(); i += static_cast<std::size_t>(c.times.shape.pp)) {
    double forwards = m, backwards = m;
    for (const Pairs& p : pairs) {
      forwards -= p.forward == i ? p.count : 0.0;
      backwards -= p.backward == i ? p.count : 0.0;
    }
    add_lines(chunks[i].forward, forwards, lines);
    add_lines(chunks[i].backward, backwards, lines);
  }
  for (const Pairs& p : pairs)
    add_lines(pair_lines(chunks[p.forward].forward, chunks[p.backward].backward,
                         (c.stage(p.forward).hidden + c.stage(p.backward).hidden) / 2.0, p.elapsed),
              p.count, lines);
  return lines;
}

// Ledgers with one line per cause, if no detail is needed.
std::vector<ChunkLedger> ledgers_by_cause(const Composition& c) {
  const auto lines = [](const DirectionCost& d, Seconds host) {
    return std::vector<LedgerLine>{{.cause = Cause::kCompute, .exposed = d.compute},
                                   {.cause = Cause::kCommunication, .exposed = d.comm},
                                   {.cause = Cause::kCopy, .exposed = d.exposed_copy()},
                                   {.cause = Cause::kHost, .exposed = host}};
  };
  std::vector<ChunkLedger> chunks;
  for (std::size_t i = 0; i < c.num_stages(); ++i) {
    const StageCost& stage = c.stage(i);
    chunks.push_back({lines(stage.cost.forward, stage.host.forward), lines(stage.cost.backward, stage.host.backward)});
  }
  return chunks;
}

// Seconds of a pipeline rank over a whole step, by cause, without the bubble.
StagePrediction rank_busy(const Composition& c, const std::vector<ChunkLedger>& by_cause, std::int64_t rank,
                          const Waits& waits) {
  const auto m = static_cast<double>(chunk_microbatches(c.times.shape));
  const auto pp = static_cast<std::size_t>(c.times.shape.pp);
  StagePrediction p;
  p.tasks = waits.tasks;
  p.data_parallel = waits.data_parallel;
  for (auto i = static_cast<std::size_t>(rank); i < c.num_stages(); i += pp) {
    const BlockCost& cost = c.stage(i).cost;
    p.layers += c.stage(i).layers;
    p.host_issue += m * (cost.forward.clock.issue() + cost.backward.clock.issue());
    p.forward += c.times.stages[i].forward;
    p.backward += c.times.stages[i].backward;
  }
  const auto add = [&](Cause cause, Seconds time) {
    (cause == Cause::kCompute         ? p.compute
     : cause == Cause::kCommunication ? p.exposed_communication
     : cause == Cause::kCopy          ? p.exposed_copy
                                      : p.host) += time;
  };
  for (const LedgerLine& line : lines_of_tasks(c, by_cause, rank, waits.pairs)) add(line.cause, line.exposed);
  p.exposed_communication += waits.blocked;
  const StepTail& tail = c.tails[static_cast<std::size_t>(rank)];
  p.compute += tail.compute;
  p.exposed_communication += waits.data_parallel.gather + waits.data_parallel.reduction + tail.parameters + tail.comm;
  p.exposed_copy += waits.data_parallel.reload + tail.copy;
  p.host += tail.host + tail.idle;
  return p;
}

Seconds busy(const StagePrediction& p) { return p.compute + p.exposed_communication + p.exposed_copy + p.host; }

// Lines for every second of a rank's step, without the bubble.
std::vector<LedgerLine> rank_ledger(const Step& step, const std::vector<ChunkLedger>& chunks, std::int64_t rank,
                                    const Waits& waits) {
  std::vector<LedgerLine> lines = lines_of_tasks(step.composition, chunks, rank, waits.pairs);
  if (waits.blocked > Seconds{})
    lines.push_back({.activity = Activity::kPipeline,
                     .cause = Cause::kCommunication,
                     .kind = "send_recv",
                     .module = "pipeline",
                     .group = "pp",
                     .exposed = waits.blocked});
  add_lines(tail_ledger(step, rank, waits.data_parallel), 1.0, lines);
  return lines;
}

std::vector<DetailEntry> entries(const std::vector<LedgerLine>& lines, Seconds step) {
  std::vector<DetailEntry> result;
  for (const LedgerLine& line : lines) {
    if (line.exposed <= 1e-9 * step) continue;
    const auto same = std::find_if(result.begin(), result.end(), [&](const DetailEntry& e) {
      return e.cause == line.cause && e.kind == line.kind && e.module == line.module && e.group == line.group;
    });
    DetailEntry& entry = same != result.end()
                             ? *same
                             : result.emplace_back(DetailEntry{line.cause, std::string(line.kind),
                                                               std::string(line.module), std::string(line.group)});
    entry.seconds += line.exposed;
    if (line.activity == Activity::kRecompute) entry.recomputed += line.exposed;
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const DetailEntry& a, const DetailEntry& b) { return a.seconds > b.seconds; });
  return result;
}

/// Checks that all numbers are finite and not negative.
void check_sound(const Prediction& p) {
  const double least = -1e-6 * p.step_time.to<double>();  // Tolerance for differences of sums.
  const auto check = [](const char* what, double value, double low) {
    FW_CHECK(value >= low && value <= std::numeric_limits<double>::max(), std::string(what) + std::to_string(value));
  };
  check("step time ", p.step_time.to<double>(), std::numeric_limits<double>::min());
  check("tokens/s ", p.tokens_per_s_per_gpu, 0.0);
  check("MFU ", p.mfu_pct, 0.0);
  const auto check_parts = [&](const auto& parts) {
    for (const Seconds part :
         {parts.compute, parts.exposed_communication, parts.exposed_copy, parts.bubble, parts.host})
      check("part of the step ", part.to<double>(), least);
  };
  check_parts(p.breakdown);
  for (const StagePrediction& stage : p.stages) check_parts(stage);
  for (const StageMemory& m : p.memory) {
    const double rounding = -1e-6 * m.total().to<double>();
    check("memory ", m.total().to<double>(), 0.0);
    for (const Bytes part : {m.parameters, m.gradients, m.optimizer, m.activations, m.buffers, m.overhead(), m.host,
                             m.allocated_after_setup, m.allocated_between_steps, m.allocated_in_optimizer})
      check("memory of a part ", part.to<double>(), rounding);
  }
}

}  // namespace

std::string_view to_string(Cause cause) {
  constexpr auto kNames = names_of<Cause>("compute", "exposed_communication", "exposed_copy", "bubble", "host");
  return kNames.at(static_cast<std::size_t>(cause));
}

std::string_view to_string(Activity activity) {
  constexpr auto kNames = names_of<Activity>("compute", "recompute", "tp", "cp", "ep", "pp", "dp", "offload_wait",
                                             "host", "optimizer", "bubble");
  return kNames.at(static_cast<std::size_t>(activity));
}

Bytes Prediction::in_use() const {
  Bytes most{};
  for (const StageMemory& rank : memory) most = std::max(most, rank.in_use());
  return most;
}

bool Prediction::torch_has_room(Bytes capacity) const {
  return std::ranges::all_of(
      memory, [&](const StageMemory& rank) { return rank.pressure.runs() && rank.in_use() <= capacity; });
}

Step compose_step(const ModelSpec& model, const TrainingOptions& options, const Hardware& hardware) {
  Step step{{model, options, hardware}, model_kinds(model), stage_layout(model, options), {}};
  step.composition = compose(step.context, step.kinds, model_costs(step.context, step.kinds), step.layout);
  return step;
}

Seconds step_time(const Step& step) { return step_time(step.composition, simulate_makespan(step.composition.times)); }

std::vector<StageMemory> step_memory(const Step& step) {
  std::vector<StageMemory> memory;
  for (std::int64_t rank = 0; rank < step.shape().pp; ++rank)
    memory.push_back(rank_memory(step.context, step.composition, rank, peak_table(step.shape(), rank)));
  return memory;
}

Prediction predict(const Step& step, bool with_detail) {
  const StepContext& context = step.context;
  const Composition& c = step.composition;
  const TrainingOptions& o = context.options;
  Prediction p;
  const Timeline timeline = simulate(c.times);
  const std::vector<ChunkTicks> ticks = chunk_ticks(c.times);
  p.step_time = step_time(c, timeline.makespan());
  const std::vector<ChunkLedger> by_cause = ledgers_by_cause(c);
  std::vector<Waits> waits;
  p.memory = step_memory(step);
  for (std::int64_t rank = 0; rank < o.pipeline.pp; ++rank) {
    waits.push_back(rank_waits(c.times, ticks, timeline, rank));
    StagePrediction stage = rank_busy(c, by_cause, rank, waits.back());
    stage.bubble = std::max(Seconds{}, p.step_time - busy(stage));
    stage.peak_chunks_in_flight = peak_in_flight(c.times.shape, rank);
    p.stages.push_back(stage);
    p.peak_memory = std::max(p.peak_memory, p.memory[static_cast<std::size_t>(rank)].total());
    if (busy(stage) > busy(p.stages[p.critical_stage])) p.critical_stage = p.stages.size() - 1;
  }
  p.fits = std::all_of(p.memory.begin(), p.memory.end(),
                       [&](const StageMemory& memory) { return costmodel::fits(memory, context.hardware); });
  const StagePrediction& critical = p.stages[p.critical_stage];
  p.breakdown = {critical.compute, critical.exposed_communication, critical.exposed_copy, critical.bubble,
                 critical.host};
  const auto tokens = static_cast<double>(o.pipeline.global_batch * o.layer.seq_len),
             gpus = static_cast<double>(o.layout().world());
  const auto seconds = p.step_time.to<double>();
  p.tokens_per_s_per_gpu = tokens / seconds / gpus;
  const double flops = megatron_flops(context.model, tokens, tokens * static_cast<double>(o.layer.seq_len), o.layer.tp);
  p.model_tflops_per_gpu = flops / seconds / gpus / 1e12;
  p.mfu_pct = 100.0 * p.model_tflops_per_gpu * 1e12 / context.hardware.mfu_peak(o.layer.precision).to<double>();
  check_sound(p);
  if (!with_detail) return p;
  const std::vector<ChunkLedger> chunks = chunk_ledgers(step);
  for (std::size_t rank = 0; rank < p.stages.size(); ++rank) {
    const std::vector<LedgerLine> lines = rank_ledger(step, chunks, static_cast<std::int64_t>(rank), waits[rank]);
    p.stages[rank].parts = by_activity(lines);
    p.stages[rank].parts[static_cast<std::size_t>(Activity::kBubble)] = p.stages[rank].bubble;
    p.stages[rank].detail = entries(lines, p.step_time);
  }
  p.step_end = step_parts(step, static_cast<std::int64_t>(p.critical_stage), critical.data_parallel);
  return p;
}

Prediction predict(const ModelSpec& model, const TrainingOptions& options, const Hardware& hardware) {
  return predict(compose_step(model, options, hardware));
}

double p99_load(const ModelSpec& model, const LayerOptions& options) {
  constexpr double kNormalP99 = 2.326;  // The sum over thousands of tokens is nearly normal.
  double load = 1.0;
  if (!options.pad_to_capacity) load += kNormalP99 * row_spread(model, options);
  return options.capacity_factor ? std::min(load, std::max(1.0, *options.capacity_factor)) : load;
}

Imbalance imbalance(const ModelSpec& model, const TrainingOptions& options, const Hardware& hardware) {
  Imbalance result{.p99_load = p99_load(model, options.layer)};
  TrainingOptions loaded = options;
  loaded.layer.expert_load *= result.p99_load;
  const Step step = compose_step(model, loaded, hardware);
  for (const StageMemory& rank : step_memory(step)) result.p99_memory = std::max(result.p99_memory, rank.total());
  return result;
}

}  // namespace foldwise::costmodel
