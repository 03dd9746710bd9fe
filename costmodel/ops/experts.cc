#include <cmath>
#include <string_view>

#include "costmodel/ops/block_cost.h"
#include "costmodel/ops/expert_kernel.h"
#include "costmodel/ops/mlp.h"

namespace foldwise::costmodel {
namespace {

using RM = RecomputeModule;
using OM = OffloadModule;

// Megatron clamps both halves of fc1's output, joins them, and passes the result to the fused activation
// (fusions/fused_bias_geglu.py: weighted_bias_quick_geglu_impl). The halves are strided.
void clamp(Builder& b, double elements) {
  b.op_pair("activation_clamp", SoftwareWork{SoftwareKernel::kActivationClampForward, elements},
            SoftwareWork{SoftwareKernel::kActivationClampBackward, elements}, 3, 7);
  b.keep_for(1, "clamped", kBf16 * elements, {RM::kMoe, RM::kMoeAct}, {OM::kMoeAct});
  b.backward_transient({kBf16 * elements, kBf16 * elements});
}

// fc2's bias is multiplied by the probabilities in their type, expert by expert, then joined and cast back
// (transformer/moe/experts.py: TEGroupedMLP._apply_bias). The kernels are timed in FP32. Of the bytes that they move
// then (benchmarks/accuracy/journal.md#software), BF16 needs 12 of 28 in forward (product 2, sum 6, join 4) and 18 of
// 38 in backward (join 4, split 4, both factors 8, sums 2).
void expert_bias(Builder& b, double elements, std::int64_t experts) {
  const int each = static_cast<int>(experts);
  const bool fp32 = b.options().software.router_fp32;
  const double forward = fp32 ? 1.0 : 12.0 / 28.0, backward = fp32 ? 1.0 : 18.0 / 38.0;
  b.op_pair("expert_bias", SoftwareWork{SoftwareKernel::kExpertBiasForward, forward * elements, experts},
            SoftwareWork{SoftwareKernel::kExpertBiasBackward, backward * elements, experts}, 2 * each + 2,
            5 * each + 2);
  const double bytes = (fp32 ? kFp32 : kBf16) * elements;
  b.forward_transient({bytes, bytes});
  b.backward_transient({bytes, bytes});
}

// The experts of this rank, each of which is an MLP.
struct RankExperts {
  const ExpertKernel& kernel;
  std::int64_t count;
  double rows, mean;  // Rows of all experts, and of one.
  // Per row: size of fc1's input, size of fc2's input, and fc1's output size over the latter.
  double hidden, width, gate;
  double kept;  // Bytes per element of the input that a linear keeps, in the recipe's format.
  bool low_precision, bias;
  bool te;  // A module of Transformer Engine.

  [[nodiscard]] std::int64_t fc1_out() const { return static_cast<std::int64_t>(gate * width); }
  [[nodiscard]] std::int64_t fc2_in() const { return static_cast<std::int64_t>(width); }
  [[nodiscard]] std::int64_t fc2_out() const { return static_cast<std::int64_t>(hidden); }
  [[nodiscard]] bool one_by_one() const { return kernel.mlp_each && count > 1; }
  // Number of tensors of a linear's operands: one for the rows of all experts, or one per expert.
  [[nodiscard]] std::int64_t quantised_tensors() const { return kernel.fuses_activation ? 1 : count; }
  [[nodiscard]] std::int64_t weight_tensors() const { return kernel.one_tensor ? 1 : count; }
  // Modules that the host enters for a linear, all counted with fc1: the whole MLP, or each expert's and the one that
  // joins them. Norms and communication do not count (benchmarks/accuracy/journal.md#a-sheet-of-a-host).
  [[nodiscard]] std::int32_t modules(bool fc1) const {
    if (!te) return 0;
    if (!one_by_one()) return 1;
    return fc1 ? static_cast<std::int32_t>(count + 1) : 0;
  }
};

RankExperts rank_experts(const Builder& b, const MoeSizes& z) {
  const LayerOptions& o = b.options();
  const std::int64_t count = b.shape().local_experts;
  return {.kernel = expert_kernel(o),
          .count = count,
          .rows = z.rows,
          .mean = z.rows / static_cast<double>(count),
          .hidden = z.hr,
          .width = static_cast<double>(b.model().moe.ffn_hidden_size) / static_cast<double>(o.etp),
          .gate = gate_factor(b.model()),
          .kept = b.recipe().saved_input_bytes(),
          .low_precision = b.recipe().low_precision(),
          .bias = b.model().add_bias_linear,
          .te = o.software.transformer_engine};
}

// One linear of all experts, with the sizes of one expert.
struct GroupedLinear {
  LoraModule module;
  std::int64_t out, in;

  [[nodiscard]] bool fc1() const { return module == LoraModule::kLinearFc1; }
  [[nodiscard]] std::string_view name() const { return fc1() ? "linear_fc1" : "linear_fc2"; }
};

// Tensors alive during a backward product: gradients of input and output, and the quantised output gradient in both
// layouts.
void keep_gradients(Builder& b, const RankExperts& e, const GroupedLinear& l, Op& op) {
  const auto in = static_cast<double>(l.in), out = static_cast<double>(l.out);
  const double quantised = e.low_precision ? e.kept * e.rows * out : 0.0;
  b.transient_of(op, {kBf16 * e.rows * in, kBf16 * e.rows * out, quantised, quantised});
}

// BF16 weight gradients without gradient accumulation fusion. Both weights of grouped experts are views made before
// both GEMMs, so autograd passes both gradients on only after fc1's backward.
void add_weight_gradient(Builder& b, const RankExperts& e, const GroupedLinear& l) {
  const auto experts = static_cast<double>(e.count), weight = static_cast<double>(l.out * l.in);
  constexpr double kReadAndWritten = kBf16 + 2.0 * kFp32;  // main_grad += grad
  Op& add =
      b.backward(l.name(), Phase::kWgrad, MemoryWork{MemoryOp::kReduce, Bytes{kReadAndWritten * experts * weight}});
  if (e.kernel.mlp_each) return add_transient(add, {kBf16 * weight});
  add.holds = Bytes{kBf16 * experts * weight};
  if (!l.fc1()) return;
  keep_gradients(b, e, l, add);
  add.releases = Bytes{kBf16 * static_cast<double>(e.count * e.fc2_out()) * (e.gate + 1.0) * e.width};
}

void weight_gradient(Builder& b, const RankExperts& e, const GroupedLinear& l) {
  const Software& software = b.options().software;
  const bool fp32 = software.gradient_accumulation_fusion && b.options().grad_reduce_in_fp32;
  Op& wgrad = b.backward(
      l.name(), Phase::kWgrad,
      GemmWork{b.recipe().format(GemmPhase::kWgrad), static_cast<double>(l.out), l.in,
               static_cast<std::int64_t>(std::ceil(e.mean)), e.count, fp32, e.kernel.grouping(e.count, true)},
      e.kernel.launches_of(e.count, true));
  wgrad.dummy_gradient = software.gradient_accumulation_fusion && software.transformer_engine;
  keep_gradients(b, e, l, wgrad);
  b.inside_module(false);
  if (l.fc1() && e.bias && !e.kernel.fuses_activation)  // expert_bias() has fc2's.
    b.backward("bias_gradient", Phase::kWgrad,
               SoftwareWork{SoftwareKernel::kBiasGradient, e.rows * static_cast<double>(l.out), e.count},
               static_cast<int>(e.count));
  if (!software.gradient_accumulation_fusion) add_weight_gradient(b, e, l);
}

void grouped_linear(Builder& b, const RankExperts& e, const GroupedLinear& l) {
  const auto in = static_cast<double>(l.in), out = static_cast<double>(l.out);
  // Tensors between the linears, which fused kernels write quantised: fc2's input, and fc1's output gradient in
  // backward.
  const bool quantises_input = e.low_precision && (l.fc1() || !e.kernel.fuses_activation),
             quantises_gradient = e.low_precision && (!l.fc1() || !e.kernel.fuses_activation);
  const auto product = [&](GemmPhase phase, std::int64_t n, std::int64_t k) {
    return GemmWork{b.recipe().format(phase), e.mean, n, k, e.count, false, e.kernel.grouping(e.count)};
  };
  const int launches = e.kernel.launches_of(e.count);
  b.step();
  b.inside_module(e.te);
  if (quantises_input) b.quantise(l.name(), Phase::kForward, e.rows * in, e.quantised_tensors());
  b.forward(l.name(), product(GemmPhase::kForward, l.out, l.in), launches).modules = e.modules(l.fc1());
  b.weight(l.name(), e.count * l.out * l.in, true, true, false, e.weight_tensors());
  b.weight(l.name(), e.bias ? e.count * l.out : 0, false, true, false, e.weight_tensors());
  if (quantises_gradient) b.quantise(l.name(), Phase::kDgrad, e.rows * out, e.quantised_tensors());
  Op& dgrad = b.backward(l.name(), Phase::kDgrad, product(GemmPhase::kDgrad, l.in, l.out), launches);
  dgrad.modules = e.modules(l.fc1());
  keep_gradients(b, e, l, dgrad);
  if (!b.options().lora) return weight_gradient(b, e, l);
  b.inside_module(false);
  b.adapter({.name = l.name(),
             .lora = l.module,
             .split = l.fc1() ? Split::kColumn : Split::kRow,
             .rows = e.rows,
             .out = l.out,
             .in = l.in},
            Group::kEtp, true);
}

// Activation times the rows' probabilities. The probabilities' gradient is a separate kernel, which reads the
// activation's input and its output gradient.
void activation(Builder& b, const RankExperts& e) {
  if (e.kernel.fuses_activation) return b.step();
  const int launches = static_cast<int>(e.one_by_one() ? e.count : 1);
  if (b.model().clamped_activation) clamp(b, e.rows * e.gate * e.width);
  // Bytes read and written: fc1's output, fc2's input and the probabilities; in backward also gradients.
  b.memory_op("activation", MemoryOp::kActivationForward, kBf16 * e.rows * (e.gate + 1.0) * e.width + kFp32 * e.rows,
              MemoryOp::kActivationBackward, kBf16 * e.rows * (2.0 * e.gate + 1.0) * e.width + 2.0 * kFp32 * e.rows,
              launches, launches);
  b.backward_transient({kBf16 * e.rows * e.gate * e.width, kBf16 * e.rows * e.width});  // Gradients of input, output.
  b.backward("activation_probabilities", Phase::kDgrad,
             SoftwareWork{SoftwareKernel::kProbabilityGradient, e.rows * (e.gate + 1.0) * e.width});
}

// Ops after fc2: its bias and, if every expert is a separate MLP, a copy that joins their outputs.
void outputs(Builder& b, const RankExperts& e) {
  const double tensor = kBf16 * e.rows * e.hidden;
  if (e.bias && !e.kernel.fuses_activation) expert_bias(b, e.rows * e.hidden, e.count);
  if (e.one_by_one()) {
    b.memory_op("join_outputs", MemoryOp::kElementwise, 2.0 * tensor, MemoryOp::kElementwise, 2.0 * tensor);
    b.forward_transient({tensor});  // The joined copy, beside the outputs.
  }
  // Gradients of the bias and of the probabilities, in one pass over fc2's output gradient.
  if (e.bias && e.kernel.fuses_activation)
    b.memory_op("expert_bias", MemoryOp::kElementwise, 0.0, MemoryOp::kElementwise, tensor);
}

}  // namespace

void experts(Builder& b, const MoeSizes& z) {
  const RankExperts e = rank_experts(b, z);
  // If fc2's input is recomputed or offloaded, it is kept unquantised and quantised again (set_save_original_input in
  // experts.py).
  const bool original = e.low_precision && recomputed_modules(b.options()).contains(RM::kMoeAct);
  b.module(Module::kExperts);
  b.node(Node::kMlp);
  b.captured_by({GraphModule::kMoe});
  b.recompute({RM::kMoe});
  grouped_linear(b, e, {LoraModule::kLinearFc1, e.fc1_out(), e.fc2_out()});
  b.keep_for_wgrad(0, "fc1_input", e.kept * e.rows * e.hidden, {RM::kMoe}, {OM::kExpertFc1, OM::kFusedGroupMlp});
  b.keep_for(1, "fc1_output", kBf16 * e.rows * e.gate * e.width, {RM::kMoe}, {OM::kMoeAct, OM::kFusedGroupMlp});
  b.keep_for(1, "permuted_probabilities", kFp32 * e.rows, {RM::kMoe});
  b.recompute({RM::kMoe, RM::kMoeAct});
  activation(b, e);
  b.keep_for_wgrad(1, "fc2_input", (original ? kBf16 : e.kept) * e.rows * e.width, {RM::kMoe, RM::kMoeAct},
                   {OM::kFusedGroupMlp});
  b.recompute({RM::kMoe});
  grouped_linear(b, e, {LoraModule::kLinearFc2, e.fc2_out(), e.fc2_in()});
  if (original && !b.options().lora) b.backward_transient({e.kept * e.rows * e.width});
  outputs(b, e);
  b.recompute({});
}

}  // namespace foldwise::costmodel
