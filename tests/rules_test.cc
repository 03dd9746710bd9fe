#include "planner/rules/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/usual_options.h"

namespace foldwise::planner::rules_test {
namespace {

using costmodel::CompressedSpec;
using costmodel::CpComm;
using costmodel::DataType;
using costmodel::Dispatcher;
using costmodel::Experts;
using costmodel::GatedDeltaNetSpec;
using costmodel::GqaSpec;
using costmodel::GraphImpl;
using costmodel::GraphModule;
using costmodel::Hardware;
using costmodel::LayerSpec;
using costmodel::MambaSpec;
using costmodel::MlaSpec;
using costmodel::MlpKind;
using costmodel::ModelSpec;
using costmodel::OffloadModule;
using costmodel::OptimizerKind;
using costmodel::Precision;
using costmodel::RecomputeGranularity;
using costmodel::RecomputeModule;
using costmodel::Sharding;
using costmodel::TrainingOptions;

// A problem and options, to be changed by the cases.
struct Scenario {
  ModelSpec model;
  Hardware hardware;
  std::int64_t num_gpus = 1;
  TrainingOptions options = usual_options();
  bool folding = true;
  std::string release{};  // Empty: no release.
  Evidence evidence = Evidence::kAny;
  const MeasuredChoices* measured = nullptr;

  [[nodiscard]] Problem problem() const {
    return {.model = model,
            .hardware = hardware,
            .num_gpus = num_gpus,
            .folding = folding,
            .release = find_release(release),
            .evidence = evidence,
            .measured = measured};
  }
  [[nodiscard]] std::vector<std::string> violated() const {
    std::vector<std::string> ids;
    for (const Rejection& rejection : violations(problem(), options)) ids.emplace_back(rejection.rule);
    return ids;
  }
};

/// The scenario's first mixer.
template <typename Spec>
Spec& mixer(Scenario& scenario) {
  return std::get<Spec>(scenario.model.mixers.front());
}

ModelSpec mixtral_8x7b() {
  ModelSpec model;
  model.name = "mixtral-8x7b";
  model.hidden_size = 4096;
  model.vocab_size = 32000;
  model.max_position_embeddings = 32768;
  model.layers.assign(32, LayerSpec{.mixer = 0, .mlp = MlpKind::kMoe});
  model.mixers = {GqaSpec{.heads = 32, .query_groups = 8, .head_dim = 128}};
  model.moe = {.experts = 8, .topk = 2, .ffn_hidden_size = 14336};
  return model;
}

ModelSpec deepseek_v3() {
  ModelSpec model;
  model.name = "deepseek-v3";
  model.hidden_size = 7168;
  model.ffn_hidden_size = 18432;
  model.vocab_size = 129280;
  model.max_position_embeddings = 163840;
  model.layers.assign(61, LayerSpec{.mixer = 0, .mlp = MlpKind::kMoe});
  for (std::size_t i = 0; i < 3; ++i) model.layers[i].mlp = MlpKind::kDense;
  model.mtp_num_layers = 1;
  model.mtp_layers = {model.layers.back()};
  model.mixers = {MlaSpec{.heads = 128,
                          .q_lora_rank = 1536,
                          .kv_lora_rank = 512,
                          .qk_head_dim = 128,
                          .qk_pos_emb_head_dim = 64,
                          .v_head_dim = 128}};
  model.moe = {.experts = 256, .topk = 8, .ffn_hidden_size = 2048, .shared_ffn_hidden_size = 2048};
  return model;
}

Hardware gpu(std::string name, bool fp8, bool blackwell, std::vector<Dispatcher> flex) {
  Hardware hardware;
  hardware.gpu = std::move(name);
  hardware.traits.generation = blackwell ? "blackwell" : "hopper";
  hardware.traits.flex_dispatchers = std::move(flex);
  const auto rate = [&hardware](costmodel::MathFormat format, bool has) {
    hardware.peak[static_cast<std::size_t>(format)] = tflops(has ? 1000 : 0);
  };
  rate(costmodel::MathFormat::kBf16, true);
  rate(costmodel::MathFormat::kFp32, true);
  rate(costmodel::MathFormat::kFp8, fp8);
  rate(costmodel::MathFormat::kFp8Block, fp8);
  rate(costmodel::MathFormat::kMxfp8, blackwell);
  rate(costmodel::MathFormat::kNvfp4, blackwell);
  return hardware;
}
Hardware h100() { return gpu("H100-SXM5-80GB", true, false, {Dispatcher::kDeepEp, Dispatcher::kHybridEp}); }
Hardware gb200() { return gpu("GB200-NVL72", true, true, {Dispatcher::kHybridEp}); }

// Mixtral 8x7B on 64 H100: TP2 EP8 PP4, GBS 256. Start of every case below.
Scenario mixtral() {
  Scenario s{.model = mixtral_8x7b(), .hardware = h100(), .num_gpus = 64};
  s.options.set_layout({.tp = 2, .dp = 8, .pp = 4, .ep = 8});
  s.options.pipeline.global_batch = 256;
  return s;
}

// Megatron-Bridge's recipe of DeepSeek-V3 on 256 GB200: TP1 PP4 VPP4 EP64, HybridEP, MXFP8, GBS 2048, partial graphs.
Scenario deepseek() {
  Scenario s{.model = deepseek_v3(), .hardware = gb200(), .num_gpus = 256};
  s.options.set_layout({.dp = 64, .pp = 4, .vpp = 4, .ep = 64});
  s.options.pipeline.global_batch = 2048;
  s.options.layer.precision = Precision::kMxfp8;
  s.options.layer.dispatcher = Dispatcher::kHybridEp;
  s.options.pipeline.layout = "Et*4|(t*4|)*14tmL";
  s.options.set_recompute({.granularity = RecomputeGranularity::kSelective, .modules = {RecomputeModule::kMlaUpProj}});
  s.options.layer.cuda_graph = {.impl = GraphImpl::kTransformerEngine,
                                .modules = {GraphModule::kAttn, GraphModule::kMoeRouter, GraphModule::kMoePreprocess}};
  s.options.step.optimizer.low_precision_param_gather = true;
  return s;
}

// Mixtral with EP overlap: interleaved, all-to-all.
void overlap(Scenario& s) {
  s.options.pipeline.vpp = 2;
  s.options.pipeline.overlaps.ep_a2a = true;
}
void recompute(Scenario& s, RecomputeModule module) {
  s.options.set_recompute({.granularity = RecomputeGranularity::kSelective, .modules = {module}});
}
void full_recompute(Scenario& s) {
  s.options.set_recompute({.granularity = RecomputeGranularity::kFull, .modules = {}});
}
void offload_layers(Scenario& s, std::int64_t layers) {
  s.options.layer.offload_modules = {OffloadModule::kLayer};
  s.options.pipeline.cpu_offloading_num_layers = layers;
}
void graphs(Scenario& s, GraphImpl impl, costmodel::BitSet<GraphModule> modules) {
  s.options.layer.cuda_graph = {.impl = impl, .modules = modules};
}
void padded_capacity(Scenario& s) {
  s.options.layer.capacity_factor = 1.0;
  s.options.layer.pad_to_capacity = true;
}
void dense(Scenario& s) {
  s.model.moe = {};
  s.model.ffn_hidden_size = 14336;
  for (LayerSpec& layer : s.model.layers) layer.mlp = MlpKind::kDense;
  s.options.layer.ep = 1;
}
void context_parallel(Scenario& s, CpComm comm) {  // CP2 out of DP8.
  s.options.layer.cp = 2;
  s.options.step.dp = 4;
  s.options.layer.cp_comm = comm;
}
void mamba(Scenario& s) {
  s.model.layers.assign(32, LayerSpec{.mixer = 0, .mlp = MlpKind::kNone});
  s.model.mixers = {MambaSpec{.heads = 64, .head_dim = 64, .state = 128, .groups = 8}};
}
void fused_experts(Scenario& s) {
  s.hardware = gb200();
  s.options.layer.precision = Precision::kMxfp8;
  s.options.layer.software.experts = Experts::kFused;
}
void single_stage(Scenario& s) {  // PP1: its ranks become data-parallel.
  s.options.pipeline.pp = 1;
  s.options.step.dp = 32;
}
void shard(Scenario& s) {  // Megatron-FSDP.
  single_stage(s);
  s.options.step.sharding = Sharding::kFsdp;
  s.options.layer.software.gradient_accumulation_fusion = false;
}
void shard_in_groups(Scenario& s, std::int64_t ranks) {  // HSDP.
  shard(s);
  s.options.layer.ep = 1;
  s.options.step.fsdp_group = ranks;
}

void shared_expert(Scenario& s) {  // In addition to the routed ones, overlapped.
  s.model.moe.shared_ffn_hidden_size = 14336;
  s.options.layer.overlaps.shared_expert = true;
}
void rank_capacity(Scenario& s) {  // Fused experts with fixed shapes.
  fused_experts(s);
  s.options.layer.dispatcher = Dispatcher::kHybridEp;
  s.options.layer.rank_capacity_factor = 1.5;
}
void deep_ep(Scenario& s) { s.options.layer.dispatcher = Dispatcher::kDeepEp; }
void hybrid_ep(Scenario& s) { s.options.layer.dispatcher = Dispatcher::kHybridEp; }
void gathers_mxfp8_with_step(Scenario& s) {  // Gathers the parameters of the next stage beside the optimizer step.
  s.hardware = gb200();
  s.options.layer.precision = Precision::kMxfp8;
  s.options.step.optimizer.low_precision_param_gather = true;
  s.options.step.optimizer.reuse_grad_buffer = false;
  s.options.step.overlaps.param_gather_with_optimizer_step = true;
  s.options.pipeline.vpp = 2;
  s.options.layer.etp = 2;  // No two ranks have the same experts.
}
void gated_delta_net_over_ranks(Scenario& s) {
  s.model.mixers.emplace_back(GatedDeltaNetSpec{.key_heads = 16, .value_heads = 32});
  context_parallel(s, CpComm::kP2p);
}
void sparse_attention_over_ranks(Scenario& s) {
  s.model.mixers.emplace_back(MlaSpec{.heads = 32, .index_heads = 4});
  context_parallel(s, CpComm::kAllGather);
}
void hybrid_interleaved(Scenario& s) {
  s.model.hybrid = true;
  s.options.pipeline.vpp = 2;
}
void gathered_and_permuted(Scenario& s) {
  s.options.layer.dispatcher = Dispatcher::kAllGather;
  s.options.layer.software.fused_permute = true;
}
void overlap_with_mtp(Scenario& s) {
  single_stage(s);
  s.options.pipeline.overlaps.ep_a2a = true;
  s.model.mtp_num_layers = 1;
}
void overlap_sharded(Scenario& s) {
  shard(s);
  s.options.pipeline.overlaps.ep_a2a = true;
}
void offload_fused(Scenario& s) {
  fused_experts(s);
  s.options.layer.offload_modules = {OffloadModule::kFusedGroupMlp};
}
void offload_qkv_in_fp8(Scenario& s) {
  s.options.layer.precision = Precision::kFp8Current;
  s.options.layer.offload_modules = {OffloadModule::kQkvLinear};
}
void offload_beside_local_graphs(Scenario& s) {
  padded_capacity(s);
  s.options.layer.offload_modules = {OffloadModule::kExpertFc1};
  graphs(s, GraphImpl::kLocal, {GraphModule::kAttn});
}
void whole_experts_beside_tp(Scenario& s) {
  s.options.layer.ep = 1;
  s.options.layer.etp = 1;
}
void hybrid_ep_of_one_rank(Scenario& s) {
  s.options.layer.dispatcher = Dispatcher::kHybridEp;
  s.options.layer.ep = 1;
  s.options.layer.tp = 1;
  s.options.step.dp = 16;
}
void shard_fp8_twice(Scenario& s) {
  s.options.layer.etp = s.options.layer.tp;
  shard_in_groups(s, 4);
  s.options.step.fsdp_outer_optim = true;
  s.options.layer.precision = Precision::kFp8Current;
  s.options.step.optimizer.low_precision_param_gather = true;
}
void muon(Scenario& s) { s.options.step.optimizer.kind = OptimizerKind::kMuon; }
void gathers_with_step(Scenario& s) {
  s.options.step.overlaps.param_gather_with_optimizer_step = true;
  s.options.pipeline.vpp = 2;
}
void two_instances(Scenario& s) { s.options.step.optimizer_instances = 2; }
void muon_with_expert_biases(Scenario& s) {
  muon(s);
  s.model.add_bias_linear = true;
}
void unsharded_muon(Scenario& s) {
  muon(s);
  s.options.step.overlaps.dp_grad = true;
  s.options.step.overlaps.dp_param = false;
  s.options.step.sharding = Sharding::kDdp;
}
void hybrid(Scenario& s) { s.model.hybrid = true; }
void nvfp4(Scenario& s) {
  s.hardware = gb200();
  s.options.layer.precision = Precision::kNvfp4;
}
void recompute_hybrid(Scenario& s) {
  hybrid(s);
  full_recompute(s);
}
void offload_hybrid(Scenario& s) {
  hybrid(s);
  s.options.layer.offload_modules = {OffloadModule::kCoreAttn};
}
void nvfp4_hybrid(Scenario& s) {
  hybrid(s);
  nvfp4(s);
}
void yarn_in_graphs(Scenario& s) {
  s.model.scaled_rope = true;
  graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kAttn});
}
void whole_graph(Scenario& s) {
  dense(s);
  graphs(s, GraphImpl::kFullIteration, {});
}
void only_mixtral_was_run(Scenario& s) {
  static const MeasuredChoices runs({{.id = "the start of every case",
                                      .generation = "hopper",
                                      .model = "mixtral-8x7b",
                                      .num_gpus = 64,
                                      .choice = joint_choice(mixtral().model, mixtral().options)}});
  s.evidence = Evidence::kRun;
  s.measured = &runs;
}

using Change = std::function<void(Scenario&)>;
/// Both changes, the second after the first.
Change both(Change first, Change second) {
  return [first = std::move(first), second = std::move(second)](Scenario& s) {
    first(s);
    second(s);
  };
}

/// The change in a release, with a loss that all releases have.
Change in(std::string release, Change change) {
  return [release = std::move(release), change = std::move(change)](Scenario& s) {
    change(s);
    s.release = release;
    s.options.layer.software.cross_entropy = costmodel::CrossEntropy::kNative;
  };
}

// Two changes to mixtral(): after the first the rule just holds, after the second it does not, for this reason.
struct Case {
  const char* rule;
  Change accepted, rejected;
  const char* reason;  // Part of the message.
};

std::vector<Case> cases() {
  return {
      {"foldwise.positive", [](Scenario&) {}, [](Scenario& s) { s.options.layer.tp = 0; },
       "--tensor-model-parallel-size 0"},
      {"grid.world_dense", [](Scenario&) {}, [](Scenario& s) { s.options.step.dp = 4; },
       "--tensor-model-parallel-size 2 x --context-parallel-size 1 x data parallel 4 x --pipeline-model-parallel-size "
       "4 "
       "is 32 ranks, but there are 64 GPUs"},
      {"grid.world_expert", [](Scenario& s) { s.options.layer.etp = 2; }, [](Scenario& s) { s.options.layer.etp = 4; },
       "--expert-tensor-parallel-size 4 x --expert-model-parallel-size 8 x --pipeline-model-parallel-size 4"},
      {"grid.pp_not_last",
       [](Scenario& s) {
         s.options.pipeline.tp_pp_dp = true;
         s.options.layer.ep = 2;
       },
       [](Scenario& s) { s.options.pipeline.tp_pp_dp = true; },
       "--use-tp-pp-dp-mapping with --pipeline-model-parallel-size 4 needs the same data-parallel size of attention "
       "and "
       "experts: --tensor-model-parallel-size 2 x --context-parallel-size 1 is not --expert-tensor-parallel-size 1 x "
       "--expert-model-parallel-size 8"},
      {"foldwise.tp_pp_dp_cp",
       [](Scenario& s) {
         s.options.pipeline.tp_pp_dp = true;
         s.options.layer.ep = 2;
       },
       [](Scenario& s) {
         s.options.pipeline.tp_pp_dp = true;
         s.options.layer.cp = 2;
         s.options.step.dp = 4;
         s.options.layer.ep = 4;
       },
       "--use-tp-pp-dp-mapping with --context-parallel-size 2 is not modelled"},
      {"foldwise.unfolded_tp",
       [](Scenario& s) {
         s.folding = false;
         s.options.layer.etp = 2;
       },
       [](Scenario& s) { s.folding = false; },
       "attention's --tensor-model-parallel-size 2; --expert-tensor-parallel-size is 1"},
      {"foldwise.unfolded_ep",
       [](Scenario& s) {
         s.folding = false;
         s.options.layer.etp = 2;
       },
       [](Scenario& s) {
         s.folding = false;
         s.options.layer.cp = 2;
         s.options.step.dp = 4;
       },
       "without folding --expert-model-parallel-size 8 must divide data parallel 4"},
      {"grid.gbs", [](Scenario& s) { s.options.pipeline.global_batch = 8; },
       [](Scenario& s) { s.options.pipeline.global_batch = 12; },
       "--global-batch-size 12 is not a multiple of --micro-batch-size 1 x data parallel 8"},
      {"foldwise.schedule_length", [](Scenario& s) { s.options.pipeline.global_batch = 1'000'000; },
       [](Scenario& s) { s.options.pipeline.global_batch = 1'000'008; },
       "125001 micro-batches through --pipeline-model-parallel-size 4"},
      {"grid.ep_needs_moe", [](Scenario& s) { dense(s); },
       [](Scenario& s) {
         dense(s);
         s.options.layer.ep = 2;
       },
       "--expert-model-parallel-size 2 needs --num-experts"},
      {"grid.experts_div_ep", [](Scenario& s) { s.options.layer.ep = 4; }, [](Scenario& s) { s.options.layer.ep = 16; },
       "--expert-model-parallel-size 16 does not divide --num-experts 8"},
      {"grid.bias_etp", [](Scenario& s) { s.model.add_bias_linear = true; },
       [](Scenario& s) {
         s.model.add_bias_linear = true;
         s.options.layer.etp = 2;
       },
       "--expert-tensor-parallel-size 2 must be 1"},
      {"grid.cp_seq", [](Scenario& s) { context_parallel(s, CpComm::kP2p); },
       [](Scenario& s) {
         context_parallel(s, CpComm::kP2p);
         s.options.layer.seq_len = 4098;
       },
       "--seq-length 4098 is not a multiple of 2 x --context-parallel-size 2"},
      {"grid.sp_seq", [](Scenario& s) { s.options.layer.seq_len = 4098; },
       [](Scenario& s) { s.options.layer.seq_len = 4097; },
       "cannot split --seq-length 4097 / --context-parallel-size 1 over --tensor-model-parallel-size 2"},
      {"grid.moe_tp_sp", [](Scenario&) {}, [](Scenario& s) { s.options.layer.sequence_parallel = false; },
       "--tensor-model-parallel-size 2 of"},
      {"grid.maxpos",
       [](Scenario& s) {
         s.model.learned_position_embedding = true;
         s.model.max_position_embeddings = 4096;
       },
       [](Scenario& s) {
         s.model.learned_position_embedding = true;
         s.model.max_position_embeddings = 2048;
       },
       "--max-position-embeddings 2048 is below --seq-length 4096"},
      {"attn.heads_tp", [](Scenario&) {}, [](Scenario& s) { mixer<GqaSpec>(s).heads = 31; },
       "--tensor-model-parallel-size 2 does not divide --num-attention-heads 31"},
      {"attn.groups_tp", [](Scenario& s) { mixer<GqaSpec>(s).query_groups = 1; },
       [](Scenario& s) { mixer<GqaSpec>(s).query_groups = 5; },
       "--num-query-groups 5 is neither a multiple nor a divisor of --tensor-model-parallel-size 2"},
      {"attn.gdn",
       [](Scenario& s) { s.model.mixers.emplace_back(GatedDeltaNetSpec{.key_heads = 16, .value_heads = 32}); },
       [](Scenario& s) { s.model.mixers.emplace_back(GatedDeltaNetSpec{.key_heads = 15, .value_heads = 30}); },
       "--linear-num-key-heads 15"},
      {"attn.mamba_tp", [](Scenario& s) { mamba(s); },
       [](Scenario& s) {
         mamba(s);
         mixer<MambaSpec>(s).groups = 1;
       },
       "--mamba-num-groups 1"},
      {"attn.dsa",
       [](Scenario& s) {
         s.model.mixers.emplace_back(MlaSpec{.heads = 32, .index_heads = 4});
         context_parallel(s, CpComm::kAllGather);
       },
       [](Scenario& s) {
         s.model.mixers.emplace_back(MlaSpec{.heads = 32, .index_heads = 4});
         context_parallel(s, CpComm::kP2p);
       },
       "--cp-comm-type all_gather, not p2p"},
      {"cp.a2a_heads", [](Scenario& s) { context_parallel(s, CpComm::kA2a); },
       [](Scenario& s) {
         context_parallel(s, CpComm::kA2a);
         mixer<GqaSpec>(s).query_groups = 2;  // One per TP rank.
       },
       "it has 16 query and 1 key/value heads"},
      {"cp.hier",
       [](Scenario& s) {
         context_parallel(s, CpComm::kA2aP2p);
         s.options.layer.cp_a2a_size = s.options.layer.cp;
       },
       [](Scenario& s) { context_parallel(s, CpComm::kA2aP2p); }, "needs --hierarchical-context-parallel-sizes"},
      {"cp.hier_prod",
       [](Scenario& s) {
         context_parallel(s, CpComm::kA2aP2p);
         s.options.layer.cp_a2a_size = 1;
       },
       [](Scenario& s) {
         context_parallel(s, CpComm::kA2aP2p);
         s.options.layer.cp_a2a_size = 4;
       },
       "sizes, 4, does not divide --context-parallel-size 2"},
      {"cp.softmax",
       [](Scenario& s) {
         mixer<GqaSpec>(s).learnable_softmax = true;
         context_parallel(s, CpComm::kA2a);
       },
       [](Scenario& s) {
         mixer<GqaSpec>(s).learnable_softmax = true;
         context_parallel(s, CpComm::kAllGather);
       },
       "--cp-comm-type a2a (not all_gather)"},
      {"cp.swa",
       [](Scenario& s) {
         s.model.layers[5].window = 128;
         context_parallel(s, CpComm::kAllGather);
       },
       [](Scenario& s) {
         s.model.layers[5].window = 128;
         context_parallel(s, CpComm::kP2p);
       },
       "not p2p"},
      {"cp.mamba",
       [](Scenario& s) {
         mamba(s);
         context_parallel(s, CpComm::kP2p);
       },
       [](Scenario& s) {
         mamba(s);
         context_parallel(s, CpComm::kP2p);
         mixer<MambaSpec>(s) = {.heads = 10, .head_dim = 64, .state = 128, .groups = 2};
       },
       "--context-parallel-size 2 does not divide the 5 Mamba heads"},
      {"foldwise.ffn_tp", [](Scenario& s) { s.options.layer.etp = 2; },
       [](Scenario& s) {
         s.options.layer.etp = 2;
         s.model.moe.ffn_hidden_size = 14335;
       },
       "--expert-tensor-parallel-size 2 --moe-ffn-hidden-size 14335"},
      {"pp.vpp_pp_overlap", [](Scenario& s) { s.options.pipeline.vpp = 2; },
       [](Scenario& s) {
         single_stage(s);
         s.options.pipeline.vpp = 2;
       },
       "--num-virtual-stages-per-pipeline-rank 2 needs --pipeline-model-parallel-size above 1"},
      {"foldwise.schedule_chunks",
       [](Scenario& s) {
         s.options.pipeline.schedule = costmodel::Schedule::kZbV;
         s.options.pipeline.vpp = 2;
       },
       [](Scenario& s) { s.options.pipeline.schedule = costmodel::Schedule::kZbV; },
       "schedule \"zb-v\" needs vpp = 2, found 1"},
      {"foldwise.schedule_sizes",
       [](Scenario& s) {
         s.options.pipeline.schedule = costmodel::Schedule::kDualPipe;
         s.options.pipeline.global_batch = 64;  // Divided over DP 8.
       },
       [](Scenario& s) {
         s.options.pipeline.schedule = costmodel::Schedule::kDualPipe;
         s.options.pipeline.global_batch = 72;
       },
       "schedule \"dualpipe\" needs at least two micro-batches a pipeline rank, and an even number of both, found 9 "
       "over "
       "4 ranks"},
      {"pp.group_range",
       [](Scenario& s) {
         s.options.pipeline.vpp = 2;
         s.options.pipeline.microbatch_group_size = 32;
       },
       [](Scenario& s) {
         s.options.pipeline.vpp = 2;
         s.options.pipeline.microbatch_group_size = 33;
       },
       "--microbatch-group-size-per-virtual-pipeline-stage 33 must lie between --pipeline-model-parallel-size 4 and "
       "the "
       "32 micro-batches"},
      {"pp.group_rem",
       [](Scenario& s) {
         s.options.pipeline.vpp = 2;
         s.options.pipeline.microbatch_group_size = 14;  // 32 = 2 * 14 + 4.
       },
       [](Scenario& s) {
         s.options.pipeline.vpp = 2;
         s.options.pipeline.microbatch_group_size = 15;  // 32 = 2 * 15 + 2.
       },
       "32 micro-batches leave 2 after groups of 15"},
      {"pp.even", [](Scenario& s) { s.model.layers.resize(28); }, [](Scenario& s) { s.model.layers.resize(31); },
       "--pipeline-model-parallel-size 4 does not divide --num-layers 31, unlike --pipeline-model-parallel-layout "
       "\"E(t*8|)*3t*7L\""},
      {"pp.vpp_even", [](Scenario& s) { s.options.pipeline.vpp = 8; }, [](Scenario& s) { s.options.pipeline.vpp = 3; },
       "--num-virtual-stages-per-pipeline-rank 3 does not divide the 8 layers of a pipeline rank, unlike "
       "--pipeline-model-parallel-layout \"E"},
      {"pp.hybrid_pattern", [](Scenario& s) { s.model.hybrid = true; },
       [](Scenario& s) {
         s.model.hybrid = true;
         s.options.pipeline.layout = "Et*8|t*8|t*8|t*8L";
       },
       "--hybrid-layer-pattern"},
      {"pp.layout_content", [](Scenario& s) { s.options.pipeline.layout = "Et*7|t*9|t*9|t*7L"; },
       [](Scenario& s) { s.options.pipeline.layout = "Et*7|t*9|t*9|t*8L"; },
       "--pipeline-model-parallel-layout \"Et*7|t*9|t*9|t*8L\": expected 32 t, one per decoder layer, found 33 t"},
      {"pp.layout_stages", [](Scenario& s) { s.options.pipeline.layout = "Et*7|t*9|t*9|t*7L"; },
       [](Scenario& s) { s.options.pipeline.layout = "Et*16|t*16L"; },
       "has 2 stages, but --pipeline-model-parallel-size 4 x --num-virtual-stages-per-pipeline-rank 1 is 4"},
      {"pp.layout_mtp",
       [](Scenario& s) {
         s.model.mtp_num_layers = 1;
         s.options.pipeline.vpp = 2;
         s.options.pipeline.layout = "Et*8|t*8|t*8|t*8||m||L";
       },
       [](Scenario& s) {
         s.model.mtp_num_layers = 1;
         s.options.pipeline.vpp = 2;
         s.options.pipeline.layout = "Et*16|t*16|m|||||L";
       },
       "puts the MTP layers in virtual stage 2"},
      {"pp.mtp_rope", [](Scenario& s) { s.model.mtp_num_layers = 1; },
       [](Scenario& s) {
         s.model.mtp_num_layers = 1;
         s.model.learned_position_embedding = true;
       },
       "--mtp-num-layers 1 needs --position-embedding-type rope or none"},
      {"pp.mhc",
       [](Scenario& s) {
         s.model.mixers.emplace_back(CompressedSpec{.residual_streams = 4});
         single_stage(s);
       },
       [](Scenario& s) { s.model.mixers.emplace_back(CompressedSpec{.residual_streams = 4}); },
       "--pipeline-model-parallel-size above 1 (it is 4)"},
      {"moe.flex_group", [](Scenario& s) { s.options.layer.dispatcher = Dispatcher::kDeepEp; },
       [](Scenario& s) {
         s.options.layer.dispatcher = Dispatcher::kDeepEp;
         s.options.layer.ep = 1;
       },
       "--moe-flex-dispatcher-backend deepep needs"},
      {"moe.flex_group_release", in("0.17.1", hybrid_ep_of_one_rank), in("0.16.1", hybrid_ep_of_one_rank),
       "--moe-flex-dispatcher-backend hybridep needs"},
      {"moe.shared_bias", [](Scenario& s) { s.model.moe.shared_ffn_hidden_size = 1024; },
       [](Scenario& s) {
         s.model.moe.shared_ffn_hidden_size = 1024;
         s.model.add_bias_linear = true;
       },
       "take no linear bias"},
      {"moe.shared_overlap_disp", [](Scenario& s) { s.options.layer.overlaps.shared_expert = true; },
       [](Scenario& s) {
         s.model.moe.shared_ffn_hidden_size = 14336;
         s.options.layer.overlaps.shared_expert = true;
         s.options.layer.dispatcher = Dispatcher::kAllGather;
       },
       "--moe-token-dispatcher-type allgather"},
      {"moe.pad_cap", padded_capacity, [](Scenario& s) { s.options.layer.pad_to_capacity = true; },
       "--moe-pad-expert-input-to-capacity needs --moe-expert-capacity-factor"},
      {"moe.pad_cap_deepep", padded_capacity,
       [](Scenario& s) {
         padded_capacity(s);
         s.options.layer.dispatcher = Dispatcher::kDeepEp;
       },
       "--moe-pad-expert-input-to-capacity excludes DeepEP"},
      {"moe.fused_mlp", fused_experts,
       [](Scenario& s) {
         fused_experts(s);
         s.options.layer.etp = 2;
       },
       "needs --expert-tensor-parallel-size 1 (it is 2)"},
      {"foldwise.cutlass_groups",
       [](Scenario& s) {
         s.options.layer.software.experts = Experts::kCutlass;
         s.hardware.gemm.at(static_cast<std::size_t>(costmodel::MathFormat::kBf16)).one_kernel_memory_share = 0.8;
       },
       [](Scenario& s) { s.options.layer.software.experts = Experts::kCutlass; }, "elsewhere it falls back to grouped"},
      {"foldwise.fused_experts", fused_experts, [](Scenario& s) { s.options.layer.software.experts = Experts::kFused; },
       "is Transformer Engine's kernel for MXFP8"},
      {"foldwise.flex_gpu",
       [](Scenario& s) {
         s.options.layer.dispatcher = Dispatcher::kDeepEp;
         s.hardware = gpu("B200-SXM", true, true, {Dispatcher::kDeepEp, Dispatcher::kHybridEp});
       },
       [](Scenario& s) {
         s.options.layer.dispatcher = Dispatcher::kDeepEp;
         s.hardware = gb200();
       },
       "--moe-flex-dispatcher-backend deepep does not run on GB200-NVL72; what does: hybridep"},
      {"epov.ep", overlap,
       [](Scenario& s) {
         overlap(s);
         s.options.layer.ep = 1;
       },
       "needs --expert-model-parallel-size above 1"},
      {"epov.vpp", overlap,
       [](Scenario& s) {
         overlap(s);
         s.options.pipeline.vpp = 1;
       },
       "with --pipeline-model-parallel-size 4 needs --num-virtual-stages-per-pipeline-rank above 1"},
      {"foldwise.schedule_overlap",
       [](Scenario& s) {
         overlap(s);
         s.options.pipeline.schedule = costmodel::Schedule::kDualPipeV;
       },
       [](Scenario& s) {
         overlap(s);
         s.options.pipeline.schedule = costmodel::Schedule::kZbV;
       },
       "needs a schedule with (forward, backward) pairs: 1f1b, dualpipe or dualpipe-v, found \"zb-v\""},
      {"epov.disp",
       [](Scenario& s) {
         overlap(s);
         s.options.layer.dispatcher = Dispatcher::kHybridEp;
       },
       [](Scenario& s) {
         overlap(s);
         s.options.layer.dispatcher = Dispatcher::kAllGather;
       },
       "not allgather"},
      {"epov.recompute",
       [](Scenario& s) {
         overlap(s);
         recompute(s, RecomputeModule::kMoeAct);
       },
       [](Scenario& s) {
         overlap(s);
         recompute(s, RecomputeModule::kMoe);
       },
       "excludes --recompute-modules moe"},
      {"epov.shared", overlap,
       [](Scenario& s) {
         overlap(s);
         s.options.layer.overlaps.shared_expert = true;
       },
       "--moe-shared-expert-overlap"},
      {"epov.mtp",
       [](Scenario& s) {
         overlap(s);
         s.model.mtp_num_layers = 1;
       },
       [](Scenario& s) {
         overlap(s);
         s.model.mtp_num_layers = 2;
       },
       "not --mtp-num-layers 2"},
      {"epov.cg",
       [](Scenario& s) {
         overlap(s);
         graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kAttn});
       },
       [](Scenario& s) {
         overlap(s);
         graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kAttn, GraphModule::kMlp});
       },
       "excludes --cuda-graph-modules moe and mlp"},
      {"epov.fsdp",
       [](Scenario& s) {
         s.options.pipeline.overlaps.ep_a2a = true;
         shard(s);
       },
       [](Scenario& s) {
         overlap(s);
         s.options.step.sharding = Sharding::kFsdp;
       },
       "needs --pipeline-model-parallel-size 1, not 4"},
      {"epov.delay_wgrad",
       [](Scenario& s) {
         overlap(s);
         s.options.pipeline.overlaps.delay_wgrad = true;
       },
       [](Scenario& s) { s.options.pipeline.overlaps.delay_wgrad = true; },
       "--delay-wgrad-compute needs --overlap-moe-expert-parallel-comm"},
      {"rc.full", full_recompute,
       [](Scenario& s) {
         full_recompute(s);
         s.options.pipeline.recompute.num_layers = 0;
       },
       "--recompute-num-layers of at least 1, not 0"},
      {"rc.full_mtp",
       [](Scenario& s) {
         full_recompute(s);
         s.model.mtp_num_layers = 1;
       },
       [](Scenario& s) {
         full_recompute(s);
         s.model.mtp_num_layers = 1;
         s.options.pipeline.recompute.num_layers = 2;
       },
       "needs --recompute-num-layers 1 with MTP layers"},
      {"rc.modules", full_recompute, [](Scenario& s) { recompute(s, RecomputeModule::kFull); },
       "--recompute-granularity full"},
      {"rc.moe_act", [](Scenario& s) { recompute(s, RecomputeModule::kMoeAct); },
       [](Scenario& s) {
         recompute(s, RecomputeModule::kMoeAct);
         s.options.layer.software.experts = Experts::kSequential;
       },
       "needs --moe-grouped-gemm"},
      {"rc.mla", [](Scenario& s) { recompute(s, RecomputeModule::kCoreAttn); },
       [](Scenario& s) { recompute(s, RecomputeModule::kMlaUpProj); }, "mixtral-8x7b does not have"},
      {"rc.fp8",
       [](Scenario& s) {
         s.options.layer.precision = Precision::kFp8Current;
         recompute(s, RecomputeModule::kMoeAct);
       },
       [](Scenario& s) {
         s.options.layer.precision = Precision::kFp8Delayed;
         recompute(s, RecomputeModule::kMoeAct);
       },
       "exclude --fp8-recipe delayed"},
      {"rc.cpu_off",
       [](Scenario& s) {
         single_stage(s);
         offload_layers(s, 31);
       },
       [](Scenario& s) {
         single_stage(s);
         offload_layers(s, 32);
       },
       "--cpu-offloading-num-layers 32 must be below --num-layers 32"},
      {"rc.cpu_off_pp",
       [](Scenario& s) {
         single_stage(s);
         offload_layers(s, 4);
       },
       [](Scenario& s) { offload_layers(s, 4); }, "excludes --pipeline-model-parallel-size above 1; it is 4"},
      {"foldwise.cpu_off_overlap",
       [](Scenario& s) {
         single_stage(s);
         offload_layers(s, 4);
       },
       [](Scenario& s) {
         overlap(s);
         single_stage(s);
         offload_layers(s, 4);
       },
       "offloads nothing with --overlap-moe-expert-parallel-comm"},
      {"off.modules", [](Scenario& s) { s.options.layer.offload_modules = {OffloadModule::kCoreAttn}; },
       [](Scenario& s) {
         s.options.layer.offload_modules = {OffloadModule::kCoreAttn};
         s.options.layer.software.transformer_engine = false;
       },
       "needs --transformer-impl transformer_engine"},
      {"off.attn_proj",
       [](Scenario& s) {
         s.options.layer.offload_modules = {OffloadModule::kCoreAttn, OffloadModule::kAttnProj};
       },
       [](Scenario& s) { s.options.layer.offload_modules = {OffloadModule::kAttnProj}; }, "attn_proj needs core_attn"},
      {"off.moe_rc",
       [](Scenario& s) {
         recompute(s, RecomputeModule::kMoe);
         s.options.layer.offload_modules = {OffloadModule::kCoreAttn};
       },
       [](Scenario& s) {
         recompute(s, RecomputeModule::kMoe);
         s.options.layer.offload_modules = {OffloadModule::kExpertFc1};
       },
       "--recompute-modules moe excludes"},
      {"off.fused",
       [](Scenario& s) {
         fused_experts(s);
         s.options.layer.offload_modules = {OffloadModule::kFusedGroupMlp};
       },
       [](Scenario& s) { s.options.layer.offload_modules = {OffloadModule::kFusedGroupMlp}; },
       "needs --use-transformer-engine-op-fuser"},
      {"off.cg_local",
       [](Scenario& s) {
         s.options.layer.offload_modules = {OffloadModule::kExpertFc1};
         graphs(s, GraphImpl::kLocal, {GraphModule::kAttn});
       },
       [](Scenario& s) {
         s.options.layer.offload_modules = {OffloadModule::kCoreAttn};
         graphs(s, GraphImpl::kLocal, {GraphModule::kAttn});
       },
       "--cuda-graph-impl local allows --offload-modules expert_fc1"},
      {"off.cg_warm",
       [](Scenario& s) {
         s.options.layer.offload_modules = {OffloadModule::kExpertFc1};
         graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kAttn});
       },
       [](Scenario& s) {
         s.options.layer.offload_modules = {OffloadModule::kCoreAttn};
         padded_capacity(s);
         graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kMoe});
       },
       "excludes --cuda-graph-modules moe"},
      {"off.optim",
       [](Scenario& s) {
         s.options.step.offload.optimizer_fraction = 1.0;
         s.options.step.optimizer.precision_aware = true;
       },
       [](Scenario& s) { s.options.step.offload.optimizer_fraction = 1.0; },
       "--optimizer-cpu-offload needs --use-precision-aware-optimizer"},
      {"foldwise.offload_states", [](Scenario& s) { s.options.step.offload.optimizer_states = true; },
       [](Scenario& s) {
         s.options.step.offload.optimizer_states = true;
         shard(s);
       },
       "--offload-optimizer-states needs --use-distributed-optimizer and --optimizer adam (it is adam)"},
      {"foldwise.precision_gpu", [](Scenario& s) { s.options.layer.precision = Precision::kFp8Blockwise; },
       [](Scenario& s) { s.options.layer.precision = Precision::kMxfp8; },
       "H100-SXM5-80GB has no support for --fp8-recipe mxfp8"},
      {"q.param_gather",
       [](Scenario& s) {
         s.options.layer.precision = Precision::kFp8Current;
         s.options.step.optimizer.low_precision_param_gather = true;
       },
       [](Scenario& s) { s.options.step.optimizer.low_precision_param_gather = true; }, "(the run uses bf16)"},
      {"dp.opg", [](Scenario& s) { s.options.step.overlaps.dp_param = true; },
       [](Scenario& s) { s.options.step.overlaps.dp_grad = false; },
       "--overlap-param-gather needs --overlap-grad-reduce"},
      {"dp.opg_step", gathers_with_step,
       [](Scenario& s) { s.options.step.overlaps.param_gather_with_optimizer_step = true; }, "above 1 (it is 1)"},
      {"dp.precision_aware",
       [](Scenario& s) {
         s.options.step.optimizer.precision_aware = true;
         s.options.step.optimizer.exp_avg = DataType::kBf16;
       },
       [](Scenario& s) { s.options.step.optimizer.exp_avg = DataType::kBf16; }, "need --use-precision-aware-optimizer"},
      {"dp.delayed_masters",
       [](Scenario& s) {
         s.options.layer.precision = Precision::kFp8Current;
         s.options.step.optimizer.precision_aware = true;
         s.options.step.optimizer.low_precision_param_gather = true;
       },
       [](Scenario& s) {
         s.options.layer.precision = Precision::kFp8Delayed;
         s.options.step.optimizer.precision_aware = true;
         s.options.step.optimizer.low_precision_param_gather = true;
       },
       "stops in the first step"},
      {"dp.fp32_accum",
       [](Scenario& s) {
         s.options.step.optimizer.precision_aware = true;
         s.options.step.optimizer.main_grads = DataType::kBf16;
         s.options.layer.grad_reduce_in_fp32 = false;
       },
       [](Scenario& s) {
         s.options.step.optimizer.precision_aware = true;
         s.options.step.optimizer.main_grads = DataType::kBf16;
       },
       "needs --main-grads-dtype fp32"},
      {"dp.fsdp", [](Scenario& s) { shard(s); },
       [](Scenario& s) {
         shard(s);
         s.options.step.optimizer.kind = OptimizerKind::kMuon;
       },
       "not muon"},
      {"dp.muon_fp16", muon, both(muon, [](Scenario& s) { s.options.layer.precision = Precision::kFp16; }),
       "muon excludes --fp16"},
      {"dp.muon_opg_step", gathers_with_step, both(muon, gathers_with_step),
       "muon excludes --overlap-param-gather-with-optimizer-step"},
      {"dp.muon_instances", two_instances, both(muon, two_instances), "instances 1, not 2"},
      {"dp.sgd",
       [](Scenario& s) {
         s.options.step.optimizer.kind = OptimizerKind::kSgd;
         s.options.step.sharding = Sharding::kDdp;
         s.options.step.overlaps.dp_param = false;
       },
       [](Scenario& s) { s.options.step.optimizer.kind = OptimizerKind::kSgd; }, "sgd excludes"},
      {"foldwise.fsdp_fusion", [](Scenario& s) { shard(s); },
       [](Scenario& s) { s.options.step.sharding = Sharding::kFsdpOptim; }, "stops in the head's backward"},
      {"grid.distopt_instances", two_instances, [](Scenario& s) { s.options.step.optimizer_instances = 16; },
       "--num-distributed-optimizer-instances 16 needs"},
      {"grid.distopt_instances_fsdp",
       [](Scenario& s) {
         shard_in_groups(s, 8);
         s.options.layer.etp = 8;
       },
       [](Scenario& s) {
         shard_in_groups(s, 2);
         s.options.layer.etp = 8;
       },
       "16 FSDP groups (--num-distributed-optimizer-instances) must divide the experts' data parallel 8"},
      {"foldwise.fsdp_group", [](Scenario& s) { shard_in_groups(s, 4); }, [](Scenario& s) { shard_in_groups(s, 3); },
       "an FSDP group of 3 ranks does not divide data parallel 32"},
      {"foldwise.fsdp_pp", [](Scenario& s) { shard(s); },
       [](Scenario& s) {
         s.options.step.sharding = Sharding::kFsdpOptim;
         s.options.layer.software.gradient_accumulation_fusion = false;
       },
       "needs --pipeline-model-parallel-size 1, not 4"},
      {"foldwise.fsdp_group_experts",
       in("0.16.1",
          [](Scenario& s) {
            shard(s);
            s.options.step.fsdp_group = 32;  // One group of all ranks: no HSDP.
          }),
       in("0.16.1",
          [](Scenario& s) {
            shard(s);
            s.options.step.fsdp_group = 16;
          }),
       "need --expert-model-parallel-size 1, not 8"},
      {"foldwise.fsdp_outer",
       [](Scenario& s) {
         shard_in_groups(s, 4);
         s.options.step.fsdp_outer_optim = true;
       },
       [](Scenario& s) {
         shard_in_groups(s, 4);
         s.options.step.sharding = Sharding::kFsdpOptimGrads;
         s.options.step.fsdp_outer_optim = true;
       },
       "needs --data-parallel-sharding-strategy optim_grads_params"},
      {"dp.tpovl", [](Scenario& s) { s.options.layer.overlaps.tp = true; },
       [](Scenario& s) {
         s.options.layer.overlaps.tp = true;
         s.options.layer.tp = 1;
         s.options.step.dp = 16;
       },
       "--tp-comm-overlap needs --sequence-parallel"},
      {"foldwise.tpovl_domain", [](Scenario& s) { s.options.layer.overlaps.tp = true; },
       [](Scenario& s) {
         s.options.layer.overlaps.tp = true;
         s.hardware.network.ranks_per_domain = 1;
       },
       "needs --tensor-model-parallel-size within one NVLink domain of 1"},
      {"dp.tpovl_precision",
       [](Scenario& s) {
         s.options.layer.overlaps.tp = true;
         s.options.layer.precision = Precision::kFp8Current;
       },
       [](Scenario& s) {
         s.options.layer.overlaps.tp = true;
         s.options.layer.precision = Precision::kFp8Blockwise;
       },
       "exclude each other: Transformer Engine's user buffers"},
      {"cg.full_mods",
       [](Scenario& s) {
         padded_capacity(s);
         graphs(s, GraphImpl::kFullIteration, {});
       },
       [](Scenario& s) { graphs(s, GraphImpl::kFullIteration, {GraphModule::kAttn}); },
       "takes no --cuda-graph-modules"},
      {"cg.full_rc",
       [](Scenario& s) {
         full_recompute(s);
         padded_capacity(s);
         graphs(s, GraphImpl::kFullIteration, {});
       },
       [](Scenario& s) {
         full_recompute(s);
         graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kAttn});
       },
       "excludes --cuda-graph-impl transformer_engine"},
      {"cg.dropout",
       [](Scenario& s) {
         dense(s);
         graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kAttn});
         s.options.layer.attention_dropout = 0.1;
       },
       [](Scenario& s) {
         dense(s);
         graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kAttn});
         s.options.layer.attention_dropout = 0.1;
         recompute(s, RecomputeModule::kCoreAttn);
       },
       "takes no dropout: --attention-dropout 0.1"},
      {"cg.dense",
       [](Scenario& s) {
         dense(s);
         graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kMlp});
       },
       [](Scenario& s) {
         dense(s);
         graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kMoeRouter});
       },
       "need experts"},
      {"cg.moe",
       [](Scenario& s) {
         graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kMoeRouter, GraphModule::kMoePreprocess});
       },
       [](Scenario& s) { graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kMoePreprocess}); },
       "moe_preprocess needs moe_router"},
      {"cg.rc_moe",
       [](Scenario& s) {
         recompute(s, RecomputeModule::kMoe);
         graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kAttn});
       },
       [](Scenario& s) {
         recompute(s, RecomputeModule::kMoe);
         graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kMoeRouter});
       },
       "moe_router excludes --recompute-modules moe"},
      {"cg.mlp",
       [](Scenario& s) {
         s.model.layers[0].mlp = MlpKind::kDense;
         graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kMlp});
       },
       [](Scenario& s) { graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kMlp}); },
       "every layer of mixtral-8x7b is a MoE layer"},
      {"foldwise.graph_whole_moe_layer",
       [](Scenario& s) {
         graphs(s, GraphImpl::kLocal, {});
         padded_capacity(s);
       },
       [](Scenario& s) { graphs(s, GraphImpl::kLocal, {}); }, "--cuda-graph-impl local without --cuda-graph-modules"},
      {"foldwise.graph_full_iteration_moe",
       [](Scenario& s) {
         graphs(s, GraphImpl::kFullIteration, {});
         padded_capacity(s);
       },
       [](Scenario& s) { graphs(s, GraphImpl::kFullIteration, {}); }, "full_iteration needs experts of fixed shapes"},

      // ---- Rules of some releases ----
      {"grid.etp_without_ep", in("0.19.0", whole_experts_beside_tp), in("0.18.2", whole_experts_beside_tp),
       "with --expert-model-parallel-size 1 must be --tensor-model-parallel-size"},
      {"attn.gdn_cp", in("0.18.2", gated_delta_net_over_ranks), in("0.17.1", gated_delta_net_over_ranks),
       "take no context parallelism before Megatron-Core 0.18: --context-parallel-size is 2"},
      {"attn.dsa_cp", in("0.19.0", sparse_attention_over_ranks), in("0.18.2", sparse_attention_over_ranks),
       "before Megatron-Core 0.19: --context-parallel-size is 2"},
      {"pp.hybrid_vpp", in("0.17.1", hybrid_interleaved), in("0.16.1", hybrid_interleaved),
       "no virtual stages in Megatron-Core 0.16: --num-virtual-stages-per-pipeline-rank is 2"},
      {"moe.shared_overlap_flex", in("0.17.1", shared_expert),
       in("0.17.1",
          [](Scenario& s) {
            shared_expert(s);
            deep_ep(s);
          }),
       "needs --moe-token-dispatcher-type alltoall before Megatron-Core 0.18, not deepep"},
      {"moe.allgather_permute", in("0.17.1", gathered_and_permuted), in("0.16.1", gathered_and_permuted),
       "--moe-permute-fusion with --moe-token-dispatcher-type allgather"},
      {"rc.fused_moe_act",
       in("0.18.2",
          [](Scenario& s) {
            fused_experts(s);
            recompute(s, RecomputeModule::kCoreAttn);
          }),
       in("0.18.2",
          [](Scenario& s) {
            fused_experts(s);
            recompute(s, RecomputeModule::kMoeAct);
          }),
       "--recompute-modules moe_act beside fused experts"},
      {"epov.mtp_pp", in("0.18.2", overlap_with_mtp), in("0.17.1", overlap_with_mtp),
       "with --mtp-num-layers needs --pipeline-model-parallel-size above 1"},
      {"epov.cg_impl",
       in("0.17.1",
          [](Scenario& s) {
            overlap(s);
            graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kAttn});
          }),
       in("0.17.1",
          [](Scenario& s) {
            overlap(s);
            graphs(s, GraphImpl::kLocal, {GraphModule::kAttn});
          }),
       "takes Transformer Engine's graphs only before Megatron-Core 0.18, not local"},
      {"epov.fsdp_release", in("0.18.2", overlap_sharded), in("0.17.1", overlap_sharded),
       "with --use-megatron-fsdp is in Megatron-Core since 0.18"},
      {"epov.fsdp_graphs", in("0.18.2", overlap_sharded),
       in("0.18.2",
          [](Scenario& s) {
            overlap_sharded(s);
            graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kAttn});
          }),
       "takes no graphs but of the full iteration, not transformer_engine"},
      {"dp.muon_expert_bias", in("0.17.1", muon_with_expert_biases), in("0.18.2", muon_with_expert_biases),
       "leaves biases of experts to Adam"},
      {"off.fused_release", in("0.19.0", offload_fused), in("0.18.2", offload_fused),
       "fused_group_mlp is in Megatron-Core since 0.19"},
      {"off.fp8_qkv", in("0.19.0", offload_qkv_in_fp8), in("0.18.2", offload_qkv_in_fp8),
       "qkv_linear takes the quantised weights for activations in --fp8-recipe tensorwise"},
      {"off.cg_local_release", in("0.19.0", offload_beside_local_graphs), in("0.18.2", offload_beside_local_graphs),
       "--cuda-graph-impl local is in Megatron-Core since 0.19"},
      {"off.optim_states",
       in("0.16.1",
          [](Scenario& s) {
            s.options.step.offload.optimizer_fraction = 1.0;
            s.options.step.optimizer.precision_aware = true;
          }),
       in("0.16.1",
          [](Scenario& s) {
            s.options.step.offload.optimizer_fraction = 1.0;
            s.options.step.optimizer.precision_aware = true;
            s.options.step.optimizer.exp_avg = DataType::kBf16;
          }),
       "keeps states in fp32 whatever --exp-avg-dtype"},
      {"dp.fsdp_outer_fp8", in("0.17.1", shard_fp8_twice), in("0.16.1", shard_fp8_twice),
       "with --fp8-param-gather is not implemented"},
      {"dp.muon_release", in("0.17.1", muon), in("0.16.1", muon), "muon excludes --overlap-grad-reduce"},
      {"dp.muon_ddp", in("0.18.2", unsharded_muon), in("0.17.1", unsharded_muon),
       "without --use-distributed-optimizer in Megatron-Core 0.17"},
      {"dp.opg_step_mxfp8", in("0.19.0", gathers_mxfp8_with_step),
       in("0.19.0",
          [](Scenario& s) {
            gathers_mxfp8_with_step(s);
            s.options.step.optimizer.reuse_grad_buffer = true;
          }),
       "excludes --reuse-grad-buf-for-mxfp8-param-ag"},
      {"cg.local_moe_layer",
       in("0.16.1",
          [](Scenario& s) {
            padded_capacity(s);
            graphs(s, GraphImpl::kLocal, {GraphModule::kAttn});
          }),
       in("0.16.1", [](Scenario& s) { graphs(s, GraphImpl::kLocal, {GraphModule::kAttn}); }),
       "captures whole layers where"},
      {"cg.full_moe",
       in("0.18.2",
          [](Scenario& s) {
            padded_capacity(s);
            graphs(s, GraphImpl::kFullIteration, {});
          }),
       in("0.18.2",
          [](Scenario& s) {
            hybrid_ep(s);
            graphs(s, GraphImpl::kFullIteration, {});
          }),
       "(experts: grouped, dispatcher: hybridep)"},

      // ---- Rules of libraries, in every release ----
      {"moe.deepep_sizes", deep_ep,
       [](Scenario& s) {
         deep_ep(s);
         s.model.hidden_size = 8192;  // 2 bytes each plus 8 exceed 16 KiB.
       },
       "--expert-model-parallel-size 8 x --expert-tensor-parallel-size 1 ranks and tokens of 8192 values"},
      {"moe.hybridep_sizes", hybrid_ep,
       [](Scenario& s) {
         hybrid_ep(s);
         s.model.hidden_size = 4104;
       },
       "a multiple of 16 values (they have 4104)"},
      {"moe.hybridep_tokens",
       [](Scenario& s) {
         hybrid_ep(s);
         s.hardware.network.ranks_per_domain = 4;
         s.options.layer.seq_len = 43'688;  // With TP2: 21,844, and 3 * 21,844 + 1 = 65,533 < 2^16.
       },
       [](Scenario& s) {
         hybrid_ep(s);
         s.hardware.network.ranks_per_domain = 4;
         s.options.layer.seq_len = 43'690;
       },
       "HybridEP takes 21844 tokens a rank beyond one NVLink domain"},
      {"moe.rank_cap", rank_capacity,
       [](Scenario& s) {
         rank_capacity(s);
         s.options.layer.dispatcher = Dispatcher::kAllToAll;
       },
       "hybridep (it is alltoall)"},
      {"moe.paged_stash",
       [](Scenario& s) {
         rank_capacity(s);
         s.options.layer.paged_stash = true;
       },
       [](Scenario& s) { s.options.layer.paged_stash = true; }, "--moe-paged-stash needs"},
      {"moe.fused_widths", fused_experts,
       [](Scenario& s) {
         fused_experts(s);
         s.model.moe.ffn_hidden_size = 14336 + 32;
       },
       "--moe-ffn-hidden-size is 14368"},
      {"off.fsdp", [](Scenario& s) { shard(s); },
       [](Scenario& s) {
         shard(s);
         s.options.layer.offload_modules = {OffloadModule::kCoreAttn};
       },
       "gives gradients that are no numbers"},
      {"foldwise.fsdp_group_one", [](Scenario& s) { shard_in_groups(s, 2); },
       [](Scenario& s) { shard_in_groups(s, 1); }, "an FSDP group of one rank shards nothing"},

      // ---- Rules about measured choices ----
      {"evidence.experts", only_mixtral_was_run,
       [](Scenario& s) {
         only_mixtral_was_run(s);
         s.options.layer.dispatcher = Dispatcher::kAllGather;
       },
       "no measured run on hopper has all of: precision bf16, context none, experts grouped, dispatcher allgather "
       "(--evidence any "
       "allows it)"},
      {"foldwise.hybridep_place", hybrid_ep,
       both(hybrid_ep, [](Scenario& s) { s.hardware.network.ranks_per_domain = 12; }), "they must divide its 12"},
      {"foldwise.epov_hybrid", overlap, both(overlap, hybrid), "has no schedule plan"},
      {"foldwise.epov_fp4", in("0.19.0", overlap), in("0.19.0", both(overlap, nvfp4)), "multiplies in BF16"},
      {"foldwise.recompute_hybrid", in("0.18.2", recompute_hybrid), in("0.17.1", recompute_hybrid),
       "recomputes nothing before Megatron-Core 0.18"},
      {"foldwise.layer_offload_hybrid", in("0.19.0", both(single_stage, [](Scenario& s) { offload_layers(s, 8); })),
       in("0.19.0", both(both(single_stage, hybrid), [](Scenario& s) { offload_layers(s, 8); })),
       "--cpu-offloading-num-layers offloads nothing"},
      {"foldwise.offload_hybrid", in("0.18.2", offload_hybrid), in("0.17.1", offload_hybrid),
       "--offload-modules offloads nothing"},
      {"foldwise.local_layers",
       in("0.19.0",
          [](Scenario& s) {
            s.options.layer.software.transformer_engine = false;
            s.options.layer.tp = 1;
            s.options.step.dp = 16;
          }),
       in("0.19.0", [](Scenario& s) { s.options.layer.software.transformer_engine = false; }),
       "no RMSNorm with --sequence-parallel"},
      {"foldwise.quantised_widths", [](Scenario& s) { s.options.layer.precision = Precision::kFp8Current; },
       [](Scenario& s) {
         s.options.layer.precision = Precision::kFp8Current;
         s.model.moe.ffn_hidden_size = 14344;
       },
       "need widths of a multiple of 16; with --tensor-model-parallel-size 2 and --expert-tensor-parallel-size 1 a "
       "rank "
       "has one of 14344"},
      {"foldwise.quantised_rows",
       [](Scenario& s) {
         s.options.layer.precision = Precision::kFp8Current;
         s.options.layer.seq_len = 4112;
       },
       [](Scenario& s) {
         s.options.layer.precision = Precision::kFp8Current;
         s.options.layer.seq_len = 4100;
       },
       "need rows of a multiple of 8; --seq-length 4100 x --micro-batch-size 1 over --context-parallel-size 1 and "
       "--sequence-parallel are 2050"},
      {"foldwise.fp4_hybrid", in("0.17.1", nvfp4_hybrid), in("0.16.1", nvfp4_hybrid), "multiplies in BF16 before"},
      {"foldwise.opg_step_experts", in("0.19.0", gathers_mxfp8_with_step),
       in("0.19.0", both(gathers_mxfp8_with_step, [](Scenario& s) { s.options.layer.etp = 1; })),
       "2 ranks that have the same ones train on stale copies"},
      {"foldwise.fsdp_fp4", both(shard, nvfp4),
       both(both(shard, nvfp4), [](Scenario& s) { s.options.step.optimizer.low_precision_param_gather = true; }),
       "has no buffers for weights in FP4"},
      {"foldwise.tpovl_mla", in("0.19.0", [](Scenario& s) { s.options.layer.overlaps.tp = true; }),
       in("0.19.0",
          [](Scenario& s) {
            s.options.layer.overlaps.tp = true;
            s.model.mixers.emplace_back(MlaSpec{.heads = 32});
          }),
       "is switched off by multi-latent attention"},
      {"foldwise.yarn_graphs", in("0.18.2", yarn_in_graphs), in("0.19.0", yarn_in_graphs),
       "captures attention without positions"},
      {"foldwise.graph_opg_step", in("0.19.0", whole_graph),
       in("0.19.0", both(whole_graph,
                         [](Scenario& s) {
                           s.options.pipeline.vpp = 2;
                           s.options.step.overlaps.param_gather_with_optimizer_step = true;
                         })),
       "would wait in the graph for a gather"},
      {"foldwise.graph_fp16", in("0.19.0", whole_graph),
       in("0.19.0", both(whole_graph, [](Scenario& s) { s.options.layer.precision = Precision::kFp16; })),
       "keeps the loss scale of its capture"},
      {"evidence.graphs", only_mixtral_was_run,
       [](Scenario& s) {
         only_mixtral_was_run(s);
         graphs(s, GraphImpl::kTransformerEngine, {GraphModule::kAttn});
       },
       "dispatcher alltoall, graphs transformer_engine ("},
      {"evidence.pipeline", only_mixtral_was_run,
       [](Scenario& s) {
         only_mixtral_was_run(s);
         s.options.pipeline.vpp = 2;
       },
       "graphs none, pipeline interleaved, EP overlap no ("},
      {"evidence.step", only_mixtral_was_run,
       [](Scenario& s) {
         only_mixtral_was_run(s);
         shard(s);
       },
       "sharding fsdp ("},
      {"evidence.offload", only_mixtral_was_run,
       [](Scenario& s) {
         only_mixtral_was_run(s);
         s.options.layer.offload_modules = {OffloadModule::kCoreAttn};
       },
       "offload activations ("},
  };
}  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): of functions in a list, which a vector takes; a false alarm.

std::string joined(const std::vector<Rejection>& rejections) {
  std::string text;
  for (const Rejection& rejection : rejections) text += std::string(rejection.rule) + ": " + rejection.reason + "\n";
  return text;
}

// Does every rule accept what is just allowed, reject what is just not, and say why with the user's numbers?
TEST(Rules, EachAcceptsAndRejects) {
  std::set<std::string> seen;
  for (const Case& example : cases()) {
    SCOPED_TRACE(example.rule);
    seen.insert(example.rule);
    Scenario accepted = mixtral(), rejected = mixtral();
    example.accepted(accepted);
    example.rejected(rejected);
    EXPECT_THAT(accepted.violated(), testing::IsEmpty()) << joined(violations(accepted.problem(), accepted.options));
    const std::vector<Rejection> found = violations(rejected.problem(), rejected.options);
    const auto rejection =
        std::find_if(found.begin(), found.end(), [&](const Rejection& r) { return r.rule == example.rule; });
    ASSERT_NE(rejection, found.end()) << joined(found);
    EXPECT_THAT(rejection->reason, testing::HasSubstr(example.reason));
  }
  for (const Rule& rule : rules()) EXPECT_TRUE(seen.contains(std::string(rule.id))) << "no case for " << rule.id;
  EXPECT_EQ(seen.size(), rules().size());
}

// More cases for rules with several parts.
TEST(Rules, RejectEveryPartOfACompoundRule) {
  const std::vector<std::pair<const char*, Change>> more{
      {"epov.recompute",
       [](Scenario& s) {
         overlap(s);
         full_recompute(s);
       }},
      {"rc.cpu_off_pp", [](Scenario& s) { s.options.pipeline.cpu_offloading_num_layers = 4; }},  // PP4.
      {"rc.cpu_off",
       [](Scenario& s) {
         single_stage(s);
         recompute(s, RecomputeModule::kMlp);
         s.options.pipeline.cpu_offloading_num_layers = 4;
       }},
      {"rc.cpu_off",
       [](Scenario& s) {
         single_stage(s);
         offload_layers(s, 4);
         padded_capacity(s);
         graphs(s, GraphImpl::kFullIteration, {});
       }},
      {"cg.moe",
       [](Scenario& s) {
         s.options.layer.capacity_factor = 1.0;  // Drops tokens, but does not pad.
         graphs(s, GraphImpl::kLocal, {GraphModule::kMoe});
       }},
      {"cg.moe",
       [](Scenario& s) {
         padded_capacity(s);
         graphs(s, GraphImpl::kLocal, {GraphModule::kMoe, GraphModule::kMoeRouter});
       }},
      {"off.fused",
       [](Scenario& s) {
         fused_experts(s);
         s.options.layer.offload_modules = {OffloadModule::kFusedGroupMlp, OffloadModule::kMoeAct};
       }},
      {"off.optim",
       [](Scenario& s) {
         s.options.layer.precision = Precision::kFp8Current;
         s.options.step.offload.optimizer_fraction = 0.5;
         s.options.step.optimizer.precision_aware = true;
         s.options.step.optimizer.low_precision_param_gather = true;
       }},
      {"foldwise.offload_states",
       [](Scenario& s) {
         s.options.step.offload.optimizer_states = true;
         s.options.step.optimizer.kind = OptimizerKind::kSgd;
       }},
      {"foldwise.offload_states",
       [](Scenario& s) {
         s.options.step.offload.optimizer_states = true;
         s.options.step.offload.optimizer_fraction = 0.5;
         s.options.step.optimizer.precision_aware = true;
       }},
      {"dp.precision_aware",
       [](Scenario& s) {
         s.options.step.optimizer.precision_aware = true;
         s.options.step.optimizer.kind = OptimizerKind::kSgd;
       }},
      {"dp.precision_aware",
       [](Scenario& s) {
         s.options.step.optimizer.precision_aware = true;
         s.options.step.sharding = Sharding::kDdp;
       }},
      {"dp.opg", [](Scenario& s) { s.options.step.sharding = Sharding::kDdp; }},
      {"pp.group_range",
       [](Scenario& s) {
         s.options.pipeline.vpp = 2;
         s.options.pipeline.global_batch = 16;  // Two micro-batches for four stages.
       }},
      {"moe.shared_overlap_disp",
       [](Scenario& s) {
         s.model.moe.shared_ffn_hidden_size = 14336;
         s.options.layer.overlaps.shared_expert = true;
         s.model.moe.latent_size = 1024;
       }},
      {"moe.deepep_sizes",
       [](Scenario& s) {
         deep_ep(s);
         s.options.layer.etp = 3;  // 24 ranks.
       }},
      {"moe.deepep_sizes",
       [](Scenario& s) {
         deep_ep(s);
         s.options.layer.etp = 2;  // 16 ranks: more than one machine.
         s.model.hidden_size = 4096 + 128;
       }},
      {"moe.hybridep_sizes",
       [](Scenario& s) {
         hybrid_ep(s);
         s.hardware.network.ranks_per_domain = 3;  // Does not divide EP 8.
       }},
      {"moe.hybridep_sizes",
       [](Scenario& s) {
         hybrid_ep(s);
         s.hardware.network.ranks_per_domain = 2;  // 2 experts per domain.
       }},
      {"moe.rank_cap",
       [](Scenario& s) {
         rank_capacity(s);
         s.options.layer.software.experts = Experts::kGrouped;
       }},
      {"moe.paged_stash",
       [](Scenario& s) {
         rank_capacity(s);
         s.options.layer.paged_stash = true;
         s.options.layer.offload_modules = {OffloadModule::kFusedGroupMlp};
       }},
      {"moe.fused_widths",
       [](Scenario& s) {
         fused_experts(s);
         s.model.moe.latent_size = 96;
       }},
      {"cg.local_moe_layer", in("0.19.0",
                                [](Scenario& s) {
                                  padded_capacity(s);
                                  graphs(s, GraphImpl::kLocal, {GraphModule::kMoeRouter});  // Has no effect in a GPT.
                                })},
      {"cg.full_moe", in("main",
                         [](Scenario& s) {
                           padded_capacity(s);
                           s.options.layer.dispatcher = Dispatcher::kAllGather;  // Waits for counts, too.
                           graphs(s, GraphImpl::kFullIteration, {});
                         })},
      {"off.optim_states", in("main",
                              [](Scenario& s) {
                                s.options.step.offload.optimizer_fraction = 0.5;
                                s.options.step.optimizer.exp_avg_sq = DataType::kBf16;
                              })},
      {"dp.opg",
       [](Scenario& s) {
         unsharded_muon(s);
         s.options.step.overlaps.dp_param = true;
       }},
      {"attn.mamba_tp",
       [](Scenario& s) {
         mamba(s);
         s.options.layer.precision = Precision::kFp8Current;
         mixer<MambaSpec>(s).heads = 72;  // 2 * 72 * 64 + 2 * 8 * 128 + 72 = 11336 = 16 * 708.5
       }},
  };
  for (const auto& [rule, change] : more) {
    Scenario setup = mixtral();
    change(setup);
    EXPECT_THAT(setup.violated(), testing::Contains(rule));
  }
}

// Do layouts that people train with pass?
TEST(Rules, AcceptPublishedLayouts) {
  std::vector<std::pair<std::string, Scenario>> published{{"mixtral", mixtral()}, {"deepseek gb200", deepseek()}};

  // DeepSeek-V3 on 1,024 H100: TP2 PP8 VPP4 EP64, layout of Megatron-Bridge, GBS 16384, FP8 blockwise, DeepEP.
  Scenario h100_run = deepseek();
  h100_run.hardware = h100();
  h100_run.num_gpus = 1024;
  h100_run.options.set_layout({.tp = 2, .dp = 64, .pp = 8, .vpp = 4, .ep = 64});
  h100_run.options.pipeline.global_batch = 16384;
  h100_run.options.layer.precision = Precision::kFp8Blockwise;
  h100_run.options.layer.dispatcher = Dispatcher::kDeepEp;
  h100_run.options.pipeline.layout = "Et|(tt|)*30mL";
  h100_run.options.layer.recompute.modules = {RecomputeModule::kMlaUpProj, RecomputeModule::kMlp};
  h100_run.options.layer.cuda_graph = {};
  published.emplace_back("deepseek h100", h100_run);

  // The same with hidden all-to-all, on 16 stages with a separate MTP stage.
  Scenario overlapped = h100_run;
  overlapped.options.set_layout({.tp = 1, .dp = 64, .pp = 16, .vpp = 2, .ep = 64});
  overlapped.options.pipeline.layout = "Et*3|(tt|)*29,m|L";
  overlapped.options.pipeline.overlaps.ep_a2a = true;
  overlapped.options.pipeline.overlaps.delay_wgrad = true;
  published.emplace_back("deepseek overlapped", overlapped);

  // Qwen3-235B on 256 GB200: 94 layers, TP1 PP8 VPP3 leaves a remainder, so a layout string.
  Scenario qwen = mixtral();
  qwen.model.name = "qwen3-235b-a22b";
  qwen.model.layers.resize(94, qwen.model.layers.front());
  qwen.model.mixers = {GqaSpec{.heads = 64, .query_groups = 4, .head_dim = 128, .qk_layernorm = true}};
  qwen.model.moe = {.experts = 128, .topk = 8, .ffn_hidden_size = 1536};
  qwen.hardware = gb200();
  qwen.num_gpus = 256;
  qwen.options.set_layout({.dp = 32, .pp = 8, .vpp = 3, .ep = 32});
  qwen.options.pipeline.global_batch = 8192;
  qwen.options.layer.precision = Precision::kMxfp8;
  qwen.options.pipeline.layout = "Et*3|(t*4|)*22t*3L";
  published.emplace_back("qwen3", qwen);

  for (const auto& [name, setup] : published) {
    EXPECT_THAT(setup.violated(), testing::IsEmpty()) << name << "\n"
                                                      << joined(violations(setup.problem(), setup.options));
  }
}

// Do the three ways of asking agree, for any options?
RC_GTEST_PROP(Rules, AgreeOnTheFirstViolation, ()) {
  Scenario s = mixtral();
  const auto size = rc::gen::inRange<std::int64_t>(0, 9);
  s.options.set_layout({.tp = *size, .cp = *size, .dp = *size, .pp = *size, .vpp = *size, .ep = *size, .etp = *size});
  s.options.pipeline.global_batch = *rc::gen::inRange<std::int64_t>(0, 200);
  s.options.pipeline.overlaps.ep_a2a = *rc::gen::arbitrary<bool>();
  s.options.layer.precision = *rc::gen::element(Precision::kBf16, Precision::kFp8Delayed, Precision::kNvfp4);
  s.num_gpus = s.options.layout().world();
  const auto index = first_violated(s.problem(), s.options);
  const auto first = first_violation(s.problem(), s.options);
  const auto all = violations(s.problem(), s.options);
  RC_ASSERT(index.has_value() == first.has_value());
  RC_ASSERT(index.has_value() == !all.empty());
  if (!index) return;
  RC_ASSERT(rules()[*index].id == first->rule);
  RC_ASSERT(all.front().rule == first->rule);
  RC_ASSERT(all.front().reason == first->reason);
  RC_ASSERT(rules()[*index].violation(s.problem(), s.options) == first->reason);
}

// Is every rule of the collection, a part of one of these (its id, an underscore and what it is about), or documented
// with the release and the file that it was read in? And is every check of the collection accounted for?
TEST(Rules, AreThoseOfMegatronAndAreDocumented) {
  std::ifstream file(FW_GOLDEN_DIR "/constraints.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  std::set<std::string> known;
  for (const nlohmann::json& constraint : golden.at("constraints")) known.insert(constraint.at("id"));
  std::ifstream document(FW_GOLDEN_DIR "/../../docs/rules.md");
  const std::string text{std::istreambuf_iterator<char>(document), {}};
  std::set<std::string> ids;
  for (const Rule& rule : rules()) {
    const std::string id(rule.id);
    EXPECT_TRUE(ids.insert(id).second) << id << " twice";
    const std::size_t at = text.find("| `" + id + "` |");
    EXPECT_NE(at, std::string::npos) << id;
    if (at == std::string::npos) continue;
    const std::string row = text.substr(at, text.find('\n', at) - at);
    if (!id.starts_with("foldwise.") && !id.starts_with("evidence.") && !known.contains(id) &&
        !known.contains(id.substr(0, id.rfind('_')))) {
      EXPECT_THAT(row, testing::ContainsRegex("(core_v0|DeepEP|Transformer Engine).*:[0-9]+")) << id;
    }
    // A rule of some releases names them.
    if (rule.releases.named) {
      EXPECT_THAT(row, testing::ContainsRegex("0\\.1[6-9]|all releases")) << id;
    }
    EXPECT_TRUE(rule.flags.starts_with("--")) << id;
  }
  EXPECT_THAT(text, testing::HasSubstr("| `foldwise.release` |"));
  for (const std::string& id : known) EXPECT_THAT(text, testing::HasSubstr("`" + id + "`"));
}

}  // namespace
}  // namespace foldwise::planner::rules_test
