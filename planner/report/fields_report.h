#pragma once
#include <nlohmann/json.hpp>
#include <string>

// The table of fields and the sets of defaults, as `fields` prints them and docs/run-file.md holds them.
namespace foldwise::planner {

[[nodiscard]] std::string fields_text();
/// {fields: [{key, type, low, high, names, also, unit, default, flags, since, numerics, applies, doc}],
///  defaults: [{name, title, extends, values}]}
[[nodiscard]] nlohmann::json fields_json();

/// `document` with what lies between its lines "<!-- fields -->", "<!-- defaults -->" and "<!-- end -->" written anew.
/// Throws config::ConfigError, with `name` as the file, where it lacks one of them.
[[nodiscard]] std::string with_field_tables(const std::string& document, const std::string& name);

}  // namespace foldwise::planner
