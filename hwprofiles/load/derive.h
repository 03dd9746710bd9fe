#pragma once
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/config/diagnostics.h"
#include "costmodel/config/json.h"
#include "hwprofiles/load/derive_rules.h"

// The "derive" block of a profile:
//   [{"field": "/gemm/bf16/{per_group,accumulate_share}", "rule": "copy", "from": "h200"},
//    {"field": "/network/nvlink/dispatch/bandwidth", "rule": "scaled", "by": "/network/nvlink_bandwidth", "from": ...}]
// "field", "of" (by default the same) and "to" are JSON pointers, or lists of them; {a,b} in a pointer stands for a and
// b. "from" is a built-in profile, by default the profile itself. "by" is a pointer or a ratio [over, under]. "source"
// and "note" replace those of the original number.
namespace foldwise::hwprofiles {

/// Rule that computes one number of a profile from others.
struct Derivation {
  std::string field;           ///< JSON pointer of the number.
  const Rule* rule = nullptr;  ///< Not null after reading.
  std::string from;            ///< Profile in which `of` is read; empty: the number's own.
  std::string of;              ///< The original number.
  std::string by;              ///< Pointer to the number whose ratio is the factor; empty: `factor`.
  double factor = 1.0;
  std::string to{};
  std::string source{}, note{};  ///< Replace those of the original number.
  bool share = false;            ///< At most 1.
  config::Location where;        ///< Location of the rule.
};

/// "/a/{b,c}/d" -> "/a/b/d", "/a/c/d".
[[nodiscard]] std::vector<std::string> expanded(const std::string& pattern);

/// The derivations in `document`, which is part of the profile `merged`. `systems`: names that "from" may have. Reports
/// unknown keys, rules, systems and fields with the nearest known name, and two rules for one number.
[[nodiscard]] std::vector<Derivation> read_derivations(const config::Document& document, const nlohmann::json& merged,
                                                       const std::vector<std::string>& systems,
                                                       config::Diagnostics& diagnostics);

/// A profile with numbers that are still to be derived.
struct PartialProfile {
  nlohmann::json tree;                            ///< Without the numbers to derive.
  std::map<std::string, Derivation> derivations;  ///< By the pointer of the derived number.
};

/// Derives numbers of profiles, which may depend on each other.
class Deriver {
 public:
  /// `load` returns the profile with a name. It is called once for each name.
  explicit Deriver(std::function<PartialProfile(const std::string&)> load) : load_(std::move(load)) {}

  /// The number at `pointer` of the profile `system`, derived if the profile does not state it. Throws
  /// config::ConfigError at the rule that refers to it if there is no such number or it depends on itself. If no rule
  /// refers to it, the profile must have the number or a rule for it.
  [[nodiscard]] Quantity at(const std::string& system, const std::string& pointer);
  /// Citation of a key of the profile's sources; "" if it has none.
  [[nodiscard]] std::string citation(const std::string& system, const std::string& key);

 private:
  PartialProfile& profile(const std::string& system);
  Quantity wanted(const std::string& system, const std::string& pointer, const Derivation* by);
  Quantity derived(const std::string& system, const Derivation& derivation);

  std::function<PartialProfile(const std::string&)> load_;
  std::map<std::string, PartialProfile> profiles_;
  std::vector<std::pair<std::string, std::string>> open_;  ///< Numbers in derivation, outermost first.
};

/// JSON of a quantity in a profile.
[[nodiscard]] nlohmann::json json_of(const Quantity& quantity);

}  // namespace foldwise::hwprofiles
