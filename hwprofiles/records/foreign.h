#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "costmodel/config/diagnostics.h"
#include "hwprofiles/records/record.h"

// Shared by the readers of other programs' measurements.
namespace foldwise::hwprofiles {

inline constexpr double kMostMicroseconds = 1e12, kMostBytes = 1e15;  // Weeks, and more bytes than a node has.

[[noreturn]] inline void refuse_import(const std::string& file, int line, std::string message) {
  throw config::ConfigError({{{file, line, ""}, std::move(message)}});
}

/// Lenient, for other programs' files, like text_of: a value that is not an object has no children.
[[nodiscard]] inline const nlohmann::json& child(const nlohmann::json& node, const char* key) {
  static const nlohmann::json nothing;
  const auto found = node.is_object() ? node.find(key) : node.end();
  return found != node.end() ? *found : nothing;
}

/// One timed call of a collective with equal parts.
[[nodiscard]] inline Measurement collective(const std::string& kind, std::int64_t ranks, double bytes,
                                            double microseconds) {
  Measurement measurement;
  measurement.kernel = "collective";
  measurement.of = {{"collective", kind}, {"distribution", "even"}};
  measurement.shape = {{"ranks", ranks}, {"bytes", static_cast<std::int64_t>(bytes)}};
  measurement.bytes = bytes;
  measurement.samples_us = {microseconds};
  measurement.correct = true;
  return measurement;
}

}  // namespace foldwise::hwprofiles
