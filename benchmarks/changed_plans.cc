// Is a plan ever slower than a run that differs from it in one or two fields, or in the stage of one layer? Plans
// random problems, changes plan 1 of each at random, and predicts the changes that the rules accept. Counts separately
// changes that Megatron has no argument for (TorchTitan's alternate_matmuls).
//
//   foldwise-changed-plans [--problems N] [--changes N] [--effort SECONDS] [--seed N]
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tbb/parallel_for.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/pipeline/schedule.h"
#include "costmodel/step/stage_split.h"
#include "planner/foldwise.h"
#include "planner/launch/mapping.h"

namespace {

using foldwise::PlanProblem;
using foldwise::Run;
using foldwise::planner::Field;
using foldwise::planner::FieldType;
using nlohmann::json;
using Random = std::mt19937_64;

template <typename List>
const auto& any_of(const List& list, Random& random) {
  return *(list.begin() + static_cast<std::ptrdiff_t>(random() % list.size()));
}

/// Fields that must not change: the question itself, and the imbalance of routing.
bool of_the_question(const Field& field) {
  static const std::vector<std::string_view> keys{"seq_len", "global_batch", "num_gpus", "schedule", "expert_load"};
  return !field.is_option() || field.numerics || std::ranges::find(keys, field.key) != keys.end();
}

/// Another of the values that a run file may have for the field.
std::optional<json> other_value(const Field& field, const json& now, const PlanProblem& problem, Random& random) {
  const foldwise::planner::FieldValue& value = field.value;
  switch (value.type) {
    case FieldType::kBoolean:
      return json(!now.get<bool>());
    case FieldType::kName:
      return json(any_of(value.names, random));
    case FieldType::kNames: {
      json names = now;
      const std::string& name = any_of(value.names, random);
      const auto found = std::ranges::find(names, json(name));
      if (found == names.end())
        names.push_back(name);
      else
        names.erase(found);
      return names;
    }
    case FieldType::kInteger: {
      const foldwise::planner::Dimension* tried = problem.space.find(field.key);
      if (tried != nullptr && random() % 2 == 0) return any_of(tried->values, random);
      const std::int64_t whole = now.is_number() ? now.get<std::int64_t>() : 1;
      const std::int64_t near[] = {2 * whole, whole / 2, 3 * whole, whole / 3, whole + 1, whole - 1};
      return json(std::clamp(any_of(std::span(near), random), static_cast<std::int64_t>(value.low),
                             static_cast<std::int64_t>(std::min(value.high, 1e6))));
    }
    case FieldType::kNumber: {
      const foldwise::planner::Dimension* tried = problem.space.find(field.key);
      if (tried != nullptr && random() % 2 == 0) return any_of(tried->values, random);
      return json(std::clamp(static_cast<double>(random() % 17) / 16.0, value.low, value.high));
    }
    case FieldType::kText:  // The layout, changed by moved_layer().
    case FieldType::kIntegers:
    case FieldType::kObject:
      return std::nullopt;
  }
  return std::nullopt;
}

/// The layout with a decoder layer moved to a neighbouring stage; nullopt if there is no such layer.
std::optional<std::string> moved_layer(const Run& run, Random& random) {
  foldwise::costmodel::StageLayout layout = foldwise::costmodel::stage_layout(run.model, run.options);
  std::vector<foldwise::costmodel::StageContent>& stages = layout.stages;
  if (stages.size() < 2) return std::nullopt;
  const std::size_t cut = random() % (stages.size() - 1);
  const bool forth = random() % 2 == 0;
  auto &giver = stages[forth ? cut : cut + 1], &taker = stages[forth ? cut + 1 : cut];
  if (giver.num_layers == 0) return std::nullopt;
  --giver.num_layers;
  ++taker.num_layers;
  stages[cut + 1].first_layer += forth ? -1 : 1;
  return foldwise::costmodel::to_layout_string(layout);
}

constexpr double kExact = 1e-4;  // Accuracy of a proof (docs/search.md#answer).

struct Change {
  std::string text{};    ///< "tp 4 -> 2, recompute.modules ...".
  bool searched = true;  ///< plan searches all changed fields. False: some keep their defaults in a plan.
  bool told = true;      ///< Megatron's arguments can express it as far as they can express the plan.
  double ratio = 0.0;
};

struct Tried {
  std::string question, plan;
  bool planned = false, proven = false;
  std::int64_t valid = 0, fitting = 0;
  std::vector<Change> faster;
};

/// Changes one or two fields of the run, or its layout and possibly a field. Nullopt if nothing changed.
std::optional<Change> change(Run& run, const PlanProblem& problem, const std::vector<const Field*>& fields,
                             Random& random) {
  std::vector<std::string> text;
  bool searched = true;
  if (random() % 16 == 0) {
    if (const std::optional<std::string> layout = moved_layer(run, random)) {
      run.options.pipeline.layout = *layout;
      text.push_back("pipeline_layout " + *layout);
    }
  }
  for (std::size_t left = 1 + random() % 2 - text.size(); left > 0; --left) {
    const Field& field = *any_of(fields, random);
    const json now = field.value.get(run.options);
    const std::optional<json> value = other_value(field, now, problem, random);
    if (!value || *value == now || !foldwise::planner::mistake_in(field, *value).empty()) continue;
    field.value.set(run.options, *value);
    searched = searched && problem.space.find(field.key) != nullptr;
    text.push_back(fmt::format("{} {} -> {}", field.key, foldwise::planner::value_text(now),
                               foldwise::planner::value_text(*value)));
  }
  if (text.empty()) return std::nullopt;
  foldwise::planner::settle_data_parallel(problem, run.options);
  foldwise::planner::settle(run.options);
  return Change{.text = fmt::format("{}", fmt::join(text, ", ")), .searched = searched};
}

bool may_be_used(const PlanProblem& problem, const Run& run, const foldwise::Prediction& prediction) {
  return prediction.fits && prediction.peak_memory <= (1.0 - problem.headroom) * problem.hardware.hbm_capacity &&
         foldwise::costmodel::imbalance(run.model, run.options, run.hardware).p99_memory <=
             problem.hardware.hbm_capacity;
}

/// Fields of the run that Megatron's arguments cannot express.
std::set<std::string> cannot_be_told(const Run& run) {
  foldwise::config::Diagnostics diagnostics;
  const foldwise::planner::Release& release =
      run.release != nullptr ? *run.release : foldwise::planner::newest_release();
  static_cast<void>(foldwise::planner::settings_of_options(run, release, diagnostics));
  std::set<std::string> fields;
  for (const foldwise::config::Diagnostic& said : diagnostics.list()) fields.insert(said.where.field);
  return fields;
}

Tried try_changes(const PlanProblem& problem, std::int64_t changes, Random random) {
  Tried tried;
  tried.question = fmt::format("{}, {} {}, batch {}", problem.model_name, problem.num_gpus, problem.system_name,
                               problem.stated.at("global_batch").dump());
  const foldwise::PlanResult result = foldwise::planner::plan(problem);
  tried.proven = result.proven;
  tried.planned = !result.plans.empty();
  if (!tried.planned) return tried;
  std::vector<const Field*> fields;
  for (const Field& field : foldwise::planner::fields())
    if (!of_the_question(field)) fields.push_back(&field);
  const Run winner = foldwise::planner::run_of(problem, result.plans.front());
  const foldwise::Seconds best = result.plans.front().prediction.step_time;
  // Nine of ten random changes break a rule or have no effect.
  for (std::int64_t attempts = 100 * changes; tried.valid < changes && attempts > 0; --attempts) {
    Run run = winner;
    std::optional<Change> changed = change(run, problem, fields, random);
    if (!changed || run.options == winner.options || !foldwise::check(run).empty()) continue;
    const foldwise::Prediction prediction = foldwise::predict(run);
    ++tried.valid;
    changed->ratio = (prediction.step_time / best).to<double>();
    if (!may_be_used(problem, run, prediction)) continue;
    ++tried.fitting;
    if (changed->ratio >= 1.0 - kExact) continue;
    changed->told = std::ranges::includes(cannot_be_told(winner), cannot_be_told(run));
    tried.faster.push_back(std::move(*changed));
  }
  return tried;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Random changes of plans, predicted");
  std::int64_t problems = 100, changes = 100;
  double effort = static_cast<double>(PlanProblem{}.effort) / 1e6;
  std::uint64_t seed = 1;
  app.add_option("--problems", problems, "Plans to change");
  app.add_option("--changes", changes, "Valid changes of each");
  app.add_option("--effort", effort, "As of plan");
  app.add_option("--seed", seed, "Of the problems and the changes");
  CLI11_PARSE(app, argc, argv);
  const std::vector<std::string> models{"deepseek-v3",      "kimi-k2",    "qwen3-235b-a22b", "qwen3-30b-a3b",
                                        "gpt-oss-120b",     "llama3-70b", "mixtral-8x7b",    "nemotron-3-nano-30b-a3b",
                                        "deepseek-v2-lite", "llama3-8b"};
  const std::vector<std::string> systems{"h100-sxm-80gb", "h200", "b200", "gb200-nvl72", "gb300-nvl72"};
  std::vector<PlanProblem> questions;
  std::vector<Random> randoms;
  Random random(seed);
  while (std::ssize(questions) < problems) {
    foldwise::PlanRequest request;
    request.model = any_of(models, random);
    request.system = any_of(systems, random);
    request.num_gpus = std::int64_t{8} << random() % 7;
    request.global_batch = request.num_gpus << random() % 4;
    request.seq_len = std::int64_t{4096} << random() % 2;
    questions.push_back(foldwise::plan_problem(request));
    questions.back().top = 1;
    questions.back().effort = std::llround(effort * 1e6);
    randoms.emplace_back(random());
  }
  std::vector<Tried> all(questions.size());
  tbb::parallel_for(std::size_t{0}, questions.size(),
                    [&](std::size_t i) { all[i] = try_changes(questions[i], changes, randoms[i]); });
  std::int64_t valid = 0, fitting = 0, planned = 0, proven = 0, wrong = 0;
  std::map<std::string, std::vector<std::string>> faster;
  for (const Tried& tried : all) {
    valid += tried.valid;
    fitting += tried.fitting;
    planned += tried.planned ? 1 : 0;
    proven += tried.planned && tried.proven ? 1 : 0;
    for (const Change& change : tried.faster) {
      const char* kind = !change.told       ? "Of what Megatron cannot be told"
                         : !change.searched ? "Of what plan keeps as its defaults have it"
                         : tried.proven     ? "Of plans said to be proven"
                                            : "Of plans not said to be proven";
      wrong += change.told && change.searched && tried.proven ? 1 : 0;
      faster[kind].push_back(fmt::format("- {:.4f} of the time of {}: {}", change.ratio, tried.question, change.text));
    }
  }
  fmt::print("{} problems, {} with a plan, {} proven; {} changes that rules accept, {} of them fit\n", all.size(),
             planned, proven, valid, fitting);
  for (const auto& [kind, lines] : faster)
    fmt::print("\n{}, {} are faster:\n{}\n", kind, lines.size(), fmt::join(lines, "\n"));
  return wrong == 0 ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 2;
}
