#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "costmodel/config/diagnostics.h"

// A reader a file: each defines what it reads as libFuzzer calls it. Any text is read, or refused with ConfigError;
// everything else that happens is a bug of ours, and ends the program.
namespace foldwise {

/// Calls `read` with the input as text.
template <typename Read>
int fuzz(const std::uint8_t* data, std::size_t size, const Read& read) {
  try {
    read(std::string(reinterpret_cast<const char*>(data), size));
  } catch (const config::ConfigError&) {  // A mistake of the user's, told to him.
  }
  return 0;
}

}  // namespace foldwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
