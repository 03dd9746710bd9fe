#include "planner/search/layers_search.h"

#include <algorithm>
#include <array>
#include <utility>

#include "costmodel/step/data_parallel.h"
#include "costmodel/step/stage_split.h"
#include "planner/rules/rules.h"

namespace foldwise::planner {

using namespace costmodel;  // NOLINT(google-build-using-namespace): this file is about the cost model's types.

namespace {

// Microseconds of a core, about.
constexpr std::int64_t kOfAnItem = 1, kOfAPipeline = 35, kOfSaversOfAKind = 4;

constexpr int kStepsOfADive = 3;  // Of each pipeline.

double bound_of(const Composition& c) { return step_time(c, makespan_lower_bound(c.times)).to<double>(); }

/// Whether another order of ranks leaves every group as it lies: the same run.
bool order_says_nothing(const Layout& layout, const Network& network) {
  Layout plain = layout;
  plain.tp_pp_dp = false;
  return layout.tp_pp_dp && std::ranges::all_of(std::array{Group::kPp, Group::kDpCp, Group::kEdp}, [&](Group group) {
           return group_shape(layout, group, network) == group_shape(plain, group, network);
         });
}

/// A rank's work with what Megatron-FSDP's communication adds to it.
Load with(const StepGroup& group, Load work) {
  work.forward.work += group.beside_forward;
  work.backward.work += group.beside_backward;
  return work;
}

}  // namespace

void LayersSearch::push(Open item, const Layout& layout) {
  if (item.bound * kRounding >= best_.limit(layout)) return;
  item.order = order_++;
  // A dive opens all its pipelines, then goes from the most promising step down to savers that fit.
  if (effort_.dive)
    item.depth = item.what == What::kSavers ? 2 : item.what == What::kStep || item.what == What::kGroup ? 0 : 1;
  open_.push(item);
}

void LayersSearch::run(const State& layers, std::int64_t most_pp) {
  costs_.clear();
  choices_.clear();
  cuts_.clear();
  pipelines_.clear();
  splits_.clear();
  open_ = {};
  per_stage_ = bench_.micro_batches_per_stage(layers.options);
  std::array<LayerCosts*, 4> by_overlap{};
  const std::int64_t most_stages = bench_.problem.model.num_layers() + 2;
  const std::size_t end = bench_.order.end_of(Level::kPipeline);
  bench_.decide(layers, bench_.order.begin_of(Level::kPipeline), end, [&](const State& choice) {
    const TrainingOptions& o = choice.options;
    if (o.pipeline.pp > most_pp) return;
    if (o.pipeline.pp * o.pipeline.vpp > most_stages) {
      if (bench_.counts) bench_.statistics.rejected.back() += bench_.order.candidates_from(end);
      return;
    }
    if (order_says_nothing(o.layout(), bench_.hardware.network)) return;
    const PipelineOptions::Overlaps& overlaps = o.pipeline.overlaps;
    LayerCosts*& costs = by_overlap[(overlaps.ep_a2a ? 1u : 0u) + (overlaps.delay_wgrad ? 2u : 0u)];
    if (costs == nullptr) costs = &costs_.emplace_back(layer_costs(bench_, o));
    const double bound = per_stage_ * costs->least + bench_.hardware.host.step.to<double>();
    push({.bound = bound, .pipeline = static_cast<std::uint32_t>(choices_.size())}, o.layout());
    choices_.push_back({choice, costs});
  });
  spend(kOfAnItem * static_cast<std::int64_t>(choices_.size()));
  std::map<std::int64_t, int> dived;  // Pipelines of a dive, by PP.
  while (!open_.empty()) {
    const Open item = open_.top();
    open_.pop();
    const TrainingOptions& o = (item.what == What::kPipeline ? choices_[item.pipeline].state
                                : item.what == What::kSplit  ? choices_[cuts_[item.pipeline].choice].state
                                                             : pipelines_[item.pipeline].pipeline.state)
                                   .options;
    if (!effort_.dive && item.bound * kRounding >= best_.limit()) return;  // And so are all others.
    if (item.bound * kRounding >= best_.limit(o.layout())) continue;
    if (item.what == What::kGroup) {  // No decision: it only makes bounds exact.
      open_steps(item);
      continue;
    }
    if (effort_.dive && item.what == What::kStep && effort_.steps-- <= 0) return;
    if (effort_.dive && item.what == What::kPipeline && ++dived[o.pipeline.pp] > effort_.pipelines) continue;
    spend(kOfAnItem);
    if (effort_.most < 0) {
      answer_.left = std::min(answer_.left, item.bound * kRounding);
      return;
    }
    switch (item.what) {
      case What::kPipeline:
        split(item);
        break;
      case What::kSplit:
        open_groups(item);
        break;
      case What::kGroup:  // See above.
        break;
      case What::kStep:
        open_savers(item);
        break;
      case What::kSavers:
        look_at(item);
        break;
    }
  }
}

Answer LayersSearch::answer() && {
  answer_.effort = most_ - effort_.most;
  return std::move(answer_);
}

// ---- From a pipeline to its steps ----------------------------------------------------------------------------------

/// They do not depend on the order of micro-batches.
std::vector<Split>& LayersSearch::splits_of(const Choice& choice) {
  const TrainingOptions& o = choice.state.options;
  const auto [entry, fresh] = splits_.try_emplace(
      {choice.costs, o.pipeline.pp, o.pipeline.vpp, o.pipeline.tp_pp_dp, o.pipeline.layout}, std::vector<Split>{});
  if (!fresh) return entry->second;
  const bool given = !o.pipeline.layout.empty() || bench_.problem.space.find("pipeline_layout") != nullptr;
  const std::vector<StageLayout> layouts =
      given ? std::vector{stage_layout(bench_.problem.model, o)}
            : splits_to_try(bench_.problem.model, bench_.kinds, choice.costs->costs, o.pipeline.pp, o.pipeline.vpp);
  for (const StageLayout& layout : layouts) {
    Split& split = entry->second.emplace_back(split_of(bench_, o, *choice.costs, layout));
    split.least = std::max(split.least, per_stage_ * choice.costs->least);
  }
  return entry->second;
}

void LayersSearch::split(const Open& item) {
  const Choice& choice = choices_[item.pipeline];
  const TrainingOptions& o = choice.state.options;
  const StepChoiceList& steps = steps_.of(bench_, choice.state);
  bool& valid = bench_.statistics.valid;
  if (steps.groups.empty() && (valid || !steps.allowed)) return;
  if (savers_.of(bench_, choice.state).empty()) return;  // Rules allow none.
  valid = valid || steps.allowed;
  if (steps.groups.empty() || (per_stage_ * choice.costs->least + steps.end) * kRounding >= best_.limit(o.layout()))
    return;
  for (Split& split : splits_of(choice)) {
    const double bound = split.least + steps.end;
    if (bound * kRounding >= best_.limit(o.layout())) continue;
    cuts_.push_back({.choice = item.pipeline, .split = &split, .choices = &steps});
    push({.bound = bound, .what = What::kSplit, .pipeline = static_cast<std::uint32_t>(cuts_.size() - 1)}, o.layout());
  }
}

void LayersSearch::open_groups(const Open& item) {
  const OpenSplit& cut = cuts_[item.pipeline];
  const Choice& choice = choices_[cut.choice];
  const double limit = best_.limit(choice.state.options.layout());
  const auto too_long = [&](const OpenGroup& group) { return group.least_step() * kRounding >= limit; };
  std::vector<OpenGroup> groups;
  for (const StepGroup& group : cut.choices->groups)
    groups.push_back({.group = &group, .least = least_of(choice.state.options, *cut.split, group)});
  std::erase_if(groups, too_long);
  if (groups.empty()) return;
  OpenPipeline made{.pipeline = {.state = choice.state, .costs = choice.costs, .split = cut.split}};
  spend(kOfAComposition);
  compose_plain(bench_, cut.choices->plainest, made.pipeline);
  for (OpenGroup& group : groups) group.least = std::max(group.least, made.pipeline.least);
  std::erase_if(groups, too_long);
  if (groups.empty()) return;
  std::ranges::stable_sort(groups, {}, &OpenGroup::least_step);
  made.groups = std::move(groups);
  OpenPipeline& open = pipelines_.emplace_back(std::move(made));
  Pipeline& pipeline = open.pipeline;
  if (pipeline.costs->savers.empty()) {
    price_savers(bench_, pipeline.state.options, savers_.of(bench_, pipeline.state), *pipeline.costs);
    spend(kOfSaversOfAKind * static_cast<std::int64_t>(bench_.kinds.kinds.size() * pipeline.costs->savers.size()));
  }
  prepare_savers(bench_, cut.choices->plainest, pipeline);
  spend(kOfAPipeline);
  open.memories.resize(cut.choices->memories);
  push_group(static_cast<std::uint32_t>(pipelines_.size() - 1), 0, item.bound);
}

/// The groups of a pipeline are opened one after another.
void LayersSearch::push_group(std::uint32_t pipeline, std::size_t group, double bound) {
  const OpenPipeline& open = pipelines_[pipeline];
  if (group == open.groups.size()) return;
  push({.bound = std::max(bound, open.groups[group].least_step()),
        .what = What::kGroup,
        .pipeline = pipeline,
        .step = static_cast<std::uint16_t>(group)},
       open.pipeline.state.options.layout());
}

void LayersSearch::open_steps(const Open& item) {
  push_group(item.pipeline, item.step + std::size_t{1}, item.bound);
  OpenPipeline& open = pipelines_[item.pipeline];
  Pipeline& pipeline = open.pipeline;
  const OpenGroup& opened = open.groups[item.step];
  const StepGroup& group = *opened.group;
  std::optional<Memory>& memory = open.memories[group.memory];
  if (!memory) {
    memory = memory_of(pipeline, group.choices.front().options);
    if (memory->fits) memory->least_promise = per_stage_ * least_promise(pipeline, *memory);
  }
  if (!memory->fits) return;
  for (const StepChoice& choice : group.choices) {
    const double least = opened.least + choice.end;
    push({.bound = std::max({item.bound, least, memory->least_promise + choice.end}),
          .what = What::kStep,
          .pipeline = item.pipeline,
          .step = static_cast<std::uint16_t>(open.steps.size())},
         pipeline.state.options.layout());
    open.steps.push_back({.group = &group, .choice = &choice, .least = least});
  }
}

/// Least seconds of a step before its end, before anything is composed.
double LayersSearch::least_of(const TrainingOptions& plain, const Split& split, const StepGroup& group) {
  if (group.every_micro_batch <= 0.0) return split.least;
  const double every = static_cast<double>(plain.num_microbatches()) * group.every_micro_batch,
               beside = schedule_bound(plain, split.stages, split.busiest, with(group, split.ranks[split.busiest]));
  return std::max({split.least, every, beside});
}

LayersSearch::Memory LayersSearch::memory_of(const Pipeline& pipeline, const StepOptions& options) const {
  Memory memory;
  TrainingOptions o = pipeline.state.options;
  o.step = options;
  const Bytes host = bench_.hardware.host.memory_per_gpu;  // Zero: unknown.
  const Bytes capacity = bench_.hardware.hbm_capacity - pending(bench_.problem, o);
  for (std::size_t i = 0; i < pipeline.watched.size(); ++i) {
    const Watched& w = pipeline.watched[i];
    const StaticBytes fixed = static_bytes(bench_.context(o), w.parameters);
    const Bytes always = w.overhead + fixed.parameters + fixed.gradients + fixed.optimizer;
    memory.room[i] = (capacity - always - w.buffers - fixed.holes).to<double>();
    memory.host_room[i] = host > Bytes{} ? (host - fixed.host).to<double>() : std::numeric_limits<double>::infinity();
    // Nothing of the activations helps.
    if ((always + fixed.step_extra) * kRounding > capacity || memory.room[i] < 0.0 || memory.host_room[i] < 0.0)
      memory.fits = false;
  }
  return memory;
}

/// Whether a watched rank lacks room for it. `step`: if given, composed.
bool LayersSearch::too_much(const Pipeline& pipeline, const Memory& memory, const OpenStep* step, const Need& need) {
  for (std::size_t i = 0; i < pipeline.watched.size(); ++i)
    if (need.bytes[i] > memory.room[i] || need.host[i] > memory.host_room[i] ||
        (step != nullptr && need.rests[i] > step->optimizer_room[i]))
      return true;
  return false;
}

Need LayersSearch::need(Pipeline& pipeline, std::size_t i, std::size_t choice) {
  LayerCosts::Priced& priced = pipeline.costs->savers[i];
  const Savers& savers = *priced.savers;
  priced.kept.resize(savers.choices.size());
  Kept& kept = priced.kept[choice];
  if (kept.layers.empty())
    kept = kept_with(bench_, pipeline.state.options, savers, savers.choices[choice].offload, pipeline.costs->pieces);
  return need_of(bench_, *pipeline.costs, pipeline.watched, savers, kept);
}

/// Least seconds of the whole model for a micro-batch with savers and a choice of offloading that may keep little
/// enough; infinity: there is none.
double LayersSearch::promise(Pipeline& pipeline, const Memory& memory, const OpenStep* step, std::size_t i) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const LayerCosts::Priced& priced = pipeline.costs->savers[i];
  const Savers& savers = *priced.savers;
  Pipeline::Needs& needs = pipeline.needs[i];
  // Beyond the layers of a chunk the number is the same as the one below.
  if (savers.fewer_layers >= pipeline.most_layers) return kNone;
  if (!needs.least) needs.least = need_of(bench_, *pipeline.costs, pipeline.watched, savers, priced.least);
  if (too_much(pipeline, memory, step, *needs.least)) return kNone;
  double least = kNone;
  for (const Pipeline::Needs::Front& choice : needs.front)
    if (!too_much(pipeline, memory, step, choice.need)) {
      least = choice.seconds;
      break;
    }
  while (least > priced.seconds && needs.in_front < savers.choices.size()) {
    const std::size_t c = needs.in_front++;
    const Need needed = need(pipeline, i, c);
    const double seconds = choice_seconds(*pipeline.costs, i, c);
    const auto slower = std::ranges::upper_bound(needs.front, seconds, {}, &Pipeline::Needs::Front::seconds);
    if (std::any_of(needs.front.begin(), slower, [&](const auto& faster) { return faster.need.at_most(needed); }))
      continue;
    needs.front.insert(slower, {.seconds = seconds, .need = needed});
    if (seconds < least && !too_much(pipeline, memory, step, needed)) least = seconds;
  }
  return least;
}

/// Least seconds of the whole model for a micro-batch with savers and one choice of offloading, which is priced.
double LayersSearch::choice_seconds(LayerCosts& costs, std::size_t i, std::size_t choice) const {
  LayerCosts::Priced& priced = costs.savers[i];
  priced.choice_seconds.resize(priced.savers->choices.size(), -1.0);
  double& seconds = priced.choice_seconds[choice];
  if (seconds >= 0.0) return seconds;
  seconds = priced.seconds;
  if (priced.savers->partial || priced.savers->choices[choice].offload.empty()) return seconds;
  Load sum = costs.others;
  for (std::size_t k = 0; k < bench_.kinds.kinds.size(); ++k) {
    const auto count = static_cast<double>(bench_.kinds.prefix[k].back());
    sum += priced.layer[k].times(count);
    sum += priced.kept[choice].layers[k].copies(count);
  }
  return seconds = std::max(seconds, at_least(sum).to<double>());
}

/// The same whatever the savers, of steps that are not composed yet.
double LayersSearch::least_promise(Pipeline& pipeline, const Memory& memory) {
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < pipeline.costs->savers.size() && pipeline.costs->savers[i].seconds < least; ++i)
    least = std::min(least, promise(pipeline, memory, nullptr, i));
  return least;
}

// ---- From a step to candidates -------------------------------------------------------------------------------------

/// The data-parallel collectives are known once a step is composed; savers only add work to it. False: it does not fit.
bool LayersSearch::compose_without_savers(const Pipeline& pipeline, OpenStep& step) {
  step.composed = true;
  TrainingOptions o = pipeline.state.options;
  o.step = step.choice->options;
  const Composition c = compose(bench_.context(o), bench_.kinds, pipeline.costs->costs, pipeline.split->layout);
  ++bench_.statistics.composed;
  spend(kOfAComposition);
  for (std::size_t i = 0; i < pipeline.watched.size(); ++i) {
    const Watched& w = pipeline.watched[i];
    const StageMemory memory =
        rank_memory(bench_.context(o), c, static_cast<std::int64_t>(w.rank), bench_.peaks(c.times.shape)[w.rank]);
    const Bytes room =
        bench_.hardware.hbm_capacity - kRounding * (w.overhead + memory.allocated_in_optimizer - memory.rests);
    step.optimizer_room[i] = room.to<double>();
    if (room < Bytes{}) return false;
  }
  step.least = std::max(step.least, bound_of(c));
  return true;
}

void LayersSearch::open_savers(const Open& item) {
  OpenPipeline& open = pipelines_[item.pipeline];
  Pipeline& pipeline = open.pipeline;
  OpenStep& step = open.steps[item.step];
  if (effort_.dive && ++open.dived > kStepsOfADive) return;
  const StepChoice& choice = *step.choice;
  const Layout layout = pipeline.state.options.layout();
  if (!step.composed) {
    if (!compose_without_savers(pipeline, step)) return;
    if (!effort_.dive && step.least > item.bound) {
      Open again = item;
      again.bound = step.least;
      return push(again, layout);
    }
  }
  const double limit = best_.limit(layout);
  for (std::size_t i = 0; i < pipeline.costs->savers.size(); ++i) {
    double bound = std::max(item.bound, per_stage_ * pipeline.costs->savers[i].seconds + choice.end);
    if (bound * kRounding >= limit) return;  // Those after it take longer.
    bound = std::max(bound, per_stage_ * promise(pipeline, *open.memories[step.group->memory], &step, i) + choice.end);
    if (bound * kRounding >= limit) continue;
    const double schedule = std::max(saver_bound(bench_, pipeline, i), rank_bound(pipeline, *step.group, i, nullptr));
    push({.bound = std::max(bound, schedule + choice.end),
          .what = What::kSavers,
          .pipeline = item.pipeline,
          .step = item.step,
          .savers = static_cast<std::uint16_t>(i)},
         layout);
  }
}

/// Least seconds of the schedule by the work of the busiest rank, with savers and, if given, the copies of offloading.
double LayersSearch::rank_bound(const Pipeline& pipeline, const StepGroup& group, std::size_t savers,
                                const Kept* offloaded) const {
  const LayerCosts::Priced& priced = pipeline.costs->savers[savers];
  const Split& split = *pipeline.split;
  Load work = with(group, split.ranks[split.busiest]);
  for (std::size_t k = 0; k < bench_.kinds.kinds.size() && !priced.savers->partial; ++k) {
    const double count = pipeline.busiest_layers[k];
    work += priced.layer[k].times(count);
    work += pipeline.costs->layer[k].times(-count);
    if (offloaded != nullptr) work += offloaded->layers[k].copies(count);
  }
  return schedule_bound(pipeline.state.options, split.stages, split.busiest, work);
}

Composition LayersSearch::composed(const TrainingOptions& options, const Split& split, const ModelCosts& costs) {
  ++bench_.statistics.composed;
  spend(kOfAComposition);
  return compose(bench_.context(options), bench_.kinds, costs, split.layout);
}

const ModelCosts& LayersSearch::costs_with(LayerCosts& costs, std::size_t savers, const TrainingOptions& options) {
  const auto [entry, fresh] = costs.savers[savers].costs.try_emplace(
      {options.layer.offload_modules.bits, options.step.optimizer.low_precision_param_gather});
  if (fresh) entry->second = model_costs(bench_.context(options), bench_.kinds, &bench_.cache());
  return entry->second;
}

/// One choice of recomputation, with every choice of offloading beside it.
void LayersSearch::look_at(const Open& item) {
  OpenPipeline& open = pipelines_[item.pipeline];
  Pipeline& pipeline = open.pipeline;
  OpenStep& step = open.steps[item.step];
  if (step.done) return;
  const Memory& memory = *open.memories[step.group->memory];
  const StepChoice& choice = *step.choice;
  const LayerCosts::Priced& priced = pipeline.costs->savers[item.savers];
  const Savers& savers = *priced.savers;
  const Split& split = *pipeline.split;
  const Layout layout = pipeline.state.options.layout();
  State state = pipeline.state;
  state.options.step = choice.options;
  state.digits.insert(state.digits.end(), choice.digits.begin(), choice.digits.end());

  // Whether a choice of offloading keeps little enough without copying for too long.
  const auto promises = [&](std::size_t n) {
    savers.apply(state.options, savers.choices[n].offload);
    if (bench_.refused(bench_.order.late_rules(), state.options, 1.0)) return false;
    if (too_much(pipeline, memory, &step, need(pipeline, item.savers, n))) return false;
    if (savers.partial || savers.choices[n].offload.empty()) return true;
    const double bound = rank_bound(pipeline, *step.group, item.savers, &priced.kept[n]);
    return (bound + choice.end) * kRounding < best_.limit(layout);
  };
  std::size_t promising = 0;
  while (promising < savers.choices.size() && !promises(promising)) ++promising;
  if (promising == savers.choices.size()) return;
  savers.apply(state.options, {});
  const auto with_savers = [&] {
    return composed(state.options, split, costs_with(*pipeline.costs, item.savers, state.options));
  };
  const Composition on_device = with_savers();
  if (bound_of(on_device) * kRounding >= best_.limit(layout)) return;
  bool fitted = false;
  for (std::size_t n = promising; n < savers.choices.size(); ++n) {
    const Savers::Choice& offload = savers.choices[n];
    if (std::any_of(step.fitting.begin(), step.fitting.end(), [&](const auto& less) { return savers.contains(*less); }))
      continue;
    if (!promises(n)) continue;
    if (!savers.partial && !offload.offload.empty() &&
        offload_bound(bench_, pipeline, item.savers, priced.kept[n], on_device) * kRounding >= best_.limit(layout)) {
      spend(kOfAComposition);  // The price of a choice of offloading, whether a bound cuts it or its composition.
      continue;
    }
    savers.apply(state.options, offload.offload);
    const Composition c = offload.offload.empty() ? on_device : with_savers();
    if (bound_of(c) * kRounding >= best_.limit(layout)) continue;
    if (!bench_.fits(state.options, c)) {
      bench_.statistics.rejected[rules().size()] += 1.0;
      continue;
    }
    State found = state;
    found.digits.insert(found.digits.end(), offload.digits.begin(), offload.digits.end());
    if (!offer(found, split, c)) {
      bench_.statistics.rejected[rules().size() + 1] += 1.0;
      continue;
    }
    ++bench_.statistics.fitting;
    fitted = true;
    if (offload.offload.empty()) step.fitting.push_back(&savers);
    // Offloading that hides entirely: no other takes less time.
    const auto same = [](const StageTime& a, const StageTime& b) {
      return a.forward == b.forward && a.backward == b.backward && a.merged_pair_saving == b.merged_pair_saving;
    };
    if (std::equal(c.times.stages.begin(), c.times.stages.end(), on_device.times.stages.begin(), same)) break;
  }
  step.done = fitted && (effort_.dive || (savers.plain() && !step.fitting.empty()));
}

bool LayersSearch::offer(const State& state, const Split& split, const Composition& c) {
  ++bench_.statistics.simulated;
  spend(price_of_schedule(c.times.shape));
  Found found{.time = step_time(c, bench_.makespan(c.times)),
              .digits = bench_.order.in_space(state.digits),
              .options = state.options};
  if (found.time.to<double>() >= best_.limit(state.options.layout())) return true;
  spend(kOfRouting);
  if (!bench_.fits_at_p99(state.options, split.layout)) return false;
  if (!split.even && !bench_.problem.model.hybrid) found.options.pipeline.layout = to_layout_string(split.layout);
  best_.offer(found);
  answer_.found.push_back(std::move(found));
  return true;
}

}  // namespace foldwise::planner
