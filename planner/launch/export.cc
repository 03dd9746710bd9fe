#include "planner/launch/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "costmodel/ops/step_ops.h"
#include "planner/launch/checks.h"
#include "planner/launch/dump.h"
#include "planner/launch/mapping.h"
#include "planner/launch/model_arguments.h"
#include "planner/launch/quote.h"
#include "planner/rules/rules.h"
#include "planner/run/fields.h"
#include "planner/run/names.h"

namespace foldwise::planner {

using config::Diagnostics;
using costmodel::GraphImpl;
using costmodel::TrainingOptions;
using nlohmann::json;

namespace {

/// Environment variables that the choices need. Sources: docs/rules.md (env.*, off.modules, cg.expandable) and
/// Megatron-Bridge's performance recipes.
std::vector<EnvironmentVariable> environment_of(const Run& run) {
  const TrainingOptions& o = run.options;
  std::vector<EnvironmentVariable> list;
  const bool sharded = is_fsdp(o.step.sharding), overlaps = o.pipeline.overlaps.ep_a2a;
  if (sharded || overlaps)
    list.push_back({"CUDA_DEVICE_MAX_CONNECTIONS", "32",
                    sharded ? "FSDP's collectives run beside the layers: Megatron refuses 1"
                            : "the experts' exchange runs beside another micro-batch: more than one hardware queue"});
  else if (costmodel::StepContext{run.model, o, run.hardware}.one_queue())
    list.push_back(
        {"CUDA_DEVICE_MAX_CONNECTIONS", "1",
         "launches keep their order, so that collectives of tensor and context parallelism overlap; Megatron "
         "refuses another value before Blackwell"});
  if (!o.layer.offload_modules.empty() && !o.layer.offload_modules.contains(costmodel::OffloadModule::kLayer))
    list.push_back(
        {"NVTE_CPU_OFFLOAD_V1", "1", "activations are offloaded, weights are not (Transformer Engine from 2.10)"});
  if (run.model.has_moe() && o.layer.software.experts == costmodel::Experts::kCutlass)
    list.push_back({"NVTE_USE_CUTLASS_GROUPED_GEMM", "1", "the experts' forward and dgrad in one kernel"});
  if (run.model.has_moe() && o.layer.software.experts == costmodel::Experts::kFused)
    list.push_back({"NVTE_CUTEDSL_FUSED_GROUPED_MLP", "1", "the grouped MLP as one kernel"});
  if (o.layer.software.transformer_engine && costmodel::cudnn_norms(run.hardware))
    for (const char* name : {"NVTE_NORM_FWD_USE_CUDNN", "NVTE_NORM_BWD_USE_CUDNN"})
      list.push_back({name, "1", "norms by cuDNN, as they are priced"});
  if (o.layer.cuda_graph.impl != GraphImpl::kNone)
    list.push_back({"NCCL_GRAPH_REGISTER", "0", "CUDA graphs beside expandable segments read freed memory otherwise"});
  if (run.model.has_moe() && o.layer.dispatcher == costmodel::Dispatcher::kHybridEp)
    list.push_back(
        {"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN",
         fmt::format("{}", std::max<std::int64_t>(
                               1, std::min(o.layer.ep, run.hardware.network.ranks_per_domain / o.layer.etp))),
         "expert-parallel ranks that share NVLink"});
  if (const auto stated = alloc_conf_of(run))
    list.push_back({"PYTORCH_CUDA_ALLOC_CONF", *stated, "the run file says so"});
  else
    list.push_back({"PYTORCH_CUDA_ALLOC_CONF",
                    o.layer.cuda_graph.impl == GraphImpl::kFullIteration
                        ? "expandable_segments:True,graph_capture_record_stream_reuse:True"
                        : "expandable_segments:True",
                    "memory is predicted with it; fragments of the allocator come on top otherwise"});
  return list;
}

/// Adds settings that Megatron requires in addition to those of the fields.
void add_companions(const Run& run, const Release& release, LaunchTarget target, Settings& plan) {
  const TrainingOptions& o = run.options;
  if (target != LaunchTarget::kMegatronBridge) {  // As in Megatron-Bridge's recipes (recipes/llama/h100/llama3.py).
    plan.set("manual_gc", true);  // Automatic garbage collection stops one rank while others wait for it.
    plan.set("manual_gc_interval", 100);
  }
  if (o.step.overlaps.param_gather_with_optimizer_step) plan.set("ckpt_format", "torch");
  if (run.model.moe.topk == 1) plan.set("moe_router_pre_softmax", true);
  if (run.model.has_moe() && run.model.add_bias_linear && o.layer.software.experts != costmodel::Experts::kSequential)
    plan.set("bias_dropout_fusion", false);  // Otherwise TEGroupedMLP stops (experts.py:529 of core_v0.16.1).
  if (run.model.has_moe() && o.layer.software.experts == costmodel::Experts::kFused) {
    // Transformer Engine fuses experts whose gate and up projections alternate by 32 columns (ops/_common.py:162
    // of 2.14).
    if (run.model.gated_linear_unit) plan.set("moe_mlp_glu_interleave_size", 32);
    if (!run.model.gated_linear_unit) plan.set("use_fused_weighted_squared_relu", true);
  }
  // Torch's RMSNorm, which local layers have, asserts it (core_v0.16.1 megatron/core/transformer/torch_norm.py:29).
  if (!o.layer.software.transformer_engine && run.model.normalization == costmodel::Normalization::kRmsNorm)
    plan.set("no_persist_layer_norm", true);
  // Megatron-LM's arguments require it. Its configurations do not have it, so Megatron-Bridge does not either.
  if (target != LaunchTarget::kMegatronBridge && in_releases("", "0.17.1").has(release) &&
      o.layer.cuda_graph.impl == GraphImpl::kLocal && o.layer.ep > 1)
    plan.set("moe_pad_experts_for_cuda_graph_inference", true);
  // A graph of the whole iteration must know how many copies may be in flight; about two are
  // (docs/memory.md#side-streams-and-offloading).
  if (find_flag("--fine-grained-offloading-max-inflight-offloads")->releases.has(release) &&
      o.layer.cuda_graph.impl == GraphImpl::kFullIteration && !o.layer.offload_modules.empty())
    plan.set("fine_grained_offloading_max_inflight_offloads", 2);
}

/// In a hybrid, bars in the layer pattern give the virtual stages; no flag does.
void write_stages_of_pattern(const Run& run, Launch& launch) {
  const std::string pattern = launch.model.text("hybrid_layer_pattern");
  const auto stages = static_cast<std::size_t>(run.options.pipeline.pp * run.options.pipeline.vpp);
  const std::size_t each = pattern.size() / stages;
  std::string parts;
  for (std::size_t stage = 0; stage < stages; ++stage)
    parts += (stage == 0 ? "" : "|") + pattern.substr(stage * each, each);
  launch.model.set("hybrid_layer_pattern", std::move(parts));
  launch.plan.erase("num_virtual_stages_per_pipeline_rank");
}

Settings merged(const Launch& launch) {
  Settings all = launch.model;
  for (const auto& [dest, setting] : launch.plan.all()) all.set(dest, setting.value);
  for (const auto& [dest, setting] : launch.trial.all()) all.set(dest, setting.value);
  return all;
}

std::string values_text(const Argument& argument) {
  std::string text;
  for (const std::string& value : argument.values) text += (text.empty() ? "" : " ") + shell_word(value);
  return text;
}

std::string argument_text(const Argument& argument) {
  return argument.values.empty() ? argument.flag : argument.flag + ' ' + values_text(argument);
}

/// Names and values of the flags, then of the variables.
std::vector<std::pair<std::string, std::string>> given_by(const Launch& launch) {
  std::vector<std::pair<std::string, std::string>> all;
  for (const Argument& argument : to_arguments(merged(launch), *launch.release))
    all.emplace_back(argument.flag, values_text(argument));
  for (const EnvironmentVariable& variable : launch.environment) all.emplace_back(variable.name, variable.value);
  return all;
}

/// Arguments of a short run that reports its step time and memory. Source of the flags: megatron/training/arguments.py.
Settings trial_settings(const Run& run, Trial trial) {
  Settings s;
  if (trial == Trial::kNone) return s;
  s.set("mock_data", true);
  s.set("tokenizer_type", "NullTokenizer");
  s.set("vocab_size", run.model.vocab_size - 1);  // The tokenizer adds one for the end of a document.
  s.set("train_iters", kTrialSteps);
  s.set("lr", 1e-4);
  s.set("lr_decay_style", "constant");
  s.set("eval_iters", 0);
  s.set("eval_interval", 1000);
  s.set("log_interval", 1);
  s.set("log_throughput", true);
  s.set("log_memory_interval", kTrialSteps / 2);
  s.set("create_attention_mask_in_dataloader", false);  // No kernel reads the mask, and it has one byte per score.
  if (trial == Trial::kBalanced && run.model.has_moe()) s.set("moe_router_force_load_balancing", true);
  return s;
}

std::string header(const Launch& launch) {
  const bool trial = !launch.trial.all().empty();
  std::string text = fmt::format("# {}, Megatron-Core {}, by foldwise export{}.\n", comment_text(launch.title),
                                 launch.release->text(), trial ? " --trial" : "");
  for (const Requirement& r : launch.needs)
    text += fmt::format("# Needs {}: {}.\n", requirements_text({r}), comment_text(r.because));
  for (const std::string& remark : launch.model_remarks) text += fmt::format("# Model: {}.\n", comment_text(remark));
  text +=
      trial ? fmt::format(
                  "# {} steps on made-up data. Its log goes back: foldwise import LOG, plan --measured, validate.\n",
                  kTrialSteps)
            : "# Tokenizer, data, learning rate, checkpoints, and what of the model changes no cost (rotary base, the "
              "router's\n# scores, initial values) are yours to add.\n";
  if (trial && router_decides_loads(merged(launch)))
    text +=
        "# Routing: an untrained router decides how many tokens an EP rank gets.\n"
        "# Predictions have even loads, as a trial without --no-balanced has.\n";
  return text;
}

std::string exports(const Launch& launch) {
  std::string text;
  for (const EnvironmentVariable& variable : launch.environment)
    text += fmt::format("export {}={}  # {}\n", variable.name, shell_word(variable.value), variable.reason);
  return text;
}

std::string array(const std::string& name, const Settings& settings, const Release& release) {
  std::string text = name + "=(\n";
  for (const Argument& argument : to_arguments(settings, release)) text += "  " + argument_text(argument) + '\n';
  return text + ")\n";
}

std::string arrays(const Launch& launch) {
  return array("MODEL_ARGS", launch.model, *launch.release) + array("PLAN_ARGS", launch.plan, *launch.release) +
         (launch.trial.all().empty() ? "" : array("TRIAL_ARGS", launch.trial, *launch.release));
}

/// Command line words that expand the arrays.
std::string words(const Launch& launch) {
  return std::string(R"("${MODEL_ARGS[@]}" "${PLAN_ARGS[@]}")") +
         (launch.trial.all().empty() ? "" : R"( "${TRIAL_ARGS[@]}")") + R"( "$@")";
}

constexpr std::string_view kOrder =
    "# Ranks of a node are consecutive: Megatron's order tp-cp-ep-dp-pp then gives the groups that the plan assumed.\n";

std::string megatron_lm_text(const Launch& launch) {
  std::string text = header(launch) + fmt::format("WORLD_SIZE={}\n", launch.num_gpus) + exports(launch);
  std::vector<Argument> arguments = to_arguments(launch.model, *launch.release);
  for (const Settings* more : {&launch.plan, &launch.trial})
    std::ranges::move(to_arguments(*more, *launch.release), std::back_inserter(arguments));
  for (std::size_t i = 0; i < arguments.size(); ++i)
    text += argument_text(arguments[i]) + (i + 1 < arguments.size() ? " \\\n" : "\n");
  return text;
}

std::string torchrun_text(const Launch& launch) {
  const std::int64_t processes = std::min(launch.num_gpus, launch.gpus_per_node);
  return "#!/usr/bin/env bash\n" + header(launch) + "set -euo pipefail\n" + exports(launch) + arrays(launch) +
         std::string(kOrder) +
         fmt::format(
             "torchrun --nproc-per-node {} --nnodes {} --node-rank \"${{NODE_RANK:-0}}\" \\\n"
             "  --master-addr \"${{MASTER_ADDR:-localhost}}\" --master-port \"${{MASTER_PORT:-29500}}\" \\\n"
             "  {} {}\n",
             processes, launch.nodes(), shell_word(launch.entry), words(launch));
}

std::string slurm_text(const Launch& launch) {
  const std::int64_t on_node = std::min(launch.num_gpus, launch.gpus_per_node);
  std::string text =
      fmt::format("#!/usr/bin/env bash\n#SBATCH --nodes={}\n#SBATCH --ntasks-per-node={}\n", launch.nodes(), on_node) +
      fmt::format("#SBATCH --gpus-per-node={}\n", on_node);
  if (launch.nodes_of_domain >
      1) {  // Ask for whole NVLink domains, so that a group that fits into one domain stays in one.
    const std::int64_t nodes = std::min(launch.nodes(), launch.nodes_of_domain);
    text += launch.nodes() % nodes == 0
                ? fmt::format("#SBATCH --segment={}\n", nodes)
                : fmt::format(
                      "# No --segment: {} nodes are no multiple of the {} that share NVLink. The plan assumes that "
                      "ranks fill one\n# NVLink domain after the other.\n",
                      launch.nodes(), nodes);
  }
  return text + "#SBATCH --exclusive\n" + header(launch) + "set -euo pipefail\n" + exports(launch) + arrays(launch) +
         "MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n"
         "export MASTER_ADDR MASTER_PORT=29500\n" +
         std::string(kOrder) +
         "srun --distribution=block:block bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID "
         "WORLD_SIZE=$SLURM_NTASKS "
         "exec \"$@\"' rank \\\n" +
         fmt::format("  python -u {} {}\n", shell_word(launch.entry), words(launch));
}

std::string python_value(const std::string& dest, const json& value) {
  if (dest.ends_with("_dtype") && dest != "moe_router_dtype" && value.is_string()) {
    const std::string name = value.get<std::string>();
    return name == "fp32"   ? "torch.float32"
           : name == "bf16" ? "torch.bfloat16"
           : name == "fp16" ? "torch.float16"
                            : "torch.uint8";
  }
  return python_literal(value);
}

/// Megatron-Bridge's name for one of our recipes.
std::string bridge_recipe(const Settings& plan) {
  for (const BridgeRecipe& recipe : bridge_recipes())
    if (recipe.fp16 == plan.on("fp16") && recipe.fp4.empty() == !plan.has("fp4") &&
        recipe.fp8_recipe == (plan.has("fp8") ? plan.text("fp8_recipe") : ""))
      return recipe.name;
  throw std::logic_error("no recipe of Megatron-Bridge's for --fp8-recipe " + plan.text("fp8_recipe"));
}

/// Values that recipes of Megatron-Bridge may have set. They get Megatron's defaults if a plan does not set them.
std::map<std::string, std::string> bridge_unsaid(const Release& release) {
  std::map<std::string, std::string> values;
  for (const Field& f : fields())
    if (f.releases.has(release))
      for (const BridgeDefault& unsaid : f.bridge) values.emplace(unsaid.member, unsaid.value);
  return values;
}

/// The places where Megatron-Bridge reads a member. A section that sets members of others at the start wins over them.
std::vector<std::string> bridge_places(const std::string& dest) {
  if (dest == "overlap_grad_reduce" || dest == "overlap_param_gather") return {"ddp." + dest, "comm_overlap." + dest};
  if (dest == "seq_length") return {"model.seq_length", "dataset.seq_length"};
  if (dest == "check_for_nan_in_loss_and_grad")
    return {"ddp.check_for_nan_in_grad", "rerun_state_machine.check_for_nan_in_loss"};
  if (dest == "use_megatron_fsdp") return {"dist." + dest, "ddp." + dest};
  if (dest == "accumulate_allreduce_grads_in_fp32") return {"mixed_precision.grad_reduce_in_fp32"};
  if (dest.ends_with("_param_gather") || dest == "reuse_grad_buf_for_mxfp8_param_ag")
    return {"mixed_precision." + dest};
  for (const BridgeMember& member : bridge_members())
    if (member.dest == dest) return {member.section + "." + member.name};
  return {"model." + dest};
}

std::string bridge_text(const Launch& launch) {
  static const std::set<std::string> by_recipe = {"bf16", "fp8",        "fp8_recipe",
                                                  "fp4",  "fp4_recipe", "grad_reduce_in_bf16"};
  std::string text = header(launch) + "# The model's geometry is its recipe's.\nimport torch\n";
  for (const char* import : {"comm_overlap import CommOverlapConfig", "config import ConfigContainer",
                             "mixed_precision import get_mixed_precision_config"})
    text += fmt::format("from megatron.bridge.training.{}\n", import);
  text += '\n';
  for (const EnvironmentVariable& variable : launch.environment)
    text +=
        fmt::format("# export {}={}: {}\n", variable.name, comment_text(shell_word(variable.value)), variable.reason);
  text += "\n\ndef apply_plan(cfg: ConfigContainer) -> None:\n";
  text += fmt::format("    cfg.mixed_precision = get_mixed_precision_config({})\n",
                      python_literal(bridge_recipe(launch.plan)));
  text += "    cfg.mixed_precision.first_last_layers_bf16 = False\n";
  text += "    cfg.comm_overlap = cfg.comm_overlap or CommOverlapConfig(tp_comm_overlap=False)\n";
  std::map<std::string, std::string> values = bridge_unsaid(*launch.release);
  for (const auto& [dest, setting] : launch.plan.all())
    if (!by_recipe.contains(dest))
      values[dest] = python_value(dest, dest == "cp_comm_type" ? setting.value.front() : setting.value);
  values["mtp_num_layers"] =
      launch.model.has("mtp_num_layers") ? python_literal(*launch.model.find("mtp_num_layers")) : "None";
  if (launch.plan.on("fp8_param_gather") && launch.plan.is("fp8_recipe", "mxfp8"))
    values["reuse_grad_buf_for_mxfp8_param_ag"] = "True";  // MixedPrecisionConfig.finalize() requires it.
  if (launch.plan.on("optimizer_cpu_offload")) values.try_emplace("optimizer_offload_fraction", "1.0");
  for (const auto& [dest, value] : values)
    for (const std::string& place : bridge_places(dest)) text += fmt::format("    cfg.{} = {}\n", place, value);
  return text;
}

}  // namespace

std::int64_t gpus_of_node(std::int64_t ranks_per_domain) {
  // 8 on an HGX or DGX board, 4 on a compute tray of an NVL72, which has a part of the domain; bridges connect pairs of
  // the 8 cards of a server (NVIDIA's data sheets).
  constexpr std::int64_t kGpusOfBoard = 8, kGpusOfTray = 4, kBridged = 2;
  if (ranks_per_domain > kGpusOfBoard) return kGpusOfTray;
  return ranks_per_domain <= kBridged ? kGpusOfBoard : ranks_per_domain;
}

const std::vector<std::pair<std::string, LaunchTarget>>& launch_targets() {
  static const std::vector<std::pair<std::string, LaunchTarget>> targets = {
      {"megatron-lm", LaunchTarget::kMegatronLm},
      {"megatron-bridge", LaunchTarget::kMegatronBridge},
      {"slurm", LaunchTarget::kSlurm},
      {"torchrun", LaunchTarget::kTorchrun}};
  return targets;
}

namespace {

Launch launch_in(const Release& release, const Run& run, LaunchTarget target, Trial trial) {
  Diagnostics diagnostics;
  if (trial != Trial::kNone && target == LaunchTarget::kMegatronBridge)
    diagnostics.error({run.file, run.line, "--trial"}, "expected a target that starts a run: not megatron-bridge");
  report_violations(run, diagnostics, release);
  diagnostics.throw_if_any();
  Launch launch{.title = fmt::format("{} on {} x {}", run.model_name, run.num_gpus, run.system_name),
                .release = &release,
                .needs = requirements(run.model, run.options),
                .model_remarks = run.model.notes.lines,
                .model = settings_of_model(run.model, release, diagnostics),
                .plan = settings_of_options(run, release, diagnostics, target == LaunchTarget::kMegatronBridge),
                .trial = trial_settings(run, trial),
                .environment = environment_of(run),
                .num_gpus = run.num_gpus,
                .entry = run.model.hybrid ? release.hybrid_entry : release.gpt_entry};
  diagnostics.throw_if_any();
  if (run.model.scaled_rope && launch.model.text("position_embedding_type", "") == "rope")
    launch.model_remarks.emplace_back(
        "rotary positions, not its YaRN: nothing in this release sets YaRN's parameters here");
  add_companions(run, release, target, launch.plan);
  // Megatron requires as many positions as the sequence has tokens, also for rotary embeddings.
  launch.model.set("max_position_embeddings",
                   std::max(launch.model.integer("max_position_embeddings", 0), run.options.layer.seq_len));
  const std::int64_t domain = run.hardware.network.ranks_per_domain;
  launch.gpus_per_node = gpus_of_node(domain);
  while (run.num_gpus > launch.gpus_per_node && run.num_gpus % launch.gpus_per_node != 0)
    --launch.gpus_per_node;  // Slurm and torchrun start as many ranks on every node.
  if (run.model.hybrid && run.options.pipeline.vpp > 1) write_stages_of_pattern(run, launch);
  launch.nodes_of_domain = std::max<std::int64_t>(1, domain / launch.gpus_per_node);

  std::map<std::string, std::string> environment;
  for (const EnvironmentVariable& variable : launch.environment) environment[variable.name] = variable.value;
  const Settings all = merged(launch);
  check_arguments({.settings = all,
                   .environment = environment,
                   .world = run.num_gpus,
                   .hopper_or_older = run.hardware.before_blackwell(),
                   .release = release},
                  run.file, diagnostics);
  diagnostics.throw_if_any();
  // Megatron-Bridge requires it even beside a layout, and before it reads the layout.
  if (target == LaunchTarget::kMegatronBridge && run.options.pipeline.vpp > 1)
    launch.plan.set("num_virtual_stages_per_pipeline_rank", run.options.pipeline.vpp);
  return launch;
}

}  // namespace

Launch launch_of(const Run& run, LaunchTarget target, Trial trial) {
  if (run.release != nullptr) return launch_in(*run.release, run, target, trial);
  for (const Release* release : numbered_releases()) {
    try {
      return launch_in(*release, run, target, trial);
    } catch (const config::ConfigError&) {  // An older release may accept the run. If none does, report the newest
                                            // one's reasons.
      continue;
    }
  }
  return launch_in(newest_release(), run, target, trial);
}

std::string ArgumentChange::text() const {
  const char* before = name.starts_with("--") ? " " : "=";
  const auto with = [&](const std::string& value) { return value.empty() ? name : name + before + value; };
  if (!to) return "without " + with(*from);
  return with(*to) + (from && !from->empty() ? " instead of " + *from : "");
}

std::vector<ArgumentChange> argument_changes(const Launch& from, const Launch& to) {
  const auto before = given_by(from), after = given_by(to);
  const auto value_in = [](const auto& list, const std::string& name) {
    const auto found = std::ranges::find(list, name, &std::pair<std::string, std::string>::first);
    return found == list.end() ? std::nullopt : std::optional(found->second);
  };
  std::vector<ArgumentChange> changes;
  for (const auto& [name, value] : after)
    if (const auto old = value_in(before, name); old != value) changes.push_back({name, old, value});
  for (const auto& [name, value] : before)
    if (!value_in(after, name)) changes.push_back({name, value, std::nullopt});
  return changes;
}

std::optional<std::vector<ArgumentChange>> argument_changes(const Run& run, const TrainingOptions& changed) try {
  Run other = run;
  other.options = changed;
  return argument_changes(launch_of(run), launch_of(other));
} catch (const config::ConfigError&) {
  return std::nullopt;
}

std::string launch_text(const Launch& launch, LaunchTarget target) {
  switch (target) {
    case LaunchTarget::kMegatronLm:
      return megatron_lm_text(launch);
    case LaunchTarget::kMegatronBridge:
      return bridge_text(launch);
    case LaunchTarget::kSlurm:
      return slurm_text(launch);
    case LaunchTarget::kTorchrun:
      return torchrun_text(launch);
  }
  return {};
}

json launch_json(const Launch& launch, LaunchTarget target) {
  json result = {
      {"release", launch.release->name}, {"num_gpus", launch.num_gpus}, {"text", launch_text(launch, target)}};
  result["environment"] = json::array();
  for (const EnvironmentVariable& variable : launch.environment)
    result["environment"].push_back({{"name", variable.name}, {"value", variable.value}, {"reason", variable.reason}});
  result["arguments"] = json::array();
  if (target == LaunchTarget::kMegatronBridge)
    return result;  // It has members of a configuration instead of arguments.
  for (const Settings& settings : {launch.model, launch.plan, launch.trial})
    for (const Argument& argument : to_arguments(settings, *launch.release))
      result["arguments"].push_back({{"flag", argument.flag}, {"values", argument.values}});
  return result;
}

}  // namespace foldwise::planner
