#include "hwprofiles/load/fields.h"

#include <fmt/core.h>

#include <algorithm>

#include "costmodel/config/number.h"
#include "costmodel/ops/dispatcher.h"
#include "hwprofiles/load/profile.h"

namespace foldwise::hwprofiles {
namespace {

using costmodel::AttentionCurve;
using costmodel::CollectiveCurve;
using costmodel::CollectiveKind;
using costmodel::Contention;
using costmodel::Dispatcher;
using costmodel::GemmPhase;
using costmodel::GraphModule;
using costmodel::Hardware;
using costmodel::MathFormat;
using costmodel::MemoryOp;
using costmodel::Precision;
using costmodel::ProtocolCurve;
using costmodel::SoftwareKernel;
using nlohmann::json;

const Dimension time_dimension{"a time", {{"ps", 1e-12}, {"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}}, 1e-18, 10.0};
const Dimension bandwidth_dimension{"a bandwidth", {{"GB/s", 1e9}, {"TB/s", 1e12}, {"Gb/s", 1e9 / 8.0}}, 1e6, 1e17};
const Dimension size_dimension{
    "a size", {{"B", 1.0}, {"MiB", kGib / 1024.0}, {"GiB", kGib}, {"GB", 1e9}, {"TB", 1e12}}, 1.0, 1e15};
const Dimension rate_dimension{"a rate", {{"TFLOPS", 1e12}, {"PFLOPS", 1e15}}, 1e6, 1e19};
const Dimension ratio_dimension{"a ratio", {{"1", 1.0}}, 1e-6, 1e6};
const Dimension covariance_dimension{"a covariance", {{"1", 1.0}}, -100.0, 100.0};
const Dimension power_dimension{"a power", {{"W", 1.0}}, 1e-3, 1e6};
const Dimension flop_energy_dimension{"an energy per FLOP", {{"pJ/FLOP", 1e-12}}, 1e-18, 1e-6};
const Dimension sms_dimension{"a number of SMs", {{"SM", 1.0}}};
const Dimension gpus_dimension{"a number of GPUs", {{"GPU", 1.0}}};
const Dimension layouts_dimension{"a number of layouts", {{"layout", 1.0}}};
const Dimension domains_dimension{"a number of NVLink domains", {{"domain", 1.0}}};

const std::vector<std::pair<std::string, MathFormat>> format_names{
    {"bf16", MathFormat::kBf16},   {"fp8", MathFormat::kFp8},     {"fp8_block", MathFormat::kFp8Block},
    {"mxfp8", MathFormat::kMxfp8}, {"nvfp4", MathFormat::kNvfp4}, {"fp32", MathFormat::kFp32}};
static_assert(costmodel::kMathFormats == 6);

const std::vector<std::pair<std::string, GemmPhase>> phase_names{
    {"forward", GemmPhase::kForward}, {"dgrad", GemmPhase::kDgrad}, {"wgrad", GemmPhase::kWgrad}};
static_assert(costmodel::kGemmPhases == 3);

const std::vector<std::pair<std::string, MemoryOp>> memory_names{{"norm_forward", MemoryOp::kNormForward},
                                                                 {"norm_backward", MemoryOp::kNormBackward},
                                                                 {"elementwise", MemoryOp::kElementwise},
                                                                 {"activation_forward", MemoryOp::kActivationForward},
                                                                 {"activation_backward", MemoryOp::kActivationBackward},
                                                                 {"rope", MemoryOp::kRope},
                                                                 {"permute", MemoryOp::kPermute},
                                                                 {"strided_copy", MemoryOp::kStridedCopy},
                                                                 {"quantize", MemoryOp::kQuantize},
                                                                 {"amax", MemoryOp::kAmax},
                                                                 {"cross_entropy", MemoryOp::kCrossEntropy},
                                                                 {"router", MemoryOp::kRouter},
                                                                 {"optimizer", MemoryOp::kOptimizer},
                                                                 {"reduce", MemoryOp::kReduce},
                                                                 {"fill", MemoryOp::kFill},
                                                                 {"embedding", MemoryOp::kEmbedding}};
static_assert(costmodel::kMemoryOps == 16);

const std::vector<std::pair<std::string, SoftwareKernel>> software_names{
    {"unfused_cross_entropy_forward", SoftwareKernel::kUnfusedCrossEntropyForward},
    {"unfused_cross_entropy_backward", SoftwareKernel::kUnfusedCrossEntropyBackward},
    {"native_cross_entropy_forward", SoftwareKernel::kNativeCrossEntropyForward},
    {"native_cross_entropy_backward", SoftwareKernel::kNativeCrossEntropyBackward},
    {"mamba_scan_forward", SoftwareKernel::kMambaScanForward},
    {"mamba_scan_backward", SoftwareKernel::kMambaScanBackward},
    {"mamba_convolution_forward", SoftwareKernel::kMambaConvolutionForward},
    {"mamba_convolution_backward", SoftwareKernel::kMambaConvolutionBackward},
    {"mamba_norm_forward", SoftwareKernel::kMambaNormForward},
    {"mamba_norm_backward", SoftwareKernel::kMambaNormBackward},
    {"expert_bias_forward", SoftwareKernel::kExpertBiasForward},
    {"expert_bias_backward", SoftwareKernel::kExpertBiasBackward},
    {"activation_clamp_forward", SoftwareKernel::kActivationClampForward},
    {"activation_clamp_backward", SoftwareKernel::kActivationClampBackward},
    {"index_add", SoftwareKernel::kIndexAdd},
    {"scatter_add", SoftwareKernel::kScatterAdd},
    {"sink_gradient", SoftwareKernel::kSinkGradient},
    {"probability_gradient", SoftwareKernel::kProbabilityGradient},
    {"bias_gradient", SoftwareKernel::kBiasGradient},
    {"sort_map", SoftwareKernel::kSortMap},
    {"flat_cast", SoftwareKernel::kFlatCast},
    {"hyper_connection_forward", SoftwareKernel::kHyperConnectionForward},
    {"hyper_connection_backward", SoftwareKernel::kHyperConnectionBackward},
    {"key_compressor_forward", SoftwareKernel::kKeyCompressorForward},
    {"key_compressor_backward", SoftwareKernel::kKeyCompressorBackward},
    {"query_norm_forward", SoftwareKernel::kQueryNormForward},
    {"query_norm_backward", SoftwareKernel::kQueryNormBackward},
    {"key_selection", SoftwareKernel::kKeySelection},
    {"gated_delta_rule_forward", SoftwareKernel::kGatedDeltaRuleForward},
    {"gated_delta_rule_backward", SoftwareKernel::kGatedDeltaRuleBackward},
    {"delta_net_layout_forward", SoftwareKernel::kDeltaNetLayoutForward},
    {"delta_net_layout_backward", SoftwareKernel::kDeltaNetLayoutBackward},
    {"general_norm_forward", SoftwareKernel::kGeneralNormForward},
    {"general_norm_backward", SoftwareKernel::kGeneralNormBackward},
    {"head_norm_forward", SoftwareKernel::kHeadNormForward},
    {"head_norm_backward", SoftwareKernel::kHeadNormBackward},
    {"widen", SoftwareKernel::kWiden},
    {"adam_remainder", SoftwareKernel::kAdamRemainder}};
static_assert(costmodel::kSoftwareKernels == 38);

const std::vector<std::pair<std::string, CollectiveKind>> collective_names{
    {"all_reduce", CollectiveKind::kAllReduce},
    {"all_gather", CollectiveKind::kAllGather},
    {"reduce_scatter", CollectiveKind::kReduceScatter},
    {"all_to_all", CollectiveKind::kAllToAll},
    {"send_recv", CollectiveKind::kSendRecv},
    {"dispatch", CollectiveKind::kDispatch},
    {"combine", CollectiveKind::kCombine}};
static_assert(costmodel::kMeasuredKinds == 7);

/// Megatron's names.
const std::vector<std::pair<std::string, Dispatcher>> flex_names = [] {
  std::vector<std::pair<std::string, Dispatcher>> names;
  const std::span<const costmodel::DispatcherSpec> specs = costmodel::dispatcher_specs();
  for (std::size_t i = 0; i < specs.size(); ++i)
    if (specs[i].once_per_rank) names.emplace_back(specs[i].name, static_cast<Dispatcher>(i));
  return names;
}();
const std::vector<std::pair<std::string, Precision>> fp8_names{{"fp8-delayed", Precision::kFp8Delayed},
                                                               {"fp8-current", Precision::kFp8Current},
                                                               {"fp8-blockwise", Precision::kFp8Blockwise},
                                                               {"mxfp8", Precision::kMxfp8}};
const std::vector<std::pair<std::string, GraphModule>> graph_names{{"attn", GraphModule::kAttn},
                                                                   {"mlp", GraphModule::kMlp},
                                                                   {"moe", GraphModule::kMoe},
                                                                   {"moe_router", GraphModule::kMoeRouter},
                                                                   {"moe_preprocess", GraphModule::kMoePreprocess},
                                                                   {"mamba", GraphModule::kMamba}};

/// A field with the names in `table` as values. `set` is called for each of them.
template <typename Value>
NamesField names_field(std::string pointer, const std::vector<std::pair<std::string, Value>>& table, bool list,
                       bool required, void (*set)(Hardware&, Value)) {
  NamesField field{std::move(pointer), {}, list, required, {}};
  for (const auto& entry : table) field.names.push_back(entry.first);
  field.set = [&table, set](Hardware& hw, const std::vector<std::string>& names) {
    for (const std::string& name : names)
      for (const auto& [known, value] : table)
        if (known == name) set(hw, value);
  };
  return field;
}

}  // namespace

std::vector<NamesField> names_fields(const json& merged) {
  return {names_field(
              "/flex_dispatchers", flex_names, true, true,
              +[](Hardware& hw, Dispatcher value) { hw.traits.flex_dispatchers.push_back(value); }),
          names_field(
              "/recipe/fp8", fp8_names, false, has(merged, "/peak/fp8"),
              +[](Hardware& hw, Precision value) { hw.recipe.fp8 = value; }),
          names_field(
              "/recipe/dispatcher", flex_names, false, false,
              +[](Hardware& hw, Dispatcher value) { hw.recipe.dispatcher = value; }),
          names_field(
              "/recipe/graph_modules", graph_names, true, false,
              +[](Hardware& hw, GraphModule value) { hw.recipe.graph_modules = hw.recipe.graph_modules | value; })};
}

double unit_size(const std::string& unit) {
  for (const Dimension* dimension :
       {&time_dimension, &bandwidth_dimension, &size_dimension, &rate_dimension, &ratio_dimension, &power_dimension,
        &flop_energy_dimension, &sms_dimension, &gpus_dimension, &layouts_dimension, &domains_dimension})
    for (const auto& [name, size] : dimension->units)
      if (name == unit) return size;
  return 0.0;
}

bool has(const json& tree, const std::string& pointer) { return tree.contains(json::json_pointer(pointer)); }

json* place(json& tree, const std::string& pointer) {
  json* node = &tree;
  for (std::size_t at = 0; at < pointer.size();) {
    if (!node->is_object() && !node->is_null()) return nullptr;
    const std::size_t end = std::min(pointer.find('/', at + 1), pointer.size());
    node = &(*node)[pointer.substr(at + 1, end - at - 1)];
    at = end;
  }
  return node;
}

bool is_quantity(const json& node) { return node.is_object() && node.contains("value"); }

std::string text_of(const json& node, const std::string& key) {
  const auto found = node.is_object() ? node.find(key) : node.end();
  return found != node.end() && found->is_string() ? found->get<std::string>() : std::string{};
}

namespace {

bool runs_flex(const json& merged, const std::string& name) {
  const auto field = merged.find("flex_dispatchers");
  if (field == merged.end() || !is_quantity(*field)) return false;
  const json& list = field->at("value");
  return list.is_array() && std::find(list.begin(), list.end(), name) != list.end();
}

}  // namespace

std::vector<std::int64_t> head_dims(const json& merged) {
  std::vector<std::int64_t> result;
  const auto rows = merged.find("attention");
  if (rows == merged.end() || !rows->is_object()) return result;
  for (const auto& row : rows->items()) {
    const auto head_dim = config::number_in<std::int64_t>(row.key());
    if (head_dim && *head_dim > 0 && *head_dim <= 65536) result.push_back(*head_dim);
  }
  std::sort(result.begin(), result.end());
  return result;
}

std::vector<Field> fields(const json& merged) {
  std::vector<Field> list;
  const auto add = [&](std::string pointer, const Dimension& dimension, Range range, bool required,
                       std::function<void(Hardware&, double)> set) {
    list.push_back({std::move(pointer), &dimension, range, required, std::move(set)});
  };
  add("/sms", sms_dimension, Range::kCount, true,
      [](Hardware& hw, double v) { hw.sms = static_cast<std::int64_t>(v); });
  add("/tensor_cores/fp8_layouts", layouts_dimension, Range::kCount, has(merged, "/peak/fp8"),
      [](Hardware& hw, double v) { hw.traits.fp8_layouts = static_cast<int>(v); });
  add("/hbm/capacity", size_dimension, Range::kPositive, true,
      [](Hardware& hw, double v) { hw.hbm_capacity = Bytes{v}; });
  add("/hbm/bandwidth", bandwidth_dimension, Range::kPositive, true,
      [](Hardware& hw, double v) { hw.hbm_bandwidth = Bandwidth{v}; });

  // Only derivations use these (hwprofiles/load/derive.h): the share of the bandwidth that the fastest kernel reaches,
  // and NVLink's datasheet rate in one direction.
  const auto fact = [](Hardware&, double) {};
  add("/hbm/ceiling", ratio_dimension, Range::kShare, false, fact);
  add("/network/nvlink_bandwidth", bandwidth_dimension, Range::kPositive, false, fact);

  constexpr const char* kSiteFactors[costmodel::SiteKnowledge::kFactors] = {"host", "flops", "nvlink", "nic"};
  for (std::size_t i = 0; i < costmodel::SiteKnowledge::kFactors; ++i)
    for (std::size_t k = i; k < costmodel::SiteKnowledge::kFactors; ++k)
      add(fmt::format("/site/{}_{}", kSiteFactors[i], kSiteFactors[k]), covariance_dimension, Range::kAny,
          has(merged, "/site"), [i, k](Hardware& hw, double v) {
            if (!hw.site) hw.site.emplace();
            hw.site->covariance.at(i).at(k) = hw.site->covariance.at(k).at(i) = v;
          });

  for (const auto& [name, format] : format_names) {
    const auto i = static_cast<std::size_t>(format);
    const std::string peak = "/peak/" + name, curve = "/gemm/" + name;
    const bool needed =
        format == MathFormat::kBf16 || format == MathFormat::kFp32 || has(merged, peak) || has(merged, curve);
    add(peak, rate_dimension, Range::kPositive, needed,
        [i](Hardware& hw, double v) { hw.peak.at(i) = hw.gemm.at(i).peak = FlopRate{v}; });
    for (const auto& [phase_name, phase] : phase_names) {
      const auto p = static_cast<std::size_t>(phase);
      add(fmt::format("{}/sustained/{}", curve, phase_name), ratio_dimension, Range::kShare, needed,
          [i, p](Hardware& hw, double v) { hw.gemm.at(i).sustained.at(p) = v; });
    }
    add(curve + "/launch", time_dimension, Range::kNotNegative, needed,
        [i](Hardware& hw, double v) { hw.gemm.at(i).launch = Seconds{v}; });
    add(curve + "/group_memory_share", ratio_dimension, Range::kShare, false,
        [i](Hardware& hw, double v) { hw.gemm.at(i).group_memory_share = v; });
    add(curve + "/group_accumulate_share", ratio_dimension, Range::kShare, false,
        [i](Hardware& hw, double v) { hw.gemm.at(i).group_accumulate_share = v; });
    add(curve + "/per_group", time_dimension, Range::kNotNegative, false,
        [i](Hardware& hw, double v) { hw.gemm.at(i).per_group = Seconds{v}; });
    add(curve + "/accumulate_per_group", time_dimension, Range::kNotNegative, false,
        [i](Hardware& hw, double v) { hw.gemm.at(i).accumulate_per_group = Seconds{v}; });
    add(curve + "/group_rate_share", ratio_dimension, Range::kShare, false,
        [i](Hardware& hw, double v) { hw.gemm.at(i).group_rate_share = v; });
    add(curve + "/one_kernel_memory_share", ratio_dimension, Range::kShare, false,
        [i](Hardware& hw, double v) { hw.gemm.at(i).one_kernel_memory_share = v; });
    add(curve + "/one_kernel_per_group", time_dimension, Range::kNotNegative, false,
        [i](Hardware& hw, double v) { hw.gemm.at(i).one_kernel_per_group = Seconds{v}; });
    add(curve + "/accumulate_share", ratio_dimension, Range::kPositive, false,
        [i](Hardware& hw, double v) { hw.gemm.at(i).accumulate_share = v; });
    add(curve + "/wave_overhead", time_dimension, Range::kNotNegative, needed,
        [i](Hardware& hw, double v) { hw.gemm.at(i).wave_overhead = Seconds{v}; });
  }

  const std::vector<std::int64_t> rows = head_dims(merged);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string at = fmt::format("/attention/{}", rows[i]);
    const auto row = [&](const char* key, const Dimension& dimension, Range range, bool required, auto set) {
      add(fmt::format("{}/{}", at, key), dimension, range, required,
          [i, set](Hardware& hw, double v) { set(hw.attention.at(i), v); });
    };
    row("forward_rate", rate_dimension, Range::kPositive, true,
        [](AttentionCurve& a, double v) { a.forward_rate = FlopRate{v}; });
    row("backward_rate", rate_dimension, Range::kPositive, true,
        [](AttentionCurve& a, double v) { a.backward_rate = FlopRate{v}; });
    row("forward_launch", time_dimension, Range::kNotNegative, true,
        [](AttentionCurve& a, double v) { a.forward_launch = Seconds{v}; });
    row("backward_launch", time_dimension, Range::kNotNegative, true,
        [](AttentionCurve& a, double v) { a.backward_launch = Seconds{v}; });
    row("forward_tile", time_dimension, Range::kNotNegative, false,
        [](AttentionCurve& a, double v) { a.forward_tile = Seconds{v}; });
    row("backward_tile", time_dimension, Range::kNotNegative, false,
        [](AttentionCurve& a, double v) { a.backward_tile = Seconds{v}; });
    row("fp8_forward_speedup", ratio_dimension, Range::kPositive, false,
        [](AttentionCurve& a, double v) { a.fp8_forward_speedup = v; });
    row("fp8_backward_speedup", ratio_dimension, Range::kPositive, false,
        [](AttentionCurve& a, double v) { a.fp8_backward_speedup = v; });
    row("forward_window_keys", ratio_dimension, Range::kNotNegative, false,
        [](AttentionCurve& a, double v) { a.forward_window_keys = v; });
    row("backward_window_keys", ratio_dimension, Range::kNotNegative, false,
        [](AttentionCurve& a, double v) { a.backward_window_keys = v; });
  }

  for (const auto& [name, op] : memory_names) {
    const auto i = static_cast<std::size_t>(op);
    add("/memory/" + name + "/share", ratio_dimension, Range::kShare, true,
        [i](Hardware& hw, double v) { hw.memory.at(i).share = v; });
    add("/memory/" + name + "/step_share", ratio_dimension, Range::kShare, false,
        [i](Hardware& hw, double v) { hw.memory.at(i).step_share = v; });
    add("/memory/" + name + "/launch", time_dimension, Range::kNotNegative, true,
        [i](Hardware& hw, double v) { hw.memory.at(i).launch = Seconds{v}; });
  }

  for (const auto& [name, kernel] : software_names) {
    const auto i = static_cast<std::size_t>(kernel);
    const std::string at = "/software/" + name;
    add(at + "/per_element", time_dimension, Range::kNotNegative, true,
        [i](Hardware& hw, double v) { hw.software.at(i).per_element = Seconds{v}; });
    add(at + "/bytes", size_dimension, Range::kNotNegative, true,
        [i](Hardware& hw, double v) { hw.software.at(i).bytes = Bytes{v}; });
    add(at + "/per_group", time_dimension, Range::kNotNegative, false,
        [i](Hardware& hw, double v) { hw.software.at(i).per_group = Seconds{v}; });
    add(at + "/launch", time_dimension, Range::kNotNegative, false,
        [i](Hardware& hw, double v) { hw.software.at(i).launch = Seconds{v}; });
  }

  add("/power/limit", power_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.power.limit = Watts{v}; });
  add("/power/base", power_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.power.base = Watts{v}; });
  for (const auto& [name, format] : format_names) {
    const auto i = static_cast<std::size_t>(format);
    add("/power/per_flop/" + name, flop_energy_dimension, Range::kNotNegative,
        format == MathFormat::kBf16 || has(merged, "/peak/" + name),
        [i](Hardware& hw, double v) { hw.power.joule_per_flop.at(i) = v; });
  }
  add("/power/attention", ratio_dimension, Range::kShare, false,
      [](Hardware& hw, double v) { hw.power.attention = v; });
  add("/power/memory_pause", ratio_dimension, Range::kShare, false,
      [](Hardware& hw, double v) { hw.power.memory_pause = v; });
  add("/power/attention_stretch", ratio_dimension, Range::kNotNegative, false,
      [](Hardware& hw, double v) { hw.power.attention_stretch = v; });
  add("/power/spread", ratio_dimension, Range::kShare, false, [](Hardware& hw, double v) { hw.power.spread = v; });

  for (const auto& [name, rates] : {std::pair{"gemm", &Contention::gemm}, std::pair{"memory", &Contention::memory}}) {
    const std::string at = std::string("/contention/") + name;
    add(at + "/compute_rate", ratio_dimension, Range::kShare, false,
        [of = rates](Hardware& hw, double v) { (hw.contention.*of).compute = v; });
    add(at + "/collective_rate", ratio_dimension, Range::kShare, false,
        [of = rates](Hardware& hw, double v) { (hw.contention.*of).collective = v; });
  }
  add("/contention/launched_rate", ratio_dimension, Range::kShare, false,
      [](Hardware& hw, double v) { hw.contention.launched = v; });
  add("/contention/start_wait", ratio_dimension, Range::kNotNegative, false,
      [](Hardware& hw, double v) { hw.contention.start_wait = v; });

  add("/network/nvlink_domain", gpus_dimension, Range::kCount, true,
      [](Hardware& hw, double v) { hw.network.nvlink_domain = static_cast<std::int64_t>(v); });
  add("/network/ranks_per_domain", gpus_dimension, Range::kCount, true,
      [](Hardware& hw, double v) { hw.network.ranks_per_domain = static_cast<std::int64_t>(v); });
  for (const auto& [name, kind] : collective_names) {
    const auto i = static_cast<std::size_t>(kind);
    const std::string at = "/network/nvlink/" + name;
    const auto protocol = [&](const std::string& place, bool required, ProtocolCurve CollectiveCurve::*curve) {
      add(place + "/base", time_dimension, Range::kNotNegative, required,
          [i, curve](Hardware& hw, double v) { (hw.network.nvlink.at(i).*curve).base = Seconds{v}; });
      add(place + "/per_rank", time_dimension, Range::kNotNegative, required,
          [i, curve](Hardware& hw, double v) { (hw.network.nvlink.at(i).*curve).per_rank = Seconds{v}; });
      add(place + "/bandwidth", bandwidth_dimension, Range::kPositive, required,
          [i, curve](Hardware& hw, double v) { (hw.network.nvlink.at(i).*curve).bandwidth = Bandwidth{v}; });
    };
    protocol(at, true, &CollectiveCurve::bulk);
    if (kind == CollectiveKind::kDispatch || kind == CollectiveKind::kCombine) continue;
    protocol(at + "/low_latency", has(merged, at + "/low_latency"), &CollectiveCurve::low_latency);
    add(at + "/own_share", bandwidth_dimension, Range::kPositive, false,
        [i](Hardware& hw, double v) { hw.network.nvlink.at(i).own_share = Bandwidth{v}; });
    if (kind != CollectiveKind::kAllReduce) continue;
    const bool in_switch = has(merged, at + "/in_switch");
    protocol(at + "/in_switch", in_switch, &CollectiveCurve::in_switch);
    add(at + "/in_switch/ranks", gpus_dimension, Range::kCount, in_switch,
        [i](Hardware& hw, double v) { hw.network.nvlink.at(i).in_switch_ranks = static_cast<std::int64_t>(v); });
  }
  add("/network/nic_bandwidth", bandwidth_dimension, Range::kPositive, true,
      [](Hardware& hw, double v) { hw.network.nic_bandwidth = Bandwidth{v}; });
  add("/network/nic_efficiency", ratio_dimension, Range::kShare, true,
      [](Hardware& hw, double v) { hw.network.nic_efficiency = v; });
  add("/network/nic_all_to_all_efficiency", ratio_dimension, Range::kShare, true,
      [](Hardware& hw, double v) { hw.network.nic_all_to_all_efficiency = v; });
  add("/network/nic_exchange_efficiency", ratio_dimension, Range::kShare, true,
      [](Hardware& hw, double v) { hw.network.nic_exchange_efficiency = v; });
  add("/network/nic_latency", time_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.network.nic_latency = Seconds{v}; });
  add("/network/nic_low_latency", time_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.network.nic_low_latency = Seconds{v}; });
  add("/network/domains_per_leaf", domains_dimension, Range::kCount, false,
      [](Hardware& hw, double v) { hw.network.domains_per_leaf = static_cast<std::int64_t>(v); });
  add("/network/oversubscription", ratio_dimension, Range::kAtLeastOne, false,
      [](Hardware& hw, double v) { hw.network.oversubscription = v; });
  add("/network/domains", domains_dimension, Range::kCount, false,
      [](Hardware& hw, double v) { hw.network.domains = static_cast<std::int64_t>(v); });
  add("/network/gpus_per_nic", gpus_dimension, Range::kCount, false,
      [](Hardware& hw, double v) { hw.network.gpus_per_nic = static_cast<std::int64_t>(v); });
  add("/network/collective_sms", sms_dimension, Range::kCount, true,
      [](Hardware& hw, double v) { hw.network.collective_sms = v; });
  add("/network/channel_bandwidth", bandwidth_dimension, Range::kPositive, true,
      [](Hardware& hw, double v) { hw.network.channel_bandwidth = Bandwidth{v}; });
  for (const auto& [name, dispatcher] : flex_names) {
    const auto i = static_cast<std::size_t>(dispatcher);
    const std::string at = "/network/exchange/" + name;
    const bool needed = has(merged, at) || runs_flex(merged, name);
    add(at + "/sms", sms_dimension, Range::kCount, needed,
        [i](Hardware& hw, double v) { hw.network.exchange.at(i).sms = v; });
    add(at + "/rate_per_sm", bandwidth_dimension, Range::kPositive, needed,
        [i](Hardware& hw, double v) { hw.network.exchange.at(i).rate_per_sm = Bandwidth{v}; });
    add(at + "/row_overhead", time_dimension, Range::kNotNegative, needed,
        [i](Hardware& hw, double v) { hw.network.exchange.at(i).row_overhead = Seconds{v}; });
  }

  for (const costmodel::HostPrice& price : costmodel::kHostPrices)
    add(fmt::format("/host/{}", price.name), time_dimension, Range::kNotNegative, true,
        [member = price.price](Hardware& hw, double v) { hw.host.*member = Seconds{v}; });
  add("/host/graph_node", time_dimension, Range::kNotNegative, false,
      [](Hardware& hw, double v) { hw.host.graph_node = Seconds{v}; });
  add("/host/backward_share", ratio_dimension, Range::kShare, true,
      [](Hardware& hw, double v) { hw.host.backward_share = v; });
  add("/host/link_to_host", bandwidth_dimension, Range::kPositive, true,
      [](Hardware& hw, double v) { hw.host.link_to_host = Bandwidth{v}; });
  add("/host/link_from_host", bandwidth_dimension, Range::kPositive, true,
      [](Hardware& hw, double v) { hw.host.link_from_host = Bandwidth{v}; });
  add("/host/links", gpus_dimension, Range::kCount, false,
      [](Hardware& hw, double v) { hw.host.links = static_cast<std::int64_t>(v); });
  add("/host/links_to_host", bandwidth_dimension, Range::kPositive, false,
      [](Hardware& hw, double v) { hw.host.links_to_host = Bandwidth{v}; });
  add("/host/links_from_host", bandwidth_dimension, Range::kPositive, false,
      [](Hardware& hw, double v) { hw.host.links_from_host = Bandwidth{v}; });
  add("/host/link_latency", time_dimension, Range::kNotNegative, false,
      [](Hardware& hw, double v) { hw.host.link_latency = Seconds{v}; });
  add("/host/link_both_share", ratio_dimension, Range::kShare, false,
      [](Hardware& hw, double v) { hw.host.link_both_share = v; });
  add("/host/memory_per_gpu", size_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.host.memory_per_gpu = Bytes{v}; });

  add("/host/virtual_machine", ratio_dimension, Range::kAtLeastOne, false,
      [](Hardware& hw, double v) { hw.host.virtual_machine = v; });
  add("/host/virtual_machine_node", time_dimension, Range::kNotNegative, false,
      [](Hardware& hw, double v) { hw.host.virtual_machine_node = Seconds{v}; });

  add("/overheads/context", size_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.overheads.context = Bytes{v}; });
  add("/overheads/moe_kernels", size_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.overheads.moe_kernels = Bytes{v}; });
  add("/overheads/communicator", size_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.overheads.communicator = Bytes{v}; });
  add("/overheads/peer", size_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.overheads.peer = Bytes{v}; });
  add("/overheads/workspace", size_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.overheads.workspace = Bytes{v}; });
  add("/overheads/fragmentation", ratio_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.overheads.fragmentation = v; });
  return list;
}

std::vector<std::string> curves(const json& merged) {
  std::vector<std::string> list;
  list.reserve(format_names.size() + memory_names.size() + collective_names.size());
  for (const auto& entry : format_names) list.push_back("/gemm/" + entry.first);
  for (const std::int64_t head_dim : head_dims(merged)) list.push_back(fmt::format("/attention/{}", head_dim));
  for (const auto& entry : memory_names) list.push_back("/memory/" + entry.first);
  for (const auto& entry : software_names) list.push_back("/software/" + entry.first);
  for (const auto& entry : collective_names) list.push_back("/network/nvlink/" + entry.first);
  list.emplace_back("/contention");
  return list;
}

std::optional<std::string> out_of_range(const Field& field, double number, const std::string& unit) {
  const Dimension& dimension = *field.dimension;
  const double size = unit_size(unit), value = number * size;
  switch (field.range) {
    case Range::kPositive:
      if (value <= 0.0) return dimension.name + " above 0";
      break;
    case Range::kNotNegative:
      if (value < 0.0) return dimension.name + " of at least 0";
      break;
    case Range::kShare:
      if (value <= 0.0 || value > 1.0) return "a share above 0 and at most 1";
      break;
    case Range::kAtLeastOne:
      if (value < 1.0) return dimension.name + " of at least 1";
      break;
    case Range::kCount:
      if (value < 1.0 || value > dimension.most || value != static_cast<double>(static_cast<std::int64_t>(value)))
        return dimension.name + " of at least 1, whole";
      break;
    case Range::kAny:
      break;
  }
  const double least = field.range == Range::kNotNegative ? 0.0 : dimension.least;
  const double most = field.range == Range::kShare ? 1.0 : dimension.most;
  if (value >= least && value <= most) return std::nullopt;
  return fmt::format("{} of {:g} to {:g}{}", field.range == Range::kShare ? "a share" : dimension.name, least / size,
                     most / size, unit == "1" ? "" : " " + unit);
}

const std::vector<std::pair<std::string, MathFormat>>& math_format_names() { return format_names; }
const std::vector<std::pair<std::string, MemoryOp>>& memory_op_names() { return memory_names; }
const std::vector<std::pair<std::string, SoftwareKernel>>& software_kernel_names() { return software_names; }
const std::vector<std::pair<std::string, CollectiveKind>>& collective_kind_names() { return collective_names; }
const std::vector<std::pair<std::string, Dispatcher>>& flex_dispatcher_names() { return flex_names; }

}  // namespace foldwise::hwprofiles
