#include "planner/launch/frontend.h"

#include <gmock/gmock.h>

#include <iterator>
#include <map>
#include <sstream>
#include <string>

#include "planner/launch/dump.h"
#include "planner/launch/start_words.h"

// Programs around Megatron: planner/launch/frontends and bridge_recipes.json.
namespace foldwise::planner::frontend_test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Started started(const std::string& words) {
  std::istringstream in(words);
  return {.words = {std::istream_iterator<std::string>(in), {}}, .around = 0, .environment = {}};
}

/// A start of a front end. Empty if it is none.
Translated read(const std::string& words) { return translated(started(words), {}).value_or(Translated()); }

/// The first value of each flag; empty if it takes none.
std::map<std::string, std::string> flags_in(const Translated& read) {
  std::map<std::string, std::string> result;
  for (const Argument& argument : read.arguments)
    result[argument.flag] = argument.values.empty() ? "" : argument.values.front();
  return result;
}

// Has Megatron-SWIFT the linears of its adapters, what a host's optimizer takes and a rollout's length; and is said
// what of other losses and heads is left out?
TEST(MegatronSwift, SaysWhatItsTasksAre) {
  const std::string swift = "megatron rlhf --model Qwen/Qwen3-8B --max_length 1000 ";
  const Translated grpo = read(swift +
                               "--rlhf_type grpo --max_completion_length 8192 --tuner_type lora "
                               "--target_modules linear_qkv linear_proj");
  EXPECT_EQ(flags_in(grpo).at("--seq-length"), "9192");
  EXPECT_EQ(grpo.fields["lora"]["target_modules"], (nlohmann::json{"linear_qkv", "linear_proj"}));
  EXPECT_THAT(grpo.notes, Contains(HasSubstr("rlhf_type grpo: the generation of rollouts")));
  EXPECT_EQ(flags_in(read(swift + "--rlhf_type grpo")).at("--seq-length"), "1512");
  const Translated dpo = read(swift +
                              "--rlhf_type dpo --optimizer_cpu_offload true --optimizer_offload_fraction 0.4 "
                              "--tuner_type lora --target_modules all-linear");
  EXPECT_EQ(flags_in(dpo).at("--seq-length"), "1000");
  EXPECT_EQ(flags_in(dpo).at("--optimizer-offload-fraction"), "0.4");
  EXPECT_FALSE(dpo.fields["lora"].contains("target_modules"));
  EXPECT_THAT(dpo.notes, Contains(HasSubstr("rlhf_type dpo: a sample is")));
  EXPECT_THAT(read("megatron sft --model Qwen/Qwen3-8B --task_type seq_cls").notes,
              Contains(HasSubstr("task_type seq_cls: the head")));
}

// Does Pai-Megatron-Patch's vocabulary come from its tokenizer and what is added to it, or from the checkpoint; and are
// its own names Megatron's?
TEST(PaiMegatronPatch, IsReadInMegatronsNames) {
  const auto flags = [](const std::string& more) {
    const Translated front_end = read("torchrun --nproc_per_node 8 pretrain_llama.py --num-layers 32 " + more);
    EXPECT_EQ(front_end.front_end, more.empty() ? "" : "Pai-Megatron-Patch");
    return flags_in(front_end);
  };
  EXPECT_THAT(flags(""), testing::IsEmpty());
  const auto llama = flags(
      "--patch-tokenizer-type LLama3Tokenizer --extra-vocab-size 256 --n-head-kv 8 "
      "--intermediate-size 14336 --position-embedding-type rotary");
  EXPECT_EQ(llama.at("--vocab-size"), "128256");
  EXPECT_EQ(llama.at("--num-query-groups"), "8");
  EXPECT_TRUE(llama.contains("--group-query-attention"));
  EXPECT_EQ(llama.at("--ffn-hidden-size"), "14336");
  EXPECT_EQ(llama.at("--position-embedding-type"), "rope");
  EXPECT_EQ(flags("--extra-vocab-size 467 --patch-tokenizer-type DeepSeekV2Tokenizer").at("--vocab-size"), "129280");
  EXPECT_EQ(flags("--extra-vocab-size 85 --patch-tokenizer-type QwenTokenizer").at("--vocab-size"), "151936");
  const auto baichuan = flags("--extra-vocab-size 0 --patch-tokenizer-type BaichuanTokenizer --load /a/Baichuan2-7B");
  EXPECT_FALSE(baichuan.contains("--vocab-size"));
  EXPECT_EQ(baichuan.at("--tokenizer-model"), "/a/Baichuan2-7B");
}

// Is a hybrid whose layers are halves of Qwen3-Next's that model, and not Mamba's?
TEST(PaiMegatronPatch, HasLayersOfQwen3Next) {
  const Translated next = read(
      "torchrun --nproc_per_node 8 pretrain_qwen3_next.py --num-layers 96 --hidden-size 2048 --num-experts 512 "
      "--hybrid-override-pattern M-M-M-*- --is-hybrid-model --mamba-num-heads 32 --patch-tokenizer-type "
      "Qwen3Tokenizer");
  const auto flags = flags_in(next);
  EXPECT_EQ(flags.at("--num-layers"), "48");
  EXPECT_EQ(flags.at("--experimental-attention-variant"), "gated_delta_net");
  EXPECT_TRUE(flags.contains("--moe-shared-expert-gate"));
  EXPECT_FALSE(flags.contains("--hybrid-override-pattern"));
  EXPECT_FALSE(flags.contains("--mamba-num-heads"));
}

// Do layers that slime names reach what reads them, and is its fork's LoRA read?
TEST(Slime, NamesLayersAndLora) {
  const Translated layers =
      read("python3 train.py --actor-num-nodes 4 --num-layers 48 --spec slime_plugins.models.x get_x_spec");
  const auto spec = std::ranges::find(layers.arguments, "--spec", &Argument::flag);
  ASSERT_NE(spec, layers.arguments.end());
  EXPECT_THAT(spec->values, ElementsAre("slime_plugins.models.x", "get_x_spec"));
  EXPECT_EQ(read("python3 train.py --actor-num-nodes 1 --num-layers 36 --lora-rank 32").fields,
            nlohmann::json({{"task", "lora"}, {"lora", {{"dim", 32}}}}));
}

// Are packed micro-batches counted: 256 sequences of up to 8,192 tokens on 4 ranks are 64 x 8192 / 9216 = 57 each; are
// they a multiple of the stages where these are virtual; and does nothing pack without its switch?
TEST(Slime, PacksSequencesIntoMicroBatches) {
  const std::string start =
      "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --num-layers 36 --rollout-batch-size 32 "
      "--n-samples-per-prompt 8 --rollout-max-response-len 8192 --max-tokens-per-gpu 9216 ";
  const Translated packed = read(start + "--use-dynamic-batch-size --tensor-model-parallel-size 2");
  EXPECT_EQ(flags_in(packed).at("--seq-length"), "9216");
  EXPECT_EQ(flags_in(packed).at("--global-batch-size"), "228");
  EXPECT_THAT(packed.notes, Contains(HasSubstr("256 sequences of up to 8192 tokens are 228 of them")));
  const auto staged = flags_in(read(start + "--use-dynamic-batch-size --pipeline-model-parallel-size 4 "
                                            "--num-virtual-stages-per-pipeline-rank 3"));
  EXPECT_EQ(staged.at("--global-batch-size"), "232");  // 114 of each rank become 116.
  const Translated plain = read(start + "--micro-batch-size 2");
  EXPECT_EQ(flags_in(plain).at("--seq-length"), "8192");
  EXPECT_EQ(flags_in(plain).at("--micro-batch-size"), "2");
  EXPECT_EQ(flags_in(plain).at("--global-batch-size"), "256");
}

// Are verl's values those of its own configuration and of mbridge: experts in one kernel, no fused accumulation of
// gradients, packing only where it is switched on; and are its lists of hydra and its types read?
TEST(Verl, HasValuesOfItsOwn) {
  const std::string start =
      "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.strategy=megatron "
      "actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B actor_rollout_ref.rollout.n=16 ";
  const Translated plain = read(start);
  EXPECT_EQ(plain.num_gpus, 8);
  const auto flags = flags_in(plain);
  EXPECT_TRUE(flags.contains("--moe-grouped-gemm"));
  EXPECT_TRUE(flags.contains("--no-gradient-accumulation-fusion"));
  EXPECT_EQ(flags.at("--seq-length"), "1024");
  EXPECT_EQ(flags.at("--global-batch-size"), "4096");
  EXPECT_FALSE(flags.contains("--mtp-num-layers"));
  EXPECT_THAT(plain.notes, Contains(HasSubstr("not given, so as verl has it")));
  const std::string actor = "actor_rollout_ref.actor.";
  EXPECT_EQ(flags_in(read(start + actor + "ppo_max_token_len_per_gpu=9000")).at("--seq-length"), "1024");
  EXPECT_EQ(flags_in(read(start + actor + "use_dynamic_bsz=True " + actor + "ppo_max_token_len_per_gpu=9000"))
                .at("--seq-length"),
            "9000");
  const Translated more =
      read(start + actor + "megatron.override_transformer_config.recompute_modules=[core_attn,moe] " + actor +
           "megatron.dtype=float16 " + actor +
           "megatron.override_ddp_config.grad_reduce_in_fp32=False "
           "actor_rollout_ref.model.mtp.enable=True");
  const auto modules = std::ranges::find(more.arguments, "--recompute-modules", &Argument::flag);
  ASSERT_NE(modules, more.arguments.end());
  EXPECT_THAT(modules->values, ElementsAre("core_attn", "moe"));
  EXPECT_TRUE(flags_in(more).contains("--fp16"));
  EXPECT_FALSE(flags_in(more).contains("--bf16"));
  EXPECT_TRUE(flags_in(more).contains("--grad-reduce-in-bf16"));
  EXPECT_EQ(flags_in(more).at("--mtp-num-layers"), "1");
}

// Is verl's SFT with Megatron read, and are programs that train without Megatron known as such?
TEST(Verl, TrainsAlsoBySft) {
  const std::string start =
      "torchrun --nproc-per-node=8 -m verl.trainer.sft_trainer model.path=Qwen/Qwen3-8B data.train_batch_size=96 "
      "data.max_length=32768 data.max_token_len_per_gpu=65536 engine.tensor_model_parallel_size=4 ";
  const Translated sft = read(start + "engine=megatron");
  EXPECT_EQ(sft.model, "Qwen/Qwen3-8B");
  EXPECT_EQ(sft.fields.value("task", ""), "sft");
  EXPECT_EQ(flags_in(sft).at("--tensor-model-parallel-size"), "4");
  EXPECT_EQ(flags_in(sft).at("--seq-length"), "65536");
  EXPECT_EQ(other_trainer(started(start + "engine=megatron")), "");
  EXPECT_EQ(read(start + "engine=fsdp").front_end, "");
  EXPECT_THAT(other_trainer(started(start + "engine=fsdp")), HasSubstr("verl"));
  EXPECT_THAT(other_trainer(started("swift sft --model Qwen/Qwen3-8B --bf16 true")), HasSubstr("megatron sft"));
  EXPECT_EQ(other_trainer(started("megatron sft --model Qwen/Qwen3-8B --bf16 true")), "");
}

// Does a recipe of Megatron-Bridge set what the command does not, by its own name, an older one or the words of
// scripts/performance; do the command's values win, and take with them what would contradict them?
TEST(MegatronBridge, TakesWhatTheRecipeSets) {
  const std::string start = "torchrun --nproc-per-node 8 scripts/training/run_recipe.py ";
  const Translated plain = read(start + "--recipe llama3_70b_pretrain_32gpu_h100_bf16_config");
  EXPECT_EQ(plain.model, "llama3_70b");
  EXPECT_THAT(plain.notes, Contains(HasSubstr("as in the recipe llama3_70b_pretrain_32gpu_h100_bf16_config")));
  for (const auto& [flag, value] : std::map<std::string, std::string>{{"--tensor-model-parallel-size", "4"},
                                                                      {"--pipeline-model-parallel-size", "4"},
                                                                      {"--num-virtual-stages-per-pipeline-rank", "5"},
                                                                      {"--context-parallel-size", "2"},
                                                                      {"--global-batch-size", "512"},
                                                                      {"--seq-length", "8192"}})
    EXPECT_EQ(flags_in(plain).at(flag), value) << flag;
  EXPECT_FALSE(flags_in(plain).contains("--grad-reduce-in-bf16"));
  EXPECT_EQ(flags_in(read(start + "--recipe llama3_70b_pretrain_config")), flags_in(plain));
  const auto changed = flags_in(read(start + "--recipe llama3_70b_pretrain_config -tp 8 -sl 4096 -mb 2 "
                                             "model.context_parallel_size=1 model.recompute_num_layers=2"));
  EXPECT_EQ(changed.at("--tensor-model-parallel-size"), "8");
  EXPECT_EQ(changed.at("--pipeline-model-parallel-size"), "4");
  EXPECT_EQ(changed.at("--seq-length"), "4096");
  EXPECT_EQ(changed.at("--micro-batch-size"), "2");
  EXPECT_EQ(changed.at("--context-parallel-size"), "1");

  const std::string perf =
      "python scripts/performance/setup_experiment.py -mr deepseek_v3 -g gb200 -gn 4 --task pretrain ";
  const auto deepseek = flags_in(read(perf + "-ng 256 --compute_dtype fp8_mx"));
  EXPECT_TRUE(deepseek.contains("--pipeline-model-parallel-layout"));
  EXPECT_EQ(deepseek.at("--expert-model-parallel-size"), "64");
  EXPECT_EQ(deepseek.at("--fp8-recipe"), "mxfp8");
  const auto stages = flags_in(read(perf + "-ng 256 --compute_dtype fp8_mx -pp 8"));
  EXPECT_FALSE(stages.contains("--pipeline-model-parallel-layout"));
  EXPECT_EQ(stages.at("--num-virtual-stages-per-pipeline-rank"), "4");
  // With half of the GPUs the batch is half as large; 4,096 are those of 256.
  const auto fewer = flags_in(read(perf + "-ng 128 --compute_dtype fp8_mx"));
  EXPECT_EQ(fewer.at("--expert-model-parallel-size"), "64");
  EXPECT_EQ(fewer.at("--global-batch-size"), "2048");

  const Translated lora = read(start + "--recipe llama3_8b_peft_config");
  EXPECT_EQ(lora.fields, nlohmann::json({{"task", "lora"}, {"lora", {{"dim", 8}}}}));
  const Translated unknown = read(start + "--recipe my_own_recipe");
  EXPECT_THAT(unknown.notes, Contains(HasSubstr("no recipe of that name is known")));
  EXPECT_THAT(unknown.notes, Not(Contains(HasSubstr("as in the recipe"))));
}

// Does a recipe's row have what it sets by functions of its own: Kimi-K2's optimizer, sharded by layers, and its
// layout; what Bridge names otherwise; and what counts only when the command changes something else?
TEST(MegatronBridge, TakesWhatFunctionsOfTheRecipeSet) {
  const std::string start = "torchrun --nproc-per-node 8 scripts/training/run_recipe.py --recipe ";
  const auto has = [&](const std::string& words, const std::map<std::string, std::string>& expected) {
    const auto flags = flags_in(read(start + words));
    for (const auto& [flag, value] : expected) {
      ASSERT_TRUE(flags.contains(flag)) << words << " " << flag;
      EXPECT_EQ(flags.at(flag), value) << words << " " << flag;
    }
  };
  has("kimi_k2_pretrain_config", {{"--optimizer", "dist_muon"},
                                  {"--use-distributed-optimizer", ""},
                                  {"--pipeline-model-parallel-layout",
                                   "Etttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tttt|tL"}});
  EXPECT_FALSE(flags_in(read(start + "kimi_k2_pretrain_config")).contains("--overlap-param-gather"));
  has("glm_45v_sft_128gpu_h100_bf16_config",
      {{"--pipeline-model-parallel-layout", "Et|ttttttt|ttttttt|ttttttt|ttttttt|ttttttt|ttttttt|tttL"}});
  has("deepseek_v4_flash_pretrain_32gpu_h100_bf16_config",
      {{"--pipeline-model-parallel-layout", "Ettttttttttt|ttttttttttt|ttttttttttt|ttttttttttmL"}});
  has("glm45_355b_pretrain_config",
      {{"--decoder-first-pipeline-num-layers", "10"}, {"--decoder-last-pipeline-num-layers", "10"}});
  EXPECT_FALSE(flags_in(read(start + "glm45_355b_pretrain_config -pp 1"))
                   .contains("--decoder-first-pipeline-num-layers"));  // One stage has all layers.
  has("nemotron_3_super_pretrain_config", {{"--mtp-use-repeated-layer", ""}, {"--moe-expert-capacity-factor", "1.1"}});
  has("glm52_pretrain_192gpu_gb200_bf16_config", {{"--microbatch-group-size-per-virtual-pipeline-stage", "6"}});
  has("gpt_oss_20b_pretrain_config model.context_parallel_size=2", {{"--cp-comm-type", "a2a"}});
  has("llama3_8b_pretrain_2gpu_h100_nvfp4_config", {{"--fp4-format", "e2m1"}});
  // DeepEP and HybridEP switch the shared expert's overlap off.
  EXPECT_FALSE(
      flags_in(read(start + "deepseek_v3_pretrain_256gpu_b200_fp8mx_config")).contains("--moe-shared-expert-overlap"));
  // What only a field says, and what nothing says.
  EXPECT_EQ(read(start + "deepseek_v3_pretrain_256gpu_b300_fp8mx_config").fields.value("fp8_attention", false), true);
  EXPECT_THAT(read(start + "nemotron_3_super_pretrain_64gpu_b200_nvfp4_config").notes,
              Contains(HasSubstr("not read, although the recipe sets it: quant_recipe")));
}

// Is a name of both packages that of scripts/performance, and its alias the library's?
TEST(MegatronBridge, HasTwoRecipesOfSomeNames) {
  const std::string start = "torchrun --nproc-per-node 8 scripts/training/run_recipe.py --recipe ";
  EXPECT_THAT(read(start + "deepseek_v3_pretrain_1024gpu_h100_bf16_config").notes,
              Contains(HasSubstr("deepseek_v3_pretrain_1024gpu_h100_bf16_config (perf_recipes/")));
  EXPECT_THAT(read(start + "deepseek_v3_pretrain_config").notes,
              Contains(HasSubstr("recipe deepseek_v3_pretrain_1024gpu_h100_bf16_config (recipes/")));
}

// Does scripts/performance take its own recipes alone: for another number of GPUs the default one, its batch scaled
// with the ranks and its optimizer precision-aware in bf16; the named one unchanged; and none where it has none?
TEST(MegatronBridge, TakesPerformanceRecipesForOtherNumbersOfGpus) {
  const auto perf = [](const std::string& words) {
    return read("python scripts/performance/setup_experiment.py -g h100 " + words);
  };
  const Translated other = perf("-m llama -mr llama3_8b -ng 16 -c bf16");
  EXPECT_THAT(other.notes, Contains(HasSubstr("llama3_8b_pretrain_8gpu_h100_bf16_config (perf_recipes/")));
  auto flags = flags_in(other);
  EXPECT_EQ(flags.at("--global-batch-size"), "256");
  EXPECT_EQ(flags.at("--context-parallel-size"), "2");
  for (const char* flag :
       {"--grad-reduce-in-bf16", "--no-check-for-nan-in-loss-and-grad", "--use-precision-aware-optimizer"})
    EXPECT_TRUE(flags.contains(flag)) << flag;
  EXPECT_EQ(flags_in(perf("-mr llama3_8b -ng 16")), flags);  // Pretraining in bf16 is the default.
  EXPECT_EQ(flags_in(perf("-mr llama3_8b -ng 16 -gb 96")).at("--global-batch-size"), "96");

  flags = flags_in(perf("-mr llama3_8b -ng 8"));
  EXPECT_EQ(flags.at("--global-batch-size"), "128");
  EXPECT_FALSE(flags.contains("--use-precision-aware-optimizer"));
  EXPECT_EQ(flags_in(perf("-mr llama3_8b -ng 8 -cp 1")).at("--global-batch-size"), "128");

  flags = flags_in(perf("-mr llama3_70b -ng 128"));
  EXPECT_EQ(flags.at("--global-batch-size"), "512");  // 256 on 64 GPUs.
  EXPECT_TRUE(flags.contains("--overlap-param-gather-with-optimizer-step"));
  // The precision's details are the recipe's.
  EXPECT_TRUE(flags_in(perf("-mr llama3_8b -ng 16 -c fp8_cs")).contains("--fp8-param-gather"));
  EXPECT_FALSE(flags_in(perf("-mr llama3_8b -ng 16 -c fp8_cs")).contains("--use-precision-aware-optimizer"));

  EXPECT_THAT(perf("-mr qwen3_8b -ng 8").notes, Contains(HasSubstr("no recipe of that name is known")));
  EXPECT_THAT(perf("-mr qwen3_8b -ng 8 --use_recipes").notes,
              Contains(HasSubstr("as in the recipe qwen3_8b_pretrain")));
}

// Does a backend that is null leave the dispatcher that is given, or the all-to-all one; and does an option without a
// value change none that is given?
TEST(MegatronBridge, LeavesTheGivenDispatcherWithoutABackend) {
  const std::string start = "torchrun scripts/training/run_recipe.py --recipe qwen3_30b_a3b_pretrain_config ";
  const std::string type = "--moe-token-dispatcher-type", backend = "--moe-flex-dispatcher-backend";
  for (const char* none : {"null", "None", "none"}) {
    const std::string words = std::string("model.moe_flex_dispatcher_backend=") + none;
    for (const char* given :
         {"", " model.moe_token_dispatcher_type=alltoall", " model.moe_token_dispatcher_type=flex"}) {
      const auto flags = flags_in(read(start + words + given));
      EXPECT_EQ(flags.at(type), "alltoall") << words << given;
      EXPECT_FALSE(flags.contains(backend)) << words << given;
    }
  }
  EXPECT_EQ(flags_in(read(start + "model.moe_token_dispatcher_type=alltoall")).at(type), "alltoall");
  const std::string perf = "python scripts/performance/setup_experiment.py -mr deepseek_v3 -g gb200 -ng 256 -c fp8_mx ";
  EXPECT_EQ(flags_in(read(perf + "--moe_flex_dispatcher_backend None")).at(type), "alltoall");
  EXPECT_EQ(flags_in(read(perf + "--moe_flex_dispatcher_backend deepep")).at(backend), "deepep");
  config::Diagnostics diagnostics;
  const auto yaml = read_bridge_overrides(
      "model:\n  moe_token_dispatcher_type: alltoall\n  moe_flex_dispatcher_backend: null\n  recompute_num_layers: "
      "null\n",
      "x.yaml", "nemotron-3-nano-30b-a3b", diagnostics);
  ASSERT_TRUE(yaml && diagnostics.ok());
  const auto flags = flags_in(translated({.words = yaml->words, .around = 0, .environment = {}}, {}).value());
  EXPECT_EQ(flags.at(type), "alltoall");
  EXPECT_FALSE(flags.contains("--recompute-method"));
  const auto uniform = flags_in(read(start + "model.recompute_granularity=full model.recompute_method=uniform "
                                             "model.recompute_num_layers=1"));
  EXPECT_EQ(uniform.at("--recompute-method"), "uniform");
}

// Are overrides in a YAML those of the named model's recipe, and is a configuration with sizes none?
TEST(MegatronBridge, ReadsOverridesInYaml) {
  config::Diagnostics diagnostics;
  const std::string yaml =
      "model:\n  tensor_model_parallel_size: 8\n  recompute_modules: [moe, core_attn]\n"
      "mixed_precision: bf16_with_fp8_current_scaling_mixed\ntrain:\n  global_batch_size: 64\n";
  const auto command = read_bridge_overrides(yaml, "x.yaml", "llama3-70b", diagnostics);
  ASSERT_TRUE(command && diagnostics.ok());
  EXPECT_EQ(command->lines.at("train.global_batch_size"), 6);
  const Translated overrides = translated({.words = command->words, .around = 0, .environment = {}}, {}).value();
  const auto flags = flags_in(overrides);
  EXPECT_EQ(flags.at("--tensor-model-parallel-size"), "8");
  EXPECT_EQ(flags.at("--pipeline-model-parallel-size"), "4");  // The recipe's.
  EXPECT_EQ(flags.at("--global-batch-size"), "64");
  EXPECT_EQ(flags.at("--fp8-recipe"), "tensorwise");
  EXPECT_EQ(flags.at("--recompute-granularity"), "selective");
  EXPECT_FALSE(read_bridge_overrides("model:\n  num_layers: 2\n  hidden_size: 8\n", "x.yaml", "", diagnostics));
  EXPECT_TRUE(diagnostics.ok());
  (void)read_bridge_overrides(yaml, "x.yaml", "", diagnostics);
  EXPECT_FALSE(diagnostics.ok());
}

// Is a switch that a configuration of arguments sets to false left out, also by a variable?
TEST(ConfigurationsOfArguments, LeaveOutWhatIsFalse) {
  config::Diagnostics diagnostics;
  const auto test = read_test_case("MODEL_ARGS:\n  --finetune: false\n  --moe-grouped-gemm: ${G}\n  --bf16: true\n",
                                   "x.yaml", {{"G", "false"}}, diagnostics);
  ASSERT_TRUE(test && diagnostics.ok());
  ASSERT_EQ(test->arguments.size(), 1U);
  EXPECT_EQ(test->arguments.front().flag, "--bf16");
}

// Is a list of one value a layer one word for Megatron, a Python list?
TEST(Primus, GivesAListOfLayers) {
  const auto flags = flags_in(read("primus train pretrain --model x --window_attn_skip_freq 1 0 1"));
  EXPECT_EQ(flags.at("--window-attn-skip-freq"), "[1,0,1]");
}

}  // namespace
}  // namespace foldwise::planner::frontend_test
