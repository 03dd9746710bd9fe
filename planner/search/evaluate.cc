#include "planner/search/evaluate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "costmodel/step/composition.h"
#include "costmodel/step/data_parallel.h"
#include "costmodel/step/model_costs.h"
#include "costmodel/step/stage_split.h"
#include "planner/rules/rules.h"

namespace foldwise::planner {

using namespace costmodel;  // NOLINT(google-build-using-namespace): this file is about the cost model's types.

namespace {

// Sums of the same times in another order differ by rounding; a bound must not cut what it equals.
constexpr double kRounding = 1.0 - 1e-9;

const LayerSpec& mtp_layer(const ModelSpec& model, std::size_t i) { return model.mtp_layers[i]; }

}  // namespace

// ---- Best ----------------------------------------------------------------------------------------------------------

void Best::offer(const Found& found) {
  const auto [entry, fresh] = found_.try_emplace(key(found.options.layout()));
  if (!fresh && std::tie(entry->second->time, entry->second->digits) <= std::tie(found.time, found.digits)) return;
  entry->second = std::make_shared<const Found>(found);
  if (found_.size() < top_) return;
  std::vector<double> times;
  times.reserve(found_.size());
  for (const auto& [layout, known] : found_) times.push_back(known->time.to<double>());
  const auto last = times.begin() + static_cast<std::ptrdiff_t>(top_ - 1);
  std::nth_element(times.begin(), last, times.end());
  limit_ = *last;
}

double Best::limit(const Layout& layout) const {
  const auto known = found_.find(key(layout));
  return known == found_.end() ? limit_ : std::min(limit_, known->second->time.to<double>());
}

Seconds Best::fastest() const {
  Seconds least{};
  for (const auto& [layout, known] : found_)
    if (least <= Seconds{} || known->time < least) least = known->time;
  return least;
}

std::vector<Found> Best::sorted() const {
  std::vector<Found> list;
  for (const auto& [layout, known] : found_) list.push_back(*known);
  std::sort(list.begin(), list.end(),
            [](const Found& a, const Found& b) { return std::tie(a.time, a.digits) < std::tie(b.time, b.digits); });
  if (list.size() > top_) list.resize(top_);
  return list;
}

Statistics& Statistics::operator+=(const Statistics& other) {
  rejected.resize(std::max(rejected.size(), other.rejected.size()), 0.0);
  for (std::size_t i = 0; i < other.rejected.size(); ++i) rejected[i] += other.rejected[i];
  composed += other.composed;
  fitting += other.fitting;
  simulated += other.simulated;
  return *this;
}

// ---- What is shared below one choice of a layer's options
// ------------------------------------------------------------

/// Costs of the pieces without savers, for one way to overlap the experts' exchange.
struct Evaluator::Overlapped {
  ModelCosts costs;
  std::vector<Load> layer;  ///< [kinds]
  Load embedding, head, mtp;
  double least = 0.0;                          ///< Seconds of the whole model for a micro-batch.
  std::optional<std::vector<Saver>> savers{};  ///< Made when first needed.
};

/// A choice of recomputation and offloading.
struct Evaluator::Saver {
  Digits digits;
  LayerOptions::Recompute recompute;
  BitSet<OffloadModule> offload;
  PipelineOptions::Recompute recompute_layers;
  std::int64_t cpu_offloading_num_layers = 0;
  bool partial = false;      ///< Covers the first layers of a chunk only.
  std::vector<Load> layer;   ///< [kinds] of a covered layer.
  std::vector<double> kept;  ///< [kinds] bytes.
  double least = 0.0;        ///< As Overlapped::least.

  void apply(TrainingOptions& o) const {
    o.layer.recompute = recompute;
    o.layer.offload_modules = offload;
    o.pipeline.recompute = recompute_layers;
    o.pipeline.cpu_offloading_num_layers = cpu_offloading_num_layers;
  }
};

/// A split of layers and what its stages must at least spend without savers.
struct Evaluator::Split {
  StageLayout layout;
  bool even = false;  ///< Megatron's own: no layout string.
  std::vector<Load> stages;
  std::vector<Load> ranks;
  std::size_t busiest = 0;
  double least = 0.0;  ///< Seconds of the schedule.
};

Evaluator::Evaluator(const PlanProblem& problem, const DecisionOrder& order)
    : problem_(problem),
      order_(order),
      bases_(problem),
      hardware_(problem.hardware),
      kinds_(model_kinds(problem.model)),
      rule_problem_{problem.model, problem.hardware, problem.num_gpus} {
  statistics_.rejected.assign(rules().size() + 2, 0.0);
  // Without savers: the values that leave no trace.
  const TrainingOptions none;
  plain_savers_.emplace();
  for (std::size_t i = order_.begin_of(Level::kSavers); i < order_.end_of(Level::kSavers) && plain_savers_; ++i) {
    const Dimension& dimension = order_.at(i);
    std::optional<std::uint16_t> plain;
    for (std::uint16_t digit = 0; digit < dimension.values.size() && !plain; ++digit) {
      TrainingOptions o;
      if (apply(problem_, dimension, digit, o) && o == none) plain = digit;
    }
    if (plain)
      plain_savers_->push_back(*plain);
    else
      plain_savers_.reset();
  }
}

Evaluator::State Evaluator::state_of(const Digits& digits) const {
  State state{bases_.of(order_.in_space(digits)), digits};
  state.options.layer.recompute = {};
  state.options.layer.offload_modules = {};
  state.options.pipeline.recompute = {};
  state.options.pipeline.cpu_offloading_num_layers = 0;
  settle_data_parallel(problem_, state.options);
  for (std::size_t i = 0; i < digits.size(); ++i) {
    apply(problem_, order_.at(i), digits[i], state.options);
    settle_data_parallel(problem_, state.options);
  }
  return state;
}

bool Evaluator::refused(const std::vector<std::size_t>& candidates, const TrainingOptions& options, double count) {
  for (const std::size_t rule : candidates)
    if (rules()[rule].violated(rule_problem_, options)) {
      statistics_.rejected[rule] += count;
      return true;
    }
  return false;
}

template <typename Visit>
void Evaluator::decide(const State& state, std::size_t from, std::size_t to, const Visit& visit) {
  if (from == to) return visit(state);
  const Dimension& dimension = order_.at(from);
  for (std::uint16_t digit = 0; digit < dimension.values.size(); ++digit) {
    State next = state;
    if (!apply(problem_, dimension, digit, next.options)) continue;  // The same as digit 0.
    next.digits.push_back(digit);
    if (bases_.depends_on(order_.dimensions()[from]))
      next = state_of(next.digits);
    else if (dimension.field->key == "pp" || dimension.field->key == "tp" || dimension.field->key == "cp")
      settle_data_parallel(problem_, next.options);
    if (!refused(order_.rules_at(from), next.options, order_.candidates_from(from + 1)))
      decide(next, from + 1, to, visit);
  }
}

double Evaluator::micro_batches_per_stage(const TrainingOptions& o) const {
  const double most = static_cast<double>(o.pipeline.global_batch * o.layer.tp * o.layer.cp) /
                      static_cast<double>(o.layer.micro_batch * problem_.num_gpus);
  return std::max(1.0, most);  // At least one passes through all of the model.
}

// ---- The first two levels
// --------------------------------------------------------------------------------------------

Load Evaluator::layers_load(const TrainingOptions& o, bool experts) {
  const BuildContext build = context(o).layer();
  const Dimension* const overlap = problem_.space.find("overlaps.ep_a2a");
  const bool overlaps =
      overlap == nullptr ? o.pipeline.overlaps.ep_a2a : std::ranges::count(overlap->values, nlohmann::json(true)) > 0;
  const auto layer = [&](const LayerSpec& spec) {
    const BlockCost& mixer = cache_.get(build, Piece::kMixer, spec);
    Load load = load_of(mixer, {});
    if (spec.mlp == MlpKind::kMoe && !experts) return load;
    const BlockCost& mlp = cache_.get(build, Piece::kMlp, spec);
    load += load_of(mlp, {});
    if (overlaps && spec.mlp == MlpKind::kMoe) {
      NodeTimes nodes = mixer.nodes;
      nodes += mlp.nodes;
      for (const bool delay : {false, true})
        load.saving = std::max(load.saving, ep_overlap_saving(nodes, delay, hardware_));
    }
    load.issue = {};  // Graphs may take it away.
    return load;
  };
  Load sum;
  for (std::size_t k = 0; k < kinds_.kinds.size(); ++k)
    sum += layer(kinds_.kinds[k]).times(static_cast<double>(kinds_.prefix[k].back()));
  const auto depths = static_cast<double>(problem_.model.mtp_num_layers);
  for (std::size_t i = 0; depths > 0 && i < problem_.model.mtp_layers.size(); ++i)
    sum += layer(mtp_layer(problem_.model, i)).times(depths);
  sum += load_of(cache_.get(build, Piece::kEmbedding, {}), {});
  sum += load_of(cache_.get(build, Piece::kHead, {}), {});
  if (depths > 0) sum += load_of(cache_.get(build, Piece::kMtp, {}), {}).times(depths);
  sum.issue = {};
  return sum;
}

void Evaluator::attention_nodes(const Push& push) {
  const State root = state_of({});
  if (refused(order_.rules_of_none(), root.options, order_.candidates_from(0))) return;
  const std::size_t end = order_.end_of(Level::kAttention);
  decide(root, 0, end, [&](const State& state) {
    if (problem_.num_gpus % (state.options.layer.tp * state.options.layer.cp) != 0) return;  // No PP mends that.
    const Load load = layers_load(state.options, false);
    push((micro_batches_per_stage(state.options) * at_least(load) + hardware_.host.step).to<double>() * kRounding,
         state.digits);
  });
}

void Evaluator::expand(const Digits& digits, double limit, const Push& push) {
  decide(state_of(digits), digits.size(), order_.end_of(Level::kExperts), [&](const State& state) {
    const Load load = layers_load(state.options, true);
    const double bound =
        (micro_batches_per_stage(state.options) * at_least(load) + hardware_.host.step).to<double>() * kRounding;
    if (bound < limit) push(bound, state.digits);
  });
}

// ---- Below
// -----------------------------------------------------------------------------------------------------------

std::vector<Found> Evaluator::evaluate(const Digits& digits, Bytes capacity, const Best& best) {
  hardware_.hbm_capacity = capacity;
  Best mine = best;
  std::vector<Found> found;
  graphs(state_of(digits), mine, found);
  return found;
}

void Evaluator::graphs(const State& state, Best& best, std::vector<Found>& found) {
  std::vector<State> choices;
  decide(state, order_.begin_of(Level::kGraphs), order_.end_of(Level::kGraphs),
         [&](const State& choice) { choices.push_back(choice); });
  // A graph of the whole iteration leaves the host nothing to issue and keeps no tensors of its own; no rule refuses it
  // where it allows another (tests/search_test.cc). So nothing else is faster, or needs less memory.
  const auto whole = std::find_if(choices.begin(), choices.end(), [](const State& choice) {
    return choice.options.layer.cuda_graph.impl == GraphImpl::kFullIteration;
  });
  if (whole != choices.end()) return pipelines(*whole, best, found);
  for (const State& choice : choices) pipelines(choice, best, found);
}

std::optional<StageLayout> Evaluator::even_split(const TrainingOptions& o) const {
  const std::int64_t layers = problem_.model.num_layers();
  if (layers % (o.pipeline.pp * o.pipeline.vpp) != 0) return std::nullopt;
  return even_stages(layers, problem_.model.mtp_num_layers, o.pipeline.pp, o.pipeline.vpp);
}

/// Decoder layers of a kind among the first `layers` of a stage.
std::int32_t Evaluator::layers_of(std::size_t kind, const StageContent& content, std::int64_t layers) const {
  const std::vector<std::int32_t>& prefix = kinds_.prefix[kind];
  const auto first = static_cast<std::size_t>(content.first_layer);
  return prefix[first + static_cast<std::size_t>(layers)] - prefix[first];
}

/// Seconds that a schedule takes at least: of each rank its work, and the way of the first micro-batch to it and of the
/// last one from it.
double Evaluator::schedule_bound(const TrainingOptions& o, const std::vector<Load>& stages, std::size_t rank,
                                 const Load& work) {
  Seconds way{};
  for (std::size_t i = 0; i < rank && runnable(o.pipeline.schedule); ++i)
    way += std::max(stages[i].forward, stages[i].copy_forward) + std::max(stages[i].backward, stages[i].copy_backward);
  const auto m = static_cast<double>(o.num_microbatches());
  return (way + m * at_least(work)).to<double>();
}

Evaluator::Split Evaluator::split_of(const TrainingOptions& o, const Overlapped& costs, StageLayout layout) const {
  Split split{.layout = std::move(layout), .even = false, .stages = {}, .ranks = {}, .busiest = 0, .least = 0.0};
  const std::optional<StageLayout> even = even_split(o);
  split.even = even && split.layout == *even;
  split.ranks.resize(static_cast<std::size_t>(o.pipeline.pp));
  for (std::size_t i = 0; i < split.layout.stages.size(); ++i) {
    const StageContent& content = split.layout.stages[i];
    Load& load = split.stages.emplace_back();
    for (std::size_t k = 0; k < kinds_.kinds.size(); ++k)
      load += costs.layer[k].times(layers_of(k, content, content.num_layers));
    if (content.embedding) load += costs.embedding;
    if (content.mtp_layers > 0) load += costs.mtp.times(static_cast<double>(content.mtp_layers));
    if (content.loss) load += costs.head;
    split.ranks[i % split.ranks.size()] += load;
  }
  // A study schedule places stages in its own way: only the mean of the ranks is known.
  for (std::size_t rank = 0; rank < split.ranks.size() && runnable(o.pipeline.schedule); ++rank) {
    const double bound = schedule_bound(o, split.stages, rank, split.ranks[rank]);
    if (bound > split.least) {
      split.least = bound;
      split.busiest = rank;
    }
  }
  return split;
}

void Evaluator::pipelines(const State& state, Best& best, std::vector<Found>& found) {
  std::array<std::optional<Overlapped>, 4> by_overlap;
  const double per_stage = micro_batches_per_stage(state.options);
  const std::int64_t most_stages = problem_.model.num_layers() + 2;
  struct Open {
    State state;
    Overlapped* costs;
    Split split;
  };
  std::vector<Open> open;
  decide(state, order_.begin_of(Level::kPipeline), order_.end_of(Level::kPipeline), [&](const State& choice) {
    const TrainingOptions& o = choice.options;
    if (o.pipeline.pp * o.pipeline.vpp > most_stages) {
      statistics_.rejected.back() += order_.candidates_from(order_.end_of(Level::kPipeline));
      return;
    }
    const PipelineOptions::Overlaps& overlaps = o.pipeline.overlaps;
    std::optional<Overlapped>& costs = by_overlap[(overlaps.ep_a2a ? 1u : 0u) + (overlaps.delay_wgrad ? 2u : 0u)];
    if (!costs) costs = overlapped(o);
    const double limit = best.limit(o.layout()), end = hardware_.host.step.to<double>();
    if ((per_stage * costs->least + end) * kRounding >= limit) return;
    std::vector<StageLayout> layouts;
    if (o.pipeline.layout.empty())
      layouts = splits_to_try(problem_.model, kinds_, costs->costs, o.pipeline.pp, o.pipeline.vpp);
    else
      layouts.push_back(stage_layout(problem_.model, o));
    for (StageLayout& layout : layouts) {
      Split split = split_of(o, *costs, std::move(layout));
      split.least = std::max(split.least, per_stage * costs->least);
      if ((split.least + end) * kRounding < limit) open.push_back({choice, &*costs, std::move(split)});
    }
  });
  std::stable_sort(open.begin(), open.end(),
                   [](const Open& a, const Open& b) { return a.split.least < b.split.least; });
  // The plainest step first for all of them: what it comes to rules most other steps out.
  for (const bool plainest : {true, false})
    for (Open& o : open) {
      if (o.split.least * kRounding >= best.limit(o.state.options.layout())) continue;
      const std::vector<StepChoice>& steps = step_choices(o.state, *o.costs);
      for (std::size_t i = plainest ? 0 : 1; i < (plainest ? std::min<std::size_t>(1, steps.size()) : steps.size());
           ++i)
        step(o.state, *o.costs, o.split, steps[i], best, found);
    }
}

Evaluator::Overlapped Evaluator::overlapped(const TrainingOptions& o) {
  Overlapped result;
  result.costs = model_costs(context(o), kinds_, &cache_);
  for (std::size_t k = 0; k < kinds_.kinds.size(); ++k)
    result.layer.push_back(load_of(result.costs.covered[k], result.costs.saving[k]));
  result.embedding = load_of(result.costs.embedding, {});
  result.head = load_of(result.costs.head, {});
  if (problem_.model.mtp_num_layers > 0) result.mtp = load_of(result.costs.mtp, result.costs.mtp_saving);
  result.least = model_least(result, result.layer);
  return result;
}

double Evaluator::model_least(const Overlapped& costs, const std::vector<Load>& layer) const {
  Load sum;
  for (std::size_t k = 0; k < layer.size(); ++k) sum += layer[k].times(static_cast<double>(kinds_.prefix[k].back()));
  sum += costs.embedding;
  sum += costs.head;
  sum += costs.mtp.times(static_cast<double>(problem_.model.mtp_num_layers));
  return at_least(sum).to<double>();
}

const std::vector<Evaluator::StepChoice>& Evaluator::step_choices(const State& state, const Overlapped& costs) {
  const Layout l = state.options.layout();
  std::vector<std::int64_t> key = {l.tp, l.cp, l.dp, l.pp, l.vpp, l.ep, l.etp, state.options.pipeline.overlaps.ep_a2a};
  for (std::size_t i = 0; i < order_.end_of(Level::kAttention); ++i)
    if (order_.at(i).field->numerics) key.push_back(state.digits[i]);
  const auto [entry, fresh] = step_choices_.try_emplace(std::move(key));
  if (!fresh) return entry->second;
  // Of the mean rank; the busiest one has no fewer parameters.
  ParameterCount count;
  for (std::size_t k = 0; k < kinds_.kinds.size(); ++k)
    for (std::int32_t i = 0; i < kinds_.prefix[k].back(); ++i) count += costs.costs.covered[k].parameters;
  for (double* value : {&count.dense, &count.expert, &count.quantised_dense, &count.quantised_expert})
    *value /= static_cast<double>(l.pp);
  count.tp_replicated = count.shared_embedding = 0.0;
  decide(state, order_.begin_of(Level::kStep), order_.end_of(Level::kStep), [&](const State& choice) {
    const StepContext step = context(choice.options);
    Seconds update{};
    StepChoice made{.options = choice.options.step,
                    .digits = {choice.digits.begin() + static_cast<std::ptrdiff_t>(order_.begin_of(Level::kStep)),
                               choice.digits.end()},
                    .end = step_tail(step, count.trained(choice.options.layer), update).total().to<double>(),
                    .every_micro_batch = 0.0};
    if (shards_gradients(choice.options.step.sharding)) {
      const OpList ops = fsdp_ops(step, count);
      made.every_micro_batch =
          std::max(communication_of(ops.forward, hardware_).time, communication_of(ops.backward, hardware_).time)
              .to<double>();
    }
    entry->second.push_back(std::move(made));
  });
  return entry->second;
}

void Evaluator::step(const State& before, Overlapped& costs, const Split& split, const StepChoice& choice, Best& best,
                     std::vector<Found>& found) {
  const Layout layout = before.options.layout();
  const auto m = static_cast<double>(before.options.num_microbatches());
  if ((std::max(split.least, m * choice.every_micro_batch) + choice.end) * kRounding >= best.limit(layout)) return;
  State state = before;
  state.options.step = choice.options;
  state.digits.insert(state.digits.end(), choice.digits.begin(), choice.digits.end());
  const StepContext step = context(state.options);
  const Composition c = compose(step, kinds_, costs.costs, split.layout);
  ++statistics_.composed;
  if (step_time(c, makespan_lower_bound(c.times)).to<double>() * kRounding >= best.limit(layout)) return;
  if (plain_savers_ && fits(step, c, peaks(c.times.shape))) {
    state.digits.insert(state.digits.end(), plain_savers_->begin(), plain_savers_->end());
    return simulate(state, split, c, best, found);
  }
  if (plain_savers_) statistics_.rejected[rules().size()] += 1.0;
  savers(state, costs, split, c, best, found);
}

const std::vector<Evaluator::Saver>& Evaluator::saver_choices(const State& state, Overlapped& costs) {
  if (costs.savers) return *costs.savers;
  std::vector<Saver>& list = costs.savers.emplace();
  const std::size_t from = order_.begin_of(Level::kSavers);
  decide(state, from, order_.end_of(Level::kSavers), [&](const State& choice) {
    const TrainingOptions& o = choice.options;
    Saver saver{.digits = {choice.digits.begin() + static_cast<std::ptrdiff_t>(from), choice.digits.end()},
                .recompute = o.layer.recompute,
                .offload = o.layer.offload_modules,
                .recompute_layers = o.pipeline.recompute,
                .cpu_offloading_num_layers = o.pipeline.cpu_offloading_num_layers,
                .partial = covered_layers(o, std::int64_t{1} << 30) < (std::int64_t{1} << 30),
                .layer = {},
                .kept = {},
                .least = costs.least};
    const BuildContext build = context(o).layer();
    const bool full = o.layer.recompute.granularity == RecomputeGranularity::kFull;
    // A group of layers that is rebuilt at once keeps one input.
    const double group = full && o.pipeline.recompute.method == RecomputeMethod::kUniform
                             ? static_cast<double>(o.pipeline.recompute.num_layers)
                             : 1.0;
    for (const LayerSpec& kind : kinds_.kinds) {
      const BlockCost &mixer = cache_.get(build, Piece::kMixer, kind), &mlp = cache_.get(build, Piece::kMlp, kind);
      Load load = load_of(mixer, {});
      load += load_of(mlp, {});
      if (o.pipeline.overlaps.ep_a2a && kind.mlp == MlpKind::kMoe) {
        NodeTimes nodes = mixer.nodes;
        nodes += mlp.nodes;
        load.saving = ep_overlap_saving(nodes, o.pipeline.overlaps.delay_wgrad, hardware_);
      }
      saver.layer.push_back(load);
      saver.kept.push_back(
          (full ? cache_.get(build, Piece::kLayer, kind).memory.kept : mixer.memory.kept + mlp.memory.kept)
              .to<double>() /
          group);
    }
    if (!saver.partial) saver.least = model_least(costs, saver.layer);
    list.push_back(std::move(saver));
  });
  std::stable_sort(list.begin(), list.end(), [](const Saver& a, const Saver& b) { return a.least < b.least; });
  return list;
}

void Evaluator::savers(const State& state, Overlapped& costs, const Split& split, const Composition& plain, Best& best,
                       std::vector<Found>& found) {
  const TrainingOptions& before = state.options;
  const Layout layout = before.layout();
  const std::vector<PeakTable>& tables = peaks(plain.times.shape);
  double end = 0.0;
  for (const StepTail& tail : plain.tails) end = std::max(end, tail.total().to<double>());

  // The ranks that decide first: the busiest, the fullest, and the one with most chunks in flight.
  struct Watched {
    std::size_t rank;
    double room;                    // Bytes for activations.
    std::vector<double> in_flight;  // [kinds] layers, at the moment that has most.
  };
  std::vector<Watched> watched;
  std::vector<std::size_t> ranks = {split.busiest, 0};
  Bytes most{};
  for (std::size_t rank = 0; rank < split.ranks.size(); ++rank) {
    const StageMemory memory = rank_memory(context(before), plain, static_cast<std::int64_t>(rank), tables[rank]);
    const Bytes fixed = memory.parameters + memory.gradients + memory.optimizer + memory.cuda_context + memory.nccl +
                        memory.dispatcher_buffers;
    if (fixed > hardware_.hbm_capacity) return;
    if (memory.total() <= most) continue;
    most = memory.total();
    if (ranks.size() < 3) ranks.push_back(rank);
    ranks.back() = rank;
  }
  const bool runs = runnable(before.pipeline.schedule);
  for (std::size_t i = 0; i < ranks.size() && runs; ++i) {
    const std::size_t rank = ranks[i];
    if (std::find(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(i), rank) !=
        ranks.begin() + static_cast<std::ptrdiff_t>(i))
      continue;
    const StageMemory memory = rank_memory(context(before), plain, static_cast<std::int64_t>(rank), tables[rank]);
    const Bytes fixed = memory.parameters + memory.gradients + memory.optimizer + memory.cuda_context + memory.nccl +
                        memory.dispatcher_buffers;
    Watched& w = watched.emplace_back(
        Watched{rank, (hardware_.hbm_capacity - fixed).to<double>(), std::vector<double>(kinds_.kinds.size(), 0.0)});
    const PeakTable& table = tables[rank];
    const std::size_t chunks = table.largest.size();
    double layers = -1.0;
    for (std::size_t moment = 0; moment < table.running.size(); ++moment) {
      std::vector<double> count(kinds_.kinds.size(), 0.0);
      double sum = 0.0;
      for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        const StageContent& content = split.layout.stages[chunk * split.ranks.size() + rank];
        for (std::size_t k = 0; k < count.size(); ++k)
          count[k] += table.counts[moment * chunks + chunk] * layers_of(k, content, content.num_layers);
        sum += table.counts[moment * chunks + chunk] * static_cast<double>(content.num_layers);
      }
      if (sum > layers) {
        layers = sum;
        w.in_flight = std::move(count);
      }
    }
  }

  const double per_stage = micro_batches_per_stage(before);
  State tried = state;
  for (const Saver& saver : saver_choices(state, costs)) {
    if ((per_stage * saver.least + end) * kRounding >= best.limit(layout)) break;
    if (plain_savers_ && saver.digits == *plain_savers_) continue;
    const bool hopeless = std::any_of(watched.begin(), watched.end(), [&](const Watched& w) {
      double kept = 0.0;
      for (std::size_t k = 0; k < saver.kept.size() && !saver.partial; ++k) kept += w.in_flight[k] * saver.kept[k];
      if (kept > w.room) return true;
      saver.apply(tried.options);
      Load work = split.ranks[w.rank];
      for (std::size_t i = w.rank; i < split.layout.stages.size(); i += split.ranks.size()) {
        const StageContent& content = split.layout.stages[i];
        const std::int64_t covered =
            saver.partial ? covered_layers(tried.options, content.num_layers) : content.num_layers;
        for (std::size_t k = 0; k < saver.layer.size(); ++k) {
          const double count = layers_of(k, content, covered);
          work += saver.layer[k].times(count);
          work += costs.layer[k].times(-count);
        }
      }
      return (schedule_bound(before, split.stages, w.rank, work) + end) * kRounding >= best.limit(layout);
    });
    if (hopeless) continue;
    saver.apply(tried.options);
    if (refused(order_.late_rules(), tried.options, 1.0)) continue;
    const StepContext step = context(tried.options);
    const Composition c = compose(step, kinds_, model_costs(step, kinds_, &cache_), split.layout);
    ++statistics_.composed;
    if (step_time(c, makespan_lower_bound(c.times)).to<double>() * kRounding >= best.limit(layout)) continue;
    if (!fits(step, c, tables)) {
      statistics_.rejected[rules().size()] += 1.0;
      continue;
    }
    tried.digits = state.digits;
    tried.digits.insert(tried.digits.end(), saver.digits.begin(), saver.digits.end());
    simulate(tried, split, c, best, found);
  }
}

void Evaluator::simulate(const State& state, const Split& split, const Composition& c, Best& best,
                         std::vector<Found>& found) {
  ++statistics_.fitting;
  ++statistics_.simulated;
  Found candidate{.time = step_time(c, simulate_makespan(c.times)),
                  .digits = order_.in_space(state.digits),
                  .options = state.options,
                  .memory = {}};
  if (candidate.time.to<double>() >= best.limit(state.options.layout())) return;
  if (!split.even && !problem_.model.hybrid) candidate.options.pipeline.layout = to_layout_string(split.layout);
  const std::vector<PeakTable>& tables = peaks(c.times.shape);
  for (std::int64_t rank = 0; rank < state.options.pipeline.pp; ++rank)
    candidate.memory = std::max(
        candidate.memory, rank_memory(context(state.options), c, rank, tables[static_cast<std::size_t>(rank)]).total());
  best.offer(candidate);
  found.push_back(std::move(candidate));
}

const std::vector<PeakTable>& Evaluator::peaks(const ScheduleShape& shape) {
  auto& entry =
      peaks_[{shape.pp, shape.vpp, shape.num_microbatches, shape.group_size, shape.overlap_moe_expert_parallel_comm}];
  if (entry.empty())
    for (std::int64_t rank = 0; rank < shape.pp; ++rank) entry.push_back(peak_table(shape, rank));
  return entry;
}

}  // namespace foldwise::planner
