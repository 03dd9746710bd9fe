#include "hwprofiles/load/profile.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "costmodel/check.h"

// A profile is a tree of quantities, each `{"value": 8000, "unit": "GB/s", "kind": "datasheet", "source": "DGXC",
// "date": ...}`. One table (`fields`) lists every quantity with its place in the tree, what it measures and where it
// goes in Hardware; reading, unknown keys and missing keys all follow from it. A profile with a "base" is a stack of
// documents: a quantity is taken, whole and with its provenance, from the uppermost document that has it.
namespace foldwise::hwprofiles {

/// Written by hwprofiles/embed.cmake: (stem, text) of every data/systems/*.json.
const std::vector<std::pair<std::string, std::string>>& embedded_files();

namespace {

using config::Diagnostics;
using config::Document;
using config::ObjectReader;
using costmodel::AttentionCurve;
using costmodel::CollectiveCurve;
using costmodel::CollectiveKind;
using costmodel::Contention;
using costmodel::ExchangeKernel;
using costmodel::GemmPhase;
using costmodel::GpuGeneration;
using costmodel::Hardware;
using costmodel::LinkType;
using costmodel::MathFormat;
using costmodel::MemoryOp;
using costmodel::Network;
using costmodel::ProtocolCurve;
using nlohmann::json;

/// What a quantity measures: its units with their size in base units, and what messages call it.
struct Dimension {
  std::string name;
  std::vector<std::pair<std::string, double>> units;
};

const Dimension time_dimension{"a time", {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}}};
const Dimension bandwidth_dimension{"a bandwidth", {{"GB/s", 1e9}, {"TB/s", 1e12}, {"Gb/s", 1e9 / 8.0}}};
const Dimension size_dimension{"a size", {{"MiB", kGib / 1024.0}, {"GiB", kGib}, {"GB", 1e9}, {"TB", 1e12}}};
const Dimension rate_dimension{"a rate", {{"TFLOPS", 1e12}, {"PFLOPS", 1e15}}};
const Dimension ratio_dimension{"a ratio", {{"1", 1.0}}};
const Dimension power_dimension{"a power", {{"W", 1.0}}};
const Dimension flop_energy_dimension{"an energy per FLOP", {{"pJ/FLOP", 1e-12}}};
const Dimension sms_dimension{"a number of SMs", {{"SM", 1.0}}};
const Dimension gpus_dimension{"a number of GPUs", {{"GPU", 1.0}}};
const Dimension domains_dimension{"a number of NVLink domains", {{"domain", 1.0}}};

enum class Range { kPositive, kNotNegative, kShare, kCount, kAtLeastOne };

/// One quantity of a profile.
struct Field {
  std::string pointer;
  const Dimension* dimension;
  Range range;
  bool required;
  std::function<void(Hardware&, double)> set;
};

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
                                                                 {"embedding", MemoryOp::kEmbedding},
                                                                 {"scan", MemoryOp::kScan},
                                                                 {"flat_cast", MemoryOp::kFlatCast}};
static_assert(costmodel::kMemoryOps == 18);

const std::vector<std::pair<std::string, CollectiveKind>> collective_names{
    {"all_reduce", CollectiveKind::kAllReduce},
    {"all_gather", CollectiveKind::kAllGather},
    {"reduce_scatter", CollectiveKind::kReduceScatter},
    {"all_to_all", CollectiveKind::kAllToAll},
    {"send_recv", CollectiveKind::kSendRecv},
    {"dispatch", CollectiveKind::kDispatch},
    {"combine", CollectiveKind::kCombine}};
static_assert(costmodel::kMeasuredKinds == 7);

/// Texts, not quantities.
const std::string links_pointer = "/network/links";
const std::vector<std::pair<std::string, LinkType>> nic_links{{"infiniband", LinkType::kInfiniband},
                                                              {"ethernet", LinkType::kEthernet}};
const std::vector<std::pair<std::string, LinkType>> host_links{{"pcie", LinkType::kPcie},
                                                               {"nvlink-c2c", LinkType::kNvlinkC2c}};

const std::vector<std::pair<std::string, GpuGeneration>> generation_names{
    {"ampere", GpuGeneration::kAmpere}, {"hopper", GpuGeneration::kHopper}, {"blackwell", GpuGeneration::kBlackwell}};

bool has(const json& tree, const std::string& pointer) { return tree.contains(json::json_pointer(pointer)); }

/// Head dimensions that have an attention row, ascending.
std::vector<std::int64_t> head_dims(const json& merged) {
  std::vector<std::int64_t> result;
  const auto rows = merged.find("attention");
  if (rows == merged.end() || !rows->is_object()) return result;
  for (const auto& row : rows->items()) {
    std::int64_t head_dim = 0;
    const std::string& key = row.key();
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), head_dim);
    if (parsed.ec == std::errc{} && parsed.ptr == key.data() + key.size() && head_dim > 0 && head_dim <= 65536)
      result.push_back(head_dim);
  }
  std::sort(result.begin(), result.end());
  return result;
}

/// Every quantity that the profile `merged` may have. Which curves are required follows from its peaks and attention
/// rows.
std::vector<Field> fields(const json& merged) {
  std::vector<Field> list;
  const auto add = [&](std::string pointer, const Dimension& dimension, Range range, bool required,
                       std::function<void(Hardware&, double)> set) {
    list.push_back({std::move(pointer), &dimension, range, required, std::move(set)});
  };
  add("/sms", sms_dimension, Range::kCount, true,
      [](Hardware& hw, double v) { hw.sms = static_cast<std::int64_t>(v); });
  add("/hbm/capacity", size_dimension, Range::kPositive, true,
      [](Hardware& hw, double v) { hw.hbm_capacity = Bytes{v}; });
  add("/hbm/bandwidth", bandwidth_dimension, Range::kPositive, true,
      [](Hardware& hw, double v) { hw.hbm_bandwidth = Bandwidth{v}; });

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
    add(curve + "/per_group", time_dimension, Range::kNotNegative, false,
        [i](Hardware& hw, double v) { hw.gemm.at(i).per_group = Seconds{v}; });
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

  for (const auto& [name, rates] : {std::pair{"gemm", &Contention::gemm}, std::pair{"memory", &Contention::memory}}) {
    const std::string at = std::string("/contention/") + name;
    add(at + "/compute_rate", ratio_dimension, Range::kShare, false,
        [rates = rates](Hardware& hw, double v) { (hw.contention.*rates).compute = v; });
    add(at + "/collective_rate", ratio_dimension, Range::kShare, false,
        [rates = rates](Hardware& hw, double v) { (hw.contention.*rates).collective = v; });
  }
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
  const auto exchange = [&](const std::string& at, ExchangeKernel Network::*kernel) {
    add(at + "/sms", sms_dimension, Range::kCount, true,
        [kernel](Hardware& hw, double v) { (hw.network.*kernel).sms = v; });
    add(at + "/rate_per_sm", bandwidth_dimension, Range::kPositive, true,
        [kernel](Hardware& hw, double v) { (hw.network.*kernel).rate_per_sm = Bandwidth{v}; });
    add(at + "/row_overhead", time_dimension, Range::kNotNegative, true,
        [kernel](Hardware& hw, double v) { (hw.network.*kernel).row_overhead = Seconds{v}; });
  };
  exchange("/network/deep_ep", &Network::deep_ep);
  exchange("/network/hybrid_ep", &Network::hybrid_ep);

  add("/host/launch", time_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.host.launch = Seconds{v}; });
  add("/host/graph_node", time_dimension, Range::kNotNegative, false,
      [](Hardware& hw, double v) { hw.host.graph_node = Seconds{v}; });
  add("/host/eager_op", time_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.host.eager_op = Seconds{v}; });
  add("/host/module", time_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.host.module = Seconds{v}; });
  add("/host/expert_weight", time_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.host.expert_weight = Seconds{v}; });
  add("/host/collective", time_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.host.collective = Seconds{v}; });
  add("/host/backward_share", ratio_dimension, Range::kShare, true,
      [](Hardware& hw, double v) { hw.host.backward_share = v; });
  add("/host/task", time_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.host.task = Seconds{v}; });
  add("/host/step", time_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.host.step = Seconds{v}; });
  add("/host/sync", time_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.host.sync = Seconds{v}; });
  add("/host/link_to_host", bandwidth_dimension, Range::kPositive, true,
      [](Hardware& hw, double v) { hw.host.link_to_host = Bandwidth{v}; });
  add("/host/link_from_host", bandwidth_dimension, Range::kPositive, true,
      [](Hardware& hw, double v) { hw.host.link_from_host = Bandwidth{v}; });
  add("/host/link_latency", time_dimension, Range::kNotNegative, false,
      [](Hardware& hw, double v) { hw.host.link_latency = Seconds{v}; });
  add("/host/link_both_share", ratio_dimension, Range::kShare, false,
      [](Hardware& hw, double v) { hw.host.link_both_share = v; });
  add("/host/memory_per_gpu", size_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.host.memory_per_gpu = Bytes{v}; });

  add("/overheads/context", size_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.overheads.context = Bytes{v}; });
  add("/overheads/nccl", size_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.overheads.nccl = Bytes{v}; });
  add("/overheads/workspace", size_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.overheads.workspace = Bytes{v}; });
  add("/overheads/fragmentation", ratio_dimension, Range::kNotNegative, true,
      [](Hardware& hw, double v) { hw.overheads.fragmentation = v; });
  return list;
}

/// Curves that may say how they were fitted: `"fit": {...}` beside their numbers.
std::vector<std::string> curves(const json& merged) {
  std::vector<std::string> list;
  list.reserve(format_names.size() + memory_names.size() + collective_names.size());
  for (const auto& entry : format_names) list.push_back("/gemm/" + entry.first);
  for (const std::int64_t head_dim : head_dims(merged)) list.push_back(fmt::format("/attention/{}", head_dim));
  for (const auto& entry : memory_names) list.push_back("/memory/" + entry.first);
  for (const auto& entry : collective_names) list.push_back("/network/nvlink/" + entry.first);
  list.emplace_back("/contention");
  return list;
}

/// The uppermost part of `pointer` that `tree` lacks: one message for a missing group, not one for each of its numbers.
std::string first_missing(const json& tree, const std::string& pointer) {
  for (std::size_t end = pointer.find('/', 1); end != std::string::npos; end = pointer.find('/', end + 1))
    if (!has(tree, pointer.substr(0, end))) return pointer.substr(0, end);
  return pointer;
}

std::string join(const std::vector<std::string>& words) {
  std::string result;
  for (const std::string& word : words) result += (result.empty() ? "" : ", ") + word;
  return result;
}

[[noreturn]] void fail(const config::Location& where, std::string message) {
  Diagnostics diagnostics;
  diagnostics.error(where, std::move(message));
  diagnostics.throw_if_any();
  FW_CHECK(false);
  std::abort();
}

const std::string* embedded(const std::string& name) {
  for (const auto& [stem, text] : embedded_files())
    if (stem == name) return &text;
  return nullptr;
}

std::string unknown_system(const std::string& name, const char* otherwise) {
  const std::vector<std::string> known = built_in_systems();
  const std::string near = config::nearest(name, known);
  return fmt::format("expected a built-in system ({}){}, found \"{}\"{}", join(known), otherwise, name,
                     near.empty() ? "" : fmt::format("; the nearest is \"{}\"", near));
}

Document load_document(const std::string& name) {
  if (const std::string* text = embedded(name)) return Document::parse(*text, "built-in " + name);
  if (name.find('/') == std::string::npos && !name.ends_with(".json"))
    fail({.file = "system", .line = 0, .field = ""}, unknown_system(name, " or a path that ends in .json"));
  return Document::load(name);
}

/// The document and those of its bases, uppermost first.
std::vector<Document> with_bases(Document document) {
  std::vector<Document> stack{std::move(document)};
  for (;;) {
    const Document& top = stack.back();
    if (!top.root().is_object()) fail({.file = top.file(), .line = top.line(""), .field = ""}, "expected an object");
    const auto base = top.root().find("base");
    if (base == top.root().end()) return stack;
    const config::Location where{.file = top.file(), .line = top.line("/base"), .field = "/base"};
    if (!base->is_string()) fail(where, "expected the name of a built-in system");
    const std::string* text = embedded(base->get<std::string>());
    if (text == nullptr) fail(where, unknown_system(base->get<std::string>(), ""));
    FW_CHECK(stack.size() < 8, "built-in profiles are based on each other");
    stack.push_back(Document::parse(*text, "built-in " + base->get<std::string>()));
  }
}

bool is_quantity(const json& node) { return node.is_object() && node.contains("value"); }

/// Puts `change` over `tree`: groups are merged, quantities and texts replaced.
void merge(json& tree, const json& change) {
  for (const auto& item : change.items()) {
    json& place = tree[item.key()];
    if (item.value().is_object() && !is_quantity(item.value()) && place.is_object() && !is_quantity(place))
      merge(place, item.value());
    else
      place = item.value();
  }
}

/// Reports every key below `pointer` that leads to no field.
void check_keys(const Document& document, const json& node, const std::string& pointer,
                const std::set<std::string>& leaves, Diagnostics& diagnostics) {
  std::set<std::string> known;
  for (const std::string& leaf : leaves) {
    if (leaf.compare(0, pointer.size() + 1, pointer + "/") != 0) continue;
    const std::string rest = leaf.substr(pointer.size() + 1);
    known.insert(rest.substr(0, rest.find('/')));
  }
  if (pointer.empty()) known.insert({"name", "gpu", "generation", "base", "sources"});
  for (const auto& item : node.items()) {
    const std::string& key = item.key();
    std::string at = pointer;
    at.append("/").append(key);
    const config::Location where{.file = document.file(), .line = document.line(at), .field = at};
    if (!known.contains(key)) {
      const std::string near = config::nearest(key, {known.begin(), known.end()});
      diagnostics.error(where, pointer == "/attention" ? "expected a head dimension such as \"128\""
                               : near.empty()          ? "unknown key"
                                              : fmt::format("unknown key; the nearest known key is \"{}\"", near));
      continue;
    }
    if (leaves.contains(at) || (pointer.empty() && (key == "name" || key == "gpu" || key == "generation" ||
                                                    key == "base" || key == "sources")))
      continue;
    if (!item.value().is_object())
      diagnostics.error(where, "expected an object");
    else
      check_keys(document, item.value(), at, leaves, diagnostics);
  }
}

std::optional<std::string> out_of_range(const Field& field, double value) {
  switch (field.range) {
    case Range::kPositive:
      if (value <= 0.0) return field.dimension->name + " above 0";
      break;
    case Range::kNotNegative:
      if (value < 0.0) return field.dimension->name + " of at least 0";
      break;
    case Range::kShare:
      if (value <= 0.0 || value > 1.0) return "a share above 0 and at most 1";
      break;
    case Range::kAtLeastOne:
      if (value < 1.0) return field.dimension->name + " of at least 1";
      break;
    case Range::kCount:
      if (value < 1.0 || value > 1e6 || value != static_cast<double>(static_cast<std::int64_t>(value)))
        return field.dimension->name + " of at least 1, whole";
      break;
  }
  return std::nullopt;
}

/// Reads the quantity `field` of `document`; `sources` are the citations that it may name.
void read_quantity(const Document& document, const Field& field, const json& node, const json& sources,
                   Profile& profile, Diagnostics& diagnostics) {
  if (!node.is_object()) {
    diagnostics.error({.file = document.file(), .line = document.line(field.pointer), .field = field.pointer},
                      fmt::format("expected an object with value, unit, kind and source, found {}", node.dump()));
    return;
  }
  ObjectReader reader(document, node, field.pointer, diagnostics);
  const std::size_t before = diagnostics.list().size();
  const double value = reader.required_number("value", -1e300, 1e300);
  std::vector<std::string> units;
  double scale = 0.0;
  const bool has_unit = reader.has("unit");
  const std::optional<std::string> unit = reader.string("unit");
  for (const auto& [name, size] : field.dimension->units) {
    units.push_back("\"" + name + "\"");
    if (unit == name) scale = size;
  }
  if (scale == 0.0 && (unit || !has_unit))
    reader.error("unit", fmt::format("expected the unit of {}, one of {}, found {}", field.dimension->name, join(units),
                                     unit ? "\"" + *unit + "\"" : "nothing"));
  Provenance provenance;
  provenance.kind = reader.required_string("kind");
  const std::vector<std::string> kinds{"datasheet", "measured", "fitted", "assumed"};
  if (!provenance.kind.empty() && std::find(kinds.begin(), kinds.end(), provenance.kind) == kinds.end())
    reader.error("kind", fmt::format("expected one of {}, found \"{}\"", join(kinds), provenance.kind));
  const std::string source = reader.required_string("source");
  if (const auto citation = sources.find(source); citation != sources.end() && citation->is_string())
    provenance.source = citation->get<std::string>();
  else if (!source.empty())
    reader.error("source", fmt::format("expected a key of /sources, found \"{}\"", source));
  provenance.date = reader.string("date").value_or("");
  provenance.note = reader.string("note").value_or("");
  reader.finish();
  if (diagnostics.list().size() != before) return;
  if (const auto range = out_of_range(field, value * scale))
    reader.error("value", fmt::format("expected {}, found {}", *range, value));
  else
    field.set(profile.hardware, value * scale);
  profile.provenance.emplace(field.pointer, std::move(provenance));
}

CurveFit read_fit(ObjectReader reader) {
  CurveFit fit;
  fit.samples = reader.required_integer("samples", 1, 1'000'000'000);
  fit.training_error = reader.required_number("training_error", 0.0, 1e9);
  fit.validated_error = reader.required_number("validated_error", 0.0, 1e9);
  if (const json* range = reader.raw("range"); range == nullptr || !range->is_object()) {
    reader.error("range", "expected an object of [lowest, highest] by property");
  } else {
    for (const auto& item : range->items()) {
      const json& ends = item.value();
      if (ends.is_array() && ends.size() == 2 && ends[0].is_number() && ends[1].is_number() && ends[0] <= ends[1])
        fit.range[item.key()] = {ends[0].get<double>(), ends[1].get<double>()};
      else
        reader.error("range", fmt::format("{}: expected [lowest, highest], found {}", item.key(), ends.dump()));
    }
  }
  reader.finish();
  return fit;
}

/// A curve's fit goes with its numbers: it is taken from the uppermost document that has the curve.
void read_fits(const std::vector<Document>& stack, Profile& profile, Diagnostics& diagnostics) {
  for (const std::string& curve : curves(profile.json)) {
    for (const Document& document : stack) {
      if (!has(document.root(), curve)) continue;
      const json& node = document.root().at(json::json_pointer(curve));
      if (!node.is_object()) break;
      ObjectReader reader(document, node, curve, diagnostics);
      if (auto fit = reader.object("fit")) profile.fits.emplace(curve, read_fit(*std::move(fit)));
      break;
    }
  }
}

/// The citations that the document at `level` may name: its own and its bases'.
json sources_of(const std::vector<Document>& stack, std::size_t level, Diagnostics& diagnostics) {
  json sources = json::object();
  for (std::size_t i = stack.size(); i-- > level;) {
    const auto own = stack[i].root().find("sources");
    if (own == stack[i].root().end()) continue;
    ObjectReader reader(stack[i], *own, "/sources", diagnostics);
    for (const std::string& key : reader.keys()) sources[key] = reader.required_string(key);
  }
  return sources;
}

void read_identity(const std::vector<Document>& stack, const std::string& name, Profile& profile,
                   Diagnostics& diagnostics) {
  const auto owner = [&](const char* key) -> const Document& {
    for (const Document& document : stack)
      if (document.root().contains(key)) return document;
    return stack.front();
  };
  ObjectReader top(stack.front(), diagnostics);
  const std::string stem = std::filesystem::path(name).stem().string();
  profile.hardware.name = top.has("name") ? top.required_string("name") : stem;
  profile.hardware.gpu = ObjectReader(owner("gpu"), diagnostics).required_string("gpu");
  ObjectReader generation(owner("generation"), diagnostics);
  if (!generation.has("generation"))
    generation.error("generation", "expected one of ampere, hopper, blackwell; missing");
  profile.hardware.generation = generation.choice("generation", generation_names).value_or(GpuGeneration::kHopper);
}

/// What NICs and hosts hang on, from the uppermost document that says.
void read_links(const std::vector<Document>& stack, Network& network, Diagnostics& diagnostics) {
  for (const Document& document : stack) {
    if (!has(document.root(), links_pointer)) continue;
    ObjectReader reader(document, document.root().at(json::json_pointer(links_pointer)), links_pointer, diagnostics);
    network.nic_link = reader.choice("nic", nic_links).value_or(network.nic_link);
    network.host_link = reader.choice("host", host_links).value_or(network.host_link);
    reader.finish();
    return;
  }
}

}  // namespace

std::vector<std::string> built_in_systems() {
  std::vector<std::string> names;
  for (const auto& file : embedded_files()) names.push_back(file.first);
  std::sort(names.begin(), names.end());
  return names;
}

namespace {

Profile read_profile(const std::vector<Document>& stack, const std::string& name) {
  Diagnostics diagnostics;
  Profile profile;
  profile.json = json::object();
  for (std::size_t i = stack.size(); i-- > 0;) merge(profile.json, stack[i].root());
  profile.json.erase("base");

  read_identity(stack, name, profile, diagnostics);
  read_links(stack, profile.hardware.network, diagnostics);
  const std::vector<std::int64_t> rows = head_dims(profile.json);
  for (const std::int64_t head_dim : rows) {
    AttentionCurve row;
    row.head_dim = head_dim;
    profile.hardware.attention.push_back(row);
  }

  const std::vector<Field> list = fields(profile.json);
  std::set<std::string> leaves;
  for (const Field& field : list) leaves.insert(field.pointer);
  for (const std::string& curve : curves(profile.json)) leaves.insert(curve + "/fit");
  leaves.insert(links_pointer);
  for (const Document& document : stack) check_keys(document, document.root(), "", leaves, diagnostics);

  std::vector<json> sources;
  for (std::size_t i = 0; i < stack.size(); ++i) {
    Diagnostics ignored;  // a base's citations are checked once, at its own level
    sources.push_back(sources_of(stack, i, i == 0 ? diagnostics : ignored));
  }
  std::set<std::string> missing;
  if (!profile.json.contains("attention")) missing.insert("/attention");
  for (const Field& field : list) {
    bool found = false;
    for (std::size_t i = 0; i < stack.size() && !found; ++i) {
      if (!has(stack[i].root(), field.pointer)) continue;
      found = true;
      read_quantity(stack[i], field, stack[i].root().at(json::json_pointer(field.pointer)), sources[i], profile,
                    diagnostics);
    }
    if (!found && field.required) missing.insert(first_missing(profile.json, field.pointer));
  }
  read_fits(stack, profile, diagnostics);
  for (const std::string& pointer : missing)
    diagnostics.error({.file = stack.front().file(), .line = stack.front().line(pointer), .field = pointer},
                      stack.size() > 1 ? "missing" : "missing, and there is no \"base\" to take it from");
  const Document& top = stack.front();
  if (rows.empty() && profile.json.contains("attention"))
    diagnostics.error({.file = top.file(), .line = top.line("/attention"), .field = "/attention"},
                      "expected at least one row, such as \"128\"");
  const costmodel::Network& network = profile.hardware.network;
  const std::string used = "/network/ranks_per_domain";
  if (profile.provenance.contains(used) && network.ranks_per_domain > network.nvlink_domain) {
    diagnostics.error({.file = top.file(), .line = top.line(used), .field = used},
                      fmt::format("expected at most the {} GPUs of /network/nvlink_domain, found {}",
                                  network.nvlink_domain, network.ranks_per_domain));
  }
  if (network.ranks_per_domain % network.gpus_per_nic != 0) {
    const std::string shared = "/network/gpus_per_nic";
    diagnostics.error(
        {.file = top.file(), .line = top.line(shared), .field = shared},
        fmt::format("{} does not divide the {} GPUs of {}", network.gpus_per_nic, network.ranks_per_domain, used));
  }
  diagnostics.throw_if_any();
  return profile;
}

}  // namespace

Profile load_profile(const std::string& name) { return read_profile(with_bases(load_document(name)), name); }

Profile parse_profile(const std::string& text, const std::string& name) {
  return read_profile(with_bases(Document::parse(text, name)), name);
}

QuantitySetter quantity_setter(const json& profile, const std::string& pointer) {
  for (const Field& field : fields(profile))
    if (field.pointer == pointer) return field.set;
  FW_CHECK(false, "a profile has no " + pointer);
  std::abort();
}

const std::vector<std::pair<std::string, MathFormat>>& math_format_names() { return format_names; }
const std::vector<std::pair<std::string, MemoryOp>>& memory_op_names() { return memory_names; }
const std::vector<std::pair<std::string, CollectiveKind>>& collective_kind_names() { return collective_names; }

costmodel::Hardware scaled(const Profile& profile, const std::map<std::string, double>& factors) {
  costmodel::Hardware hardware = profile.hardware;
  const std::vector<Field> list = fields(profile.json);
  for (const auto& entry : factors) {
    const std::string& pointer = entry.first;
    const auto field =
        std::find_if(list.begin(), list.end(), [&](const Field& candidate) { return candidate.pointer == pointer; });
    if (field == list.end() || !has(profile.json, pointer))
      throw std::invalid_argument(fmt::format("{}: no quantity {}", hardware.name, pointer));
    const json& quantity = profile.json.at(json::json_pointer(pointer));
    for (const auto& [unit, size] : field->dimension->units)
      if (quantity.at("unit") == unit) field->set(hardware, entry.second * size * quantity.at("value").get<double>());
  }
  return hardware;
}

}  // namespace foldwise::hwprofiles
