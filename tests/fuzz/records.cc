// Records of kernels. Records that are written must be read back.
#include "hwprofiles/records/import.h"
#include "hwprofiles/records/reader.h"
#include "tests/fuzz/fuzz.h"

std::vector<std::string> foldwise::fuzz_words() { return {}; }

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foldwise::hwprofiles;  // NOLINT(google-build-using-namespace)
  return foldwise::fuzz(data, size, [](const std::string& text) {
    const Records records = parse_records(text, "records.jsonl");
    try {
      const Records again = parse_records(to_json_lines(records), "again.jsonl");
      if (again.measurements != records.measurements) throw std::logic_error("other records than were written");
    } catch (const foldwise::config::ConfigError& error) {
      throw std::logic_error(error.what());
    }
  });
}
