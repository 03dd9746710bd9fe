#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "hwprofiles/fit/curve_fit.h"

namespace foldwise::hwprofiles {

/// Provenance of a number that a fit writes; `source` is a key of the profile's /sources.
struct Origin {
  std::string kind, source, note, date = "2026-08";
};

/// A profile being rewritten, keys in their order. Numbers are written with four digits.
class Sheet {
 public:
  explicit Sheet(nlohmann::ordered_json json) : json_(std::move(json)), exact_(json_) {}

  void put(const std::string& pointer, double value, const std::string& unit, const Origin& origin);
  /// The parameters of `curve` that are kept, with its errors as their notes (after `note`), and its "fit".
  void put(const FittedCurve& curve, Origin origin);
  void cite(const std::string& key, const std::string& citation) {
    json_["sources"][key] = exact_["sources"][key] = citation;
  }
  [[nodiscard]] nlohmann::ordered_json& json() { return json_; }
  [[nodiscard]] const nlohmann::ordered_json& json() const { return json_; }
  /// The same with the numbers that were put as they were given: what other numbers are derived from.
  [[nodiscard]] const nlohmann::ordered_json& exact() const { return exact_; }
  /// As the built-in profiles are written: a quantity a line.
  [[nodiscard]] std::string text() const;

 private:
  nlohmann::ordered_json json_, exact_;
};

/// A fitted number, rounded to the four digits that are written; printed and written are the same.
[[nodiscard]] double rounded(double value);

/// "24 samples, median error 7.9 %, left out 9.3 %"
[[nodiscard]] std::string errors_text(const FitError& training, const FitError& validated);

}  // namespace foldwise::hwprofiles
