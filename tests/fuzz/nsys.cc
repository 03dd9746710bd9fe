// Output of `nsys export --type sqlite`, as `diagnose` reads it.
#include "planner/diagnose/nsys.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/fuzz/fuzz.h"

std::vector<std::string> foldwise::fuzz_words() { return {}; }

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string path =
      (std::filesystem::temp_directory_path() / ("foldwise-fuzz-" + std::to_string(getpid()))).string();
  return foldwise::fuzz(data, size, [](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
    struct Removed {
      ~Removed() { std::filesystem::remove(path); }
    } const removed;
    if (foldwise::planner::is_sqlite(path)) static_cast<void>(foldwise::planner::read_nsys(path));
  });
}
