// Is the op list what Megatron executes? Kept bytes against measured runs, GEMM work against Megatron's own count,
// shards against the whole, and the edits (recomputation, offloading) against their definition.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "costmodel/ops/block_cache.h"
#include "costmodel/ops/block_cost.h"
#include "costmodel/ops/block_ops.h"
#include "costmodel/ops/dispatcher.h"
#include "costmodel/ops/edit.h"
#include "costmodel/ops/step_ops.h"
#include "hwprofiles/load/profile.h"
#include "planner/models/models.h"
#include "tests/usual_options.h"

namespace foldwise::costmodel::ops_test {
namespace {

using RM = RecomputeModule;
using planner::load_model;

const Hardware& h200() {
  static const Hardware hardware = hwprofiles::load_profile("h200").hardware;
  return hardware;
}

TrainingOptions te_options(std::int64_t micro_batch) {
  TrainingOptions o = usual_options();
  o.layer.seq_len = 4096;
  o.layer.micro_batch = micro_batch;
  o.step.dp = 4;
  o.layer.ep = 4;
  return o;
}

TrainingOptions local_options(std::int64_t micro_batch) {
  TrainingOptions o = te_options(micro_batch);
  o.layer.software.transformer_engine = o.layer.software.fused_permute = o.layer.software.gradient_accumulation_fusion =
      false;
  o.layer.software.cross_entropy = costmodel::CrossEntropy::kNative;
  return o;
}

TrainingOptions with_recompute(TrainingOptions o, BitSet<RM> modules) {
  o.set_recompute({.granularity = RecomputeGranularity::kSelective, .modules = modules});
  return o;
}

TrainingOptions with_precision(TrainingOptions o, Precision precision) {
  o.layer.precision = precision;
  return o;
}

double kept_mib(const std::string& model_name, const TrainingOptions& options, const LayerSpec& layer) {
  const ModelSpec model = load_model(model_name);
  const BuildContext context{model, options.layer, h200()};
  const BlockCost mixer = block_cost(context, mixer_ops(context, layer));
  const BlockCost mlp = block_cost(context, mlp_ops(context, layer));
  return (mixer.memory.kept + mlp.memory.kept).to<double>() / 1048576.0;
}

// With the model's first mixer.
constexpr LayerSpec kMoe{.mixer = 0, .mlp = MlpKind::kMoe}, kDense{.mixer = 0, .mlp = MlpKind::kDense};

// MiB kept per layer and micro-batch, balanced routing: sums that a tensor-lifetime simulation of Megatron core_v0.16.1
// reaches within 0.2 % of the measured peaks of h200x4_runs.json and h200x4_te_runs.json (docs/memory.md#worked-sums).
TEST(KeptTensors, EqualTheWorkedSumsOfTheMeasuredRuns) {
  const auto near = [](double got, double want, const char* what) { EXPECT_NEAR(got, want, 0.9) << what; };
  near(kept_mib("mini-mixtral-8l", te_options(1), kMoe), 945, "Mixtral, TE");
  near(kept_mib("mini-mixtral-8l", with_precision(te_options(1), Precision::kFp8Current), kMoe), 786,
       "Mixtral, TE, FP8 per tensor");
  near(kept_mib("mini-mixtral-8l", local_options(1), kMoe), 989, "Mixtral, local");
  TrainingOptions stock = local_options(1);
  stock.layer.software.fused_attention = false;
  stock.layer.software.experts = costmodel::Experts::kSequential;
  near(kept_mib("mini-mixtral-8l", stock, kMoe), 2021, "Mixtral, local, unfused attention");
  near(kept_mib("mini-qwen3-moe-12l", te_options(2), kMoe), 905, "Qwen3, TE");
  near(kept_mib("mini-qwen3-moe-12l", local_options(2), kMoe), 970, "Qwen3, local");
  near(kept_mib("mini-llama-16l", te_options(1), kDense), 545, "Llama, TE");
  near(kept_mib("mini-llama-16l", with_precision(te_options(1), Precision::kFp8Blockwise), kDense), 459,
       "Llama, TE, FP8 blockwise");
  near(kept_mib("mini-llama-16l", local_options(1), kDense), 589, "Llama, local");
  const TrainingOptions ds = te_options(2);
  near(kept_mib("mini-deepseek-12l", ds, kMoe), 1082, "DeepSeek MoE layer");
  near(kept_mib("mini-deepseek-12l", ds, kDense), 867, "DeepSeek dense layer");
  near(kept_mib("mini-deepseek-12l", with_recompute(ds, {RM::kMoeAct}), kMoe), 950, "moe_act");
  near(kept_mib("mini-deepseek-12l", with_recompute(ds, {RM::kLayerNorm}), kMoe), 1018, "layernorm");
  near(kept_mib("mini-deepseek-12l", with_recompute(ds, {RM::kMlaUpProj}), kMoe), 922, "mla_up_proj");
  near(kept_mib("mini-deepseek-12l", with_recompute(ds, {RM::kSharedExperts}), kMoe), 950, "shared_experts");
  near(kept_mib("mini-deepseek-12l", with_recompute(ds, {RM::kMoe}), kMoe), 354, "moe");
  near(kept_mib("mini-deepseek-12l", with_recompute(ds, {RM::kMoeAct, RM::kLayerNorm, RM::kMlaUpProj}), kMoe), 726,
       "DeepSeek-V3's three");
}

// TorchTitan's policy by operator keeps the block's inputs, query, value, attention output and gate. In bytes per
// token, by hand: 2 (h + h + kv + h + f + h), 4 per head of log-sum-exp, 4 per norm.
TEST(KeptTensors, AlternateMatmulsKeepEveryOtherProduct) {
  const double h = 4096, kv = 1024, f = 14336, heads = 32, token = 2.0 * (4.0 * h + kv + f) + 4.0 * heads + 8.0;
  EXPECT_NEAR(kept_mib("mini-llama-16l", with_recompute(te_options(1), {RM::kAlternateMatmuls}), kDense),
              4096.0 * token / 1048576.0, 0.1);
}

// Rows of experts are proportional to the rank's load, up to a capacity. With padding to it they are those of the
// capacity.
TEST(KeptTensors, FollowTheLoadOfTheExperts) {
  const auto kept = [](double load, std::optional<double> capacity, bool pad = true) {
    TrainingOptions o = te_options(1);
    o.layer.expert_load = load;
    o.layer.capacity_factor = capacity;
    o.layer.pad_to_capacity = pad && capacity.has_value();
    return kept_mib("mini-mixtral-8l", o, kMoe);
  };
  const double expert_rows = kept(2.0, {}) - kept(1.0, {});
  EXPECT_GT(expert_rows, 0.5 * kept(1.0, {}));
  EXPECT_NEAR(kept(1.5, {}) - kept(1.0, {}), 0.5 * expert_rows, 1e-6);
  EXPECT_NEAR(kept(1.0, 1.25), kept(1.25, {}), 1e-6);
  EXPECT_NEAR(kept(3.0, 1.25), kept(1.0, 1.25), 1e-6);
  EXPECT_NEAR(kept(1.0, 1.25, false), kept(1.0, {}), 1e-6);
  EXPECT_NEAR(kept(3.0, 1.25, false), kept(1.25, {}), 1e-6);
}

// Does the host wait for the tokens of each expert unless padding fixes their number? Dropping alone does not
// (token_dispatcher.py: drop_and_pad); DeepEP waits always.
TEST(TokenCounts, AreWaitedForUnlessPadded) {
  const ModelSpec model = load_model("mini-mixtral-8l");
  const auto waits = [&](Dispatcher dispatcher, std::optional<double> capacity, bool pad) {
    TrainingOptions o = te_options(1);
    o.layer.dispatcher = dispatcher;
    o.layer.capacity_factor = capacity;
    o.layer.pad_to_capacity = pad;
    const OpList list = mlp_ops({model, o.layer, h200()}, model.layers.front());
    return std::ranges::any_of(list.forward,
                               [](const Op& op) { return std::holds_alternative<HostSyncWork>(op.work); });
  };
  for (const Dispatcher dispatcher : {Dispatcher::kAllToAll, Dispatcher::kHybridEp, Dispatcher::kDeepEp}) {
    EXPECT_TRUE(waits(dispatcher, {}, false));
    EXPECT_TRUE(waits(dispatcher, 1.0, false));
    EXPECT_EQ(waits(dispatcher, 1.0, true), dispatcher == Dispatcher::kDeepEp);
  }
}

// GEMM FLOPs of forward, dgrad and wgrad without the router, which Megatron does not count.
double gemm_flops(const OpList& list) {
  double sum = 0.0;
  for (const auto* ops : {&list.forward, &list.backward})
    for (const Op& op : *ops)
      if (std::holds_alternative<GemmWork>(op.work) && op.name != "router") sum += op_flops(op).to<double>();
  return sum;
}

// Megatron's count per token with s -> 0 squared tokens leaves the linears (and 0.01 % for the norms that it counts
// inside MLA and MTP). One sequence on one rank.
TEST(GemmWork, AddsUpToMegatronsCountOfTheLinears) {
  for (const char* name : {"deepseek-v3", "qwen3-235b-a22b", "mixtral-8x22b", "llama3-70b", "gpt-oss-120b",
                           "qwen2-57b-a14b", "kimi-k2", "glm-4.5"}) {
    const ModelSpec model = load_model(name);
    TrainingOptions o = usual_options();
    o.layer.seq_len = 12288;  // Gives each expert a whole number of rows: k of wgrad is rounded up.
    const BuildContext context{model, o.layer, h200()};
    double sum = gemm_flops(head_ops(context, 1 + model.mtp_num_layers));
    for (const LayerSpec& layer : model.layers)
      sum += gemm_flops(mixer_ops(context, layer)) + gemm_flops(mlp_ops(context, layer));
    for (std::int64_t depth = 0; depth < model.mtp_num_layers; ++depth) {
      sum += gemm_flops(mtp_ops(context));
      for (const LayerSpec& layer : model.mtp_layers)
        sum += gemm_flops(mixer_ops(context, layer)) + gemm_flops(mlp_ops(context, layer));
    }
    const double megatron = megatron_flops(model, static_cast<double>(o.layer.seq_len), 0.0);
    EXPECT_NEAR(sum / megatron, 1.0, model.moe.shared_gate ? 2e-3 : 5e-4) << name;
  }
}

// Forward attention FLOPs are Megatron's causal half; backward is 2.5 times that (five matmuls), of which Megatron
// counts 2.
TEST(AttentionWorkloads, AreMegatronsCausalHalfForward) {
  const ModelSpec model = load_model("llama3-70b");
  TrainingOptions o = usual_options();
  o.layer.seq_len = 8192;
  const BuildContext context{model, o.layer, h200()};
  double forward = 0.0, backward = 0.0;
  const OpList list = mixer_ops(context, model.layers.front());
  for (const auto* ops : {&list.forward, &list.backward})
    for (const Op& op : *ops)
      if (const auto* work = std::get_if<AttentionWork>(&op.work))
        (work->backward ? backward : forward) += work->flops.to<double>();
  const double s = 8192.0, layers = static_cast<double>(model.num_layers());
  const double megatron = (megatron_flops(model, s, s * s) - megatron_flops(model, s, 0.0)) / layers / 3.0;
  EXPECT_NEAR(forward / megatron, 1.0, 1e-12);
  EXPECT_NEAR(backward / forward, 2.5, 1e-12);
}

ParameterCount layer_parameters(const ModelSpec& model, const TrainingOptions& o, const LayerSpec& layer) {
  const BuildContext context{model, o.layer, h200()};
  ParameterCount count = parameters(mixer_ops(context, layer));
  count += parameters(mlp_ops(context, layer));
  return count;
}

// Do the parameters of TP, EP and ETP ranks add up to the layer's?
RC_GTEST_PROP(Sharding, ShardsAddUpToTheWhole, ()) {
  const auto name =
      *rc::gen::elementOf(std::vector<std::string>{"deepseek-v3", "qwen3-235b-a22b", "mixtral-8x22b", "llama3-70b"});
  const ModelSpec model = load_model(name);
  TrainingOptions whole, part;
  part.layer.tp = *rc::gen::elementOf(std::vector<std::int64_t>{1, 2, 4});
  part.layer.ep = model.has_moe() ? *rc::gen::elementOf(std::vector<std::int64_t>{1, 2, 4, 8}) : 1;
  part.layer.etp = model.has_moe() ? *rc::gen::elementOf(std::vector<std::int64_t>{1, 2}) : 1;
  part.step.dp = 16;
  const LayerSpec layer = model.layers.back();
  const ParameterCount all = layer_parameters(model, whole, layer), shard = layer_parameters(model, part, layer);
  RC_ASSERT(static_cast<bool>(shard.expert * static_cast<double>(part.layer.ep * part.layer.etp) == all.expert));
  // Norms are replicated, although their weights are not marked with TP 1.
  const double replicated = shard.tp_replicated;
  RC_ASSERT(static_cast<bool>(
      part.layer.tp == 1 || (shard.dense - replicated) * static_cast<double>(part.layer.tp) + replicated == all.dense));
}

// Parameters that LoRA trains and tensors that it keeps, by hand for a layer of Llama 3 70B on TP 2 with adapters of
// rank 16: fc1 has 8192 inputs and 57344 outputs, fc2 28672 and 8192, qkv 8192 and 10240, proj 8192 and 8192. The
// adapter of a column split has its inner width split, that of a row split its output.
TEST(Lora, TrainsItsAdaptersAndKeepsTheirInputs) {
  const ModelSpec model = load_model("llama3-70b");
  TrainingOptions o = usual_options();
  o.layer.seq_len = 4096;
  o.layer.tp = 2;
  const LayerSpec layer = model.layers.back();
  const ParameterCount full = layer_parameters(model, o, layer);
  EXPECT_EQ(full.trained(o.layer), full);
  o.layer.lora = true;
  o.layer.lora_dim = 16;
  const ParameterCount count = layer_parameters(model, o, layer);
  const double qkv = 8192.0 * 8.0 + 5120.0 * 16.0, proj = 4096.0 * 16.0 + 4096.0 * 16.0,
               fc1 = 8192.0 * 8.0 + 28672.0 * 16.0, fc2 = 14336.0 * 16.0 + 4096.0 * 16.0;
  EXPECT_EQ(count.trained(o.layer).total(), qkv + proj + fc1 + fc2);
  EXPECT_EQ(count.total(), full.total() + qkv + proj + fc1 + fc2);
  o.layer.lora_modules = {LoraModule::kLinearQkv};
  EXPECT_EQ(layer_parameters(model, o, layer).trained(o.layer).total(), qkv);
  // A frozen MLP keeps nothing for its linears, and has no weight gradients.
  const OpList frozen = mlp_ops({model, o.layer, h200()}, layer);
  const auto keeps = [](const OpList& list, std::string_view name) {
    double bytes = 0.0;
    for (const Op& op : list.forward)
      for (const Tensor& tensor : op.keeps)
        if (tensor.name == name) bytes += tensor.bytes.to<double>();
    return bytes;
  };
  EXPECT_EQ(keeps(frozen, "norm_output") + keeps(frozen, "fc2_input") + keeps(frozen, "adapter_input"), 0.0);
  EXPECT_TRUE(std::none_of(frozen.backward.begin(), frozen.backward.end(),
                           [](const Op& op) { return op.phase == Phase::kWgrad; }));
  const OpList attention = mixer_ops({model, o.layer, h200()}, layer);
  EXPECT_EQ(keeps(attention, "adapter_input"), 2.0 * 4096.0 * 8192.0);  // Gathered over TP.
  EXPECT_EQ(keeps(attention, "adapter_hidden"), 2.0 * 4096.0 * 16.0);
  // Static memory: bf16 weights of all, gradients and states of the adapters.
  const StaticBytes bytes = static_bytes({model, o, h200()}, count);
  EXPECT_EQ(bytes.parameters.to<double>(), 2.0 * count.total());
  EXPECT_EQ(bytes.gradients.to<double>(), 4.0 * count.trained(o.layer).total());
  EXPECT_EQ(bytes.optimizer.to<double>(), 12.0 * count.trained(o.layer).total());
}

// Whatever is recomputed: is never more kept, and never less computed?
RC_GTEST_PROP(RecomputeEdits, NeverRaiseWhatIsKeptAndNeverRemoveWork, ()) {
  const auto name = *rc::gen::elementOf(
      std::vector<std::string>{"deepseek-v3", "qwen3-235b-a22b", "llama3-70b", "nemotron-3-nano-30b-a3b"});
  const ModelSpec model = load_model(name);
  BitSet<RM> modules;
  modules.bits = *rc::gen::inRange<std::uint16_t>(0, 256);
  TrainingOptions o = te_options(1);
  o.layer.ep = model.has_moe() ? 4 : 1;
  const BuildContext context{model, o.layer, h200()};
  LayerOptions recomputed = o.layer;
  recomputed.recompute = {RecomputeGranularity::kSelective, modules};
  const BuildContext recomputing{model, recomputed, h200()};
  const LayerSpec layer = *rc::gen::elementOf(model.layers);
  for (const OpList& list : {mixer_ops(context, layer), mlp_ops(context, layer)}) {
    const BlockCost plain = block_cost(context, list), edited = block_cost(recomputing, list);
    RC_ASSERT(static_cast<bool>(edited.memory.kept <= plain.memory.kept));
    RC_ASSERT(static_cast<bool>(edited.backward.compute >= plain.backward.compute));
    RC_ASSERT(static_cast<bool>(edited.flops == plain.flops));  // Model work: replayed ops do not count.
    if (modules.contains(RM::kFull))                            // Dropped tensors come back, all at once.
      RC_ASSERT(static_cast<bool>(edited.memory.backward_high >= plain.memory.kept));
  }
}

// What does a recomputed region cost the host besides the ops that run again? Its entry, forward and again.
TEST(Recompute, CostsTheHostEachRegionTwice) {
  const ModelSpec model = load_model("qwen3-30b-a3b");
  const TrainingOptions o = with_recompute(te_options(1), {RM::kMoeAct, RM::kLayerNorm});
  Hardware hardware = h200();
  const auto issue = [&](Seconds checkpoint) {
    hardware.host.checkpoint = checkpoint;
    const BuildContext context{model, o.layer, hardware};
    const BlockCost cost = block_cost(context, mlp_ops(context, model.layers.front()));
    return std::pair{cost.forward.clock.issue().to<double>(), cost.backward.clock.issue().to<double>()};
  };
  const auto [forward, backward] = issue(Seconds{});
  const auto [priced_forward, priced_backward] = issue(Seconds{1.0});
  EXPECT_NEAR(priced_forward - forward, 2.0, 1e-9);  // The norm before the router, and the activation.
  EXPECT_NEAR(priced_backward - backward, 2.0, 1e-9);
}

// What does attention over CP cost the host? Its entry, in both directions, however its ranks communicate.
TEST(ContextParallelism, CostsTheHostItsEntry) {
  const ModelSpec model = load_model("llama3-8b");
  const auto issue = [&](std::int64_t cp, CpComm comm, double price) {
    TrainingOptions o = te_options(1);
    o.layer.ep = 1;
    o.layer.cp = cp;
    o.layer.cp_comm = comm;
    Hardware hardware = h200();
    hardware.host.cp_attention = Seconds{price};
    hardware.host.backward_share = 1.0;
    const BuildContext context{model, o.layer, hardware};
    const BlockCost cost = block_cost(context, mixer_ops(context, model.layers.front()));
    return (cost.forward.clock.issue() + cost.backward.clock.issue()).to<double>();
  };
  EXPECT_EQ(issue(1, CpComm::kP2p, 1.0), issue(1, CpComm::kP2p, 0.0));
  for (const CpComm comm : {CpComm::kP2p, CpComm::kA2a, CpComm::kAllGather})
    for (const std::int64_t cp : {2, 4}) EXPECT_NEAR(issue(cp, comm, 1.0) - issue(cp, comm, 0.0), 2.0, 1e-9) << cp;
}

/// Host seconds of both directions.
double issue_of_first_layer(const BuildContext& context) {
  const LayerSpec& layer = context.model.layers.front();
  double sum = 0.0;
  for (const OpList& list : {mixer_ops(context, layer), mlp_ops(context, layer)}) {
    const BlockCost cost = block_cost(context, list);
    sum += (cost.forward.clock.issue() + cost.backward.clock.issue()).to<double>();
  }
  return sum;
}

// What does FP8 cost the host? In each direction every linear once, however many experts one product has, and every
// tensor once: of 16 experts both linears' inputs, and both gradients of their outputs; nothing in BF16.
TEST(LowPrecision, CostsTheHostItsLinearsAndTheirTensors) {
  const ModelSpec model = load_model("qwen3-30b-a3b");
  TrainingOptions o = te_options(1);
  o.layer.ep = 8;
  const auto issue = [&](Precision precision, double linear, double tensor) {
    o.layer.precision = precision;
    Hardware hardware = h200();
    hardware.host.quantized_linear = Seconds{linear};
    hardware.host.quantize = Seconds{tensor};
    hardware.host.backward_share = 0.5;
    return issue_of_first_layer({model, o.layer, hardware});
  };
  const auto costs = [&](Precision precision, double linear, double tensor) {
    return issue(precision, linear, tensor) - issue(precision, 0.0, 0.0);
  };
  EXPECT_NEAR(costs(Precision::kFp8Current, 1.0, 0.0), 4 * 1.5, 1e-9);  // QKV, projection, fc1, fc2.
  EXPECT_NEAR(costs(Precision::kFp8Current, 0.0, 1.0), (2 + 2 * 16) * 1.5, 1e-9);
  EXPECT_EQ(costs(Precision::kBf16, 1.0, 1.0), 0.0);
  o.layer.software.experts = Experts::kSequential;
  EXPECT_NEAR(costs(Precision::kFp8Current, 1.0, 0.0), (2 + 2 * 16) * 1.5, 1e-9);  // One linear per expert.
}

// What does replaying a captured layer cost the host? A dense layer's attention and MLP are one graph, in each
// direction.
TEST(CudaGraphs, OfADenseLayerAreReplayedAtOnce) {
  const ModelSpec model = load_model("llama3-8b");
  TrainingOptions o = te_options(1);
  o.layer.ep = 1;
  Hardware hardware = h200();
  hardware.host.module = Seconds{1.0};
  hardware.host.backward_share = 1.0;
  const auto issue = [&](BitSet<GraphModule> captured) {
    o.layer.cuda_graph = {GraphImpl::kTransformerEngine, captured};
    return issue_of_first_layer({model, o.layer, hardware});
  };
  EXPECT_NEAR(issue({GraphModule::kAttn, GraphModule::kMlp}), 2.0, 1e-9);
}

// Does a rank of more TP or CP never keep more activations?
RC_GTEST_PROP(Sharding, MoreTensorOrContextParallelismNeverKeepsMore, ()) {
  const auto name = *rc::gen::elementOf(std::vector<std::string>{"deepseek-v3", "qwen3-235b-a22b", "llama3-70b"});
  const ModelSpec model = load_model(name);
  TrainingOptions o = te_options(1);
  o.layer.ep = 1;
  o.layer.cp_comm = CpComm::kP2p;
  const LayerSpec layer = model.layers.back();
  const auto kept = [&](std::int64_t tp, std::int64_t cp) {
    TrainingOptions sharded = o;
    sharded.layer.tp = tp;
    sharded.layer.cp = cp;
    const BuildContext context{model, sharded.layer, h200()};
    return block_cost(context, mixer_ops(context, layer)).memory.kept +
           block_cost(context, mlp_ops(context, layer)).memory.kept;
  };
  const std::int64_t tp = *rc::gen::elementOf(std::vector<std::int64_t>{1, 2, 4}),
                     cp = *rc::gen::elementOf(std::vector<std::int64_t>{1, 2, 4});
  RC_ASSERT(static_cast<bool>(kept(2 * tp, cp) <= kept(tp, cp)));
  RC_ASSERT(static_cast<bool>(kept(tp, 2 * cp) <= kept(tp, cp)));
}

// A DeepSeek-like layer: fc1 input 192 MiB and fc1 output 264 MiB are offloaded, both above 2^20 elements.
TEST(OffloadEdits, MoveTheNamedTensorsToTheHost) {
  const ModelSpec model = load_model("mini-deepseek-12l");
  const TrainingOptions o = te_options(2);
  const BuildContext context{model, o.layer, h200()};
  OpList list = mlp_ops(context, kMoe);
  const Bytes before = block_cost(context, list).memory.kept;
  const OffloadEdit edit = apply_offload(list, {OffloadModule::kExpertFc1, OffloadModule::kMoeAct}, 1);
  EXPECT_NEAR(edit.host_bytes.to<double>() / 1048576.0, 192.0 + 264.0, 1e-6);
  EXPECT_NEAR((before - block_cost(context, list).memory.kept).to<double>(), edit.host_bytes.to<double>(), 1.0);
  double copied = 0.0;
  for (const auto* ops : {&list.forward, &list.backward})
    for (const Op& op : *ops)
      if (const auto* copy = std::get_if<HostCopyWork>(&op.work)) copied += copy->bytes.to<double>();
  EXPECT_DOUBLE_EQ(copied, 2.0 * edit.host_bytes.to<double>());
}

// Does offloading lower a layer's highest moments by no more than what it takes off the device? What a running op needs
// for itself stays.
TEST(OffloadEdits, LeaveWhatRunningOpsNeed) {
  for (const char* name : {"mini-deepseek-12l", "mixtral-8x7b", "llama3-8b"}) {
    const ModelSpec model = load_model(name);
    TrainingOptions o = te_options(2);
    const auto cost = [&] {
      const BuildContext context{model, o.layer, h200()};
      OpList list = mixer_ops(context, model.layers.back());
      append(list, mlp_ops(context, model.layers.back()));
      return block_cost(context, std::move(list));
    };
    const MemoryProfile plain = cost().memory;
    for (const OffloadModule module : {OffloadModule::kQkvLinear, OffloadModule::kCoreAttn, OffloadModule::kExpertFc1,
                                       OffloadModule::kMoeAct, OffloadModule::kLayer}) {
      o.layer.offload_modules = {module};
      const BlockCost offloading = cost();
      EXPECT_GE(offloading.memory.backward_high, plain.backward_high - offloading.offloaded) << name;
      EXPECT_NEAR((plain.kept - offloading.memory.kept).to<double>(), offloading.offloaded.to<double>(), 1.0) << name;
      EXPECT_LE(offloading.offloaded, offloading.host_bytes) << name;
    }
  }
}

/// Communication in a list of ops: bytes by name, kind and ranks.
using Volumes = std::map<std::tuple<std::string, CollectiveKind, std::int64_t>, double>;
Volumes volumes(const std::vector<Op>& ops) {
  Volumes sums;
  for (const Op& op : ops)
    if (const auto* w = std::get_if<CollectiveWork>(&op.work))
      sums[{std::string(op.name), w->kind, w->shape.ranks}] += w->bytes.to<double>();
  return sums;
}

// Without sequence parallelism, is each layer summed up twice forward and twice backward (the f and g of Megatron-LM,
// https://arxiv.org/abs/1909.08053), with the bytes of the gathers and scatters that stand for it otherwise, and does
// what lies between the linears stay whole: A + B/t where sequence parallelism keeps (A + B)/t
// (https://arxiv.org/abs/2205.05198, equations 2 and 4)?
TEST(TensorParallel, WithoutSequenceParallelismSumsAndKeepsAllTokens) {
  const ModelSpec model = load_model("llama3-8b");
  const Hardware hardware = hwprofiles::load_profile("h200").hardware;
  const double tensor = 2.0 * 4096.0 * 4096.0;
  const auto kept = [&](std::int64_t tp, bool sequence_parallel) {
    TrainingOptions o = te_options(1);
    o.layer.ep = 1;
    o.layer.tp = tp;
    o.layer.sequence_parallel = sequence_parallel;
    OpList list = mixer_ops({model, o.layer, hardware}, model.layers.front());
    append(list, mlp_ops({model, o.layer, hardware}, model.layers.front()));
    if (tp > 1 && !sequence_parallel) {
      Volumes forward = volumes(list.forward), backward = volumes(list.backward);
      for (const char* name : {"linear_proj", "linear_fc2"})
        EXPECT_DOUBLE_EQ((forward[{name, CollectiveKind::kAllReduce, tp}]), tensor) << name;
      for (const char* name : {"linear_qkv", "linear_fc1"})
        EXPECT_DOUBLE_EQ((backward[{name, CollectiveKind::kAllReduce, tp}]), tensor) << name;
      EXPECT_EQ(forward.size() + backward.size(), 4u);
    }
    return block_cost({model, o.layer, hardware}, std::move(list)).memory.kept.to<double>();
  };
  const double one = kept(1, true), split = 2.0 * (one - kept(2, false));
  EXPECT_GT(split, 0.0);
  EXPECT_LT(split, one);
  EXPECT_DOUBLE_EQ(kept(1, false), one);
  EXPECT_NEAR(kept(4, false), one - 0.75 * split, 1e-9 * one);
  EXPECT_NEAR(kept(4, true), one / 4.0, 1e-9 * one);
}

// Which form of a linear's operands travels over TP 4? Llama 3 8B, 4096 tokens: both norms' outputs (4096 wide) are
// gathered forward along rows, and again for the weight gradient along columns; the gradients of proj's and fc2's
// outputs (4096 wide) along both, which of one scale are one tensor. A rank quantises its quarter. Hopper transposes
// what came of one scale (read and written once); columns of blocks and of NVFP4 are put in order likewise, MXFP8's are
// not.
TEST(TensorParallel, GathersOperandsAsTheRecipeMakesThem) {
  const ModelSpec model = load_model("llama3-8b");
  const double tensor = 4096.0 * 4096.0, one_scale = 1.0, blocks = 1.0 + 4.0 / 128.0, mx = 1.0 + 1.0 / 32.0,
               nv = 0.5625;
  struct Expected {
    Precision precision;
    const char* system;
    double input, gradient, cast,
        ordered;  // Bytes per element. Casts: of the gradient; reorderings: of both together.
  };
  for (const Expected& e : {Expected{Precision::kBf16, "h200", 2.0, 2.0, 0.0, 0.0},
                            {Precision::kFp8Current, "h200", one_scale, one_scale, 2.0 + 1.0, 2.0 * one_scale},
                            {Precision::kFp8Current, "b200", one_scale, one_scale, 2.0 + 1.0, 0.0},
                            {Precision::kFp8Blockwise, "h200", blocks, 2.0 * blocks, 2.0 + 2.0 * blocks, 2.0 * blocks},
                            {Precision::kMxfp8, "b200", mx, 2.0 * mx, 2.0 + 2.0 * mx, 0.0},
                            {Precision::kNvfp4, "b200", nv, 2.0 * nv, 2.0 + 2.0 * nv, 2.0 * nv}}) {
    TrainingOptions o = with_precision(te_options(1), e.precision);
    o.layer.ep = 1;
    o.layer.tp = 4;
    const Hardware hardware = hwprofiles::load_profile(e.system).hardware;
    OpList list = mixer_ops({model, o.layer, hardware}, model.layers.front());
    append(list, mlp_ops({model, o.layer, hardware}, model.layers.front()));
    Volumes forward = volumes(list.forward), backward = volumes(list.backward);
    std::map<std::string, double> cast, ordered;
    for (const Op& op : list.backward)
      if (const auto* work = std::get_if<MemoryWork>(&op.work); work != nullptr && op.name.starts_with("linear_")) {
        if (work->op == MemoryOp::kQuantize) cast[std::string(op.name)] += work->bytes.to<double>();
        if (work->op == MemoryOp::kPermute || work->op == MemoryOp::kElementwise)
          ordered[std::string(op.name)] += work->bytes.to<double>();
      }
    for (const char* name : {"linear_qkv", "linear_fc1"}) {
      EXPECT_DOUBLE_EQ((forward[{name, CollectiveKind::kAllGather, 4}]), e.input * tensor) << name << e.system;
      EXPECT_DOUBLE_EQ((backward[{name, CollectiveKind::kAllGather, 4}]), e.input * tensor) << name << e.system;
      EXPECT_DOUBLE_EQ(ordered[name], e.ordered * tensor) << name << e.system;
    }
    for (const char* name : {"linear_proj", "linear_fc2"}) {
      EXPECT_DOUBLE_EQ((backward[{name, CollectiveKind::kAllGather, 4}]), e.gradient * tensor) << name << e.system;
      EXPECT_DOUBLE_EQ(cast[name], e.cast * tensor / 4.0) << name << e.system;
      EXPECT_DOUBLE_EQ(ordered[name], e.ordered * tensor) << name << e.system;
    }
  }
}

// Llama 3 8B, CP8 as [2, 4]: two ranks exchange heads, 2 B x 1024 tokens x 32 heads x 128 = 8 MiB of queries; a ring of
// four passes K and V, 2 B x 1024 x 8 heads x 256 = 4 MiB, three times forward and twice as often backward.
TEST(ContextParallel, HierarchicalExchangesHeadsInsideAndPassesKeysOnAcross) {
  const ModelSpec model = load_model("llama3-8b");
  TrainingOptions o = te_options(1);
  o.layer.seq_len = 8192;
  o.set_layout({.cp = 8});
  o.layer.cp_comm = CpComm::kA2aP2p;
  o.layer.cp_a2a_size = 2;
  const OpList list = mixer_ops({model, o.layer, h200()}, model.layers.front());
  const double mib = 1048576.0;
  Volumes forward = volumes(list.forward), backward = volumes(list.backward);
  EXPECT_DOUBLE_EQ((forward[{"cp_a2a_q", CollectiveKind::kAllToAll, 2}]), 8.0 * mib);
  EXPECT_DOUBLE_EQ((forward[{"cp_p2p", CollectiveKind::kSendRecv, 4}]), 3.0 * 4.0 * mib);
  EXPECT_DOUBLE_EQ((backward[{"cp_p2p", CollectiveKind::kSendRecv, 4}]), 6.0 * 4.0 * mib);
}

// 64e6 dense parameters over DP 64 in 4 instances: 256 MB of gradients reduce-scattered among 16 ranks, the 16 MB of a
// shard all-reduced over 4, 128 MB of parameters gathered among 16. An embedding of 1e6 on two stages: 4 MB.
TEST(StepEnd, ReducesInsideAnInstanceAndAcrossInstances) {
  const ModelSpec model = load_model("llama3-8b");
  TrainingOptions o = te_options(1);
  o.set_layout({.dp = 64, .pp = 4});
  o.step.optimizer_instances = 4;
  const ParameterCount count{.dense = 64e6, .shared_embedding = 1e6};
  const OpList sharded = data_parallel_ops({model, o, h200()}, count);
  Volumes gather = volumes(sharded.forward), reduction = volumes(sharded.backward),
          step = volumes(step_ops({model, o, h200()}, count).forward);
  EXPECT_DOUBLE_EQ((reduction[{"grad_reduce", CollectiveKind::kReduceScatter, 16}]), 256e6);
  EXPECT_DOUBLE_EQ((reduction[{"grad_reduce", CollectiveKind::kAllReduce, 4}]), 16e6);
  EXPECT_DOUBLE_EQ((gather[{"param_gather", CollectiveKind::kAllGather, 16}]), 128e6);
  EXPECT_DOUBLE_EQ((step[{"embedding_grad_reduce", CollectiveKind::kAllReduce, 2}]), 4e6);
  o.step.sharding = Sharding::kDdp;
  o.step.optimizer_instances = 1;
  const OpList unsharded = data_parallel_ops({model, o, h200()}, count);
  reduction = volumes(unsharded.backward);
  EXPECT_DOUBLE_EQ((reduction[{"grad_reduce", CollectiveKind::kAllReduce, 64}]), 256e6);
  EXPECT_TRUE(unsharded.forward.empty());
}

// FP8 parameters of 64e6 dense elements over DP 4, 48e6 of them quantised. A rank casts 12e6 from fp32 (amax 4 bytes,
// on Hopper a one-row transpose-cast of 6) and 4e6 others to bf16 (6), and transposes all 48e6 after the gather (2).
// Without FP8 parameters it casts 16e6 to bf16 and quantises 48e6.
TEST(StepEnd, CastsFlatShardsToFp8Parameters) {
  const ModelSpec model = load_model("llama3-8b");
  TrainingOptions o = with_precision(te_options(1), Precision::kFp8Current);
  o.set_layout({.dp = 4});
  const ParameterCount count{.dense = 64e6, .quantised_dense = 48e6};
  const auto bytes = [&] {
    std::map<std::string, double> sum;
    for (const Op& op : step_ops({model, o, h200()}, count).forward)
      if (const auto* work = std::get_if<MemoryWork>(&op.work))
        sum[std::string(op.name)] += work->bytes.to<double>();
      else if (const auto* cast = std::get_if<SoftwareWork>(&op.work))
        sum[std::string(op.name)] += 6.0 * cast->elements;  // Reads fp32, writes both layouts.
    return sum;
  };
  std::map<std::string, double> kept = bytes();
  EXPECT_DOUBLE_EQ(kept["cast_to_model"], 6.0 * 16e6);
  EXPECT_DOUBLE_EQ(kept["quantise_weights"], (2.0 + 2.0 + 2.0) * 48e6);
  EXPECT_EQ(kept.count("cast_to_fp8"), 0U);
  o.step.optimizer.low_precision_param_gather = true;
  std::map<std::string, double> cast = bytes();
  EXPECT_DOUBLE_EQ(cast["cast_to_model"], 6.0 * 4e6);
  EXPECT_DOUBLE_EQ(cast["param_amax"], 4.0 * 12e6);
  EXPECT_DOUBLE_EQ(cast["cast_to_fp8"], 6.0 * 12e6);
  EXPECT_DOUBLE_EQ(cast["transpose_weights"], 2.0 * 48e6);
  EXPECT_EQ(cast.count("quantise_weights"), 0U);
}

struct QuantiseWork {
  double bytes = 0.0;
  std::int64_t kernels = 0;
};
// Casts of a layer's experts, without amax passes, by phase and linear.
std::map<std::pair<Phase, std::string>, QuantiseWork> expert_casts(const OpList& list) {
  std::map<std::pair<Phase, std::string>, QuantiseWork> casts;
  for (const std::vector<Op>* ops : {&list.forward, &list.backward})
    for (const Op& op : *ops)
      if (const auto* work = std::get_if<MemoryWork>(&op.work); work != nullptr && work->op == MemoryOp::kQuantize &&
                                                                op.name.starts_with("linear_") &&
                                                                op.module == Module::kExperts)
        casts[{op.phase, std::string(op.name)}] = {work->bytes.to<double>(), work->kernels};
  return casts;
}

// Which rows of the experts are quantised, in how many kernels? Mixtral on EP 4: two local experts, 4096 x 2 rows (and
// half a multiple of 32, 256 when fused, for each) of 4096 into fc1 and out of fc2. MXFP8 reads 2 bytes and writes
// 2 (1 + 1/32).
TEST(Experts, AreQuantisedOneByOneUnlessFused) {
  const ModelSpec model = load_model("mini-mixtral-8l");
  const Hardware b200 = hwprofiles::load_profile("b200").hardware;
  TrainingOptions o = with_precision(te_options(1), Precision::kMxfp8);
  auto casts = expert_casts(mlp_ops({model, o.layer, b200}, kMoe));
  const double each = (2.0 + 2.0 * (1.0 + 1.0 / 32.0)) * 4096.0;
  for (const auto& [phase, name] : {std::pair{Phase::kForward, "linear_fc1"}, {Phase::kDgrad, "linear_fc2"}}) {
    EXPECT_DOUBLE_EQ((casts[{phase, name}].bytes), each * (8192.0 + 32.0)) << name;
    EXPECT_EQ((casts[{phase, name}].kernels), 2) << name;
  }
  EXPECT_EQ(casts.size(), 4U);
  o.layer.software.experts = costmodel::Experts::kFused;
  casts = expert_casts(mlp_ops({model, o.layer, b200}, kMoe));
  EXPECT_EQ(casts.size(), 2U);
  for (const auto& [phase, name] : {std::pair{Phase::kForward, "linear_fc1"}, {Phase::kDgrad, "linear_fc2"}}) {
    EXPECT_DOUBLE_EQ((casts[{phase, name}].bytes), each * (8192.0 + 256.0)) << name;
    EXPECT_EQ((casts[{phase, name}].kernels), 1) << name;
  }
}

// Does CUTLASS take what Transformer Engine gives it: forward and dgrad of BF16's experts, and no other product?
TEST(Experts, OfBf16RunInOneKernelOfCutlassButForTheirWeightGradients) {
  const ModelSpec model = load_model("mini-mixtral-8l");
  const auto in_one_kernel = [&](Precision precision) {
    TrainingOptions o = with_precision(te_options(1), precision);
    o.layer.software.experts = costmodel::Experts::kCutlass;
    const OpList list = mlp_ops({model, o.layer, h200()}, kMoe);
    std::multiset<Phase> phases;
    for (const std::vector<Op>* ops : {&list.forward, &list.backward})
      for (const Op& op : *ops)
        if (const auto* gemm = std::get_if<GemmWork>(&op.work);
            gemm != nullptr && gemm->grouping == Grouping::kOneKernel) {
          EXPECT_EQ(op.launches, 2);
          phases.insert(op.phase);
        }
    return phases;
  };
  EXPECT_EQ(in_one_kernel(Precision::kBf16),
            (std::multiset<Phase>{Phase::kForward, Phase::kForward, Phase::kDgrad, Phase::kDgrad}));
  EXPECT_TRUE(in_one_kernel(Precision::kFp8Current).empty());
}

// A separate kernel pads the rows if FP8 needs it and the dispatcher has not done it.
TEST(Experts, ArePaddedUnlessHybridEpHas) {
  const ModelSpec model = load_model("mini-mixtral-8l");
  const auto pads = [&](Precision precision, Dispatcher dispatcher) {
    TrainingOptions o = with_precision(te_options(1), precision);
    o.layer.dispatcher = dispatcher;
    const OpList list = mlp_ops({model, o.layer, h200()}, kMoe);
    return std::count_if(list.forward.begin(), list.forward.end(), [](const Op& op) {
      return op.name == "quantization_padding" || op.name == "quantization_unpadding";
    });
  };
  EXPECT_EQ(pads(Precision::kFp8Current, Dispatcher::kAllToAll), 2);
  EXPECT_EQ(pads(Precision::kFp8Current, Dispatcher::kDeepEp), 2);
  EXPECT_EQ(pads(Precision::kFp8Current, Dispatcher::kHybridEp), 0);
  EXPECT_EQ(pads(Precision::kBf16, Dispatcher::kAllToAll), 0);
}

// Layers of two geometries in one model, as Gemma and MiMo mix sliding and full attention: is it the sum of its layers?
// (A model without layers is what is counted twice.)
TEST(TwoGeometries, AddUpToTheirModels) {
  const GqaSpec sliding{.heads = 16, .query_groups = 8, .head_dim = 128},
      full{.heads = 32, .query_groups = 2, .head_dim = 256, .qk_layernorm = true};
  ModelSpec none = load_model("mini-llama-16l");
  none.layers.clear();
  ModelSpec only_sliding = none, only_full = none, both = none;
  only_sliding.mixers = {sliding};
  only_full.mixers = {full};
  both.mixers = {sliding, full};
  for (int i = 0; i < 12; ++i) {
    const bool is_full = i % 6 == 5;
    LayerSpec layer{.mixer = 0, .mlp = MlpKind::kDense, .window = is_full ? 0 : 1023};
    (is_full ? only_full : only_sliding).layers.push_back(layer);
    if (is_full) layer.mixer = 1;
    both.layers.push_back(layer);
  }
  EXPECT_EQ(parameter_totals(both).main_total + parameter_totals(none).main_total,
            parameter_totals(only_sliding).main_total + parameter_totals(only_full).main_total);
  // A layer has h (2 n d + 2 g d) weights, and 2 d of its norms: 2 h (8192 + 512) + 512 against 2 h (2048 + 1024).
  EXPECT_EQ(parameter_totals(only_full).main_total - parameter_totals(none).main_total,
            (parameter_totals(only_sliding).main_total - parameter_totals(none).main_total) / 5 +
                2 * (2 * both.hidden_size * (8192 + 512 - 2048 - 1024) + 512));
  const auto flops = [](const ModelSpec& m) { return megatron_flops(m, 4096.0, 4096.0 * 4096.0); };
  EXPECT_DOUBLE_EQ(flops(both) + flops(none), flops(only_sliding) + flops(only_full));
  for (const TrainingOptions& o : {te_options(1), with_precision(te_options(2), Precision::kFp8Current)}) {
    const auto sum = [&](const ModelSpec& model) {
      const BuildContext context{model, o.layer, h200()};
      std::pair<double, double> kept_and_flops;
      for (const LayerSpec& layer : model.layers)
        for (OpList list : {mixer_ops(context, layer), mlp_ops(context, layer)}) {
          const BlockCost cost = block_cost(context, std::move(list));
          kept_and_flops.first += cost.memory.kept.to<double>();
          kept_and_flops.second += cost.flops.to<double>();
        }
      return kept_and_flops;
    };
    const auto together = sum(both), a = sum(only_sliding), b = sum(only_full);
    EXPECT_DOUBLE_EQ(together.first, a.first + b.first);
    EXPECT_DOUBLE_EQ(together.second, a.second + b.second);
  }
}

// Megatron's rows alternate between the sequences of a micro-batch; Mamba's scan needs one sequence after another. With
// two sequences, the outputs of in_proj (2 x 4096 + 2 x 1024 + 64 wide) and of the scan (4096) are copied, 4 bytes per
// element.
TEST(Mamba, CopiesBetweenBatchAndSequenceOrder) {
  const ModelSpec model = load_model("nemotron-3-nano-30b-a3b");
  const LayerSpec layer = *std::find_if(model.layers.begin(), model.layers.end(), [&](const LayerSpec& l) {
    return model.mixer(l) != nullptr && std::holds_alternative<MambaSpec>(*model.mixer(l));
  });
  const auto copied = [&](std::int64_t micro_batch) {
    const TrainingOptions o = te_options(micro_batch);
    const OpList list = mixer_ops({model, o.layer, h200()}, layer);
    double bytes = 0.0;
    for (const Op& op : list.forward)
      if (const auto* work = std::get_if<MemoryWork>(&op.work); work != nullptr && work->op == MemoryOp::kStridedCopy)
        bytes += work->bytes.to<double>();
    return bytes;
  };
  EXPECT_EQ(copied(1), 0.0);
  EXPECT_DOUBLE_EQ(copied(2), 4.0 * 2.0 * 4096.0 * (10304.0 + 4096.0));
}

// What of sparse attention grows with the square of the sequence? All scores, as Megatron's unfused_dsa_fn makes them:
// kept in FP32 and BF16 for each head, and in FP32 for each head of the indexer.
TEST(SparseAttention, KeepsTheScoresOfAllPairs) {
  const ModelSpec model = load_model("deepseek-v3.2");
  const MlaSpec& mla = *model.find<MlaSpec>();
  TrainingOptions o = te_options(1);
  const auto kept = [&](std::int64_t seq_len) {
    o.layer.seq_len = seq_len;
    return kept_mib("deepseek-v3.2", o, model.layers.back());
  };
  const double s = 4096.0;  // Both lengths have more keys than the indexer selects.
  EXPECT_NEAR(kept(8192) - 2.0 * kept(4096),
              2.0 * s * s * static_cast<double>(6 * mla.heads + 4 * mla.index_heads) / 1048576.0, 1.0);
}

// Has DeepSeek-V4's attention, with both hyper-connections of a layer, the parameters of transformers' modules (5.24,
// models/deepseek_v4)? Counted by hand from their shapes: a layer with a window, one of ratio 4 with its indexer, one
// of ratio 128.
TEST(CompressedAttention, HasTheParametersOfTransformers) {
  const ModelSpec model = load_model("deepseek-v4-flash");
  const TrainingOptions options = usual_options();
  const BuildContext context{model, options.layer, h200()};
  constexpr double kHidden = 4096, kHead = 512, kHeads = 64, kRank = 1024, kIndexHead = 128;
  const double queries = kRank * kHidden + kRank + kHeads * kHead * kRank, key = kHead * kHidden + kHead,
               output = 8 * kRank * (kHidden + kHidden), hyper_connection = 24 * (4 * kHidden) + 24 + 3;
  const double window = kHidden + queries + key + output + kHeads + 2 * hyper_connection;
  const double indexer = kHeads * kIndexHead * kRank + 2 * (2 * kIndexHead * kHidden) + 4 * (2 * kIndexHead) +
                         kIndexHead + kHeads * kHidden;
  const std::map<std::int64_t, double> expected = {
      {0, window},
      {4, window + 2 * (2 * kHead * kHidden) + 4 * (2 * kHead) + kHead + indexer},
      {128, window + 2 * (kHead * kHidden) + 128 * kHead + kHead}};
  std::set<std::int64_t> seen;
  for (const LayerSpec& layer : model.layers) {
    EXPECT_DOUBLE_EQ(block_cost(context, mixer_ops(context, layer)).parameters.total(),
                     expected.at(layer.compress_ratio));
    seen.insert(layer.compress_ratio);
  }
  EXPECT_EQ(seen.size(), expected.size());
}

// What does recomputing DeepSeek-V4's up projection free? The queries of all heads, before their norm and after, and
// their quantised or bf16 input.
TEST(CompressedAttention, RecomputesItsQueries) {
  const ModelSpec model = load_model("deepseek-v4-flash");
  const auto kept = [&](const TrainingOptions& o) {
    const BuildContext context{model, o.layer, h200()};
    return block_cost(context, mixer_ops(context, model.layers.back())).memory.kept.to<double>();
  };
  const TrainingOptions plain = te_options(1);
  EXPECT_DOUBLE_EQ(kept(plain) - kept(with_recompute(plain, {RM::kMlaUpProj})), 2.0 * 4096 * (2 * 64 * 512 + 1024));
}

// 64 experts, top-6 on 4 ranks: a token reaches 4 (1 - C(48,6)/C(64,6)) = 4 (1 - 0.16367) = 3.3453 distinct ranks.
TEST(Dispatch, FusedDispatchSendsATokenOncePerDistinctRank) {
  const ModelSpec model = load_model("mini-deepseek-12l");
  TrainingOptions o = te_options(1);
  o.layer.dispatcher = Dispatcher::kHybridEp;
  const BuildContext context{model, o.layer, h200()};
  for (const Op& op : mlp_ops(context, kMoe).forward)
    if (const auto* work = std::get_if<ExchangeWork>(&op.work);
        work != nullptr && work->kind == CollectiveKind::kDispatch) {
      EXPECT_NEAR(work->volume.to_ranks.to<double>() / (2.0 * 4096.0 * 2048.0), 3.3453, 1e-3);
      return;
    }
  FAIL() << "no dispatch op";
}

// Combine hides under attention, dispatch under the experts. An exchange longer than its window hides the whole window
// (2, 1 and 1 s). One of 2 s in a window of 3 s takes 33 of 132 SMs from it for that time: saves 1.5 s.
TEST(EpOverlap, HidesEachExchangeInItsWindow) {
  const auto products = [](double seconds) {
    return ComputeSum{.time = Seconds{seconds}, .products = Seconds{seconds}, .squares = 0.0};
  };
  const auto exchange = [](double seconds) {
    return CommunicationSum{.time = Seconds{seconds}, .sm_time = Seconds{33.0 * seconds}, .copying = Seconds{seconds}};
  };
  NodeTimes n;
  n.forward = {products(2.0), {}, products(1.0), {}};
  n.dgrad = {products(3.0), {}, products(1.0), {}};
  n.combine_backward = exchange(5.0);   // Window: attention forward, 2 s.
  n.dispatch_forward = exchange(4.0);   // Window: experts' dgrad, 1 s.
  n.dispatch_backward = exchange(4.0);  // Window: experts' forward, 1 s.
  n.combine_forward = exchange(2.0);    // Window: attention backward, 3 s.
  Hardware hardware;                    // Only SMs are lost.
  hardware.network.collective_sms = 33;
  EXPECT_NEAR(ep_overlap_saving(n, false, hardware).to<double>(), 5.5, 1e-12);
  // With a wgrad of 4 s, dispatch forward has all the compute that it needs: saves 3 s. If delayed, the remaining 2 s
  // run beside dispatch backward, which then saves 3 s instead of 1.
  n.wgrad[2] = products(4.0);
  EXPECT_NEAR(ep_overlap_saving(n, false, hardware).to<double>(), 7.5, 1e-12);
  EXPECT_NEAR(ep_overlap_saving(n, true, hardware).to<double>(), 9.5, 1e-12);
}

// What do Megatron's own losses hold at their fullest, bytes of a logit? fp32 softmax and bf16 logits step by step, one
// more fp32 copy when compiled (megatron/core/tensor_parallel/cross_entropy.py, fusions/fused_cross_entropy.py).
TEST(Head, LossesHoldWhatTheirStepsMake) {
  const ModelSpec model = load_model("qwen3-235b-a22b");
  for (const auto& [loss, bytes] : {std::pair{CrossEntropy::kUnfused, 6.0}, std::pair{CrossEntropy::kNative, 10.0}}) {
    TrainingOptions o = te_options(1);
    o.layer.tp = 2;
    o.layer.software.cross_entropy = loss;
    const double logits = 4096.0 * 152064.0 / 2.0;  // A vocabulary of 151936, padded to a multiple of 256.
    double held = 0.0;
    for (const Op& op : head_ops({model, o.layer, h200()}, 1).forward) {
      if (op.name != "cross_entropy") continue;
      for (const Bytes& transient : op.transient) held += transient.to<double>();
      for (const auto& tensor : op.keeps) held += tensor.bytes.to<double>();
    }
    EXPECT_DOUBLE_EQ(held, bytes * logits);
  }
}

BlockCost mlp_cost(const ModelSpec& model, const LayerOptions& o, const LayerSpec& layer) {
  const BuildContext context{model, o, h200(), 64};
  return block_cost(context, piece_ops(context, Piece::kMlp, layer));
}

std::vector<Dispatcher> every_dispatcher() {
  std::vector<Dispatcher> all;
  for (std::size_t i = 0; i < dispatcher_specs().size(); ++i) all.push_back(static_cast<Dispatcher>(i));
  return all;
}

// Does every dispatcher take tokens to their experts and back, and their gradients, and say what it is called?
TEST(Dispatchers, ExchangeBothWaysInBothDirections) {
  const ModelSpec model = load_model("deepseek-v3");
  std::set<std::string_view> names;
  for (const Dispatcher dispatcher : every_dispatcher()) {
    LayerOptions o = te_options(1).layer;
    o.dispatcher = dispatcher;
    const OpList list = mlp_ops({model, o, h200(), 64}, model.layers.back());
    for (const std::vector<Op>* ops : {&list.forward, &list.backward})
      for (const Node node : {Node::kDispatch, Node::kCombine})
        EXPECT_TRUE(std::ranges::any_of(*ops, [&](const Op& op) { return op.node == node && is_communication(op); }));
    const DispatcherSpec& spec = dispatcher_spec(dispatcher);
    EXPECT_TRUE(names.insert(spec.name).second);
    EXPECT_EQ(spec.flag.substr(0, 6), "--moe-");
    EXPECT_EQ(spec.once_per_rank, is_flex(dispatcher)) << spec.name;
  }
}

// Do sequences and CP change an MLP by nothing but the tokens that they make? Costs are remembered as if so
// (relevant()).
TEST(Mlp, SeesOfSequencesAndContextParallelismTheTokensOnly) {
  for (const char* name : {"deepseek-v3", "gpt-oss-120b", "llama3-70b"}) {
    const ModelSpec model = load_model(name);
    for (const LayerSpec& layer : {model.layers.front(), model.layers.back()})
      for (const std::int64_t tp : {1, 2})
        for (const Dispatcher dispatcher : every_dispatcher()) {
          LayerOptions o = te_options(4).layer;
          o.tp = tp;
          o.cp = 2;
          o.dispatcher = dispatcher;
          const LayerOptions same = relevant(o, Piece::kMlp, layer);
          EXPECT_NE(same.micro_batch, o.micro_batch);
          const BlockCost a = mlp_cost(model, o, layer), b = mlp_cost(model, same, layer);
          for (const auto direction : {&BlockCost::forward, &BlockCost::backward}) {
            EXPECT_EQ((a.*direction).compute, (b.*direction).compute);
            EXPECT_EQ((a.*direction).comm, (b.*direction).comm);
            EXPECT_EQ((a.*direction).clock.issue(), (b.*direction).clock.issue());
          }
          EXPECT_EQ(a.memory, b.memory);
          EXPECT_EQ(a.parameters, b.parameters);
        }
  }
}

// Do the experts' products take the same time whatever moves their tokens? The search bounds EP and ETP by them.
TEST(Experts, HaveTheSameProductsBehindEveryDispatcher) {
  const ModelSpec model = load_model("deepseek-v3");
  for (const std::int64_t etp : {1, 2}) {
    LayerOptions o = te_options(1).layer;
    o.etp = etp;
    const BlockCost plain = mlp_cost(model, o, model.layers.back());
    for (const Dispatcher dispatcher : every_dispatcher())
      for (const bool shared : {false, true}) {
        o.dispatcher = dispatcher;
        o.overlaps.shared_expert = shared;
        const BlockCost other = mlp_cost(model, o, model.layers.back());
        EXPECT_EQ(plain.forward.products, other.forward.products);
        EXPECT_EQ(plain.backward.products, other.backward.products);
        EXPECT_GT(other.forward.products, Seconds{});
      }
    o.dispatcher = Dispatcher::kAllToAll;
    o.overlaps.shared_expert = false;
  }
}

}  // namespace
}  // namespace foldwise::costmodel::ops_test
