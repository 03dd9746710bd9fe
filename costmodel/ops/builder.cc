#include "costmodel/ops/builder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "costmodel/ops/expert_kernel.h"

namespace foldwise::costmodel {

RankShape rank_shape(const ModelSpec& model, const LayerOptions& options) {
  RankShape shape;
  shape.attention_tokens = static_cast<double>(options.seq_len * options.micro_batch) / static_cast<double>(options.cp);
  shape.tokens =
      options.splits_sequence() ? shape.attention_tokens / static_cast<double>(options.tp) : shape.attention_tokens;
  if (!model.has_moe()) return shape;
  const MoeSpec& moe = model.moe;
  shape.local_experts = std::max<std::int64_t>(1, moe.experts / options.ep);
  const double capacity = options.capacity_factor.value_or(1.0),
               balanced = shape.tokens * static_cast<double>(moe.topk);
  shape.routed_rows = balanced * (options.pad_to_capacity ? capacity : std::min(1.0, capacity));
  // What exceeds the capacity is dropped, and up to it is padded if asked for.
  const double load = options.pad_to_capacity   ? capacity
                      : options.capacity_factor ? std::min(options.expert_load, capacity)
                                                : options.expert_load;
  shape.expert_rows = load * balanced * static_cast<double>(options.etp);
  // Rows of each expert are padded to a multiple of `align`, which adds half of it on average (docs/formulas.md#moe).
  const std::int64_t multiple = precision_recipe(options.precision).expert_row_multiple;
  const double own = expert_kernel(options).row_multiple, align = own > 0.0      ? own
                                                                  : multiple > 1 ? static_cast<double>(multiple)
                                                                                 : 0.0;
  shape.expert_rows += static_cast<double>(shape.local_experts) * align / 2.0;
  return shape;
}

double row_spread(const ModelSpec& model, const LayerOptions& options) {
  if (!model.has_moe() || options.ep == 1) return 0.0;
  const auto ep = static_cast<double>(options.ep), k = static_cast<double>(model.moe.topk),
             experts = static_cast<double>(model.moe.experts);
  const double tokens = rank_shape(model, options).tokens * ep * static_cast<double>(options.etp);
  return std::sqrt((ep - 1.0) * (experts - k) / (experts - 1.0) / (tokens * k));
}

std::int64_t Builder::group_size(Group group) const {
  switch (group) {
    case Group::kTp:
      return layout_.tp;
    case Group::kCp:
      return layout_.cp;
    case Group::kEp:
      return layout_.ep;
    case Group::kEtp:
      return layout_.etp;
    case Group::kEtpEp:
      return layout_.etp * layout_.ep;
    case Group::kDpCp:
      return layout_.dp_cp();
    case Group::kEdp:
      return layout_.edp();
    case Group::kPp:
      return layout_.pp;
    case Group::kDp:
      return layout_.dp;
    case Group::kNone:
      return 1;
  }
  return 1;
}

Op Builder::make(std::string_view name, Phase phase, Work work, int launches) const {
  Op op;
  op.name = name;
  op.module = module_;
  op.phase = phase;
  op.node = node_;
  op.work = work;
  op.overlap = overlap_;
  op.launches = launches;
  op.eager = !inside_module_;
  op.captured_by = captured_by_;
  op.step = current_step();
  return op;
}

Op& Builder::forward(std::string_view name, Work work, int launches) {
  Op& op = forward_.emplace_back(make(name, Phase::kForward, work, launches));
  op.replayed_by = replayed_by_;
  op.replayed_by = op.replayed_by | RecomputeModule::kFull;
  return op;
}

Op& Builder::backward(std::string_view name, Phase phase, Work work, int launches) {
  return segments_.back().emplace_back(make(name, phase, work, launches));
}

void Builder::keep(std::string_view name, double bytes, BitSet<RecomputeModule> freed_by,
                   BitSet<OffloadModule> offloaded_by, bool freed_by_full) {
  keep_for(0, name, bytes, freed_by, offloaded_by, freed_by_full);
}

void add_transient(Op& op, std::initializer_list<double> tensors) {
  for (const double bytes : tensors)
    if (bytes > 0.0) op.transient.emplace_back(bytes);
}

void Builder::transient_of(Op& op, std::initializer_list<double> tensors) const {
  for (const double bytes : tensors) add_transient(op, {passing_ * bytes});
}

void Builder::forward_transient(std::initializer_list<double> tensors) { transient_of(forward_.back(), tensors); }

void Builder::backward_transient(std::initializer_list<double> tensors) {
  if (!segments_.back().empty()) transient_of(segments_.back().back(), tensors);
}

void Builder::rests(double leaf) {
  if (forward_.empty() || forward_.back().keeps.empty()) return;
  Tensor& tensor = forward_.back().keeps.back();
  tensor.rests = tensor.bytes;
  tensor.leaf = Bytes{leaf};
}

void Builder::keep_for(int ahead, std::string_view name, double bytes, BitSet<RecomputeModule> freed_by,
                       BitSet<OffloadModule> offloaded_by, bool freed_by_full) {
  if (bytes <= 0.0 || forward_.empty()) return;
  if (freed_by_full) freed_by = freed_by | RecomputeModule::kFull;
  offloaded_by = offloaded_by | OffloadModule::kLayer;
  forward_.back().keeps.push_back({.name = name,
                                   .bytes = Bytes{kept_ * bytes},
                                   .freed_by = freed_by,
                                   .offloaded_by = offloaded_by,
                                   .step = current_step() + ahead});
}

void Builder::copy_if_offloaded(std::string_view name, double bytes, BitSet<OffloadModule> modules) {
  forward_.back().keeps.push_back({.name = name,
                                   .freed_by = {RecomputeModule::kFull},
                                   .offloaded_by = modules,
                                   .copied = Bytes{bytes},
                                   .step = current_step()});
}

void Builder::weight(std::string_view name, std::int64_t count, bool quantised, bool expert, bool tp_replicated,
                     std::int64_t tensors) {
  if (count <= 0) return;
  forward_.back().weights.push_back({name, count, expert, quantised, tp_replicated, tensors});
}

void Builder::memory_op(std::string_view name, MemoryOp forward_op, double forward_bytes, MemoryOp backward_op,
                        double backward_bytes, int forward_launches, int backward_launches) {
  step();
  if (forward_bytes > 0.0) forward(name, MemoryWork{forward_op, Bytes{forward_bytes}}, forward_launches);
  if (backward_bytes > 0.0)
    backward(name, Phase::kDgrad, MemoryWork{backward_op, Bytes{backward_bytes}}, backward_launches);
}

void Builder::op_pair(std::string_view name, const Work& forward_work, const Work& backward_work, int forward_launches,
                      int backward_launches) {
  step();
  forward(name, forward_work, forward_launches);
  backward(name, Phase::kDgrad, backward_work, backward_launches);
}

void Builder::sandwich_norm(std::string_view name) {
  if (!model().sandwich_norms) return;
  norm(name, shape_.tokens, model().hidden_size);
  keep("before_post_norm", 2.0 * shape_.tokens * static_cast<double>(model().hidden_size));
}

void Builder::residual_add(std::string_view name) {
  const double elements = shape_.tokens * static_cast<double>(model().hidden_size);
  // Dropout is part of the forward kernel, which writes a mask of one byte per element. Backward has one pass more.
  const bool dropout = options().hidden_dropout > 0.0;
  memory_op(name, MemoryOp::kElementwise, (dropout ? 7.0 : 6.0) * elements, MemoryOp::kElementwise,
            (dropout ? 11.0 : 6.0) * elements);
  if (dropout) keep("dropout_mask", elements);
}

namespace {

/// Widths of Transformer Engine's tuned RMSNorm kernels: REGISTER_NORM_LAUNCHER of its
/// common/normalization/rmsnorm/rmsnorm_{fwd,bwd_semi}_cuda_kernel.cu (2.12).
bool tuned_norm(std::int64_t width) {
  constexpr std::array<std::int64_t, 6> kWidths{512, 768, 1024, 2048, 4096, 8192};
  return std::ranges::find(kWidths, width) != kWidths.end();
}

}  // namespace

void Builder::norm(std::string_view name, double rows, std::int64_t width, bool tp_replicated) {
  const double elements = rows * static_cast<double>(width);
  using enum SoftwareKernel;
  const bool head = width <= 256;
  if (options().software.transformer_engine && model().normalization == Normalization::kRmsNorm && !tuned_norm(width) &&
      !cudnn_norms(hardware()))
    op_pair(name, SoftwareWork{head ? kHeadNormForward : kGeneralNormForward, elements},
            SoftwareWork{head ? kHeadNormBackward : kGeneralNormBackward, elements}, 1, 3);
  else
    memory_op(name, MemoryOp::kNormForward, 4.0 * elements, MemoryOp::kNormBackward, 6.0 * elements, 1, 3);
  if (options().software.transformer_engine)
    for (Op* op : {&forward_.back(), &segments_.back().back()}) {
      op->modules = inside_module_ ? 0 : 1;
      op->eager = false;
    }
  backward_transient({2.0 * elements, 2.0 * elements});  // Gradients of input and output.
  weight(name, static_cast<std::int64_t>(norm_vectors()) * width, false, false,
         tp_replicated && options().splits_sequence(), static_cast<std::int64_t>(norm_vectors()));
  keep("rstd", 4.0 * norm_vectors() * rows);
}

void Builder::quantise(std::string_view name, Phase phase, double elements, std::int64_t tensors) {
  quantise(name, phase, elements, tensors, recipe().layouts(hardware()));
}

void Builder::quantise(std::string_view name, Phase phase, double elements, std::int64_t tensors, int layouts) {
  if (!recipe().low_precision() || elements <= 0.0) return;
  const double written = layouts * recipe().saved_input_bytes();
  const bool together = tensors <= 1 || recipe().split_quantize == SplitQuantize::kAlways ||
                        (recipe().split_quantize == SplitQuantize::kInTwoLayouts && layouts == 2);
  const auto kernels = static_cast<int>(together ? 1 : tensors);
  const auto count = static_cast<std::int32_t>(tensors);
  // Zero, amax, and scale from it. Only amax reads the tensor.
  if (recipe().amax_pass)
    add(name, phase, MemoryWork{MemoryOp::kAmax, Bytes{2.0 * elements}, kernels}, 3 * kernels).quantised = count;
  add(name, phase, MemoryWork{MemoryOp::kQuantize, Bytes{(2.0 + written) * elements}, kernels}, kernels).quantised =
      count;
}

void Builder::quantise_part(std::string_view name, Phase phase, double elements) {
  quantise(name, phase, elements / tp(), 1, recipe().one_scale ? 1 : recipe().layouts(hardware()));
  // The quantizer launches it between amax and scale, so the quantizer's price includes its host time.
  if (recipe().amax_pass)
    add(name, phase,
        CollectiveWork{CollectiveKind::kAllReduce, Group::kTp, Bytes{4.0},
                       group_shape(layout_, Group::kTp, hardware().network)},
        0);
}

void Builder::gather_operand(std::string_view name, Phase phase, double elements, bool low_precision, bool rows,
                             bool columns) {
  if (!low_precision) return collective(name, phase, CollectiveKind::kAllGather, Group::kTp, 2.0 * elements);
  const double form = recipe().saved_input_bytes() * elements;
  const bool both = rows && columns && !recipe().one_scale;
  collective(name, phase, CollectiveKind::kAllGather, Group::kTp, both ? 2.0 * form : form);
  if (!columns) return;
  if (recipe().transposed_columns) add(name, phase, MemoryWork{MemoryOp::kElementwise, Bytes{2.0 * form}});
  if (recipe().one_scale && recipe().layouts(hardware()) == 2)
    add(name, phase, MemoryWork{MemoryOp::kPermute, Bytes{2.0 * form}});
}

void Builder::collective(std::string_view name, Phase phase, CollectiveKind kind, Group group, double bytes) {
  if (group_size(group) <= 1 || bytes <= 0.0) return;
  add(name, phase, CollectiveWork{kind, group, Bytes{bytes}, group_shape(layout_, group, hardware().network)});
}

void Builder::collective(std::string_view name, Phase phase, CollectiveKind kind, Group group, double bytes,
                         std::int64_t ranks, std::int64_t step) {
  if (ranks <= 1 || bytes <= 0.0) return;
  add(name, phase,
      CollectiveWork{kind, group, Bytes{bytes}, part_shape(layout_, group, ranks, step, hardware().network)});
}

void Builder::exchange(std::string_view name, Phase phase, CollectiveKind kind, Group group,
                       const ExchangeVolume& volume) {
  if (group_size(group) <= 1 || volume.to_ranks <= Bytes{}) return;
  add(name, phase,
      ExchangeWork{kind, group, options().dispatcher, volume, group_shape(layout_, group, hardware().network)});
}

Op& Builder::add(std::string_view name, Phase phase, Work work, int launches) {
  return phase == Phase::kForward ? forward(name, work, launches) : backward(name, phase, work, launches);
}

void Builder::linear(const Linear& l) {
  step();
  const bool low_precision = l.quantised && recipe().low_precision();
  const auto format = [&](GemmPhase phase) { return l.quantised ? recipe().format(phase) : l.unquantised_format; };
  const double full_rows = l.rows;
  // Without sequence parallelism every rank has all rows. Then only sums are exchanged: of a row split's output and of
  // a column split's input gradient.
  const bool splits_sequence = options().splits_sequence(), column = l.split == Split::kColumn && options().tp > 1,
             gathers = column && splits_sequence;
  const CollectiveKind sum = splits_sequence ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
  const auto in = static_cast<double>(l.in), out = static_cast<double>(l.out);
  const Overlap before = overlap_;
  // The linears of router and head are Megatron's own.
  const bool module = l.quantised && options().software.transformer_engine, outside = inside_module_;
  inside_module(module || outside);
  if (options().overlaps.tp && l.split != Split::kDuplicated && options().tp > 1) overlap(Overlap::kTpGemm);

  if (low_precision && l.quantise_input) {
    if (gathers)
      quantise_part(l.name, Phase::kForward, full_rows * in);
    else
      quantise(l.name, Phase::kForward, full_rows * in);
  }
  const double wire = l.quantised ? recipe().saved_input_bytes() : 2.0;
  if (gathers) gather_operand(l.name, Phase::kForward, full_rows * in, low_precision, true, false);
  Op& gemm = forward(l.name, GemmWork{format(GemmPhase::kForward), l.rows, l.out, l.in, 1, false}, 2);
  gemm.modules = module ? 1 : 0;
  // Megatron's own linears gather their input into one lasting buffer (rank_memory.cc).
  const double gathered = gathers && module ? wire * full_rows * in : 0.0;
  add_transient(gemm, {gathered, l.output_kept ? 0.0 : 2.0 * full_rows * out});
  if (l.owns_weight) weight(l.name, l.out * l.in, l.quantised, false, l.split == Split::kDuplicated && splits_sequence);
  weight(l.name, l.bias, false, false, l.split != Split::kColumn && splits_sequence);
  if (l.split == Split::kRow) collective(l.name, Phase::kForward, sum, Group::kTp, 2.0 * full_rows * out);

  const bool gathers_gradient = l.split == Split::kRow && splits_sequence;
  if (gathers_gradient) {
    if (low_precision) quantise_part(l.name, Phase::kDgrad, full_rows * out);
    gather_operand(l.name, Phase::kDgrad, full_rows * out, low_precision, true, !options().lora);
  } else if (low_precision) {
    quantise(l.name, Phase::kDgrad, full_rows * out);
  }
  // Both collectives are launched before the product beside them. With several queues the product's blocks get the SMs
  // first (benchmarks/accuracy/journal.md#beside-a-linears-backward). Source:
  // transformer_engine/pytorch/module/linear.py, LinearWithGradAccumulationAndAsyncCommunication in
  // megatron/core/tensor_parallel/layers.py.
  if (column && !options().lora && context_.one_queue && overlap_ == Overlap::kNone) overlap(Overlap::kTpBackward);
  Op& dgrad = backward(l.name, Phase::kDgrad, GemmWork{format(GemmPhase::kDgrad), l.rows, l.in, l.out, 1, false}, 2);
  dgrad.modules = module ? 1 : 0;
  // Alive: gradients of output and input, the quantised output gradient in both layouts, and the gathered input for
  // wgrad. A row split's output gradient is the block's, unless it was gathered in BF16.
  const bool own_gradient = !l.gradient_kept && (l.split != Split::kRow || (gathers_gradient && !low_precision));
  const double input_gradient = 2.0 * full_rows * in, output_gradient = own_gradient ? 2.0 * full_rows * out : 0.0,
               quantised = low_precision ? wire * full_rows * out : 0.0;
  add_transient(dgrad, {input_gradient, output_gradient, quantised, quantised, gathered});
  if (column) {
    collective(l.name, Phase::kDgrad, sum, Group::kTp, 2.0 * full_rows * in);
    if (gathers && !options().lora) gather_operand(l.name, Phase::kWgrad, full_rows * in, low_precision, false, true);
  }
  if (!options().lora) weight_gradient(l, {input_gradient, output_gradient, quantised, gathered});
  overlap(before);
  inside_module(outside);
  adapter(l, Group::kTp, false);
}

void Builder::weight_gradient(const Linear& l, const LinearTensors& tensors) {
  const auto in = static_cast<double>(l.in), out = static_cast<double>(l.out);
  const bool low_precision = l.quantised && recipe().low_precision(),
             fused = options().software.gradient_accumulation_fusion;
  const MathFormat format = l.quantised ? recipe().format(GemmPhase::kWgrad) : l.unquantised_format;
  Op& wgrad = backward(l.name, Phase::kWgrad,
                       GemmWork{format, out, l.in, static_cast<std::int64_t>(std::ceil(l.rows)), 1,
                                fused && options().grad_reduce_in_fp32},
                       2);
  wgrad.dummy_gradient = l.dummy_gradient && fused && options().software.transformer_engine;
  const double gradient = fused ? 0.0 : kBf16 * out * in;
  // Megatron's own linears scatter the input's gradient beside this product (tensor_parallel/layers.py:
  // LinearWithGradAccumulationAndAsyncCommunication).
  const bool module = l.quantised && options().software.transformer_engine,
             gathers = l.split == Split::kColumn && options().splits_sequence();
  const double scattered = gathers && !module ? kBf16 * (l.rows / tp()) * in : 0.0;
  // FP8 with one scale is gathered by rows, and transposed if products need both layouts (Transformer Engine:
  // supports_only_rowwise_all_gather in layernorm_linear.py).
  const double transposed =
      low_precision && recipe().one_scale ? (recipe().layouts(hardware()) - 1) * tensors.gathered : 0.0;
  add_transient(wgrad, {tensors.input_gradient, tensors.output_gradient, tensors.quantised, tensors.quantised,
                        tensors.gathered, transposed, scattered, gradient});
  if (!fused)  // main_grad += grad reads 2 + 4 bytes and writes 4.
    add_transient(
        backward(l.name, Phase::kWgrad, MemoryWork{MemoryOp::kReduce, Bytes{(kBf16 + 2.0 * kFp32) * out * in}}),
        {tensors.input_gradient, gradient});
}

void Builder::adapter(const Linear& l, Group group, bool expert) {
  if (!options().lora || !l.lora || !options().lora_modules.contains(*l.lora)) return;
  const std::int64_t dim = options().lora_dim, ranks = group_size(group);
  const bool row = l.split == Split::kRow;  // The input is split and the output whole.
  const std::int64_t hidden = row ? dim : std::max<std::int64_t>(1, dim / ranks), out = row ? l.out / ranks : l.out;
  const auto rows = static_cast<std::int64_t>(std::ceil(l.rows));
  const double hidden_bytes = 2.0 * l.rows * static_cast<double>(dim), in_elements = l.rows * static_cast<double>(l.in),
               out_elements = l.rows * static_cast<double>(out);
  const auto thin = [&](std::string_view name, std::int64_t n, std::int64_t k) {
    step();
    forward(name, GemmWork{MathFormat::kBf16, l.rows, n, k, 1, false}, 1);
    forward_.back().weights.push_back({name, n * k, expert, false, false, 1, true});
    backward(name, Phase::kDgrad, GemmWork{MathFormat::kBf16, l.rows, k, n, 1, false}, 1);
    backward(name, Phase::kWgrad, GemmWork{MathFormat::kBf16, static_cast<double>(n), k, rows, 1, false}, 1);
  };
  thin("lora_linear_in", hidden, l.in);
  // linear_proj's input is the attention output, which is kept anyway.
  if (l.lora != LoraModule::kLinearProj) keep("adapter_input", 2.0 * in_elements, replayed_by_);
  collective("lora_linear_in", Phase::kForward, row ? CollectiveKind::kAllReduce : CollectiveKind::kAllGather, group,
             hidden_bytes);
  // The gradient is added to that of the frozen linear's input.
  backward("lora_linear_in", Phase::kDgrad, MemoryWork{MemoryOp::kElementwise, Bytes{6.0 * in_elements}});
  thin("lora_linear_out", out, dim);
  keep("adapter_hidden", hidden_bytes, replayed_by_);
  collective("lora_linear_out", Phase::kDgrad, CollectiveKind::kAllReduce, group, hidden_bytes);
  if (row)
    collective("lora_linear_out", Phase::kForward, CollectiveKind::kAllGather, group,
               2.0 * l.rows * static_cast<double>(l.out));
  // The output is scaled by alpha / dim and added to the frozen linear's.
  forward("lora_add", MemoryWork{MemoryOp::kElementwise, Bytes{10.0 * out_elements}}, 2);
  backward("lora_add", Phase::kDgrad, MemoryWork{MemoryOp::kElementwise, Bytes{4.0 * out_elements}});
}

OpList Builder::take() {
  OpList list;
  list.forward = std::move(forward_);
  std::reverse(segments_.begin(), segments_.end());
  for (std::vector<Op>& segment : segments_)
    std::move(segment.begin(), segment.end(), std::back_inserter(list.backward));
  if (output_gradient_ > Bytes{})
    for (Op& op : list.backward) op.transient.push_back(output_gradient_);
  return list;
}

}  // namespace foldwise::costmodel
