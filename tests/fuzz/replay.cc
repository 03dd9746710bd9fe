// In place of libFuzzer, with any compiler: reads every file of the folders that it is given, and some changes of each,
// the same on every machine. replay [CHANGES] PATH...; prints the input that it dies of to stderr before it does.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/changes.h"
#include "tests/fuzz/fuzz.h"

namespace {

constexpr std::size_t kLongest = 65536;  // As fuzz.py tells libFuzzer.

std::string now_read;

[[noreturn]] void report() {
  std::fprintf(stderr, "read:\n%s\n", now_read.c_str());
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  } catch (...) {
  }
  std::abort();
}

void read(std::string text) {
  now_read = std::move(text);
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(now_read.data()), now_read.size());
}

}  // namespace

int main(int argc, char** argv) {
  std::set_terminate(report);
  const std::vector<std::string> words = foldwise::fuzz_words();
  std::size_t changes = 20, files = 0, inputs = 0;
  for (int i = 1; i < argc; ++i) {
    if (i == 1 && std::isdigit(static_cast<unsigned char>(argv[1][0])) != 0) {
      changes = std::strtoul(argv[1], nullptr, 10);
      continue;
    }
    std::ifstream in(argv[i], std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    text.resize(std::min(text.size(), kLongest));
    ++files;
    std::mt19937 random(static_cast<unsigned>(text.size()));
    read(text);
    for (std::size_t n = 0; n < changes; ++n) read(foldwise::changed(text, words, random));
    inputs += changes + 1;
  }
  std::printf("%zu files, %zu inputs\n", files, inputs);
  return files == 0 ? 1 : 0;
}
