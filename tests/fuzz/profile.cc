// Profiles of systems.
#include "hwprofiles/load/profile.h"

#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return foldwise::fuzz(data, size, [](const std::string& text) {
    static_cast<void>(foldwise::hwprofiles::parse_profile(text, "profile.json"));
  });
}
