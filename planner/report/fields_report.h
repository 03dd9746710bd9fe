#pragma once
#include <nlohmann/json.hpp>
#include <string>

// The table of fields and the sets of defaults: output of `fields`, and part of docs/run-file.md.
namespace foldwise::planner {

[[nodiscard]] std::string fields_text();
/// {fields: [{key, type, low, high, names, also, unit, default, flags, since, numerics, applies, doc}],
///  defaults: [{name, title, extends, values}]}
[[nodiscard]] nlohmann::json fields_json();

/// `document` with new text between its markers "<!-- fields -->", "<!-- defaults -->" and "<!-- end -->". Throws
/// config::ConfigError, with `name` as the file name, if a marker is missing.
[[nodiscard]] std::string with_field_tables(const std::string& document, const std::string& name);

}  // namespace foldwise::planner
