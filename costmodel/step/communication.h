#pragma once
#include <string>
#include <vector>

#include "costmodel/network/fabric.h"
#include "costmodel/step/step.h"

// Communication in a step: who talks to whom, what is hidden, and the load of the links.
namespace foldwise::costmodel {

/// One kind of communication of one pipeline rank in a step. `hidden` is the time of its kernels beside compute, which
/// is longer than their time alone.
struct CommunicationEntry {
  std::string kind;   ///< "all_gather", "dispatch", "send_recv", ...
  std::string group;  ///< "tp", "ep", "dp_cp", ...
  std::string tier;   ///< Slowest tier on its way: "nvlink", "nic" or "spine".
  Bytes bytes{};      ///< Bytes that one GPU sends over that tier.
  Seconds exposed{}, hidden{};
};

struct CommunicationReport {
  std::vector<CommunicationEntry> entries;  ///< Longest first.
  std::vector<LinkLoad> links;              ///< The busiest link of each tier used by the rank's GPUs, busiest first.
};

/// Report on the critical pipeline rank of `prediction`, which must belong to `step` and have detail.
[[nodiscard]] CommunicationReport communication_report(const Step& step, const Prediction& prediction);

}  // namespace foldwise::costmodel
