#pragma once
#include <string>
#include <vector>

#include "costmodel/config/diagnostics.h"
#include "hwprofiles/records/record.h"

namespace foldwise::hwprofiles {

/// Records of one device from a file.
struct Records {
  std::string file{};
  std::vector<Session> sessions{};
  /// In file order, correct ones only. For a setting that was measured again, the last one.
  std::vector<Measurement> measurements{};
  std::vector<config::Diagnostic> warnings{};  ///< An incomplete last line, wrong results, data that an import omits.
};

/// Reads `path` strictly. Throws config::ConfigError with every mistake: not JSON, unknown or missing fields, unknown
/// kernels and kinds, another schema, a second device, a measurement before its session line. An incomplete last line,
/// as an interrupted run leaves it, is only a warning unless it is the only line.
[[nodiscard]] Records read_records(const std::string& path);
/// Parses a text. `name`: its name in messages.
[[nodiscard]] Records parse_records(const std::string& text, const std::string& name);

}  // namespace foldwise::hwprofiles
