#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "costmodel/hardware/hardware.h"
#include "hwprofiles/fit/curve_fit.h"

// Host times in steps of Megatron-Core, measured by stopwatch (kernels/torch/megatron_steps.py --calls). Definition of
// a layer: benchmarks/accuracy/journal.md#host.
namespace foldwise::hwprofiles {

/// Host time for one layer and one micro-batch of a run, without the exchange of tokens.
struct HostLayer {
  std::string run;                              ///< Id of the run.
  Seconds forward{}, backward{};                ///< Measured on the slowest rank.
  Seconds priced_forward{}, priced_backward{};  ///< From the prices of the host, with a `backward_share` of 1.
};

/// Host layers of the runs in `records` (lines of megatron_steps.py --calls, of all ranks), priced on `hardware`.
/// Throws std::runtime_error for an unknown model or fewer than two layers, and nlohmann's exceptions for a missing
/// call.
[[nodiscard]] std::vector<HostLayer> host_layers(const std::vector<nlohmann::ordered_json>& records,
                                                 const costmodel::Hardware& hardware);

/// Median over runs of (backward / priced backward) / (forward / priced forward). Independent of the host's speed.
struct BackwardShare {
  double value = 1.0;
  double speed = 1.0;                ///< Median of measured over priced forward: the speed of the host of these runs.
  FitError training{}, validated{};  ///< Backward from forward: with the share of all runs, of the others.
};
/// Requires at least one layer.
[[nodiscard]] BackwardShare fit_backward_share(const std::vector<HostLayer>& layers);

}  // namespace foldwise::hwprofiles
