#pragma once
#include <cstdint>
#include <vector>

#include "costmodel/network/network.h"
#include "hwprofiles/fit/curve_fit.h"

// Fits the curves of collectives to measured times. Pure functions of their samples. Data and errors:
// benchmarks/accuracy/journal.md#collectives.
namespace foldwise::hwprofiles {

/// A collective inside one NVLink domain. `bytes` as defined by collective_time.
struct CollectiveSample {
  std::int64_t ranks = 0;
  Bytes bytes{};
  Seconds time{};
};

/// Bytes. Larger messages are gradients, parameters and tokens.
inline constexpr double kLargeMessage = 1048576.0;

struct CollectiveFit {
  costmodel::CollectiveCurve curve;
  FitError training, validated;              ///< Messages of at least kLargeMessage.
  FitError training_small, validated_small;  ///< Smaller messages.
  std::vector<Seconds> predicted, left_out;  ///< By sample: prediction of this fit, and of a fit without the sample.
};

/// Fits base, per_rank and bandwidth of every protocol, and own_share: minimises the mean |log(predicted / measured)|
/// by Nelder-Mead on the logarithms. `in_switch_ranks`: fewest ranks for which the switch reduces; 0: never.
/// Validation: `folds` parts, to which samples are dealt in turn.
[[nodiscard]] CollectiveFit fit_collective(costmodel::CollectiveKind kind, const std::vector<CollectiveSample>& samples,
                                           std::int64_t in_switch_ranks, int folds = 5);

/// A fused dispatch or combine of tokens.
struct ExchangeSample {
  costmodel::Dispatcher dispatcher = costmodel::Dispatcher::kDeepEp;
  costmodel::CollectiveKind kind = costmodel::CollectiveKind::kDispatch;
  costmodel::GroupShape group;
  costmodel::ExchangeVolume volume;
  double sms = 0;
  double nvlink_share = 1.0;  ///< NVLink rate of the sample's GPU relative to the network that predicts it.
  Seconds time{};
  bool held_out = false;  ///< Not used in the fit.
};

struct ExchangeFit {
  costmodel::Network network;  ///< NIC given; dispatch, combine, nic_exchange_efficiency and kernels fitted.
  FitError training, held_out;
};

[[nodiscard]] Seconds exchange_prediction(const costmodel::Network& network, const ExchangeSample& sample);

/// Fits dispatch and combine (with a common base and per_rank), and the kernels' rate_per_sm and row_overhead or, if
/// the kernels are given and samples cross domains, nic_exchange_efficiency. Minimises the same error.
[[nodiscard]] ExchangeFit fit_exchange(const costmodel::Network& network, const std::vector<ExchangeSample>& samples,
                                       bool kernels_given);

}  // namespace foldwise::hwprofiles
