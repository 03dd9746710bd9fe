// Profiles of systems.
#include "hwprofiles/load/profile.h"

#include "hwprofiles/load/fields.h"
#include "hwprofiles/load/systems.h"
#include "tests/fuzz/fuzz.h"

std::vector<std::string> foldwise::fuzz_words() {
  std::vector<std::string> out = hwprofiles::built_in_systems();
  const nlohmann::json profile = hwprofiles::load_profile("gb300-nvl72").json;
  for (const hwprofiles::Field& field : hwprofiles::fields(profile)) {
    add_parts(out, field.pointer, '/');
    for (const auto& [unit, size] : field.dimension->units) out.push_back(unit);
  }
  for (const hwprofiles::NamesField& field : hwprofiles::names_fields(profile)) {
    add_parts(out, field.pointer, '/');
    out.insert(out.end(), field.names.begin(), field.names.end());
  }
  return out;
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return foldwise::fuzz(data, size, [](const std::string& text) {
    static_cast<void>(foldwise::hwprofiles::parse_profile(text, "profile.json"));
  });
}
