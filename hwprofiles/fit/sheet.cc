#include "hwprofiles/fit/sheet.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace foldwise::hwprofiles {
namespace {

using Json = nlohmann::ordered_json;

/// The value at `pointer`. Creates missing objects on the way ("/attention/128" is a key, not an index).
Json& place(Json& root, const std::string& pointer) {
  Json* node = &root;
  for (std::size_t at = 0; at < pointer.size();) {
    const std::size_t end = std::min(pointer.find('/', at + 1), pointer.size());
    node = &(*node)[pointer.substr(at + 1, end - at - 1)];
    at = end;
  }
  return *node;
}

std::string one_line(const Json& node) {
  std::string text;
  if (node.is_array() && !node.empty() && node.front().is_string()) {
    for (const Json& item : node) text += (text.empty() ? "[" : ", ") + item.dump();
    return text + "]";
  }
  if (!node.is_object()) return node.dump();
  for (const auto& item : node.items())
    text += (text.empty() ? "{" : ", ") + Json(item.key()).dump() + ": " + one_line(item.value());
  return text.empty() ? "{}" : text + "}";
}

std::string text_of(const Json& node, int depth) {
  const std::string indent(static_cast<std::size_t>(depth) * 2, ' ');
  std::string text;
  if (node.is_array() && !node.empty() && node.front().is_object()) {
    for (const Json& item : node) text += (text.empty() ? "" : ",\n") + indent + "  " + one_line(item);
    return "[\n" + text + "\n" + indent + "]";
  }
  if (!node.is_object() || node.contains("value") || node.contains("samples")) return one_line(node);
  for (const auto& item : node.items())
    text +=
        (text.empty() ? "" : ",\n") + indent + "  " + Json(item.key()).dump() + ": " + text_of(item.value(), depth + 1);
  return "{\n" + text + "\n" + indent + "}";
}

}  // namespace

void Sheet::put(const std::string& pointer, double value, const std::string& unit, const Origin& origin) {
  Json quantity = {{"value", value},          {"unit", unit},        {"kind", origin.kind},
                   {"source", origin.source}, {"date", origin.date}, {"note", origin.note}};
  place(exact_, pointer) = quantity;
  quantity["value"] = unit == "SM" ? std::round(value) : rounded(value);
  place(json_, pointer) = std::move(quantity);
}

void Sheet::put(const FittedCurve& curve, Origin origin) {
  origin.note = (origin.note.empty() ? "" : origin.note + ": ") + errors_text(curve.training, curve.validated);
  for (std::size_t i = 0; i < curve.parameters.size(); ++i)
    if (curve.parameters[i].kept) put(curve.parameters[i].pointer, curve.values[i], curve.parameters[i].unit, origin);
  if (curve.pointer.empty() || curve.validated.samples == 0) return;
  Json range = Json::object();
  for (const auto& [property, ends] : curve.range) range[property] = {ends.first, ends.second};
  place(json_, curve.pointer + "/fit") = {{"samples", curve.training.samples},
                                          {"training_error", rounded(curve.training.median)},
                                          {"validated_error", rounded(curve.validated.median)},
                                          {"range", std::move(range)}};
}

std::string Sheet::text() const { return text_of(json_, 0) + "\n"; }

double rounded(double value) {
  if (value == 0.0) return 0.0;
  const double scale = std::pow(10.0, 3.0 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

std::string errors_text(const FitError& training, const FitError& validated) {
  return fmt::format(
      "{} samples, median error {:.1f} %{}", training.samples, 100 * training.median,
      validated.samples == 0 ? "" : fmt::format(", left out of the fit {:.1f} %", 100 * validated.median));
}

}  // namespace foldwise::hwprofiles
