#include "costmodel/step/stage_split.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "costmodel/check.h"

namespace foldwise::costmodel {
namespace {

// Seconds of a micro-batch in both directions.
double seconds_of(const BlockCost& cost, Seconds hidden) {
  const Seconds idle = beside_copies(cost, host_idle(cost.forward.clock, cost.backward.clock)).total();
  return (cost.forward.device() + cost.backward.device() + idle - pair_saving(cost, idle, hidden)).to<double>();
}

// Seconds of the layers before layer i.
std::vector<double> seconds_before(const ModelKinds& kinds, const ModelCosts& costs) {
  const std::size_t layers = kinds.kind.size();
  std::vector<double> before(layers + 1, 0.0);
  for (std::size_t k = 0; k < kinds.kinds.size(); ++k) {
    const double seconds = seconds_of(costs.covered[k], costs.saving[k]);
    for (std::size_t i = 0; i <= layers; ++i) before[i] += kinds.prefix[k][i] * seconds;
  }
  return before;
}

}  // namespace

StageLayout stage_layout(const ModelSpec& model, const TrainingOptions& o) {
  if (o.pipeline.layout.empty())
    return even_stages(model.num_layers(), model.mtp_num_layers, o.pipeline.pp, o.pipeline.vpp);
  ParsedLayout parsed = parse_layout(o.pipeline.layout, model.num_layers(), model.mtp_num_layers);
  FW_CHECK(parsed.stages.has_value(), parsed.error);
  return *std::move(parsed.stages);
}

StageLayout balanced_stages(const ModelKinds& kinds, const ModelCosts& costs, std::int64_t mtp_layers, std::int64_t pp,
                            std::int64_t vpp) {
  const auto stages = static_cast<std::size_t>(pp * vpp);
  const std::size_t layers = kinds.kind.size();
  const std::vector<double> before = seconds_before(kinds, costs);
  const auto depths = static_cast<double>(mtp_layers);
  const double head = seconds_of(costs.head, {}) + depths * seconds_of(costs.mtp, costs.mtp_saving);
  const double embedding = seconds_of(costs.embedding, {});

  // Sets `first` to the first layer of each stage (and the end) such that no stage takes longer than `limit`. False if
  // the layers do not fit.
  std::vector<std::size_t> first(stages + 1, 0), tried(stages + 1, 0);
  const auto cut = [&](double limit) {
    for (std::size_t i = 0; i < stages; ++i) {
      const double room = limit - (i == 0 ? embedding : 0.0) - (i + 1 == stages ? head : 0.0);
      if (room < 0.0) return false;
      std::size_t next = tried[i];
      while (next < layers && before[next + 1] - before[tried[i]] <= room) ++next;
      tried[i + 1] = next;
    }
    if (tried.back() != layers) return false;
    std::swap(first, tried);
    return true;
  };
  // The slowest stage takes at least the mean. It takes at most the mean plus the largest pieces that cannot be cut.
  double largest = std::max(embedding, head);
  for (std::size_t i = 0; i < layers; ++i) largest = std::max(largest, before[i + 1] - before[i]);
  const double everything = embedding + head + before[layers];
  double low = everything / static_cast<double>(stages), high = std::min(everything, low + 2.0 * largest);
  const bool found = cut(high * (1.0 + 1e-9)) || cut(everything * (1.0 + 1e-9));
  FW_CHECK(found, "no balanced split");
  const auto slowest = [&] {
    double most = 0.0;
    for (std::size_t i = 0; i < stages; ++i)
      most = std::max(
          most, before[first[i + 1]] - before[first[i]] + (i == 0 ? embedding : 0.0) + (i + 1 == stages ? head : 0.0));
    return most;
  };
  // Bisection brings the limit close. Then each split found gives the next limit to undercut, until there is none.
  // Times that differ by less than one part in 1e12 are equal, because they are sums of the same layers in another
  // order.
  high = slowest();
  for (int i = 0; i < 16 && high - low > 1e-3 * high; ++i) {
    const double middle = 0.5 * (low + high);
    if (cut(middle))
      high = slowest();
    else
      low = middle;
  }
  while (cut(high * (1.0 - 1e-12))) high = slowest();
  StageLayout layout;
  layout.stages.reserve(stages);
  for (std::size_t i = 0; i < stages; ++i) {
    layout.stages.push_back({.first_layer = static_cast<std::int64_t>(first[i]),
                             .num_layers = static_cast<std::int64_t>(first[i + 1] - first[i]),
                             .embedding = i == 0,
                             .mtp_layers = i + 1 == stages ? mtp_layers : 0,
                             .loss = i + 1 == stages});
  }
  return layout;
}

StageLayout rank_balanced_stages(const ModelKinds& kinds, const ModelCosts& costs, std::int64_t mtp_layers,
                                 bool mtp_before_loss, std::int64_t pp, std::int64_t vpp) {
  const auto ranks = static_cast<std::size_t>(pp), chunks = static_cast<std::size_t>(vpp), stages = ranks * chunks;
  const std::vector<double> before = seconds_before(kinds, costs);
  const std::size_t layers = before.size() - 1;
  const double layer = layers > 0 ? before.back() / static_cast<double>(layers) : 0.0;
  std::vector<double> fixed(stages, 0.0);  // Work of a stage without decoder layers.
  const std::size_t mtp_stage = stages - (mtp_layers > 0 && mtp_before_loss ? 2 : 1);
  fixed.front() += seconds_of(costs.embedding, {});
  fixed[mtp_stage] += static_cast<double>(mtp_layers) * seconds_of(costs.mtp, costs.mtp_saving);
  fixed.back() += seconds_of(costs.head, {});

  // Each layer goes to the rank with the least work, there to the chunk with the least work; among equals to the first.
  std::vector<double> work(ranks, 0.0), load = fixed;
  std::vector<std::size_t> count(stages, 0);
  for (std::size_t i = 0; i < stages; ++i) work[i % ranks] += fixed[i];
  if (mtp_stage < ranks - 1) work.back() = std::numeric_limits<double>::infinity();  // It has only the loss.
  for (std::size_t n = 0; n < layers; ++n) {
    const auto rank = static_cast<std::size_t>(std::min_element(work.begin(), work.end()) - work.begin());
    std::size_t to = rank;
    for (std::size_t i = rank; i <= mtp_stage; i += ranks)
      if (load[i] < load[to]) to = i;
    work[rank] += layer;
    load[to] += layer;
    ++count[to];
  }
  // If layers differ, the busiest rank hands one layer to the least busy rank while that reduces its work. The layers
  // in between move by one stage.
  std::vector<std::size_t> first(stages + 1, 0);
  const auto place = [&] {
    for (std::size_t i = 0; i < stages; ++i) first[i + 1] = first[i] + count[i];
    work.assign(ranks, 0.0);
    for (std::size_t i = 0; i < stages; ++i) work[i % ranks] += fixed[i] + before[first[i + 1]] - before[first[i]];
    return *std::max_element(work.begin(), work.end());
  };
  double busiest = place();
  for (std::size_t moves = 0; kinds.kinds.size() > 1 && moves < layers; ++moves) {
    const auto from_rank = static_cast<std::size_t>(std::max_element(work.begin(), work.end()) - work.begin()),
               to_rank = static_cast<std::size_t>(std::min_element(work.begin(), work.end()) - work.begin());
    std::size_t from = stages, to = stages;
    for (std::size_t i = from_rank; i < stages; i += ranks)
      if (count[i] > 0 && (from == stages || count[i] > count[from])) from = i;
    for (std::size_t i = to_rank; i <= mtp_stage; i += ranks)
      if (to == stages || count[i] < count[to]) to = i;
    if (from == stages || to == stages || from_rank == to_rank) break;
    --count[from];
    ++count[to];
    const double now = place();
    if (now < busiest) {
      busiest = now;
      continue;
    }
    ++count[from];
    --count[to];
    place();
    break;
  }
  StageLayout layout;
  for (std::size_t i = 0; i < stages; ++i)
    layout.stages.push_back({.first_layer = static_cast<std::int64_t>(first[i]),
                             .num_layers = static_cast<std::int64_t>(count[i]),
                             .embedding = i == 0,
                             .mtp_layers = i == mtp_stage ? mtp_layers : 0,
                             .loss = i + 1 == stages});
  return layout;
}

std::vector<StageLayout> splits_to_try(const ModelSpec& model, const ModelKinds& kinds, const ModelCosts& costs,
                                       std::int64_t pp, std::int64_t vpp) {
  const std::int64_t layers = model.num_layers(), mtp = model.mtp_num_layers, stages = pp * vpp;
  std::vector<StageLayout> splits;
  const auto add = [&](StageLayout split) {
    if (std::find(splits.begin(), splits.end(), split) == splits.end()) splits.push_back(std::move(split));
  };
  for (const bool embedding : {false, true})
    for (const bool loss : {false, true}) {
      const std::int64_t taken = (embedding ? 1 : 0) + (loss ? 1 : 0);
      if (taken > 0 && (stages == 1 || model.hybrid)) continue;
      if ((layers + taken) % stages == 0) add(even_stages(layers, mtp, pp, vpp, embedding, loss));
    }
  if (model.hybrid || stages == 1) return splits;
  add(balanced_stages(kinds, costs, mtp, pp, vpp));
  add(rank_balanced_stages(kinds, costs, mtp, false, pp, vpp));
  if (mtp > 0 && pp > 1) add(rank_balanced_stages(kinds, costs, mtp, true, pp, vpp));
  return splits;
}

}  // namespace foldwise::costmodel
