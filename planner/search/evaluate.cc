#include "planner/search/evaluate.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
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

// A layout is listed if it takes no longer than this times the best one: what is slower is no choice.
constexpr double kWindow = 1.25;

const LayerSpec& mtp_layer(const ModelSpec& model, std::size_t i) { return model.mtp_layers[i]; }

}  // namespace

// ---- Best ----------------------------------------------------------------------------------------------------------

void Best::offer(const Found& found) {
  const auto [entry, fresh] = found_.try_emplace(key(found.options.layout()));
  if (!fresh && std::tie(entry->second->time, entry->second->digits) <= std::tie(found.time, found.digits)) return;
  entry->second = std::make_shared<const Found>(found);
  limit_ = std::min(limit_, kWindow * found.time.to<double>());
  if (found_.size() < top_) return;
  std::vector<double> times;
  times.reserve(found_.size());
  for (const auto& [layout, known] : found_) times.push_back(known->time.to<double>());
  const auto last = times.begin() + static_cast<std::ptrdiff_t>(top_ - 1);
  std::nth_element(times.begin(), last, times.end());
  limit_ = std::min(limit_, *last);
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
  std::erase_if(list, [&](const Found& f) { return f.time.to<double>() > limit_; });
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

/// Choices of offloading beside one of recomputation. Without offloading they take least time and most memory.
struct Evaluator::Savers {
  LayerOptions::Recompute recompute;
  PipelineOptions::Recompute recompute_layers;
  std::int64_t cpu_offloading_num_layers = 0;
  bool partial = false;  ///< Covers the first layers of a chunk only.
  double group = 1.0;    ///< Layers that keep one input.
  struct Choice {
    BitSet<OffloadModule> offload;
    Digits digits;
  };
  std::vector<Choice> choices;       ///< Those with fewer modules first.
  std::vector<std::size_t> largest;  ///< Of the choices: those that no other contains.

  void apply(TrainingOptions& o, BitSet<OffloadModule> offload) const {
    o.layer.recompute = recompute;
    o.layer.offload_modules = offload;
    o.pipeline.recompute = recompute_layers;
    o.pipeline.cpu_offloading_num_layers = cpu_offloading_num_layers;
  }
  [[nodiscard]] bool plain() const {
    return recompute.granularity == RecomputeGranularity::kNone && cpu_offloading_num_layers == 0;
  }
  /// Whether it recomputes all that `other` does, and perhaps more.
  [[nodiscard]] bool contains(const Savers& other) const {
    return !partial && !other.partial && recompute.granularity != RecomputeGranularity::kFull &&
           other.recompute.granularity != RecomputeGranularity::kFull &&
           (recompute.modules & other.recompute.modules) == other.recompute.modules;
  }
};

/// What one layer of each kind keeps, and what a running task needs besides: bytes, or less.
struct Evaluator::Kept {
  std::vector<double> layer;  ///< [kinds]
  double high = 0.0;
  std::vector<Load> copies;  ///< [kinds] over the host link, without the rest.
};

/// Costs of the pieces for one way to overlap the experts' exchange.
struct Evaluator::Overlapped {
  ModelCosts costs;         ///< Without savers.
  std::vector<Load> layer;  ///< [kinds] without savers.
  Load embedding, head, mtp;
  double least = 0.0;  ///< Seconds of the whole model for a micro-batch, without savers.
  /// Made when first needed: the savers with the least work first.
  struct Priced {
    const Savers* savers = nullptr;
    double seconds = 0.0;     ///< Of the whole model for a micro-batch, without offloading.
    std::vector<Load> layer;  ///< [kinds] of a covered layer, without offloading.
    Kept least;               ///< With the most offloading.
    std::vector<Kept> kept;   ///< [choices], made when first needed.
  };
  std::vector<Priced> savers;
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

/// A rank whose memory is looked at before that of the others.
struct Evaluator::Watched {
  std::size_t rank = 0;
  ParameterCount parameters;
  Bytes other{};                    ///< That no option changes which is still open.
  std::vector<double> in_flight{};  ///< [kinds] layers, at the moment that has most.
};

/// A pipeline, split, whose step and savers are open.
struct Evaluator::Pipeline {
  State state;
  Overlapped* costs = nullptr;
  Split split;
  /// Made when first needed: what the plainest step without savers comes to.
  std::vector<Watched> watched{};
  std::vector<double> busiest_layers{};  ///< [kinds] of the busiest rank.
  PipelineTimes times{};                 ///< Without data parallelism.
  struct Stage {                         ///< One of those that differ.
    std::size_t first = 0;               ///< Index into Split::stages.
    Seconds forward{}, backward{};       ///< Transfers beside it.
    Seconds idle{};                      ///< Of the host's making.
  };
  std::vector<Stage> stages{};
  std::vector<std::uint16_t> stage_of{};  ///< As Composition::index.
  double least = 0.0;                     ///< Seconds of `times`.
  std::vector<double> bounds{};  ///< [Overlapped::savers] least seconds of the schedule; negative: not known yet.
};

Evaluator::Evaluator(const PlanProblem& problem, const DecisionOrder& order)
    : problem_(problem),
      order_(order),
      bases_(problem),
      hardware_(problem.hardware),
      kinds_(model_kinds(problem.model)),
      rule_problem_{problem.model, problem.hardware, problem.num_gpus} {
  statistics_.rejected.assign(rules().size() + 2, 0.0);
}

Evaluator::Evaluator(Evaluator&&) noexcept = default;
Evaluator::~Evaluator() = default;

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
    if (spec.mlp == MlpKind::kMoe && !experts) {
      // Whatever the experts' layout, a rank has its share of their products, at best at the peak rate.
      const LayerOptions all = [&] {
        LayerOptions one = o.layer;
        one.ep = one.etp = 1;
        one.dispatcher = Dispatcher::kAllToAll;
        one.overlaps.shared_expert = false;
        return one;
      }();
      const Flops flops = cache_.get(build.with(all), Piece::kMlp, spec).flops;
      const FlopRate peak = hardware_.mfu_peak(o.layer.precision);
      load.forward.work += flops / peak;
      return load;
    }
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

std::vector<Found> Evaluator::evaluate(const Digits& digits, Bytes capacity, const Best& best, bool dive) {
  hardware_.hbm_capacity = capacity;
  dives_ = dive;
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
    way += stages[i].forward.at_least() + stages[i].backward.at_least();
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
  const double per_stage = micro_batches_per_stage(state.options), end = hardware_.host.step.to<double>();
  const std::int64_t most_stages = problem_.model.num_layers() + 2;
  std::vector<Pipeline> open;
  decide(state, order_.begin_of(Level::kPipeline), order_.end_of(Level::kPipeline), [&](const State& choice) {
    const TrainingOptions& o = choice.options;
    if (o.pipeline.pp * o.pipeline.vpp > most_stages) {
      statistics_.rejected.back() += order_.candidates_from(order_.end_of(Level::kPipeline));
      return;
    }
    const PipelineOptions::Overlaps& overlaps = o.pipeline.overlaps;
    std::optional<Overlapped>& costs = by_overlap[(overlaps.ep_a2a ? 1u : 0u) + (overlaps.delay_wgrad ? 2u : 0u)];
    if (!costs) costs = overlapped(o);
    const double limit = best.limit(o.layout());
    if ((per_stage * costs->least + end) * kRounding >= limit) return;
    std::vector<StageLayout> layouts;
    if (o.pipeline.layout.empty())
      layouts = splits_to_try(problem_.model, kinds_, costs->costs, o.pipeline.pp, o.pipeline.vpp);
    else
      layouts.push_back(stage_layout(problem_.model, o));
    for (StageLayout& layout : layouts) {
      Split split = split_of(o, *costs, std::move(layout));
      split.least = std::max(split.least, per_stage * costs->least);
      if ((split.least + end) * kRounding < limit)
        open.push_back({.state = choice, .costs = &*costs, .split = std::move(split)});
    }
  });
  std::stable_sort(open.begin(), open.end(),
                   [](const Pipeline& a, const Pipeline& b) { return a.split.least < b.split.least; });
  constexpr std::size_t kPipelinesOfADive = 12, kStepsOfADive = 16;
  if (dives_ && open.size() > kPipelinesOfADive) open.resize(kPipelinesOfADive);
  // The plainest step first for all of them: what it comes to rules most other steps out.
  for (const bool plainest : {true, false})
    for (Pipeline& pipeline : open) {
      const Layout layout = pipeline.state.options.layout();
      if (pipeline.split.least * kRounding >= best.limit(layout)) continue;
      const std::vector<StepChoice>& steps = step_choices(pipeline.state, *pipeline.costs);
      const std::size_t last = plainest ? 1 : dives_ ? kStepsOfADive : steps.size();
      for (std::size_t i = plainest ? 0 : 1; i < std::min(last, steps.size()); ++i)
        step(pipeline, steps.front(), steps[i], best, found);
      if (dives_ && !found.empty()) return;
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
  Load sum = result.embedding;
  sum += result.head;
  sum += result.mtp.times(static_cast<double>(problem_.model.mtp_num_layers));
  for (std::size_t k = 0; k < kinds_.kinds.size(); ++k)
    sum += result.layer[k].times(static_cast<double>(kinds_.prefix[k].back()));
  result.least = at_least(sum).to<double>();
  return result;
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
                    .every_micro_batch = 0.0,
                    .beside = 0.0};
    if (shards_gradients(choice.options.step.sharding)) {
      const OpList ops = fsdp_ops(step, count);
      // The first unit of each direction is exposed; the others slow down what they run beside.
      const auto units = static_cast<double>(problem_.model.num_layers() + problem_.model.mtp_num_layers);
      for (const std::vector<Op>* direction : {&ops.forward, &ops.backward}) {
        const CommunicationSum sum = communication_of(*direction, hardware_);
        if (sum.time <= Seconds{}) continue;
        double loss = 1.0;
        for (const double products : {0.0, 1.0}) {
          const SharedPace pace =
              shared_pace({.time = Seconds{1.0}, .products = Seconds{products}, .squares = 0.0}, sum, 0.0, hardware_);
          loss = std::min(loss, (1.0 - pace.compute) / pace.communication);
        }
        made.every_micro_batch = std::max(made.every_micro_batch, sum.time.to<double>());
        made.beside += sum.time.to<double>() * (1.0 / units + (1.0 - 1.0 / units) * std::max(0.0, loss));
      }
    }
    entry->second.push_back(std::move(made));
  });
  return entry->second;
}

/// The savers that no rule refuses beside what is decided, those that need other decisions apart.
const std::vector<Evaluator::Savers>& Evaluator::savers_of(const State& state) {
  Digits key;
  for (const std::size_t i : order_.saver_rules_read()) key.push_back(state.digits[i]);
  const auto [entry, fresh] = savers_.try_emplace(std::move(key));
  std::vector<Savers>& list = entry->second;
  if (!fresh) return list;
  const std::size_t from = order_.begin_of(Level::kSavers);
  State start = state;
  start.digits.resize(from, 0);
  decide(start, from, order_.end_of(Level::kSavers), [&](const State& choice) {
    const TrainingOptions& o = choice.options;
    const bool full = o.layer.recompute.granularity == RecomputeGranularity::kFull;
    Savers savers{.recompute = o.layer.recompute,
                  .recompute_layers = o.pipeline.recompute,
                  .cpu_offloading_num_layers = o.pipeline.cpu_offloading_num_layers,
                  .partial = covered_layers(o, std::int64_t{1} << 30) < (std::int64_t{1} << 30),
                  .group = full && o.pipeline.recompute.method == RecomputeMethod::kUniform
                               ? static_cast<double>(o.pipeline.recompute.num_layers)
                               : 1.0,
                  .choices = {},
                  .largest = {}};
    auto same = std::find_if(list.begin(), list.end(), [&](const Savers& other) {
      return other.recompute == savers.recompute && other.recompute_layers == savers.recompute_layers &&
             other.cpu_offloading_num_layers == savers.cpu_offloading_num_layers;
    });
    if (same == list.end()) same = list.insert(same, std::move(savers));
    same->choices.push_back(
        {.offload = o.layer.offload_modules,
         .digits = {choice.digits.begin() + static_cast<std::ptrdiff_t>(from), choice.digits.end()}});
  });
  for (Savers& savers : list) {
    std::stable_sort(savers.choices.begin(), savers.choices.end(), [](const auto& a, const auto& b) {
      return std::popcount(a.offload.bits) < std::popcount(b.offload.bits);
    });
    for (std::size_t i = 0; i < savers.choices.size(); ++i) {
      const BitSet<OffloadModule> own = savers.choices[i].offload;
      if (std::none_of(savers.choices.begin() + static_cast<std::ptrdiff_t>(i) + 1, savers.choices.end(),
                       [&](const auto& other) { return (other.offload & own) == own; }))
        savers.largest.push_back(i);
    }
  }
  return list;
}

Evaluator::Kept Evaluator::kept_with(const TrainingOptions& options, const Savers& savers,
                                     BitSet<OffloadModule> offload) {
  TrainingOptions o = options;
  savers.apply(o, offload);
  const BuildContext build = context(o).layer();
  Kept kept{.layer = std::vector<double>(kinds_.kinds.size(), 0.0), .high = 0.0, .copies = {}};
  kept.copies.resize(kinds_.kinds.size());
  if (savers.partial) return kept;
  double high = std::numeric_limits<double>::infinity(), beside = 0.0;
  for (std::size_t k = 0; k < kinds_.kinds.size(); ++k) {
    const LayerSpec& kind = kinds_.kinds[k];
    const BlockCost &mixer = cache_.get(build, Piece::kMixer, kind), &mlp = cache_.get(build, Piece::kMlp, kind);
    MemoryProfile memory = mixer.memory;
    memory += mlp.memory;
    if (savers.recompute.granularity == RecomputeGranularity::kFull)
      memory = cache_.get(build, Piece::kLayer, kind).memory;
    kept.layer[k] = memory.kept.to<double>() / savers.group;
    kept.copies[k].forward.copy = mixer.forward.copy + mlp.forward.copy;
    kept.copies[k].backward.copy = mixer.backward.copy + mlp.backward.copy;
    // A chunk's last layer runs while all of the chunk is kept.
    const Bytes running = std::min(memory.forward_high, memory.backward_high) - memory.kept;
    high = std::min(high, savers.group > 1.0 ? 0.0 : running.to<double>());
    if (o.pipeline.overlaps.ep_a2a && kind.mlp == MlpKind::kMoe) {
      Bytes other = mixer.until_dispatched + mlp.until_dispatched;
      if (o.pipeline.overlaps.delay_wgrad) other += mixer.delayed + mlp.delayed;
      beside = std::max(beside, other.to<double>());
    }
  }
  kept.high = high + beside;
  return kept;
}

/// Fills the part of `costs` that savers change.
void Evaluator::price_savers(const State& state, Overlapped& costs) {
  if (!costs.savers.empty()) return;
  const PipelineOptions::Overlaps& overlaps = state.options.pipeline.overlaps;
  for (const Savers& savers : savers_of(state)) {
    Overlapped::Priced priced{.savers = &savers, .seconds = 0.0, .layer = {}, .least = {}, .kept = {}};
    TrainingOptions o = state.options;
    savers.apply(o, {});
    const BuildContext build = context(o).layer();
    Load sum = costs.embedding;
    sum += costs.head;
    sum += costs.mtp.times(static_cast<double>(problem_.model.mtp_num_layers));
    for (std::size_t k = 0; k < kinds_.kinds.size(); ++k) {
      const LayerSpec& kind = kinds_.kinds[k];
      const BlockCost &mixer = cache_.get(build, Piece::kMixer, kind), &mlp = cache_.get(build, Piece::kMlp, kind);
      Load load = load_of(mixer, {});
      load += load_of(mlp, {});
      if (overlaps.ep_a2a && kind.mlp == MlpKind::kMoe) {
        NodeTimes nodes = mixer.nodes;
        nodes += mlp.nodes;
        load.saving = ep_overlap_saving(nodes, overlaps.delay_wgrad, hardware_);
      }
      priced.layer.push_back(load);
      sum += (savers.partial ? costs.layer[k] : load).times(static_cast<double>(kinds_.prefix[k].back()));
    }
    priced.seconds = at_least(sum).to<double>();
    for (const std::size_t i : savers.largest) {
      const Kept kept = kept_with(state.options, savers, savers.choices[i].offload);
      if (priced.least.layer.empty()) priced.least = kept;
      for (std::size_t k = 0; k < kept.layer.size(); ++k)
        priced.least.layer[k] = std::min(priced.least.layer[k], kept.layer[k]);
      priced.least.high = std::min(priced.least.high, kept.high);
    }
    costs.savers.push_back(std::move(priced));
  }
  std::stable_sort(costs.savers.begin(), costs.savers.end(),
                   [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
}

/// The ranks that decide first what fits: the first, the busiest and the one that is fullest with the plainest step.
void Evaluator::watch(Pipeline& pipeline, const StepChoice& plainest) {
  TrainingOptions o = pipeline.state.options;
  o.step = plainest.options;
  const StepContext step = context(o);
  const Split& split = pipeline.split;
  const Composition c = compose(step, kinds_, pipeline.costs->costs, split.layout);
  ++statistics_.composed;
  pipeline.busiest_layers.assign(kinds_.kinds.size(), 0.0);
  for (std::size_t i = split.busiest; i < split.layout.stages.size(); i += split.ranks.size())
    for (std::size_t k = 0; k < kinds_.kinds.size(); ++k)
      pipeline.busiest_layers[k] += layers_of(k, split.layout.stages[i], split.layout.stages[i].num_layers);
  pipeline.times = c.times;
  for (StageTime& stage : pipeline.times.stages)
    stage.gather = stage.reduction = stage.first_forward_delay = stage.last_backward_delay = Seconds{};
  pipeline.stage_of = c.index;
  pipeline.stages.resize(c.distinct.size());
  for (std::size_t i = c.num_stages(); i-- > 0;) {
    const StageCost& stage = c.stage(i);
    pipeline.stages[c.index[i]] = {stage_of(c.times.shape, split.layout.stages.size(), i), stage.forward_transfers,
                                   stage.backward_transfers, stage.host.total()};
  }
  pipeline.least = runnable(o.pipeline.schedule) ? makespan_lower_bound(pipeline.times).to<double>() : 0.0;
  pipeline.bounds.assign(pipeline.costs->savers.size(), -1.0);
  const std::vector<PeakTable>& tables = peaks(c.times.shape);
  std::vector<std::size_t> ranks = {0};
  if (split.busiest != 0) ranks.push_back(split.busiest);
  Bytes most{};
  std::size_t fullest = 0;
  for (std::size_t rank = 0; rank < split.ranks.size(); ++rank) {
    const Bytes total = rank_memory(step, c, static_cast<std::int64_t>(rank), tables[rank]).total();
    if (total > most) fullest = rank;
    most = std::max(most, total);
  }
  if (std::find(ranks.begin(), ranks.end(), fullest) == ranks.end()) ranks.push_back(fullest);
  for (const std::size_t rank : ranks) {
    const StageMemory memory = rank_memory(step, c, static_cast<std::int64_t>(rank), tables[rank]);
    Watched w{.rank = rank,
              .parameters = c.parameters[rank],
              .other = memory.cuda_context + memory.nccl + memory.dispatcher_buffers};
    // Graphs of parts of a layer hold what savers would free.
    if (o.layer.cuda_graph.impl != GraphImpl::kTransformerEngine) w.other += memory.lasting_buffers;
    w.parameters.padding = w.parameters.low_precision_padding = 0.0;  // Another step pads otherwise.
    const PeakTable& table = tables[rank];
    const std::size_t chunks = table.largest.size();
    double most_layers = -1.0;
    for (std::size_t moment = 0; moment < table.running.size() && runnable(o.pipeline.schedule); ++moment) {
      std::vector<double> count(kinds_.kinds.size(), 0.0);
      double layers = 0.0;
      for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        const StageContent& content = split.layout.stages[chunk * split.ranks.size() + rank];
        const double times = table.counts[moment * chunks + chunk];
        for (std::size_t k = 0; k < count.size(); ++k) count[k] += times * layers_of(k, content, content.num_layers);
        layers += times * static_cast<double>(content.num_layers);
      }
      if (layers > most_layers) {
        most_layers = layers;
        w.in_flight = std::move(count);
      }
    }
    w.in_flight.resize(kinds_.kinds.size(), 0.0);
    pipeline.watched.push_back(std::move(w));
  }
}

/// Least seconds of the schedule with savers, whatever the step.
double Evaluator::saver_bound(Pipeline& pipeline, std::size_t position) const {
  if (pipeline.bounds[position] >= 0.0) return pipeline.bounds[position];
  const Overlapped& costs = *pipeline.costs;
  const Overlapped::Priced& priced = costs.savers[position];
  TrainingOptions o = pipeline.state.options;
  if (priced.savers->partial) priced.savers->apply(o, {});
  std::vector<StageTime> differing;
  for (const Pipeline::Stage& stage : pipeline.stages) {
    const StageContent& content = pipeline.split.layout.stages[stage.first];
    const std::int64_t covered = priced.savers->partial ? covered_layers(o, content.num_layers) : content.num_layers;
    Load load = pipeline.split.stages[stage.first];
    for (std::size_t k = 0; k < kinds_.kinds.size(); ++k) {
      const double count = layers_of(k, content, covered);
      load += priced.layer[k].times(count);
      load += costs.layer[k].times(-count);
    }
    load.forward.work += stage.forward;
    load.backward.work += stage.backward;
    differing.push_back({.forward = load.forward.at_least(stage.idle),
                         .backward = load.backward.at_least(stage.idle),
                         .merged_pair_saving = load.saving});
  }
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

void Evaluator::step(Pipeline& pipeline, const StepChoice& plainest, const StepChoice& choice, Best& best,
                     std::vector<Found>& found) {
  Overlapped& costs = *pipeline.costs;
  const Split& split = pipeline.split;
  const Layout layout = pipeline.state.options.layout();
  const double m = static_cast<double>(pipeline.state.options.num_microbatches()),
               per_stage = micro_batches_per_stage(pipeline.state.options);
  // More idle tensor cores leave more power to the others: of what is added to their work, this much stays at least.
  const Load& busiest = split.ranks[split.busiest];
  const auto lost_by = [](const DirectionLoad& load) {
    return load.products > Seconds{} ? (load.unclocked / load.products).to<double>() : 0.0;
  };
  const double lost = std::max(lost_by(busiest.forward), lost_by(busiest.backward));
  const double beside = m * choice.beside * (1.0 - 2.0 * lost) / ((1.0 - lost) * (1.0 - lost));
  const double with_step = std::max(split.least, m * choice.every_micro_batch) + choice.end;
  if (with_step * kRounding >= best.limit(layout)) return;
  price_savers(pipeline.state, costs);
  if (pipeline.watched.empty()) watch(pipeline, plainest);
  if ((std::max(pipeline.least + beside, with_step - choice.end) + choice.end) * kRounding >= best.limit(layout))
    return;
  State state = pipeline.state;
  state.options.step = choice.options;
  state.digits.insert(state.digits.end(), choice.digits.begin(), choice.digits.end());

  std::vector<double> room;  // Bytes for activations.
  for (const Watched& w : pipeline.watched) {
    const StaticBytes fixed = static_bytes(context(state.options), w.parameters);
    room.push_back(
        (hardware_.hbm_capacity - w.other - fixed.parameters - fixed.gradients - fixed.optimizer).to<double>());
    if (room.back() < 0.0) return;  // Nothing of the activations helps.
  }
  const auto too_much = [&](const Kept& kept) {
    for (std::size_t w = 0; w < room.size(); ++w) {
      double activations = kept.high;
      for (std::size_t k = 0; k < kept.layer.size(); ++k)
        activations += pipeline.watched[w].in_flight[k] * kept.layer[k];
      if ((1.0 + hardware_.overheads.fragmentation) * activations * kRounding > room[w]) return true;
    }
    return false;
  };
  const auto bound_of = [](const Composition& c) {
    return step_time(c, makespan_lower_bound(c.times)).to<double>() * kRounding;
  };
  // The data-parallel collectives are known once the step is composed; savers only add work to it.
  std::optional<double> without_savers;
  std::vector<std::pair<const Savers*, BitSet<OffloadModule>>> fitting;  // What does more than these is slower.
  constexpr int kSaversOfADive = 16;
  int dived = 0;
  for (std::size_t i = 0; i < costs.savers.size(); ++i) {
    Overlapped::Priced& priced = costs.savers[i];
    const Savers& savers = *priced.savers;
    if ((per_stage * priced.seconds + choice.end) * kRounding >= best.limit(layout)) break;
    if (too_much(priced.least)) continue;
    State whole = state;
    savers.apply(whole.options, savers.choices.front().offload);
    if (savers.choices.size() == 1 && refused(order_.late_rules(), whole.options, 1.0)) continue;
    if ((saver_bound(pipeline, i) + beside + choice.end) * kRounding >= best.limit(layout)) continue;
    // Whether any offloading keeps little enough without copying for too long.
    priced.kept.resize(savers.choices.size());
    const auto promises = [&](std::size_t n) {
      savers.apply(whole.options, savers.choices[n].offload);
      if (refused(order_.late_rules(), whole.options, 1.0)) return false;
      if (priced.kept[n].layer.empty()) priced.kept[n] = kept_with(state.options, savers, savers.choices[n].offload);
      const Kept& kept = priced.kept[n];
      if (too_much(kept)) return false;
      if (savers.partial || savers.choices[n].offload.empty()) return true;
      Load work = split.ranks[split.busiest];
      for (std::size_t k = 0; k < kinds_.kinds.size(); ++k) {
        const double count = pipeline.busiest_layers[k];
        work += priced.layer[k].times(count);
        work += costs.layer[k].times(-count);
        work += kept.copies[k].times(count);
      }
      return (schedule_bound(pipeline.state.options, split.stages, split.busiest, work) + beside + choice.end) *
                 kRounding <
             best.limit(layout);
    };
    std::size_t promising = 0;
    while (promising < savers.choices.size() && !promises(promising)) ++promising;
    if (promising == savers.choices.size()) continue;
    if (!without_savers) {
      const Composition c = compose(context(state.options), kinds_, costs.costs, split.layout);
      ++statistics_.composed;
      without_savers = bound_of(c);
    }
    if (*without_savers >= best.limit(layout)) return;
    savers.apply(whole.options, {});
    if (dives_ && ++dived > kSaversOfADive) return;
    const Composition kept_on_device =
        compose(context(whole.options), kinds_, model_costs(context(whole.options), kinds_, &cache_), split.layout);
    ++statistics_.composed;
    if (bound_of(kept_on_device) >= best.limit(layout)) continue;
    // A dive takes what surely keeps little, first that which needs no copies.
    const auto dives_into = [&](std::size_t n) {
      return n == promising || std::find(savers.largest.begin(), savers.largest.end(), n) != savers.largest.end();
    };
    for (std::size_t n = promising; n < savers.choices.size(); ++n) {
      if (dives_ && !dives_into(n)) continue;
      const Savers::Choice& offload = savers.choices[n];
      if (std::any_of(fitting.begin(), fitting.end(), [&](const auto& less) {
            return savers.contains(*less.first) && (offload.offload & less.second) == less.second;
          }))
        continue;
      if (!promises(n)) continue;
      savers.apply(whole.options, offload.offload);
      const StepContext context = this->context(whole.options);
      const bool on_device = offload.offload.empty();
      const Composition c =
          on_device ? kept_on_device : compose(context, kinds_, model_costs(context, kinds_, &cache_), split.layout);
      if (!on_device) ++statistics_.composed;
      if (bound_of(c) >= best.limit(layout)) continue;
      if (!fits(context, c, peaks(c.times.shape))) {
        statistics_.rejected[rules().size()] += 1.0;
        continue;
      }
      fitting.emplace_back(&savers, offload.offload);
      State found_state = whole;
      found_state.digits.insert(found_state.digits.end(), offload.digits.begin(), offload.digits.end());
      simulate(found_state, split, c, best, found);
      // Offloading that hides entirely: no other takes less time.
      const auto same = [](const StageTime& a, const StageTime& b) {
        return a.forward == b.forward && a.backward == b.backward && a.merged_pair_saving == b.merged_pair_saving;
      };
      if (std::equal(c.times.stages.begin(), c.times.stages.end(), kept_on_device.times.stages.begin(), same)) break;
    }
    if (savers.plain() && !fitting.empty() && fitting.front().second.empty()) return;
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
