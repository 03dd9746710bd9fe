#include "planner/search/fitting.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string_view>
#include <utility>

#include "costmodel/step/rank_memory.h"
#include "costmodel/step/reserved_memory.h"
#include "costmodel/step/stage_split.h"
#include "costmodel/step/step.h"
#include "planner/run/names.h"
#include "planner/search/changes.h"
#include "planner/search/threads.h"

namespace foldwise::planner {
namespace {

using namespace costmodel;  // NOLINT(google-build-using-namespace): this file is about the cost model's types.

// A change of the options. Rules are tested after all changes of a candidate are made.
struct Edit {
  std::vector<std::string> steps;
  std::string_view family;  ///< Two edits of one family are not combined.
  std::function<void(TrainingOptions&)> apply;
};

using Edits = std::vector<Edit>;

constexpr std::string_view kNoOverlap = "no EP overlap", kNoGraphs = "no CUDA graphs";

constexpr std::array kModules = {RecomputeModule::kCoreAttn,     RecomputeModule::kMoeAct, RecomputeModule::kLayerNorm,
                                 RecomputeModule::kMlaUpProj,    RecomputeModule::kMlp,    RecomputeModule::kMoe,
                                 RecomputeModule::kSharedExperts};

// Adds every set of modules that recomputes more than the run, in Megatron's order of modules. A set with the whole MoE
// block does not need its parts.
void add_recompute(const TrainingOptions& base, Edits& edits) {
  if (base.layer.recompute.granularity == RecomputeGranularity::kFull &&
      base.pipeline.recompute.method == RecomputeMethod::kUniform && base.pipeline.recompute.num_layers == 1)
    return;
  if (base.layer.recompute.granularity != RecomputeGranularity::kFull)
    for (std::uint32_t set = 1; set < 1U << kModules.size(); ++set) {
      BitSet<RecomputeModule> more;
      for (std::size_t i = 0; i < kModules.size(); ++i)
        if ((set >> i & 1U) != 0) more = more | kModules[i];
      const bool known = more.intersects(base.layer.recompute.modules);
      const bool twice = (more | base.layer.recompute.modules).contains(RecomputeModule::kMoe) &&
                         more.intersects({RecomputeModule::kMoeAct, RecomputeModule::kSharedExperts});
      if (known || twice) continue;
      Edit edit{{}, "recompute", [more](TrainingOptions& o) {
                  o.layer.recompute.granularity = RecomputeGranularity::kSelective;
                  o.layer.recompute.modules = o.layer.recompute.modules | more;
                }};
      for (const std::string& name : names_of(more)) edit.steps.push_back("recompute " + name);
      edits.push_back(std::move(edit));
    }
  edits.push_back({{"full recompute"}, "recompute", [](TrainingOptions& o) {
                     o.set_recompute({.granularity = RecomputeGranularity::kFull,
                                      .modules = {},
                                      .method = RecomputeMethod::kUniform,
                                      .num_layers = 1});
                   }});
}

void add_precision(const TrainingOptions& base, Edits& edits) {
  const Optimizer& opt = base.step.optimizer;
  if (opt.exp_avg == DataType::kFp32 || opt.exp_avg_sq == DataType::kFp32)
    edits.push_back({{"bf16 optimizer states (precision-aware)"}, "states", [](TrainingOptions& o) {
                       o.step.optimizer.precision_aware = true;
                       o.step.optimizer.exp_avg = o.step.optimizer.exp_avg_sq = DataType::kBf16;
                     }});
  if (base.layer.grad_reduce_in_fp32)
    edits.push_back({{"bf16 gradients"}, "gradients", [](TrainingOptions& o) {
                       o.layer.grad_reduce_in_fp32 = false;
                       if (o.step.optimizer.precision_aware) o.step.optimizer.main_grads = DataType::kBf16;
                     }});
  if (!opt.low_precision_param_gather && costmodel::is_quantised(base.layer.precision))
    edits.push_back({{"low-precision parameters"}, "parameters", [](TrainingOptions& o) {
                       o.step.optimizer.low_precision_param_gather = true;
                     }});
  if (base.step.sharding == Sharding::kDdp)
    edits.push_back({{"distributed optimizer"}, "sharding", [](TrainingOptions& o) {
                       o.step.sharding = Sharding::kDdpDistributedOptimizer;
                     }});
  if (base.step.sharding != Sharding::kFsdp)
    edits.push_back({{"Megatron-FSDP"}, "sharding", [](TrainingOptions& o) { o.step.sharding = Sharding::kFsdp; }});
}

void add_offload(const TrainingOptions& base, Edits& edits) {
  if (base.offloads())
    edits.push_back({{"no offloading"}, "offloading", [](TrainingOptions& o) {
                       o.layer.offload_modules = {};
                       o.pipeline.cpu_offloading_num_layers = 0;
                       o.step.offload = {};
                     }});
  using Modules = BitSet<OffloadModule>;
  constexpr std::array<std::pair<std::string_view, Modules>, 8> kSets = {
      {{"offload expert_fc1", Modules{OffloadModule::kExpertFc1}},
       {"offload moe_act", Modules{OffloadModule::kMoeAct}},
       {"offload expert_fc1 moe_act", Modules{OffloadModule::kExpertFc1, OffloadModule::kMoeAct}},
       {"offload fused_group_mlp", Modules{OffloadModule::kFusedGroupMlp}},
       {"offload attn_norm", Modules{OffloadModule::kAttnNorm}},
       {"offload qkv_linear", Modules{OffloadModule::kQkvLinear}},
       {"offload core_attn", Modules{OffloadModule::kCoreAttn}},
       {"offload mlp_norm", Modules{OffloadModule::kMlpNorm}}}};
  for (const auto& [name, modules] : kSets)
    if (!base.layer.offload_modules.intersects(modules)) {
      const bool experts = modules.intersects({OffloadModule::kExpertFc1, OffloadModule::kMoeAct});
      Edit edit{{std::string(name)}, experts ? "offload experts" : name, [set = modules](TrainingOptions& o) {
                  o.layer.offload_modules = o.layer.offload_modules | set;
                }};
      if (modules == Modules{OffloadModule::kExpertFc1, OffloadModule::kMoeAct})
        edit.steps = {"offload expert_fc1", "offload moe_act"};
      edits.push_back(std::move(edit));
    }
  for (const double fraction : {0.5, 1.0})
    if (base.step.offload.optimizer_fraction < fraction)
      edits.push_back({{fmt::format("optimizer offload {:.0f} %", 100.0 * fraction)},
                       "optimizer offload",
                       [fraction](TrainingOptions& o) {
                         o.step.optimizer.precision_aware = true;
                         o.step.offload.optimizer_fraction = fraction;
                         o.step.offload.optimizer_states = false;
                       }});
  if (!base.step.offload.optimizer_states)
    edits.push_back({{"offload optimizer states"}, "optimizer offload", [](TrainingOptions& o) {
                       o.step.offload = {};
                       o.step.offload.optimizer_states = true;
                     }});
}

void add_layout(const ModelSpec& model, const TrainingOptions& base, Edits& edits) {
  const auto change = [&](std::string_view family, auto size, std::int64_t to) {
    edits.push_back({{fmt::format("{} {} -> {}", family, size(base), to)}, family, [size, to](TrainingOptions& o) {
                       size(o) = to;
                     }});
  };
  if (base.layer.micro_batch % 2 == 0)
    edits.push_back({{fmt::format("micro-batch {} -> {}", base.layer.micro_batch, base.layer.micro_batch / 2)},
                     "micro-batch",
                     [to = base.layer.micro_batch / 2](TrainingOptions& o) { o.layer.micro_batch = to; }});
  change(
      "tp", [](auto& o) -> auto& { return o.layer.tp; }, 2 * base.layer.tp);
  change(
      "cp", [](auto& o) -> auto& { return o.layer.cp; }, 2 * base.layer.cp);
  change(
      "pp", [](auto& o) -> auto& { return o.pipeline.pp; }, 2 * base.pipeline.pp);
  if (base.pipeline.vpp % 2 == 0)  // The same virtual stages on twice the ranks.
    edits.push_back({{fmt::format("pp {} -> {}", base.pipeline.pp, 2 * base.pipeline.pp),
                      fmt::format("vpp {} -> {}", base.pipeline.vpp, base.pipeline.vpp / 2)},
                     "pp",
                     [pp = 2 * base.pipeline.pp, vpp = base.pipeline.vpp / 2](TrainingOptions& o) {
                       o.pipeline.pp = pp;
                       o.pipeline.vpp = vpp;
                     }});
  if (base.pipeline.pp > 1)
    change(
        "vpp", [](auto& o) -> auto& { return o.pipeline.vpp; }, 2 * base.pipeline.vpp);
  if (base.pipeline.vpp > 1)
    change(
        "vpp", [](auto& o) -> auto& { return o.pipeline.vpp; }, 1);
  if (model.has_moe()) {
    change(
        "ep", [](auto& o) -> auto& { return o.layer.ep; }, 2 * base.layer.ep);
    change(
        "etp", [](auto& o) -> auto& { return o.layer.etp; }, 2 * base.layer.etp);
  }
}

void drop_overlap(TrainingOptions& o) { o.pipeline.overlaps.ep_a2a = o.pipeline.overlaps.delay_wgrad = false; }

Edits all_edits(const ModelSpec& model, const TrainingOptions& base) {
  Edits edits;
  add_recompute(base, edits);
  add_precision(base, edits);
  add_offload(base, edits);
  add_layout(model, base, edits);
  if (base.pipeline.overlaps.ep_a2a) edits.push_back({{std::string(kNoOverlap)}, kNoOverlap, drop_overlap});
  if (base.layer.cuda_graph.impl != GraphImpl::kNone)
    edits.push_back({{std::string(kNoGraphs)}, kNoGraphs, [](TrainingOptions& o) { o.layer.cuda_graph = {}; }});
  return edits;
}

bool allowed(const Problem& problem, const TrainingOptions& o) { return !first_violation(problem, o).has_value(); }

// The options after the edits, if the rules accept them; if necessary without CUDA graphs or EP overlap.
std::optional<FittingChange> changed(const Problem& problem, const TrainingOptions& base,
                                     const std::vector<const Edit*>& edits) {
  FittingChange change{.steps = {}, .options = base};
  TrainingOptions& o = change.options;
  for (const Edit* edit : edits) {
    edit->apply(o);
    change.steps.insert(change.steps.end(), edit->steps.begin(), edit->steps.end());
  }
  const std::int64_t model_parallel = o.layer.tp * o.layer.cp * o.pipeline.pp;
  if (problem.num_gpus % model_parallel != 0) return std::nullopt;
  o.step.dp = problem.num_gpus / model_parallel;
  const bool pipeline = o.pipeline.pp != base.pipeline.pp || o.pipeline.vpp != base.pipeline.vpp;
  const TrainingOptions wanted = o;
  for (const auto& [graphs, overlap] : {std::pair{true, true}, {false, true}, {true, false}, {false, false}}) {
    o = wanted;
    if (!graphs) o.layer.cuda_graph = {};
    if (!overlap) drop_overlap(o);
    if (!graphs && wanted.layer.cuda_graph == o.layer.cuda_graph) continue;
    if (!overlap && wanted.layer.overlaps == o.layer.overlaps && wanted.pipeline.overlaps == o.pipeline.overlaps &&
        wanted.step.overlaps == o.step.overlaps)
      continue;
    if ((pipeline && !split_layers(problem, o)) || !allowed(problem, o)) continue;
    if (!graphs) change.steps.emplace_back(kNoGraphs);
    if (!overlap) change.steps.emplace_back(kNoOverlap);
    return change;
  }
  return std::nullopt;
}

// Peak tables of all ranks, by shape. Most changes keep the pipeline's shape.
class PeakTables {
 public:
  const std::vector<PeakTable>& of(const ScheduleShape& shape) {
    const auto known = std::find_if(tables_.begin(), tables_.end(), [&](const auto& t) { return t.first == shape; });
    if (known != tables_.end()) return known->second;
    std::vector<PeakTable> ranks;
    for (std::int64_t rank = 0; rank < shape.pp; ++rank) ranks.push_back(peak_table(shape, rank));
    return tables_.emplace_back(shape, std::move(ranks)).second;
  }

 private:
  std::vector<std::pair<ScheduleShape, std::vector<PeakTable>>> tables_;
};

// Fills in the memory of the changed run, and its time if it fits. False if the host's memory does not suffice.
bool evaluate(const Problem& problem, Bytes before, FittingChange& change, PeakTables& tables, bool always_time) {
  const Step step = compose_step(problem.model, change.options, problem.hardware);
  change.peak_memory = change.peak_allocated = change.host = Bytes{};
  const std::vector<PeakTable>& peaks = tables.of(step.shape());
  for (std::int64_t rank = 0; rank < change.options.pipeline.pp; ++rank) {
    const StageMemory memory = rank_memory(step.context, step.composition, rank, peaks[static_cast<std::size_t>(rank)]);
    change.peak_memory = std::max(change.peak_memory, memory.total());
    change.peak_allocated = std::max(change.peak_allocated, memory.allocated());
    change.host = std::max(change.host, memory.host);
  }
  change.saved = before - change.peak_memory;
  const Bytes host_memory = problem.hardware.host.memory_per_gpu;
  const bool host_suffices = host_memory <= Bytes{} || change.host <= host_memory;
  change.fits = change.peak_memory <= problem.hardware.hbm_capacity;
  if (change.fits || always_time) change.step_time = costmodel::step_time(step);
  return host_suffices;
}

// The parts of the options that differ, one bit each. The split of the layers belongs to the parallel sizes.
unsigned changed_parts(const TrainingOptions& base, const TrainingOptions& o) {
  const std::array differ = {
      o.layout() != base.layout(),
      o.layer.micro_batch != base.layer.micro_batch,
      o.step.sharding != base.step.sharding,
      o.recompute() != base.recompute(),
      o.layer.offload_modules != base.layer.offload_modules || o.step.offload != base.step.offload,
      o.step.optimizer != base.step.optimizer || o.layer.grad_reduce_in_fp32 != base.layer.grad_reduce_in_fp32,
      o.layer.overlaps != base.layer.overlaps || o.pipeline.overlaps != base.pipeline.overlaps ||
          o.step.overlaps != base.step.overlaps,
      o.layer.cuda_graph != base.layer.cuda_graph};
  unsigned parts = 0;
  for (std::size_t i = 0; i < differ.size(); ++i) parts |= static_cast<unsigned>(differ[i]) << i;
  return parts;
}

constexpr double kMostStages = 1e7;  // Limit for pairs of changes; takes seconds.

// Whether the device's memory suffices for torch, be it that torch gives memory back in every step.
bool torch_runs(const Problem& problem, const TrainingOptions& options) {
  const Step step = compose_step(problem.model, options, problem.hardware);
  Prediction prediction = predict(step, false);
  static_cast<void>(
      add_reserved(step, prediction, {.segments = false, .only_whether_it_fits = true, .each = side_by_side}));
  return prediction.fits;
}

// The first `top` changes of a list that is sorted best first, of those that `takes` accepts. A change that changes all
// parts of an earlier one, and perhaps more, is left out.
std::vector<FittingChange> distinct(
    const TrainingOptions& base, const std::vector<FittingChange>& best_first, std::size_t top,
    const std::function<bool(const FittingChange&)>& takes = [](const auto&) { return true; }) {
  std::vector<FittingChange> result;
  std::vector<unsigned> listed;
  for (const FittingChange& change : best_first) {
    if (result.size() == top) break;
    const unsigned parts = changed_parts(base, change.options);
    if (std::any_of(listed.begin(), listed.end(), [&](unsigned other) { return (other & ~parts) == 0; })) continue;
    if (!takes(change)) continue;
    listed.push_back(parts);
    result.push_back(change);
  }
  return result;
}

}  // namespace

std::optional<Fitting> fitting(const Problem& problem, const TrainingOptions& options, const Prediction& base,
                               std::size_t top) {
  if (base.fits) return std::nullopt;
  Fitting result;
  for (std::size_t i = 0; i < base.memory.size(); ++i)
    if (base.memory[i].total() > base.memory[result.stage].total()) result.stage = i;
  result.over = std::max(Bytes{}, base.peak_memory - problem.hardware.hbm_capacity);
  Bytes host{};
  for (const StageMemory& memory : base.memory) host = std::max(host, memory.host);
  if (const Bytes has = problem.hardware.host.memory_per_gpu; has > Bytes{})
    result.host_over = std::max(Bytes{}, host - has);

  const Edits edits = all_edits(problem.model, options);
  std::vector<FittingChange> fitting, helping;
  PeakTables tables;
  double stages = 0.0;  // Stages evaluated; times the micro-batches where a step was timed.
  const auto consider = [&](const std::vector<const Edit*>& made) {
    std::optional<FittingChange> change = changed(problem, options, made);
    if (!change || !evaluate(problem, base.peak_memory, *change, tables, false)) return;
    const auto& pipeline = change->options.pipeline;
    stages += static_cast<double>(pipeline.pp * pipeline.vpp) *
              static_cast<double>(change->fits ? change->options.num_microbatches() : 1);
    if (change->fits)
      fitting.push_back(*std::move(change));
    else if (change->saved > Bytes{})
      helping.push_back(*std::move(change));
  };
  const auto fastest = [&] {
    std::size_t replays = 0;
    const auto takes = [&](const FittingChange& change) {
      // A replay takes up to a second. Before torch fails it gives back what it only keeps, so a peak that is a fifth
      // below the device's memory is taken to fit.
      return change.peak_memory <= 0.8 * problem.hardware.hbm_capacity ||
             (++replays <= 2 * top && torch_runs(problem, change.options));
    };
    std::stable_sort(fitting.begin(), fitting.end(),
                     [](const FittingChange& a, const FittingChange& b) { return a.step_time < b.step_time; });
    return distinct(options, fitting, top, takes);
  };
  for (const Edit& edit : edits) consider({&edit});
  result.changes = fastest();
  if (result.changes.size() < top) {
    for (std::size_t a = 0; a < edits.size() && stages < kMostStages; ++a)
      for (std::size_t b = a + 1; b < edits.size() && stages < kMostStages; ++b)
        if (edits[a].family != edits[b].family) consider({&edits[a], &edits[b]});
    result.changes = fastest();
  }
  if (result.changes.empty()) {
    std::stable_sort(helping.begin(), helping.end(),
                     [](const FittingChange& a, const FittingChange& b) { return a.saved > b.saved; });
    result.changes = distinct(options, helping, top);
    for (FittingChange& change : result.changes)
      static_cast<void>(evaluate(problem, base.peak_memory, change, tables, true));
  }
  for (FittingChange& change : result.changes) change.cost = change.step_time - base.step_time;
  return result;
}

}  // namespace foldwise::planner
