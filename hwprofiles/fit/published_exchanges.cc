#include "hwprofiles/fit/published_exchanges.h"

#include <stdexcept>
#include <string>
#include <string_view>

#include "costmodel/ops/routing.h"

namespace foldwise::hwprofiles {
namespace {

using costmodel::CollectiveKind;
using costmodel::Dispatcher;
using costmodel::GroupShape;
using costmodel::Routing;
using Json = nlohmann::ordered_json;

constexpr double kHidden = 7168.0, kTokens = 4096.0;
constexpr double kBf16Row = 2.0 * kHidden, kFp8Row = kHidden + 4.0 * kHidden / 128.0;  // FP8 with its scales.
constexpr std::int64_t kTopk = 8;

const Json& table(const Json& published, std::string_view id) {
  for (const Json& candidate : published)
    if (candidate.at("id").get_ref<const std::string&>() == id) return candidate;
  throw std::runtime_error("published_kernels.json has no " + std::string(id));
}

costmodel::ExchangeVolume volume_of(const Routing& routing, GroupShape group, double tokens, double row) {
  const double copies = tokens * expected_destinations(routing, group.ranks);
  return {.to_ranks = Bytes{copies * row},
          .to_domains = Bytes{tokens * expected_destinations(routing, group.domains()) * row},
          .rows = copies};
}

class Reader {
 public:
  explicit Reader(const Json& published) : published_(published) {}

  // Benchmarks print bytes over time. Inside a domain they count bytes to ranks; between domains, bytes to domains,
  // including the sender's.
  void rates(const std::string& id, const std::string& system, const ExchangeSample& common, const Routing& routing,
             double tokens, const Json& row) {
    const auto one = [&](const char* key, CollectiveKind kind, double row_bytes) {
      if (!row.contains(key)) return;
      ExchangeSample sample = common;
      sample.kind = kind;
      sample.volume = volume_of(routing, sample.group, tokens, row_bytes);
      const Bytes counted = sample.group.domains() > 1 ? sample.volume.to_domains : sample.volume.to_ranks;
      sample.time = counted / gb_per_s(row.at(key).get<double>());
      add(id, system, sample);
    };
    one("dispatch_gbs", CollectiveKind::kDispatch, kFp8Row);
    one("dispatch_fp8_gbs", CollectiveKind::kDispatch, kFp8Row);
    one("dispatch_bf16_gbs", CollectiveKind::kDispatch, kBf16Row);
    one("combine_gbs", CollectiveKind::kCombine, kBf16Row);
  }

  // HybridEP's own benchmark: eight experts per rank, no groups.
  void hybrid_ep_benchmark(const std::string& id, Dispatcher dispatcher, std::int64_t ranks_per_domain) {
    for (const Json& row : table(published_, id).at("rows")) {
      // HybridEP's kernels alone: copies into its buffers and its set-up are separate ops. DeepEP has no such figure.
      const bool kernels = row.value("measured", "") == "Only Kernel Time";
      if (row.contains("implementation") && kernels != (row.at("implementation") == "HybridEP")) continue;
      const std::int64_t ranks = row.value("ranks", std::int64_t{8});
      ExchangeSample common;
      common.dispatcher = !row.contains("implementation")          ? dispatcher
                          : row.at("implementation") == "HybridEP" ? Dispatcher::kHybridEp
                                                                   : Dispatcher::kDeepEp;
      common.group = {.ranks = ranks, .ranks_per_domain = std::min(ranks, ranks_per_domain)};
      common.sms = row.at("sms");
      rates(id, system_of(id), common, {.experts = 8 * ranks, .topk = kTopk}, kTokens,
            row.contains("kernel_only") ? row.at("kernel_only")
            : row.contains("torch_api") ? row.at("torch_api")
                                        : row);
    }
  }

  void deep_ep_v1() {
    const std::string id = "deepep-v1-normal";
    for (const Json& row : table(published_, id).at("rows")) {
      const std::int64_t ranks = row.at("ep"), nodes = ranks / 8;
      ExchangeSample common;
      common.group = {.ranks = ranks, .ranks_per_domain = 8};
      common.sms = 24;  // DeepEP's default at that time. Source: its README, "24 SMs".
      // Its benchmark sends a token to at most four nodes.
      rates(id, system_of(id), common,
            {.experts = 256, .topk = kTopk, .groups = nodes, .group_topk = std::min<std::int64_t>(4, nodes)}, kTokens,
            row);
    }
  }

  void deep_ep_v2() {
    const std::string id = "deepep-v2";
    for (const Json& row : table(published_, id).at("rows")) {
      const std::string shape = row.at("topo");
      const std::int64_t ranks = shape == "EP 8 x 4" ? 32 : shape == "EP 8 x 2" ? 16 : 8;
      ExchangeSample common;
      common.group = {.ranks = ranks, .ranks_per_domain = 8};
      common.sms = row.at("sms");
      common.held_out = true;
      rates(id, row.at("arch"), common, {.experts = 256, .topk = kTopk}, 2.0 * kTokens, row);
    }
  }

  // DeepSeek-V3's router selects four of eight groups.
  void megatron_report() {
    const std::string id = "mcore-report-ep-latency";
    for (const Json& row : table(published_, id).at("rows")) {
      if (row.at("dispatcher") != "hybridep") continue;
      const std::string system = row.at("system");
      const bool rack = system == "gb200-nvl72";
      const std::int64_t ranks = row.at("ep");
      ExchangeSample sample;
      sample.dispatcher = Dispatcher::kHybridEp;
      sample.kind = row.at("op") == "dispatch" ? CollectiveKind::kDispatch : CollectiveKind::kCombine;
      sample.group = {.ranks = ranks, .ranks_per_domain = rack ? ranks : 8};
      sample.volume =
          volume_of({.experts = 256, .topk = kTopk, .groups = 8, .group_topk = 4}, sample.group, kTokens, kBf16Row);
      sample.sms = rack ? 32 : 16;  // moe_hybridep_num_sms of the recipes.
      sample.time = microseconds(row.at("latency_us").get<double>());
      add(id, system, sample);
    }
  }

  [[nodiscard]] std::vector<PublishedExchange> take() { return std::move(list_); }

 private:
  std::string system_of(const std::string& id) { return table(published_, id).at("system"); }

  void add(const std::string& id, const std::string& system, ExchangeSample sample) {
    const std::size_t i = list_.size();
    sample.held_out = sample.held_out || (i / 2 + i) % 2 == 1;  // Each column of a table is in both parts.
    list_.push_back({.table = id, .system = system, .sample = sample});
  }

  const Json& published_;
  std::vector<PublishedExchange> list_;
};

}  // namespace

std::vector<PublishedExchange> published_exchanges(const Json& published) {
  constexpr std::int64_t kRack = 72, kNode = 8;
  Reader reader(published);
  reader.hybrid_ep_benchmark("hybridep-gb200", Dispatcher::kHybridEp, kRack);
  reader.hybrid_ep_benchmark("deepep-on-gb200", Dispatcher::kDeepEp, kRack);
  reader.hybrid_ep_benchmark("hybridep-b200", Dispatcher::kHybridEp, kNode);
  reader.hybrid_ep_benchmark("hybridep-h100-ib", Dispatcher::kHybridEp, kNode);
  reader.deep_ep_v1();
  reader.deep_ep_v2();
  reader.megatron_report();
  return reader.take();
}

std::vector<PublishedAllToAll> published_all_to_alls(const Json& published) {
  std::vector<PublishedAllToAll> list;
  for (const Json& row : table(published, "mcore-report-ep-latency").at("rows"))
    if (row.at("dispatcher") == "alltoall")
      list.push_back({.system = row.at("system"),
                      .combine = row.at("op") == "combine",
                      .ranks = row.at("ep"),
                      .bytes = Bytes{kTokens * kBf16Row * static_cast<double>(kTopk)},
                      .time = microseconds(row.at("latency_us").get<double>())});
  return list;
}

}  // namespace foldwise::hwprofiles
