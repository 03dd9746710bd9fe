#include "planner/search/workbench.h"

#include <algorithm>
#include <array>
#include <utility>

#include "planner/rules/rules.h"

namespace foldwise::planner {

using namespace costmodel;  // NOLINT(google-build-using-namespace): this file is about the cost model's types.

std::size_t HashOfShape::operator()(const ScheduleShape& shape) const {
  const auto& [pp, vpp, num_microbatches, group_size, merged_pairs, kind] = shape;
  std::size_t hash = 0;
  for (const std::int64_t number : {pp, vpp, num_microbatches, group_size}) boost::hash_combine(hash, number);
  boost::hash_combine(hash, merged_pairs);
  boost::hash_combine(hash, static_cast<int>(kind));
  return hash;
}

Workbench::Workbench(const PlanProblem& plan_problem, const DecisionOrder& decision_order, SharedCosts& costs)
    : problem(plan_problem),
      order(decision_order),
      hardware(plan_problem.hardware),
      kinds(model_kinds(plan_problem.model)),
      costs_(costs),
      pieces_(costs.pieces()),
      peaks_(costs.peaks()),
      bases_(plan_problem),
      rule_problem_(rule_problem(plan_problem)) {
  statistics.rejected.assign(rules().size() + 3, 0.0);
}

State Workbench::state_of(const Assignment& assignment) const {
  State state{bases_.of(order.in_space(assignment)), assignment};
  state.options.layer.recompute = {};
  state.options.layer.offload_modules = {};
  state.options.pipeline.recompute = {};
  state.options.pipeline.cpu_offloading_num_layers = 0;
  settle_data_parallel(problem, state.options);
  for (std::size_t i = 0; i < assignment.size(); ++i) {
    apply(problem, order.at(i), assignment[i], state.options);
    settle_data_parallel(problem, state.options);
  }
  return state;
}

bool Workbench::decide_one(State& state, std::uint16_t index) const {
  const std::size_t position = state.assignment.size();
  if (!apply(problem, order.at(position), index, state.options)) return false;
  state.assignment.push_back(index);
  if (bases_.depends_on(order.dimensions()[position]))
    state = state_of(state.assignment);
  else
    settle_data_parallel(problem, state.options);
  return true;
}

bool Workbench::breaks(std::size_t rule, const TrainingOptions& options) const {
  return rules()[rule].broken(rule_problem_, options);
}

bool Workbench::refused(const std::vector<std::size_t>& candidates, const TrainingOptions& options, double count) {
  for (const std::size_t rule : candidates)
    if (breaks(rule, options)) {
      if (counts) statistics.rejected[rule] += count;
      return true;
    }
  return false;
}

std::vector<std::int64_t> Workbench::with_numerics(std::vector<std::int64_t> sizes, const State& state) const {
  for (std::size_t i = 0; i < order.end_of(Level::kAttention); ++i)
    if (order.at(i).field->numerics) sizes.push_back(state.assignment[i]);
  return sizes;
}

double Workbench::micro_batches_per_stage(const TrainingOptions& o) const {
  const double most = static_cast<double>(o.pipeline.global_batch * o.layer.tp * o.layer.cp) /
                      static_cast<double>(o.layer.micro_batch * problem.num_gpus);
  return std::max(1.0, most);  // At least one passes through the whole model.
}

std::optional<StageLayout> Workbench::even_split(const TrainingOptions& o) const {
  const std::int64_t layers = problem.model.num_layers();
  if (layers % (o.pipeline.pp * o.pipeline.vpp) != 0) return std::nullopt;
  return even_stages(layers, problem.model.mtp_num_layers, o.pipeline.pp, o.pipeline.vpp);
}

std::int32_t Workbench::layers_of(std::size_t kind, const StageContent& content, std::int64_t layers) const {
  const std::vector<std::int32_t>& prefix = kinds.prefix[kind];
  const auto first = static_cast<std::size_t>(content.first_layer);
  return prefix[first + static_cast<std::size_t>(layers)] - prefix[first];
}

bool Workbench::order_says_nothing(const Layout& layout) const {
  if (!layout.tp_pp_dp || problem.space.find("use_tp_pp_dp_mapping")->values.size() == 1) return false;
  Layout plain = layout;
  plain.tp_pp_dp = false;
  return std::ranges::all_of(std::array{Group::kPp, Group::kDpCp, Group::kEdp}, [&](Group group) {
    return group_shape(layout, group, hardware.network) == group_shape(plain, group, hardware.network);
  });
}

const std::vector<PeakTable>& Workbench::peaks(const ScheduleShape& shape) {
  // Rank 0 needs the most micro-batches, so its number suffices for all ranks.
  const ScheduleShape shorter = without_repeats(shape, 0);
  if (const auto known = peaks_->find(shorter); known != peaks_->end()) return known->second;
  std::vector<PeakTable> tables;
  for (std::int64_t rank = 0; rank < shape.pp; ++rank) tables.push_back(peak_table(shorter, rank));
  return peaks_->emplace(shorter, std::move(tables)).first->second;
}

Seconds Workbench::makespan(const PipelineTimes& times) {
  // Structured bindings name every member, so none can be forgotten.
  const auto& [shape, stages, overlap_p2p, reloads] = times;
  const auto& [pp, vpp, num_microbatches, group_size, merged_pairs, kind] = shape;
  std::vector<double> key = {
      static_cast<double>(pp),          static_cast<double>(vpp),           static_cast<double>(num_microbatches),
      static_cast<double>(group_size),  static_cast<double>(merged_pairs),  static_cast<double>(kind),
      static_cast<double>(overlap_p2p), static_cast<double>(reloads.size())};
  for (const Seconds& reload : reloads) key.push_back(reload.to<double>());
  for (const StageTime& stage : stages) {
    const auto& [forward, backward, saving, send, weight_gradient, gather, reduction, first, last] = stage;
    for (const Seconds& time : {forward, backward, saving, send, weight_gradient, gather, reduction, first, last})
      key.push_back(time.to<double>());
  }
  const auto [entry, fresh] = makespans_.try_emplace(std::move(key));
  if (fresh) {
    entry->second = simulate_makespan(times);
    of_makespans_ += entry->first.size();
  }
  return entry->second;
}

bool Workbench::allowed(const TrainingOptions& options) const { return !first_violated(rule_problem_, options); }

bool Workbench::fits(const TrainingOptions& options, const Composition& composition) {
  return costmodel::fits(context(options), composition, peaks(composition.times.shape), reserve_of(problem, options));
}

std::optional<Seconds> Workbench::time_of(const TrainingOptions& options, const ModelCosts& costs,
                                          const StageLayout& layout, Seconds limit) {
  const Composition c = compose(context(options), kinds, costs, layout);
  ++statistics.composed;
  spent += price::kComposition;
  if (step_time(c, makespan_lower_bound(c.times)) >= limit || !fits(options, c)) return std::nullopt;
  ++statistics.fitting;
  ++statistics.simulated;
  spent += price_of_schedule(c.times.shape);
  const Seconds time = step_time(c, makespan(c.times));
  return time < limit ? std::optional(time) : std::nullopt;
}

bool Workbench::fits_at_p99(const TrainingOptions& options, const StageLayout& layout) {
  const double load = p99_load(problem.model, options.layer);
  if (load <= 1.0) return true;
  TrainingOptions loaded = options;
  loaded.layer.expert_load *= load;
  const StepContext step = context(loaded);
  const Composition c = compose(step, kinds, model_costs(step, kinds, &cache()), layout);
  ++statistics.composed;
  spent += price::kRouting;
  const std::vector<PeakTable>& tables = peaks(c.times.shape);
  for (std::size_t rank = 0; rank < tables.size(); ++rank)
    if (rank_memory(step, c, static_cast<std::int64_t>(rank), tables[rank]).total() > problem.hardware.hbm_capacity)
      return false;
  return true;
}

void Workbench::forget() {
  constexpr std::size_t kNumbers = 1'000'000;
  if (of_makespans_ > kNumbers) {
    makespans_.clear();
    of_makespans_ = 0;
  }
  pieces_ = costs_.pieces();
  peaks_ = costs_.peaks();
}

}  // namespace foldwise::planner
