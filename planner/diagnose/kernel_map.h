#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/step/step.h"
#include "planner/diagnose/trace.h"

// Maps each kernel to an op of the model.
namespace foldwise::planner {

enum class FoundBy : std::uint8_t {
  kFunction,  ///< By the operator or autograd function that launched it.
  kShape,     ///< By the size of the function's weight or norm.
  kOrder,     ///< No such function: the module of the thread's previous launch.
  kNothing,
};

/// Place of a kernel in the op list, with the names of DetailEntry.
struct KernelOp {
  std::string kind, module, group;
  bool recomputed = false;  ///< Part of a forward that runs again in backward.
  FoundBy found = FoundBy::kNothing;
  bool operator==(const KernelOp&) const = default;
};

/// Who requested GPU memory.
struct MemoryOwner {
  std::string phase;   ///< "forward", "backward", "recomputed", "optimizer step".
  std::string module;  ///< As in KernelOp; empty: not known.
  bool operator==(const MemoryOwner&) const = default;
};

/// Forward GEMM of a linear layer whose weight size no other module has.
struct LinearProduct {
  std::string module;
  double m = 0.0;  ///< Rows per micro-batch.
  std::int64_t n = 0, k = 0;
  Seconds time{};  ///< Predicted, at the clock of short products.
};

struct MappedKernels {
  std::vector<KernelOp> ops;          ///< Without duplicates.
  std::vector<std::int32_t> op;       ///< [Trace::gpu] index into ops.
  std::vector<LinearProduct> linear;  ///< Without duplicates.
  std::vector<std::int32_t> product;  ///< [Trace::gpu] index into linear; -1: not one of these forward GEMMs.
  std::vector<MemoryOwner> owners;    ///< Without duplicates.
  std::vector<std::int32_t> owner;    ///< [Trace::allocations] index into owners; -1: a deallocation.
};

/// Uses planner/diagnose/kernel_rules.json. `step`: the composed step of the run, for the sizes of its weights.
[[nodiscard]] MappedKernels map_kernels(const Trace& trace, const costmodel::Step& step);

/// Kind, as in DetailEntry, of a kernel with this name; "unknown" if no rule matches.
[[nodiscard]] std::string kernel_kind(const std::string& name);

[[nodiscard]] bool is_communication(const std::string& kind);

/// Whether a kind is a product: GEMM, grouped GEMM or attention.
[[nodiscard]] bool is_product(std::string_view kind);

[[nodiscard]] bool is_host_copy(const std::string& name);

/// Whether an operator runs the grouped GEMM of all experts of a layer.
[[nodiscard]] bool is_grouped_product(const std::string& name);

/// Cause of GPU waits while the host is in a range that the program marks, or in a Python call ("dir/file.py(12):
/// function"): "data loading", "garbage collection", "checkpointing". Nullopt if no rule matches.
[[nodiscard]] std::optional<std::string> host_wait(const std::string& name);

/// Whether a range that the program marks is a training step.
[[nodiscard]] bool is_step(const std::string& name);

/// Megatron flags that a finding (Finding::what) may come from, as flags or as the "[key]" of a field that with_flags()
/// takes. Empty: no flag helps. Nullopt: no rule matches.
[[nodiscard]] std::optional<std::vector<std::string>> flags_behind(const std::string& finding);

}  // namespace foldwise::planner
