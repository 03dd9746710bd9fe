#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "hwprofiles/fit/curve_fit.h"

namespace foldwise::hwprofiles {

/// Provenance of a fitted number. `source`: a key of the profile's /sources.
struct Origin {
  std::string kind, source, note, date = "2026-08";
};

/// A profile being rewritten. Keeps the order of its keys, and writes numbers with four digits.
class Sheet {
 public:
  explicit Sheet(nlohmann::ordered_json json) : json_(std::move(json)), exact_(json_) {}

  void put(const std::string& pointer, double value, const std::string& unit, const Origin& origin);
  /// Writes the kept parameters of `curve`, with its errors as their notes (after `note`), and its "fit".
  void put(const FittedCurve& curve, Origin origin);
  void cite(const std::string& key, const std::string& citation) {
    json_["sources"][key] = exact_["sources"][key] = citation;
  }
  [[nodiscard]] nlohmann::ordered_json& json() { return json_; }
  [[nodiscard]] const nlohmann::ordered_json& json() const { return json_; }
  /// The profile with unrounded numbers, from which other numbers are derived.
  [[nodiscard]] const nlohmann::ordered_json& exact() const { return exact_; }
  /// Text in the format of the built-in profiles: one quantity per line.
  [[nodiscard]] std::string text() const;

 private:
  nlohmann::ordered_json json_, exact_;
};

/// Rounds to the four digits of the file, so that printed and written numbers agree.
[[nodiscard]] double rounded(double value);

/// "24 samples, median error 7.9 %, left out 9.3 %"
[[nodiscard]] std::string errors_text(const FitError& training, const FitError& validated);

}  // namespace foldwise::hwprofiles
