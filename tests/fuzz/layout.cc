// Layout strings. The shortest string for an accepted one must have the same meaning.
#include "costmodel/pipeline/schedule.h"
#include "tests/fuzz/fuzz.h"

std::vector<std::string> foldwise::fuzz_words() { return {}; }

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foldwise::costmodel;  // NOLINT(google-build-using-namespace)
  return foldwise::fuzz(data, size, [](const std::string& text) {
    for (const std::int64_t layers : {1, 4, 61})
      for (const std::int64_t mtp : {0, 1}) {
        const ParsedLayout parsed = parse_layout(text, layers, mtp);
        if (parsed.stages.has_value() == !parsed.error.empty())
          throw std::logic_error("a layout and an error, or neither");
        constexpr std::size_t kMostStages = 300;  // The shortest string takes time quadratic in the stages.
        if (parsed.stages && parsed.stages->stages.size() <= kMostStages &&
            parse_layout(to_layout_string(*parsed.stages), layers, mtp).stages != parsed.stages)
          throw std::logic_error("another layout: " + to_layout_string(*parsed.stages));
      }
  });
}
