#include <cudnn_frontend.h>

#include <array>
#include <cmath>
#include <unordered_map>

#include "kernels/cuda/reference.h"
#include "kernels/cuda/settings.h"

namespace foldwise::kernels {
namespace {

namespace fe = cudnn_frontend;
using hwprofiles::Measurement;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

void check(fe::error_t status, const char* what) {
  if (status.is_bad()) throw Unsupported(std::string(what) + ": " + status.get_message());
}

class Handle {
 public:
  explicit Handle(cudaStream_t stream) {
    if (cudnnCreate(&handle_) != CUDNN_STATUS_SUCCESS) throw std::runtime_error("cuDNN: no handle");
    if (cudnnSetStream(handle_, stream) != CUDNN_STATUS_SUCCESS) throw std::runtime_error("cuDNN: no stream");
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { cudnnDestroy(handle_); }
  [[nodiscard]] cudnnHandle_t get() const { return handle_; }

 private:
  cudnnHandle_t handle_ = nullptr;
};

enum TensorId : std::int64_t { kQ = 1, kK, kV, kO, kStats, kDo, kDq, kDk, kDv };

struct Extent {
  std::int64_t heads, width;
};

Extent extent(const AttentionShape& s, TensorId id) {
  switch (id) {
    case kQ:
    case kDq:
      return {s.heads, s.head_dim};
    case kK:
    case kDk:
      return {s.kv_heads, s.head_dim};
    case kV:
    case kDv:
      return {s.kv_heads, s.head_dim_v};
    case kO:
    case kDo:
      return {s.heads, s.head_dim_v};
    case kStats:
      return {s.heads, 1};
  }
  throw std::logic_error("tensor");
}

std::int64_t elements(const AttentionShape& s, TensorId id) {
  return s.batch * s.seq * extent(s, id).heads * extent(s, id).width;
}

double scale_of(const AttentionShape& s) { return 1.0 / std::sqrt(static_cast<double>(s.head_dim)); }

// Layout of a tensor: [batch, sequence, head, width]; of the softmax statistics: [batch, head, sequence].
void lay_out(fe::graph::Tensor_attributes& tensor, const AttentionShape& s, TensorId id) {
  const auto [heads, width] = extent(s, id);
  tensor.set_uid(id).set_dim({s.batch, heads, s.seq, width});
  if (id == kStats)
    tensor.set_stride({heads * s.seq, s.seq, 1, 1}).set_data_type(fe::DataType_t::FLOAT);
  else
    tensor.set_stride({s.seq * heads * width, width, heads * width, 1}).set_data_type(fe::DataType_t::BFLOAT16);
}

class AttentionPlan {
 public:
  AttentionPlan(const Handle& handle, const AttentionShape& shape, bool backward) : handle_(handle), shape_(shape) {
    graph_.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    backward ? add_backward() : add_forward();
    check(graph_.build(handle_.get(), {fe::HeurMode_t::A}), "attention graph");
    std::int64_t bytes = 0;
    check(graph_.get_workspace_size(bytes), "attention workspace");
    workspace_ = Buffer(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
  }

  void run(std::unordered_map<std::int64_t, void*>& tensors) {
    check(graph_.execute(handle_.get(), tensors, workspace_.data()), "attention");
  }

 private:
  Tensor input(TensorId id) {
    fe::graph::Tensor_attributes attributes;
    lay_out(attributes, shape_, id);
    return graph_.tensor(attributes);
  }
  void output(const Tensor& tensor, TensorId id) {
    lay_out(*tensor, shape_, id);
    tensor->set_output(true);
  }
  void add_forward() {
    auto options = fe::graph::SDPA_attributes()
                       .set_name("forward")
                       .set_generate_stats(true)
                       .set_attn_scale(static_cast<float>(scale_of(shape_)))
                       .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                       .set_diagonal_band_right_bound(0);
    const auto [o, stats] = graph_.sdpa(input(kQ), input(kK), input(kV), options);
    output(o, kO);
    output(stats, kStats);
  }
  void add_backward() {
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("backward")
                       .set_attn_scale(static_cast<float>(scale_of(shape_)))
                       .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                       .set_diagonal_band_right_bound(0);
    const auto [d_q, d_k, d_v] =
        graph_.sdpa_backward(input(kQ), input(kK), input(kV), input(kO), input(kDo), input(kStats), options);
    output(d_q, kDq);
    output(d_k, kDk);
    output(d_v, kDv);
  }

  const Handle& handle_;
  AttentionShape shape_;
  fe::graph::Graph graph_;
  Buffer workspace_;
};

using TensorSet = std::unordered_map<std::int64_t, void*>;

TensorSet take(Device& device, const AttentionShape& s) {
  TensorSet set;
  for (const TensorId id : {kQ, kK, kV, kDo})
    set[id] = device.pool(Type::kBf16).take(bytes_of(Type::kBf16, elements(s, id)));
  for (const TensorId id : {kO, kDq, kDk, kDv}) set[id] = device.results().take(bytes_of(Type::kBf16, elements(s, id)));
  set[kStats] = device.results().take(bytes_of(Type::kFp32, elements(s, kStats)));
  return set;
}

void run_attention(Device& device, const Handle& handle, const AttentionShape& s, bool backward,
                   Measurement& measurement) {
  constexpr double kLargestError = 0.02;  // probabilities and their gradients are rounded to BF16 between products
  AttentionPlan forward(handle, s, false);
  std::unique_ptr<AttentionPlan> timed;
  if (backward) timed = std::make_unique<AttentionPlan>(handle, s, true);
  std::vector<TensorSet> sets;
  for (int i = 0; i < device.rotations(measurement.bytes); ++i) {
    sets.push_back(take(device, s));
    forward.run(sets.back());
  }
  const auto launch = [&](int i) { (backward ? *timed : forward).run(sets[static_cast<std::size_t>(i)]); };
  launch(0);
  TensorSet& set = sets[0];
  AttentionTensors tensors{.q = set[kQ], .k = set[kK], .v = set[kV], .o = set[kO]};
  if (backward) {
    tensors.d_o = set[kDo];
    tensors.d_q = set[kDq];
    tensors.d_k = set[kDk];
    tensors.d_v = set[kDv];
  }
  measurement.max_relative_error = attention_error(s, tensors, scale_of(s), device.stream());
  measurement.correct = measurement.max_relative_error <= kLargestError;
  if (measurement.correct) device.time(measurement, static_cast<int>(sets.size()), launch);
}

// FLOPs of the lower triangle: two products in forward, five in backward.
double flops_of(const AttentionShape& s, bool backward) {
  const double pairs =
      0.5 * static_cast<double>(s.batch * s.heads) * static_cast<double>(s.seq) * static_cast<double>(s.seq);
  const auto qk = static_cast<double>(s.head_dim), v = static_cast<double>(s.head_dim_v);
  return 2.0 * pairs * (backward ? 3.0 * qk + 2.0 * v : qk + v);
}

double bytes_of_attention(const AttentionShape& s, bool backward) {
  double bytes = 4.0 * static_cast<double>(elements(s, kStats));
  for (const TensorId id : {kQ, kK, kV, kO}) bytes += 2.0 * static_cast<double>(elements(s, id));
  if (backward)
    for (const TensorId id : {kDq, kDk, kDv, kDo}) bytes += 2.0 * static_cast<double>(elements(s, id));
  return bytes;
}

}  // namespace

std::vector<Setting> attention_settings(Device& device, bool quick) {
  struct Heads {
    std::int64_t heads, kv_heads, head_dim, head_dim_v;
  };
  // GPT-like, Llama 3, Qwen 3 under tensor parallelism, MLA of DeepSeek (whole and split), Gemma.
  constexpr std::array kHeads{Heads{16, 16, 64, 64},  Heads{32, 8, 64, 64},    Heads{16, 16, 128, 128},
                              Heads{32, 8, 128, 128}, Heads{64, 8, 128, 128},  Heads{8, 1, 128, 128},
                              Heads{32, 4, 128, 128}, Heads{16, 16, 192, 128}, Heads{128, 128, 192, 128},
                              Heads{8, 8, 256, 256},  Heads{16, 4, 256, 256}};
  constexpr std::array<std::int64_t, 8> kSeq{1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};
  constexpr double kLargestFlops = 1e14;
  const auto handle = std::make_shared<Handle>(device.stream());
  std::vector<Setting> settings;
  for (std::size_t h = 0; h < kHeads.size(); h += quick ? 3 : 1)
    for (std::size_t i = 0; i < kSeq.size(); i += quick ? 3 : 1)
      for (const bool backward : {false, true}) {
        const Heads& heads = kHeads[h];
        // Short sequences also come in batches of several.
        const std::int64_t batch = kSeq[i] <= 4096 && h % 2 == 1 ? 4 : 1;
        const AttentionShape s{batch, heads.heads, heads.kv_heads, kSeq[i], heads.head_dim, heads.head_dim_v};
        const double flops = flops_of(s, backward), bytes = bytes_of_attention(s, backward);
        if (flops_of(s, true) > kLargestFlops) continue;
        settings.push_back(
            {.measurement = {.kernel = "attention",
                             .of = {{"format", "bf16"},
                                    {"phase", backward ? "backward" : "forward"},
                                    {"mask", "causal"}},
                             .shape = {{"batch", s.batch},
                                       {"heads", s.heads},
                                       {"kv_heads", s.kv_heads},
                                       {"seq", s.seq},
                                       {"head_dim", s.head_dim},
                                       {"head_dim_v", s.head_dim_v}},
                             .flops = flops,
                             .bytes = bytes},
             .floor_us = 1e6 * std::max(flops / device.facts().peak("bf16"), bytes / device.facts().memory_rate),
             .run = [&device, handle, s, backward](Measurement& m) {
               run_attention(device, *handle, s, backward, m);
             }});
      }
  return settings;
}

}  // namespace foldwise::kernels
