#include "planner/search/candidates.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "costmodel/step/stage_split.h"

namespace foldwise::planner {

using namespace costmodel;  // NOLINT(google-build-using-namespace): this file is about the cost model's types.

namespace {

Seconds less_than(const Solution& found) { return (1.0 - kExact) * found.time; }

bool splits_are_given(const Workbench& bench) { return bench.problem.space.names_splits(); }

TrainingOptions with_split(const Workbench& bench, TrainingOptions options, const StageLayout& layout) {
  if (splits_are_given(bench)) return options;
  const bool even = bench.problem.model.hybrid || layout == bench.even_split(options);
  options.pipeline.layout = even ? "" : to_layout_string(layout);
  return options;
}

/// Tries other splits of a candidate's layers. They do not change the cost of a layer.
class Mover {
 public:
  Mover(Workbench& bench, Solution& found)
      : bench_(bench),
        found_(found),
        costs_(model_costs(bench.context(found.options), bench.kinds, &bench.cache())),
        layout_(stage_layout(bench.problem.model, found.options)) {}

  /// Makes the fastest valid move; false if no move is faster.
  bool move(std::int64_t most) {
    std::vector<std::pair<Seconds, StageLayout>> faster;
    for (std::size_t cut = 0; cut + 1 < layout_.stages.size() && bench_.spent < most; ++cut)
      for (const bool forth : {false, true})
        if (const std::optional<StageLayout> moved = across(cut, forth))
          if (const auto time = bench_.time_of(found_.options, costs_, *moved, less_than(found_)))
            faster.emplace_back(*time, *moved);
    std::ranges::stable_sort(faster, {}, [](const auto& move) { return move.first; });
    for (const auto& [time, layout] : faster) {
      const TrainingOptions options = with_split(bench_, found_.options, layout);
      if (!bench_.allowed(options) || !bench_.fits_at_p99(options, layout)) continue;
      found_.options = options;
      found_.time = time;
      layout_ = layout;
      return true;
    }
    return false;
  }

 private:
  /// The split with one layer moved across the border between two stages; nothing if the stage has no layer to give.
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

  Workbench& bench_;
  Solution& found_;
  ModelCosts costs_;
  StageLayout layout_;
};

void move_layers(Workbench& bench, Solution& found, std::int64_t most) {
  const PipelineOptions& p = found.options.pipeline;
  if (bench.problem.model.hybrid || p.pp * p.vpp == 1 || splits_are_given(bench)) return;
  Mover mover(bench, found);
  while (mover.move(most)) {
  }
}

/// Leaves as little of the optimizer on the host as memory requires.
void take_from_host(Workbench& bench, Solution& found) {
  const Dimension* fractions = bench.problem.space.find("offload.fraction");
  if (fractions == nullptr || fractions->named) return;
  const ModelCosts costs = model_costs(bench.context(found.options), bench.kinds, &bench.cache());
  const StageLayout layout = stage_layout(bench.problem.model, found.options);
  TrainingOptions options = found.options;
  double& fraction = options.step.offload.optimizer_fraction;
  constexpr double kOne = 1.0 / 16.0;  // Fewer are better. Finer steps make no difference that can be told.
  for (fraction = kOne; fraction < found.options.step.offload.optimizer_fraction; fraction += kOne)
    if (const auto time = bench.time_of(options, costs, layout, less_than(found));
        time && bench.allowed(options) && bench.fits_at_p99(options, layout)) {
      found.options = options;
      found.time = *time;
      return;
    }
}

}  // namespace

Solution refined(Workbench& bench, Solution found, std::int64_t most) {
  take_from_host(bench, found);
  move_layers(bench, found, most);
  return found;
}

std::optional<Solution> faster_than(Workbench& bench, const Solution& near, const State& state) {
  const ModelSpec& model = bench.problem.model;
  const PipelineOptions& p = state.options.pipeline;
  if (p.pp * p.vpp > model.num_layers() + 2) return std::nullopt;
  const ModelCosts costs = model_costs(bench.context(state.options), bench.kinds, &bench.cache());
  std::vector<StageLayout> layouts;
  if (splits_are_given(bench)) {
    if (!bench.allowed(state.options)) return std::nullopt;
    layouts.push_back(stage_layout(model, state.options));
  } else {
    layouts = splits_to_try(model, bench.kinds, costs, p.pp, p.vpp);
    if (!near.options.pipeline.layout.empty() && p.pp == near.options.pipeline.pp && p.vpp == near.options.pipeline.vpp)
      layouts.push_back(stage_layout(model, near.options));
  }
  Solution best = near;
  for (const StageLayout& layout : layouts) {
    const std::optional<Seconds> time = bench.time_of(state.options, costs, layout, less_than(best));
    if (!time) continue;
    const TrainingOptions options = with_split(bench, state.options, layout);
    if (!bench.allowed(options) || !bench.fits_at_p99(options, layout)) continue;
    best = {.time = *time, .assignment = bench.order.in_space(state.assignment), .options = options};
  }
  return best.time < near.time ? std::optional(std::move(best)) : std::nullopt;
}

}  // namespace foldwise::planner
