#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/hardware/hardware.h"

// Quantities of a profile. One table drives reading, checks for unknown and missing keys, scaling and derivation.
namespace foldwise::hwprofiles {

/// Dimension of a quantity: its name in messages, and its units with their size in base units (s, B/s, B, FLOP/s,
/// J/FLOP).
struct Dimension {
  std::string name;
  std::vector<std::pair<std::string, double>> units;
  /// Range in base units, wider than that of all hardware from a laptop's CPU on. Within it no sum of a prediction
  /// overflows. A quantity that may be 0 may be below `least`.
  double least = 1.0, most = 1e6;
};
/// Size of `unit` in base units; 0 for an unknown unit.
[[nodiscard]] double unit_size(const std::string& unit);

enum class Range { kPositive, kNotNegative, kShare, kCount, kAtLeastOne, kAny };

struct Field {
  std::string pointer;
  const Dimension* dimension;
  Range range;
  bool required;
  /// Sets the quantity, in base units, in a Hardware with the profile's attention rows.
  std::function<void(costmodel::Hardware&, double)> set;
};

/// One or several names out of a fixed set, with provenance: {"value": "mxfp8", "kind": ..., "source": ...}.
struct NamesField {
  std::string pointer;
  std::vector<std::string> names;  ///< Accepted names.
  bool list;                       ///< "value" is a list.
  bool required;
  std::function<void(costmodel::Hardware&, const std::vector<std::string>&)> set;
};
[[nodiscard]] std::vector<NamesField> names_fields(const nlohmann::json& merged);

/// All quantities that the profile `merged` may have. Its peaks and attention rows decide which curves are required.
[[nodiscard]] std::vector<Field> fields(const nlohmann::json& merged);
/// Head dimensions that have an attention row, ascending.
[[nodiscard]] std::vector<std::int64_t> head_dims(const nlohmann::json& merged);
/// Pointers of curves that may have a `"fit": {...}` beside their numbers.
[[nodiscard]] std::vector<std::string> curves(const nlohmann::json& merged);
/// The expected range as text if `value`, in `unit`, is out of the field's range.
[[nodiscard]] std::optional<std::string> out_of_range(const Field& field, double value, const std::string& unit);

[[nodiscard]] bool has(const nlohmann::json& tree, const std::string& pointer);
/// The value at a JSON pointer. Creates missing objects on the way. All steps are keys, even "128" of an attention row,
/// for which the library would create a list. Nullptr if something on the way is not an object.
[[nodiscard]] nlohmann::json* place(nlohmann::json& tree, const std::string& pointer);
/// Whether a node is a number with its unit and provenance.
[[nodiscard]] bool is_quantity(const nlohmann::json& node);
/// Empty if `node` is not an object or has no such text.
[[nodiscard]] std::string text_of(const nlohmann::json& node, const std::string& key);

}  // namespace foldwise::hwprofiles
