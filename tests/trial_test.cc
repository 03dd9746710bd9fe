// Can a plan be tried as it is exported: does `export --trial` write a run that starts by itself, for every release,
// and does `export --check` say what the user's own Megatron-LM says?
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/foldwise.h"
#include "planner/launch/arguments.h"
#include "planner/launch/export.h"
#include "planner/launch/import.h"
#include "planner/launch/verdict.h"
#include "tests/mini_mixtral.h"
#include "tests/program_test.h"
#include "tests/sandbox.h"

namespace foldwise::planner::trial_test {
namespace {

using nlohmann::json;

/// Runs of several kinds: plain, with graphs and EP overlap, dense and sharded, a hybrid, one with fused experts.
std::vector<std::pair<std::string, json>> kinds() {
  return {{"plain", json::object()},
          {"overlapped", {{"vpp", 2}, {"overlaps", {{"ep_a2a", true}}}, {"dispatcher", "deepep"}}},
          {"sharded", {{"pp", 1}, {"sharding", "fsdp"}, {"software", {{"wgrad_accumulation_fusion", false}}}}},
          {"dense", {{"model", "mini-llama-16l"}, {"ep", 1}, {"tp", 2}, {"recompute", {{"granularity", "full"}}}}},
          {"hybrid", {{"model", "nemotron-3-nano-30b-a3b"}, {"pp", 1}, {"ep", 16}}},
          {"fused", {{"system", "b200"}, {"precision", "mxfp8"}, {"software", {{"experts", "fused"}}}}}};
}

/// Each flag of the settings with its value, as one text: "--train-iters 20".
std::vector<std::string> words_of(const Settings& settings, const Release& release) {
  std::vector<std::string> list;
  for (const Argument& argument : to_arguments(settings, release)) {
    list.push_back(argument.flag);
    for (const std::string& value : argument.values) list.back() += ' ' + value;
  }
  return list;
}

class Trials : public FolderTest {
 protected:
  /// bash's complaints about a script; empty: none.
  [[nodiscard]] std::string bash_says(const std::string& script) const {
    const std::string file = write_text("trial.sh", script), said = path("said");
    const int status = std::system(("bash -n '" + file + "' 2> '" + said + "'").c_str());  // NOLINT(cert-env33-c)
    return status == 0 ? "" : "bash: " + contents(said);
  }
};

// Is a trial a script that bash reads and whose every argument Megatron's parser of that release takes?
TEST_F(Trials, AreWrittenForEveryRelease) {
  if (!has_sandbox()) GTEST_SKIP() << "no sandbox here";
  int written = 0;
  for (const Release& release : releases())
    for (const auto& [kind, changes] : kinds()) {
      if (kind == "fused" && in_releases("", "0.17.1").has(release)) continue;  // Supported since 0.18.
      if (kind == "overlapped" && release.name == "0.18.2") continue;           // Covered by the others.
      json of_release = changes;
      of_release["release"] = release.name;
      const planner::Run run = run_with(of_release);
      for (const LaunchTarget target : {LaunchTarget::kTorchrun, LaunchTarget::kSlurm, LaunchTarget::kMegatronLm}) {
        SCOPED_TRACE(kind + " for " + release.name);
        const Launch launch = launch_of(run, target, Trial::kBalanced);
        const std::string text = launch_text(launch, target);
        ++written;
        if (target != LaunchTarget::kMegatronLm) {
          EXPECT_EQ(bash_says(text), "") << text;
          EXPECT_THAT(text, testing::HasSubstr("\nTRIAL_ARGS=(\n"));
          EXPECT_THAT(text, testing::HasSubstr(R"("${PLAN_ARGS[@]}" "${TRIAL_ARGS[@]}" "$@")"));
          EXPECT_THAT(text, testing::HasSubstr(run.model.hybrid ? release.hybrid_entry : release.gpt_entry));
        }
        EXPECT_THAT(text, testing::HasSubstr("by foldwise export --trial"));
        ImportRequest request;
        request.system = run.system_name;
        const LaunchCommand command = read_launch_command(text, "trial.sh", request);
        EXPECT_EQ(command.num_gpus, 16);
        config::Diagnostics diagnostics;
        std::vector<Argument> unknown;
        const Settings read = parse_arguments(command.arguments, "trial.sh", release, diagnostics, unknown);
        for (const config::Diagnostic& diagnostic : diagnostics.list()) ADD_FAILURE() << diagnostic.text();
        for (const Argument& argument : unknown) ADD_FAILURE() << argument.flag;
        for (const Settings* settings : {&launch.model, &launch.plan, &launch.trial})
          for (const auto& [dest, setting] : settings->all())
            if (!setting.value.is_boolean()) {
              EXPECT_NE(read.find(dest), nullptr) << dest;
            }
      }
    }
  EXPECT_GE(written, 60);
}

// Does a trial have what a run needs that says how long its steps take and what they need: made-up data, a tokenizer
// without a file, twenty steps, and time, throughput, memory and loss of them in its log?
TEST_F(Trials, HaveDataStepsAndALog) {
  for (const Release& release : releases()) {
    SCOPED_TRACE(release.name);
    const planner::Run run = run_with({{"release", release.name}});
    const std::vector<std::string> words =
        words_of(launch_of(run, LaunchTarget::kTorchrun, Trial::kNatural).trial, release);
    // NullTokenizer adds one of the 32,000 words.
    for (const std::string& wanted :
         {std::string("--mock-data"), std::string("--tokenizer-type NullTokenizer"),
          fmt::format("--vocab-size {}", run.model.vocab_size - 1), fmt::format("--train-iters {}", kTrialSteps),
          std::string("--log-interval 1"), std::string("--log-throughput"), std::string("--log-memory-interval 10"),
          std::string("--eval-iters 0"), std::string("--lr 0.0001")})
      EXPECT_THAT(words, testing::Contains(wanted));
    const std::string balanced = "--moe-router-force-load-balancing";
    EXPECT_THAT(words, testing::Not(testing::Contains(balanced)));
    EXPECT_THAT(words_of(launch_of(run, LaunchTarget::kTorchrun, Trial::kBalanced).trial, release),
                testing::Contains(balanced));
    // A dense model has no routing.
    const planner::Run dense = run_with({{"release", release.name}, {"model", "mini-llama-16l"}, {"ep", 1}});
    EXPECT_THAT(words_of(launch_of(dense, LaunchTarget::kTorchrun, Trial::kBalanced).trial, release),
                testing::Not(testing::Contains(balanced)));
  }
  EXPECT_EQ(kTrialSteps, 20);
  // Without a trial nothing is added.
  EXPECT_TRUE(launch_of(run_with({})).trial.all().empty());
  EXPECT_THAT(launch_text(launch_of(run_with({})), LaunchTarget::kTorchrun),
              testing::Not(testing::HasSubstr("TRIAL_ARGS")));
}

// Is it told that Megatron-Bridge's configuration starts no trial?
TEST_F(Trials, AreNoneOfMegatronBridge) {
  EXPECT_THAT([] { static_cast<void>(launch_of(run_with({}), LaunchTarget::kMegatronBridge, Trial::kNatural)); },
              testing::ThrowsMessage<config::ConfigError>(
                  testing::AllOf(testing::HasSubstr("--trial"),
                                 testing::HasSubstr("expected a target that starts a run: not megatron-bridge"))));
}

// Does a trial whose EP ranks get what an untrained router sends say so, and only that?
TEST_F(Trials, SayWhereLoadsAreUneven) {
  const std::string said = "an untrained router decides";
  const auto text = [](const planner::Run& run, Trial trial) {
    return launch_text(launch_of(run, LaunchTarget::kTorchrun, trial), LaunchTarget::kTorchrun);
  };
  EXPECT_THAT(text(run_with({}), Trial::kNatural), testing::HasSubstr(said));
  EXPECT_THAT(text(run_with({}), Trial::kBalanced), testing::Not(testing::HasSubstr(said)));
  EXPECT_THAT(text(run_with({}), Trial::kNone), testing::Not(testing::HasSubstr(said)));
  EXPECT_THAT(text(run_with({{"ep", 1}}), Trial::kNatural), testing::Not(testing::HasSubstr(said)));
}

/// What a launch prints: Megatron-LM's arguments and twenty steps, of which the first two take longer.
std::string log_of(const Launch& launch) {
  std::string log = " > using world size: 16, data-parallel size: 8\n------------------------ arguments ------------\n";
  for (const Settings* settings : {&launch.model, &launch.plan, &launch.trial})
    for (const auto& [dest, setting] : settings->all()) log += "  " + dest + " ..... " + word_of(setting.value) + "\n";
  log += "  world_size ..... 16\n-------------------- end of arguments ---------------------\n";
  for (int i = 1; i <= kTrialSteps; ++i)
    log += fmt::format(
        " iteration {:8}/      20 | consumed samples: {} | elapsed time per iteration (ms): {} | throughput per GPU "
        "(TFLOP/s/GPU): 400.0 | learning rate: 1.0E-04 | global batch size:   128 | lm loss: 1.0E+01 | loss scale: "
        "1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |\n",
        i, 128 * i, i <= 2 ? 9000.0 : 1500.0);
  return log;
}

// Does the log of a trial come back as a measured run of the same options?
TEST_F(Trials, LogsAreReadBack) {
  for (const Release& release : releases()) {
    SCOPED_TRACE(release.name);
    const planner::Run run = run_with({{"release", release.name}});
    ImportRequest request;
    request.system = "h200";
    request.release = &release;
    const Imported imported =
        import_launch(log_of(launch_of(run, LaunchTarget::kTorchrun, Trial::kBalanced)), "train.log", request);
    EXPECT_EQ(imported.run.release, &release);
    EXPECT_EQ(imported.run.model_name, "mini-mixtral-8l");
    EXPECT_DOUBLE_EQ(imported.run.measured.step_time_s.value_or(0.0), 1.5);
    for (const char* key : {"tp", "pp", "ep", "micro_batch", "dispatcher", "software.cross_entropy"})
      EXPECT_EQ(field(key).value.get(imported.run.options), field(key).value.get(run.options)) << key;
  }
}

// Is it said of a log's measurement that its router decided on the loads of EP ranks?
TEST_F(Trials, LogsOfUnevenLoadsAreNamed) {
  ImportRequest request;
  request.system = "h200";
  const auto notes = [&](const planner::Run& run, Trial trial) {
    return import_launch(log_of(launch_of(run, LaunchTarget::kTorchrun, trial)), "train.log", request).notes;
  };
  const auto uneven = testing::Contains(testing::HasSubstr("loads of the log's EP ranks"));
  EXPECT_THAT(notes(run_with({}), Trial::kNatural), uneven);
  EXPECT_THAT(notes(run_with({}), Trial::kBalanced), testing::Not(uneven));
  EXPECT_THAT(notes(run_with({{"ep", 1}}), Trial::kNatural), testing::Not(uneven));
}

// ---- The user's own Megatron-LM ------------------------------------------------------------------------------------

/// A folder like Megatron-LM, with stand-ins for torch and Transformer Engine, so that neither is needed.
class Verdicts : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    for (const char* folder : {"Megatron-LM", "Megatron-LM/megatron", "Megatron-LM/megatron/training"})
      std::filesystem::create_directory(folder_ / folder);
    static_cast<void>(write_text("Megatron-LM/megatron/__init__.py", ""));
    static_cast<void>(write_text("Megatron-LM/megatron/training/__init__.py", ""));
    // Megatron's folder comes first on Python's path.
    static_cast<void>(
        write_text("Megatron-LM/torch.py", "import types\n__version__ = '2.5.1'\ncuda = types.SimpleNamespace()\n"));
    static_cast<void>(write_text("Megatron-LM/transformer_engine.py", "raise ImportError('no driver here')\n"));
  }

  /// The verdict on the launch of a run, with this parser, validation and configuration.
  [[nodiscard]] Verdict said(const std::string& parse, const std::string& validate, const std::string& config,
                             const json& changes = {}, Trial trial = Trial::kNone) const {
    static_cast<void>(write_text("Megatron-LM/megatron/training/arguments.py",
                                 "import argparse\nimport os\nimport sys\nimport torch\n"  // Lines 1 to 4.
                                 "def parse_args():\n    " +
                                     parse + "\ndef validate_args(args):\n    " + validate +
                                     "\ndef core_transformer_config_from_args(args):\n    " + config + "\n"));
    const planner::Run run = run_with(changes);
    return verdict_of(launch_of(run, LaunchTarget::kTorchrun, trial), run, path("Megatron-LM"), "python3");
  }
  static constexpr const char* kAll = "return argparse.ArgumentParser().parse_known_args()[0]";
};

// Is a launch accepted that all of Megatron's three steps take, with the arguments, the environment and the GPU that
// are the plan's?
TEST_F(Verdicts, AcceptsWhatMegatronAccepts) {
  const Verdict verdict = said(kAll,
                               "assert '--mock-data' in sys.argv and sys.argv[0] == 'pretrain'; "
                               "assert sys.argv[sys.argv.index('--expert-model-parallel-size') + 1] == '4'; "
                               "assert os.environ['WORLD_SIZE'] == '16' and os.environ['RANK'] == '0'; "
                               "assert os.environ['PYTORCH_CUDA_ALLOC_CONF'] == 'expandable_segments:True'; "
                               "assert torch.cuda.get_device_capability() == (9, 0); "
                               "print('Megatron talks much')",
                               "pass", {}, Trial::kNatural);
  EXPECT_TRUE(verdict.accepted) << verdict.error;
  EXPECT_TRUE(verdict.holds());
  EXPECT_EQ(verdict.stage + verdict.error + verdict.at, "");
  const std::map<std::string, std::string> versions(verdict.versions.begin(), verdict.versions.end());
  EXPECT_EQ(versions.at("PyTorch"), "2.5.1");
  ASSERT_EQ(verdict.notes.size(), 1U);
  EXPECT_THAT(verdict.notes.front(), testing::AllOf(testing::HasSubstr("no driver here"),
                                                    testing::HasSubstr("what Megatron asks of it is not checked")));
  EXPECT_THAT(
      verdict_text(verdict, "Megatron-LM"),
      testing::AllOf(testing::HasSubstr("Megatron-LM: accepted by its parser, its validation and its configuration\n"),
                     testing::HasSubstr("installed: PyTorch 2.5.1\n")));
  const json answer = verdict_json(verdict);
  EXPECT_EQ(answer.at("accepted"), true);
  EXPECT_EQ(answer.at("stage"), nullptr);
  EXPECT_EQ(answer.at("too_old"), json::array());
}

// Is a refusal told in Megatron's own words, with its file and line?
TEST_F(Verdicts, RefusesInMegatronsWords) {
  const Verdict verdict = said(kAll, "assert '--mock-data' in sys.argv, 'no data'", "pass");
  EXPECT_FALSE(verdict.accepted);
  EXPECT_FALSE(verdict.holds());
  EXPECT_EQ(verdict.stage, "validate");
  EXPECT_EQ(verdict.error, "AssertionError: no data");
  EXPECT_EQ(verdict.at, "megatron/training/arguments.py:8");  // Four imports, three lines of def and parse, this one.
  EXPECT_THAT(
      verdict_text(verdict, "/opt/Megatron-LM"),
      testing::StartsWith("/opt/Megatron-LM/megatron/training/arguments.py:8: validate: AssertionError: no data\n"));

  const Verdict late = said(kAll, "pass", "raise ValueError('graphs of what?')");
  EXPECT_EQ(late.stage, "config");
  EXPECT_EQ(late.error, "ValueError: graphs of what?");
  EXPECT_EQ(late.at, "megatron/training/arguments.py:10");
}

// Is what its parser says of a flag that it does not have what is told?
TEST_F(Verdicts, TellsWhatTheParserRefuses) {
  const Verdict verdict =
      said("p = argparse.ArgumentParser(); p.add_argument('--num-layers', choices=['1']); return p.parse_args()",
           "pass", "pass");
  EXPECT_FALSE(verdict.accepted);
  EXPECT_EQ(verdict.stage, "parse");
  EXPECT_THAT(verdict.error, testing::HasSubstr("argument --num-layers: invalid choice: '8'"));
  EXPECT_EQ(verdict.at, "");
  const Verdict import = said("pass\nraise RuntimeError('needs another torch')", "pass", "pass");
  EXPECT_EQ(import.stage, "import");
  EXPECT_EQ(import.error, "RuntimeError: needs another torch");
}

// Does a library that is older than what the plan needs keep it from holding, though Megatron accepts it?
TEST_F(Verdicts, ComparesInstalledVersions) {
  const Verdict verdict = said(kAll, "pass", "pass", {{"vpp", 2}, {"overlaps", {{"ep_a2a", true}}}});
  EXPECT_TRUE(verdict.accepted) << verdict.error;
  EXPECT_FALSE(verdict.holds());
  ASSERT_EQ(verdict.too_old.size(), 1U);
  EXPECT_EQ(verdict_json(verdict).at("too_old"),
            json::parse(R"([{"library": "PyTorch", "needs": "2.6", "found": "2.5.1"}])"));
  EXPECT_THAT(verdict_text(verdict, "m"),
              testing::HasSubstr("PyTorch 2.5.1 is too old: overlaps.ep_a2a true needs 2.6\n"));
}

// Is a folder that is no Megatron-LM, a Python that is none and one that stops told as the user's mistake?
TEST_F(Verdicts, NeedAFolderAndAPython) {
  const planner::Run run = run_with({});
  const Launch launch = launch_of(run);
  EXPECT_THAT(
      [&] { static_cast<void>(verdict_of(launch, run, path("none"), "python3")); },
      testing::ThrowsMessage<config::ConfigError>(testing::AllOf(
          testing::HasSubstr("arguments: check:"), testing::HasSubstr("found no megatron/training/arguments.py in"))));
  static_cast<void>(said(kAll, "pass", "pass"));
  EXPECT_THAT([&] { static_cast<void>(verdict_of(launch, run, path("Megatron-LM"), path("no-python"))); },
              testing::ThrowsMessage<config::ConfigError>(testing::HasSubstr("arguments: python:")));
  EXPECT_THAT(
      [&] { static_cast<void>(verdict_of(launch, run, path("Megatron-LM"), "false")); },
      testing::ThrowsMessage<config::ConfigError>(testing::HasSubstr("false ended with 1 before it had an answer")));
}

// Does nothing of a check stay behind, whatever it says?
TEST_F(Verdicts, LeaveNothingBehind) {
  std::filesystem::create_directory(folder_ / "tmp");
  const char* before = std::getenv("TMPDIR");
  const std::string kept = before != nullptr ? before : "";
  setenv("TMPDIR", path("tmp").c_str(), 1);
  static_cast<void>(said(kAll, "assert False", "pass"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "tmp"));
  if (kept.empty())
    unsetenv("TMPDIR");
  else
    setenv("TMPDIR", kept.c_str(), 1);
}

}  // namespace
}  // namespace foldwise::planner::trial_test
