#include "planner/search/evaluate.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <deque>
#include <numeric>
#include <queue>
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

// The fastest plan is exact. Of another layout a plan may be missed that is faster by no more than this share.
constexpr double kTolerance = 0.05;

// Microseconds of a core, about: what the effort of a search is counted in, so that it ends at the same place everywhere.
constexpr std::int64_t kPopped = 1, kWatched = 50, kComposed = 10, kSimulated = 30, kPriced = 1500;

constexpr std::size_t kMostRemembered = 16384;

// What a dive looks at below a choice of experts, and of each pipeline.
constexpr std::size_t kPipelinesOfADive = 24, kStepsOfADive = 8;

const LayerSpec& mtp_layer(const ModelSpec& model, std::size_t i) { return model.mtp_layers[i]; }

}  // namespace

// ---- Best ----------------------------------------------------------------------------------------------------------

void Best::offer(const Found& found) {
  const auto [entry, fresh] = found_.try_emplace(key(found.options.layout()));
  if (!fresh && std::tie(entry->second->time, entry->second->digits) <= std::tie(found.time, found.digits)) return;
  entry->second = std::make_shared<const Found>(found);
  fastest_ = std::min(fastest_, found.time.to<double>());
  limit_ = kWindow * fastest_;
  if (found_.size() < top_) return;
  std::vector<double> times;
  times.reserve(found_.size());
  for (const auto& [layout, known] : found_) times.push_back(known->time.to<double>());
  const auto last = times.begin() + static_cast<std::ptrdiff_t>(top_ - 1);
  std::nth_element(times.begin(), last, times.end());
  limit_ = std::min(limit_, std::max(fastest_, (1.0 - kTolerance) * *last));
}

double Best::limit(const Layout& layout) const {
  const auto known = found_.find(key(layout));
  if (known == found_.end()) return limit_;
  const double time = known->second->time.to<double>();
  return std::min(limit_, std::max(fastest_, (1.0 - kTolerance) * time));
}

std::vector<Found> Best::first(std::size_t count) const {
  std::vector<Found> list;
  for (const auto& [layout, known] : found_) list.push_back(*known);
  std::sort(list.begin(), list.end(),
            [](const Found& a, const Found& b) { return std::tie(a.time, a.digits) < std::tie(b.time, b.digits); });
  if (list.size() > count) list.resize(count);
  return list;
}

std::vector<Found> Best::sorted() const {
  std::vector<Found> list = first(top_);
  std::erase_if(list, [&](const Found& f) { return f.time.to<double>() > kWindow * fastest_; });
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
  costmodel::TrainingOptions covering;  ///< With these savers, for covered_layers().
  std::int64_t fewer_layers = 0;  ///< Of full recomputation: the number below its own that is a choice too; 0: none is.

  void apply(TrainingOptions& o, BitSet<OffloadModule> offload) const {
    o.layer.recompute = recompute;
    o.layer.offload_modules = offload;
    o.pipeline.recompute = recompute_layers;
    o.pipeline.cpu_offloading_num_layers = cpu_offloading_num_layers;
  }
  [[nodiscard]] std::int64_t covered(std::int64_t layers) const {
    return partial ? covered_layers(covering, layers) : layers;
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

/// What savers leave in memory, of one micro-batch: bytes.
struct Evaluator::Kept {
  std::vector<double> layer;              ///< [kinds] of one layer.
  std::vector<double> forward, backward;  ///< [kinds] what a running task of the layer needs besides.
  std::vector<double> rebuilt;            ///< [kinds] by backward, of each other layer of a checkpoint.
  std::vector<double> rests;              ///< [kinds] from backward until the next forward.
  std::vector<double> host;               ///< [kinds] offloaded.
  double mtp = 0.0;                       ///< Of one MTP depth.
  double mtp_forward = 0.0, mtp_backward = 0.0;  ///< What its last layer needs besides while it runs.
  double beside = 0.0;                    ///< EP overlap: of the other micro-batch.
  std::vector<Load> copies;               ///< [kinds] over the host link, without the rest.
  void at_most(const Kept& other) {
    const auto lower = [](std::vector<double>& mine, const std::vector<double>& theirs) {
      for (std::size_t k = 0; k < mine.size(); ++k) mine[k] = std::min(mine[k], theirs[k]);
    };
    lower(layer, other.layer);
    lower(forward, other.forward);
    lower(backward, other.backward);
    lower(rebuilt, other.rebuilt);
    lower(rests, other.rests);
    lower(host, other.host);
    mtp = std::min(mtp, other.mtp);
    mtp_forward = std::min(mtp_forward, other.mtp_forward);
    mtp_backward = std::min(mtp_backward, other.mtp_backward);
    beside = std::min(beside, other.beside);
  }
};

/// Costs of the pieces for one way to overlap the experts' exchange.
struct Evaluator::Overlapped {
  ModelCosts costs;         ///< Without savers.
  std::vector<Load> layer;  ///< [kinds] without savers.
  Load embedding, head, mtp;
  Load others;  ///< Of the whole model, decoder layers left out.
  double least = 0.0;  ///< Seconds of the whole model for a micro-batch, without savers.
  /// Made when first needed: the savers with the least work first.
  struct Priced {
    const Savers* savers = nullptr;
    double seconds = 0.0;     ///< Of the whole model for a micro-batch, without offloading.
    std::vector<Load> layer;  ///< [kinds] of a covered layer, without offloading.
    Kept least;               ///< With the most offloading.
    std::vector<Kept> kept{};   ///< [choices], made when first needed.
    std::vector<double> choice_seconds{};  ///< [choices] as `seconds`, with the copies; likewise.
  };
  std::vector<Priced> savers;
  Kept plain;  ///< Without savers.
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

/// A rank whose memory is looked at before that of the others, at the moment that needs most without savers.
struct Evaluator::Watched {
  std::size_t rank = 0;
  ParameterCount parameters;
  double layers = 0.0;              ///< Of its first stage: Megatron-FSDP's units.
  Bytes overhead{};                 ///< Outside of the allocator.
  Bytes buffers{};                  ///< Besides, that no option changes which is still open.
  std::vector<const StageContent*> stages{};  ///< [vpp]
  std::vector<double> layers_of{};            ///< [kinds] of all its stages.
  /// The two that need most without savers: in forward and in backward.
  struct Moment {
    std::vector<double> in_flight{};  ///< [kinds] layers.
    std::vector<double> chunks{};     ///< [vpp] micro-batches.
    double depths = 0.0;              ///< MTP depths in flight.
    double kept = 0.0;                ///< Bytes of embedding, head and MTP's projections in flight.
    const StageContent* running = nullptr;
    bool forward = false;
    double head = 0.0;         ///< Bytes that head and loss need besides while they run.
    double projections = 0.0;  ///< Bytes that those of one MTP depth keep.
  };
  std::vector<Moment> moments{};
};

/// A choice of the step for a pipeline.
struct Evaluator::OpenStep {
  double beside = 0.0;            ///< Seconds that Megatron-FSDP adds at least to the schedule.
  double least = 0.0;             ///< Seconds without savers.
  std::vector<double> room{}, host_room{};  ///< [watched] bytes for activations.
  std::vector<double> optimizer_room{};     ///< [watched] for what they leave until the next step.
  std::optional<double> without_savers{};                                    ///< Composed.
  std::vector<std::pair<const Savers*, BitSet<OffloadModule>>> fitting{};  ///< What does more than these is slower.
  bool done = false;
};

/// Bytes that savers need at least on the watched ranks.
struct Evaluator::Need {
  static constexpr std::size_t kMostWatched = 3;
  std::array<double, kMostWatched> bytes{}, host{}, rests{};
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
  struct Needs {
    std::optional<Need> least{};               ///< With any offloading.
    std::vector<std::optional<Need>> choices{};
  };
  std::vector<Needs> needs{};  ///< [Overlapped::savers] made when first needed.
  std::vector<OpenStep> steps{};
  std::int64_t most_layers = 1;  ///< Of a chunk.
  std::size_t dived = 0;
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

double Evaluator::bound_of(const State& state) {
  const Load load = layers_load(state.options, true);
  return (micro_batches_per_stage(state.options) * at_least(load) + hardware_.host.step).to<double>() * kRounding;
}

void Evaluator::expand(const Digits& digits, double limit, const Push& push) {
  decide(state_of(digits), digits.size(), order_.end_of(Level::kExperts), [&](const State& state) {
    const double bound = bound_of(state);
    if (bound < limit) push(bound, state.digits);
  });
}

// ---- Below
// -----------------------------------------------------------------------------------------------------------

Evaluator::Answer Evaluator::evaluate(const Digits& digits, Bytes capacity, const Best& best, Effort effort) {
  hardware_.hbm_capacity = capacity;
  effort_ = effort;
  // Costs of other choices are rarely needed again.
  if (cache_.size() > kMostRemembered) cache_ = {};
  if (step_choices_.size() > kMostRemembered) step_choices_.clear();
  if (peaks_.size() > kMostRemembered / 32) peaks_.clear();
  if (savers_.size() > kMostRemembered / 512) savers_.clear();
  Best mine = best;
  Answer answer;
  graphs(state_of(digits), mine, answer);
  answer.effort = effort.most - effort_.most;
  return answer;
}

std::optional<std::pair<double, Digits>> Evaluator::node(Digits digits) {
  State state = state_of({});
  for (std::size_t i = 0; i < order_.end_of(Level::kExperts); ++i) {
    const auto with = [&](std::uint16_t digit) {
      State next = state;
      next.digits.push_back(digit);
      if (!apply(problem_, order_.at(i), digit, next.options)) return false;
      state = bases_.depends_on(order_.dimensions()[i]) ? state_of(next.digits) : std::move(next);
      settle_data_parallel(problem_, state.options);
      return true;
    };
    if (!with(digits[i]) && !with(0)) return std::nullopt;  // What does not apply any more is left alone.
    for (const std::size_t rule : order_.rules_at(i))
      if (rules()[rule].violated(rule_problem_, state.options)) return std::nullopt;
  }
  if (problem_.num_gpus % (state.options.layer.tp * state.options.layer.cp) != 0) return std::nullopt;
  return std::pair{bound_of(state), std::move(state.digits)};
}

void Evaluator::graphs(const State& state, Best& best, Answer& answer) {
  std::vector<State> choices;
  decide(state, order_.begin_of(Level::kGraphs), order_.end_of(Level::kGraphs),
         [&](const State& choice) { choices.push_back(choice); });
  // A graph of the whole iteration leaves the host nothing to issue and keeps no tensors of its own; no rule refuses it
  // where it allows another (tests/search_test.cc). So nothing else is faster, or needs less memory.
  const auto whole = std::find_if(choices.begin(), choices.end(), [](const State& choice) {
    return choice.options.layer.cuda_graph.impl == GraphImpl::kFullIteration;
  });
  if (whole != choices.end()) return pipelines(*whole, best, answer);
  for (const State& choice : choices) pipelines(choice, best, answer);
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

/// What is open below a choice of layers' options, the least bound first.
struct Evaluator::Open {
  enum class What : std::uint8_t { kPipeline, kSplit, kStep, kSavers };
  double bound = 0.0;
  int depth = 0;            ///< Of a dive: the deepest first.
  std::uint32_t order = 0;  ///< Of equal bounds the earlier one first.
  What what = What::kPipeline;
  std::uint32_t pipeline = 0;  ///< Of kPipeline: index of the choice; else of the split.
  std::uint16_t step = 0, savers = 0;
  bool operator>(const Open& other) const {
    return std::tie(other.depth, bound, order) > std::tie(depth, other.bound, other.order);
  }
};

void Evaluator::pipelines(const State& state, Best& best, Answer& answer) {
  std::array<std::optional<Overlapped>, 4> by_overlap;
  const double per_stage = micro_batches_per_stage(state.options), end = hardware_.host.step.to<double>();
  const std::int64_t most_stages = problem_.model.num_layers() + 2;
  struct Choice {
    State state;
    Overlapped* costs;
  };
  std::vector<Choice> choices;
  std::deque<Pipeline> splits;
  std::priority_queue<Open, std::vector<Open>, std::greater<>> open;
  std::uint32_t order = 0;
  const auto push = [&](Open item, const Layout& layout) {
    if (item.bound * kRounding >= best.limit(layout)) return;
    item.order = order++;
    item.depth = !effort_.dive ? 0 : item.what == Open::What::kSavers ? 2 : item.what == Open::What::kStep ? 0 : 1;
    open.push(item);
  };
  decide(state, order_.begin_of(Level::kPipeline), order_.end_of(Level::kPipeline), [&](const State& choice) {
    const TrainingOptions& o = choice.options;
    if (o.pipeline.pp * o.pipeline.vpp > most_stages) {
      statistics_.rejected.back() += order_.candidates_from(order_.end_of(Level::kPipeline));
      return;
    }
    const PipelineOptions::Overlaps& overlaps = o.pipeline.overlaps;
    std::optional<Overlapped>& costs = by_overlap[(overlaps.ep_a2a ? 1u : 0u) + (overlaps.delay_wgrad ? 2u : 0u)];
    if (!costs) costs = overlapped(o);
    push({.bound = per_stage * costs->least + end, .pipeline = static_cast<std::uint32_t>(choices.size())}, o.layout());
    choices.push_back({choice, &*costs});
  });
  // Splits depend on the stages and the costs, not on the order of micro-batches.
  std::map<std::tuple<const Overlapped*, std::int64_t, std::int64_t>, std::vector<StageLayout>> layouts;
  std::size_t pipelines_tried = 0;
  while (!open.empty()) {
    const Open item = open.top();
    open.pop();
    if (item.bound * kRounding >= best.limit()) {
      if (effort_.dive) continue;
      return;
    }
    if (effort_.dive && item.what == Open::What::kStep && effort_.steps-- == 0) return;
    spend(kPopped);
    if (effort_.most < 0) {
      answer.left = std::min(answer.left, item.bound * kRounding);
      return;
    }
    if (item.what == Open::What::kPipeline) {
      if (effort_.dive && ++pipelines_tried > kPipelinesOfADive) continue;
      const Choice& choice = choices[item.pipeline];
      const TrainingOptions& o = choice.state.options;
      const Layout layout = o.layout();
      if (item.bound * kRounding >= best.limit(layout)) continue;
      std::vector<StageLayout>& to_try = layouts[{choice.costs, o.pipeline.pp, o.pipeline.vpp}];
      if (to_try.empty()) {
        if (o.pipeline.layout.empty())
          to_try = splits_to_try(problem_.model, kinds_, choice.costs->costs, o.pipeline.pp, o.pipeline.vpp);
        else
          to_try.push_back(stage_layout(problem_.model, o));
      }
      for (const StageLayout& stages : to_try) {
        Split split = split_of(o, *choice.costs, stages);
        split.least = std::max(split.least, per_stage * choice.costs->least);
        const double bound = split.least + end;
        if (bound * kRounding >= best.limit(layout)) continue;
        splits.push_back({.state = choice.state, .costs = choice.costs, .split = std::move(split)});
        push({.bound = bound, .what = Open::What::kSplit, .pipeline = static_cast<std::uint32_t>(splits.size() - 1)},
             layout);
      }
      continue;
    }
    Pipeline& pipeline = splits[item.pipeline];
    const Layout layout = pipeline.state.options.layout();
    if (item.bound * kRounding >= best.limit(layout)) continue;
    const std::vector<StepChoice>& steps = step_choices(pipeline.state, *pipeline.costs);
    const auto push_step = [&](std::uint16_t step) {
      push({.bound = std::max(item.bound, step_bound(pipeline, pipeline.steps[step], steps[step])),
            .what = Open::What::kStep,
            .pipeline = item.pipeline,
            .step = step},
           layout);
    };
    switch (item.what) {
      case Open::What::kPipeline:
        break;
      case Open::What::kSplit:
        if (steps.empty()) break;
        price_savers(pipeline.state, *pipeline.costs);
        watch(pipeline, steps.front());
        pipeline.steps.resize(steps.size());
        for (std::size_t i = 0; i < steps.size(); ++i)
          if (begin_step(pipeline, i, steps[i], best.limit(layout))) push_step(static_cast<std::uint16_t>(i));
        break;
      case Open::What::kStep: {
        OpenStep& step = pipeline.steps[item.step];
        if (step.done || (effort_.dive && ++pipeline.dived > kStepsOfADive)) break;
        if (!step.without_savers) {
          // The data-parallel collectives are known once the step is composed; savers only add work to it.
          TrainingOptions o = pipeline.state.options;
          o.step = steps[item.step].options;
          const Composition c = compose(context(o), kinds_, pipeline.costs->costs, pipeline.split.layout);
          ++statistics_.composed;
          spend(kComposed);
          for (const Watched& w : pipeline.watched) {
            const StageMemory memory =
                rank_memory(context(o), c, static_cast<std::int64_t>(w.rank), peaks(c.times.shape)[w.rank]);
            step.optimizer_room.push_back(
                (hardware_.hbm_capacity - w.overhead - memory.allocated_in_optimizer + memory.rests).to<double>());
            step.done = step.done || step.optimizer_room.back() < 0.0;
          }
          if (step.done) break;
          step.without_savers = step_time(c, makespan_lower_bound(c.times)).to<double>();
          step.least = std::max(step.least, *step.without_savers);
          if (!effort_.dive && step.least > item.bound) {
            Open again = item;
            again.bound = step.least;
            push(again, layout);
            break;
          }
        }
        const double limit = best.limit(layout);
        for (std::size_t i = 0; i < pipeline.costs->savers.size(); ++i) {
          const Overlapped::Priced& priced = pipeline.costs->savers[i];
          double bound = std::max(item.bound, per_stage * priced.seconds + steps[item.step].end);
          if (bound * kRounding >= limit) break;
          bound = std::max(bound, per_stage * promise(pipeline, step, i) + steps[item.step].end);
          if (bound * kRounding >= limit) continue;
          bound = std::max(bound, saver_bound(pipeline, i) + step.beside + steps[item.step].end);
          push({.bound = bound,
                .what = Open::What::kSavers,
                .pipeline = item.pipeline,
                .step = item.step,
                .savers = static_cast<std::uint16_t>(i)},
               layout);
        }
        break;
      }
      case Open::What::kSavers:
        if (!pipeline.steps[item.step].done) savers(pipeline, item.step, steps[item.step], item.savers, best, answer);
        break;
    }
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
  result.others = result.embedding;
  result.others += result.head;
  result.others += result.mtp.times(static_cast<double>(problem_.model.mtp_num_layers));
  Load sum = result.others;
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
                  .largest = {},
                  .covering = {},
                  .fewer_layers = 0};
    savers.apply(savers.covering, {});
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

Evaluator::Kept Evaluator::kept_with(const TrainingOptions& options, const Savers& savers,
                                     BitSet<OffloadModule> offload) {
  TrainingOptions o = options;
  savers.apply(o, offload);
  const BuildContext build = context(o).layer();
  const std::size_t kinds = kinds_.kinds.size();
  Kept kept;
  for (std::vector<double>* list : {&kept.layer, &kept.forward, &kept.backward, &kept.rebuilt, &kept.rests, &kept.host}) list->assign(kinds, 0.0);
  kept.copies.resize(kinds);
  const bool full = savers.recompute.granularity == RecomputeGranularity::kFull;
  const auto memory_of = [&](const LayerSpec& layer, const BlockCost& mixer, const BlockCost& mlp) {
    if (full) return cache_.get(build, Piece::kLayer, layer).memory;
    MemoryProfile memory = mixer.memory;
    memory += mlp.memory;
    return memory;
  };
  for (std::size_t k = 0; k < kinds; ++k) {
    const LayerSpec& kind = kinds_.kinds[k];
    const BlockCost &mixer = cache_.get(build, Piece::kMixer, kind), &mlp = cache_.get(build, Piece::kMlp, kind);
    const MemoryProfile memory = memory_of(kind, mixer, mlp);
    kept.layer[k] = memory.kept.to<double>() / savers.group;
    kept.rests[k] = memory.rests.to<double>();
    kept.forward[k] = (memory.forward_high - memory.kept).to<double>();
    kept.backward[k] = (memory.backward_high - memory.kept).to<double>();
    if (full && savers.group > 1.0) kept.rebuilt[k] = cache_.get(build, Piece::kLayer, kind).rematerialised.to<double>();
    kept.copies[k].forward.copy = mixer.forward.copy + mlp.forward.copy;
    kept.copies[k].backward.copy = mixer.backward.copy + mlp.backward.copy;
    kept.host[k] = (mixer.host_bytes + mlp.host_bytes).to<double>();
    if (o.pipeline.overlaps.ep_a2a && kind.mlp == MlpKind::kMoe) {
      Bytes other = mixer.until_dispatched + mlp.until_dispatched;
      if (o.pipeline.overlaps.delay_wgrad) other += mixer.delayed + mlp.delayed;
      kept.beside = std::max(kept.beside, other.to<double>());
    }
  }
  if (savers.partial) kept.beside = 0.0;
  for (const LayerSpec& layer : problem_.model.mtp_layers) {
    const MemoryProfile memory =
        memory_of(layer, cache_.get(build, Piece::kMixer, layer), cache_.get(build, Piece::kMlp, layer));
    kept.mtp += memory.kept.to<double>();
    kept.mtp_forward = (memory.forward_high - memory.kept).to<double>();
    kept.mtp_backward = (memory.backward_high - memory.kept).to<double>();
  }
  return kept;
}

/// Fills the part of `costs` that savers change.
void Evaluator::price_savers(const State& state, Overlapped& costs) {
  if (!costs.savers.empty()) return;
  spend(kPriced);
  const PipelineOptions::Overlaps& overlaps = state.options.pipeline.overlaps;
  costs.plain = kept_with(state.options, Savers{}, {});
  for (const Savers& savers : savers_of(state)) {
    Overlapped::Priced priced{.savers = &savers, .seconds = 0.0, .layer = {}, .least = {}};
    TrainingOptions o = state.options;
    savers.apply(o, {});
    const BuildContext build = context(o).layer();
    Load sum = costs.others;
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
      priced.least.at_most(kept);
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
  spend(kWatched);
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
  pipeline.needs.resize(pipeline.costs->savers.size());
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
  for (const StageContent& stage : split.layout.stages)
    pipeline.most_layers = std::max(pipeline.most_layers, stage.num_layers);
  const ModelCosts& costs = pipeline.costs->costs;
  for (const std::size_t rank : ranks) {
    const StageMemory memory = rank_memory(step, c, static_cast<std::int64_t>(rank), tables[rank]);
    Watched w{.rank = rank,
              .parameters = c.parameters[rank],
              .layers = std::max(1.0, static_cast<double>(c.stage(0).layers)),
              .overhead = memory.cuda_context + memory.nccl + memory.dispatcher_buffers,
              .buffers = memory.allocated_beside_chunks - memory.parameters - memory.gradients - memory.optimizer -
                         fsdp_buffers(step, c.parameters[rank], c.stage(0).layers)};
    w.parameters.padding = w.parameters.low_precision_padding = 0.0;  // Another step pads otherwise.
    const PeakTable& table = tables[rank];
    const std::size_t chunks = table.largest.size();
    for (std::size_t chunk = 0; chunk < chunks; ++chunk)
      w.stages.push_back(&split.layout.stages[chunk * split.ranks.size() + rank]);
    w.layers_of.assign(kinds_.kinds.size(), 0.0);
    for (const StageContent* stage : w.stages)
      for (std::size_t k = 0; k < w.layers_of.size(); ++k)
        w.layers_of[k] += layers_of(k, *stage, stage->num_layers);
    for (const bool forward : {true, false}) {
      double highest = -1.0;
      Watched::Moment at{.forward = forward, .projections = projections_kept(o)};
      for (std::size_t moment = 0; moment < table.running.size() && runnable(o.pipeline.schedule); ++moment) {
        if (table.forward[moment] != forward) continue;
        const double* const counts = table.counts.data() + moment * chunks;
        const auto running = static_cast<std::size_t>(table.running[moment]);
        const auto profile = [&](std::size_t chunk) -> const MemoryProfile& {
          return c.stage(chunk * split.ranks.size() + rank).cost.memory;
        };
        double level =
            ((forward ? profile(running).forward_high : profile(running).backward_high) - profile(running).kept)
                .to<double>();
        for (std::size_t chunk = 0; chunk < chunks; ++chunk) level += counts[chunk] * profile(chunk).kept.to<double>();
        if (level <= highest) continue;
        highest = level;
        at.chunks.assign(counts, counts + chunks);
        at.running = w.stages[running];
      }
      if (at.running == nullptr) continue;
      const MemoryProfile& head = costs.head.memory;
      at.head = ((forward ? head.forward_high : head.backward_high) - head.kept).to<double>();
      at.in_flight.assign(kinds_.kinds.size(), 0.0);
      for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        const StageContent& content = *w.stages[chunk];
        for (std::size_t k = 0; k < at.in_flight.size(); ++k)
          at.in_flight[k] += at.chunks[chunk] * layers_of(k, content, content.num_layers);
        const auto depths = static_cast<double>(content.mtp_layers);
        at.depths += at.chunks[chunk] * depths;
        at.kept += at.chunks[chunk] * ((content.embedding ? costs.embedding.memory.kept.to<double>() : 0.0) +
                                       (content.loss ? head.kept.to<double>() : 0.0) + depths * at.projections);
      }
      w.moments.push_back(std::move(at));
    }
    pipeline.watched.push_back(std::move(w));
  }
}

/// Bytes that the projections of one MTP depth keep.
double Evaluator::projections_kept(const TrainingOptions& o) {
  if (problem_.model.mtp_num_layers == 0) return 0.0;
  return cache_.get(context(o).layer(), Piece::kMtp, {}).memory.kept.to<double>();
}

/// Bytes of activations that a watched rank has at least at a moment.
double Evaluator::activations(const Pipeline& pipeline, const Watched& w, std::size_t moment, const Savers& savers,
                              const Kept& kept) const {
  const Watched::Moment& at = w.moments[moment];
  const Kept& plain = pipeline.costs->plain;
  const auto covered = [&](const StageContent& content) { return savers.covered(content.num_layers); };
  double bytes = at.kept + at.depths * kept.mtp + kept.beside;
  if (savers.partial) {
    for (std::size_t chunk = 0; chunk < at.chunks.size(); ++chunk) {
      const StageContent& content = *w.stages[chunk];
      for (std::size_t k = 0; k < kept.layer.size(); ++k) {
        const double all = layers_of(k, content, content.num_layers), with = layers_of(k, content, covered(content));
        bytes += at.chunks[chunk] * (with * kept.layer[k] + (all - with) * plain.layer[k]);
      }
    }
  } else {
    for (std::size_t k = 0; k < kept.layer.size(); ++k) bytes += at.in_flight[k] * kept.layer[k];
  }
  const StageContent& running = *at.running;
  // Each piece runs while what comes before it is kept.
  double high = 0.0, later = 0.0, on_host = 0.0;
  if (running.loss) {
    high = at.head;
    later += pipeline.costs->costs.head.memory.kept.to<double>();
  }
  if (running.mtp_layers > 0) {
    high = std::max(high, (at.forward ? kept.mtp_forward : kept.mtp_backward) - later);
    later += static_cast<double>(running.mtp_layers) * (kept.mtp + at.projections);
  }
  if (running.num_layers > 0) {
    const std::int64_t last = running.first_layer + running.num_layers - 1;
    const auto k = static_cast<std::size_t>(kinds_.kind[static_cast<std::size_t>(last)]);
    const Kept& of = covered(running) == running.num_layers ? kept : plain;
    const double layers = std::min(savers.group, static_cast<double>(running.num_layers));  // Of a checkpoint.
    high = std::max(high, (at.forward ? of.forward[k] : of.backward[k] + (layers - 1.0) * of.rebuilt[k]) - later);
  }
  for (std::size_t k = 0; k < kept.host.size(); ++k)
    if (kept.host[k] > on_host && layers_of(k, running, covered(running)) > 0) on_host = kept.host[k];
  return bytes + high + on_host;
}

/// Least seconds of the schedule with savers, whatever the step.
double Evaluator::saver_bound(Pipeline& pipeline, std::size_t position) const {
  if (pipeline.bounds[position] >= 0.0) return pipeline.bounds[position];
  const Overlapped& costs = *pipeline.costs;
  const Overlapped::Priced& priced = costs.savers[position];
  std::vector<StageTime> differing;
  for (const Pipeline::Stage& stage : pipeline.stages) {
    const StageContent& content = pipeline.split.layout.stages[stage.first];
    const std::int64_t covered = priced.savers->covered(content.num_layers);
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

bool Evaluator::begin_step(Pipeline& pipeline, std::size_t position, const StepChoice& choice, double limit) {
  OpenStep& step = pipeline.steps[position];
  const auto m = static_cast<double>(pipeline.state.options.num_microbatches());
  // More idle tensor cores leave more power to the others: of what is added to their work, this much stays at least.
  const Load& busiest = pipeline.split.ranks[pipeline.split.busiest];
  const auto lost_by = [](const DirectionLoad& load) {
    return load.products > Seconds{} ? (load.unclocked / load.products).to<double>() : 0.0;
  };
  const double lost = std::max(lost_by(busiest.forward), lost_by(busiest.backward));
  step.beside = m * choice.beside * (1.0 - 2.0 * lost) / ((1.0 - lost) * (1.0 - lost));
  step.least = std::max({pipeline.split.least, m * choice.every_micro_batch, pipeline.least + step.beside}) + choice.end;
  if (step.least * kRounding >= limit) return false;
  TrainingOptions o = pipeline.state.options;
  o.step = choice.options;
  const Bytes host = hardware_.host.memory_per_gpu;  // Zero: unknown.
  for (const Watched& w : pipeline.watched) {
    const StaticBytes fixed = static_bytes(context(o), w.parameters);
    const Bytes always = w.overhead + fixed.parameters + fixed.gradients + fixed.optimizer;
    if ((always + fixed.step_extra) * kRounding > hardware_.hbm_capacity) return false;
    const Bytes buffers = w.buffers + fsdp_buffers(context(o), w.parameters, static_cast<std::int64_t>(w.layers));
    step.room.push_back((hardware_.hbm_capacity - always - buffers).to<double>());
    step.host_room.push_back(host > Bytes{} ? (host - fixed.host).to<double>()
                                            : std::numeric_limits<double>::infinity());
    if (step.room.back() < 0.0 || step.host_room.back() < 0.0) return false;  // Nothing of the activations helps.
  }
  return true;
}

/// What savers need at least on the watched ranks, whatever the step.
Evaluator::Need Evaluator::need_of(const Pipeline& pipeline, const Savers& savers, const Kept& kept) const {
  Need need;
  for (std::size_t i = 0; i < pipeline.watched.size(); ++i) {
    const Watched& w = pipeline.watched[i];
    for (std::size_t moment = 0; moment < w.moments.size(); ++moment) {
      need.bytes[i] = std::max(need.bytes[i], activations(pipeline, w, moment, savers, kept));
      double host = 0.0;
      for (std::size_t k = 0; k < kept.host.size() && !savers.partial; ++k)
        host += w.moments[moment].in_flight[k] * kept.host[k];
      need.host[i] = std::max(need.host[i], host);
    }
    need.bytes[i] *= (1.0 + hardware_.overheads.fragmentation) * kRounding;
    need.host[i] *= kRounding;
    for (std::size_t k = 0; k < kept.rests.size() && !savers.partial; ++k)
      need.rests[i] += w.layers_of[k] * kept.rests[k] * kRounding;
  }
  return need;
}

/// Whether a watched rank lacks room for it.
bool Evaluator::too_much(const OpenStep& step, const Need& need) {
  for (std::size_t i = 0; i < step.room.size(); ++i)
    if (need.bytes[i] > step.room[i] || need.host[i] > step.host_room[i] ||
        (!step.optimizer_room.empty() && need.rests[i] > step.optimizer_room[i]))
      return true;
  return false;
}

/// Least seconds of the whole model for a micro-batch with these savers and a choice of offloading that may keep little
/// enough; infinity: there is none.
double Evaluator::promise(Pipeline& pipeline, const OpenStep& step, std::size_t i) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  Overlapped& costs = *pipeline.costs;
  Overlapped::Priced& priced = costs.savers[i];
  const Savers& savers = *priced.savers;
  // Beyond the layers of a chunk the number is the same as the one below.
  if (savers.fewer_layers >= pipeline.most_layers) return kNone;
  Pipeline::Needs& needs = pipeline.needs[i];
  if (!needs.least) needs.least = need_of(pipeline, savers, priced.least);
  if (too_much(step, *needs.least)) return kNone;
  const std::size_t n = savers.choices.size();
  needs.choices.resize(n);
  priced.kept.resize(n);
  priced.choice_seconds.resize(n, -1.0);
  double least = kNone;
  for (std::size_t c = 0; c < n && least > priced.seconds; ++c) {
    double& seconds = priced.choice_seconds[c];
    if (seconds >= least) continue;
    Kept& kept = priced.kept[c];
    if (seconds < 0.0) {
      kept = kept_with(pipeline.state.options, savers, savers.choices[c].offload);
      seconds = priced.seconds;
      if (!savers.partial && !savers.choices[c].offload.empty()) {
        Load sum = costs.others;
        for (std::size_t k = 0; k < kinds_.kinds.size(); ++k) {
          const auto count = static_cast<double>(kinds_.prefix[k].back());
          sum += priced.layer[k].times(count);
          sum += kept.copies[k].times(count);
        }
        seconds = std::max(seconds, at_least(sum).to<double>());
      }
      if (seconds >= least) continue;
    }
    if (!needs.choices[c]) needs.choices[c] = need_of(pipeline, savers, kept);
    if (!too_much(step, *needs.choices[c])) least = seconds;
  }
  return least;
}

/// A bound of a step, whatever the savers; infinity: none keep little enough.
double Evaluator::step_bound(Pipeline& pipeline, const OpenStep& step, const StepChoice& choice) {
  const double per_stage = micro_batches_per_stage(pipeline.state.options);
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < pipeline.costs->savers.size(); ++i) {
    const double seconds = pipeline.costs->savers[i].seconds;
    if (std::max(step.least, per_stage * seconds + choice.end) >= least) break;
    least = std::min(least, std::max(step.least, per_stage * promise(pipeline, step, i) + choice.end));
  }
  return least;
}

/// One choice of recomputation, with every choice of offloading beside it.
void Evaluator::savers(Pipeline& pipeline, std::size_t position, const StepChoice& choice, std::size_t i, Best& best, Answer& answer) {
  Overlapped& costs = *pipeline.costs;
  OpenStep& step = pipeline.steps[position];
  const Split& split = pipeline.split;
  const Layout layout = pipeline.state.options.layout();
  State state = pipeline.state;
  state.options.step = choice.options;
  state.digits.insert(state.digits.end(), choice.digits.begin(), choice.digits.end());
  const auto bound_of = [](const Composition& c) {
    return step_time(c, makespan_lower_bound(c.times)).to<double>() * kRounding;
  };
  Overlapped::Priced& priced = costs.savers[i];
  const Savers& savers = *priced.savers;
  State whole = state;
  savers.apply(whole.options, savers.choices.front().offload);
  if (savers.choices.size() == 1 && refused(order_.late_rules(), whole.options, 1.0)) return;
  // Whether any offloading keeps little enough without copying for too long.
  priced.kept.resize(savers.choices.size());
  pipeline.needs[i].choices.resize(savers.choices.size());
  const auto promises = [&](std::size_t n) {
    savers.apply(whole.options, savers.choices[n].offload);
    if (refused(order_.late_rules(), whole.options, 1.0)) return false;
    if (priced.kept[n].layer.empty()) priced.kept[n] = kept_with(state.options, savers, savers.choices[n].offload);
    const Kept& kept = priced.kept[n];
    std::optional<Need>& need = pipeline.needs[i].choices[n];
    if (!need) need = need_of(pipeline, savers, kept);
    if (too_much(step, *need)) return false;
    if (savers.partial || savers.choices[n].offload.empty()) return true;
    Load work = split.ranks[split.busiest];
    for (std::size_t k = 0; k < kinds_.kinds.size(); ++k) {
      const double count = pipeline.busiest_layers[k];
      work += priced.layer[k].times(count);
      work += costs.layer[k].times(-count);
      work += kept.copies[k].times(count);
    }
    return (schedule_bound(pipeline.state.options, split.stages, split.busiest, work) + step.beside + choice.end) *
               kRounding <
           best.limit(layout);
  };
  std::size_t promising = 0;
  while (promising < savers.choices.size() && !promises(promising)) ++promising;
  if (promising == savers.choices.size()) return;
  savers.apply(whole.options, {});
  const Composition kept_on_device =
      compose(context(whole.options), kinds_, model_costs(context(whole.options), kinds_, &cache_), split.layout);
  ++statistics_.composed;
  spend(kComposed);
  if (bound_of(kept_on_device) >= best.limit(layout)) return;
  for (std::size_t n = promising; n < savers.choices.size(); ++n) {
    const Savers::Choice& offload = savers.choices[n];
    if (std::any_of(step.fitting.begin(), step.fitting.end(), [&](const auto& less) {
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
    spend(kComposed);
    if (bound_of(c) >= best.limit(layout)) continue;
    if (!fits(context, c, peaks(c.times.shape))) {
      statistics_.rejected[rules().size()] += 1.0;
      continue;
    }
    step.fitting.emplace_back(&savers, offload.offload);
    State found_state = whole;
    found_state.digits.insert(found_state.digits.end(), offload.digits.begin(), offload.digits.end());
    simulate(found_state, split, c, best, answer);
    // Offloading that hides entirely: no other takes less time.
    const auto same = [](const StageTime& a, const StageTime& b) {
      return a.forward == b.forward && a.backward == b.backward && a.merged_pair_saving == b.merged_pair_saving;
    };
    if (std::equal(c.times.stages.begin(), c.times.stages.end(), kept_on_device.times.stages.begin(), same)) break;
  }
  if (effort_.dive && !step.fitting.empty()) step.done = true;
  if (savers.plain() && !step.fitting.empty() && step.fitting.front().second.empty()) step.done = true;
}

void Evaluator::simulate(const State& state, const Split& split, const Composition& c, Best& best, Answer& answer) {
  ++statistics_.fitting;
  ++statistics_.simulated;
  spend(kSimulated);
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
  answer.found.push_back(std::move(candidate));
}

const std::vector<PeakTable>& Evaluator::peaks(const ScheduleShape& shape) {
  auto& entry =
      peaks_[{shape.pp, shape.vpp, shape.num_microbatches, shape.group_size, shape.overlap_moe_expert_parallel_comm}];
  if (entry.empty())
    for (std::int64_t rank = 0; rank < shape.pp; ++rank) entry.push_back(peak_table(shape, rank));
  return entry;
}

}  // namespace foldwise::planner
