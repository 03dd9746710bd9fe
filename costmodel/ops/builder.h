#pragma once
#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/hardware/precision.h"
#include "costmodel/ops/block_ops.h"

// For the builders in ops/*.cc only.
namespace foldwise::costmodel {

/// Bytes of an element.
inline constexpr double kBf16 = 2.0, kFp32 = 4.0;

/// How a linear is sharded over TP.
enum class Split : std::uint8_t {
  kColumn,      ///< Output features. The sequence-sharded input is gathered first.
  kRow,         ///< Input features. The partial outputs are reduce-scattered.
  kDuplicated,  ///< Not sharded: every rank computes its rows with the whole weight.
};

struct Linear {
  std::string_view name;
  std::optional<LoraModule> lora{};  ///< Its module for LoRA; nothing: it gets no adapter.
  Split split = Split::kDuplicated;
  double rows = 0;               ///< Rows of the GEMM: Ta for column and row, T for duplicated.
  std::int64_t out = 0, in = 0;  ///< Sizes of the local shard.
  std::int64_t bias = 0;         ///< Parameters of its bias on this rank.
  bool quantised = true;         ///< Uses the run's recipe. False: BF16 (head) or FP32 (router).
  MathFormat unquantised_format = MathFormat::kBf16;
  bool quantise_input = true;  ///< False: another linear has already quantised the same tensor.
  bool output_kept = false;    ///< The next op keeps the output, so it is no transient of the GEMM.
  bool owns_weight = true;     ///< False: another op has the same weight.
  bool dummy_gradient = true;  ///< See Op::dummy_gradient.
  bool gradient_kept = false;  ///< Another op accounts for the output's gradient.
};

/// Adds tensors to Op::transient. Zero sizes are skipped.
void add_transient(Op& op, std::initializer_list<double> tensors);

/// Collects the ops of a block. A forward op and its backward ops are added together. Backward ops are kept by step(),
/// and the result has the last step first.
class Builder {
 public:
  /// For the ops of a layer.
  Builder(const BuildContext& context, Module module, BitSet<GraphModule> captured_by)
      : Builder(context, module, captured_by, context.layout()) {}
  /// For ops whose collectives span the groups of `layout`.
  Builder(const BuildContext& context, Module module, BitSet<GraphModule> captured_by, const Layout& layout)
      : context_(context),
        layout_(layout),
        shape_(rank_shape(context.model, context.options)),
        module_(module),
        captured_by_(captured_by) {
    forward_.reserve(16);
    step();
  }

  [[nodiscard]] const ModelSpec& model() const { return context_.model; }
  [[nodiscard]] const LayerOptions& options() const { return context_.options; }
  [[nodiscard]] const Hardware& hardware() const { return context_.hardware; }
  [[nodiscard]] const Layout& layout() const { return layout_; }
  [[nodiscard]] const PrecisionRecipe& recipe() const { return precision_recipe(options().precision); }
  [[nodiscard]] const RankShape& shape() const { return shape_; }
  [[nodiscard]] double tp() const { return static_cast<double>(context_.options.tp); }
  [[nodiscard]] std::int64_t group_size(Group group) const;
  [[nodiscard]] double norm_vectors() const { return model().normalization == Normalization::kLayerNorm ? 2.0 : 1.0; }

  // Attributes of the ops that follow.
  void module(Module module) { module_ = module; }
  void node(Node node) { node_ = node; }
  void overlap(Overlap overlap) { overlap_ = overlap; }
  void recompute(BitSet<RecomputeModule> modules) { replayed_by_ = modules; }
  void captured_by(BitSet<GraphModule> modules) { captured_by_ = modules; }
  /// Whether the following ops are launched from C++ by a Transformer Engine module that another op enters.
  void inside_module(bool inside) { inside_module_ = inside; }

  /// Starts a new step. Its backward runs before that of all earlier steps.
  void step() { segments_.emplace_back(); }
  [[nodiscard]] std::int32_t current_step() const { return static_cast<std::int32_t>(segments_.size()) - 1; }
  /// Bytes alive during the whole backward: the gradient of the block's output, which the residual branch adds last.
  void output_gradient(double bytes) { output_gradient_ = Bytes{bytes}; }
  Op& forward(std::string_view name, Work work, int launches = 1);
  Op& backward(std::string_view name, Phase phase, Work work, int launches = 1);

  /// A tensor that the last forward op keeps for the backward of the current step. Full recomputation frees it unless
  /// it is a block's input.
  void keep(std::string_view name, double bytes, BitSet<RecomputeModule> freed_by = {},
            BitSet<OffloadModule> offloaded_by = {}, bool freed_by_full = true);
  /// A tensor that another module keeps too. If `modules` are offloaded it is copied to the host, but stays on the
  /// device.
  void copy_if_offloaded(std::string_view name, double bytes, BitSet<OffloadModule> modules);
  /// The block's input, which the previous block has handed on.
  void keep_input(double bytes, BitSet<OffloadModule> offloaded_by, bool freed_by_full) {
    keep("input", bytes, {}, offloaded_by, freed_by_full);
    forward_.back().keeps.back().block_input = true;
  }
  /// A linear's input that only its weight gradient reads. It is not kept if the weight is frozen (backward_needs_input
  /// in TE's modules; LinearWithFrozenWeight in megatron/core/tensor_parallel/layers.py). `ahead` as in keep_for.
  void keep_for_wgrad(int ahead, std::string_view name, double bytes, BitSet<RecomputeModule> freed_by = {},
                      BitSet<OffloadModule> offloaded_by = {}, bool freed_by_full = true) {
    if (!options().lora) keep_for(ahead, name, bytes, freed_by, offloaded_by, freed_by_full);
  }
  /// Like keep(), but for the backward of the `ahead`th step after the current one.
  void keep_for(int ahead, std::string_view name, double bytes, BitSet<RecomputeModule> freed_by = {},
                BitSet<OffloadModule> offloaded_by = {}, bool freed_by_full = true);
  /// Tables that the last forward op's module holds between steps, and before the first step.
  void cache(double bytes, double at_setup) {
    forward_.back().cache += Bytes{bytes};
    forward_.back().setup_cache += Bytes{at_setup};
  }
  /// Bytes that the last forward op allocates and a later op releases.
  void hold(double bytes) { forward_.back().holds += Bytes{passing_ * bytes}; }
  void release(double bytes) { forward_.back().releases += Bytes{passing_ * bytes}; }
  /// The following tensors are in buffers of fixed size. Bytes kept for backward are multiplied by `kept`, those of
  /// passing tensors by `passing`.
  void sized(double kept, double passing) {
    kept_ = kept;
    passing_ = passing;
  }
  /// Bytes alive only during the last forward (backward) op.
  void forward_transient(std::initializer_list<double> tensors);
  void backward_transient(std::initializer_list<double> tensors);
  /// The same for another op.
  void transient_of(Op& op, std::initializer_list<double> tensors) const;
  /// The last tensor stays from backward until the next forward, with `leaf` further bytes if it is recomputed.
  void rests(double leaf);
  void weight(std::string_view name, std::int64_t count, bool quantised, bool expert = false,
              bool tp_replicated = false, std::int64_t tensors = 1);

  /// One memory-bound op and its backward. Nothing is added for zero bytes.
  void memory_op(std::string_view name, MemoryOp forward_op, double forward_bytes, MemoryOp backward_op,
                 double backward_bytes, int forward_launches = 1, int backward_launches = 1);
  /// One op and its backward.
  void op_pair(std::string_view name, const Work& forward_work, const Work& backward_work, int forward_launches = 1,
               int backward_launches = 1);
  /// Norm of the block's output before the residual add, if the model has one.
  void sandwich_norm(std::string_view name);
  /// Residual add of the block's output, and the sum of the two gradients in backward.
  void residual_add(std::string_view name);
  /// Norm over `rows` of `width`, with its weight. It is a module of its own unless it lies inside another one.
  void norm(std::string_view name, double rows, std::int64_t width, bool tp_replicated = true);
  /// GEMMs of the three phases, with the quantisation and the TP collectives they need, and the weight.
  void linear(const Linear& linear);
  /// LoRA's adapter, if the frozen linear has one: two thin linears in BF16, split over `group`, and the sum of both
  /// outputs. Source: ParallelLinearAdapter in megatron/bridge/peft/utils.py (0.3.1).
  void adapter(const Linear& linear, Group group, bool expert);
  /// Nothing is added for a group of one rank or for zero bytes.
  void collective(std::string_view name, Phase phase, CollectiveKind kind, Group group, double bytes);
  /// The same over a part of the group: `ranks` of its members with stride `step`.
  void collective(std::string_view name, Phase phase, CollectiveKind kind, Group group, double bytes,
                  std::int64_t ranks, std::int64_t step);
  /// The same for a fused dispatch or combine of the run's dispatcher.
  void exchange(std::string_view name, Phase phase, CollectiveKind kind, Group group, const ExchangeVolume& volume);
  /// An amax pass if the recipe needs one, then the cast (and transpose), for `tensors` equal parts (rows of the
  /// experts).
  void quantise(std::string_view name, Phase phase, double elements, std::int64_t tensors = 1);
  /// The same for this rank's part of `elements`, which is then gathered over TP. Parts of all ranks have the same
  /// scale. A tensor with one scale is gathered by rows and transposed afterwards.
  void quantise_part(std::string_view name, Phase phase, double elements);

  [[nodiscard]] OpList take();

 private:
  Op& add(std::string_view name, Phase phase, Work work, int launches = 1);
  void quantise(std::string_view name, Phase phase, double elements, std::int64_t tensors, int layouts);
  /// Gathers an operand of a linear over TP, in BF16 or as quantise_part() made it, in row form, column form, or both.
  void gather_operand(std::string_view name, Phase phase, double elements, bool low_precision, bool rows, bool columns);
  /// Bytes alive during a linear's backward: gradients of input and output, the quantised output gradient in one
  /// layout, and the gathered input.
  struct LinearTensors {
    double input_gradient, output_gradient, quantised, gathered;
  };
  void weight_gradient(const Linear& linear, const LinearTensors& tensors);
  [[nodiscard]] Op make(std::string_view name, Phase phase, Work work, int launches) const;

  BuildContext context_;
  Layout layout_;
  RankShape shape_;
  Module module_;
  Node node_ = Node::kPreDispatch;
  Overlap overlap_ = Overlap::kNone;
  BitSet<RecomputeModule> replayed_by_;
  BitSet<GraphModule> captured_by_;
  bool inside_module_ = false;
  double kept_ = 1.0, passing_ = 1.0;  ///< See sized().
  std::vector<Op> forward_;
  std::vector<std::vector<Op>> segments_;
  Bytes output_gradient_{};
};

}  // namespace foldwise::costmodel
