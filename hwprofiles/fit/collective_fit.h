#pragma once
#include <cstdint>
#include <vector>

#include "costmodel/network/network.h"
#include "hwprofiles/fit/curve_fit.h"

// Fitting of the collectives' curves to measured times. Pure functions of their samples; what they are fed with and how
// well they do is in benchmarks/accuracy/journal.md#collectives.
namespace foldwise::hwprofiles {

/// A message of one collective inside an NVLink domain; `bytes` as collective_time defines them.
struct CollectiveSample {
  std::int64_t ranks = 0;
  Bytes bytes{};
  Seconds time{};
};

/// Messages above this are large: gradients, parameters and tokens.
inline constexpr double kLargeMessage = 1048576.0;

struct CollectiveFit {
  costmodel::CollectiveCurve curve;
  FitError training, validated;              ///< Messages of at least kLargeMessage.
  FitError training_small, validated_small;  ///< The rest.
  std::vector<Seconds> predicted, left_out;  ///< By sample: by this fit, and by the one that left the sample out.
};

/// Fits every protocol's base, per_rank and bandwidth and own_share: least mean |log(predicted / measured)|, by
/// Nelder-Mead on the logarithms. `in_switch_ranks`: fewest ranks of all-reduces that the switch reduces; 0: none.
/// Validation: `folds` parts, samples dealt out in turn.
[[nodiscard]] CollectiveFit fit_collective(costmodel::CollectiveKind kind, const std::vector<CollectiveSample>& samples,
                                           std::int64_t in_switch_ranks, int folds = 5);

/// A fused dispatch or combine.
struct ExchangeSample {
  costmodel::Dispatcher dispatcher = costmodel::Dispatcher::kDeepEp;
  costmodel::CollectiveKind kind = costmodel::CollectiveKind::kDispatch;
  costmodel::GroupShape group;
  costmodel::ExchangeVolume volume;
  double sms = 0;
  double nvlink_share = 1.0;  ///< NVLink rate of the GPU over that of the network that predicts it.
  Seconds time{};
  bool held_out = false;  ///< Not fitted to.
};

struct ExchangeFit {
  costmodel::Network network;  ///< Given with its NIC; dispatch, combine, nic_exchange_efficiency and kernels fitted.
  FitError training, held_out;
};

/// Time of a sample on `network`.
[[nodiscard]] Seconds exchange_prediction(const costmodel::Network& network, const ExchangeSample& sample);

/// Fits dispatch and combine (one base and per_rank for both), and either the kernels' rate_per_sm and row_overhead or,
/// where samples cross domains and the kernels are given, nic_exchange_efficiency: the same error.
[[nodiscard]] ExchangeFit fit_exchange(const costmodel::Network& network, const std::vector<ExchangeSample>& samples,
                                       bool kernels_given);

}  // namespace foldwise::hwprofiles
