// Memory-bound kernels of training software in steps of Megatron-Core on one GPU (kernels/torch/megatron_steps.py
// --kernels). They are identified by name; their bytes follow from the run:
// benchmarks/accuracy/journal.md#memory-bound.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "hwprofiles/fit/fitting.h"
#include "hwprofiles/fit/step_models.h"

namespace foldwise::hwprofiles {
namespace {

using config::ObjectReader;
using costmodel::GqaSpec;
using costmodel::ModelSpec;
using Json = nlohmann::ordered_json;

/// All calls of a kernel in one step: total seconds and bytes.
struct Sample {
  double seconds = 0.0, calls = 0.0, bytes = 0.0;
};
using Samples = std::map<std::string, std::vector<Sample>>;  ///< By memory op.

/// Count and time of the kernels with `part` in their name; bytes are not set.
Sample kernels(const Json& record, std::string_view part) {
  Sample sum;
  for (const auto& [name, count_and_ms] : record.at("kernels").items()) {
    if (name.find(part) == std::string::npos) continue;
    sum.calls += count_and_ms.at(0).get<double>();
    sum.seconds += 1e-3 * count_and_ms.at(1).get<double>();
  }
  return sum;
}

struct Sizes {
  double hidden, attention, experts, router, vocabulary;  ///< Parameters: of a layer; of a vocabulary matrix.
  double tokens, rows;                                    ///< Per micro-batch; `rows`: inputs of its experts.
  double query_and_key;                                   ///< Elements per token.
  double ffn, layers;
  [[nodiscard]] double parameters() const { return layers * (attention + experts + router) + 2.0 * vocabulary; }
};

Sizes sizes_of(const ModelSpec& model, const Json& run) {
  const auto& gqa = std::get<GqaSpec>(model.mixers.front());
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  const double hidden = real(model.hidden_size), ffn = real(model.moe.ffn_hidden_size),
               tokens = run.at("seq").get<double>() * run.value("mbs", 1.0),
               query_and_key = real((gqa.heads + gqa.query_groups) * gqa.head_dim);
  return {.hidden = hidden,
          .attention = 2.0 * hidden * query_and_key,
          .experts = 3.0 * real(model.moe.experts) * hidden * ffn,
          .router = real(model.moe.experts) * hidden,
          .vocabulary = real(model.vocab_size) * hidden,
          .tokens = tokens,
          .rows = tokens * real(model.moe.topk),
          .query_and_key = query_and_key,
          .ffn = ffn,
          .layers = real(static_cast<std::int64_t>(model.layers.size()))};
}

void add_step(const Json& record, Samples& samples) {
  const Json& run = record.at("run");
  const ModelSpec model = step_model(run);
  const Sizes of = sizes_of(model, run);
  const bool te = run.value("impl", "te") == "te", plain = run.at("model") != "gpt-oss",
             qk_norms = std::get<GqaSpec>(model.mixers.front()).qk_layernorm;
  const auto add = [&](const char* op, Sample sample, double bytes) {
    sample.bytes = bytes;
    if (sample.seconds > 1e-3) samples[op].push_back(sample);  // Shorter times depend on launches more than on bytes.
  };
  const auto each = [&](const char* op, const char* part, double bytes) {  // `bytes` per call.
    const Sample sample = kernels(record, part);
    add(op, sample, sample.calls * bytes);
  };
  const double parameters = of.parameters();
  add("fill", kernels(record, "FillFunctor<float>"), 4.0 * parameters);  // Zeroes the fp32 gradients.
  // Adam reads the fp32 gradient, parameter and two states, and writes the last three. Another kernel copies the
  // parameter.
  add("optimizer", kernels(record, "multi_tensor_adam"), 28.0 * parameters);
  // Gradients that no GEMM accumulates are read in fp32 and BF16 and written in fp32. GPT-OSS has biases, too.
  if (plain) {
    const double accumulated = te ? of.vocabulary + of.layers * of.router : parameters;
    add("reduce", kernels(record, "CUDAFunctor_add<float>"), 10.0 * run.at("mb").get<double>() * accumulated);
  }
  if (!te) return;
  // Norms of the hidden size. In models with norms of queries and keys, "general" kernels are those, alternating
  // between queries and keys. Another kernel ("finalize") sums gamma's gradients over blocks.
  const double hidden_norm = 2.0 * of.tokens * of.hidden, qk_norm = of.tokens * of.query_and_key;
  each("norm_forward", "rmsnorm_fwd_tuned", 2.0 * hidden_norm);
  each("norm_backward", "rmsnorm_bwd_tuned", 3.0 * hidden_norm);
  each("norm_forward", "rmsnorm_fwd_general", 2.0 * (qk_norms ? qk_norm : hidden_norm));
  each("norm_backward", "rmsnorm_bwd_general", 3.0 * (qk_norms ? qk_norm : hidden_norm));
  each("rope", "fused_rope_", 2.0 * of.tokens * of.query_and_key);             // Alternates between queries and keys.
  each("permute", "permute_kernel", 2.0 * of.hidden * (of.tokens + of.rows));  // Includes _unpermute_kernel.
  each("activation_forward", "triton_poi_fused__to_copy_mul_silu_split", 2.0 * 3.0 * of.rows * of.ffn);
  each("activation_backward", "triton_poi_fused__to_copy_add_cat_mul_rsub_sigmoid_silu_split",
       2.0 * 5.0 * of.rows * of.ffn);
}

/// Names of cuBLAS kernels for the router's FP32 GEMMs: operands transposed or not (t, n); `largek` kernels split k.
struct RouterProduct {
  const char* phase;
  std::array<const char*, 3> names;
};
constexpr std::array<RouterProduct, 3> kRouterProducts{
    {{"forward", {"f32f32_f32f32_f32_tn", "_tn_align1", "lds64<true, false"}},
     {"dgrad", {"f32f32_f32f32_f32_nn", "_nn_align1", "lds64<false, false"}},
     {"wgrad", {"f32f32_f32f32_f32_nt", "_nt_align1", "lds64<false, true"}}}};

/// One call of each phase's GEMM, if the record has a kernel that is not faster than memory allows.
void add_router_products(const Json& record, double bandwidth, std::vector<Measurement>& samples) {
  const Json& run = record.at("run");
  const ModelSpec model = step_model(run);
  const std::int64_t tokens = run.at("seq").get<std::int64_t>() * run.value("mbs", std::int64_t{1}),
                     hidden = model.hidden_size, experts = model.moe.experts;
  const double bytes = 4.0 * static_cast<double>(tokens * hidden + hidden * experts + tokens * experts);
  const std::array<std::array<std::int64_t, 3>, 3> sizes{
      {{tokens, experts, hidden}, {tokens, hidden, experts}, {experts, hidden, tokens}}};  // m, n, k of each
  for (std::size_t i = 0; i < sizes.size(); ++i)
    for (const char* name : kRouterProducts.at(i).names) {
      const Sample sum = kernels(record, name);
      if (sum.calls == 0.0 || sum.seconds / sum.calls < bytes / bandwidth) continue;
      Measurement sample;
      sample.kernel = "gemm";
      sample.of = {{"format", "fp32"}, {"phase", kRouterProducts.at(i).phase}};
      sample.shape = {{"m", sizes.at(i)[0]}, {"n", sizes.at(i)[1]}, {"k", sizes.at(i)[2]}};
      sample.samples_us = {1e6 * sum.seconds / sum.calls};
      samples.push_back(std::move(sample));
    }
}

}  // namespace

/// {"curves": "router_products", "steps": files of megatron_steps.py --kernels on this GPU}
void fit_router_products(Fitting& fitting, ProfileFit& profile, ObjectReader& entry) {
  std::vector<Measurement> samples;
  const auto files = entry.strings("steps");
  if (!files) {
    entry.error("steps", "expected a list of files of megatron_steps.py");
    return;
  }
  for (const std::string& file : *files)
    for (const Json& record : fitting.lines(file))
      if (record.contains("kernels") && !record.at("run").at("experts").is_null() &&
          !record.at("run").contains("weights"))
        add_router_products(record, profile.hardware.hbm_bandwidth.to<double>(), samples);
  const std::string at = "/gemm/fp32/";
  const FittedCurve curve = fit_curve(profile.hardware, profile.profile.json,
                                      {.name = "router products",
                                       .pointer = "",
                                       .parameters = {{at + "sustained/forward", "1", 0.5, 0.02, 1.0},
                                                      {at + "sustained/dgrad", "1", 0.5, 0.02, 1.0},
                                                      {at + "sustained/wgrad", "1", 0.5, 0.02, 1.0}},
                                       .samples = std::move(samples)},
                                      kFitSeed);
  print_fit(profile.name, curve);
  profile.sheet.put(curve, {"fitted", "router_products", "foldwise-fit", "2026-11"});
}

/// {"curves": "step_shares", "steps": a file of megatron_steps.py --kernels on this GPU}
void fit_step_shares(Fitting& fitting, ProfileFit& profile, ObjectReader& entry) {
  Samples samples;
  for (const Json& record : fitting.lines(entry.required_string("steps"))) add_step(record, samples);
  const auto bandwidth = profile.hardware.hbm_bandwidth.to<double>();
  for (const auto& [op, kind] : memory_op_names()) {
    const auto found = samples.find(op);
    if (found == samples.end()) continue;
    const std::vector<Sample>& list = found->second;
    const auto launch = profile.hardware.memory.at(static_cast<std::size_t>(kind)).launch.to<double>();
    const auto middle_share = [&](const std::vector<Sample>& some) {
      std::vector<double> shares(some.size());
      std::transform(some.begin(), some.end(), shares.begin(),
                     [&](const Sample& s) { return s.bytes / (s.seconds - s.calls * launch) / bandwidth; });
      return median(std::move(shares));
    };
    const double share = middle_share(list);
    const auto [errors, left_out] = leave_one_out(list, middle_share, [&](double of, const Sample& s) {
      return std::abs((s.calls * launch + s.bytes / of / bandwidth) / s.seconds - 1.0);
    });
    const Origin origin{"fitted", "one_gpu_steps", "foldwise-fit: " + errors_text(errors, left_out), "2026-11"};
    profile.sheet.put("/memory/" + op + "/step_share", share, "1", origin);
    // Zeroing is the fastest kernel of these steps.
    if (op == "fill") profile.sheet.put("/hbm/ceiling", share, "1", origin);
    print_row(profile.name, "step " + op, errors, left_out, fmt::format("step_share {:.4g}", share));
  }
}

}  // namespace foldwise::hwprofiles
