#pragma once
#include <string>
#include <vector>

#include "costmodel/hardware/hardware.h"
#include "costmodel/model/model.h"
#include "costmodel/network/fabric.h"
#include "costmodel/parallel/options.h"
#include "costmodel/step/prediction.h"

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

/// Of the critical pipeline rank of `prediction`, which is that of the same run, with detail.
[[nodiscard]] CommunicationReport communication_report(const ModelSpec& model, const TrainingOptions& options,
                                                       const Hardware& hardware, const Prediction& prediction);

}  // namespace foldwise::costmodel
