#include "planner/search/evaluate.h"

#include <algorithm>
#include <queue>
#include <string>
#include <utility>

#include "costmodel/step/stage_pieces.h"
#include "planner/rules/rules.h"

namespace foldwise::planner {

using namespace costmodel;  // NOLINT(google-build-using-namespace): this file is about the cost model's types.

Evaluator::Layers Evaluator::layers(const TrainingOptions& o) {
  const BuildContext build = bench_.context(o).layer();
  Layers layers;
  const auto add = [&](const LayerSpec& spec, double count) {
    const BlockCost& mixer = bench_.cache().get(build, Piece::kMixer, spec);
    layers.others += load_of(mixer, {}).times(count);
    if (spec.mlp == MlpKind::kMoe)
      layers.experts.push_back({&spec, &mixer.nodes, count});
    else
      layers.others += load_of(bench_.cache().get(build, Piece::kMlp, spec), {}).times(count);
  };
  for (std::size_t k = 0; k < bench_.kinds.kinds.size(); ++k)
    add(bench_.kinds.kinds[k], static_cast<double>(bench_.kinds.prefix[k].back()));
  const auto depths = static_cast<double>(bench_.problem.model.mtp_num_layers);
  for (std::size_t i = 0; depths > 0 && i < bench_.problem.model.mtp_layers.size(); ++i)
    add(bench_.problem.model.mtp_layers[i], depths);
  layers.others += load_of(bench_.cache().get(build, Piece::kEmbedding, {}), {});
  layers.others += load_of(bench_.cache().get(build, Piece::kHead, {}), {});
  if (depths > 0) layers.others += load_of(bench_.cache().get(build, Piece::kMtp, {}), {}).times(depths);
  return layers;
}

double Evaluator::seconds(const TrainingOptions& o, Load load) const {
  load.issue = {};  // CUDA graphs may remove it.
  return (bench_.micro_batches_per_stage(o) * at_least(load) + bench_.hardware.host.step).to<double>() * kRounding;
}

/// For every layout of the experts, a rank has its share of their products, at best at the peak rate.
double Evaluator::bound_of_root(const Assignment& assignment) {
  const TrainingOptions o = bench_.state_of(assignment).options;
  const BuildContext build = bench_.context(o).layer();
  LayerOptions one = o.layer;
  one.ep = one.etp = 1;
  one.dispatcher = Dispatcher::kAllToAll;
  one.overlaps.shared_expert = false;
  const Layers all = layers(o);
  Load sum = all.others;
  for (const Layers::Experts& experts : all.experts) {
    const Flops flops = bench_.cache().get(build.with(one), Piece::kMlp, *experts.layer).flops;
    sum.forward.work += experts.count * (flops / bench_.hardware.mfu_peak(o.layer.precision));
  }
  return seconds(o, sum);
}

/// Experts of one size on the same number of ranks have the same products with every dispatcher, and take no less time.
double Evaluator::bound_of_sizes(const Layers& all, const TrainingOptions& o) {
  const BuildContext build = bench_.context(o).layer();
  Load sum = all.others;
  for (const Layers::Experts& experts : all.experts) {
    const BlockCost& mlp = bench_.cache().get(build, Piece::kMlp, *experts.layer);
    const auto products = [](const DirectionCost& d) {
      return DirectionLoad{
          .work = d.products, .compute = d.products, .copy = {}, .products = d.products, .unclocked = d.unclocked};
    };
    sum += Load{.forward = products(mlp.forward), .backward = products(mlp.backward), .saving = {}, .issue = {}}.times(
        experts.count);
  }
  return seconds(o, sum);
}

double Evaluator::bound_of(const Layers& all, const TrainingOptions& o) {
  const BuildContext build = bench_.context(o).layer();
  const Dimension* const overlap = bench_.problem.space.find("overlaps.ep_a2a");
  bool overlaps =
      !all.experts.empty() &&
      (overlap == nullptr ? o.pipeline.overlaps.ep_a2a : std::ranges::count(overlap->values, nlohmann::json(true)) > 0);
  if (overlaps) {
    TrainingOptions with = o;
    with.pipeline.overlaps.ep_a2a = true;
    overlaps = !bench_.refused(bench_.order.overlap_rules(), with, 0.0);
  }
  Load sum = all.others;
  for (const Layers::Experts& experts : all.experts) {
    const BlockCost& mlp = bench_.cache().get(build, Piece::kMlp, *experts.layer);
    Load load = load_of(mlp, {});
    if (overlaps) {
      NodeTimes nodes = *experts.mixer;
      nodes += mlp.nodes;
      for (const bool delay : {false, true})
        load.saving = std::max(load.saving, ep_overlap_saving(nodes, delay, bench_.hardware));
    }
    sum += load.times(experts.count);
  }
  return seconds(o, sum);
}

bool Evaluator::beaten_by_other_kernel(const Layers& all, const TrainingOptions& o) {
  static const auto rule =
      static_cast<std::size_t>(std::ranges::find(rules(), "foldwise.cutlass_groups", &Rule::id) - rules().begin());
  if (bench_.problem.evidence != Evidence::kAny) return false;  // Rules about measured choices tell them apart later.
  const Experts mine = o.layer.software.experts;
  const Dimension* const kernels = bench_.problem.space.find("software.experts");
  if (all.experts.empty() || (mine != Experts::kGrouped && mine != Experts::kCutlass) || kernels == nullptr ||
      std::ranges::count(kernels->values, nlohmann::json("grouped")) == 0 ||
      std::ranges::count(kernels->values, nlohmann::json("cutlass")) == 0)
    return false;
  TrainingOptions other = o;
  other.layer.software.experts = mine == Experts::kGrouped ? Experts::kCutlass : Experts::kGrouped;
  if (bench_.breaks(rule, other)) return false;
  bool equal = true;
  for (const Layers::Experts& experts : all.experts) {
    const BuildContext build = bench_.context(o).layer();
    const BlockCost& a = bench_.cache().get(build, Piece::kMlp, *experts.layer);
    const BlockCost& b = bench_.cache().get(build.with(other.layer), Piece::kMlp, *experts.layer);
    for (const auto& [x, y] : {std::pair{&a.forward, &b.forward}, std::pair{&a.backward, &b.backward}}) {
      if (y->compute > x->compute || y->products > x->products || y->clock.issue() > x->clock.issue()) return false;
      equal = equal && y->compute == x->compute && y->clock.issue() == x->clock.issue();
    }
  }
  return !equal || mine == Experts::kCutlass;
}

/// Steps read no more of a pipeline than what is varied here, so every candidate below has one of these lists. The
/// lists assume the mean rank, and the busiest rank needs no less.
bool Evaluator::may_fit(const State& sizes) {
  const LayerOptions& l = sizes.options.layer;
  const auto [known, fresh] = may_fit_.try_emplace(bench_.with_numerics({l.tp, l.cp, l.ep, l.etp}, sizes), false);
  if (fresh) known->second = some_step_may_fit(sizes);
  return known->second;
}

bool Evaluator::some_step_may_fit(const State& sizes) {
  State state = sizes;
  state.assignment.resize(bench_.order.begin_of(Level::kStep), 0);  // Values that steps do not read.
  TrainingOptions& o = state.options;
  const Dimension* const pp = bench_.problem.space.find("pp");
  std::vector<std::int64_t> sizes_of_pipeline = {o.pipeline.pp};
  if (pp != nullptr)
    sizes_of_pipeline.assign(pp->values.rbegin(), pp->values.rend());  // Long pipelines need least memory.
  for (const std::int64_t size : sizes_of_pipeline) {
    o.pipeline.pp = size;
    settle_data_parallel(bench_.problem, o);
    const std::int64_t experts = o.layer.ep * o.layer.etp * o.pipeline.pp;
    if (o.layout().world() != bench_.problem.num_gpus || bench_.problem.num_gpus % experts != 0) continue;
    for (const std::int64_t vpp : {1, 2})
      for (const bool overlap : {false, true}) {
        o.pipeline.vpp = vpp;
        o.pipeline.overlaps.ep_a2a = overlap;
        if (steps_.may_fit(bench_, state)) return true;
      }
  }
  return false;
}

bool Evaluator::allowed(const State& sizes) {
  const bool counts = std::exchange(bench_.counts, false);
  const bool none =
      bench_.decide(sizes, sizes.assignment.size(), bench_.order.end_of(Level::kPipeline), [&](const State& state) {
        const PipelineOptions& pipeline = state.options.pipeline;
        return pipeline.pp * pipeline.vpp > bench_.problem.model.num_layers() + 2 ||
               !steps_.of(bench_, state).allowed || memory_choices_.of(bench_, state).empty();
      });
  bench_.counts = counts;
  return !none;
}

bool Evaluator::valid() {
  return bench_.statistics.valid || std::ranges::any_of(unfit_, [&](const Assignment& assignment) {
           return allowed(bench_.state_of(assignment));
         });
}

std::vector<Assignment> Evaluator::roots() {
  std::vector<Assignment> list;
  const State root = bench_.state_of({});
  if (bench_.refused(bench_.order.rules_of_none(), root.options, bench_.order.candidates_from(0))) return list;
  const std::size_t end = bench_.order.end_of(Level::kAttention);
  bench_.decide(root, 0, end, [&](const State& state) {
    if (bench_.problem.num_gpus % (state.options.layer.tp * state.options.layer.cp) != 0)
      return;  // No PP can make these sizes divide the GPUs.
    list.push_back(state.assignment);
  });
  return list;
}

std::int64_t Evaluator::branch(const Assignment& assignment, double limit, std::size_t most, const Push& push) {
  std::int64_t spent = 0;
  const State attention = bench_.state_of(assignment);
  const Layers all = layers(attention.options);
  const std::size_t begin = assignment.size(), end = bench_.order.end_of(Level::kExperts);
  std::size_t sizes = begin;  // Positions before this one decide the number of ranks.
  for (std::size_t i = begin; i < end; ++i)
    if (bench_.order.at(i).field->parallel) sizes = i + 1;
  std::vector<std::pair<double, State>> open;
  bench_.decide(attention, begin, sizes, [&](const State& state) {
    spent += price::kSizes;
    if (!may_fit(state)) {
      if (!bench_.statistics.valid) unfit_.push_back(state.assignment);
    } else if (const double bound = bound_of_sizes(all, state.options); bound < limit) {
      open.emplace_back(bound, state);
    }
  });
  std::ranges::stable_sort(open, {}, [](const auto& item) { return item.first; });
  std::priority_queue<double> least;  // The `most` least bounds.
  for (const auto& [from, state] : open) {
    if (from >= limit) break;
    bench_.decide(state, sizes, end, [&](const State& choice) {
      const double bound = bound_of(all, choice.options);
      spent += price::kNode;
      if (bound >= limit || beaten_by_other_kernel(all, choice.options)) return;
      push(bound, choice.assignment);
      least.push(bound);
      if (least.size() > most) least.pop();
      if (least.size() == most) limit = std::min(limit, least.top());
    });
  }
  return spent;
}

std::optional<State> Evaluator::decided(const Assignment& assignment) {
  State state = bench_.state_of({});
  for (std::size_t i = 0; i < assignment.size(); ++i) {
    if (!bench_.decide_one(state, assignment[i]) && !bench_.decide_one(state, 0)) return std::nullopt;
    if (bench_.refused(bench_.order.rules_at(i), state.options, 0.0)) return std::nullopt;
  }
  if (bench_.problem.num_gpus % (state.options.layer.tp * state.options.layer.cp) != 0) return std::nullopt;
  return state;
}

std::optional<std::pair<double, Assignment>> Evaluator::node(const Assignment& assignment) {
  std::optional<State> state = decided(assignment);
  if (!state) return std::nullopt;
  return std::pair{bound_of(layers(state->options), state->options), std::move(state->assignment)};
}

Explored Evaluator::faster_than(const Solution& near, const Assignment& assignment) {
  bench_.spent = price::kAssignment;
  Explored explored;
  if (const std::optional<State> state = decided(assignment);
      state && bound_of(layers(state->options), state->options) < near.time.to<double>())
    if (std::optional<Solution> found = planner::faster_than(bench_, near, *state))
      explored.found.push_back(std::move(*found));
  explored.effort = bench_.spent;
  return explored;
}

Explored Evaluator::refined(const Solution& found, std::int64_t most) {
  bench_.spent = 0;
  Explored explored;
  explored.found.push_back(planner::refined(bench_, found, most));
  explored.effort = bench_.spent;
  return explored;
}

namespace {

/// Whether layers may be offloaded whole.
bool offloads_layers(const PlanProblem& problem) {
  return std::ranges::any_of(problem.space.dimensions, [](const Dimension& d) {
    return d.field->key == "offload.num_layers" && std::ranges::any_of(d.values, [](const nlohmann::json& value) {
             return value.is_number() && value.get<double>() > 0.0;
           });
  });
}

}  // namespace

Explored Evaluator::explore(const Assignment& assignment, const Incumbents& incumbents, Budget budget) {
  bench_.forget();
  steps_.forget();
  Incumbents mine = incumbents;
  SubtreeSearch search(bench_, memory_choices_, steps_, mine, budget);
  std::vector<State> choices;
  bench_.decide(bench_.state_of(assignment), bench_.order.begin_of(Level::kGraphs), bench_.order.end_of(Level::kGraphs),
                [&](const State& choice) { choices.push_back(choice); });
  // In a dense model, a graph of the whole iteration leaves the host nothing to issue and keeps no tensors of its own.
  // Later rules refuse it where they allow other graphs only beside layers that are offloaded whole: these exclude all
  // graphs (rc.cpu_off) and a pipeline (rc.cpu_off_pp). So where it is allowed, no other choice of graphs is faster or
  // needs less memory. This does not hold for experts, which need buffers of fixed sizes in it, or if evidence is asked
  // for, because then later rules read the choice.
  const bool beats_others = bench_.problem.evidence == Evidence::kAny && !bench_.problem.model.has_moe();
  const auto with = [&](GraphImpl impl) {
    return std::ranges::find(choices, impl, [](const State& c) { return c.options.layer.cuda_graph.impl; });
  };
  if (const auto whole = with(GraphImpl::kFullIteration); beats_others && whole != choices.end()) {
    search.run(*whole);
    const auto none = with(GraphImpl::kNone);
    if (none != choices.end() && offloads_layers(bench_.problem)) search.run(*none, 1);
  } else {
    for (const State& choice : choices) search.run(choice);
  }
  return std::move(search).explored();
}

}  // namespace foldwise::planner
