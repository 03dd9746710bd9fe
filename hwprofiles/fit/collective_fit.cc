#include "hwprofiles/fit/collective_fit.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "hwprofiles/fit/nelder_mead.h"

namespace foldwise::hwprofiles {
namespace {

using costmodel::CollectiveCurve;
using costmodel::CollectiveKind;
using costmodel::Dispatcher;
using costmodel::ExchangeKernel;
using costmodel::Network;
using costmodel::ProtocolCurve;

/// Nelder-Mead, restarted from its own result with a new simplex, because a simplex may collapse.
std::vector<double> search(const std::function<double(const std::vector<double>&)>& cost, std::vector<double> start) {
  constexpr int kIterations = 500;
  for (const double step : {0.5, 0.3, 0.2, 0.1}) start = minimise(cost, std::move(start), step, kIterations);
  return start;
}

/// A smaller per-rank cost counts as none.
constexpr Seconds kNoLatency = microseconds(0.02);

ProtocolCurve protocol_at(const std::vector<double>& logs, std::size_t at) {
  const Seconds per_rank{std::exp(logs.at(at + 1))};
  return {.base = Seconds{std::exp(logs.at(at))},
          .per_rank = per_rank < kNoLatency ? Seconds{} : per_rank,
          .bandwidth = Bandwidth{std::exp(logs.at(at + 2))}};
}
void append_protocol(std::vector<double>& logs, double base_us, double per_rank_us, double gb_per_second) {
  logs.insert(logs.end(), {std::log(base_us * 1e-6), std::log(per_rank_us * 1e-6), std::log(gb_per_second * 1e9)});
}

CollectiveCurve curve_at(const std::vector<double>& logs, std::int64_t in_switch_ranks) {
  CollectiveCurve curve;
  curve.low_latency = protocol_at(logs, 0);
  curve.bulk = protocol_at(logs, 3);
  curve.own_share = Bandwidth{std::exp(logs.at(6))};
  if (in_switch_ranks > 0) curve.in_switch = protocol_at(logs, 7);
  curve.in_switch_ranks = in_switch_ranks;
  return curve;
}

double prediction(Network& network, CollectiveKind kind, const CollectiveSample& sample) {
  return collective_time(network, kind, sample.bytes, {.ranks = sample.ranks, .ranks_per_domain = sample.ranks})
      .to<double>();
}

CollectiveCurve fit_once(CollectiveKind kind, const std::vector<CollectiveSample>& samples,
                         std::int64_t in_switch_ranks) {
  Network network;
  const auto cost = [&](const std::vector<double>& logs) {
    network.nvlink.at(static_cast<std::size_t>(kind)) = curve_at(logs, in_switch_ranks);
    double sum = 0.0;
    for (const CollectiveSample& sample : samples)
      sum += std::abs(std::log(prediction(network, kind, sample) / sample.time.to<double>()));
    return sum / static_cast<double>(samples.size());
  };
  std::vector<double> best;
  for (const double bulk_base : {10.0, 20.0, 35.0}) {
    std::vector<double> start;
    append_protocol(start, 6.0, 1.0, 120.0);
    append_protocol(start, bulk_base, 1.0, 400.0);
    start.push_back(std::log(1500e9));
    if (in_switch_ranks > 0) append_protocol(start, 30.0, 0.5, 500.0);
    std::vector<double> found = search(cost, std::move(start));
    if (best.empty() || cost(found) < cost(best)) best = std::move(found);
  }
  return curve_at(best, in_switch_ranks);
}

}  // namespace

CollectiveFit fit_collective(CollectiveKind kind, const std::vector<CollectiveSample>& samples,
                             std::int64_t in_switch_ranks, int folds) {
  CollectiveFit fit;
  fit.curve = fit_once(kind, samples, in_switch_ranks);
  fit.predicted.resize(samples.size());
  fit.left_out.resize(samples.size());
  const auto predict = [&](const CollectiveCurve& curve, std::size_t i) {
    Network network;
    network.nvlink.at(static_cast<std::size_t>(kind)) = curve;
    return Seconds{prediction(network, kind, samples[i])};
  };
  const auto fold_of = [folds](std::size_t i) { return static_cast<int>(i % static_cast<std::size_t>(folds)); };
  for (std::size_t i = 0; i < samples.size(); ++i) fit.predicted[i] = predict(fit.curve, i);
  for (int fold = 0; fold < folds; ++fold) {
    std::vector<CollectiveSample> rest;
    for (std::size_t i = 0; i < samples.size(); ++i)
      if (fold_of(i) != fold) rest.push_back(samples[i]);
    const CollectiveCurve curve = fit_once(kind, rest, in_switch_ranks);
    for (std::size_t i = 0; i < samples.size(); ++i)
      if (fold_of(i) == fold) fit.left_out[i] = predict(curve, i);
  }
  const auto errors = [&](const std::vector<Seconds>& predicted, bool large) {
    std::vector<double> list;
    for (std::size_t i = 0; i < samples.size(); ++i)
      if ((samples[i].bytes.to<double>() >= kLargeMessage) == large)
        list.push_back(std::abs((predicted[i] / samples[i].time).to<double>() - 1.0));
    return error_of(list);
  };
  fit.training = errors(fit.predicted, true);
  fit.training_small = errors(fit.predicted, false);
  fit.validated = errors(fit.left_out, true);
  fit.validated_small = errors(fit.left_out, false);
  return fit;
}

Seconds exchange_prediction(const Network& network, const ExchangeSample& sample) {
  ExchangeKernel kernel = network.exchange.at(static_cast<std::size_t>(sample.dispatcher));
  kernel.sms = sample.sms;
  if (sample.nvlink_share == 1.0) return exchange_time(network, kernel, sample.kind, sample.volume, sample.group);
  Network slower = network;
  Bandwidth& bandwidth = slower.nvlink.at(static_cast<std::size_t>(sample.kind)).bulk.bandwidth;
  bandwidth = bandwidth * sample.nvlink_share;
  return exchange_time(slower, kernel, sample.kind, sample.volume, sample.group);
}

ExchangeFit fit_exchange(const Network& network, const std::vector<ExchangeSample>& samples, bool kernels_given) {
  const auto at = [&](const std::vector<double>& logs) {
    Network result = network;
    ProtocolCurve dispatch = protocol_at(logs, 0), combine = dispatch;
    combine.bandwidth = Bandwidth{std::exp(logs.at(3))};
    result.nvlink.at(static_cast<std::size_t>(CollectiveKind::kDispatch)).bulk = dispatch;
    result.nvlink.at(static_cast<std::size_t>(CollectiveKind::kCombine)).bulk = combine;
    if (kernels_given) {
      result.nic_exchange_efficiency = std::min(1.0, std::exp(logs.at(4)));
    } else {
      std::size_t next = 4;
      for (const Dispatcher dispatcher : {Dispatcher::kDeepEp, Dispatcher::kHybridEp}) {
        ExchangeKernel* kernel = &result.exchange.at(static_cast<std::size_t>(dispatcher));
        kernel->rate_per_sm = Bandwidth{std::exp(logs.at(next++))};
        kernel->row_overhead = Seconds{std::exp(logs.at(next++))};
      }
    }
    return result;
  };
  const auto cost = [&](const std::vector<double>& logs) {
    const Network candidate = at(logs);
    double sum = kernels_given ? std::max(0.0, logs.at(4)) : 0.0;  // A share above 1 is penalised.
    for (const ExchangeSample& sample : samples)
      if (!sample.held_out)
        sum += std::abs(std::log(exchange_prediction(candidate, sample).to<double>() / sample.time.to<double>()));
    return sum;
  };
  std::vector<double> start;
  append_protocol(start, 80.0, 4.0, 600.0);
  start.push_back(std::log(600e9));
  if (kernels_given)
    start.push_back(std::log(0.85));
  else
    for (int kernel = 0; kernel < 2; ++kernel) start.insert(start.end(), {std::log(40e9), std::log(0.2e-6)});
  ExchangeFit fit{.network = at(search(cost, std::move(start))), .training = {}, .held_out = {}};
  std::vector<double> training, held_out;
  for (const ExchangeSample& sample : samples) {
    const auto measured = sample.time.to<double>();
    (sample.held_out ? held_out : training)
        .push_back(std::abs(exchange_prediction(fit.network, sample).to<double>() - measured) / measured);
  }
  fit.training = error_of(training);
  fit.held_out = error_of(held_out);
  return fit;
}

}  // namespace foldwise::hwprofiles
