#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "planner/launch/arguments.h"

// What a run prints of itself: the arguments at the top of Megatron's log, its iterations, and Megatron-Bridge's
// configuration as YAML.
namespace foldwise::planner {

/// The block between "---- arguments ----" and "---- end of arguments ----" (before each line there may be a rank or a
/// time); nothing: the text has none. Adds a block that does not end to `diagnostics`. Members of the Namespace that no
/// flag fills are in it too.
[[nodiscard]] std::optional<Settings> read_argument_block(const std::string& text, const std::string& file,
                                                          config::Diagnostics& diagnostics);

/// What the iterations of a log measured.
struct LogIterations {
  nlohmann::json measured;            ///< As a run file has it; null: the log has no steady iteration.
  std::vector<std::string> left_out;  ///< "iteration 10: the first that is logged", one each.
  std::size_t steady = 0;             ///< Lines that `measured` is the median of.
};
/// Steady are those lines "iteration N/ M | ..." that are not the first, have the last one's global batch, skipped no
/// step, and took no more than 20 % longer or shorter than the median of these (evaluation, checkpoints, and the host's
/// pauses fall into a line's average).
[[nodiscard]] LogIterations read_iterations(const std::string& text);

/// A GPU that the text names ("NVIDIA H100 80GB HBM3"), as a built-in system; empty: none that we know.
[[nodiscard]] std::string system_in(const std::string& text);

/// Megatron-Bridge's ConfigContainer as YAML (sections model, train, ddp, optimizer, ...); nothing: the text is no
/// such YAML. Adds mistakes of YAML's grammar to `diagnostics`.
[[nodiscard]] std::optional<Settings> read_bridge_yaml(const std::string& text, const std::string& file,
                                                       config::Diagnostics& diagnostics);

/// Arguments and environment of a test of Megatron-LM's own CI
/// (tests/functional_tests/test_cases/*/*/model_config.yaml, as shell_test_utils/_run_training.sh reads it).
struct TestCase {
  std::vector<Argument> arguments;  ///< Of a test of NeMo's: "trainer.devices", without "--".
  std::map<std::string, std::string> environment;
  bool inference = false;
};
/// `${NAME}` is one of `variables` or of the test's own. Nothing: the text has no MODEL_ARGS.
[[nodiscard]] std::optional<TestCase> read_test_case(const std::string& text, const std::string& file,
                                                     const std::map<std::string, std::string>& variables,
                                                     config::Diagnostics& diagnostics);

/// A command line, and where its words stand in the file.
struct CommandLine {
  std::vector<std::string> words;
  std::map<std::string, int> lines;
};
/// NeMo's command of a test of NeMo's; nothing: it is of Megatron's arguments. The recipe stands in the name of the
/// test alone: ".../llama3-nemo_8b_mr_mbs4/model_config.yaml".
[[nodiscard]] std::optional<CommandLine> command_of_nemo(const TestCase& test, const std::string& file);

/// An experiment of Primus (examples/megatron/configs) as `primus train pretrain --model NAME --seq_length=4096 ...`:
/// the model of its trainer and what it overrides. `${NAME:4096}` is the variable, or 4096 without it. Where `folder`,
/// that the file stands in, lies in a checkout of Primus, the sizes of the model's own file stand for its name.
/// Nothing: the text has no modules. Adds frameworks other than Megatron to `diagnostics`.
[[nodiscard]] std::optional<CommandLine> read_primus_yaml(const std::string& text, const std::string& file,
                                                          const std::string& folder,
                                                          const std::map<std::string, std::string>& variables,
                                                          config::Diagnostics& diagnostics);

/// Sections of Megatron-Bridge's configuration that hold a member of Megatron's Namespace under another name or
/// elsewhere than in `model`: ("num_experts", {"model", "num_moe_experts"}).
struct BridgeMember {
  std::string dest, section, name;
};
[[nodiscard]] const std::vector<BridgeMember>& bridge_members();

/// A precision by Megatron-Bridge's name for it, with the members of Megatron's Namespace that it comes to; empty:
/// none. Source: megatron/bridge/training/mixed_precision.py, release 0.3.1.
struct BridgeRecipe {
  std::string name, fp8, fp8_recipe, fp4;
  bool param_gather = false;  ///< fp8_param_gather
  bool fp16 = false;          ///< Else BF16, whose gradients are reduced in FP32.
};
[[nodiscard]] const std::vector<BridgeRecipe>& bridge_recipes();

}  // namespace foldwise::planner
