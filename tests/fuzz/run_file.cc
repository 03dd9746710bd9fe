// Run files, and, of those that the rules accept, the answer.
#include "planner/foldwise.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return foldwise::fuzz(data, size, [](const std::string& text) {
    constexpr std::int64_t kMostStages = 2000, kMostLayers = 500;  // Of one input: milliseconds.
    const foldwise::Run run = foldwise::parse_run(text);
    const auto& o = run.options;
    if (!foldwise::check(run).empty() || run.model.num_layers() > kMostLayers ||
        o.pipeline.pp * o.pipeline.vpp * o.num_microbatches() > kMostStages)
      return;
    static_cast<void>(foldwise::predict(run));
  });
}
