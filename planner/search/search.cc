#include "planner/search/search.h"

#include <fmt/format.h>
#include <tbb/blocked_range.h>
#include <tbb/enumerable_thread_specific.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <tuple>

#include "costmodel/check.h"
#include "costmodel/ops/block_cache.h"
#include "costmodel/step/rank_memory.h"
#include "costmodel/step/stage_split.h"
#include "costmodel/step/step.h"
#include "planner/rules/rules.h"
#include "planner/run/fields.h"
#include "planner/run/names.h"

namespace foldwise::planner {
namespace {

using namespace costmodel;  // NOLINT(google-build-using-namespace): this file is about the cost model's types.

// Reasons of the search's own, counted beside the rules.
constexpr std::string_view kMemoryRule = "memory.fits", kStagesRule = "search.more_stages_than_layers";

// A candidate's number is a mixed-radix number over the space's lists, pp and vpp fastest: candidates that differ only
// in them share the costs of their layers and are visited together.
struct Digits {
  std::size_t precision = 0, micro_batch = 0, tp = 0, cp = 0, ep = 0, etp = 0, dispatcher = 0, overlap = 0,
              recompute = 0, pp = 0, vpp = 0;
};

Digits digits(const SearchSpace& s, std::int64_t number) {
  auto rest = static_cast<std::size_t>(number);
  const auto take = [&rest](std::size_t size) {
    const std::size_t digit = rest % size;
    rest /= size;
    return digit;
  };
  Digits d;
  d.vpp = take(s.vpp.size());
  d.pp = take(s.pp.size());
  d.recompute = take(s.recompute.size());
  d.overlap = take(s.ep_overlap.size());
  d.dispatcher = take(s.dispatcher.size());
  d.etp = take(s.etp.size());
  d.ep = take(s.ep.size());
  d.cp = take(s.cp.size());
  d.tp = take(s.tp.size());
  d.micro_batch = take(s.micro_batch.size());
  d.precision = take(s.precision.size());
  return d;
}

// Everything but the pipeline.
TrainingOptions local_options(const PlanProblem& problem, const Digits& d) {
  const SearchSpace& s = problem.space;
  TrainingOptions o = problem.base.at(2 * d.precision + (s.tp[d.tp] > 1 ? 1 : 0));
  o.layer.precision = s.precision[d.precision];
  o.layer.micro_batch = s.micro_batch[d.micro_batch];
  o.layer.tp = s.tp[d.tp];
  o.layer.cp = s.cp[d.cp];
  o.layer.ep = s.ep[d.ep];
  o.layer.etp = s.etp[d.etp];
  o.layer.dispatcher = s.dispatcher[d.dispatcher];
  o.pipeline.overlaps.ep_a2a = s.ep_overlap[d.overlap];
  o.pipeline.overlaps.delay_wgrad = o.pipeline.overlaps.ep_a2a;
  o.set_recompute(s.recompute[d.recompute]);
  // Per-layer graphs exclude full recomputation and, with the router captured, recomputation of the MoE block.
  const bool recomputes_graph = o.layer.recompute.granularity == RecomputeGranularity::kFull ||
                                o.layer.recompute.modules.contains(RecomputeModule::kMoe);
  if (recomputes_graph && o.layer.cuda_graph.impl == GraphImpl::kTransformerEngine) o.layer.cuda_graph = {};
  return o;
}

void set_pipeline(const PlanProblem& problem, const Digits& d, TrainingOptions& o) {
  o.pipeline.pp = problem.space.pp[d.pp];
  o.pipeline.vpp = problem.space.vpp[d.vpp];
  o.step.dp = std::max<std::int64_t>(1, problem.num_gpus / (o.layer.tp * o.layer.cp * o.pipeline.pp));
}

// Rules about how layers are split hold for balanced_stages by construction (and are checked again on every answer).
bool by_construction(const PlanProblem& problem, std::string_view rule) {
  if (problem.model.hybrid) return false;
  return rule == "pp.even" || rule == "pp.vpp_even" || rule.starts_with("pp.layout_");
}

StageLayout choose_stages(const PlanProblem& problem, const ModelKinds& kinds, const ModelCosts& costs,
                          const Layout& layout) {
  if (problem.model.hybrid)
    return even_stages(problem.model.num_layers(), problem.model.mtp_num_layers, layout.pp, layout.vpp);
  return balanced_stages(kinds, costs, problem.model.mtp_num_layers, layout.pp, layout.vpp);
}

// What a worker thread keeps between candidates.
struct Worker {
  BlockCache cache;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, bool>, std::vector<PeakTable>> in_flight;
  std::vector<std::int64_t> rejected;

  const std::vector<PeakTable>& peaks(const ScheduleShape& shape) {
    auto& entry = in_flight[{shape.pp, shape.vpp, shape.num_microbatches, shape.overlap_moe_expert_parallel_comm}];
    if (entry.empty())
      for (std::int64_t rank = 0; rank < shape.pp; ++rank) entry.push_back(peak_table(shape, rank));
    return entry;
  }
};

struct Survivor {
  Seconds bound{};
  std::int64_t number = 0;
};

struct Candidate {
  TrainingOptions options;
  StageLayout stages;
  Composition composition;
};

Candidate build(const PlanProblem& problem, const ModelKinds& kinds, std::int64_t number, BlockCache& cache) {
  const Digits d = digits(problem.space, number);
  Candidate c{local_options(problem, d), {}, {}};
  set_pipeline(problem, d, c.options);
  const StepContext context{problem.model, c.options, problem.hardware};
  const ModelCosts costs = model_costs(context, kinds, &cache);
  c.stages = choose_stages(problem, kinds, costs, c.options.layout());
  const std::int64_t slots = c.options.pipeline.pp * c.options.pipeline.vpp;
  const bool even = problem.model.num_layers() % slots == 0 &&
                    c.stages == even_stages(problem.model.num_layers(), problem.model.mtp_num_layers,
                                            c.options.pipeline.pp, c.options.pipeline.vpp);
  if (!even && !problem.model.hybrid) c.options.pipeline.layout = to_layout_string(c.stages);
  c.composition = compose(StepContext{problem.model, c.options, problem.hardware}, kinds, costs, c.stages);
  return c;
}

Bytes peak_memory(const PlanProblem& problem, const Candidate& c, const std::vector<PeakTable>& peaks) {
  const StepContext context{problem.model, c.options, problem.hardware};
  Bytes memory{};
  for (std::int64_t rank = 0; rank < c.options.pipeline.pp; ++rank)
    memory = std::max(memory, rank_memory(context, c.composition, rank, peaks[static_cast<std::size_t>(rank)]).total());
  return memory;
}

std::string percent(Seconds part, Seconds whole) {
  return fmt::format("{:.1f} %", 100.0 * (part / whole).to<double>());
}

std::vector<std::string> limits(const PlanProblem& problem, const Plan& plan) {
  const Prediction& p = plan.prediction;
  const Breakdown& b = p.breakdown;
  std::vector<std::string> why;
  const std::array<std::pair<std::string_view, Seconds>, 5> parts = {
      {{"compute", b.compute},
       {"exposed communication", b.exposed_communication},
       {"exposed copies", b.exposed_copy},
       {"bubble", b.bubble},
       {"host", b.host}}};
  std::string line = "step on the busiest rank:";
  for (const auto& [name, seconds] : parts)
    if (seconds > 0.002 * p.step_time) line += fmt::format(" {} {},", name, percent(seconds, p.step_time));
  line.pop_back();
  why.push_back(line);
  if (!p.detail.empty()) {
    line = "largest costs:";
    for (std::size_t i = 0; i < std::min<std::size_t>(3, p.detail.size()); ++i)
      line += fmt::format(" {} {}{} {},", p.detail[i].module, p.detail[i].kind,
                          p.detail[i].group.empty() ? "" : " over " + p.detail[i].group,
                          percent(p.detail[i].seconds, p.step_time));
    line.pop_back();
    why.push_back(line);
  }
  why.push_back(fmt::format("memory: {:.1f} of {:.1f} GiB on the fullest stage", in_gib(p.peak_memory),
                            in_gib(problem.hardware.hbm_capacity)));
  return why;
}

std::string layout_name(const Layout& l) {
  return fmt::format("TP{} CP{} DP{} PP{} VPP{} EP{} ETP{}", l.tp, l.cp, l.dp, l.pp, l.vpp, l.ep, l.etp);
}

// Where the next plan loses its time against this one.
std::string comparison(const Plan& best, const Plan& other) {
  const Breakdown &a = best.prediction.breakdown, &b = other.prediction.breakdown;
  const Seconds difference = other.prediction.step_time - best.prediction.step_time;
  std::string line = fmt::format("{} is {} slower:", layout_name(other.options.layout()),
                                 percent(difference, best.prediction.step_time));
  const std::array<std::pair<std::string_view, Seconds>, 5> parts = {
      {{"compute", b.compute - a.compute},
       {"exposed communication", b.exposed_communication - a.exposed_communication},
       {"exposed copies", b.exposed_copy - a.exposed_copy},
       {"bubble", b.bubble - a.bubble},
       {"host", b.host - a.host}}};
  for (const auto& [name, seconds] : parts)
    if (units::math::abs(seconds) > 0.002 * best.prediction.step_time)
      line += fmt::format(" {} {:+.3f} s,", name, seconds.to<double>());
  line.pop_back();
  return line;
}

struct Simulated {
  Seconds time{};
  std::int64_t number = 0;
  Bytes memory{};
  Layout layout;
};

// Sorts by time; the fastest of each layout.
std::vector<Simulated> best_per_layout(std::vector<Simulated>& simulated) {
  std::sort(simulated.begin(), simulated.end(), [](const Simulated& a, const Simulated& b) {
    return std::make_pair(a.time.to<double>(), a.number) < std::make_pair(b.time.to<double>(), b.number);
  });
  std::vector<Simulated> best;
  for (const Simulated& s : simulated)
    if (std::none_of(best.begin(), best.end(), [&](const Simulated& b) { return b.layout == s.layout; }))
      best.push_back(s);
  return best;
}

class Search {
 public:
  explicit Search(const PlanProblem& problem)
      : problem_(problem),
        kinds_(model_kinds(problem.model)),
        rule_problem_{problem.model, problem.hardware, problem.num_gpus},
        workers_([] {
          Worker worker;
          worker.rejected.assign(rules().size() + 2, 0);
          return worker;
        }) {}

  PlanResult run(const std::function<void(std::int64_t, std::int64_t)>& progress) {
    PlanResult result;
    result.enumerated = problem_.space.size();
    result.valid = keep_what_fits(progress);
    result.rejected_by_rule = rejections();
    result.fitting = static_cast<std::int64_t>(survivors_.size());
    std::vector<Simulated> simulated = simulate_until_settled();
    result.simulated = static_cast<std::int64_t>(simulated.size());
    for (const Simulated& s : best_per_layout(simulated)) {
      if (result.plans.size() >= static_cast<std::size_t>(problem_.top)) break;
      result.plans.push_back(to_plan(s));
    }
    for (std::size_t i = 0; i + 1 < result.plans.size(); ++i)
      result.plans[i].why.push_back(comparison(result.plans[i], result.plans[i + 1]));
    result.pareto = pareto(simulated);
    return result;
  }

 private:
  // Fills survivors_, in the order of the bound. Returns how many candidates the rules accept.
  std::int64_t keep_what_fits(const std::function<void(std::int64_t, std::int64_t)>& progress) {
    const SearchSpace& space = problem_.space;
    const std::int64_t all = space.size(), inner = static_cast<std::int64_t>(space.pp.size() * space.vpp.size());
    const std::vector<Rule>& table = rules();
    // Empty virtual stages are legal and never help: beyond one a layer, the embedding and the loss nothing is left to
    // split.
    const std::int64_t most_stages = problem_.model.num_layers() + 2;
    std::vector<std::size_t> checked;
    for (std::size_t i = 0; i < table.size(); ++i)
      if (!by_construction(problem_, table[i].id)) checked.push_back(i);

    std::vector<std::vector<Survivor>> found(static_cast<std::size_t>(all / inner));
    std::atomic<std::int64_t> done{0}, valid{0};
    tbb::parallel_for(std::int64_t{0}, all / inner, [&](std::int64_t local) {
      Worker& worker = workers_.local();
      TrainingOptions options = local_options(problem_, digits(space, local * inner));
      const StepContext context{problem_.model, options, problem_.hardware};
      std::optional<ModelCosts> costs;
      for (std::int64_t number = local * inner; number < (local + 1) * inner; ++number) {
        set_pipeline(problem_, digits(space, number), options);
        if (options.pipeline.pp * options.pipeline.vpp > most_stages) {
          ++worker.rejected[table.size() + 1];
          continue;
        }
        const auto broken = std::find_if(checked.begin(), checked.end(),
                                         [&](std::size_t i) { return table[i].violated(rule_problem_, options); });
        if (broken != checked.end()) {
          ++worker.rejected[*broken];
          continue;
        }
        valid.fetch_add(1, std::memory_order_relaxed);
        if (!costs) costs = model_costs(context, kinds_, &worker.cache);
        const Composition c =
            compose(context, kinds_, *costs, choose_stages(problem_, kinds_, *costs, options.layout()));
        if (!fits(context, c, worker.peaks(c.times.shape))) {
          ++worker.rejected[table.size()];
          continue;
        }
        found[static_cast<std::size_t>(local)].push_back({step_time(c, makespan_lower_bound(c.times)), number});
      }
      const std::int64_t now = done.fetch_add(inner, std::memory_order_relaxed) + inner;
      if (progress) progress(now, all);
    });
    for (const auto& list : found) survivors_.insert(survivors_.end(), list.begin(), list.end());
    std::sort(survivors_.begin(), survivors_.end(), [](const Survivor& a, const Survivor& b) {
      return std::make_pair(a.bound.to<double>(), a.number) < std::make_pair(b.bound.to<double>(), b.number);
    });
    return valid;
  }

  [[nodiscard]] std::vector<std::pair<std::string, std::int64_t>> rejections() const {
    const std::vector<Rule>& table = rules();
    std::vector<std::int64_t> rejected(table.size() + 2, 0);
    for (const Worker& worker : workers_)
      for (std::size_t i = 0; i < rejected.size(); ++i) rejected[i] += worker.rejected[i];
    std::vector<std::pair<std::string, std::int64_t>> by_rule;
    for (std::size_t i = 0; i < rejected.size(); ++i)
      if (rejected[i] > 0)
        by_rule.emplace_back(i < table.size()    ? table[i].id
                             : i == table.size() ? kMemoryRule
                                                 : kStagesRule,
                             rejected[i]);
    std::stable_sort(by_rule.begin(), by_rule.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    return by_rule;
  }

  // Simulates in the order of the bound. A layout's best candidate is settled once the bound passes it, the answer once
  // the bound passes the `top`-th best layout.
  std::vector<Simulated> simulate_until_settled() {
    constexpr std::size_t kBatch = 128;
    const auto top = static_cast<std::size_t>(problem_.top);
    std::vector<Simulated> simulated;
    for (std::size_t at = 0; at < survivors_.size(); at += kBatch) {
      const std::vector<Simulated> best = best_per_layout(simulated);
      if (best.size() >= top && survivors_[at].bound > best[top - 1].time) break;
      const std::size_t end = std::min(at + kBatch, survivors_.size());
      simulated.resize(simulated.size() + (end - at));
      Simulated* const out = simulated.data() + (simulated.size() - (end - at));
      tbb::parallel_for(at, end, [&](std::size_t i) {
        Worker& worker = workers_.local();
        const Candidate c = build(problem_, kinds_, survivors_[i].number, worker.cache);
        const Bytes memory = peak_memory(problem_, c, worker.peaks(c.composition.times.shape));
        out[i - at] = {step_time(c.composition, simulate_makespan(c.composition.times)), survivors_[i].number, memory,
                       c.options.layout()};
      });
    }
    return simulated;
  }

  // The fastest candidate within each smaller share of the device's memory: again in the order of the bound, until the
  // bound passes the best time found.
  std::vector<Plan> pareto(const std::vector<Simulated>& simulated) {
    Worker& worker = workers_.local();
    std::map<std::int64_t, Simulated> known;
    for (const Simulated& s : simulated) known.emplace(s.number, s);
    std::vector<Plan> plans;
    for (const double share : {1.0, 0.9, 0.8, 0.7, 0.6, 0.5}) {
      const Bytes most = share * problem_.hardware.hbm_capacity;
      std::optional<Simulated> fastest;
      for (const Survivor& survivor : survivors_) {
        if (fastest && survivor.bound > fastest->time) break;
        auto entry = known.find(survivor.number);
        if (entry == known.end()) {
          // Memory first: it is cheaper than a simulation.
          const Candidate c = build(problem_, kinds_, survivor.number, worker.cache);
          const Bytes memory = peak_memory(problem_, c, worker.peaks(c.composition.times.shape));
          if (memory > most) continue;
          const Seconds time = step_time(c.composition, simulate_makespan(c.composition.times));
          entry = known.emplace(survivor.number, Simulated{time, survivor.number, memory, c.options.layout()}).first;
        }
        const Simulated& s = entry->second;
        if (s.memory <= most && (!fastest || s.time < fastest->time)) fastest = s;
      }
      if (!fastest) break;
      if (plans.empty() || plans.back().number != fastest->number) plans.push_back(to_plan(*fastest));
    }
    return plans;
  }

  Plan to_plan(const Simulated& s) {
    Candidate c = build(problem_, kinds_, s.number, workers_.local().cache);
    Plan p;
    p.number = s.number;
    p.prediction = predict(
        Step{{problem_.model, c.options, problem_.hardware}, kinds_, std::move(c.stages), std::move(c.composition)});
    p.options = std::move(c.options);
    const auto broken = first_violation(rule_problem_, p.options);
    FW_CHECK(!broken, fmt::format("plan {} breaks {}: {}", p.number, broken->rule, broken->reason));
    p.why = limits(problem_, p);
    return p;
  }

  const PlanProblem& problem_;
  ModelKinds kinds_;
  Problem rule_problem_;
  tbb::enumerable_thread_specific<Worker> workers_;
  std::vector<Survivor> survivors_;  ///< Candidates that break no rule and fit, least bound first.
};

}  // namespace

std::int64_t SearchSpace::size() const {
  std::int64_t product = 1;
  for (const std::size_t n : {precision.size(), tp.size(), cp.size(), pp.size(), vpp.size(), ep.size(), etp.size(),
                              micro_batch.size(), recompute.size(), dispatcher.size(), ep_overlap.size()})
    product *= static_cast<std::int64_t>(n);
  return product;
}

TrainingOptions candidate(const PlanProblem& problem, std::int64_t number) {
  BlockCache cache;
  return build(problem, model_kinds(problem.model), number, cache).options;
}

std::vector<TrainingOptions> not_searched(const Defaults& defaults, const ModelSpec& model, const Hardware& hardware,
                                          const SearchSpace& space, std::map<std::string, nlohmann::json> stated) {
  std::vector<TrainingOptions> result;
  for (const Precision precision : space.precision)
    for (const int tp : {1, 2}) {
      stated["precision"] = name_of(precision);
      stated["tp"] = tp;
      settle(result.emplace_back(options_of(defaults, model, hardware, stated)));  // What was stated may not apply.
    }
  return result;
}

bool SearchSpace::pin(std::string_view key, const nlohmann::json& value) {
  const std::pair<std::string_view, std::vector<std::int64_t>*> sizes[] = {
      {"tp", &tp}, {"cp", &cp}, {"pp", &pp}, {"vpp", &vpp}, {"ep", &ep}, {"etp", &etp}, {"micro_batch", &micro_batch}};
  for (const auto& [name, list] : sizes)
    if (name == key) {
      *list = {value.get<std::int64_t>()};
      return true;
    }
  const Field& pinned = field(key);
  TrainingOptions wanted;
  pinned.value.set(wanted, value);
  if (key == "precision") {
    precision = {wanted.layer.precision};
  } else if (key == "dispatcher") {
    dispatcher = {wanted.layer.dispatcher};
  } else if (key == "overlaps.ep_a2a") {
    ep_overlap = {wanted.pipeline.overlaps.ep_a2a};
  } else if (key.starts_with("recompute.")) {
    std::vector<Recompute> kept;
    for (const Recompute& choice : recompute) {
      TrainingOptions tried;
      tried.set_recompute(choice);
      if (pinned.applies_to(tried) && pinned.value.get(tried) == pinned.value.get(wanted)) kept.push_back(choice);
    }
    if (kept.empty() && key == "recompute.modules")
      kept.push_back({.granularity = RecomputeGranularity::kSelective, .modules = wanted.layer.recompute.modules});
    if (kept.empty() && key != "recompute.granularity")
      kept.push_back({.granularity = RecomputeGranularity::kFull,
                      .modules = {},
                      .method = wanted.pipeline.recompute.method,
                      .num_layers = wanted.pipeline.recompute.num_layers});
    recompute = std::move(kept);
  } else {
    return false;
  }
  return true;
}

SearchSpace default_space(const ModelSpec& model, const Hardware& hardware, std::int64_t num_gpus, std::int64_t seq_len,
                          std::vector<Precision> precision) {
  SearchSpace s;
  s.precision = std::move(precision);
  const auto powers = [](std::int64_t limit) {
    std::vector<std::int64_t> list;
    for (std::int64_t v = 1; v <= limit; v *= 2) list.push_back(v);
    return list;
  };
  const auto divisors = [](std::int64_t n, std::int64_t limit) {
    std::vector<std::int64_t> list;
    for (std::int64_t v = 1; v <= std::min(n, limit); ++v)
      if (n % v == 0) list.push_back(v);
    return list;
  };
  s.tp = powers(std::min<std::int64_t>(8, num_gpus));
  // A rank keeps at least 2048 tokens of each sequence: below that attention kernels and rings only lose.
  s.cp = powers(std::min<std::int64_t>({16, num_gpus, std::max<std::int64_t>(1, seq_len / 2048)}));
  s.pp = divisors(num_gpus, std::min<std::int64_t>(64, model.num_layers()));
  s.vpp = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24};
  for (const std::int64_t even : divisors(model.num_layers(), 24))
    if (std::ranges::find(s.vpp, even) == s.vpp.end()) s.vpp.push_back(even);
  std::ranges::sort(s.vpp);
  std::erase_if(s.vpp, [&](std::int64_t v) { return v > 1 && (model.hybrid || v > model.num_layers()); });
  s.micro_batch = powers(8);
  s.recompute = {{}};
  const auto selective = [&](BitSet<RecomputeModule> modules) {
    s.recompute.push_back({.granularity = RecomputeGranularity::kSelective, .modules = modules});
  };
  using RM = RecomputeModule;
  const bool mla = model.find<costmodel::MlaSpec>() != nullptr, moe = model.has_moe(),
             shared = moe && model.moe.shared_ffn_hidden_size > 0;
  const bool dense = std::any_of(model.layers.begin(), model.layers.end(),
                                 [](const LayerSpec& l) { return l.mlp == MlpKind::kDense; });
  if (mla) selective({RM::kMlaUpProj});
  if (moe) selective({RM::kMoeAct});
  if (moe) selective({RM::kLayerNorm, RM::kMoeAct});
  if (mla && moe) selective({RM::kMlaUpProj, RM::kMoeAct});
  if (mla && moe) selective({RM::kMlaUpProj, RM::kLayerNorm, RM::kMoeAct});
  if (mla && dense) selective({RM::kMlaUpProj, RM::kMlp});
  if (shared) selective({RM::kLayerNorm, RM::kMoeAct, RM::kSharedExperts});
  if (mla && shared) selective({RM::kMlaUpProj, RM::kLayerNorm, RM::kMoeAct, RM::kSharedExperts, RM::kMlp});
  if (moe) selective({RM::kMoe});
  if (moe) selective({RM::kMoe, RM::kLayerNorm});
  if (mla && moe) selective({RM::kMlaUpProj, RM::kMoe, RM::kLayerNorm, RM::kMlp});
  if (dense && !mla) selective({RM::kMlp});
  s.recompute.push_back({.granularity = RecomputeGranularity::kFull,
                         .modules = {},
                         .method = RecomputeMethod::kUniform,
                         .num_layers = 1});
  if (moe) {
    s.ep = divisors(model.moe.experts, num_gpus);
    s.etp = powers(std::min<std::int64_t>(8, num_gpus));
    s.dispatcher = {Dispatcher::kAllToAll};
    if (hardware.recipe.dispatcher) s.dispatcher.push_back(*hardware.recipe.dispatcher);
    s.dispatcher.push_back(Dispatcher::kAllGather);
    s.ep_overlap = {false, true};
  } else {
    s.ep = s.etp = {1};
    s.dispatcher = {Dispatcher::kAllToAll};
    s.ep_overlap = {false};
  }
  return s;
}

PlanResult plan(const PlanProblem& problem, const std::function<void(std::int64_t, std::int64_t)>& progress) {
  const auto start = std::chrono::steady_clock::now();
  const std::optional<tbb::global_control> limit =
      problem.threads > 0
          ? std::optional<tbb::global_control>(std::in_place, tbb::global_control::max_allowed_parallelism,
                                               static_cast<std::size_t>(problem.threads))
          : std::nullopt;
  PlanResult result = Search(problem).run(progress);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace foldwise::planner
