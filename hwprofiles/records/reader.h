#pragma once
#include <string>
#include <vector>

#include "costmodel/config/diagnostics.h"
#include "hwprofiles/records/record.h"

namespace foldwise::hwprofiles {

/// A file of records, all of one device.
struct Records {
  std::string file{};
  std::vector<Session> sessions{};
  /// In file order, correct ones only; of a setting measured again, the last.
  std::vector<Measurement> measurements{};
  std::vector<config::Diagnostic> warnings{};  ///< An incomplete last line, wrong results, what an import leaves out.
};

/// Reads `path` strictly. Throws config::ConfigError with every mistake: not JSON, unknown or missing fields, unknown
/// kernels and kinds, another schema, a second device, a measurement before its session line. An incomplete last line
/// is what an interrupted run leaves: a warning, unless nothing else is there.
[[nodiscard]] Records read_records(const std::string& path);
/// The same of a text; `name` is what messages call it.
[[nodiscard]] Records parse_records(const std::string& text, const std::string& name);

}  // namespace foldwise::hwprofiles
