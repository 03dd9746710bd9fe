#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "costmodel/config/json.h"

// How families of models write their config.json, as data: planner/models/families.json. What a family is made of is
// read by read_transformer() and its like, which know one name of each key, ours.
namespace foldwise::planner {

struct Family {
  std::string model_type;
  std::vector<std::string> parts;                           ///< "dense" or "moe"; "latent"; "hybrid", "shortcut".
  std::map<std::string, std::string> nested;                ///< Objects whose keys are taken out, and their prefix.
  std::map<std::string, std::vector<std::string>> spelled;  ///< Its names of our keys.
  nlohmann::json set = nlohmann::json::object();            ///< What holds where its file is silent.
  std::vector<std::string> ignored, notes, approximated;
  [[nodiscard]] bool has(const std::string& part) const;
};

/// By model_type.
[[nodiscard]] const std::map<std::string, Family>& known_families();
/// A family of which nothing is known but the keys of its file: the parts that they tell of. Its model_type is that of
/// a family which has those parts.
[[nodiscard]] Family family_by_keys(const nlohmann::json& config);

/// A config with our keys: renamed, taken out of nested objects, with what the family sets. Lists that have one value
/// for every layer where one number is due are that number.
struct Respelled {
  nlohmann::json config;
  std::map<std::string, std::string> spellings;  ///< As ObjectReader::spell().
};
/// Reports what is said twice and differs.
[[nodiscard]] Respelled respelled(config::ObjectReader& in, const Family& family);

}  // namespace foldwise::planner
