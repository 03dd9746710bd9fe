// Output of PyTorch's profiler, as `diagnose` reads it. Every nanosecond of its steps must have a line, and every byte
// an owner.
#include <sstream>

#include "planner/diagnose/ranks.h"
#include "planner/diagnose/traced_memory.h"
#include "planner/diagnose/traced_step.h"
#include "planner/foldwise.h"
#include "tests/fuzz/fuzz.h"

namespace foldwise::planner::diagnose_data {
const std::string* embedded_file(std::string_view name);
}

std::vector<std::string> foldwise::fuzz_words() {
  std::vector<std::string> rules, out;
  add_words(rules, nlohmann::json::parse(*planner::diagnose_data::embedded_file("kernel_rules")));
  for (const std::string& rule : rules) add_parts(out, rule, '|');
  return out;
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foldwise::planner;  // NOLINT(google-build-using-namespace)
  static const Run run = foldwise::parse_run(
      R"({"model": "llama3-8b", "system": "h200", "num_gpus": 8, "tp": 8, "seq_len": 4096, "global_batch": 8})", "run");
  static const foldwise::Step step = foldwise::compose(run);
  return foldwise::fuzz(data, size, [](const std::string& text) {
    std::istringstream in(text);
    std::vector<Trace> traces;
    traces.push_back(parse_trace(in, "trace.json"));
    const Trace& trace = traces[0];
    const std::vector<MappedKernels> kernels = {map_kernels(trace, step)};
    if (const auto memory = traced_memory(trace, kernels[0])) {
      std::int64_t sum = memory->before;
      for (const OwnedMemory& line : memory->owned) sum += line.bytes;
      if (sum != memory->allocated) throw std::logic_error("owners do not add up to the peak");
    }
    for (const Span& one : steps_of(trace, kernels[0])) {
      std::int64_t sum = 0;
      const RankComparison ranks = compare_ranks(traces, kernels, {one}, step);
      for (const TracedLine& line : traced_step(trace, kernels[0], one, ranks.waits[0]).lines) sum += line.exposed_ns;
      if (sum != one.length()) throw std::logic_error("lines do not add up to the step");
    }
  });
}
