#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hwprofiles/fit/collective_fit.h"

// Published measurements of expert exchanges (hwprofiles/data/kernels/published_kernels.json) as samples.
namespace foldwise::hwprofiles {

struct PublishedExchange {
  std::string table;   ///< Id in the file.
  std::string system;  ///< Name in the file: "h100", "gb200-nvl72"; for DeepEP V2 the architecture, "SM90".
  ExchangeSample sample;
};

/// Fused dispatch and combine of DeepEP, HybridEP (its kernels without set-up) and Megatron Core's report. Every second
/// sample of a table is held out, and all of DeepEP V2, a different library under the same name.
[[nodiscard]] std::vector<PublishedExchange> published_exchanges(const nlohmann::ordered_json& published);

/// A plain all-to-all for dispatch or combine in Megatron Core's report.
struct PublishedAllToAll {
  std::string system;
  bool combine = false;
  std::int64_t ranks = 0;
  Bytes bytes{};
  Seconds time{};
};
[[nodiscard]] std::vector<PublishedAllToAll> published_all_to_alls(const nlohmann::ordered_json& published);

}  // namespace foldwise::hwprofiles
