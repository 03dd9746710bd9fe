#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/step/step.h"
#include "planner/diagnose/trace.h"

// Which op of the model a kernel belongs to.
namespace foldwise::planner {

/// How a kernel's module was found.
enum class FoundBy : std::uint8_t {
  kFunction,  ///< By the operator or the autograd function that launched it.
  kShape,     ///< By the sizes of the weight, or of the norm, that the function was given.
  kOrder,     ///< It has no such function: the module of what its thread launched before.
  kNothing,
};

/// A kernel's place in the op list: names as DetailEntry has them.
struct KernelOp {
  std::string kind, module, group;
  bool recomputed = false;  ///< Of a forward that runs again in backward.
  FoundBy found = FoundBy::kNothing;
  bool operator==(const KernelOp&) const = default;
};

/// What memory of the GPU was asked for by.
struct MemoryOwner {
  std::string phase;   ///< "forward", "backward", "recomputed", "optimizer step".
  std::string module;  ///< As KernelOp's; empty: not known.
  bool operator==(const MemoryOwner&) const = default;
};

/// A linear layer of the op list forward, whose weight no other module has.
struct LinearProduct {
  std::string module;
  double m = 0.0;  ///< Rows of a micro-batch.
  std::int64_t n = 0, k = 0;
  Seconds time{};  ///< Predicted, at the clocks of short products.
};

struct MappedKernels {
  std::vector<KernelOp> ops;          ///< Distinct ones.
  std::vector<std::int32_t> op;       ///< [Trace::gpu] index into ops.
  std::vector<LinearProduct> linear;  ///< Distinct ones.
  std::vector<std::int32_t> product;  ///< [Trace::gpu] index into linear; -1: no GEMM of theirs forward.
  std::vector<MemoryOwner> owners;    ///< Distinct ones.
  std::vector<std::int32_t> owner;    ///< [Trace::allocations] index into owners; -1: memory is taken back.
};

/// Rules are planner/diagnose/kernel_rules.json. `step`: of the run, for the sizes of its weights.
[[nodiscard]] MappedKernels map_kernels(const Trace& trace, const costmodel::Step& step);

/// What a kernel of this name does: a kind of DetailEntry; "unknown": no rule names it.
[[nodiscard]] std::string kernel_kind(const std::string& name);

/// Of kernel_kind(): whether it is communication.
[[nodiscard]] bool is_communication(const std::string& kind);

/// Whether kernels of this kind are products: GEMMs, grouped or not, and attention.
[[nodiscard]] bool is_product(std::string_view kind);

/// Whether a kernel of this name copies to or from the host.
[[nodiscard]] bool is_host_copy(const std::string& name);

/// Whether an operator multiplies all experts of a layer by their rows.
[[nodiscard]] bool is_grouped_product(const std::string& name);

/// What the GPU waits for while the host is in a range that the program marks, or in a call of Python
/// ("dir/file.py(12): function"): "data loading", "garbage collection", "checkpointing"; none: no rule names it.
[[nodiscard]] std::optional<std::string> host_wait(const std::string& name);

/// Whether such a range is a step of training.
[[nodiscard]] bool is_step(const std::string& name);

/// Flags of Megatron that a finding (Finding::what) may come from: "[key]" of a field, as with_flags() takes it, or the
/// flag. Empty: no flag mends it. None: no rule names it.
[[nodiscard]] std::optional<std::vector<std::string>> flags_behind(const std::string& finding);

}  // namespace foldwise::planner
