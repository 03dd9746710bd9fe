#include "hwprofiles/load/cluster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <utility>

#include "costmodel/check.h"
#include "hwprofiles/load/derive.h"
#include "hwprofiles/load/fields.h"

namespace foldwise::hwprofiles {
namespace {

using config::Diagnostics;
using config::Document;
using config::Location;
using nlohmann::json;
using nlohmann::literals::operator""_json_pointer;

constexpr const char* kOwn = "own";  // Source key of numbers that the file states.
constexpr std::int64_t kMostGpus = 4096;

const std::vector<std::pair<std::string, std::string>> fabrics{
    {"infiniband", "infiniband"}, {"ib", "infiniband"}, {"roce", "ethernet"}, {"ethernet", "ethernet"}};

class Cluster {
 public:
  Cluster(const Document& document, const json& base) : document_(document), base_(base), in_(document, diagnostics_) {}

  Document expanded() {
    for (const ClusterKey& key : cluster_keys()) {
      const json* value = in_.raw(key.name);
      if (value == nullptr) continue;
      for (const std::string& pointer : key.pointers) set(pointer, *value, in_.location(key.name));
    }
    for (const char* key : {"name", "base", "gpu", "device"})
      if (const auto text = in_.string(key)) tree_[key] = *text;
    in_.ignore_prefix('_');
    in_.finish();
    share_nics();
    set_fabric();
    diagnostics_.throw_if_any();
    tree_["sources"] = {{kOwn, document_.file()}};
    return Document::parse(tree_.dump(), document_.file());
  }

 private:
  void set(const std::string& pointer, const json& value, const Location& where) {
    json quantity = quantity_of(base_, pointer, value, kOwn, where, diagnostics_);
    if (!quantity.is_null()) *place(tree_, pointer) = std::move(quantity);
  }
  [[nodiscard]] json number(const std::string& pointer) const {
    const json::json_pointer at(pointer);
    return tree_.contains(at) ? tree_.at(at) : base_.at(at);
  }
  /// Sets the NIC bandwidth per GPU: the GPU's share of its node's NICs.
  void share_nics() {
    const auto nics = in_.integer("nics", 1, kMostGpus);
    const auto gpus = number("/network/ranks_per_domain").at("value").get<std::int64_t>();
    const json::json_pointer sharing("/network/gpus_per_nic");
    const std::int64_t before = base_.contains(sharing) ? base_.at(sharing).at("value").get<std::int64_t>() : 1;
    if (!nics && !tree_.contains("/network/nic_bandwidth"_json_pointer)) return;
    if (nics && gpus % *nics != 0 && *nics % gpus != 0) {
      in_.error("nics",
                fmt::format("expected a number that divides the {} GPUs of a node, or a multiple of them, found {}",
                            gpus, *nics));
      return;
    }
    const bool own = tree_.contains("/network/nic_bandwidth"_json_pointer);
    const json bandwidth = number("/network/nic_bandwidth");
    const auto count = static_cast<double>(gpus);
    const double shares = nics ? static_cast<double>(*nics) / count : 1.0 / static_cast<double>(before),
                 of_nic = bandwidth.at("value").get<double>() * (own ? 1.0 : static_cast<double>(before));
    set("/network/nic_bandwidth", fmt::format("{} {}", of_nic * shares, bandwidth.at("unit").get<std::string>()),
        in_.location(nics ? "nics" : "nic_bandwidth"));
    if (nics) set("/network/gpus_per_nic", std::max<std::int64_t>(1, gpus / *nics), in_.location("nics"));
  }
  void set_fabric() {
    const auto link = in_.choice("fabric", fabrics);
    if (!link) return;
    json links = base_.at("network").at("links");
    links["nic"] = *link;
    tree_["network"]["links"] = std::move(links);
  }

  const Document& document_;
  const json& base_;
  Diagnostics diagnostics_;
  config::ObjectReader in_;
  json tree_ = json::object();
};

}  // namespace

const std::vector<ClusterKey>& cluster_keys() {
  static const std::vector<ClusterKey> keys{
      {"gpus_per_node",
       {"/network/nvlink_domain", "/network/ranks_per_domain"},
       "GPUs that NVLink connects, such as 8"},
      {"nics", {}, "NICs of a node, such as 4"},
      {"nic_bandwidth", {"/network/nic_bandwidth"}, "Of a NIC, one way, such as 200Gb/s"},
      {"fabric", {}, "infiniband, or roce (ethernet)"},
      {"nvlink_bandwidth", {"/network/nvlink_bandwidth"}, "Of a GPU, one way, such as 200GB/s"},
      {"memory", {"/hbm/capacity"}, "Of a GPU, as nvidia-smi prints it, such as 97871MiB"},
      {"memory_bandwidth", {"/hbm/bandwidth"}, "Of a GPU, such as 4.0TB/s"},
      {"host_memory", {"/host/memory_per_gpu"}, "Of a node, for each GPU, such as 256GB"},
      {"power", {"/power/limit"}, "Limit of a GPU, such as 500W"}};
  return keys;
}

bool is_cluster(const Document& document) {
  const json& root = document.root();
  if (!root.is_object()) return false;
  const auto short_key = [&](const ClusterKey& key) {
    const auto it = root.find(key.name);
    return it != root.end() && !it->is_object();
  };
  return std::any_of(cluster_keys().begin(), cluster_keys().end(), short_key);
}

Document expanded_cluster(const Document& document, const json& base) { return Cluster(document, base).expanded(); }

json quantity_of(const json& profile, const std::string& pointer, const json& value, const std::string& source,
                 const Location& where, Diagnostics& diagnostics) {
  const std::vector<Field> list = fields(profile);
  const auto field = std::find_if(list.begin(), list.end(), [&](const Field& f) { return f.pointer == pointer; });
  FW_CHECK(field != list.end(), "a profile has no " + pointer);
  std::vector<std::string> known;
  for (const auto& entry : field->dimension->units) known.push_back(entry.first);
  double number = 0.0;
  bool is_number = value.is_number();
  std::string unit = known.size() == 1 ? known.front() : "";
  if (is_number) {
    number = value.get<double>();
  } else if (value.is_string()) {
    const auto text = value.get<std::string>();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    is_number = error == std::errc{};
    const std::string_view rest(end, text.data() + text.size());
    if (const std::size_t first = rest.find_first_not_of(' '); first != std::string_view::npos)
      unit = rest.substr(first);
  }
  if (!is_number || std::find(known.begin(), known.end(), unit) == known.end()) {
    diagnostics.error(
        where,
        fmt::format("expected {} in {}, found {}", field->dimension->name,
                    known.size() > 1 ? fmt::format("one of {}", fmt::join(known, ", ")) : known.front(), value.dump()));
    return nullptr;
  }
  if (const auto range = out_of_range(*field, number, unit)) {
    diagnostics.error(where, fmt::format("expected {}, found {}", *range, value.dump()));
    return nullptr;
  }
  return {{"value", number}, {"unit", unit}, {"kind", "assumed"}, {"source", source}};
}

}  // namespace foldwise::hwprofiles
