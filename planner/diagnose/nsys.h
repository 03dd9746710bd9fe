#pragma once
#include <string>
#include <vector>

#include "planner/diagnose/trace.h"

// What `nsys export --type sqlite` writes of a profile by Nsight Systems. Tables and columns: "SQLite Schema Reference"
// of its Exporter documentation, 2024.1 to 2025.5.
namespace foldwise::planner {

/// Whether the file begins as a database of SQLite does.
[[nodiscard]] bool is_sqlite(const std::string& path);

/// A trace for each process that ran kernels, by its first GPU: its rank is that GPU's number where there are several.
/// Operators are ranges of NVTX as torch.autograd.profiler.emit_nvtx(record_shapes=True) names them, which Megatron's
/// --profile does. Throws ConfigError: not SQLite, damaged, a table or column is missing, no kernel.
[[nodiscard]] std::vector<Trace> read_nsys(const std::string& path);

}  // namespace foldwise::planner
