// Output of nccl-tests and of PyTorch's profiler. Imported measurements must be valid records.
#include "hwprofiles/records/import.h"
#include "hwprofiles/records/reader.h"
#include "tests/fuzz/fuzz.h"

std::vector<std::string> foldwise::fuzz_words() { return {}; }

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foldwise::hwprofiles;  // NOLINT(google-build-using-namespace)
  return foldwise::fuzz(data, size, [](const std::string& text) {
    const Records records = import_text(text, "measured", {.device = "NVIDIA H200", .collective = ""});
    static_cast<void>(parse_records(to_json_lines(records), "records.jsonl"));
  });
}
