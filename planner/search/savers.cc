#include "planner/search/savers.h"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

namespace foldwise::planner {

using namespace costmodel;  // NOLINT(google-build-using-namespace): this file is about the cost model's types.

void SaverLists::list_all(Workbench& bench, const State& state) {
  const std::vector<DecisionOrder::SaverRule>& rules = bench.order.saver_rules();
  refused_.resize(rules.size());
  std::set<std::size_t> reads;
  for (const DecisionOrder::SaverRule& rule : rules) reads.insert(rule.reads.begin(), rule.reads.end());
  reads_.assign(reads.begin(), reads.end());
  const std::size_t from = bench.order.begin_of(Level::kSavers);
  State start = state;
  start.digits.resize(from, 0);
  const bool counts = std::exchange(bench.counts, false);  // Lists are remembered: what threads know differs.
  bench.decide(start, from, bench.order.end_of(Level::kSavers), [&](const State& choice) {
    const TrainingOptions& o = choice.options;
    all_.push_back({{.recompute = o.layer.recompute,
                     .recompute_layers = o.pipeline.recompute,
                     .cpu_offloading_num_layers = o.pipeline.cpu_offloading_num_layers},
                    {.offload = o.layer.offload_modules,
                     .digits = {choice.digits.begin() + static_cast<std::ptrdiff_t>(from), choice.digits.end()}}});
  });
  bench.counts = counts;
}

const SaverLists::Which& SaverLists::refused(std::size_t rule, Workbench& bench, const State& state) {
  const DecisionOrder::SaverRule& about = bench.order.saver_rules()[rule];
  Digits key;
  for (const std::size_t i : about.reads) key.push_back(state.digits[i]);
  const auto [entry, fresh] = refused_[rule].try_emplace(std::move(key), all_.size());
  if (!fresh) return entry->second;
  TrainingOptions o = state.options;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    all_[i].first.apply(o, all_[i].second.offload);
    entry->second[i] = bench.breaks(about.rule, o);
  }
  return entry->second;
}

std::vector<Savers> SaverLists::list_without(const Which& refused) const {
  constexpr std::int64_t kMany = std::int64_t{1} << 30;
  std::vector<Savers> list;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (refused[i]) continue;
    const Saver& saver = all_[i].first;
    auto same = std::ranges::find_if(list, [&](const Saver& other) { return other == saver; });
    if (same == list.end()) {
      Savers savers;
      static_cast<Saver&>(savers) = saver;
      savers.apply(savers.covering, {});
      const bool full = saver.recompute.granularity == RecomputeGranularity::kFull;
      if (full && saver.recompute_layers.method == RecomputeMethod::kUniform)
        savers.group = static_cast<double>(saver.recompute_layers.num_layers);
      savers.partial = covered_layers(savers.covering, kMany) < kMany;
      same = list.insert(same, std::move(savers));
    }
    same->choices.push_back(all_[i].second);
  }
  for (Savers& savers : list) {
    std::stable_sort(savers.choices.begin(), savers.choices.end(), [](const auto& a, const auto& b) {
      return std::popcount(a.offload.bits) < std::popcount(b.offload.bits);
    });
    for (const Savers& other : list)
      if (savers.recompute.granularity == RecomputeGranularity::kFull && other.recompute == savers.recompute &&
          other.recompute_layers.method == savers.recompute_layers.method &&
          other.recompute_layers.num_layers < savers.recompute_layers.num_layers)
        savers.fewer_layers = std::max(savers.fewer_layers, other.recompute_layers.num_layers);
    for (std::size_t i = 0; i < savers.choices.size(); ++i) {
      const BitSet<OffloadModule> own = savers.choices[i].offload;
      if (std::none_of(savers.choices.begin() + static_cast<std::ptrdiff_t>(i) + 1, savers.choices.end(),
                       [&](const auto& other) { return (other.offload & own) == own; }))
        savers.largest.push_back(i);
    }
  }
  return list;
}

const std::vector<Savers>& SaverLists::of(Workbench& bench, const State& state) {
  if (all_.empty()) list_all(bench, state);
  Digits key;
  for (const std::size_t i : reads_) key.push_back(state.digits[i]);
  const std::vector<Savers>*& known = by_digits_[std::move(key)];
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

Kept kept_with(Workbench& bench, const TrainingOptions& options, const Savers& savers, BitSet<OffloadModule> offload,
               SavedPieces& pieces) {
  const TrainingOptions& o = options;
  const std::size_t kinds = bench.kinds.kinds.size();
  const bool full = savers.recompute.granularity == RecomputeGranularity::kFull;
  /// `slot`: a number of the layer.
  const auto cost = [&](Piece piece, const LayerSpec& layer, std::size_t slot) -> const BlockCost& {
    std::uint64_t key = slot * enumerators<Piece>() + static_cast<std::uint64_t>(piece);
    key = key << 2 | static_cast<std::uint64_t>(savers.recompute.granularity);
    key = key << 16 | (savers.recompute.modules & recomputable(piece, layer)).bits;
    key = key << 16 | (offload & offloadable(piece)).bits;
    const BlockCost*& known = pieces[key];
    if (known == nullptr) {
      TrainingOptions with = options;
      savers.apply(with, offload);
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
    layer.kept = memory.kept.to<double>() / savers.group;
    layer.rests = memory.rests.to<double>();
    layer.forward = (memory.forward_high - memory.kept).to<double>();
    layer.backward = (memory.backward_high - memory.kept).to<double>();
    if (full && savers.group > 1.0) layer.rebuilt = cost(Piece::kLayer, kind, k).rematerialised.to<double>();
    layer.copy_forward = mixer.forward.copy + mlp.forward.copy;
    layer.copy_backward = mixer.backward.copy + mlp.backward.copy;
    layer.host = (mixer.host_bytes + mlp.host_bytes).to<double>();
    layer.offloaded = (mixer.offloaded + mlp.offloaded).to<double>();
    if (o.pipeline.overlaps.ep_a2a && kind.mlp == MlpKind::kMoe)
      kept.beside = std::max(kept.beside, (mixer.until_dispatched + mlp.until_dispatched).to<double>());
  }
  if (savers.partial) kept.beside = 0.0;
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

void price_savers(Workbench& bench, const TrainingOptions& options, const std::vector<Savers>& list,
                  LayerCosts& costs) {
  const PipelineOptions::Overlaps& overlaps = options.pipeline.overlaps;
  costs.plain = kept_with(bench, options, Savers{}, {}, costs.pieces);
  for (const Savers& savers : list) {
    LayerCosts::Priced priced{.savers = &savers, .seconds = 0.0, .layer = {}, .least = {}};
    TrainingOptions o = options;
    savers.apply(o, {});
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
      sum += (savers.partial ? costs.layer[k] : load).times(static_cast<double>(bench.kinds.prefix[k].back()));
    }
    priced.seconds = at_least(sum).to<double>();
    for (const std::size_t i : savers.largest) {
      const Kept kept = kept_with(bench, options, savers, savers.choices[i].offload, costs.pieces);
      if (priced.least.layers.empty()) priced.least = kept;
      priced.least.at_most(kept);
    }
    costs.savers.push_back(std::move(priced));
  }
  std::stable_sort(costs.savers.begin(), costs.savers.end(),
                   [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
}

}  // namespace foldwise::planner
