#include "planner/search/sensitivity.h"

#include <tbb/parallel_for.h>

#include <algorithm>

#include "costmodel/step/reserved_memory.h"
#include "costmodel/step/step.h"
#include "planner/search/threads.h"

namespace foldwise::planner {

using costmodel::Activity;
using costmodel::Hardware;
using costmodel::Prediction;

namespace {

/// A share of the step below this counts as nothing.
constexpr double kNothing = 1e-3;

void scale_flops(Hardware& hw, double factor) {
  for (auto& peak : hw.peak) peak *= factor;
  for (costmodel::GemmCurve& curve : hw.gemm) curve.peak *= factor;
  for (costmodel::AttentionCurve& curve : hw.attention) {
    curve.forward_rate *= factor;
    curve.backward_rate *= factor;
    curve.forward_tile /= factor;  // A tile also computes entries above the diagonal.
    curve.backward_tile /= factor;
  }
}

void scale_hbm(Hardware& hw, double factor) {
  const Bandwidth before = hw.hbm_bandwidth;
  hw.hbm_bandwidth *= factor;
  for (costmodel::SoftwareCurve& curve : hw.software) {
    const Seconds in_hbm = std::min<Seconds>(curve.per_element, curve.bytes / before);
    curve.per_element -= in_hbm - in_hbm / factor;
  }
}

void scale_nvlink(Hardware& hw, double factor) {
  for (costmodel::CollectiveCurve& curve : hw.network.nvlink)
    for (costmodel::ProtocolCurve* protocol : {&curve.low_latency, &curve.bulk, &curve.in_switch})
      protocol->bandwidth *= factor;
}

void scale_host(costmodel::HostSpec& host, double factor) {
  for (const costmodel::HostPrice& price : costmodel::kHostPrices) host.*price.price /= factor;
}

std::optional<Change> faster(const Change* change, const Prediction& prediction) {
  const bool is = change != nullptr && change->step_time < (1.0 - kNothing) * prediction.step_time;
  return is ? std::optional(*change) : std::nullopt;
}

/// Whether torch has no room for the run.
bool gives_memory_back(const Problem& problem, const costmodel::TrainingOptions& options) {
  const costmodel::Step step = costmodel::compose_step(problem.model, options, problem.hardware);
  Prediction prediction = costmodel::predict(step, false);
  costmodel::add_reserved(step, prediction, {.segments = false, .each = side_by_side});
  return !prediction.torch_has_room(problem.hardware.hbm_capacity);
}

}  // namespace

Walls walls(const Prediction& prediction, const Hardware& hardware) {
  const costmodel::StagePrediction& rank = prediction.stages.at(prediction.critical_stage);
  const auto share = [&](std::initializer_list<Activity> activities) {
    Seconds sum{};
    for (const Activity a : activities) sum += rank.parts[static_cast<std::size_t>(a)];
    return (sum / prediction.step_time).to<double>();
  };
  return {.compute = share({Activity::kCompute, Activity::kOptimizer}),
          .memory = share({Activity::kRecompute, Activity::kOffload}),
          .communication =
              share({Activity::kTensor, Activity::kContext, Activity::kExpert, Activity::kPipeline, Activity::kData}),
          .host = share({Activity::kHost}),
          .bubble = share({Activity::kBubble}),
          .memory_used = (prediction.peak_memory / hardware.hbm_capacity).to<double>()};
}

std::string_view to_string(Resource resource) {
  constexpr auto kNames =
      costmodel::names_of<Resource>("flops", "power", "hbm_bandwidth", "hbm_capacity", "nvlink", "nic", "host");
  return kNames.at(static_cast<std::size_t>(resource));
}

Hardware with_more(Hardware hw, Resource resource, double factor) {
  switch (resource) {
    case Resource::kFlops:
      scale_flops(hw, factor);
      break;
    case Resource::kPower:
      hw.power.limit *= factor;
      break;
    case Resource::kHbmBandwidth:
      scale_hbm(hw, factor);
      break;
    case Resource::kHbmCapacity:
      hw.hbm_capacity *= factor;
      break;
    case Resource::kNvlink:
      scale_nvlink(hw, factor);
      break;
    case Resource::kNic:
      hw.network.nic_bandwidth *= factor;
      break;
    case Resource::kHost:
      scale_host(hw.host, factor);
      break;
  }
  return hw;
}

Insight insight(const Problem& problem, const costmodel::TrainingOptions& options, const Prediction& prediction,
                double headroom) {
  Insight result;
  result.walls = planner::walls(prediction, problem.hardware);
  result.neighbours = neighbours(problem, options);
  const Bytes capacity = problem.hardware.hbm_capacity, more = Insight::kMore * capacity;
  result.best = faster(result.neighbours.fastest(problem, (1.0 - headroom) * capacity, capacity), prediction);
  result.best_with_more_memory = faster(result.neighbours.fastest(problem, (1.0 - headroom) * more, more), prediction);
  if (result.best) result.best->gives_memory_back = gives_memory_back(problem, result.best->options);
  const auto time_of = [&](const std::optional<Change>& change) {
    return change ? change->step_time : prediction.step_time;
  };
  result.sensitivities.resize(kResources);
  tbb::parallel_for(std::size_t{0}, kResources, [&](std::size_t i) {
    Sensitivity& s = result.sensitivities[i];
    s.resource = static_cast<Resource>(i);
    if (s.resource == Resource::kHbmCapacity) {
      s.step_time = time_of(result.best_with_more_memory);
      s.gain = time_of(result.best) - s.step_time;
    } else {
      const Hardware better = with_more(problem.hardware, s.resource, Insight::kMore);
      s.step_time = costmodel::step_time(costmodel::compose_step(problem.model, options, better));
      s.gain = prediction.step_time - s.step_time;
    }
  });
  std::ranges::stable_sort(result.sensitivities, std::ranges::greater{}, &Sensitivity::gain);
  const Sensitivity& most = result.sensitivities.front();
  if (!prediction.fits)
    result.binding = Resource::kHbmCapacity;
  else if (most.gain > kNothing * prediction.step_time)
    result.binding = most.resource;
  return result;
}

}  // namespace foldwise::planner
