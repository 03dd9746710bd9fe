// Run files and, for those that the rules accept, the answer.
#include "hwprofiles/load/systems.h"
#include "planner/foldwise.h"
#include "planner/models/models.h"
#include "planner/run/fields.h"
#include "tests/fuzz/fuzz.h"

std::vector<std::string> foldwise::fuzz_words() {
  std::vector<std::string> out = planner::built_in_models();
  const std::vector<std::string> systems = hwprofiles::built_in_systems();
  out.insert(out.end(), systems.begin(), systems.end());
  for (const planner::Field& field : planner::fields()) {
    add_parts(out, field.key, '.');
    add_parts(out, field.older_key, '.');
    out.insert(out.end(), field.value.names.begin(), field.value.names.end());
    out.insert(out.end(), field.value.also.begin(), field.value.also.end());
  }
  return out;
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return foldwise::fuzz(data, size, [](const std::string& text) {
    constexpr std::int64_t kMostStages = 2000, kMostLayers = 500;  // Per input: takes milliseconds.
    const foldwise::Run run = foldwise::parse_run(text);
    const auto& o = run.options;
    if (!foldwise::check(run).empty() || run.model.num_layers() > kMostLayers ||
        o.pipeline.pp * o.pipeline.vpp * o.num_microbatches() > kMostStages)
      return;
    static_cast<void>(foldwise::predict(run));
  });
}
