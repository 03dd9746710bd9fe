#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "costmodel/config/plain_text.h"
#include "planner/launch/complete.h"
#include "planner/launch/geometry.h"
#include "planner/launch/import.h"
#include "planner/launch/model_arguments.h"
#include "planner/launch/older_arguments.h"
#include "planner/launch/quote.h"
#include "planner/launch/usage.h"
#include "planner/models/models.h"
#include "tests/program_test.h"

namespace foldwise::planner::launch_parts_test {
namespace {

using config::Diagnostics;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ShownCalls : public FolderTest {};

// Is a call found in the ways that comments and pages write it, with its variables, and not where a script is only
// spoken of?
TEST_F(ShownCalls, AreFoundAsPeopleWriteThem) {
  (void)write_text("README.md", "Run run.sh with 3 arguments, or `run.sh 4`.\n\n    TP=2 \\\n    ./run.sh 7B 'a b'\n");
  const std::vector<ShownCall> calls = shown_calls(
      "#!/bin/bash\n# sh run.sh dsw 1e-5 \"\" \\\n#   8 # the batch\n#bash scripts/run.sh dsw 13B | tee log\n"
      "# sh other.sh 3\n# run.sh 5\nbash run.sh not-a-comment\n#sh run.sh\n# $ bash run.sh dsw 13B\n",
      path(""), "run.sh");
  ASSERT_EQ(calls.size(), 3U);
  EXPECT_THAT(calls[0].arguments, ElementsAre("dsw", "1e-5", "", "8"));
  EXPECT_EQ(calls[0].where, "line 2");
  EXPECT_THAT(calls[1].arguments, ElementsAre("dsw", "13B"));
  EXPECT_THAT(calls[2].arguments, ElementsAre("7B", "a b"));
  EXPECT_EQ(calls[2].variables.at("TP"), "2");
  EXPECT_EQ(calls[2].where, "README.md, line 3");
  EXPECT_THAT(shown_calls("torchrun run.py\n", "", "run.sh"), IsEmpty());
}

// Has a call the variables that its block of a page exports before it, and no other block's?
TEST_F(ShownCalls, HaveWhatTheirBlockExports) {
  (void)write_text("README.md", "```bash\ncd /a\nexport FIRST=5\nsh run.sh dsw\n```\n```bash\nsh run.sh dlc\n```\n");
  const std::vector<ShownCall> calls = shown_calls("", path(""), "run.sh");
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0].variables, (std::map<std::string, std::string>{{"FIRST", "5"}}));
  EXPECT_THAT(calls[1].variables, IsEmpty());
}

// Is a placeholder in quotes a text, without one that is an argument's value becoming another?
TEST(Placeholders, BecomeTexts) {
  std::set<std::string> found;
  EXPECT_EQ(with_placeholders("W=\"<some dir>\"\nT=<TOKEN>\nS=\"--tokens <image> <img>\"\n", found),
            "W=\"some-dir\"\nT='<TOKEN>'\nS=\"--tokens <image> <img>\"\n");
  EXPECT_THAT(found, ElementsAre("<TOKEN>", "<some dir>"));
  EXPECT_EQ(with_placeholders("P=<Specify path>\nV=<Specify path>/v.json\nD=<file prefix>_text\n", found),
            "P='<Specify path>'\nV='<Specify path>'/v.json\nD='<file prefix>'_text\n");
}

/// The settings that build a built-in model, without its vocabulary.
Settings sizes_of(const std::string& model) {
  Diagnostics unsaid;
  Settings settings = settings_of_model(load_model(model), newest_release(), unsaid);
  settings.erase("vocab_size");
  settings.erase("tokenizer_type");
  return settings;
}

// Is the size of a vocabulary that no argument says that of its tokenizer, by type and by path, or of the model whose
// other sizes these are; and none where no one knows it?
TEST(Vocabulary, IsThatOfTheTokenizerOrTheModel) {
  const auto size = [](Settings settings) {
    std::vector<std::string> notes;
    add_vocabulary(settings, notes);
    EXPECT_EQ(notes.empty(), !settings.has("vocab_size"));
    return settings.integer("vocab_size", 0);
  };
  Settings small;
  small.set("num_layers", 7);
  EXPECT_EQ(size(small), 0);
  small.set("tokenizer_model", "someone/new-tokenizer");
  EXPECT_EQ(size(small), 0);
  small.set("tokenizer_model", "/data/Qwen/Qwen3-8B-Base/tokenizer.json");
  EXPECT_EQ(size(small), 151936);
  small.set("tokenizer_model", "/mnt/Baichuan2-7B-Base-to-mcore");
  EXPECT_EQ(size(small), 125696);
  small.set("tokenizer_model", "nvidia/OpenMath2-Llama3.1-8B");
  EXPECT_EQ(size(small), 128256);
  small.set("tokenizer_type", "GPT2BPETokenizer");
  EXPECT_EQ(size(small), 50257);
  small.set("tokenizer_type", "Llama2Tokenizer");
  small.set("tokenizer_model", "/data/tokenizer.model");
  EXPECT_EQ(size(small), 32000);
  small.set("tokenizer_model", "/data/llm-jp-tokenizer-100k.ver3.0b1.model");  // Another vocabulary of that type.
  EXPECT_EQ(size(small), 0);
  EXPECT_EQ(size(sizes_of("deepseek-v3")), 129280);
  Settings other = sizes_of("deepseek-v3");
  other.set("num_layers", 12);
  EXPECT_EQ(size(other), 0);
}

// Are layers of another program's what its function makes, by the size of the model; and named where they are not
// known?
TEST(LayersOfOtherPrograms, AreReadAsTheirFunctionMakesThem) {
  Settings settings = sizes_of("qwen3.5-4b");
  for (const char* dest : {"experimental_attention_variant", "linear_attention_freq", "linear_num_key_heads",
                           "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"})
    settings.erase(dest);
  settings.set("vocab_size", 248320);
  settings.set("spec", json{"slime_plugins.models.qwen3_5", "get_qwen3_5_spec"});
  Settings other = settings;
  std::vector<std::string> notes;
  complete_layers(settings, notes);
  EXPECT_THAT(notes, ElementsAre(HasSubstr("gated delta nets")));
  Diagnostics diagnostics;
  EXPECT_EQ(model_of(settings, "launch.sh", diagnostics), "qwen3.5-4b");
  notes.clear();
  other.set("num_layers", 31);
  complete_layers(other, notes);
  EXPECT_THAT(notes, ElementsAre(HasSubstr("its layers are not read")));
  EXPECT_FALSE(other.has("linear_num_value_heads"));
}

// Are a hybrid's bars stages and its slashes depths of multi-token prediction, as Megatron has them?
TEST(Patterns, AreTakenApart) {
  const auto taken = [](const std::string& pattern, std::int64_t ranks, Diagnostics& diagnostics) {
    Settings settings;
    settings.set("hybrid_layer_pattern", pattern);
    settings.set("pipeline_model_parallel_size", ranks);
    complete_pattern(settings, "launch.sh", diagnostics);
    return settings;
  };
  Diagnostics none;
  const Settings settings = taken("M-M*|M-ME|M-M*|M-ME/*E/*E", 2, none);
  EXPECT_TRUE(none.ok());
  EXPECT_EQ(settings.text("hybrid_layer_pattern"), "M-M*M-MEM-M*M-ME");
  EXPECT_EQ(settings.integer("num_virtual_stages_per_pipeline_rank", 1), 2);
  EXPECT_EQ(settings.integer("mtp_num_layers", 0), 2);
  EXPECT_EQ(settings.text("mtp_hybrid_override_pattern"), "*E");
  for (const auto& [pattern, message] :
       std::map<std::string, std::string>{{"M-|M-|M-", "no multiple of --pipeline-model-parallel-size 2"},
                                          {"M-M|M", "stages of a hybrid with different numbers of layers"},
                                          {"M-M*/*E/M", "expected the same layers behind every /"}}) {
    Diagnostics mistakes;
    (void)taken(pattern, 2, mistakes);
    ASSERT_FALSE(mistakes.ok()) << pattern;
    EXPECT_THAT(mistakes.list().front().message, HasSubstr(message));
  }
}

// Is a batch that a schedule ends with the batch, and a decoder's length the length?
TEST(Batches, AreThoseOfTheEnd) {
  Settings settings;
  settings.set("step_batch_size_schedule", "0:16 2.4B:320");
  settings.set("seq_length", 576);
  settings.set("decoder_seq_length", 2048);
  std::vector<std::string> notes;
  complete_batch(settings, notes);
  EXPECT_EQ(settings.integer("global_batch_size", 0), 320);
  EXPECT_EQ(settings.integer("seq_length", 0), 2048);
  EXPECT_THAT(notes, ElementsAre(HasSubstr("--decoder-seq-length 2048")));
}

/// Why an import of a small start with more arguments is refused; empty: it is not.
std::string refusal_of(const std::string& more) {
  ImportRequest request;
  request.system = "h100-sxm-80gb";
  request.sandbox = false;
  try {
    (void)import_launch(
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8 "
        "--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --bf16 --vocab-size 32000 " +
            more,
        "launch.sh", request);
    return "";
  } catch (const config::ConfigError& error) {
    return error.what();
  }
}

// Is an argument refused that Megatron still parses and no longer takes, as recomputation was once asked for?
TEST(RemovedArguments, AreRefused) {
  EXPECT_EQ(refusal_of(""), "");
  EXPECT_THAT(refusal_of("--checkpoint-activations"), HasSubstr("give --recompute-activations"));
  EXPECT_THAT(refusal_of("--model-parallel-size 2"), HasSubstr("give --tensor-model-parallel-size"));
  EXPECT_THAT(refusal_of("--batch-size 4"), HasSubstr("give --micro-batch-size"));
}

// Are ModelOpt's arguments known, of which some change what is priced?
TEST(ModelOpt, HasKnownArguments) {
  Diagnostics diagnostics;
  std::vector<Argument> unknown;
  const std::vector<Argument> arguments = {{.flag = "--finetune-hf-dataset", .values = {"a/b"}, .line = 1},
                                           {.flag = "--export-quant-cfg", .values = {"NVFP4"}, .line = 2},
                                           {.flag = "--qad-train-target", .values = {"mtp"}, .line = 3}};
  (void)parse_arguments(arguments, "launch.sh", newest_release(), diagnostics, unknown);
  EXPECT_THAT(unknown, IsEmpty());
  EXPECT_THAT(not_modelled(arguments, "finetune.py", "launch.sh", diagnostics).notes,
              ElementsAre(HasSubstr("line 3: --qad-train-target: frozen")));
  EXPECT_TRUE(not_modelled({{.flag = "--qad-train-target", .values = {"both"}, .line = 3}}, "finetune.py", "launch.sh",
                           diagnostics)
                  .notes.empty());
}

// Is what is not modelled said with its line, or refused where nothing can be planned, by a flag as by the program?
TEST(NotModelled, IsSaidOrRefused) {
  Diagnostics diagnostics;
  const NotModelled said = not_modelled({{.flag = "--fp32-residual-connection", .values = {}, .line = 4}},
                                        "pretrain_gpt.py", "launch.sh", diagnostics);
  EXPECT_THAT(said.notes, ElementsAre(HasSubstr("line 4: --fp32-residual-connection:")));
  EXPECT_TRUE(diagnostics.ok());
  (void)not_modelled({}, "pretrain_t5.py", "launch.sh", diagnostics);
  ASSERT_EQ(diagnostics.list().size(), 1U);
  EXPECT_THAT(diagnostics.list().front().message, HasSubstr("is not modelled"));
}

// ---- Logs -------------------------------------------------------------------------------------------------------

std::string with(std::string text, const std::string& old, const std::string& now) {
  for (std::size_t at = 0; (at = text.find(old, at)) != std::string::npos; at += now.size())
    text.replace(at, old.size(), now);
  return text;
}

std::string log_text() { return contents(std::string(FW_LAUNCHES_DIR) + "/qwen_log.txt"); }

/// The log with a member of the Namespace set.
std::string log_with(const std::string& member, const std::string& value) {
  std::string log = log_text();
  if (const std::size_t at = log.find("0:   " + member + " ."); at != std::string::npos)
    log.erase(at, log.find('\n', at) + 1 - at);
  return with(log, "0:   accumulate_", "0:   " + member + " ...... " + value + "\n0:   accumulate_");
}

Imported imported(const std::string& log, std::int64_t start = 0) {
  ImportRequest request;
  request.start = start;
  request.sandbox = false;
  return import_launch(log, "train.log", request);
}

/// The global batch, TP, step time and peak memory of an import.
std::string measured_in(const Imported& run) {
  const json measured = run.json.value("measured", json::object());
  return fmt::format("{} {} {:.3f} {:.1f}", run.json.value("global_batch", 0), run.json.value("tp", 0),
                     measured.value("step_time_s", 0.0), measured.value("peak_memory_gib", 0.0));
}

/// The note on a log whose router was free.
const auto uneven_loads = HasSubstr("loads of the log's EP ranks");

// Are arguments, iterations, memory and GPU of one start, where a log has several? It is the last whose arguments are
// complete and which has iterations, or the one that is asked for.
TEST(Logs, AreReadOfOneStart) {
  std::string second = with(log_text(), "global_batch_size ............................... 256",
                            "global_batch_size ............................... 512");
  second = with(with(second, "global batch size:   256", "global batch size:   512"), "(ms): 5", "(ms): 10");
  second = with(with(second, "max allocated: 52", "max allocated: 31"), "H100 80GB HBM3", "H200");
  const std::string both = log_text() + second, arguments = second.substr(0, second.find("31:  ["));
  EXPECT_EQ(measured_in(imported(log_text())), "256 2 5.399 50.9");
  EXPECT_THAT(imported(log_text()).notes, ElementsAre(uneven_loads));
  for (const auto& [log, start] : {std::pair{both, 0},
                                   {both + arguments, 0},
                                   {both, 2},
                                   {both + arguments.substr(0, arguments.find("0:   micro_batch_size")), 0}}) {
    const Imported run = imported(log, start);
    EXPECT_EQ(measured_in(run), "512 2 10.397 30.4") << run.json.dump(1);
    EXPECT_EQ(run.json.at("system"), "h200");
    EXPECT_THAT(run.notes, ElementsAre(HasSubstr("starts; this is the 2. of them, at line "), uneven_loads));
  }
  EXPECT_EQ(measured_in(imported(both, 1)), "256 2 5.399 50.9");
  EXPECT_EQ(imported(both, 1).json.at("system"), "h100-sxm-80gb");
  EXPECT_EQ(measured_in(imported(both + arguments, 3)), "512 2 0.000 0.0");
  EXPECT_THROW((void)imported(both, 3), config::ConfigError);
}

// Are iterations with another batch than the arguments' left out, and is there no step if none remains?
TEST(Logs, MeasureTheBatchOfTheirArguments) {
  const std::string log = with(log_text(), "global batch size:   256", "global batch size:   128");
  const Imported run = imported(log);
  EXPECT_EQ(measured_in(run), "256 2 0.000 0.0");
  EXPECT_THAT(run.notes, ElementsAre("no step is measured: the log has no iteration with the run's global batch 256: "
                                     "the last has 128"));
  EXPECT_THAT(run.left_out, testing::Contains("4 iterations: another global batch than the run's 256: 10 (global batch "
                                              "128), 15 (global batch 128), 20 (global batch 128), ..."));
  const std::string raised = log + log_text().substr(log_text().find("31:  ["));
  EXPECT_EQ(measured_in(imported(raised)), "256 2 5.399 50.9");
}

// Is a cause that many iterations have said once, with their number?
TEST(Logs, CountWhatTheyLeaveOut) {
  std::string log = log_text();
  const std::size_t at = log.find("31:  [2026-08-01 10:00:28]");
  const std::string line = log.substr(at, log.find('\n', at) + 1 - at);
  for (int i = 0; i < 300; ++i) log += i % 3 == 0 ? with(line, "5401.2", "8100.0") : line;
  EXPECT_THAT(imported(log).left_out,
              ElementsAre("iteration 5: the first that is logged", "iteration 25: skipped a step",
                          "101 iterations: more than 20 % from the median of 5.401 s: 20 (8.977 s), 10 (8.1 s), 10 "
                          "(8.1 s), ..."));
}

// Is the vocabulary that Megatron prints read, where no argument has its size; else that of the tokenizer's path?
TEST(Logs, HaveTheVocabularyThatMegatronPrints) {
  const auto log = [](const std::string& path, const std::string& line) {
    std::string text =
        with(log_with("vocab_size", "None"), "0:   padded_vocab_size ............................... 152064\n",
             "0:   tokenizer_model ...... " + path + "\n0:   make_vocab_size_divisible_by ...... 128\n");
    return with(text, "0: > number of GPUs", line + "0: > number of GPUs");
  };
  const std::string printed = "0:  > padded vocab (size: 151643) with 165 dummy tokens (new size: 151808)\n";
  const auto size = [](const Imported& run) { return run.run.model.vocab_size; };
  EXPECT_EQ(size(imported(log("/data/ours", printed))), 151643);
  EXPECT_EQ(size(imported(log("/data/Qwen/Qwen3-8B", ""))), 151936);
}

// Are members and choices of releases before those that are known read as what took their place, in a log as in a
// command?
TEST(OlderArguments, AreReadAsWhatTookTheirPlace) {
  const Imported fsdp =
      imported(with(log_with("use_custom_fsdp", "True"), "0:   accumulate_",
                    "0:   data_parallel_sharding_strategy ...... optim_grads_params\n0:   accumulate_"));
  EXPECT_EQ(fsdp.json.at("sharding"), "fsdp");
  EXPECT_THAT(fsdp.notes, ElementsAre(HasSubstr("--use-custom-fsdp: until Megatron-Core 0.13"), uneven_loads));
  const Imported tokens = imported(log_with("moe_token_dispatcher_type", "alltoall_seq"));
  EXPECT_EQ(tokens.json.at("dispatcher"), "alltoall");
  EXPECT_THAT(tokens.notes, ElementsAre(HasSubstr("--moe-token-dispatcher-type alltoall_seq: until"), uneven_loads));

  std::vector<Argument> arguments = {{.flag = "--use-custom-fsdp", .values = {}, .line = 2},
                                     {.flag = "--ckpt-format", .values = {"zarr"}, .line = 3}};
  std::vector<std::string> notes;
  modernize(arguments, nullptr, notes);
  EXPECT_EQ(arguments[0].flag, "--use-megatron-fsdp");
  EXPECT_THAT(arguments[1].values, ElementsAre("fsdp_dtensor"));
  EXPECT_EQ(notes.size(), 1U);
  arguments = {{.flag = "--ckpt-format", .values = {"zarr"}, .line = 3}};
  modernize(arguments, &newest_release(), notes);  // Which refuses it.
  EXPECT_THAT(arguments[0].values, ElementsAre("zarr"));
  modernize(arguments, nullptr, notes);
  EXPECT_THAT(arguments[0].values, ElementsAre("torch_dist"));
  EXPECT_EQ(refusal_of("--use-custom-fsdp --data-parallel-sharding-strategy optim_grads_params "
                       "--use-distributed-optimizer --no-gradient-accumulation-fusion"),
            "");
}

// Are colours and Windows' line ends no part of a log's or an argument list's values?
TEST(Texts, AreReadWithoutColoursAndCarriageReturns) {
  EXPECT_EQ(config::plain_text("\x1b[1;32mTrue\x1b[0m\r\n\x1b]0;title\x07 a\x1b(Bb\x1b"), "True\n ab");
  EXPECT_EQ(config::plain_text("a\rb\n\x1b[1\n\x1b]open\nc"), "a\rb\n[1\n]open\nc");
  const Imported plain = imported(log_text());
  for (const std::string& log :
       {with(log_text(), "\n", "\r\n"), with(with(log_text(), "\n", "\x1b[0m\n"), "0:  ", "\x1b[32m0:  ")}) {
    const Imported run = imported(log);
    EXPECT_EQ(run.json, plain.json);
    EXPECT_EQ(run.left_out, plain.left_out);
  }
  EXPECT_EQ(refusal_of("\\\r\n --swiglu\r\n"), "");
}

}  // namespace
}  // namespace foldwise::planner::launch_parts_test
