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
// "field", "of" (the same, where it is missing) and "to" are JSON pointers, one or a list, in which {a,b} stands for a
// and b; "from" is a built-in profile, the profile itself where it is missing; "by" a pointer or a ratio [over, under];
// "source" and "note" replace those of the number that is carried over.
namespace foldwise::hwprofiles {

/// How one number of a profile follows from others.
struct Derivation {
  std::string field;           ///< JSON pointer of the number.
  const Rule* rule = nullptr;  ///< Never null once read.
  std::string from;            ///< Profile that `of` is read in; empty: the number's own.
  std::string of;              ///< Number that is carried over.
  std::string by;              ///< Pointer whose ratio scales; empty: `factor`.
  double factor = 1.0;
  std::string to{};
  std::string source{}, note{};  ///< Instead of the carried number's.
  bool share = false;            ///< At most 1.
  config::Location where;        ///< Of the rule.
};

/// "/a/{b,c}/d" -> "/a/b/d", "/a/c/d".
[[nodiscard]] std::vector<std::string> expanded(const std::string& pattern);

/// The derivations of `document`, a part of the profile `merged`; `systems` are the names that "from" may have. Reports
/// unknown keys, rules, systems and fields with the nearest known one, and two rules for one number.
[[nodiscard]] std::vector<Derivation> read_derivations(const config::Document& document, const nlohmann::json& merged,
                                                       const std::vector<std::string>& systems,
                                                       config::Diagnostics& diagnostics);

/// A profile whose numbers are partly still to be derived.
struct PartialProfile {
  nlohmann::json tree;                            ///< Without the numbers to derive.
  std::map<std::string, Derivation> derivations;  ///< By the pointer of the number.
};

/// Derives numbers of profiles that may derive theirs from each other.
class Deriver {
 public:
  /// `load` gives the profile of a name; called once for each.
  explicit Deriver(std::function<PartialProfile(const std::string&)> load) : load_(std::move(load)) {}

  /// The number at `pointer` of the profile `system`: as it stands there, else derived. Throws config::ConfigError at
  /// the rule that asked: no such number, or one that depends on itself. Requires that the profile has the number or a
  /// rule for it where no rule asks.
  [[nodiscard]] Quantity at(const std::string& system, const std::string& pointer);
  /// Citation of a key of the profile's sources; "" if it has none.
  [[nodiscard]] std::string citation(const std::string& system, const std::string& key);

 private:
  PartialProfile& profile(const std::string& system);
  Quantity wanted(const std::string& system, const std::string& pointer, const Derivation* by);
  Quantity derived(const std::string& system, const Derivation& derivation);

  std::function<PartialProfile(const std::string&)> load_;
  std::map<std::string, PartialProfile> profiles_;
  std::vector<std::pair<std::string, std::string>> open_;  ///< Numbers being derived, outermost first.
};

/// As a profile writes it.
[[nodiscard]] nlohmann::json json_of(const Quantity& quantity);

}  // namespace foldwise::hwprofiles
