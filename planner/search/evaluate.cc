#include "planner/search/evaluate.h"

#include <algorithm>
#include <utility>

#include "costmodel/step/stage_pieces.h"
#include "planner/rules/rules.h"

namespace foldwise::planner {

using namespace costmodel;  // NOLINT(google-build-using-namespace): this file is about the cost model's types.

/// Of all layers on one rank for a micro-batch. Without `experts`: as far as the choices of attention tell.
Load Evaluator::layers_load(const TrainingOptions& o, bool experts) {
  const BuildContext build = bench_.context(o).layer();
  const Dimension* const overlap = bench_.problem.space.find("overlaps.ep_a2a");
  const bool overlaps =
      overlap == nullptr ? o.pipeline.overlaps.ep_a2a : std::ranges::count(overlap->values, nlohmann::json(true)) > 0;
  const auto layer = [&](const LayerSpec& spec) {
    const BlockCost& mixer = bench_.cache.get(build, Piece::kMixer, spec);
    Load load = load_of(mixer, {});
    if (spec.mlp == MlpKind::kMoe && !experts) {
      // Whatever the experts' layout, a rank has its share of their products, at best at the peak rate.
      const LayerOptions all = [&] {
        LayerOptions one = o.layer;
        one.ep = one.etp = 1;
        one.dispatcher = Dispatcher::kAllToAll;
        one.overlaps.shared_expert = false;
        return one;
      }();
      const Flops flops = bench_.cache.get(build.with(all), Piece::kMlp, spec).flops;
      const FlopRate peak = bench_.hardware.mfu_peak(o.layer.precision);
      load.forward.work += flops / peak;
      return load;
    }
    const BlockCost& mlp = bench_.cache.get(build, Piece::kMlp, spec);
    load += load_of(mlp, {});
    if (overlaps && spec.mlp == MlpKind::kMoe) {
      NodeTimes nodes = mixer.nodes;
      nodes += mlp.nodes;
      for (const bool delay : {false, true})
        load.saving = std::max(load.saving, ep_overlap_saving(nodes, delay, bench_.hardware));
    }
    load.issue = {};  // Graphs may take it away.
    return load;
  };
  Load sum;
  for (std::size_t k = 0; k < bench_.kinds.kinds.size(); ++k)
    sum += layer(bench_.kinds.kinds[k]).times(static_cast<double>(bench_.kinds.prefix[k].back()));
  const auto depths = static_cast<double>(bench_.problem.model.mtp_num_layers);
  for (std::size_t i = 0; depths > 0 && i < bench_.problem.model.mtp_layers.size(); ++i)
    sum += layer(bench_.problem.model.mtp_layers[i]).times(depths);
  sum += load_of(bench_.cache.get(build, Piece::kEmbedding, {}), {});
  sum += load_of(bench_.cache.get(build, Piece::kHead, {}), {});
  if (depths > 0) sum += load_of(bench_.cache.get(build, Piece::kMtp, {}), {}).times(depths);
  sum.issue = {};
  return sum;
}

void Evaluator::attention_nodes(const Push& push) {
  const State root = bench_.state_of({});
  if (bench_.refused(bench_.order.rules_of_none(), root.options, bench_.order.candidates_from(0))) return;
  const std::size_t end = bench_.order.end_of(Level::kAttention);
  bench_.decide(root, 0, end, [&](const State& state) {
    if (bench_.problem.num_gpus % (state.options.layer.tp * state.options.layer.cp) != 0) return;  // No PP mends that.
    const Load load = layers_load(state.options, false);
    push((bench_.micro_batches_per_stage(state.options) * at_least(load) + bench_.hardware.host.step).to<double>() *
             kRounding,
         state.digits);
  });
}

double Evaluator::bound_of(const State& state) {
  const Load load = layers_load(state.options, true);
  return (bench_.micro_batches_per_stage(state.options) * at_least(load) + bench_.hardware.host.step).to<double>() *
         kRounding;
}

void Evaluator::expand(const Digits& digits, double limit, const Push& push) {
  bench_.decide(bench_.state_of(digits), digits.size(), bench_.order.end_of(Level::kExperts), [&](const State& state) {
    const double bound = bound_of(state);
    if (bound < limit) push(bound, state.digits);
  });
}

std::optional<std::pair<double, Digits>> Evaluator::node(const Digits& digits) {
  State state = bench_.state_of({});
  for (std::size_t i = 0; i < bench_.order.end_of(Level::kExperts); ++i) {
    // What does not apply any more is left alone.
    if (!bench_.decide_one(state, digits[i]) && !bench_.decide_one(state, 0)) return std::nullopt;
    if (bench_.refused(bench_.order.rules_at(i), state.options, 0.0)) return std::nullopt;
  }
  if (bench_.problem.num_gpus % (state.options.layer.tp * state.options.layer.cp) != 0) return std::nullopt;
  return std::pair{bound_of(state), std::move(state.digits)};
}

Answer Evaluator::evaluate(const Digits& digits, Bytes capacity, const Best& best, Effort effort) {
  bench_.hardware.hbm_capacity = capacity;
  bench_.forget();
  savers_.forget();
  steps_.forget();
  Best mine = best;
  LayersSearch search(bench_, savers_, steps_, mine, effort);
  std::vector<State> choices;
  bench_.decide(bench_.state_of(digits), bench_.order.begin_of(Level::kGraphs), bench_.order.end_of(Level::kGraphs),
                [&](const State& choice) { choices.push_back(choice); });
  // A graph of the whole iteration leaves the host nothing to issue and keeps no tensors of its own, and no rule of a
  // later level refuses it where it allows another. So where it is allowed nothing else is faster, or needs less
  // memory.
  const auto whole = std::find_if(choices.begin(), choices.end(), [](const State& choice) {
    return choice.options.layer.cuda_graph.impl == GraphImpl::kFullIteration;
  });
  if (whole != choices.end())
    search.run(*whole);
  else
    for (const State& choice : choices) search.run(choice);
  return std::move(search).answer();
}

}  // namespace foldwise::planner
