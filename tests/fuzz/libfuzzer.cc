// Entry points of libFuzzer that all readers share: mutations of words and trees in addition to those of bytes. READER
// --words prints the words as a dictionary for the latter.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/changes.h"
#include "tests/fuzz/fuzz.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 2 || std::string((*argv)[1]) != "--words") return 0;
  constexpr std::size_t kLongest = 64;  // Longest word that libFuzzer accepts.
  for (const std::string& word : foldwise::fuzz_words()) {
    if (word.size() > kLongest) continue;
    std::printf("\"");
    for (const char c : word) std::printf("\\x%02X", static_cast<unsigned>(static_cast<unsigned char>(c)));
    std::printf("\"\n");
  }
  std::exit(0);
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  static const std::vector<std::string> words = foldwise::fuzz_words();
  std::mt19937 random(seed);
  if (random() % 2 == 0) return LLVMFuzzerMutate(data, size, most);
  const std::string out = foldwise::changed(std::string(reinterpret_cast<const char*>(data), size), words, random);
  if (out.empty() || out.size() > most) return LLVMFuzzerMutate(data, size, most);
  std::memcpy(data, out.data(), out.size());
  return out.size();
}
