#pragma once
#include <string>
#include <vector>

#include "costmodel/network/fabric.h"
#include "costmodel/step/step.h"

// Who talks to whom in a step, what of it is hidden, and what that puts on which link.
namespace foldwise::costmodel {

/// One kind of communication of one pipeline rank in a step. `hidden` is the time that its
/// kernels take beside compute, which is longer than alone.
struct CommunicationEntry {
  std::string kind;   ///< "all_gather", "dispatch", "send_recv", ...
  std::string group;  ///< "tp", "ep", "dp_cp", ...
  std::string tier;   ///< Slowest that it crosses: "nvlink", "nic" or "spine".
  Bytes bytes{};      ///< That one GPU sends over that tier.
  Seconds exposed{}, hidden{};
};

struct CommunicationReport {
  std::vector<CommunicationEntry> entries;  ///< Longest first.
  std::vector<LinkLoad> links;              ///< The busiest link of each tier that the rank's GPUs use, busiest first.
};

/// Of the critical pipeline rank of `prediction`, which is that of this step, with detail.
[[nodiscard]] CommunicationReport communication_report(const Step& step, const Prediction& prediction);

}  // namespace foldwise::costmodel
