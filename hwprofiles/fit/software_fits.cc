// Kernels that only the Python of training software launches, timed alone (kernels/torch/software_kernels.py) and in
// steps of Megatron-Core (kernels/torch/megatron_steps.py --kernels). Definition of an element:
// benchmarks/accuracy/journal.md#software.
#include <fmt/core.h>

#include <Eigen/QR>
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hwprofiles/fit/fitting.h"
#include "hwprofiles/fit/step_models.h"

namespace foldwise::hwprofiles {
namespace {

using config::ObjectReader;
using costmodel::MemoryOp;
using Json = nlohmann::ordered_json;

/// A single call.
struct Sample {
  double seconds = 0.0, elements = 0.0, groups = 1.0;
};
using Samples = std::map<std::string, std::vector<Sample>>;  ///< By curve.

/// Selects the records of each curve.
struct Benchmark {
  std::string_view what, kind, forward, backward;  ///< Names of curves; empty: none.
  std::string_view only;                           ///< Part of the names of kernels to use; empty: all.
};
constexpr std::array<Benchmark, 17> kBenchmarks{
    {{"cross_entropy", "unfused", "unfused_cross_entropy_forward", "unfused_cross_entropy_backward", ""},
     {"cross_entropy", "native", "native_cross_entropy_forward", "native_cross_entropy_backward", ""},
     {"mamba_chunk_scan_combined", "", "mamba_scan_forward", "mamba_scan_backward", ""},
     {"mamba_split_conv1d_scan_combined", "", "mamba_convolution_forward", "mamba_convolution_backward",
      "causal_conv1d"},
     {"gated_norm", "", "mamba_norm_forward", "mamba_norm_backward", ""},
     {"expert_bias", "", "expert_bias_forward", "expert_bias_backward", ""},
     {"activation_clamp", "", "activation_clamp_forward", "activation_clamp_backward", ""},
     {"unfused_permute", "", "", "index_add", "indexFunc"},
     {"unfused_unpermute", "", "scatter_add", "", ""},
     {"hyper_connection", "bf16", "hyper_connection_forward", "hyper_connection_backward", ""},
     {"key_compressor", "", "key_compressor_forward", "key_compressor_backward", ""},
     {"query_norm", "", "query_norm_forward", "query_norm_backward", ""},
     {"key_selection", "", "key_selection", "", ""},
     {"gated_delta_rule", "", "gated_delta_rule_forward", "gated_delta_rule_backward", ""},
     {"delta_net_layout", "", "delta_net_layout_forward", "delta_net_layout_backward", ""},
     {"rms_norm", "general", "general_norm_forward", "general_norm_backward", "rmsnorm"},
     {"rms_norm", "heads", "head_norm_forward", "head_norm_backward", "rmsnorm"}}};

double number(const Json& record, const char* key) { return record.value(key, 1.0); }

/// Elements of a record of software_kernels.py: product of its kernel's sizes.
double elements_of(const Json& record, std::string_view curve) {
  const auto product = [&](std::initializer_list<const char*> keys) {
    double result = 1.0;
    for (const char* key : keys) result *= number(record, key);
    return result;
  };
  const double tokens = product({"batch", "seq", "tokens", "rows"});
  if (curve.starts_with("mamba_convolution"))  // Channels of x, B and C.
    return tokens * (product({"heads", "head_dim"}) + 2.0 * product({"groups", "state"}));
  if (curve.starts_with("mamba_scan") || curve.starts_with("gated_delta_rule"))
    return tokens * product({"heads", "head_dim"});
  if (curve.starts_with("delta_net_layout"))  // Channels of queries, keys and values.
    return tokens * number(record, "head_dim") * (2.0 * number(record, "key_heads") + number(record, "value_heads"));
  if (curve == "key_selection") return tokens * number(record, "keys");
  return tokens * product({"vocab", "width", "topk", "streams", "windows"});
}

/// Total time, in the records' unit, of kernels with `part` in their name: {name: [count, time]}.
double time_of(const Json& kernels, std::string_view part) {
  double sum = 0.0;
  for (const auto& [name, count_and_time] : kernels.items())
    if (name.find(part) != std::string::npos) sum += count_and_time.at(1).get<double>();
  return sum;
}

void add_benchmarks(const std::vector<Json>& records, Samples& samples) {
  const auto setting = [](Json one) {
    for (const char* key : {"phase", "wall_ms", "kernels_us"}) one.erase(key);
    return one;
  };
  for (const Json& record : records) {
    if (record.at("phase") != "forward") continue;
    for (const Benchmark& benchmark : kBenchmarks) {
      if (record.at("what") != benchmark.what || record.value("kind", "") != benchmark.kind) continue;
      const auto add = [&](std::string_view curve, double seconds) {
        samples[std::string(curve)].push_back({seconds, elements_of(record, curve), number(record, "local_experts")});
      };
      const double forward = 1e-6 * time_of(record.at("kernels_us"), benchmark.only);
      if (!benchmark.forward.empty()) add(benchmark.forward, forward);
      if (benchmark.backward.empty()) continue;
      const auto both = std::find_if(records.begin(), records.end(), [&](const Json& other) {
        return other.at("phase") == "forward+backward" && setting(other) == setting(record);
      });
      if (both == records.end()) throw std::runtime_error("a forward record without its forward+backward one");
      add(benchmark.backward, 1e-6 * time_of(both->at("kernels_us"), benchmark.only) - forward);
    }
  }
}

/// Adds kernels of a complete step, which are identified by their names.
void add_steps(const std::vector<Json>& records, const costmodel::Hardware& hw, Samples& samples) {
  for (const Json& record : records) {
    const Json& run = record.at("run");
    const costmodel::ModelSpec model = step_model(run);
    const auto& attention = std::get<costmodel::GqaSpec>(model.mixers.front());
    const double calls = number(run, "mb") * number(run, "layers"), tokens = number(run, "seq") * number(run, "mbs"),
                 rows = tokens / number(run, "tp") * static_cast<double>(model.moe.topk);
    const double experts = number(run, "experts") / number(run, "ep"),
                 ffn = static_cast<double>(model.moe.ffn_hidden_size);
    const auto call = [&](const char* part) { return 1e-3 * time_of(record.at("kernels"), part) / calls; };  // From ms.
    const auto add = [&](const char* curve, double seconds, double elements, double groups) {
      if (seconds > 0.0) samples[curve].push_back({seconds, elements, groups});
    };
    // The kernel runs over the rows of all experts: input of the activation, and gradient of its output.
    add("probability_gradient", call("triton_red_fused__to_copy"), rows * 3.0 * ffn, 1.0);
    if (run.at("model") != "gpt-oss") continue;
    add("bias_gradient", call("globalKernelBgradAB"), rows * 2.0 * ffn, experts);
    // In addition to the row dot that every model has.
    const double query_rows = tokens * static_cast<double>(attention.heads);
    const Seconds dot =
        memory_time(hw, MemoryOp::kStridedCopy, Bytes{4.0 * query_rows * static_cast<double>(attention.head_dim)});
    add("sink_gradient", call("compute_dot_do_o_specialized") - dot.to<double>(), query_rows, 1.0);
  }
}

/// Adds kernels of a step's end. An element is a parameter of the rank's shard.
void add_optimizers(const std::vector<Json>& records, Samples& samples) {
  for (const Json& record : records) {
    const double parameters = record.at("parameters");
    const auto add = [&](const char* curve, const char* part) {
      const double seconds = 1e-3 * time_of(record.at("kernels"), part);  // From ms.
      if (seconds > 0.0) samples[curve].push_back({seconds, parameters, 1.0});
    };
    add("widen", "direct_copy_kernel_cuda");
    add("adam_remainder", "MasterParamRemainder");
  }
}

/// Relative least squares of launch + groups per_group + elements per_element with nonnegative coefficients. A term is
/// fitted only if the samples differ in it.
struct Linear {
  double per_element = 0.0, per_group = 0.0, launch = 0.0;
  [[nodiscard]] double at(const Sample& s) const { return launch + s.groups * per_group + s.elements * per_element; }
};
Linear fit(const std::vector<Sample>& samples) {
  const auto spread = [&](double Sample::*member) {
    const auto [low, high] = std::minmax_element(
        samples.begin(), samples.end(), [member](const Sample& a, const Sample& b) { return a.*member < b.*member; });
    return (*low).*member != (*high).*member;
  };
  std::array<bool, 3> used{true, spread(&Sample::groups), samples.size() > 2 && spread(&Sample::elements)};
  while (true) {
    std::vector<int> columns;
    for (int i = 0; i < 3; ++i)
      if (used.at(static_cast<std::size_t>(i))) columns.push_back(i);
    Eigen::MatrixXd terms(samples.size(), columns.size());
    for (Eigen::Index row = 0; row < terms.rows(); ++row) {
      const Sample& s = samples[static_cast<std::size_t>(row)];
      const std::array<double, 3> values{s.elements, s.groups, 1.0};
      for (Eigen::Index i = 0; i < terms.cols(); ++i)
        terms(row, i) = values.at(static_cast<std::size_t>(columns[static_cast<std::size_t>(i)])) / s.seconds;
    }
    const Eigen::VectorXd solved = terms.colPivHouseholderQr().solve(Eigen::VectorXd::Ones(terms.rows()));
    std::array<double, 3> result{};
    int negative = -1;
    for (Eigen::Index i = 0; i < solved.size(); ++i) {
      const int column = columns[static_cast<std::size_t>(i)];
      result.at(static_cast<std::size_t>(column)) = solved[i];
      if (solved[i] < 0.0) negative = column;
    }
    if (negative < 0) return {result[0], result[1], result[2]};
    used.at(static_cast<std::size_t>(negative)) = false;
  }
}

}  // namespace

/// {"curves": "software", "kernels": a file of software_kernels.py, "steps": one of megatron_steps.py --kernels,
/// "optimizers": kernels of exported scripts' steps, with the parameters of the rank's shard}
void fit_software(Fitting& fitting, ProfileFit& profile, ObjectReader& entry) {
  std::map<std::string_view, Samples> sources;  // By their names in the profile.
  add_benchmarks(fitting.lines(entry.required_string("kernels")), sources["software_kernels"]);
  add_steps(fitting.lines(entry.required_string("steps")), profile.hardware, sources["step_kernels"]);
  add_optimizers(fitting.lines(entry.required_string("optimizers")), sources["optimizer_kernels"]);
  for (const auto& [source, samples] : sources)
    for (const auto& [name, list] : samples) {
      const Linear all = fit(list);
      const auto [errors, left_out] = leave_one_out(
          list, fit, [](const Linear& line, const Sample& s) { return std::abs(line.at(s) / s.seconds - 1.0); });
      const std::string at = "/software/" + name;
      const std::string text = list.size() == 1 ? "foldwise-fit: 1 sample, which it meets"
                                                : "foldwise-fit: " + errors_text(errors, left_out);
      const Origin origin{list.size() == 1 ? "measured" : "fitted", std::string(source), text, "2026-11"};
      profile.sheet.put(at + "/per_element", all.per_element * 1e12, "ps", origin);
      profile.sheet.put(at + "/per_group", all.per_group * 1e6, "us", origin);
      profile.sheet.put(at + "/launch", all.launch * 1e6, "us", origin);
      print_row(profile.name, name, errors, left_out,
                fmt::format("{:.4g} ps/element, {:.3g} us/group, {:.3g} us", all.per_element * 1e12,
                            all.per_group * 1e6, all.launch * 1e6));
    }
}

}  // namespace foldwise::hwprofiles
