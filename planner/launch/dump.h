#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "planner/launch/arguments.h"
#include "planner/launch/log_starts.h"

// Reads what runs print or state about their arguments: those at the top of Megatron's log, configurations of
// Megatron-Bridge and Primus, and tests of Megatron-LM.
namespace foldwise::planner {

/// Reads the block between "---- arguments ----" and "---- end of arguments ----" of a start. Its lines may begin with
/// a rank or a time. It also has members of the Namespace that no flag fills. A block without an end is reported.
[[nodiscard]] Settings read_argument_block(const LogStart& start, const std::string& file,
                                           config::Diagnostics& diagnostics);

/// Reads Megatron-Bridge's ConfigContainer as YAML (sections model, train, ddp, optimizer, ...). Nothing if the text is
/// no such YAML. Reports syntax errors of YAML.
[[nodiscard]] std::optional<Settings> read_bridge_yaml(const std::string& text, const std::string& file,
                                                       config::Diagnostics& diagnostics);

/// Arguments and environment of a test of Megatron-LM's own CI
/// (tests/functional_tests/test_cases/*/*/model_config.yaml, as shell_test_utils/_run_training.sh reads it).
struct TestCase {
  std::vector<Argument> arguments;  ///< NeMo's tests have "trainer.devices", without "--".
  std::map<std::string, std::string> environment;
  bool inference = false;
};
/// `${NAME}` is one of `variables` or of the test's own variables. Nothing if the text has no MODEL_ARGS.
[[nodiscard]] std::optional<TestCase> read_test_case(const std::string& text, const std::string& file,
                                                     const std::map<std::string, std::string>& variables,
                                                     config::Diagnostics& diagnostics);

/// The training configuration of a FlagScale experiment (conf/train/*.yaml): sections `system`, `model` and `data`,
/// whose keys at any depth are Megatron's arguments with underscores. Source: FlagScale's flatten_dict_to_args() in
/// flagscale/runner/utils.py. Values that the experiment's file has (`${experiment...}`) are left out;
/// CUDA_DEVICE_MAX_CONNECTIONS is 1, as there, unless `variables` say otherwise. Nothing if the
/// text has no sections `system` and `model`.
[[nodiscard]] std::optional<TestCase> read_flagscale(const std::string& text, const std::string& file,
                                                     const std::map<std::string, std::string>& variables,
                                                     config::Diagnostics& diagnostics);

/// A command line, with the lines of its words in the file.
struct CommandLine {
  std::vector<std::string> words;
  std::map<std::string, int> lines;
};
/// The NeMo command of a NeMo test. Nothing if the test has Megatron's arguments. Only the name of the test gives the
/// recipe: ".../llama3-nemo_8b_mr_mbs4/model_config.yaml".
[[nodiscard]] std::optional<CommandLine> command_of_nemo(const TestCase& test, const std::string& file);

/// Reads an experiment of Primus (examples/megatron/configs) as `primus train pretrain --model NAME --seq_length=4096
/// ...`, from the model of its trainer and the overrides. `${NAME:4096}` is the variable, or 4096 if it is not set. If
/// `folder`, where the file is, lies in a checkout of Primus, the sizes in the model's file replace its name. Nothing
/// if the text has no modules. Reports frameworks other than Megatron.
[[nodiscard]] std::optional<CommandLine> read_primus_yaml(const std::string& text, const std::string& file,
                                                          const std::string& folder,
                                                          const std::map<std::string, std::string>& variables,
                                                          config::Diagnostics& diagnostics);

/// Reads overrides of a recipe of Megatron-Bridge, a configuration without the model's sizes, as `run_recipe.py --model
/// MODEL section.member=value ...`. Nothing if it has the sizes. `model`: in any spelling; empty is an error.
[[nodiscard]] std::optional<CommandLine> read_bridge_overrides(const std::string& text, const std::string& file,
                                                               std::string model, config::Diagnostics& diagnostics);

/// Place of a member of Megatron's Namespace in Megatron-Bridge's configuration, if its name differs or its section is
/// not `model`: ("num_experts", {"model", "num_moe_experts"}).
struct BridgeMember {
  std::string dest, section, name;
};
[[nodiscard]] const std::vector<BridgeMember>& bridge_members();

/// A precision under Megatron-Bridge's name, with the members of Megatron's Namespace that it sets; empty: not set.
/// Source: megatron/bridge/training/mixed_precision.py, release 0.3.1.
struct BridgeRecipe {
  std::string name, fp8, fp8_recipe, fp4;
  bool param_gather = false;  ///< fp8_param_gather
  bool fp16 = false;          ///< False: BF16, whose gradients are reduced in FP32.
};
[[nodiscard]] const std::vector<BridgeRecipe>& bridge_recipes();

}  // namespace foldwise::planner
