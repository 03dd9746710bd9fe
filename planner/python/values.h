#pragma once
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>

#include "costmodel/config/diagnostics.h"

// Values from Python and for Python: arguments of its functions, and JSON as its objects.
namespace foldwise {

/// Equals json.loads(value.dump(), object_hook=kind) without the text in between, which has 8 KB for a prediction.
[[nodiscard]] nanobind::object to_python(const nlohmann::json& value, nanobind::handle kind);

/// A `Value` in messages.
template <typename Value>
[[nodiscard]] const char* expected() {
  if constexpr (std::is_same_v<Value, bool>) return "True or False";
  if constexpr (std::is_integral_v<Value>) return "a whole number";
  if constexpr (std::is_floating_point_v<Value>) return "a number";
  if constexpr (std::is_same_v<Value, std::string>) return "a text";
  return "another type";
}

/// The arguments of a Python function that are not None.
class Arguments {
 public:
  Arguments(const nanobind::dict& values, config::Diagnostics& diagnostics)
      : values_(values), diagnostics_(diagnostics) {}

  template <typename Value>
  void take(const char* key, Value& member) const {
    if (!values_.contains(key)) return;
    const nanobind::object value = values_[key];
    if (value.is_none() || nanobind::try_cast(value, member)) return;
    diagnostics_.error({config::kArguments, 0, key},
                       fmt::format("expected {}, found {}", expected<Value>(), nanobind::repr(value).c_str()));
  }
  template <typename Value>
  void take(const char* key, std::optional<Value>& member) const {
    if (!values_.contains(key) || nanobind::object(values_[key]).is_none()) return;
    Value value{};
    take(key, value);
    member = value;
  }

 private:
  const nanobind::dict& values_;
  config::Diagnostics& diagnostics_;
};

}  // namespace foldwise
