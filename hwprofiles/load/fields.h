#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/hardware/hardware.h"

// The quantities of a profile: reading, unknown and missing keys, scaling and derivation all follow from one table.
namespace foldwise::hwprofiles {

/// What a quantity measures: its units with their size in base units (s, B/s, B, FLOP/s, J/FLOP), and what messages
/// call it.
struct Dimension {
  std::string name;
  std::vector<std::pair<std::string, double>> units;
  /// Base units. Wide of all hardware, from a laptop's CPU on; inside of them no sum of a prediction overflows. What
  /// may be 0 may be less than `least`.
  double least = 1.0, most = 1e6;
};
/// Size of `unit` in base units; 0 if no quantity has it.
[[nodiscard]] double unit_size(const std::string& unit);

enum class Range { kPositive, kNotNegative, kShare, kCount, kAtLeastOne, kAny };

/// One quantity of a profile.
struct Field {
  std::string pointer;
  const Dimension* dimension;
  Range range;
  bool required;
  /// Sets it in base units, in a Hardware with the attention rows of the profile.
  std::function<void(costmodel::Hardware&, double)> set;
};

/// One or several names out of a closed set, with their provenance: {"value": "mxfp8", "kind": ..., "source": ...}.
struct NamesField {
  std::string pointer;
  std::vector<std::string> names;  ///< Known ones.
  bool list;                       ///< "value" is a list.
  bool required;
  std::function<void(costmodel::Hardware&, const std::vector<std::string>&)> set;
};
[[nodiscard]] std::vector<NamesField> names_fields(const nlohmann::json& merged);

/// Every quantity that the profile `merged` may have. Which curves are required follows from its peaks and attention
/// rows.
[[nodiscard]] std::vector<Field> fields(const nlohmann::json& merged);
/// Head dimensions that have an attention row, ascending.
[[nodiscard]] std::vector<std::int64_t> head_dims(const nlohmann::json& merged);
/// Curves that may say how they were fitted: `"fit": {...}` beside their numbers.
[[nodiscard]] std::vector<std::string> curves(const nlohmann::json& merged);
/// What was expected of `value`, in `unit`, where it is out of the field's range.
[[nodiscard]] std::optional<std::string> out_of_range(const Field& field, double value, const std::string& unit);

/// Whether `tree` has something at the JSON pointer.
[[nodiscard]] bool has(const nlohmann::json& tree, const std::string& pointer);
/// Place of a JSON pointer, made with the objects on the way. All steps are keys: "128" of an attention row too, of
/// which the library would make a list. Null where something else than an object is on the way.
[[nodiscard]] nlohmann::json* place(nlohmann::json& tree, const std::string& pointer);
/// Whether a node is a number with its unit and provenance.
[[nodiscard]] bool is_quantity(const nlohmann::json& node);
/// Empty where `node` is no object, or has no such text.
[[nodiscard]] std::string text_of(const nlohmann::json& node, const std::string& key);

}  // namespace foldwise::hwprofiles
