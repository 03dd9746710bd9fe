#pragma once
#include <string>
#include <vector>

#include "planner/diagnose/trace.h"

// Reads the SQLite file that `nsys export --type sqlite` makes of an Nsight Systems profile. Tables and columns:
// "SQLite Schema Reference" of its Exporter documentation, 2024.1 to 2025.5.
namespace foldwise::planner {

/// Whether the file starts with the SQLite signature.
[[nodiscard]] bool is_sqlite(const std::string& path);

/// One trace for each process that ran kernels, of its first GPU. If there are several GPUs, the GPU's number is the
/// rank. Operators are NVTX ranges in the format of torch.autograd.profiler.emit_nvtx(record_shapes=True), which
/// Megatron's --profile uses. Throws ConfigError: not SQLite, damaged, a table or column is missing, no kernel.
[[nodiscard]] std::vector<Trace> read_nsys(const std::string& path);

}  // namespace foldwise::planner
