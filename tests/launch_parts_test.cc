#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "planner/launch/complete.h"
#include "planner/launch/geometry.h"
#include "planner/launch/import.h"
#include "planner/launch/model_arguments.h"
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

}  // namespace
}  // namespace foldwise::planner::launch_parts_test
