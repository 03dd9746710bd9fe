#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "costmodel/config/json.h"

// A user's cluster in a few lines: its differences from a built-in system, with units.
//   {"base": "h100", "gpus_per_node": 8, "nics": 4, "nic_bandwidth": "200 Gb/s", "fabric": "roce"}
namespace foldwise::hwprofiles {

/// A key of such a file, also an option of `foldwise systems --new`.
struct ClusterKey {
  std::string name;                   ///< "nic_bandwidth"
  std::vector<std::string> pointers;  ///< Numbers of the profile that it sets; empty: see expanded_cluster().
  std::string help;                   ///< Includes an example.
};
[[nodiscard]] const std::vector<ClusterKey>& cluster_keys();

/// Expands a cluster document to a complete profile; other documents are returned unchanged. `base`: the complete
/// profile of its base. Throws config::ConfigError (file, line, key).
[[nodiscard]] bool is_cluster(const config::Document& document);
[[nodiscard]] config::Document expanded_cluster(const config::Document& document, const nlohmann::json& base);

/// {"value": 200, "unit": "Gb/s", "kind": "assumed", "source": `source`}: a number, or a text with a unit, as the
/// quantity at `pointer` of `profile`. Null if it is not a quantity or out of range, which is reported at `where`.
[[nodiscard]] nlohmann::json quantity_of(const nlohmann::json& profile, const std::string& pointer,
                                         const nlohmann::json& value, const std::string& source,
                                         const config::Location& where, config::Diagnostics& diagnostics);

}  // namespace foldwise::hwprofiles
