#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "costmodel/config/diagnostics.h"

// One reader per file: each defines the function that libFuzzer calls. A reader must read any text or refuse it with
// ConfigError. Anything else is a bug of ours and ends the program.
namespace foldwise {

template <typename Read>
int fuzz(const std::uint8_t* data, std::size_t size, const Read& read) {
  try {
    read(std::string(reinterpret_cast<const char*>(data), size));
  } catch (const config::ConfigError&) {  // A mistake in the input, reported as such.
  }
  return 0;
}

/// Words from the reader's own tables: keys, flags, names. Random bytes rarely make one.
std::vector<std::string> fuzz_words();

/// Adds the nonempty parts of `text` between separators.
void add_parts(std::vector<std::string>& words, const std::string& text, char separator);
void add_words(std::vector<std::string>& words, const nlohmann::json& tree);

}  // namespace foldwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
