#include "planner/search/space.h"

#include <algorithm>
#include <utility>

#include "costmodel/ops/block_ops.h"

namespace foldwise::planner {

using costmodel::TrainingOptions;
using nlohmann::json;

double SearchSpace::size() const {
  double product = 1.0;
  for (const Dimension& dimension : dimensions) product *= static_cast<double>(dimension.values.size());
  return product;
}

const Dimension* SearchSpace::find(std::string_view key) const {
  const auto found =
      std::find_if(dimensions.begin(), dimensions.end(), [&](const Dimension& d) { return d.field->key == key; });
  return found == dimensions.end() ? nullptr : &*found;
}

void SearchSpace::set(std::string_view key, std::vector<json> values) {
  const Field* const set = &field(key);
  // The table is one vector, so its order is that of the addresses.
  auto at = std::find_if(dimensions.begin(), dimensions.end(), [&](const Dimension& d) { return d.field >= set; });
  if (at == dimensions.end() || at->field != set) at = dimensions.insert(at, {set, {}, true});
  at->values = std::move(values);
  at->named = true;
  if (key == "offload.type") keep_modules_of(*at);
}

void SearchSpace::keep_modules_of(const Dimension& type) {
  const auto modules =
      std::ranges::find_if(dimensions, [](const Dimension& d) { return d.field->key == "offload.modules"; });
  if (modules == dimensions.end() || modules->named) return;
  const auto allowed = [&type](const json& value) { return std::ranges::count(type.values, value) > 0; };
  std::erase_if(modules->values, [&](const json& list) {
    return !allowed(list.empty() ? json(nullptr) : json("fine-grained-activation"));
  });
  // Layers offloaded whole have no modules.
  if (modules->values.empty()) modules->values.emplace_back(json::array());
}

SearchSpace default_space(const PlanFacts& facts) {
  SearchSpace space;
  for (const Field& f : fields())
    if (f.tried != nullptr) {
      std::vector<json> values = f.tried(facts);
      if (facts.release != nullptr)
        std::erase_if(values, [&](const json& value) { return !f.has_value_in(*facts.release, value); });
      if (values.empty()) values.push_back(f.megatron);  // The release has none of these values.
      space.dimensions.push_back({&f, std::move(values), false});
    }
  return space;
}

std::uint16_t values_beside(const PlanProblem& problem, const Dimension& dimension, const TrainingOptions& options) {
  const Field& f = *dimension.field;
  const auto all = static_cast<std::uint16_t>(dimension.values.size());
  if (dimension.named) return all;
  if (!f.applies_to(options)) return 1;
  if (f.differs != nullptr) return f.differs(options) ? all : 1;
  return f.matters == nullptr || f.matters(problem.model, options) ? all : 1;
}

bool apply(const PlanProblem& problem, const Dimension& dimension, std::uint16_t index, TrainingOptions& options) {
  static const TrainingOptions plain;
  const Field& f = *dimension.field;
  const json& value = dimension.values[index];
  if (!f.acts_in(options)) {
    const json untouched = f.value.get(plain);
    f.value.set(options, untouched);
    return dimension.named ? value == untouched : index == 0;
  }
  // A field that the user did not name keeps its default where it does not matter.
  if (index != 0 && !dimension.named && f.differs == nullptr && f.matters != nullptr &&
      !f.matters(problem.model, options))
    return false;
  f.value.set(options, value);
  return true;
}

void settle_data_parallel(const PlanProblem& problem, TrainingOptions& o) {
  o.step.dp = std::max<std::int64_t>(1, problem.num_gpus / (o.layer.tp * o.layer.cp * o.pipeline.pp));
}

namespace {

/// Whether defaults of other fields may read the dimension (planner/run/defaults/*.json).
bool decides_defaults(const Dimension& d) { return d.values.size() > 1 && (d.field->numerics || d.field->key == "tp"); }

}  // namespace

Bases::Bases(const PlanProblem& problem) : problem_(problem) {
  const std::vector<Dimension>& dimensions = problem.space.dimensions;
  for (std::size_t i = 0; i < dimensions.size(); ++i)
    if (decides_defaults(dimensions[i])) deciding_.push_back(i);
  const Defaults& defaults = load_defaults(problem.defaults);
  std::vector<std::uint16_t> at(deciding_.size(), 0);
  const auto sizes = [&](std::size_t i) -> std::size_t {
    const Dimension& d = dimensions[deciding_[i]];
    return d.field->key == "tp" ? 2 : d.values.size();
  };
  for (bool more = true; more;) {
    std::map<std::string, json> stated = problem.stated;
    for (const Dimension& d : dimensions)
      if (d.values.size() == 1) stated[d.field->key] = d.values.front();
    for (std::size_t i = 0; i < at.size(); ++i) {
      const Dimension& d = dimensions[deciding_[i]];
      stated[d.field->key] = d.field->key == "tp" ? json(1 + at[i]) : d.values[at[i]];
    }
    TrainingOptions options = options_of(defaults, problem.model, problem.hardware, stated, problem.release);
    settle(options);  // A stated value may not apply.
    options_.emplace(at, std::move(options));
    more = false;
    for (std::size_t i = 0; i < at.size() && !more; ++i) {
      more = ++at[i] < sizes(i);
      if (!more) at[i] = 0;
    }
  }
}

const TrainingOptions& Bases::of(const Assignment& assignment) const {
  std::vector<std::uint16_t> at;
  for (const std::size_t i : deciding_) {
    const Dimension& d = problem_.space.dimensions[i];
    at.push_back(d.field->key != "tp" ? assignment[i] : d.values[assignment[i]] == 1 ? 0 : 1);
  }
  return options_.at(at);
}

std::optional<TrainingOptions> candidate(const PlanProblem& problem, const Bases& bases, const Assignment& assignment) {
  TrainingOptions options = bases.of(assignment);
  const std::vector<Dimension>& dimensions = problem.space.dimensions;
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    if (!apply(problem, dimensions[i], assignment[i], options)) return std::nullopt;
    if (dimensions[i].field->key == "pp") settle_data_parallel(problem, options);
  }
  return options;
}

Problem rule_problem(const PlanProblem& problem) {
  return {.model = problem.model,
          .hardware = problem.hardware,
          .num_gpus = problem.num_gpus,
          .folding = problem.folding,
          .release = problem.release,
          .evidence = problem.evidence,
          .measured = nullptr};
}

Bytes tokens_of(const costmodel::ModelSpec& model, const TrainingOptions& options) {
  return Bytes{2.0 * costmodel::rank_shape(model, options.layer).tokens * static_cast<double>(model.hidden_size)};
}

Bytes reserve_of(const PlanProblem& problem, const TrainingOptions& options) {
  const double tensors = problem.reserve.of(options);
  return tensors > 0.0 ? tensors * tokens_of(problem.model, options) : Bytes{};
}

}  // namespace foldwise::planner
