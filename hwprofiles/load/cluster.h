#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "costmodel/config/json.h"

// A cluster of one's own in a few lines: what of it differs from a built-in system, with units.
//   {"base": "h100", "gpus_per_node": 8, "nics": 4, "nic_bandwidth": "200 Gb/s", "fabric": "roce"}
namespace foldwise::hwprofiles {

/// Its keys, as they are written and as options of `foldwise systems --new`.
struct ClusterKey {
  std::string name;                   ///< "nic_bandwidth"
  std::vector<std::string> pointers;  ///< Numbers of the profile that it sets; none: see expanded_cluster().
  std::string help;                   ///< With an example.
};
[[nodiscard]] const std::vector<ClusterKey>& cluster_keys();

/// The profile that such a document stands for; any other document as it is. `base` is the profile of its base,
/// complete. Throws config::ConfigError (file, line, key).
[[nodiscard]] bool is_cluster(const config::Document& document);
[[nodiscard]] config::Document expanded_cluster(const config::Document& document, const nlohmann::json& base);

/// {"value": 200, "unit": "Gb/s", "kind": "assumed", "source": `source`} of a number or a text with a unit for the
/// number at `pointer` of `profile`; null where it is none or out of range, which is reported at `where`.
[[nodiscard]] nlohmann::json quantity_of(const nlohmann::json& profile, const std::string& pointer,
                                         const nlohmann::json& value, const std::string& source,
                                         const config::Location& where, config::Diagnostics& diagnostics);

}  // namespace foldwise::hwprofiles
