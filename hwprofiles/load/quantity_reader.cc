#include "hwprofiles/load/quantity_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace foldwise::hwprofiles {

namespace {

using config::Diagnostics;
using config::Document;
using config::ObjectReader;
using nlohmann::json;

/// Reads the provenance of a number or name. `sources`: citations that it may refer to.
Provenance read_provenance(ObjectReader& reader, const json& sources) {
  Provenance provenance;
  provenance.kind = reader.required_string("kind");
  const std::vector<std::string> kinds{"datasheet", "measured", "fitted", "assumed"};
  if (!provenance.kind.empty() && std::find(kinds.begin(), kinds.end(), provenance.kind) == kinds.end())
    reader.error("kind", fmt::format("expected one of {}, found \"{}\"", fmt::join(kinds, ", "), provenance.kind));
  const std::string source = reader.required_string("source");
  if (const auto citation = sources.find(source); citation != sources.end() && citation->is_string())
    provenance.source = citation->get<std::string>();
  else if (!source.empty())
    reader.error("source", fmt::format("expected a key of /sources, found \"{}\"", source));
  provenance.date = reader.string("date").value_or("");
  provenance.note = reader.string("note").value_or("");
  return provenance;
}

CurveFit read_fit(ObjectReader reader) {
  CurveFit fit;
  fit.samples = reader.required_integer("samples", 1, 1'000'000'000);
  fit.training_error = reader.required_number("training_error", 0.0, 1e9);
  fit.validated_error = reader.required_number("validated_error", 0.0, 1e9);
  if (const json* range = reader.raw("range"); range == nullptr || !range->is_object()) {
    reader.error("range", "expected an object of [lowest, highest] by property");
  } else {
    for (const auto& item : range->items()) {
      const json& ends = item.value();
      if (ends.is_array() && ends.size() == 2 && ends[0].is_number() && ends[1].is_number() && ends[0] <= ends[1])
        fit.range[item.key()] = {ends[0].get<double>(), ends[1].get<double>()};
      else
        reader.error("range", fmt::format("{}: expected [lowest, highest], found {}", item.key(), ends.dump()));
    }
  }
  reader.finish();
  return fit;
}

}  // namespace

json sources_of(const std::vector<Document>& stack, std::size_t level, Diagnostics& diagnostics) {
  json sources = json::object();
  for (std::size_t i = stack.size(); i-- > level;) {
    const auto own = stack[i].root().find("sources");
    if (own == stack[i].root().end()) continue;
    ObjectReader reader(stack[i], *own, "/sources", diagnostics);
    for (const std::string& key : reader.keys()) sources[key] = reader.required_string(key);
  }
  return sources;
}

void read_names(const Document& document, const NamesField& field, const json& node, const json& sources,
                Profile& profile, Diagnostics& diagnostics) {
  ObjectReader reader(document, node, field.pointer, diagnostics);
  const std::size_t before = diagnostics.list().size();
  std::vector<std::string> names;
  if (field.list)
    names = reader.strings("value").value_or(std::vector<std::string>{});
  else
    names.push_back(reader.required_string("value"));
  if (!reader.has("value") && field.list) reader.error("value", "expected a list of names; missing");
  for (const std::string& name : names) {
    if (std::find(field.names.begin(), field.names.end(), name) != field.names.end() || name.empty()) continue;
    reader.error("value", fmt::format("expected one of {}, found \"{}\"{}", fmt::join(field.names, ", "), name,
                                      config::nearest_hint(name, field.names)));
  }
  Provenance provenance = read_provenance(reader, sources);
  reader.finish();
  if (diagnostics.list().size() != before) return;
  field.set(profile.hardware, names);
  profile.provenance.emplace(field.pointer, std::move(provenance));
}

void read_quantity(const Document& document, const Field& field, const json& node, const json& sources,
                   Profile& profile, Diagnostics& diagnostics) {
  if (!node.is_object()) {
    diagnostics.error({.file = document.file(), .line = document.line(field.pointer), .field = field.pointer},
                      fmt::format("expected an object with value, unit, kind and source, found {}", node.dump()));
    return;
  }
  ObjectReader reader(document, node, field.pointer, diagnostics);
  const std::size_t before = diagnostics.list().size();
  const double value = reader.required_number("value", -1e300, 1e300);
  std::vector<std::string> units;
  double scale = 0.0;
  const bool has_unit = reader.has("unit");
  const std::optional<std::string> unit = reader.string("unit");
  for (const auto& [name, size] : field.dimension->units) {
    units.push_back("\"" + name + "\"");
    if (unit == name) scale = size;
  }
  if (scale == 0.0 && (unit || !has_unit))
    reader.error("unit", fmt::format("expected the unit of {}, one of {}, found {}", field.dimension->name,
                                     fmt::join(units, ", "), unit ? "\"" + *unit + "\"" : "nothing"));
  Provenance provenance = read_provenance(reader, sources);
  reader.finish();
  if (diagnostics.list().size() != before) return;
  if (const auto range = out_of_range(field, value, *unit))
    reader.error("value", fmt::format("expected {}, found {}", *range, value));
  else
    field.set(profile.hardware, value * scale);
  profile.provenance.emplace(field.pointer, std::move(provenance));
}

void read_fits(const std::vector<Document>& stack, Profile& profile, Diagnostics& diagnostics) {
  for (const std::string& curve : curves(profile.json)) {
    for (const Document& document : stack) {
      if (!has(document.root(), curve)) continue;
      const json& node = document.root().at(json::json_pointer(curve));
      if (!node.is_object()) break;
      ObjectReader reader(document, node, curve, diagnostics);
      if (auto fit = reader.object("fit")) profile.fits.emplace(curve, read_fit(*std::move(fit)));
      break;
    }
  }
}

}  // namespace foldwise::hwprofiles
