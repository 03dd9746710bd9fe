#pragma once
#include <string>

// What a name on a command line means: itself, or the only thing that it can be short for. A name that can mean nothing
// is given back as it is, for its reader to report; one that can mean several things throws ConfigError with all of
// them.
namespace foldwise::planner {

/// A built-in model: "qwen3-235b", "Qwen/Qwen3-235B-A22B". Files come first.
[[nodiscard]] std::string model_meant(const std::string& name);
/// A built-in system: "gb200". Profiles that only change another one that is meant as well do not count, so that "h100"
/// is "h100-sxm-80gb".
[[nodiscard]] std::string system_meant(const std::string& name);
/// A field: "tensor_parallel" and "--tensor-model-parallel-size" are "tp", "micro" is "micro_batch".
[[nodiscard]] std::string field_meant(const std::string& key);

}  // namespace foldwise::planner
