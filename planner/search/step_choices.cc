#include "planner/search/step_choices.h"

#include <algorithm>
#include <utility>

#include "costmodel/step/composition.h"
#include "costmodel/step/data_parallel.h"
#include "planner/search/bounds.h"

namespace foldwise::planner {

using namespace costmodel;  // NOLINT(google-build-using-namespace): this file is about the cost model's types.

namespace {

/// Parameters of the mean rank. The busiest rank has no fewer.
ParameterCount of_mean_rank(Workbench& bench, const TrainingOptions& options) {
  ParameterCount count;
  const BuildContext build = bench.context(options).layer();
  for (std::size_t k = 0; k < bench.kinds.kinds.size(); ++k) {
    ParameterCount layer = bench.cache().get(build, Piece::kMixer, bench.kinds.kinds[k]).parameters;
    layer += bench.cache().get(build, Piece::kMlp, bench.kinds.kinds[k]).parameters;
    for (std::int32_t i = 0; i < bench.kinds.prefix[k].back(); ++i) count += layer;
  }
  count *= 1.0 / static_cast<double>(options.pipeline.pp);
  count.tp_replicated = count.shared_embedding = 0.0;
  count.largest_dense = count.largest_expert = count.dense_rounding = count.expert_rounding = 0.0;
  return count;
}

/// Whether parameters, gradients and optimizer states leave room. The bytes are convex in the parameters, so some rank
/// needs no less than the mean one.
bool may_fit(const Workbench& bench, const TrainingOptions& options, const ParameterCount& count) {
  const StaticBytes bytes = static_bytes(bench.context(options), count);
  return (bytes.parameters + bytes.gradients + bytes.optimizer + bytes.step_extra) * kRounding <=
         bench.hardware.hbm_capacity;
}

}  // namespace

bool StepChoices::may_fit(Workbench& bench, const State& state) {
  return planner::may_fit(bench, state.options, of_mean_rank(bench, state.options)) || !of(bench, state).groups.empty();
}

const StepChoiceList& StepChoices::of(Workbench& bench, const State& state) {
  const Layout l = state.options.layout();
  // The values that fields and rules of the step read: of VPP only whether it is above 1, of graphs their kind beside
  // EP overlap. With evidence, also every earlier choice by which measured runs are told apart.
  const bool ep_overlap = state.options.pipeline.overlaps.ep_a2a;
  const auto graphs = static_cast<std::int64_t>(ep_overlap ? state.options.layer.cuda_graph.impl : GraphImpl::kNone);
  std::vector<std::int64_t> read = {l.tp, l.cp, l.dp, l.pp, l.ep, l.etp, l.tp_pp_dp, l.vpp > 1, ep_overlap, graphs};
  if (bench.problem.evidence != Evidence::kAny)
    for (const std::uint8_t choice : joint_choice(bench.problem.model, state.options)) read.push_back(choice);
  const auto [entry, fresh] = lists_.try_emplace(bench.with_numerics(std::move(read), state));
  if (!fresh) return entry->second;
  const ParameterCount count = of_mean_rank(bench, state.options);
  StepChoiceList& list = entry->second;
  std::vector<StepOptions> memories;
  std::vector<bool> fits;
  const bool counts = std::exchange(bench.counts, false);  // As in MemoryChoiceLists::list_all().
  bench.decide(state, bench.order.begin_of(Level::kStep), bench.order.end_of(Level::kStep), [&](const State& choice) {
    const StepContext step = bench.context(choice.options);
    list.allowed = true;
    StepOptions memory = choice.options.step;  // Without options that change only the time.
    memory.overlaps = {};
    memory.offload.overlap_optimizer_copies = memory.pad_buckets_for_high_nccl_busbw = false;
    const auto same = static_cast<std::size_t>(std::find(memories.begin(), memories.end(), memory) - memories.begin());
    if (same == memories.size()) {
      memories.push_back(memory);
      fits.push_back(planner::may_fit(bench, choice.options, count));
    }
    if (!fits[same]) return;
    StepGroup group{.memory = same};
    if (shards_gradients(choice.options.step.sharding)) {
      const OpList ops = fsdp_ops(step, count);
      // Hidden units slow down the kernels beside them; exposed ones take longer still.
      const auto beside = [&](const std::vector<Op>& direction) {
        const Seconds kernels = compute_of(direction, bench.hardware).time;
        const CommunicationSum sum = communication_of(direction, bench.hardware);
        if (sum.time <= Seconds{}) return kernels;
        double loss = 1.0;
        for (const double products : {0.0, 1.0}) {
          const SharedPace pace = shared_pace({.time = Seconds{1.0}, .products = Seconds{products}, .squares = 0.0},
                                              sum, 1.0, bench.hardware);
          loss = std::min(loss, (1.0 - pace.compute) / pace.communication);
        }
        group.every_micro_batch = std::max(group.every_micro_batch, sum.time.to<double>());
        return kernels + std::max(0.0, loss) * sum.time;
      };
      group.beside_forward = beside(ops.forward);
      group.beside_backward = beside(ops.backward);
    }
    auto alike = std::ranges::find_if(list.groups, [&](const StepGroup& other) {
      return other.memory == group.memory && other.every_micro_batch == group.every_micro_batch &&
             other.beside_forward == group.beside_forward && other.beside_backward == group.beside_backward;
    });
    if (list.groups.empty()) list.plainest = choice.options.step;
    if (alike == list.groups.end()) alike = list.groups.insert(alike, std::move(group));
    Seconds update{};
    alike->choices.push_back(
        {.options = choice.options.step,
         .assignment = {choice.assignment.begin() + static_cast<std::ptrdiff_t>(bench.order.begin_of(Level::kStep)),
                        choice.assignment.end()},
         .end = step_tail(step, count.trained(choice.options.layer), {}, update).total().to<double>()});
  });
  bench.counts = counts;
  list.memories = memories.size();
  for (StepGroup& group : list.groups) {
    std::ranges::stable_sort(group.choices, {}, &StepChoice::end);
    const double end = group.choices.front().end;
    list.end = &group == list.groups.data() ? end : std::min(list.end, end);
  }
  return list;
}

void StepChoices::forget() {
  constexpr std::size_t kLists = 2'048;
  if (lists_.size() > kLists) lists_.clear();
}

}  // namespace foldwise::planner
