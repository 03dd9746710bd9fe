// Scripts, argument lists, logs of Megatron and configurations of Megatron-Bridge.
#include "planner/launch/arguments.h"
#include "planner/launch/dump.h"
#include "planner/launch/import.h"
#include "planner/run/release.h"
#include "tests/fuzz/fuzz.h"

std::vector<std::string> foldwise::fuzz_words() {
  std::vector<std::string> out = planner::release_names();
  for (const planner::ArgumentSpec& argument : planner::argument_specs()) {
    out.push_back(argument.flag);
    out.push_back(argument.dest);
    out.insert(out.end(), argument.choices.begin(), argument.choices.end());
  }
  for (const planner::BridgeMember& member : planner::bridge_members()) {
    out.push_back(member.section);
    out.push_back(member.name);
  }
  for (const planner::BridgeRecipe& recipe : planner::bridge_recipes()) out.push_back(recipe.name);
  return out;
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foldwise::planner;  // NOLINT(google-build-using-namespace)
  return foldwise::fuzz(data, size, [](const std::string& text) {
    ImportRequest request;
    request.system = "h200";
    request.num_gpus = 64;
    request.sandbox = false;  // No script by the fuzzer is executed.
    // YAML without a section model is not read further. Parsing scripts as YAML would take half of the time.
    const bool yaml = text.starts_with("model:") || text.find("\nmodel:") != std::string::npos;
    static_cast<void>(import_launch(text, yaml ? "configuration.yaml" : "launch.sh", request));
  });
}
