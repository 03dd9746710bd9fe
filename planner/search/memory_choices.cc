#include "planner/search/memory_choices.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

namespace foldwise::planner {

using namespace costmodel;  // NOLINT(google-build-using-namespace): this file is about the cost model's types.

void MemoryChoiceLists::list_all(Workbench& bench, const State& state) {
  const std::vector<DecisionOrder::MemoryRule>& rules = bench.order.memory_rules();
  refused_.resize(rules.size());
  std::set<std::size_t> reads;
  for (const DecisionOrder::MemoryRule& rule : rules) reads.insert(rule.reads.begin(), rule.reads.end());
  reads_.assign(reads.begin(), reads.end());
  const std::size_t from = bench.order.begin_of(Level::kMemory);
  State start = state;
  start.assignment.resize(from, 0);
  const bool counts =
      std::exchange(bench.counts, false);  // Not counted: lists are remembered, and which thread makes them varies.
  bench.decide(start, from, bench.order.end_of(Level::kMemory), [&](const State& choice) {
    const TrainingOptions& o = choice.options;
    all_.push_back(
        {{.recompute = o.layer.recompute,
          .recompute_layers = o.pipeline.recompute,
          .cpu_offloading_num_layers = o.pipeline.cpu_offloading_num_layers},
         {.offload = o.layer.offload_modules,
          .assignment = {choice.assignment.begin() + static_cast<std::ptrdiff_t>(from), choice.assignment.end()}}});
  });
  bench.counts = counts;
}

const MemoryChoiceLists::Which& MemoryChoiceLists::refused(std::size_t rule, Workbench& bench, const State& state) {
  const DecisionOrder::MemoryRule& about = bench.order.memory_rules()[rule];
  Assignment key;
  for (const std::size_t i : about.reads) key.push_back(state.assignment[i]);
  const auto [entry, fresh] = refused_[rule].try_emplace(std::move(key), all_.size());
  if (!fresh) return entry->second;
  TrainingOptions o = state.options;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    all_[i].first.apply(o, all_[i].second.offload);
    entry->second[i] = bench.breaks(about.rule, o);
  }
  return entry->second;
}

std::vector<MemoryChoice> MemoryChoiceLists::list_without(const Which& refused) const {
  constexpr std::int64_t kMany = std::int64_t{1} << 30;
  std::vector<MemoryChoice> list;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (refused[i]) continue;
    const RecomputeChoice& recompute = all_[i].first;
    auto same = std::ranges::find_if(list, [&](const RecomputeChoice& other) { return other == recompute; });
    if (same == list.end()) {
      MemoryChoice memory_choice;
      static_cast<RecomputeChoice&>(memory_choice) = recompute;
      memory_choice.apply(memory_choice.covering, {});
      const bool full = recompute.recompute.granularity == RecomputeGranularity::kFull;
      if (full && recompute.recompute_layers.method == RecomputeMethod::kUniform)
        memory_choice.group = static_cast<double>(recompute.recompute_layers.num_layers);
      memory_choice.partial = covered_layers(memory_choice.covering, kMany) < kMany;
      same = list.insert(same, std::move(memory_choice));
    }
    same->choices.push_back(all_[i].second);
  }
  for (MemoryChoice& memory_choice : list) {
    std::stable_sort(memory_choice.choices.begin(), memory_choice.choices.end(), [](const auto& a, const auto& b) {
      return std::popcount(a.offload.bits) < std::popcount(b.offload.bits);
    });
    for (const MemoryChoice& other : list)
      if (memory_choice.recompute.granularity == RecomputeGranularity::kFull &&
          other.recompute == memory_choice.recompute &&
          other.recompute_layers.method == memory_choice.recompute_layers.method &&
          other.recompute_layers.num_layers < memory_choice.recompute_layers.num_layers)
        memory_choice.fewer_layers = std::max(memory_choice.fewer_layers, other.recompute_layers.num_layers);
    for (std::size_t i = 0; i < memory_choice.choices.size(); ++i) {
      const BitSet<OffloadModule> own = memory_choice.choices[i].offload;
      if (std::none_of(memory_choice.choices.begin() + static_cast<std::ptrdiff_t>(i) + 1, memory_choice.choices.end(),
                       [&](const auto& other) { return (other.offload & own) == own; }))
        memory_choice.largest.push_back(i);
    }
  }
  return list;
}

const std::vector<MemoryChoice>& MemoryChoiceLists::of(Workbench& bench, const State& state) {
  if (all_.empty()) list_all(bench, state);
  Assignment key;
  for (const std::size_t i : reads_) key.push_back(state.assignment[i]);
  const std::vector<MemoryChoice>*& known = by_assignment_[std::move(key)];
  if (known != nullptr) return *known;
  Which none(all_.size());
  for (std::size_t rule = 0; rule < refused_.size(); ++rule) none |= refused(rule, bench, state);
  const auto [list, fresh] = lists_.try_emplace(none);
  if (fresh) list->second = list_without(none);
  known = &list->second;
  return *known;
}

Load Kept::Layer::copies(double count) const {
  Load load;
  load.forward.copy = count * copy_forward;
  load.backward.copy = count * copy_backward;
  return load;
}

void Kept::at_most(const Kept& other) {
  for (std::size_t k = 0; k < layers.size(); ++k)
    for (double Layer::*const bytes : {&Layer::kept, &Layer::forward, &Layer::backward, &Layer::rebuilt, &Layer::rests,
                                       &Layer::host, &Layer::offloaded})
      layers[k].*bytes = std::min(layers[k].*bytes, other.layers[k].*bytes);
  mtp = std::min(mtp, other.mtp);
  mtp_forward = std::min(mtp_forward, other.mtp_forward);
  mtp_backward = std::min(mtp_backward, other.mtp_backward);
  beside = std::min(beside, other.beside);
}

Kept kept_with(Workbench& bench, const TrainingOptions& options, const MemoryChoice& memory_choice,
               BitSet<OffloadModule> offload, PiecesByChoice& pieces) {
  const TrainingOptions& o = options;
  const std::size_t kinds = bench.kinds.kinds.size();
  const bool full = memory_choice.recompute.granularity == RecomputeGranularity::kFull;
  /// `slot`: a number for the layer.
  const auto cost = [&](Piece piece, const LayerSpec& layer, std::size_t slot) -> const BlockCost& {
    std::uint64_t key = slot * enumerators<Piece>() + static_cast<std::uint64_t>(piece);
    key = key << 2 | static_cast<std::uint64_t>(memory_choice.recompute.granularity);
    key = key << 16 | (memory_choice.recompute.modules & recomputable(piece, layer)).bits;
    key = key << 16 | (offload & offloadable(piece)).bits;
    const BlockCost*& known = pieces[key];
    if (known == nullptr) {
      TrainingOptions with = options;
      memory_choice.apply(with, offload);
      known = &bench.cache().get(bench.context(with).layer(), piece, layer);
    }
    return *known;
  };
  Kept kept;
  kept.layers.resize(kinds);
  const auto memory_of = [&](const LayerSpec& layer, std::size_t slot, const BlockCost& mixer, const BlockCost& mlp) {
    if (full) return cost(Piece::kLayer, layer, slot).memory;
    MemoryProfile memory = mixer.memory;
    memory += mlp.memory;
    return memory;
  };
  for (std::size_t k = 0; k < kinds; ++k) {
    const LayerSpec& kind = bench.kinds.kinds[k];
    const BlockCost &mixer = cost(Piece::kMixer, kind, k), &mlp = cost(Piece::kMlp, kind, k);
    const MemoryProfile memory = memory_of(kind, k, mixer, mlp);
    Kept::Layer& layer = kept.layers[k];
    layer.kept = memory.kept.to<double>() / memory_choice.group;
    layer.rests = memory.rests.to<double>();
    layer.forward = (memory.forward_high - memory.kept).to<double>();
    layer.backward = (memory.backward_high - memory.kept).to<double>();
    if (full && memory_choice.group > 1.0) layer.rebuilt = cost(Piece::kLayer, kind, k).rematerialised.to<double>();
    layer.copy_forward = mixer.forward.copy + mlp.forward.copy;
    layer.copy_backward = mixer.backward.copy + mlp.backward.copy;
    layer.host = (mixer.host_bytes + mlp.host_bytes).to<double>();
    layer.offloaded = (mixer.offloaded + mlp.offloaded).to<double>();
    if (o.pipeline.overlaps.ep_a2a && kind.mlp == MlpKind::kMoe)
      kept.beside = std::max(kept.beside, (mixer.until_dispatched + mlp.until_dispatched).to<double>());
  }
  if (memory_choice.partial) kept.beside = 0.0;
  std::size_t slot = kinds;
  for (const LayerSpec& layer : bench.problem.model.mtp_layers) {
    const MemoryProfile memory =
        memory_of(layer, slot, cost(Piece::kMixer, layer, slot), cost(Piece::kMlp, layer, slot));
    ++slot;
    kept.mtp += memory.kept.to<double>();
    kept.mtp_forward = (memory.forward_high - memory.kept).to<double>();
    kept.mtp_backward = (memory.backward_high - memory.kept).to<double>();
  }
  return kept;
}

LayerCosts layer_costs(Workbench& bench, const TrainingOptions& o) {
  LayerCosts result;
  result.costs = model_costs(bench.context(o), bench.kinds, &bench.cache());
  for (std::size_t k = 0; k < bench.kinds.kinds.size(); ++k)
    result.layer.push_back(load_of(result.costs.covered[k], result.costs.saving[k]));
  result.embedding = load_of(result.costs.embedding, {});
  result.head = load_of(result.costs.head, {});
  if (bench.problem.model.mtp_num_layers > 0) result.mtp = load_of(result.costs.mtp, result.costs.mtp_saving);
  result.others = result.embedding;
  result.others += result.head;
  result.others += result.mtp.times(static_cast<double>(bench.problem.model.mtp_num_layers));
  Load sum = result.others;
  for (std::size_t k = 0; k < bench.kinds.kinds.size(); ++k)
    sum += result.layer[k].times(static_cast<double>(bench.kinds.prefix[k].back()));
  result.least = at_least(sum).to<double>();
  return result;
}

void price_memory_choices(Workbench& bench, const TrainingOptions& options, const std::vector<MemoryChoice>& list,
                          LayerCosts& costs) {
  const PipelineOptions::Overlaps& overlaps = options.pipeline.overlaps;
  costs.plain = kept_with(bench, options, MemoryChoice{}, {}, costs.pieces);
  for (const MemoryChoice& memory_choice : list) {
    LayerCosts::Priced priced{.choice = &memory_choice, .seconds = 0.0, .layer = {}, .least = {}};
    TrainingOptions o = options;
    memory_choice.apply(o, {});
    const BuildContext build = bench.context(o).layer();
    Load sum = costs.others;
    for (std::size_t k = 0; k < bench.kinds.kinds.size(); ++k) {
      const LayerSpec& kind = bench.kinds.kinds[k];
      const BlockCost &mixer = bench.cache().get(build, Piece::kMixer, kind),
                      &mlp = bench.cache().get(build, Piece::kMlp, kind);
      Load load = load_of(mixer, {});
      load += load_of(mlp, {});
      if (overlaps.ep_a2a && kind.mlp == MlpKind::kMoe) {
        NodeTimes nodes = mixer.nodes;
        nodes += mlp.nodes;
        load.saving = ep_overlap_saving(nodes, overlaps.delay_wgrad, bench.hardware);
      }
      priced.layer.push_back(load);
      sum += (memory_choice.partial ? costs.layer[k] : load).times(static_cast<double>(bench.kinds.prefix[k].back()));
    }
    priced.seconds = at_least(sum).to<double>();
    for (const std::size_t i : memory_choice.largest) {
      const Kept kept = kept_with(bench, options, memory_choice, memory_choice.choices[i].offload, costs.pieces);
      if (priced.least.layers.empty()) priced.least = kept;
      priced.least.at_most(kept);
    }
    costs.memory_choices.push_back(std::move(priced));
  }
  std::stable_sort(costs.memory_choices.begin(), costs.memory_choices.end(),
                   [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
}

}  // namespace foldwise::planner
