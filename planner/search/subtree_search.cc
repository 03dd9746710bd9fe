#include "planner/search/subtree_search.h"

#include <algorithm>
#include <array>
#include <utility>

#include "costmodel/step/data_parallel.h"
#include "costmodel/step/stage_split.h"
#include "planner/rules/rules.h"

namespace foldwise::planner {

using namespace costmodel;  // NOLINT(google-build-using-namespace): this file is about the cost model's types.

namespace {

double bound_of(const Composition& c) { return step_time(c, makespan_lower_bound(c.times)).to<double>(); }

/// A rank's work including what Megatron-FSDP's communication adds.
Load with(const StepGroup& group, Load work) {
  work.forward.work += group.beside_forward;
  work.backward.work += group.beside_backward;
  return work;
}

}  // namespace

void SubtreeSearch::push(Open item, const Layout& layout) {
  if (item.bound * kRounding >= incumbents_.limit(layout)) return;
  item.order = order_++;
  // A dive opens all its pipelines first. Then it goes from the step with the least bound down to memory choices that
  // fit.
  if (budget_.dive)
    item.depth = item.what == What::kMemory ? 2 : item.what == What::kStep || item.what == What::kGroup ? 0 : 1;
  open_.push(item);
}

void SubtreeSearch::run(const State& layers, std::int64_t most_pp) {
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
    if (bench_.order_says_nothing(o.layout())) return;
    const PipelineOptions::Overlaps& overlaps = o.pipeline.overlaps;
    LayerCosts*& costs = by_overlap[(overlaps.ep_a2a ? 1u : 0u) + (overlaps.delay_wgrad ? 2u : 0u)];
    if (costs == nullptr) costs = &costs_.emplace_back(layer_costs(bench_, o));
    const double bound = per_stage_ * costs->least + bench_.hardware.host.step.to<double>();
    push({.bound = bound, .pipeline = static_cast<std::uint32_t>(choices_.size())}, o.layout());
    choices_.push_back({choice, costs});
  });
  spend(price::kItem * static_cast<std::int64_t>(choices_.size()));
  std::map<std::int64_t, int> dived;  // Pipelines dived into, by PP.
  while (!open_.empty()) {
    const Open item = open_.top();
    open_.pop();
    const TrainingOptions& o = (item.what == What::kPipeline ? choices_[item.pipeline].state
                                : item.what == What::kSplit  ? choices_[cuts_[item.pipeline].choice].state
                                                             : pipelines_[item.pipeline].pipeline.state)
                                   .options;
    if (!budget_.dive && item.bound * kRounding >= incumbents_.limit())
      return;  // The remaining items have larger bounds.
    if (item.bound * kRounding >= incumbents_.limit(o.layout())) continue;
    if (item.what == What::kGroup) {  // Not a decision: it only makes bounds exact.
      open_steps(item);
      continue;
    }
    if (budget_.dive && item.what == What::kStep && budget_.steps-- <= 0) return;
    if (budget_.dive && item.what == What::kPipeline && ++dived[o.pipeline.pp] > budget_.pipelines) continue;
    spend(price::kItem);
    if (budget_.most < 0) {
      explored_.left = std::min(explored_.left, item.bound * kRounding);
      return;
    }
    switch (item.what) {
      case What::kPipeline:
        split(item);
        break;
      case What::kSplit:
        open_groups(item);
        break;
      case What::kGroup:  // Handled above.
        break;
      case What::kStep:
        open_memory_choices(item);
        break;
      case What::kMemory:
        look_at(item);
        break;
    }
  }
}

Explored SubtreeSearch::explored() && {
  explored_.effort = most_ - budget_.most;
  return std::move(explored_);
}

// ---- From a pipeline to its steps ----------------------------------------------------------------------------------

/// The splits of a choice. They do not depend on the order of micro-batches.
std::vector<Split>& SubtreeSearch::splits_of(const Choice& choice) {
  const TrainingOptions& o = choice.state.options;
  const auto [entry, fresh] = splits_.try_emplace(
      {choice.costs, o.pipeline.pp, o.pipeline.vpp, o.pipeline.tp_pp_dp, o.pipeline.layout}, std::vector<Split>{});
  if (!fresh) return entry->second;
  const bool given = !o.pipeline.layout.empty() || bench_.problem.space.names_splits();
  const std::vector<StageLayout> layouts =
      given ? std::vector{stage_layout(bench_.problem.model, o)}
            : splits_to_try(bench_.problem.model, bench_.kinds, choice.costs->costs, o.pipeline.pp, o.pipeline.vpp);
  for (const StageLayout& layout : layouts) {
    Split& split = entry->second.emplace_back(split_of(bench_, o, *choice.costs, layout));
    split.least = std::max(split.least, per_stage_ * choice.costs->least);
  }
  return entry->second;
}

void SubtreeSearch::split(const Open& item) {
  const Choice& choice = choices_[item.pipeline];
  const TrainingOptions& o = choice.state.options;
  const StepChoiceList& steps = steps_.of(bench_, choice.state);
  bool& valid = bench_.statistics.valid;
  if (steps.groups.empty() && (valid || !steps.allowed)) return;
  if (memory_choices_.of(bench_, choice.state).empty()) return;  // Rules allow no memory choice.
  valid = valid || steps.allowed;
  if (steps.groups.empty() ||
      (per_stage_ * choice.costs->least + steps.end) * kRounding >= incumbents_.limit(o.layout()))
    return;
  for (Split& split : splits_of(choice)) {
    const double bound = split.least + steps.end;
    if (bound * kRounding >= incumbents_.limit(o.layout())) continue;
    cuts_.push_back({.choice = item.pipeline, .split = &split, .choices = &steps});
    push({.bound = bound, .what = What::kSplit, .pipeline = static_cast<std::uint32_t>(cuts_.size() - 1)}, o.layout());
  }
}

void SubtreeSearch::open_groups(const Open& item) {
  const OpenSplit& cut = cuts_[item.pipeline];
  const Choice& choice = choices_[cut.choice];
  const double limit = incumbents_.limit(choice.state.options.layout());
  const auto too_long = [&](const OpenGroup& group) { return group.least_step() * kRounding >= limit; };
  std::vector<OpenGroup> groups;
  for (const StepGroup& group : cut.choices->groups)
    groups.push_back({.group = &group, .least = least_of(choice.state.options, *cut.split, group)});
  std::erase_if(groups, too_long);
  if (groups.empty()) return;
  OpenPipeline made{.pipeline = {.state = choice.state, .costs = choice.costs, .split = cut.split}};
  spend(price::kComposition);
  compose_plain(bench_, cut.choices->plainest, made.pipeline);
  for (OpenGroup& group : groups) group.least = std::max(group.least, made.pipeline.least);
  std::erase_if(groups, too_long);
  if (groups.empty()) return;
  std::ranges::stable_sort(groups, {}, &OpenGroup::least_step);
  made.groups = std::move(groups);
  OpenPipeline& open = pipelines_.emplace_back(std::move(made));
  Pipeline& pipeline = open.pipeline;
  if (pipeline.costs->memory_choices.empty()) {
    price_memory_choices(bench_, pipeline.state.options, memory_choices_.of(bench_, pipeline.state), *pipeline.costs);
    spend(price::kMemoryChoiceOfKind *
          static_cast<std::int64_t>(bench_.kinds.kinds.size() * pipeline.costs->memory_choices.size()));
  }
  prepare_memory_choices(bench_, cut.choices->plainest, pipeline);
  spend(price::kPipeline);
  open.memories.resize(cut.choices->memories);
  push_group(static_cast<std::uint32_t>(pipelines_.size() - 1), 0, item.bound);
}

/// Pushes one group of a pipeline. The next group is pushed when this one is opened.
void SubtreeSearch::push_group(std::uint32_t pipeline, std::size_t group, double bound) {
  const OpenPipeline& open = pipelines_[pipeline];
  if (group == open.groups.size()) return;
  push({.bound = std::max(bound, open.groups[group].least_step()),
        .what = What::kGroup,
        .pipeline = pipeline,
        .step = static_cast<std::uint16_t>(group)},
       open.pipeline.state.options.layout());
}

void SubtreeSearch::open_steps(const Open& item) {
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

/// Lower bound in seconds of a step without its end, before anything is composed.
double SubtreeSearch::least_of(const TrainingOptions& plain, const Split& split, const StepGroup& group) {
  if (group.every_micro_batch <= 0.0) return split.least;
  const double every = static_cast<double>(plain.num_microbatches()) * group.every_micro_batch,
               beside = schedule_bound(plain, split.stages, split.busiest, with(group, split.ranks[split.busiest]));
  return std::max({split.least, every, beside});
}

SubtreeSearch::Memory SubtreeSearch::memory_of(const Pipeline& pipeline, const StepOptions& options) const {
  Memory memory;
  TrainingOptions o = pipeline.state.options;
  o.step = options;
  const Bytes host = bench_.hardware.host.memory_per_gpu;  // Zero: unknown.
  const Bytes capacity = bench_.hardware.hbm_capacity - reserve_of(bench_.problem, o);
  for (std::size_t i = 0; i < pipeline.critical.size(); ++i) {
    const CriticalRank& w = pipeline.critical[i];
    const StaticBytes fixed = static_bytes(bench_.context(o), w.parameters);
    const Bytes always = w.overhead + fixed.parameters + fixed.gradients + fixed.optimizer;
    memory.left[i] = (capacity - always - w.buffers - fixed.holes).to<double>();
    memory.host_left[i] = host > Bytes{} ? (host - fixed.host).to<double>() : std::numeric_limits<double>::infinity();
    // No activations are small enough.
    if ((always + fixed.step_extra) * kRounding > capacity || memory.left[i] < 0.0 || memory.host_left[i] < 0.0)
      memory.fits = false;
  }
  return memory;
}

/// Whether the choice needs more than a critical rank has left. If `step` is given, it must be composed.
bool SubtreeSearch::too_much(const Pipeline& pipeline, const Memory& memory, const OpenStep* step, const Need& need) {
  for (std::size_t i = 0; i < pipeline.critical.size(); ++i)
    if (need.bytes[i] > memory.left[i] || need.host[i] > memory.host_left[i] ||
        (step != nullptr && need.rests[i] > step->optimizer_left[i]))
      return true;
  return false;
}

Need SubtreeSearch::need(Pipeline& pipeline, std::size_t i, std::size_t choice) {
  LayerCosts::Priced& priced = pipeline.costs->memory_choices[i];
  const MemoryChoice& memory_choice = *priced.choice;
  priced.kept.resize(memory_choice.choices.size());
  Kept& kept = priced.kept[choice];
  if (kept.layers.empty())
    kept = kept_with(bench_, pipeline.state.options, memory_choice, memory_choice.choices[choice].offload,
                     pipeline.costs->pieces);
  return need_of(bench_, *pipeline.costs, pipeline.critical, memory_choice, kept);
}

/// Lower bound in seconds of the whole model for a micro-batch, over the choices of offloading whose memory may fit.
/// Infinity if there is none.
double SubtreeSearch::promise(Pipeline& pipeline, const Memory& memory, const OpenStep* step, std::size_t i) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const LayerCosts::Priced& priced = pipeline.costs->memory_choices[i];
  const MemoryChoice& memory_choice = *priced.choice;
  Pipeline::Needs& needs = pipeline.needs[i];
  // The next smaller number already covers a whole chunk, so this choice changes nothing.
  if (memory_choice.fewer_layers >= pipeline.most_layers) return kNone;
  if (!needs.least) needs.least = need_of(bench_, *pipeline.costs, pipeline.critical, memory_choice, priced.least);
  if (too_much(pipeline, memory, step, *needs.least)) return kNone;
  double least = kNone;
  for (const Pipeline::Needs::Front& choice : needs.front)
    if (!too_much(pipeline, memory, step, choice.need)) {
      least = choice.seconds;
      break;
    }
  while (least > priced.seconds && needs.in_front < memory_choice.choices.size()) {
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

/// Lower bound in seconds of the whole model for a micro-batch with one choice of offloading. The choice must be
/// priced.
double SubtreeSearch::choice_seconds(LayerCosts& costs, std::size_t i, std::size_t choice) const {
  LayerCosts::Priced& priced = costs.memory_choices[i];
  priced.choice_seconds.resize(priced.choice->choices.size(), -1.0);
  double& seconds = priced.choice_seconds[choice];
  if (seconds >= 0.0) return seconds;
  seconds = priced.seconds;
  if (priced.choice->partial || priced.choice->choices[choice].offload.empty()) return seconds;
  Load sum = costs.others;
  for (std::size_t k = 0; k < bench_.kinds.kinds.size(); ++k) {
    const auto count = static_cast<double>(bench_.kinds.prefix[k].back());
    sum += priced.layer[k].times(count);
    sum += priced.kept[choice].layers[k].copies(count);
  }
  return seconds = std::max(seconds, at_least(sum).to<double>());
}

/// promise() minimized over all memory choices, for steps that are not composed yet.
double SubtreeSearch::least_promise(Pipeline& pipeline, const Memory& memory) {
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0;
       i < pipeline.costs->memory_choices.size() && pipeline.costs->memory_choices[i].seconds < least; ++i)
    least = std::min(least, promise(pipeline, memory, nullptr, i));
  return least;
}

// ---- From a step to candidates -------------------------------------------------------------------------------------

/// Composes a step, which gives its data-parallel collectives. Memory choices only add work to it. False if it does not
/// fit.
bool SubtreeSearch::compose_step(const Pipeline& pipeline, OpenStep& step) {
  step.composed = true;
  TrainingOptions o = pipeline.state.options;
  o.step = step.choice->options;
  const Composition c = compose(bench_.context(o), bench_.kinds, pipeline.costs->costs, pipeline.split->layout);
  ++bench_.statistics.composed;
  spend(price::kComposition);
  for (std::size_t i = 0; i < pipeline.critical.size(); ++i) {
    const CriticalRank& w = pipeline.critical[i];
    const StageMemory memory =
        rank_memory(bench_.context(o), c, static_cast<std::int64_t>(w.rank), bench_.peaks(c.times.shape)[w.rank]);
    const Bytes left =
        bench_.hardware.hbm_capacity - kRounding * (w.overhead + memory.allocated_in_optimizer - memory.rests);
    step.optimizer_left[i] = left.to<double>();
    if (left < Bytes{}) return false;
  }
  step.least = std::max(step.least, bound_of(c));
  return true;
}

void SubtreeSearch::open_memory_choices(const Open& item) {
  OpenPipeline& open = pipelines_[item.pipeline];
  Pipeline& pipeline = open.pipeline;
  OpenStep& step = open.steps[item.step];
  if (budget_.dive && ++open.dived > bench_.problem.parameters.dive_memory_steps) return;
  const StepChoice& choice = *step.choice;
  const Layout layout = pipeline.state.options.layout();
  if (!step.composed) {
    if (!compose_step(pipeline, step)) return;
    if (!budget_.dive && step.least > item.bound) {
      Open again = item;
      again.bound = step.least;
      return push(again, layout);
    }
  }
  const double limit = incumbents_.limit(layout);
  for (std::size_t i = 0; i < pipeline.costs->memory_choices.size(); ++i) {
    double bound = std::max(item.bound, per_stage_ * pipeline.costs->memory_choices[i].seconds + choice.end);
    if (bound * kRounding >= limit) return;  // The following choices take longer.
    bound = std::max(bound, per_stage_ * promise(pipeline, *open.memories[step.group->memory], &step, i) + choice.end);
    if (bound * kRounding >= limit) continue;
    const double schedule =
        std::max(memory_choice_bound(bench_, pipeline, i), rank_bound(pipeline, *step.group, i, nullptr));
    push({.bound = std::max(bound, schedule + choice.end),
          .what = What::kMemory,
          .pipeline = item.pipeline,
          .step = item.step,
          .memory_choice = static_cast<std::uint16_t>(i)},
         layout);
  }
}

/// Lower bound of the schedule in seconds from the work of the busiest rank, with a memory choice and, if given, the
/// copies of offloading.
double SubtreeSearch::rank_bound(const Pipeline& pipeline, const StepGroup& group, std::size_t memory_choice,
                                 const Kept* offloaded) const {
  const LayerCosts::Priced& priced = pipeline.costs->memory_choices[memory_choice];
  const Split& split = *pipeline.split;
  Load work = with(group, split.ranks[split.busiest]);
  for (std::size_t k = 0; k < bench_.kinds.kinds.size() && !priced.choice->partial; ++k) {
    const double count = pipeline.busiest_layers[k];
    work += priced.layer[k].times(count);
    work += pipeline.costs->layer[k].times(-count);
    if (offloaded != nullptr) work += offloaded->layers[k].copies(count);
  }
  return schedule_bound(pipeline.state.options, split.stages, split.busiest, work);
}

Composition SubtreeSearch::composed(const TrainingOptions& options, const Split& split, const ModelCosts& costs) {
  ++bench_.statistics.composed;
  spend(price::kComposition);
  return compose(bench_.context(options), bench_.kinds, costs, split.layout);
}

const ModelCosts& SubtreeSearch::costs_with(LayerCosts& costs, std::size_t memory_choice,
                                            const TrainingOptions& options) {
  const auto [entry, fresh] = costs.memory_choices[memory_choice].costs.try_emplace(
      {options.layer.offload_modules.bits, options.step.optimizer.low_precision_param_gather});
  if (fresh) entry->second = model_costs(bench_.context(options), bench_.kinds, &bench_.cache());
  return entry->second;
}

/// Evaluates a choice of recomputation with each of its choices of offloading.
void SubtreeSearch::look_at(const Open& item) {
  OpenPipeline& open = pipelines_[item.pipeline];
  Pipeline& pipeline = open.pipeline;
  OpenStep& step = open.steps[item.step];
  if (step.done) return;
  const Memory& memory = *open.memories[step.group->memory];
  const StepChoice& choice = *step.choice;
  const LayerCosts::Priced& priced = pipeline.costs->memory_choices[item.memory_choice];
  const MemoryChoice& memory_choice = *priced.choice;
  const Split& split = *pipeline.split;
  const Layout layout = pipeline.state.options.layout();
  State state = pipeline.state;
  state.options.step = choice.options;
  state.assignment.insert(state.assignment.end(), choice.assignment.begin(), choice.assignment.end());

  // Whether a choice of offloading keeps little enough and does not copy for too long.
  const auto promises = [&](std::size_t n) {
    memory_choice.apply(state.options, memory_choice.choices[n].offload);
    if (bench_.refused(bench_.order.late_rules(), state.options, 1.0)) return false;
    if (too_much(pipeline, memory, &step, need(pipeline, item.memory_choice, n))) return false;
    if (memory_choice.partial || memory_choice.choices[n].offload.empty()) return true;
    const double bound = rank_bound(pipeline, *step.group, item.memory_choice, &priced.kept[n]);
    return (bound + choice.end) * kRounding < incumbents_.limit(layout);
  };
  std::size_t promising = 0;
  while (promising < memory_choice.choices.size() && !promises(promising)) ++promising;
  if (promising == memory_choice.choices.size()) return;
  memory_choice.apply(state.options, {});
  const auto with_choice = [&] {
    return composed(state.options, split, costs_with(*pipeline.costs, item.memory_choice, state.options));
  };
  const Composition on_device = with_choice();
  if (bound_of(on_device) * kRounding >= incumbents_.limit(layout)) return;
  bool fitted = false;
  for (std::size_t n = promising; n < memory_choice.choices.size(); ++n) {
    const MemoryChoice::Choice& offload = memory_choice.choices[n];
    if (std::any_of(step.fitting.begin(), step.fitting.end(),
                    [&](const auto& less) { return memory_choice.contains(*less); }))
      continue;
    if (!promises(n)) continue;
    if (!memory_choice.partial && !offload.offload.empty() &&
        offload_bound(bench_, pipeline, item.memory_choice, priced.kept[n], on_device) * kRounding >=
            incumbents_.limit(layout)) {
      spend(price::kComposition);  // A choice of offloading costs this whether a bound cuts it or it is composed.
      continue;
    }
    memory_choice.apply(state.options, offload.offload);
    const Composition c = offload.offload.empty() ? on_device : with_choice();
    if (bound_of(c) * kRounding >= incumbents_.limit(layout)) continue;
    if (!bench_.fits(state.options, c)) {
      bench_.statistics.rejected[rules().size()] += 1.0;
      continue;
    }
    State found = state;
    found.assignment.insert(found.assignment.end(), offload.assignment.begin(), offload.assignment.end());
    if (!offer(found, split, c)) {
      bench_.statistics.rejected[rules().size() + 1] += 1.0;
      continue;
    }
    ++bench_.statistics.fitting;
    fitted = true;
    if (offload.offload.empty()) step.fitting.push_back(&memory_choice);
    // Its copies are hidden entirely, so no other choice takes less time.
    const auto same = [](const StageTime& a, const StageTime& b) {
      return a.forward == b.forward && a.backward == b.backward && a.merged_pair_saving == b.merged_pair_saving;
    };
    if (std::equal(c.times.stages.begin(), c.times.stages.end(), on_device.times.stages.begin(), same)) break;
  }
  step.done = fitted && (budget_.dive || (memory_choice.plain() && !step.fitting.empty()));
}

bool SubtreeSearch::offer(const State& state, const Split& split, const Composition& c) {
  ++bench_.statistics.simulated;
  spend(price_of_schedule(c.times.shape));
  Solution found{.time = step_time(c, bench_.makespan(c.times)),
                 .assignment = bench_.order.in_space(state.assignment),
                 .options = state.options};
  if (found.time.to<double>() >= incumbents_.limit(state.options.layout())) return true;
  spend(price::kRouting);
  if (!bench_.fits_at_p99(state.options, split.layout)) return false;
  if (!split.even && !bench_.problem.model.hybrid) found.options.pipeline.layout = to_layout_string(split.layout);
  incumbents_.offer(found);
  explored_.found.push_back(std::move(found));
  return true;
}

}  // namespace foldwise::planner
