#include "costmodel/step/stage_split.h"

#include <algorithm>
#include <utility>

#include "costmodel/check.h"

namespace foldwise::costmodel {

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
  const std::size_t layers = kinds.prefix.empty() ? 0 : kinds.prefix.front().size() - 1;
  const auto total = [&](const BlockCost& cost, Seconds saving) {
    const Seconds host = host_idle(cost, saving).total();
    return (cost.forward.device() + cost.backward.device() - saving + host).to<double>();
  };
  std::vector<double> before(layers + 1, 0.0);  // Seconds of the layers before layer i.
  for (std::size_t k = 0; k < kinds.kinds.size(); ++k) {
    const double seconds = total(costs.covered[k], costs.saving[k]);
    for (std::size_t i = 0; i <= layers; ++i) before[i] += kinds.prefix[k][i] * seconds;
  }
  const auto depths = static_cast<double>(mtp_layers);
  const double head = total(costs.head, {}) + depths * total(costs.mtp, costs.mtp_saving);
  const double embedding = total(costs.embedding, {});

  // First layer of each stage (and the end) when no stage may take longer than `limit`, in `first`; false if they do
  // not fit.
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
  // The slowest stage takes at least the mean, and at most that plus the largest piece that cannot be cut.
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
  // Bisection brings the limit close; then every split found is the next limit to undercut, until none does. Times that
  // differ by less than one part in 1e12 are equal: sums of the same layers in another order.
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

}  // namespace foldwise::costmodel
