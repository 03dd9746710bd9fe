#include "planner/search/pipelines.h"

#include <algorithm>
#include <utility>

#include "costmodel/step/stage_split.h"

namespace foldwise::planner {

using namespace costmodel;  // NOLINT(google-build-using-namespace): this file is about the cost model's types.

double schedule_bound(const TrainingOptions& o, const std::vector<Load>& stages, std::size_t rank, const Load& work) {
  Seconds way{};
  for (std::size_t i = 0; i < rank && runnable(o.pipeline.schedule); ++i)
    way += stages[i].forward.at_least() + stages[i].backward.at_least();
  const auto m = static_cast<double>(o.num_microbatches());
  return (way + m * at_least(work)).to<double>();
}

Split split_of(const Workbench& bench, const TrainingOptions& o, const LayerCosts& costs, StageLayout layout) {
  Split split{.layout = std::move(layout), .even = false, .stages = {}, .ranks = {}};
  const std::optional<StageLayout> even = bench.even_split(o);
  split.even = even && split.layout == *even;
  split.ranks.resize(static_cast<std::size_t>(o.pipeline.pp));
  for (std::size_t i = 0; i < split.layout.stages.size(); ++i) {
    const StageContent& content = split.layout.stages[i];
    Load& load = split.stages.emplace_back();
    for (std::size_t k = 0; k < bench.kinds.kinds.size(); ++k)
      load += costs.layer[k].times(bench.layers_of(k, content, content.num_layers));
    if (content.embedding) load += costs.embedding;
    if (content.mtp_layers > 0) load += costs.mtp.times(static_cast<double>(content.mtp_layers));
    if (content.loss) load += costs.head;
    split.ranks[i % split.ranks.size()] += load;
  }
  // A study schedule places stages in its own way, so only the mean of the ranks is known.
  for (std::size_t rank = 0; rank < split.ranks.size() && runnable(o.pipeline.schedule); ++rank) {
    const double bound = schedule_bound(o, split.stages, rank, split.ranks[rank]);
    if (bound > split.least) {
      split.least = bound;
      split.busiest = rank;
    }
  }
  return split;
}

void compose_plain(Workbench& bench, const StepOptions& plainest, Pipeline& pipeline) {
  TrainingOptions o = pipeline.state.options;
  o.step = plainest;
  Split& split = *pipeline.split;
  if (!split.plain) {
    split.plain = compose(bench.context(o), bench.kinds, pipeline.costs->costs, split.layout);
    for (StageTime& stage : split.plain->times.stages)
      stage.gather = stage.reduction = stage.first_forward_delay = stage.last_backward_delay = Seconds{};
    split.plain->times.reload.clear();
    ++bench.statistics.composed;
  }
  split.plain->times.shape = schedule_shape(o);
  pipeline.times = split.plain->times;
  pipeline.least = runnable(o.pipeline.schedule) ? makespan_lower_bound(pipeline.times).to<double>() : 0.0;
}

void prepare_memory_choices(Workbench& bench, const StepOptions& plainest, Pipeline& pipeline) {
  TrainingOptions o = pipeline.state.options;
  o.step = plainest;
  const Split& split = *pipeline.split;
  const Composition& c = *split.plain;
  pipeline.busiest_layers.assign(bench.kinds.kinds.size(), 0.0);
  for (std::size_t i = split.busiest; i < split.layout.stages.size(); i += split.ranks.size())
    for (std::size_t k = 0; k < bench.kinds.kinds.size(); ++k)
      pipeline.busiest_layers[k] += bench.layers_of(k, split.layout.stages[i], split.layout.stages[i].num_layers);
  pipeline.stage_of = c.index;
  pipeline.stages.resize(c.distinct.size());
  for (std::size_t i = c.num_stages(); i-- > 0;) {
    const StageCost& stage = c.stage(i);
    pipeline.stages[c.index[i]] = {stage_of(c.times.shape, split.layout.stages.size(), i), stage.forward_transfers,
                                   stage.backward_transfers, stage.host.total()};
  }
  pipeline.bounds.assign(pipeline.costs->memory_choices.size(), -1.0);
  pipeline.needs.resize(pipeline.costs->memory_choices.size());
  for (const StageContent& stage : split.layout.stages)
    pipeline.most_layers = std::max(pipeline.most_layers, stage.num_layers);
  pipeline.critical = critical_ranks(bench, bench.context(o), *pipeline.costs, split.layout, c, split.busiest);
}

namespace {

/// Lower bounds of the times of the differing stages with a memory choice and, if given, the copies of offloading.
std::vector<StageTime> least_times(const Workbench& bench, const Pipeline& pipeline, std::size_t position,
                                   const Kept* offloaded) {
  const LayerCosts& costs = *pipeline.costs;
  const LayerCosts::Priced& priced = costs.memory_choices[position];
  std::vector<StageTime> differing;
  differing.reserve(pipeline.stages.size());
  for (const Pipeline::Stage& stage : pipeline.stages) {
    const StageContent& content = pipeline.split->layout.stages[stage.first];
    const std::int64_t covered = priced.choice->covered(content.num_layers);
    Load load = pipeline.split->stages[stage.first];
    for (std::size_t k = 0; k < bench.kinds.kinds.size(); ++k) {
      const double count = bench.layers_of(k, content, covered);
      load += priced.layer[k].times(count);
      load += costs.layer[k].times(-count);
      if (offloaded != nullptr) load += offloaded->layers[k].copies(count);
    }
    load.forward.work += stage.forward;
    load.backward.work += stage.backward;
    differing.push_back({.forward = load.forward.at_least(stage.idle),
                         .backward = load.backward.at_least(stage.idle),
                         .merged_pair_saving = load.saving});
  }
  return differing;
}

}  // namespace

double memory_choice_bound(const Workbench& bench, Pipeline& pipeline, std::size_t position) {
  if (pipeline.bounds[position] >= 0.0) return pipeline.bounds[position];
  const std::vector<StageTime> differing = least_times(bench, pipeline, position, nullptr);
  PipelineTimes times = pipeline.times;
  for (std::size_t i = 0; i < times.stages.size(); ++i) {
    StageTime& stage = times.stages[i];
    const StageTime& with = differing[pipeline.stage_of[i]];
    stage.forward = with.forward;
    stage.backward = std::max(with.backward, stage.weight_gradient);
    stage.merged_pair_saving = with.merged_pair_saving;
  }
  return pipeline.bounds[position] = makespan_lower_bound(times).to<double>();
}

double offload_bound(const Workbench& bench, const Pipeline& pipeline, std::size_t position, const Kept& offloaded,
                     const Composition& on_device) {
  const std::vector<StageTime> differing = least_times(bench, pipeline, position, &offloaded);
  PipelineTimes times = on_device.times;
  for (std::size_t i = 0; i < times.stages.size(); ++i) {
    StageTime& stage = times.stages[i];
    const StageTime& with = differing[pipeline.stage_of[i]];
    stage.forward = std::max(stage.forward, with.forward);
    stage.backward = std::max(stage.backward, with.backward);
    stage.merged_pair_saving = std::max(stage.merged_pair_saving, with.merged_pair_saving);
  }
  return step_time(on_device, makespan_lower_bound(times)).to<double>();
}

}  // namespace foldwise::planner
