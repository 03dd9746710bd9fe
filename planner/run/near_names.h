#pragma once
#include <string>

// Resolves short names from a command line. A name stands for itself, or for the only thing that it can be short for. A
// name that can mean nothing is returned unchanged, and its reader reports it. A name that can mean several things
// throws ConfigError, which lists them.
namespace foldwise::planner {

/// A built-in model: "qwen3-235b", "Qwen/Qwen3-235B-A22B". A file of that name comes first.
[[nodiscard]] std::string model_meant(const std::string& name);
/// A built-in system: "gb200". A profile does not count if it only changes another one that matches too, so "h100" is
/// "h100-sxm-80gb".
[[nodiscard]] std::string system_meant(const std::string& name);
/// A field: "tensor_parallel" and "--tensor-model-parallel-size" are "tp", "micro" is "micro_batch".
[[nodiscard]] std::string field_meant(const std::string& key);

}  // namespace foldwise::planner
