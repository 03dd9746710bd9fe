// Is the answer the best there is, does it say so rightly, and does it hang on nothing but the question?
#include "planner/search/search.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "costmodel/step/model_costs.h"
#include "costmodel/step/rank_memory.h"
#include "costmodel/step/stage_split.h"
#include "costmodel/step/step.h"
#include "planner/foldwise.h"
#include "planner/rules/rules.h"
#include "planner/run/names.h"
#include "planner/search/contradiction.h"
#include "planner/search/objective.h"
#include "planner/search/order.h"
#include "planner/search/workbench.h"

namespace foldwise::planner::search_test {
namespace {

using costmodel::BlockCache;
using costmodel::GraphImpl;
using costmodel::Layout;
using costmodel::ModelKinds;
using costmodel::ModelSpec;
using costmodel::Precision;
using costmodel::StageLayout;
using costmodel::TrainingOptions;
using nlohmann::json;

/// A problem with all choices, measured or not.
PlanProblem any_problem(foldwise::PlanRequest request) {
  request.evidence = Evidence::kAny;
  return foldwise::plan_problem(request);
}

// More effort than any search of these tests needs.
constexpr std::int64_t kEnough = std::int64_t{1} << 60;

// Relative tolerance of "the fastest" (docs/search.md#answer).
constexpr double kEqual = 1e-4;

// ---- Predictions of every candidate
// ----------------------------------------------------------------------------------

/// The candidate with every useful split of its layers; empty if a rule refuses it.
std::vector<TrainingOptions> with_every_split(const PlanProblem& problem, const TrainingOptions& options,
                                              BlockCache* cache) {
  const std::int64_t pp = options.pipeline.pp, vpp = options.pipeline.vpp, layers = problem.model.num_layers();
  if (pp * vpp > layers + 2) return {};
  for (const Rule& rule : rules())
    if (!about_splits(rule.id) && rule.broken(rule_problem(problem), options)) return {};
  // Splits do not depend on memory choices.
  TrainingOptions plain = options;
  plain.set_recompute({});
  plain.layer.offload_modules = {};
  plain.pipeline.cpu_offloading_num_layers = 0;
  const ModelKinds kinds = costmodel::model_kinds(problem.model);
  const costmodel::ModelCosts costs = costmodel::model_costs({problem.model, plain, problem.hardware}, kinds, cache);
  std::vector<TrainingOptions> result;
  for (const StageLayout& split : costmodel::splits_to_try(problem.model, kinds, costs, pp, vpp)) {
    result.push_back(options);
    const bool even =
        layers % (pp * vpp) == 0 && split == costmodel::even_stages(layers, problem.model.mtp_num_layers, pp, vpp);
    if (!even) result.back().pipeline.layout = costmodel::to_layout_string(split);
    EXPECT_FALSE(first_violated(rule_problem(problem), result.back())) << result.back().pipeline.layout;
  }
  return result;
}

/// Whether the plan is a candidate. Refinement may have moved its layers, or taken part of its optimizer off the host,
/// which may make it faster.
bool as_tried(const PlanProblem& problem, const Plan& plan) {
  TrainingOptions unsplit = plan.options;
  if (problem.space.find("pipeline_layout") == nullptr) unsplit.pipeline.layout.clear();
  const std::vector<TrainingOptions> tried = with_every_split(problem, unsplit, nullptr);
  const double on_host = plan.options.step.offload.optimizer_fraction;
  const Dimension* fractions = problem.space.find("offload.fraction");
  return std::ranges::find(tried, plan.options) != tried.end() &&
         (on_host == 0.0 || std::ranges::count(fractions->values, nlohmann::json(on_host)) > 0);
}

/// A candidate that the rules accept, with its prediction.
struct Known {
  Layout layout;
  double seconds = 0.0;
  Bytes memory{};
  bool fits_host = true;
  Assignment assignment;
  TrainingOptions options;
};

Bytes capacity_of(const PlanProblem& problem) { return (1.0 - problem.headroom) * problem.hardware.hbm_capacity; }

/// All candidates: the product of the dimensions, each with every split.
std::vector<Known> everything(const PlanProblem& problem) {
  std::vector<Known> result;
  const Bases bases(problem);
  BlockCache cache;
  Assignment assignment(problem.space.dimensions.size(), 0);
  for (bool more = true; more;) {
    if (const std::optional<TrainingOptions> options = candidate(problem, bases, assignment))
      for (const TrainingOptions& o : with_every_split(problem, *options, &cache)) {
        const costmodel::Prediction p =
            costmodel::predict(costmodel::compose_step(problem.model, o, problem.hardware), false);
        Bytes host{};
        for (const costmodel::StageMemory& memory : p.memory) host = std::max(host, memory.host);
        result.push_back({.layout = o.layout(),
                          .seconds = p.step_time.to<double>(),
                          .memory = p.peak_memory,
                          .fits_host = costmodel::fits_host(host, problem.hardware),
                          .assignment = assignment,
                          .options = o});
      }
    more = false;
    for (std::size_t i = 0; i < assignment.size() && !more; ++i) {
      more = ++assignment[i] < problem.space.dimensions[i].values.size();
      if (!more) assignment[i] = 0;
    }
  }
  return result;
}

using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
Key key(const Layout& l) { return {l.tp, l.cp, l.pp, l.vpp, l.ep, l.etp}; }

/// Whether it fits on the whole device at the 99th percentile of routing.
bool fits_at_p99(const PlanProblem& problem, const TrainingOptions& options) {
  return costmodel::imbalance(problem.model, options, problem.hardware).p99_memory <= problem.hardware.hbm_capacity;
}

/// Whether there is room for PyTorch's reserve, too.
bool has_room(const PlanProblem& problem, const Known& known) {
  Plan plan{.assignment = known.assignment,
            .options = known.options,
            .prediction = costmodel::predict(problem.model, known.options, problem.hardware),
            .imbalance = {},
            .why = {},
            .lead = {}};
  return !reserves_too_much(problem, plan);
}

bool learnt(const AllocatorReserve& reserve) { return reserve.plain > 0.0 || reserve.ep_overlap > 0.0; }

/// Whether it fits, including the reserve.
bool fits(const PlanProblem& problem, const Known& known) {
  return known.memory + reserve_of(problem, known.options) <= capacity_of(problem) && known.fits_host;
}

/// The fastest of each layout that fits. `refused_at_p99`: set if a faster one fails only because of routing.
std::map<Key, const Known*> fastest_of_each(const PlanProblem& problem, const std::vector<Known>& all,
                                            bool& refused_at_p99) {
  std::vector<const Known*> fitting;
  for (const Known& known : all)
    if (fits(problem, known)) fitting.push_back(&known);
  std::ranges::stable_sort(fitting, {}, [](const Known* known) { return known->seconds; });
  std::map<Key, const Known*> best;
  refused_at_p99 = false;
  for (const Known* known : fitting)
    if (!best.contains(key(known->layout))) {
      if (fits_at_p99(problem, known->options))
        best.emplace(key(known->layout), known);
      else
        refused_at_p99 = true;
    }
  return best;
}

/// Runs the search. Stops it if it does not end.
PlanResult searched(const PlanProblem& problem) {
  int calls = 0;
  return plan(problem, [&](const Progress&) { return ++calls < 3000; });
}

// ---- Small problems ------------------------------------------------------------------------------------------------

/// A generator with equal numbers on all platforms: the standard library's distributions differ.
class Random {
 public:
  explicit Random(unsigned seed) : bits_(seed) {}
  std::size_t below(std::size_t n) { return bits_() % n; }
  bool once_in(std::size_t n) { return below(n) == 0; }

 private:
  std::mt19937 bits_;
};

/// `count` of the values in their order. The plainest is included at random.
std::vector<json> some_of(const std::vector<json>& values, std::size_t count, Random& random) {
  std::vector<std::size_t> chosen, left(values.size());
  for (std::size_t i = 0; i < left.size(); ++i) left[i] = i;
  while (chosen.size() < count && !left.empty()) {
    const std::size_t at = chosen.empty() && !random.once_in(4) ? 0 : random.below(left.size());
    chosen.push_back(left[at]);
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(at));
  }
  std::sort(chosen.begin(), chosen.end());
  std::vector<json> result;
  result.reserve(chosen.size());
  for (const std::size_t i : chosen) result.push_back(values[i]);
  return result;
}

/// Group of related fields: "recompute" for "recompute.modules".
std::string group_of(const std::string& key) {
  if (key.find("cp") == 0 || key.find("hierarchical") == 0) return "cp";
  if (key.find("fsdp") == 0 || key == "sharding" || key.find("num_distributed") == 0) return "sharding";
  return key.substr(0, key.find('.'));
}

/// A few thousand candidates: several values for sizes and two or three groups of other fields; with exceptions, the
/// plainest for the rest.
PlanProblem small_problem(unsigned seed) {
  constexpr double kMost = 20'000.0;
  Random random(seed);
  const std::vector<std::string> models = {"mini-qwen3-moe-12l", "mini-deepseek-12l", "mini-mixtral-8l",
                                           "mini-llama-16l"},
                                 systems = {"h100-sxm-80gb", "h200", "gb200-nvl72"};
  foldwise::PlanRequest request{.model = models[random.below(models.size())],
                                .system = systems[random.below(systems.size())],
                                .release = {},
                                .num_gpus = std::int64_t{4} << random.below(3),
                                .precisions = {},
                                .headroom = random.once_in(3) ? 0.1 : 0.0};
  request.global_batch = request.num_gpus << random.below(4);
  PlanProblem problem = any_problem(request);
  ModelSpec& model = problem.model;
  model.layers.resize(2 + random.below(5));
  if (request.model == "mini-deepseek-12l" && random.once_in(2)) {
    model.mtp_num_layers = 1;
    model.mtp_layers = {model.layers.back()};
  }
  std::vector<std::string> groups;
  for (const Dimension& d : problem.space.dimensions)
    if (d.values.size() > 1 && std::ranges::count(groups, group_of(d.field->key)) == 0)
      groups.push_back(group_of(d.field->key));
  for (std::size_t i = groups.size(); i > 1; --i) std::swap(groups[i - 1], groups[random.below(i)]);
  groups.resize(std::min<std::size_t>(groups.size(), 6));
  double size = 1.0;
  const auto narrow = [&](Dimension& d, std::size_t count) {
    if (size * static_cast<double>(count) > kMost) count = 1;
    d.values = some_of(d.values, count, random);
    size *= static_cast<double>(d.values.size());
  };
  std::vector<Dimension*> rest;
  for (Dimension& d : problem.space.dimensions) {
    const std::string& name = d.field->key;
    if (name == "vpp" || name == "recompute.num_layers" || name == "offload.num_layers")
      d.values.resize(std::min<std::size_t>(d.values.size(), 6));
    if (name == "tp" || name == "pp" || name == "vpp" || name == "ep" || name == "micro_batch")
      narrow(d, 2);
    else if (name != "precision")
      rest.push_back(&d);
  }
  // All fields of a group before those of the next.
  std::stable_sort(rest.begin(), rest.end(), [&](const Dimension* a, const Dimension* b) {
    const auto place = [&](const Dimension* d) { return std::ranges::find(groups, group_of(d->field->key)); };
    return place(a) < place(b);
  });
  for (Dimension* d : rest)
    if (std::ranges::count(groups, group_of(d->field->key)) > 0)
      narrow(*d, 2 + random.below(2));
    else
      d->values = {random.once_in(12) ? d->values[random.below(d->values.size())] : d->values.front()};
  problem.top = 1 + static_cast<std::int64_t>(random.below(4));
  problem.effort = kEnough;
  return problem;
}

/// Sets the memory to the size of a random candidate, so that some fit and memory binds.
void limit_memory(PlanProblem& problem, const std::vector<Known>& all, Random& random) {
  if (all.empty()) return;
  std::vector<Bytes> sizes;
  sizes.reserve(all.size());
  for (const Known& known : all) sizes.push_back(known.memory);
  std::sort(sizes.begin(), sizes.end());
  problem.hardware.hbm_capacity = 1.000001 * sizes[random.below(sizes.size())] / (1.0 - problem.headroom);
}

/// Sets the memory to what the fastest candidate needs without uneven routing, of those that need more with it.
void fit_all_but_routing(PlanProblem& problem, const std::vector<Known>& all) {
  std::vector<const Known*> fastest;
  for (const Known& known : all)
    if (known.layout.ep > 1) fastest.push_back(&known);
  std::ranges::stable_sort(fastest, {}, [](const Known* known) { return known->seconds; });
  for (const Known* known : fastest) {
    const Bytes memory = 1.000001 * known->memory;
    if (costmodel::imbalance(problem.model, known->options, problem.hardware).p99_memory <= memory) continue;
    problem.headroom = 0.0;
    problem.hardware.hbm_capacity = memory;
    return;
  }
}

double seconds(const Plan& plan) { return plan.prediction.step_time.to<double>(); }

/// The values that distinguish the candidate from the others.
std::string described(const PlanProblem& problem, const Assignment& assignment) {
  std::string text;
  for (std::size_t i = 0; i < assignment.size(); ++i) {
    const Dimension& d = problem.space.dimensions[i];
    if (d.values.size() > 1) text += " " + d.field->key + "=" + value_text(d.values[assignment[i]]);
  }
  return text;
}

// ---- Tests ---------------------------------------------------------------------------------------------------------

// Is the first plan the fastest that there is, and is every other the best of its layout but for the 5 % that
// search.h allows, by the prediction of every candidate? Nothing that is missing may be faster than what is listed.
TEST(Search, FindsTheFastestOfAllCandidates) {
  constexpr double kTolerance = 0.05, kWindow = 1.25;
  int fitting = 0, binding = 0, binding_at_p99 = 0, refined_plans = 0, learnt_from = 0;
  std::vector<unsigned> seeds(200);
  std::iota(seeds.begin(), seeds.end(), 0U);
  seeds.insert(seeds.end(), {342, 402, 2393, 2712, 2763, 2929});  // Seeds that once failed.
  for (std::size_t i = 0; i < seeds.size(); i += FW_EVERY) {
    const unsigned seed = seeds[i];
    PlanProblem problem = small_problem(seed);
    problem.folding = seed >= 200 || seed % 6 != 5;
    const bool routing = seed < 200 && seed % 3 == 0;
    const std::vector<Known> all = everything(problem);
    Random random(seed);
    limit_memory(problem, all, random);
    if (routing) fit_all_but_routing(problem, all);
    const PlanResult result = searched(problem);
    problem.reserve = result.reserve;
    bool refused_at_p99 = false;
    const std::map<Key, const Known*> best = fastest_of_each(problem, all, refused_at_p99);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.model_name + " on " + problem.system_name);
    const bool exact = !learnt(problem.reserve);  // Else the first search's plans may be faster than those that count.
    EXPECT_EQ(result.proven, exact);
    EXPECT_EQ(result.enumerated, problem.space.size());
    for (const Plan& plan : result.plans)
      if (const auto refused = first_violation(rule_problem(problem), plan.options)) ADD_FAILURE() << refused->text();
    if (exact) {
      EXPECT_EQ(result.plans.empty(), best.empty()) << all.size() << " candidates";
    }
    learnt_from += exact ? 0 : 1;
    if (result.plans.empty() || best.empty()) continue;
    ++fitting;
    binding_at_p99 += refused_at_p99 ? 1 : 0;
    const Known& first =
        *std::ranges::min_element(best, {}, [](const auto& entry) { return entry.second->seconds; })->second;
    const double fastest = first.seconds;
    binding += std::ranges::any_of(all, [&](const Known& known) { return known.seconds < fastest; }) ? 1 : 0;
    const bool refined = !as_tried(problem, result.plans.front());
    refined_plans += refined ? 1 : 0;
    EXPECT_LE(seconds(result.plans.front()), fastest * (1.0 + kEqual))
        << "found" << described(problem, result.plans.front().assignment) << "\nnot"
        << described(problem, first.assignment);
    EXPECT_GE(seconds(result.plans.front()), refined || !exact ? 0.0 : fastest * (1.0 - kEqual))
        << "found" << described(problem, result.plans.front().assignment) << "\nnot"
        << described(problem, first.assignment);
    EXPECT_LE(result.least.to<double>(), fastest * (1.0 + kEqual));
    EXPECT_LE(result.plans.size(), static_cast<std::size_t>(problem.top));
    std::map<Key, double> listed;
    for (const Plan& plan : result.plans) {
      const auto known = best.find(key(plan.options.layout()));
      EXPECT_TRUE(listed.emplace(key(plan.options.layout()), seconds(plan)).second) << "a layout twice";
      if (known == best.end() && !exact) continue;
      ASSERT_NE(known, best.end());
      EXPECT_TRUE(!exact || !as_tried(problem, plan) || seconds(plan) >= known->second->seconds * (1.0 - kEqual));
      EXPECT_LE(seconds(plan), known->second->seconds / (1.0 - kTolerance));
      EXPECT_LE(plan.prediction.peak_memory, capacity_of(problem));
      EXPECT_LE(plan.imbalance.p99_memory, problem.hardware.hbm_capacity);
      const Layout l = plan.options.layout();
      EXPECT_TRUE(problem.folding || !problem.model.has_moe() || (l.etp == l.tp && l.dp % l.ep == 0));
    }
    EXPECT_TRUE(std::ranges::is_sorted(result.plans, {}, seconds));
    const bool full = result.plans.size() == static_cast<std::size_t>(problem.top);
    // A refined first plan may be much faster than all tried ones.
    const double last =
        full ? seconds(result.plans.back()) : kWindow * std::min(fastest, seconds(result.plans.front()));
    // The list lacks plans without room for PyTorch's reserve.
    const bool shorter = std::ranges::any_of(
        best, [&](const auto& entry) { return !listed.contains(entry.first) && !has_room(problem, *entry.second); });
    for (const auto& [layout, known] : best)
      if (!shorter && !listed.contains(layout)) {
        EXPECT_GE(known->seconds, (1.0 - kTolerance) * last * (1.0 - kEqual));
      }
  }
  EXPECT_GE(fitting, 80 / FW_EVERY);
  EXPECT_GE(binding, 60 / FW_EVERY);
  EXPECT_GE(binding_at_p99, 10 / FW_EVERY);
  EXPECT_LE(learnt_from, 60);
  EXPECT_LE(refined_plans, 60);  // Most are unchanged, so the comparison is meaningful.
}

// Are the plans of least memory within the step time within a percent of the device of the least that any candidate has
// that is as fast, whether the step time is given or follows from the fastest? Not compared are those of whose narrower
// searches one is not proven: in less memory the replay of PyTorch's allocator refuses plans that fit by their peak.
TEST(Search, FindsThePlansOfLeastMemoryWithinAStepTime) {
  int found = 0, less = 0, compared = 0;
  for (unsigned seed = 0; seed < 40; seed += FW_EVERY) {
    SCOPED_TRACE(seed);
    PlanProblem problem = small_problem(seed);
    const std::vector<Known> all = everything(problem);
    Random random(seed);
    limit_memory(problem, all, random);
    const double slack = 0.02 * static_cast<double>(1 + random.below(20));
    const PlanResult first = searched(problem);
    problem.reserve = first.reserve;
    const Answered answer = least_memory(problem, std::nullopt, slack);
    if (answer.result.plans.empty()) continue;
    ++found;
    bool unused = false;
    const std::map<Key, const Known*> best = fastest_of_each(problem, all, unused);
    double fastest = std::numeric_limits<double>::infinity();
    for (const auto& [layout, known] : best) fastest = std::min(fastest, known->seconds);
    if (!as_tried(problem, first.plans.front())) fastest = seconds(first.plans.front());
    const auto limit = answer.limit.to<double>();
    EXPECT_NEAR(limit, (1.0 + slack) * fastest, kEqual * limit);
    Bytes least = problem.hardware.hbm_capacity;
    for (const Known& known : all)
      if (known.seconds <= limit * (1.0 - kEqual) && known.memory < least && fits(problem, known) &&
          fits_at_p99(problem, known.options))
        least = known.memory;
    Bytes smallest = problem.hardware.hbm_capacity;
    for (const Plan& plan : answer.result.plans) {
      EXPECT_LE(seconds(plan), limit);
      smallest = std::min(smallest, plan.prediction.peak_memory);
    }
    if (std::ranges::all_of(answer.tried, [](const Tried& t) { return t.within || t.proven; })) {
      EXPECT_LE(smallest, least + 0.0101 * problem.hardware.hbm_capacity);
      ++compared;
    }
    less += smallest < 0.98 * answer.tried.front().peak_memory ? 1 : 0;
    // The same limit, in seconds.
    const Answered given = least_memory(problem, answer.limit, 0.0);
    ASSERT_FALSE(given.result.plans.empty());
    EXPECT_EQ(given.result.plans.front().assignment, answer.result.plans.front().assignment);
    EXPECT_TRUE(least_memory(problem, Seconds{0.5 * fastest}, 0.0).result.plans.empty());
  }
  EXPECT_GE(found, 15 / FW_EVERY);
  EXPECT_GE(compared, 20 / FW_EVERY);
  EXPECT_GE(less, 5 / FW_EVERY);
}

// Is the answer the smallest of the sizes that is fast enough, by a search for each?
TEST(Search, FindsTheFewestGpusWithinAStepTime) {
  const auto of_size = [](std::int64_t num_gpus) {
    PlanProblem problem = any_problem({.model = "mini-qwen3-moe-12l",
                                       .system = "h200",
                                       .release = {},
                                       .num_gpus = num_gpus,
                                       .global_batch = 64,
                                       .precisions = {},
                                       .set = {{"cuda_graph.impl", {"none"}}, {"cp", {"1"}}}});
    problem.effort = 50'000;
    return problem;
  };
  std::map<std::int64_t, double> times;
  for (const std::int64_t size : {1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32}) {
    try {
      const PlanResult result = plan(of_size(size));
      if (!result.plans.empty()) times[size] = seconds(result.plans.front());
    } catch (const config::ConfigError&) {  // No layout exists for this number of GPUs.
    }
  }
  EXPECT_LT(times[16], times[8]);
  EXPECT_LT(times[8], times[4]);
  EXPECT_TRUE(times.contains(6));
  int cases = 0, odd = 0;
  for (const auto& [size, time] : times) {
    if (size > 16 || cases++ % FW_EVERY != 0) continue;
    const std::int64_t start = cases % 2 == 0 ? 4 : 32;  // Alternately from below and from above.
    const double limit = 1.001 * time;
    const auto fewest = std::ranges::find_if(times, [&](const auto& entry) { return entry.second <= limit; });
    SCOPED_TRACE(std::to_string(size) + " from " + std::to_string(start));
    const Answered answer = fewest_gpus(start, Seconds{limit}, of_size);
    ASSERT_FALSE(answer.result.plans.empty());
    EXPECT_EQ(answer.problem.num_gpus, fewest->first);
    EXPECT_EQ(seconds(answer.result.plans.front()), fewest->second);
    EXPECT_EQ(answer.result.plans.front().options.layout().world(), fewest->first);
    odd += std::has_single_bit(static_cast<std::uint64_t>(fewest->first)) ? 0 : 1;
  }
  EXPECT_GE(odd, 1);
  const Answered none = fewest_gpus(16, Seconds{0.01 * times[32]}, of_size);
  EXPECT_TRUE(none.result.plans.empty());
  EXPECT_GE(none.tried.size(), 2U);
}

// Is the first plan the same however many are listed, and is a list of up to ten, among which it is chosen, the start
// of a longer one?
TEST(Search, TheFirstPlanDoesNotDependOnHowManyAreListed) {
  int problems = 0;
  for (const char* model : {"mini-qwen3-moe-12l", "mini-llama-16l", "mini-mixtral-8l"}) {
    if (problems++ % FW_EVERY != 0) continue;
    PlanProblem problem = any_problem(
        {.model = model, .system = "h200", .release = {}, .num_gpus = 16, .global_batch = 64, .precisions = {}});
    problem.effort = 60'000;
    std::vector<TrainingOptions> before;
    for (const std::int64_t top : {20, 10, 4, 1}) {
      problem.top = top;
      const PlanResult result = foldwise::plan(problem);
      ASSERT_LE(result.plans.size(), static_cast<std::size_t>(top));
      std::vector<TrainingOptions> list;
      for (const Plan& plan : result.plans) list.push_back(plan.options);
      if (!before.empty()) {
        ASSERT_LE(list.size(), before.size());
        EXPECT_EQ(list.front(), before.front()) << model << ' ' << top;
        if (before.size() <= 10) {
          EXPECT_EQ(list, std::vector(before.begin(), before.begin() + std::ssize(list))) << model << ' ' << top;
        }
      }
      before = std::move(list);
    }
  }
}

// Does a plan of fine-tuning keep its task, asked by itself or of a run?
TEST(Search, PlansKeepTheirTask) {
  foldwise::PlanRequest request{
      .model = "mini-llama-16l", .system = "h200", .release = {}, .num_gpus = 4, .global_batch = 16, .precisions = {}};
  for (const char* task : {"pretrain", "sft", "lora"}) {
    request.set = {{"task", {task}}};
    PlanProblem problem = any_problem(request);
    for (const bool of_run : {false, true}) {
      problem.effort = 2'000;
      const PlanResult result = plan(problem);
      ASSERT_FALSE(result.plans.empty()) << task;
      const planner::Run run = foldwise::parse_run(foldwise::run_file(problem, result.plans.front()));
      EXPECT_EQ(run.task, task);
      EXPECT_EQ(run.options.layer.lora, run.task == "lora");
      if (!of_run) problem = foldwise::question_of(run, {});
    }
  }
  request.set = {{"task", {"sft", "lora"}}};
  EXPECT_THROW(any_problem(request), config::ConfigError);
}

// Has every plan, the first too, the split of layers and the order of ranks that are named? In one NVLink domain the
// order makes no difference, so a search that may choose leaves it alone.
TEST(Search, PlansHaveTheNamedSplitAndOrder) {
  const std::string split = "Ett|t*6L";
  for (const char* order : {"false", "true"}) {
    PlanProblem problem = any_problem(
        {.model = "mini-mixtral-8l",
         .system = "h100-sxm-80gb",
         .release = {},
         .num_gpus = 8,
         .global_batch = 64,
         .precisions = {},
         .set = {{"pp", {"2"}}, {"vpp", {"1"}}, {"pipeline_layout", {split}}, {"use_tp_pp_dp_mapping", {order}}}});
    problem.effort = 50'000;
    const PlanResult result = foldwise::plan(problem);
    EXPECT_FALSE(result.plans.empty());
    for (const Plan& found : result.plans) {
      EXPECT_EQ(found.options.pipeline.layout, split);
      EXPECT_EQ(found.options.pipeline.tp_pp_dp, order == std::string("true"));
    }
  }
}

// Are sizes of a hierarchical exchange, which decide CP, those of every plan; and is what contradicts them, and a value
// that is no number, refused with a reason? A default gives way to what is pinned.
TEST(Search, WhatIsPinnedDecidesOrIsRefused) {
  const auto planned = [](const std::map<std::string, std::vector<std::string>>& set) {
    PlanProblem problem = any_problem({.model = "mini-mixtral-8l",
                                       .system = "h200",
                                       .release = {},
                                       .num_gpus = 8,
                                       .global_batch = 32,
                                       .precisions = {},
                                       .set = set});
    problem.effort = 50'000;
    return foldwise::plan(problem);
  };
  for (const Plan& plan : planned({{"hierarchical_context_parallel_sizes", {"4+2"}}}).plans)
    EXPECT_EQ(field("hierarchical_context_parallel_sizes").value.get(plan.options), json({4, 2}));
  for (const Plan& plan : planned({{"fsdp_group", {"2"}}}).plans) EXPECT_TRUE(is_fsdp(plan.options.step.sharding));
  EXPECT_FALSE(planned({{"sharding", {"ddp"}}}).plans.empty());
  using Set = std::map<std::string, std::vector<std::string>>;
  for (const Set& set : std::vector<Set>{{{"hierarchical_context_parallel_sizes", {"4"}}},
                                         {{"hierarchical_context_parallel_sizes", {"4+2"}}, {"cp", {"4"}}},
                                         {{"offload.type", {"none"}}, {"offload.modules", {"core_attn"}}},
                                         {{"capacity_factor", {"nan"}}},
                                         {{"lora.dim", {"2", "3"}}},
                                         {{"rank_capacity_factor", {"1.5", "2"}}, {"cuda_graph.impl", {"none"}}}}) {
    try {
      static_cast<void>(planned(set));
      ADD_FAILURE() << set.begin()->first << " is not refused";
    } catch (const config::ConfigError& error) {
      EXPECT_FALSE(error.diagnostics().empty()) << set.begin()->first;
    }
  }
}

// Is a plan found with every schedule, and of every field that is pinned, and does `predict` accept its run file?
TEST(Search, PlansOfWhatIsPinnedCanBePredicted) {
  int asked = 0, planned = 0;
  const auto expect_predicted = [&](foldwise::PlanRequest request) {
    if (asked++ % FW_EVERY != 0) return;
    PlanResult result;
    PlanProblem problem;
    try {
      problem = any_problem(std::move(request));
      problem.effort = 2'000;
      problem.top = 3;
      result = plan(problem);
    } catch (const config::ConfigError& error) {
      EXPECT_FALSE(error.diagnostics().empty()) << "refused without a reason";
      return;
    }
    for (const Plan& found : result.plans) {
      ++planned;
      const std::string file = foldwise::run_file(problem, found);
      try {
        const planner::Run run = foldwise::parse_run(file);
        EXPECT_TRUE(foldwise::check(run).empty()) << foldwise::check(run).front().text() << file;
      } catch (const config::ConfigError& error) {
        ADD_FAILURE() << error.what() << file;
      }
    }
  };
  for (const char* model : {"mini-llama-16l", "mini-mixtral-8l"}) {
    const foldwise::PlanRequest request{
        .model = model, .system = "b200", .release = {}, .num_gpus = 4, .global_batch = 16, .precisions = {}};
    for (const auto& [name, schedule] : schedule_names()) {
      foldwise::PlanRequest with = request;
      with.schedule = schedule;
      expect_predicted(with);
      with.set = {{"pp", {"2"}}};
      expect_predicted(with);
    }
    for (const Field& f : fields()) {
      if (!f.value.set || f.key == "schedule" || f.key == "global_batch" || f.key == "seq_len") continue;
      std::vector<std::string> values = f.value.names;
      if (f.value.type == FieldType::kBoolean) values = {"true", "false"};
      if (f.value.type == FieldType::kInteger) values = {"1", "2", "4"};
      if (f.value.type == FieldType::kNumber) values = {"0.5", "1", "2"};
      for (const std::string& value : values) {
        foldwise::PlanRequest with = request;
        with.set = {{f.key, {value}}};
        expect_predicted(with);
      }
    }
  }
  fmt::print("{} questions, {} plans\n", asked, planned);
  EXPECT_GE(planned, 300 / FW_EVERY);
}

// Do sizes that cannot go together give reasons at once, and do others none?
TEST(Search, ContradictionsHaveReasons) {
  using Sets = std::map<std::string, std::vector<std::string>>;
  const auto reasons = [](const Sets& sets, bool folding = true) -> std::string {
    try {
      static_cast<void>(any_problem({.model = "deepseek-v3",
                                     .system = "gb200-nvl72",
                                     .release = {},
                                     .num_gpus = 256,
                                     .precisions = {},
                                     .set = sets,
                                     .folding = folding}));
    } catch (const config::ConfigError& error) {
      return error.what();
    }
    return "";
  };
  using testing::HasSubstr;
  EXPECT_THAT(reasons({{"tp", {"3"}}}), HasSubstr("grid.world_dense: --tensor-model-parallel-size 3 x"));
  EXPECT_THAT(reasons({{"pp", {"5"}}, {"vpp", {"2"}}}), HasSubstr("grid.world_dense"));
  EXPECT_THAT(reasons({{"ep", {"48"}}}), HasSubstr("grid.experts_div_ep: --expert-model-parallel-size 48 does not"));
  EXPECT_THAT(reasons({{"micro_batch", {"3"}}}), HasSubstr("grid.gbs"));
  EXPECT_THAT(reasons({{"fsdp_group", {"7"}}}), HasSubstr("foldwise.fsdp_group"));
  EXPECT_THAT(reasons({{"recompute.num_layers", {"2"}}, {"recompute.granularity", {"none"}}}),
              HasSubstr("recompute.num_layers = 2 does not apply"));
  EXPECT_THAT(reasons({{"tp", {"2"}}, {"etp", {"1"}}}, false), HasSubstr("foldwise.unfolded_tp"));
  // For any values of the rule's other fields.
  EXPECT_THAT(reasons({{"overlaps.ep_a2a", {"true"}}, {"recompute.granularity", {"full"}}}),
              HasSubstr("epov.recompute"));
  EXPECT_THAT(reasons({{"offload.optimizer_cpu_offload", {"true"}}, {"offload.optimizer_states", {"true"}}}),
              HasSubstr("foldwise.offload_states"));
  // The first choice requires full recomputation.
  EXPECT_THAT(reasons({{"recompute.num_layers", {"2"}}, {"overlaps.ep_a2a", {"true"}}}), HasSubstr("epov.recompute"));
  EXPECT_EQ(reasons({{"overlaps.ep_a2a", {"true"}}, {"recompute.granularity", {"full", "none"}}}), "");
  EXPECT_EQ(reasons({{"offload.optimizer_states", {"true"}}}), "");
  EXPECT_EQ(reasons({{"tp", {"2"}}, {"etp", {"1"}}}), "");
  EXPECT_EQ(reasons({{"tp", {"3", "4"}}}), "");
  EXPECT_EQ(reasons({}), "");
  EXPECT_EQ(reasons({}, false), "");
}

// Does a problem that plan_problem() calls contradictory have no candidate that the rules accept, and does a search
// that rules refuse whole say so?
TEST(Search, WhatRulesRefuseWholeIsSaid) {
  int contradictory = 0, refused = 0;
  for (unsigned seed = 0; seed < 300; seed += FW_EVERY) {
    SCOPED_TRACE(seed);
    PlanProblem problem = small_problem(seed);
    Random random(seed);
    const std::vector<std::pair<const char*, std::vector<json>>> odd = {
        {"tp", {3, 8}},
        {"pp", {3, 4}},
        {"micro_batch", {3, 16}},
        {"ep", {3, 8}},
        {"etp", {2}},
        {"vpp", {2, 3}},
        {"fsdp_group", {2, 3}},
        {"recompute.num_layers", {1, 2}},
        {"cuda_graph.impl", {"local", "full_iteration"}}};
    for (int i = 0; i < 2; ++i) {
      const auto& [name, values] = odd[random.below(odd.size())];
      problem.space.set(name, {values[random.below(values.size())]});
    }
    problem.folding = random.once_in(2);
    if (problem.space.size() > 3000.0) continue;
    const bool any = !everything(problem).empty();
    const bool contradicts = !contradiction(problem).empty();
    EXPECT_FALSE(any && contradicts);
    const PlanResult result = searched(problem);
    EXPECT_FALSE(any && result.refused);
    contradictory += contradicts ? 1 : 0;
    refused += result.refused ? 1 : 0;
    EXPECT_FALSE(contradicts && !result.refused);
    EXPECT_FALSE(result.refused && least_refused(problem).empty());
  }
  EXPECT_GE(contradictory, 10 / FW_EVERY);
  EXPECT_GE(refused, contradictory);
}

// Does a search end where nothing is left to choose about experts, or about anything?
TEST(Search, EndsWhereAWholeLevelHasNoChoice) {
  PlanProblem problem = any_problem({.model = "mini-llama-16l",
                                     .system = "h200",
                                     .release = {},
                                     .num_gpus = 4,
                                     .global_batch = 32,
                                     .precisions = {}});
  problem.effort = kEnough;
  for (const char* name : {"ep", "etp", "dispatcher", "overlaps.shared_expert", "cp", "tp"})
    problem.space.set(name, {problem.space.find(name)->values.front()});
  const PlanResult some = searched(problem);
  EXPECT_TRUE(some.proven);
  for (Dimension& d : problem.space.dimensions) d.values.resize(1);
  const PlanResult one = searched(problem);
  EXPECT_TRUE(one.proven);
  ASSERT_EQ(one.plans.size(), 1U);
  ASSERT_FALSE(some.plans.empty());
  EXPECT_LE(seconds(some.plans.front()), seconds(one.plans.front()));
}

/// Problems of built-in models with too many candidates to predict all, but with an answer that is proven within a
/// second.
PlanProblem middle_problem(const std::string& model, const std::string& system, std::int64_t num_gpus,
                           std::map<std::string, std::vector<std::string>> set) {
  set.emplace("cp", std::vector<std::string>{"1"});
  return any_problem({.model = model,
                      .system = system,
                      .release = {},
                      .num_gpus = num_gpus,
                      .global_batch = 8 * num_gpus,
                      .precisions = {},
                      .set = std::move(set)});
}
PlanProblem qwen3() {
  PlanProblem problem = middle_problem("mini-qwen3-moe-12l", "h200", 4, {{"cuda_graph.impl", {"none"}}});
  problem.headroom = 0.3;  // So that torch has room for the fastest plan. Else the answer is not proven.
  return problem;
}
PlanProblem deepseek() {
  return middle_problem("mini-deepseek-12l", "gb200-nvl72", 4, {{"cuda_graph.impl", {"none"}}, {"etp", {"1"}}});
}
PlanProblem mixtral() {
  return middle_problem("mini-mixtral-8l", "h100-sxm-80gb", 8, {{"cuda_graph.impl", {"none"}}, {"etp", {"1"}}});
}
PlanProblem llama() { return middle_problem("mini-llama-16l", "h100-sxm-80gb", 8, {}); }

void expect_equal(const PlanResult& a, const PlanResult& b) {
  ASSERT_EQ(a.plans.size(), b.plans.size());
  for (std::size_t i = 0; i < a.plans.size(); ++i) {
    EXPECT_EQ(a.plans[i].assignment, b.plans[i].assignment) << i;
    EXPECT_EQ(a.plans[i].options, b.plans[i].options) << i;
    EXPECT_EQ(a.plans[i].prediction.step_time, b.plans[i].prediction.step_time) << i;
  }
  EXPECT_EQ(a.proven, b.proven);
  EXPECT_EQ(a.least, b.least);
  EXPECT_EQ(a.effort, b.effort);
  EXPECT_EQ(a.nodes, b.nodes);
}

// Is the answer the same on one thread and on four, of a search that ends and of one that is cut short?
TEST(Search, AnswerDoesNotDependOnTheNumberOfThreads) {
  PlanProblem problem = qwen3();
  for (const std::int64_t effort : {problem.effort, std::int64_t{100'000}}) {
    problem.effort = effort;
    problem.threads = 1;
    const PlanResult one = searched(problem);
    problem.threads = 4;
    const PlanResult four = searched(problem);
    expect_equal(one, four);
  }
}

// Is what a plan says what `predict` says of its run file?
TEST(Search, APlanIsThePredictionOfItsRunFile) {
  PlanProblem uneven = llama();  // 16 layers.
  uneven.space.set("pp", {1, 4});
  uneven.space.set("vpp", {3, 5});
  for (const PlanProblem& problem : {deepseek(), mixtral(), uneven}) {
    const PlanResult result = searched(problem);
    ASSERT_FALSE(result.plans.empty());
    for (const Plan& plan : result.plans) {
      const std::string file = foldwise::run_file(problem, plan);
      const foldwise::Run run = foldwise::parse_run(file);
      EXPECT_EQ(run.options, plan.options) << file;
      const costmodel::Prediction again = foldwise::predict(run);
      EXPECT_EQ(again.step_time, plan.prediction.step_time) << file;
      EXPECT_EQ(again.peak_memory, plan.prediction.peak_memory) << file;
    }
  }
}

// Is every candidate that no rule refuses a run that a run file can say? What files refuse must be no candidate.
TEST(Search, EveryCandidateHasARunFile) {
  std::mt19937 random(7);
  for (const auto& [model, system, num_gpus] : std::vector<std::tuple<std::string, std::string, std::int64_t>>{
           {"llama3-70b", "h100-sxm-80gb", 64}, {"deepseek-v3", "gb200-nvl72", 256}, {"mixtral-8x7b", "h200", 32}}) {
    const PlanProblem problem = any_problem({.model = model,
                                             .system = system,
                                             .release = {},
                                             .num_gpus = num_gpus,
                                             .global_batch = 512,
                                             .precisions = {},
                                             .set = {}});
    const Bases bases(problem);
    int written = 0;
    for (int i = 0; i < 20'000 / FW_EVERY; ++i) {
      Assignment assignment;
      for (const Dimension& d : problem.space.dimensions)
        assignment.push_back(static_cast<std::uint16_t>(random() % 4 == 0 ? random() % d.values.size() : 0));
      const std::optional<TrainingOptions> options = candidate(problem, bases, assignment);
      if (!options || first_violation(rule_problem(problem), *options)) continue;
      ++written;
      const std::string file = foldwise::run_file(
          problem,
          {.assignment = assignment, .options = *options, .prediction = {}, .imbalance = {}, .why = {}, .lead = {}});
      EXPECT_EQ(foldwise::parse_run(file).options, *options) << file;
    }
    EXPECT_GT(written, 100 / FW_EVERY) << model;
  }
}

// Does a plan of a changed model say so in its run file, so that it is the same run?
TEST(Search, TheRunFileOfAPlanHasWhatWasSetOfTheModel) {
  PlanProblem problem = any_problem({.model = "mini-deepseek-12l",
                                     .system = "gb200-nvl72",
                                     .release = {},
                                     .num_gpus = 4,
                                     .global_batch = 32,
                                     .precisions = {},
                                     .set = {{"mtp_num_layers", {"2"}},
                                             {"mtp_use_repeated_layer", {"true"}},
                                             {"model_overrides.num_hidden_layers", {"6"}},
                                             {"cp", {"1"}},
                                             {"cuda_graph.impl", {"none"}}}});
  EXPECT_EQ(problem.model.num_layers(), 6);
  EXPECT_EQ(problem.model.mtp_num_layers, 2);
  problem.effort = 200'000;
  const PlanResult result = searched(problem);
  ASSERT_FALSE(result.plans.empty());
  for (const Plan& plan : result.plans) {
    const foldwise::Run run = foldwise::parse_run(foldwise::run_file(problem, plan));
    EXPECT_EQ(run.model.num_layers(), 6);
    EXPECT_EQ(run.model.mtp_num_layers, 2);
    EXPECT_TRUE(run.model.mtp_use_repeated_layer);
    EXPECT_EQ(foldwise::predict(run).step_time, plan.prediction.step_time);
  }
}

/// Number of candidates with these assignments, including their splits, that Megatron accepts. Expects that none fits
/// and is faster.
int none_is_faster(const PlanProblem& problem, const Plan& best, const std::vector<Assignment>& others) {
  const Bases bases(problem);
  BlockCache cache;
  int predicted = 0;
  for (const Assignment& assignment : others) {
    const std::optional<TrainingOptions> options = candidate(problem, bases, assignment);
    if (!options) continue;
    for (const TrainingOptions& o : with_every_split(problem, *options, &cache)) {
      const costmodel::Prediction p =
          costmodel::predict(costmodel::compose_step(problem.model, o, problem.hardware), false);
      ++predicted;
      if (p.fits && p.peak_memory <= capacity_of(problem) && fits_at_p99(problem, o)) {
        EXPECT_GE(p.step_time.to<double>(), seconds(best) * (1.0 - kEqual))
            << problem.model_name << " " << testing::PrintToString(assignment) << " of "
            << testing::PrintToString(best.assignment);
      }
    }
  }
  return predicted;
}

std::vector<Assignment> with_one_changed(const PlanProblem& problem, const Assignment& assignment) {
  std::vector<Assignment> result;
  for (std::size_t i = 0; i < assignment.size(); ++i)
    for (std::size_t value = 0; value < problem.space.dimensions[i].values.size(); ++value) {
      result.push_back(assignment);
      result.back()[i] = static_cast<std::uint16_t>(value);
    }
  return result;
}

// Is no plan faster that differs from the first in the value of one field, by the prediction of each? Of spaces too
// large to predict every candidate.
TEST(Search, NoChangeOfOneFieldIsFaster) {
  for (PlanProblem problem : {qwen3(), deepseek(), mixtral(), llama()}) {
    problem.effort = 4 * kUsualEffort;
    const PlanResult result = searched(problem);
    EXPECT_TRUE(result.proven) << problem.model_name;
    ASSERT_FALSE(result.plans.empty());
    const Plan& best = result.plans.front();
    EXPECT_GT(none_is_faster(problem, best, with_one_changed(problem, best.assignment)), 50);
  }
}

// Where a search ends unproven, is still no plan faster that differs in one field, or in two by the next value each?
TEST(Search, AnUnprovenPlanIsTheFastestNearIt) {
  for (PlanProblem problem : {qwen3(), deepseek(), mixtral()}) {
    problem.effort = 100'000;
    const PlanResult result = searched(problem);
    EXPECT_FALSE(result.proven) << problem.model_name;
    ASSERT_FALSE(result.plans.empty());
    const Plan& best = result.plans.front();
    std::vector<Assignment> others = with_one_changed(problem, best.assignment);
    for (std::size_t i = 0, pair = 0; i < best.assignment.size(); ++i)
      for (std::size_t k = 0; k < i; ++k)
        for (const int one : {-1, 1})
          for (const int two : {-1, 1}) {
            const auto has = [&](std::size_t at, int value) {
              return value >= 0 && value < static_cast<int>(problem.space.dimensions[at].values.size()) &&
                     problem.space.dimensions[at].field->value.type == FieldType::kInteger;
            };
            if (!has(i, best.assignment[i] + one) || !has(k, best.assignment[k] + two) || pair++ % FW_EVERY != 0)
              continue;
            others.push_back(best.assignment);
            others.back()[i] = static_cast<std::uint16_t>(best.assignment[i] + one);
            others.back()[k] = static_cast<std::uint16_t>(best.assignment[k] + two);
          }
    EXPECT_GT(none_is_faster(problem, best, others), 50);
  }
}

// Is no plan faster with one layer in the stage before or behind its own?
TEST(Search, NoLayerIsBetterOffInTheNextStage) {
  int moves = 0;
  for (PlanProblem problem : {qwen3(), deepseek(), llama()}) {
    problem.space.set("pp", {4});
    const PlanResult result = searched(problem);
    ASSERT_FALSE(result.plans.empty());
    const Plan& best = result.plans.front();
    const StageLayout layout = costmodel::stage_layout(problem.model, best.options);
    for (std::size_t cut = 0; cut + 1 < layout.stages.size(); ++cut)
      for (const int step : {-1, 1}) {
        StageLayout moved = layout;
        moved.stages[cut].num_layers += step;
        moved.stages[cut + 1].num_layers -= step;
        moved.stages[cut + 1].first_layer += step;
        if (std::ranges::any_of(moved.stages, [](const auto& stage) { return stage.num_layers < 0; })) continue;
        TrainingOptions o = best.options;
        o.pipeline.layout = costmodel::to_layout_string(moved);
        if (first_violated(rule_problem(problem), o)) continue;
        const costmodel::Prediction p = costmodel::predict(problem.model, o, problem.hardware);
        ++moves;
        if (p.fits && p.peak_memory <= capacity_of(problem) && fits_at_p99(problem, o)) {
          EXPECT_GE(p.step_time.to<double>(), seconds(best) * (1.0 - kEqual)) << problem.model_name << moves;
        }
      }
  }
  EXPECT_GT(moves, 20);
}

// Does a plan leave only so many sixteenths of the optimizer on the host as must be there, unless the fraction is
// given?
TEST(Search, TheHostHasTheLeastOfTheOptimizer) {
  int more_than_one = 0;
  for (PlanProblem problem : {qwen3(), mixtral()}) {
    SCOPED_TRACE(problem.model_name);
    // The device has as much memory as the plan for a larger device needs with 5 of 16 parts on the host. No release is
    // named: in a named one, offloading frees nothing with states of two bytes (off.optim_states).
    problem.release = nullptr;
    problem.space.set("offload.optimizer_cpu_offload", {true});
    const PlanResult whole = searched(problem);
    ASSERT_FALSE(whole.plans.empty());
    TrainingOptions o = whole.plans.front().options;
    // Nothing else frees memory: host memory is expensive.
    problem.space.set("recompute.granularity", {"none"});
    problem.space.set("offload.type", {nullptr});
    problem.space.set("sharding", {"ddp-distopt"});
    problem.space.set("tp", {o.layer.tp});
    problem.space.set("pp", {o.pipeline.pp});
    problem.space.set("ep", {o.layer.ep});
    problem.space.set("micro_batch", {o.layer.micro_batch});
    o.step.offload.optimizer_fraction = 0.3;
    problem.headroom = 0.2;  // So that torch has room for what it reserves beside the plan's tensors.
    problem.hardware.hbm_capacity =
        costmodel::predict(problem.model, o, problem.hardware).peak_memory / (1.0 - problem.headroom);
    const PlanResult result = searched(problem);
    ASSERT_FALSE(result.plans.empty());
    const Plan& best = result.plans.front();
    const double least = best.options.step.offload.optimizer_fraction;
    EXPECT_EQ(std::fmod(least, 1.0 / 16.0), 0.0);
    if (least > 1.0 / 16.0) {
      ++more_than_one;
      o = best.options;
      o.step.offload.optimizer_fraction -= 1.0 / 16.0;
      const costmodel::Prediction p = costmodel::predict(problem.model, o, problem.hardware);
      EXPECT_TRUE(p.peak_memory > capacity_of(problem) || !fits_at_p99(problem, o) ||
                  !has_room(problem, {.layout = {}, .assignment = best.assignment, .options = o}) ||
                  p.step_time.to<double>() >= seconds(best) * (1.0 - kEqual))
          << least;
    }
    problem.space.set("offload.fraction", {0.5, 0.75});
    const PlanResult narrowed = searched(problem);
    ASSERT_FALSE(narrowed.plans.empty());
    EXPECT_EQ(narrowed.plans.front().options.step.offload.optimizer_fraction, 0.5);
  }
  EXPECT_GT(more_than_one, 0);
}

// Have plans only the values that are set, and is none of them faster than without? Setting what the best has changes
// nothing.
TEST(Search, SetNarrowsTheSpace) {
  PlanProblem problem = qwen3();
  problem.effort = 4 * kUsualEffort;
  const PlanResult whole = searched(problem);
  ASSERT_TRUE(whole.proven && !whole.plans.empty());
  const Plan& best = whole.plans.front();
  for (const auto& [name, other] : std::vector<std::pair<std::string, json>>{
           {"ep", 1}, {"sharding", "fsdp"}, {"recompute.granularity", "full"}, {"overlaps.dp_grad", false}}) {
    SCOPED_TRACE(name);
    const Field& f = field(name);
    PlanProblem same = problem, changed = problem;
    same.space.set(name, {f.value.get(best.options)});
    const PlanResult again = searched(same);
    ASSERT_FALSE(again.plans.empty());
    EXPECT_NEAR(seconds(again.plans.front()), seconds(best), kEqual * seconds(best));
    changed.space.set(name, {other});
    const PlanResult slower = searched(changed);
    ASSERT_FALSE(slower.plans.empty());
    for (const Plan& plan : slower.plans) EXPECT_EQ(f.value.get(plan.options), other);
    EXPECT_GE(seconds(slower.plans.front()), seconds(best) * (1.0 - kEqual));
  }
}

// Has every plan what is set, whichever value of whichever field? The first two, the last, and what `get` alone knows.
TEST(Search, PlansHaveWhatIsSet) {
  PlanProblem problem = qwen3();
  problem.effort = 60'000;
  int found = 0;
  for (const Dimension& d : problem.space.dimensions) {
    std::set<json> values = {d.values.front(), d.values[std::min<std::size_t>(1, d.values.size() - 1)],
                             d.values.back()};
    if (d.field->key == "offload.type") values.insert("fine-grained-activation");
    for (const json& value : values) {
      SCOPED_TRACE(d.field->key + " " + value_text(value));
      PlanProblem narrow = problem;
      narrow.space.set(d.field->key, {value});
      for (const Plan& plan : searched(narrow).plans) {
        EXPECT_EQ(d.field->value.get(plan.options), value);
        ++found;
      }
    }
  }
  EXPECT_GT(found, 200);
}

// Does a search that is cut short say so, and what it has not ruled out?
TEST(Search, WithoutEffortNothingIsProven) {
  PlanProblem problem = deepseek();
  const PlanResult whole = searched(problem);
  ASSERT_TRUE(whole.proven && !whole.plans.empty());
  EXPECT_LE(whole.least, whole.plans.front().prediction.step_time);
  problem.effort = 1;
  const PlanResult result = searched(problem);
  EXPECT_FALSE(result.proven);
  ASSERT_FALSE(result.plans.empty());
  EXPECT_LE(result.least, result.plans.front().prediction.step_time);
  EXPECT_LE(result.least, whole.plans.front().prediction.step_time);
  EXPECT_GE(seconds(result.plans.front()), seconds(whole.plans.front()) * (1.0 - kEqual));
}

// Does a search give an answer that is right without any one of its strategies, and does its log account for all of its
// effort? Without polish, which moves layers to splits that a proof says nothing of. Local search, too, balances layers
// with what they recompute, so without it the fastest may be slower.
TEST(Search, EveryStrategyCanBeSwitchedOff) {
  PlanProblem problem = llama();
  problem.parameters.off = {StrategyName::kPolish};
  SharedCosts costs;
  const PlanResult whole = search(problem, {}, costs);
  ASSERT_TRUE(whole.proven && !whole.plans.empty());
  std::vector<std::set<StrategyName>> cases = {{StrategyName::kDive, StrategyName::kRestriction,
                                                StrategyName::kLocalSearch, StrategyName::kNeighbourhoodSearch}};
  for (std::size_t i = 0; i < kStrategies; ++i) cases.push_back({static_cast<StrategyName>(i)});
  for (const std::set<StrategyName>& off : cases) {
    SCOPED_TRACE(to_string(*off.rbegin()));
    problem.parameters.off = off;
    problem.parameters.off.insert(StrategyName::kPolish);
    const PlanResult result = search(problem, {}, costs);
    std::int64_t effort = 0;
    for (std::size_t i = 0; i < kStrategies; ++i) {
      effort += result.log[i].effort;
      EXPECT_TRUE(result.log[i].steps == 0 || !problem.parameters.off.contains(static_cast<StrategyName>(i)));
    }
    EXPECT_EQ(effort, result.effort);
    EXPECT_EQ(result.proven, !off.contains(StrategyName::kProof));
    ASSERT_FALSE(result.plans.empty());
    EXPECT_GE(seconds(result.plans.front()), seconds(whole.plans.front()) * (1.0 - kEqual));
    if (off.contains(StrategyName::kLocalSearch)) continue;
    EXPECT_LE(result.least, whole.plans.front().prediction.step_time);
    if (result.proven) {
      EXPECT_LE(seconds(result.plans.front()), seconds(whole.plans.front()) * (1.0 + kEqual));
    }
  }
}

// Where a graph of the whole iteration is allowed, does no rule about what is decided later refuse it and allow
// another? The search then leaves the others out, but without a pipeline what has none: layers that are offloaded
// whole.
TEST(Search, NoLaterRuleRefusesAGraphOfTheWholeIterationWhereItAllowsAnother) {
  int accepted = 0;
  for (unsigned seed = 0; seed < 60; seed += FW_EVERY) {
    const PlanProblem problem = small_problem(seed);
    const DecisionOrder order(problem);
    std::vector<std::size_t> later = order.late_rules();
    for (const DecisionOrder::MemoryRule& rule : order.memory_rules()) later.push_back(rule.rule);
    for (std::size_t i = order.begin_of(Level::kPipeline); i < order.size(); ++i)
      later.insert(later.end(), order.rules_at(i).begin(), order.rules_at(i).end());
    const Bases bases(problem);
    Random random(seed);
    for (int i = 0; i < 2000; ++i) {
      Assignment assignment;
      for (const Dimension& d : problem.space.dimensions)
        assignment.push_back(static_cast<std::uint16_t>(random.below(d.values.size())));
      std::optional<TrainingOptions> options = candidate(problem, bases, assignment);
      if (!options || first_violated(rule_problem(problem), *options)) continue;
      ++accepted;
      if (options->pipeline.cpu_offloading_num_layers > 0) {
        EXPECT_EQ(options->pipeline.pp, 1);
        EXPECT_EQ(options->layer.cuda_graph.impl, GraphImpl::kNone);
        continue;
      }
      options->layer.cuda_graph = {.impl = GraphImpl::kFullIteration, .modules = {}};
      for (const std::size_t rule : later)
        EXPECT_FALSE(rules()[rule].broken(rule_problem(problem), *options)) << rules()[rule].id;
    }
  }
  EXPECT_GT(accepted, FW_EVERY == 1 ? 500 : 0);
}

// Pinned to all that a published run chose, is the plan that run: the same seconds and bytes? Every ninth run.
TEST(Search, APlanPinnedToAPublishedRunIsThatRun) {
  const RunList published = load_runs(std::string(FW_ACCURACY_DIR) + "/runs/published_runs.json");
  int compared = 0;
  for (std::size_t i = 0; i < published.runs.size(); i += 9) {
    const foldwise::Run& run = published.runs[i];
    if (run.options.layer.lora || !foldwise::check(run).empty()) continue;
    const costmodel::Prediction expected = foldwise::predict(run);
    if (!expected.fits) continue;
    SCOPED_TRACE(run.id);
    PlanProblem problem = foldwise::question_of(run);
    for (const Field& f : fields())
      if (f.is_option() && f.applies_to(run.options) && !problem.stated.contains(f.key) && f.key != "dp")
        problem.space.set(f.key, {f.value.get(run.options)});
    const PlanResult result = searched(problem);
    ASSERT_EQ(result.plans.size(), 1U);
    EXPECT_NEAR(seconds(result.plans.front()), expected.step_time.to<double>(), 1e-9 * expected.step_time.to<double>());
    EXPECT_NEAR(in_gib(result.plans.front().prediction.peak_memory), in_gib(expected.peak_memory), 1e-9);
    ++compared;
  }
  EXPECT_GE(compared, 20);
}

// Where hardly anything fits, is something found before the effort ends? Nemotron 3 Super on 64 H100, as published.
TEST(Search, FindsAFirstPlanWhereHardlyAnythingFits) {
  const RunList published = load_runs(std::string(FW_ACCURACY_DIR) + "/runs/published_runs.json");
  const auto run = std::ranges::find(published.runs, "mbcard-nemotron-3-super-120b-a12b-performance-h100-64g-bf16",
                                     &foldwise::Run::id);
  ASSERT_NE(run, published.runs.end());
  PlanProblem problem = foldwise::question_of(*run);
  problem.effort = 200'000;
  const PlanResult result = searched(problem);
  ASSERT_FALSE(result.plans.empty());
  EXPECT_LE(result.plans.front().prediction.step_time, foldwise::predict(*run).step_time);
}

// While sizes are open, a layout can have more ranks than the job has GPUs: DP 2 beside PP 2. Do its costs, which all
// candidates share, keep to the job's GPUs? If not, a plan does not take what predict says, and plan() throws.
TEST(Search, SharedCostsAreThoseOfTheJobsGpus) {
  PlanProblem problem = any_problem({.model = "mini-deepseek-12l",
                                     .system = "h200",
                                     .release = {},
                                     .num_gpus = 2,
                                     .global_batch = 64,
                                     .precisions = {Precision::kBf16},
                                     .set = {{"pp", {"2"}}, {"dispatcher", {"alltoall"}}}});
  problem.effort = 1'000'000;
  EXPECT_FALSE(searched(problem).plans.empty());
}

// The recipe that Megatron-Bridge publishes for DeepSeek-V3 on 256 GB200 is TP1 PP4 VPP4 EP64: is it among the first
// ten? Of a part of the space: the whole takes too long for a test.
TEST(Search, PublishedLayoutOfDeepSeekV3OnGb200IsAmongTheFirstTen) {
  PlanProblem problem = any_problem({.model = "deepseek-v3",
                                     .system = "gb200-nvl72",
                                     .release = {},
                                     .num_gpus = 256,
                                     .global_batch = 4096,
                                     .precisions = {Precision::kMxfp8},
                                     .set = {{"tp", {"1"}},
                                             {"cp", {"1"}},
                                             {"pp", {"4"}},
                                             {"etp", {"1"}},
                                             {"micro_batch", {"1"}},
                                             {"sharding", {"ddp-distopt"}},
                                             {"dispatcher", {"hybridep"}}}});
  problem.effort = 1'000'000;
  const Layout published{.tp = 1, .cp = 1, .dp = 64, .pp = 4, .vpp = 4, .ep = 64, .etp = 1};
  const PlanResult result = searched(problem);
  EXPECT_TRUE(std::ranges::any_of(result.plans, [&](const Plan& p) { return p.options.layout() == published; }));
}

// Does the search try even splits of uncommon numbers of layers? Mixtral 8x22B's 56 on PP8 are even with VPP 7.
TEST(Search, TriesTheVppThatSplitsTheLayersEvenly) {
  PlanProblem problem = any_problem(
      {.model = "mixtral-8x22b",
       .system = "h100-sxm-80gb",
       .release = {},
       .num_gpus = 128,
       .global_batch = 256,
       .precisions = {Precision::kBf16},
       .set = {{"tp", {"2"}}, {"pp", {"8"}}, {"ep", {"8"}}, {"cp", {"1"}}, {"etp", {"1"}}, {"micro_batch", {"1"}}}});
  problem.effort = 200'000;
  const PlanResult result = searched(problem);
  ASSERT_FALSE(result.plans.empty());
  EXPECT_EQ(result.plans.front().options.pipeline.vpp, 7);
}

}  // namespace
}  // namespace foldwise::planner::search_test
