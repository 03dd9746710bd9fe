#include "planner/report/beyond_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "costmodel/ops/step_ops.h"
#include "hwprofiles/load/range.h"

namespace foldwise::planner {
namespace {

using costmodel::Op;

constexpr double kLeastShare = 0.01;

std::vector<Op> ops_of_layers(const Run& run) {
  const costmodel::BuildContext context = costmodel::StepContext{run.model, run.options, run.hardware}.layer();
  std::vector<costmodel::OpList> lists{costmodel::embedding_ops(context), costmodel::head_ops(context, 1)};
  for (const costmodel::LayerSpec& layer : run.model.layers) {
    lists.push_back(costmodel::mixer_ops(context, layer));
    lists.push_back(costmodel::mlp_ops(context, layer));
  }
  std::vector<Op> ops;
  for (costmodel::OpList& list : lists) {
    std::move(list.forward.begin(), list.forward.end(), std::back_inserter(ops));
    std::move(list.backward.begin(), list.backward.end(), std::back_inserter(ops));
  }
  return ops;
}

}  // namespace

std::vector<std::string> beyond_fit(const Run& run, const hwprofiles::Profile& profile) {
  if (profile.fits.empty()) return {};
  std::map<std::string, Seconds> time_by_name;
  Seconds all{};
  const std::vector<Op> ops = ops_of_layers(run);
  for (const Op& op : ops) {
    const Seconds time = costmodel::op_time(op, run.hardware);
    time_by_name[std::string(op.name)] += time;
    all += time;
  }
  std::map<std::string, std::pair<double, std::string>> farthest;  // by curve and property: how far, and the line
  for (const Op& op : ops) {
    if (time_by_name.at(std::string(op.name)) < kLeastShare * all) continue;
    for (const hwprofiles::OutOfRange& outside : hwprofiles::outside_of_fit(op, profile)) {
      const double end = outside.value < outside.low ? outside.low : outside.high;
      const double distance = std::abs(std::log(std::max(outside.value, 1.0) / std::max(end, 1.0)));
      auto& entry = farthest[outside.curve + outside.property];
      if (entry.second.empty() || distance > entry.first)
        entry = {distance, fmt::format("{} ({})", outside.text(), op.name)};
    }
  }
  std::vector<std::string> lines;
  lines.reserve(farthest.size());
  for (auto& entry : farthest) lines.push_back(std::move(entry.second.second));
  return lines;
}

}  // namespace foldwise::planner
