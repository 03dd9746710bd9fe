#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hwprofiles/records/reader.h"

// Records of measurements that other programs made: what each gives is in docs/measuring.md#import.
namespace foldwise::hwprofiles {

/// What the file does not say.
struct ImportOptions {
  std::string device{};      ///< "NVIDIA H200"; needed for nccl-tests without a device list and to choose from tables.
  std::int64_t ranks = 0;    ///< Of nccl-tests without a device list; 0: from bus over algorithm bandwidth.
  std::string collective{};  ///< "all_reduce"; needed for nccl-tests before 2.17, which do not name theirs.
};

/// Reads nccl-tests output (text or JSON) or a PyTorch profiler trace (Kineto, with record_shapes=True); which of them
/// it is shows in the file. Throws config::ConfigError: unreadable, none of them, nothing to import, or an option is
/// missing.
[[nodiscard]] Records import_records(const std::string& path, const ImportOptions& options);
/// The same of a text; `name` is what messages call it.
[[nodiscard]] Records import_text(const std::string& text, const std::string& name, const ImportOptions& options);

/// Linear layers of `gpu` in the reduced aiconfigurator tables: forward GEMMs, and in low precision the quantisation of
/// the activation with them.
[[nodiscard]] std::vector<Measurement> import_linear_layers(const nlohmann::ordered_json& kernels,
                                                            const std::string& gpu);

/// One record a line: what a measuring program would have written.
[[nodiscard]] std::string to_json_lines(const Records& records);

}  // namespace foldwise::hwprofiles
