#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "costmodel/config/json.h"

// How model families spell their config.json, as data: planner/models/families.json. read_transformer() and similar
// readers then need only one name for each key, ours.
namespace foldwise::planner {

struct Family {
  std::string model_type;
  std::vector<std::string> parts;             ///< "dense" or "moe"; "latent"; "hybrid", "shortcut".
  std::map<std::string, std::string> nested;  ///< Nested objects whose keys are moved to the top, with this prefix.
  std::map<std::string, std::vector<std::string>> spelled;  ///< The family's names for our keys.
  nlohmann::json set = nlohmann::json::object();            ///< Values of keys that its file omits.
  std::vector<std::string> ignored, notes, approximated;
  [[nodiscard]] bool has(const std::string& part) const;
};

/// By model_type.
[[nodiscard]] const std::map<std::string, Family>& known_families();
/// Families that are refused, by model_type: the part that no op list has, with its keys.
[[nodiscard]] const std::map<std::string, std::string>& unmodelled_families();
/// Whether a key states a part of a model (experts, a kind of attention) that a family without this key does not have.
[[nodiscard]] bool states_a_part(const std::string& key);
/// What files of other families call `key`, and it itself.
[[nodiscard]] std::vector<std::string> names_of_key(const std::string& key);
/// A family made from the keys of a file alone, for an unknown model_type. It gets the model_type of a known family
/// with the same parts.
[[nodiscard]] Family family_by_keys(const nlohmann::json& config);

/// Adds sizes of which a file of Transformers says nothing because they are those of its class (class_defaults.json):
/// any to a nested configuration, to a whole file the number of key-value heads. Returns "key value" of each.
std::vector<std::string> add_class_defaults(nlohmann::json& config, bool nested);

/// A config with our keys: renamed, moved out of nested objects, and completed with the family's values. A list with
/// equal values for all layers becomes one number where the key takes one.
struct Respelled {
  nlohmann::json config;
  std::map<std::string, std::string> spellings;  ///< See ObjectReader::spell().
};
/// Reports values that are given twice and differ.
[[nodiscard]] Respelled respelled(config::ObjectReader& in, const Family& family);

}  // namespace foldwise::planner
