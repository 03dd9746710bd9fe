#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hwprofiles/records/reader.h"

// Imports measurements of other programs as records: docs/measuring.md#import.
namespace foldwise::hwprofiles {

/// Facts that the file does not state.
struct ImportOptions {
  std::string device{};      ///< "NVIDIA H200"; needed for nccl-tests without a device list and to choose from tables.
  std::int64_t ranks = 0;    ///< For nccl-tests without a device list; 0: computed from bus and algorithm bandwidth.
  std::string collective{};  ///< "all_reduce"; needed for nccl-tests before 2.17, which do not print it.
};

/// Reads nccl-tests output (text or JSON) or a PyTorch profiler trace (Kineto, with record_shapes=True), and detects
/// the format. Throws config::ConfigError: unreadable, unknown format, nothing to import, or a missing option.
[[nodiscard]] Records import_records(const std::string& path, const ImportOptions& options);
/// Imports from a text. `name`: its name in messages.
[[nodiscard]] Records import_text(const std::string& text, const std::string& name, const ImportOptions& options);

/// Linear layers of `gpu` in the reduced aiconfigurator tables: forward GEMMs, in low precision including quantisation
/// of the activation.
[[nodiscard]] std::vector<Measurement> import_linear_layers(const nlohmann::ordered_json& kernels,
                                                            const std::string& gpu);

/// One record per line, in the format of the measuring programs.
[[nodiscard]] std::string to_json_lines(const Records& records);

}  // namespace foldwise::hwprofiles
