#include "planner/search/polish.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/step/composition.h"
#include "costmodel/step/model_costs.h"
#include "costmodel/step/prediction.h"
#include "costmodel/step/rank_memory.h"
#include "costmodel/step/stage_split.h"
#include "planner/rules/rules.h"
#include "planner/search/changes.h"

namespace foldwise::planner {

using namespace costmodel;  // NOLINT(google-build-using-namespace): this file is about the cost model's types.

namespace {

// Of the step time: what is gained by less is no gain (docs/design.md#search says how exact an answer is).
constexpr double kExact = 1e-4;

/// Looks at other splits of a candidate's layers, which change nothing of what a layer costs.
class Mover {
 public:
  Mover(const PlanProblem& problem, Bytes capacity, Found& found)
      : problem_(problem),
        rules_(rule_problem(problem)),
        hardware_(problem.hardware),
        found_(found),
        kinds_(model_kinds(problem.model)),
        costs_(model_costs({problem.model, found.options, problem.hardware}, kinds_)),
        layout_(stage_layout(problem.model, found.options)) {
    hardware_.hbm_capacity = capacity;
  }

  /// Takes the fastest move; false if none is faster.
  bool move() {
    std::vector<std::pair<Seconds, StageLayout>> faster;
    for (std::size_t cut = 0; cut + 1 < layout_.stages.size(); ++cut)
      for (const bool forth : {false, true})
        if (const std::optional<StageLayout> moved = across(cut, forth))
          if (const std::optional<Seconds> time = time_of(*moved)) faster.emplace_back(*time, *moved);
    std::ranges::stable_sort(faster, {}, [](const auto& move) { return move.first; });
    for (const auto& [time, layout] : faster) {
      const TrainingOptions options = with(layout);
      if (first_violated(rules_, options) ||
          imbalance(problem_.model, options, problem_.hardware).p99_memory > problem_.hardware.hbm_capacity)
        continue;
      found_.options = options;
      found_.time = time;
      layout_ = layout;
      return true;
    }
    return false;
  }

 private:
  /// The layer before or behind the border between two stages on its other side; nothing if there is none.
  [[nodiscard]] std::optional<StageLayout> across(std::size_t cut, bool forth) const {
    StageLayout moved = layout_;
    StageContent &before = moved.stages[cut], &behind = moved.stages[cut + 1];
    if ((forth ? before : behind).num_layers == 0) return std::nullopt;
    const std::int64_t step = forth ? -1 : 1;
    before.num_layers += step;
    behind.num_layers -= step;
    behind.first_layer += step;
    return moved;
  }

  [[nodiscard]] TrainingOptions with(const StageLayout& layout) const {
    TrainingOptions options = found_.options;
    const std::int64_t layers = problem_.model.num_layers(), pp = options.pipeline.pp, vpp = options.pipeline.vpp;
    const bool even = layers % (pp * vpp) == 0 && layout == even_stages(layers, problem_.model.mtp_num_layers, pp, vpp);
    options.pipeline.layout = even ? "" : to_layout_string(layout);
    return options;
  }

  /// Of a step with this split, if it fits and is faster.
  [[nodiscard]] std::optional<Seconds> time_of(const StageLayout& layout) const {
    const TrainingOptions options = with(layout);
    const StepContext context{problem_.model, options, hardware_};
    const Composition c = compose(context, kinds_, costs_, layout);
    const Seconds most = (1.0 - kExact) * found_.time;
    if (step_time(c, makespan_lower_bound(c.times)) >= most) return std::nullopt;
    const Seconds time = step_time(c, simulate_makespan(c.times));
    if (time >= most) return std::nullopt;
    std::vector<PeakTable> peaks;
    for (std::int64_t rank = 0; rank < options.pipeline.pp; ++rank) peaks.push_back(peak_table(c.times.shape, rank));
    return fits(context, c, peaks) ? std::optional(time) : std::nullopt;
  }

  const PlanProblem& problem_;
  Problem rules_;
  Hardware hardware_;  ///< With the memory that a plan may use.
  Found& found_;
  ModelKinds kinds_;
  ModelCosts costs_;
  StageLayout layout_;
};

/// The digits of the candidate after a change; nothing if the problem leaves a field no such value.
std::optional<Digits> allowed(const PlanProblem& problem, const Change& change, Digits digits) {
  for (const Change::Setting& setting : change.settings) {
    const auto dimension = std::ranges::find(problem.space.dimensions, setting.field, &Dimension::field);
    if (dimension == problem.space.dimensions.end()) return std::nullopt;
    const auto value = std::ranges::find(dimension->values, setting.to);
    if (value == dimension->values.end()) return std::nullopt;
    digits[static_cast<std::size_t>(dimension - problem.space.dimensions.begin())] =
        static_cast<std::uint16_t>(value - dimension->values.begin());
  }
  return digits;
}

}  // namespace

Found with_layers_moved(const PlanProblem& problem, Bytes capacity, Found found) {
  if (problem.model.hybrid || found.options.pipeline.pp * found.options.pipeline.vpp == 1 ||
      problem.space.find("pipeline_layout") != nullptr)
    return found;
  Mover mover(problem, capacity, found);
  while (mover.move()) {
  }
  return found;
}

Found with_fields_changed(const PlanProblem& problem, Bytes capacity, Found found, std::int64_t& effort) {
  constexpr std::int64_t kOfAPrediction = 500, kOfNeighbours = 50 * kOfAPrediction;
  const Problem rules = rule_problem(problem);
  while (effort >= kOfNeighbours) {
    const Neighbours near = neighbours(rules, found.options);
    effort -= near.predicted * kOfAPrediction;
    const auto better = std::ranges::find_if(near.changes, [&](const Change& change) {
      return change.step_time < (1.0 - kExact) * found.time && change.fits_host && change.peak_memory <= capacity &&
             allowed(problem, change, found.digits) &&
             imbalance(problem.model, change.options, problem.hardware).p99_memory <= problem.hardware.hbm_capacity;
    });
    if (better == near.changes.end()) return found;
    found = {.time = better->step_time, .digits = *allowed(problem, *better, found.digits), .options = better->options};
    found = with_layers_moved(problem, capacity, std::move(found));
  }
  return found;
}

}  // namespace foldwise::planner
