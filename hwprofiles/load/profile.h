#pragma once
#include <map>
#include <string>
#include <vector>

#include "costmodel/config/json.h"
#include "costmodel/hardware/hardware.h"

namespace foldwise::hwprofiles {

/// Where a number of a profile comes from.
struct Provenance {
  std::string kind;    ///< "datasheet", "measured", "fitted" or "assumed".
  std::string source;  ///< Document, file or command.
  std::string date;    ///< When it was read or measured; may be empty.
  std::string note;
};

/// A system with the origin of each of its numbers, by JSON pointer ("/hbm/bandwidth").
struct Profile {
  costmodel::Hardware hardware;
  std::map<std::string, Provenance> provenance;
  nlohmann::json json;  ///< Complete: base and changes merged.
};

/// Names of the built-in systems, sorted: the stems of hwprofiles/data/systems/*.json.
[[nodiscard]] std::vector<std::string> built_in_systems();

/// `name` is a built-in name or the path of a profile: a JSON object that is complete, or starts from a built-in one
/// ("base": "h100-sxm-80gb") and replaces some of its fields. Throws config::ConfigError (file, line, field).
[[nodiscard]] Profile load_profile(const std::string& name);

/// The profile's hardware with some quantities, by JSON pointer, multiplied. Throws std::invalid_argument for a pointer
/// that the profile does not have.
[[nodiscard]] costmodel::Hardware scaled(const Profile& profile, const std::map<std::string, double>& factors);

}  // namespace foldwise::hwprofiles
