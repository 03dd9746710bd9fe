// Scripts, argument lists, logs of Megatron and configurations of Megatron-Bridge.
#include "planner/launch/import.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foldwise::planner;  // NOLINT(google-build-using-namespace)
  return foldwise::fuzz(data, size, [](const std::string& text) {
    ImportRequest request;
    request.system = "h200";
    request.num_gpus = 64;
    // Without a section model no YAML is read further; parsing scripts as YAML would take half of the time.
    const bool yaml = text.starts_with("model:") || text.find("\nmodel:") != std::string::npos;
    static_cast<void>(import_launch(text, yaml ? "configuration.yaml" : "launch.sh", request));
  });
}
