#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "costmodel/hardware/hardware.h"
#include "hwprofiles/fit/curve_fit.h"

// The host in steps of Megatron-Core, by stopwatch (kernels/torch/megatron_steps.py --calls). What counts as a layer
// and why: benchmarks/accuracy/journal.md#host.
namespace foldwise::hwprofiles {

/// What the host spends on one layer and one micro-batch of a run, the exchange of tokens apart.
struct HostLayer {
  std::string run;                              ///< Its id.
  Seconds forward{}, backward{};                ///< By stopwatch, of the slowest rank.
  Seconds priced_forward{}, priced_backward{};  ///< By the prices of a host, with a `backward_share` of 1.
};

/// The runs of `records`, lines of megatron_steps.py --calls of all of their ranks, priced by `hardware`. Throws
/// std::runtime_error: a model that is not known here, fewer than two layers; nlohmann's exceptions: a call is missing.
[[nodiscard]] std::vector<HostLayer> host_layers(const std::vector<nlohmann::ordered_json>& records,
                                                 const costmodel::Hardware& hardware);

/// Of every run (backward / priced backward) / (forward / priced forward), which no host's speed changes; their median.
struct BackwardShare {
  double value = 1.0;
  double speed = 1.0;                ///< Forward over its price: of the host of these runs, the median.
  FitError training{}, validated{};  ///< Of backward, predicted from forward: by all runs, and by the others.
};
/// Requires layers.
[[nodiscard]] BackwardShare fit_backward_share(const std::vector<HostLayer>& layers);

}  // namespace foldwise::hwprofiles
