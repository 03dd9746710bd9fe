#include "planner/search/memory_bounds.h"

#include <algorithm>

namespace foldwise::planner {

using namespace costmodel;  // NOLINT(google-build-using-namespace): this file is about the cost model's types.

namespace {

/// Bytes that the projections of one MTP depth keep.
double projections_kept(Workbench& bench, const StepContext& context) {
  if (bench.problem.model.mtp_num_layers == 0) return 0.0;
  return bench.cache().get(context.layer(), Piece::kMtp, {}).memory.kept.to<double>();
}

/// Lower bound of the activations of a critical rank at a moment, in bytes.
double activations(const Workbench& bench, const LayerCosts& costs, const CriticalRank& w,
                   const CriticalRank::Moment& at, const MemoryChoice& memory_choice, const Kept& kept) {
  const Kept& plain = costs.plain;
  const auto covered = [&](const StageContent& content) { return memory_choice.covered(content.num_layers); };
  double bytes = at.kept + at.depths * kept.mtp + kept.beside;
  if (memory_choice.partial) {
    for (std::size_t chunk = 0; chunk < at.chunks.size(); ++chunk) {
      const StageContent& content = *w.stages[chunk];
      for (std::size_t k = 0; k < kept.layers.size(); ++k) {
        const double all = bench.layers_of(k, content, content.num_layers),
                     with = bench.layers_of(k, content, covered(content));
        bytes += at.chunks[chunk] * (with * kept.layers[k].kept + (all - with) * plain.layers[k].kept);
      }
    }
  } else {
    for (std::size_t k = 0; k < kept.layers.size(); ++k) bytes += at.in_flight[k] * kept.layers[k].kept;
  }
  const StageContent& running = *at.running;
  // The last layer's tensors stay on the device, and in backward the next ones return early. MTP layers are not
  // offloaded.
  const bool whole =
      memory_choice.cpu_offloading_num_layers > 0;  // Layers offloaded whole exclude all other offloading.
  double offloaded = 0.0;
  for (std::size_t k = 0; k < kept.layers.size() && !whole; ++k)
    if (kept.layers[k].offloaded > offloaded && bench.layers_of(k, running, covered(running)) > 0)
      offloaded = kept.layers[k].offloaded;
  // A piece runs while the pieces before it keep their tensors.
  double high = 0.0, later = 0.0;
  if (running.loss) {
    high = at.head + offloaded;
    later += costs.costs.head.memory.kept.to<double>();
  }
  if (running.mtp_layers > 0) {
    high = std::max(high, (at.forward ? kept.mtp_forward : kept.mtp_backward) - later);
    later += static_cast<double>(running.mtp_layers) * (kept.mtp + at.projections);
  }
  if (running.num_layers > 0) {
    const std::int64_t last = running.first_layer + running.num_layers - 1;
    const auto k = static_cast<std::size_t>(bench.kinds.kind[static_cast<std::size_t>(last)]);
    const Kept& of = covered(running) == running.num_layers ? kept : plain;
    const double layers =
                     std::min(memory_choice.group, static_cast<double>(running.num_layers)),  // Layers of a checkpoint.
        own = at.forward ? of.layers[k].forward : of.layers[k].backward + (layers - 1.0) * of.layers[k].rebuilt;
    high = std::max(high, own + offloaded - later);
  }
  return bytes + high;
}

}  // namespace

std::vector<CriticalRank> critical_ranks(Workbench& bench, const StepContext& context, const LayerCosts& layer_costs,
                                         const StageLayout& layout, const Composition& c, std::size_t busiest) {
  std::vector<CriticalRank> result;
  const ModelCosts& costs = layer_costs.costs;
  const auto pp = static_cast<std::size_t>(context.options.pipeline.pp);
  const std::vector<PeakTable>& tables = bench.peaks(c.times.shape);
  std::vector<std::size_t> ranks = {0};
  if (busiest != 0) ranks.push_back(busiest);
  std::vector<StageMemory> memories;
  std::size_t fullest = 0;
  for (std::size_t rank = 0; rank < pp; ++rank) {
    memories.push_back(rank_memory(context, c, static_cast<std::int64_t>(rank), tables[rank]));
    if (memories[rank].total() > memories[fullest].total()) fullest = rank;
  }
  if (std::find(ranks.begin(), ranks.end(), fullest) == ranks.end()) ranks.push_back(fullest);
  for (const std::size_t rank : ranks) {
    const StageMemory& memory = memories[rank];
    const Bytes optimizer = static_bytes(context, c.parameters[rank]).optimizer;  // Counted in addition to the chunks.
    CriticalRank w{.rank = rank,
                   .parameters = c.parameters[rank],
                   .overhead = memory.outside(),
                   .buffers = memory.allocated_beside_chunks - memory.parameters - memory.gradients - optimizer -
                              fsdp_whole(c, static_cast<std::int64_t>(rank))};
    w.parameters.padding = w.parameters.low_precision_padding = 0.0;  // Another step has other padding.
    const PeakTable& table = tables[rank];
    const std::size_t chunks = table.largest.size();
    for (std::size_t chunk = 0; chunk < chunks; ++chunk)
      w.stages.push_back(&layout.stages[stage_of(c.times.shape, layout.stages.size(), chunk * pp + rank)]);
    w.layers_of.assign(bench.kinds.kinds.size(), 0.0);
    for (const StageContent* stage : w.stages)
      for (std::size_t k = 0; k < w.layers_of.size(); ++k)
        w.layers_of[k] += bench.layers_of(k, *stage, stage->num_layers);
    for (const bool forward : {true, false}) {
      double highest = -1.0;
      CriticalRank::Moment at{.forward = forward, .projections = projections_kept(bench, context)};
      for (std::size_t moment = 0; moment < table.running.size() && runnable(context.options.pipeline.schedule);
           ++moment) {
        if (table.forward[moment] != forward) continue;
        const double* const counts = table.counts.data() + moment * chunks;
        const auto running = static_cast<std::size_t>(table.running[moment]);
        const auto profile = [&](std::size_t chunk) -> const MemoryProfile& {
          return c.stage(chunk * pp + rank).cost.memory;
        };
        auto level =
            ((forward ? profile(running).forward_high : profile(running).backward_high) - profile(running).kept)
                .to<double>();
        for (std::size_t chunk = 0; chunk < chunks; ++chunk) level += counts[chunk] * profile(chunk).kept.to<double>();
        if (level <= highest) continue;
        highest = level;
        at.chunks.assign(counts, counts + chunks);
        at.running = w.stages[running];
      }
      if (at.running == nullptr) continue;
      const MemoryProfile& head = costs.head.memory;
      at.head = ((forward ? head.forward_high : head.backward_high) - head.kept).to<double>();
      at.in_flight.assign(bench.kinds.kinds.size(), 0.0);
      for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        const StageContent& content = *w.stages[chunk];
        for (std::size_t k = 0; k < at.in_flight.size(); ++k)
          at.in_flight[k] += at.chunks[chunk] * bench.layers_of(k, content, content.num_layers);
        const auto depths = static_cast<double>(content.mtp_layers);
        at.depths += at.chunks[chunk] * depths;
        at.kept += at.chunks[chunk] * ((content.embedding ? costs.embedding.memory.kept.to<double>() : 0.0) +
                                       (content.loss ? head.kept.to<double>() : 0.0) + depths * at.projections);
      }
      w.moments.push_back(std::move(at));
    }
    result.push_back(std::move(w));
  }
  return result;
}

Need need_of(const Workbench& bench, const LayerCosts& costs, const std::vector<CriticalRank>& critical,
             const MemoryChoice& memory_choice, const Kept& kept) {
  Need need;
  for (std::size_t i = 0; i < critical.size(); ++i) {
    const CriticalRank& w = critical[i];
    for (const CriticalRank::Moment& moment : w.moments) {
      need.bytes[i] = std::max(need.bytes[i], activations(bench, costs, w, moment, memory_choice, kept));
      double host = 0.0;
      for (std::size_t k = 0; k < kept.layers.size() && !memory_choice.partial; ++k)
        host += moment.in_flight[k] * kept.layers[k].host;
      need.host[i] = std::max(need.host[i], host);
    }
    need.bytes[i] *= kRounding;  // Fragmentation counts only if the optimizer does not need more.
    need.host[i] *= kRounding;
    for (std::size_t k = 0; k < kept.layers.size() && !memory_choice.partial; ++k)
      need.rests[i] += w.layers_of[k] * kept.layers[k].rests * kRounding;
  }
  return need;
}

}  // namespace foldwise::planner
