#pragma once
#include <algorithm>
#include <array>
#include <vector>

#include "costmodel/ops/block_ops.h"
#include "costmodel/ops/contention.h"
#include "costmodel/ops/issue_clock.h"
#include "costmodel/ops/memory_profile.h"

// An op list reduced to a few sums. A candidate of the search is a composition of such values (docs/design.md#speed).
namespace foldwise::costmodel {

/// One direction (forward or backward) of a piece of the model on one rank, for one micro-batch.
struct DirectionCost {
  Seconds compute{};     ///< Compute stream.
  Seconds comm{};        ///< Collectives that no op of the piece hides, EP exchange included.
  Seconds copy{};        ///< Copies over the host link, before hiding them under the piece's compute.
  Seconds copy_wait{};   ///< What their order exposes whatever they could hide under; set for a stage.
  Seconds products{};    ///< Part of `compute` in GEMMs and attention, alone and at full clocks.
  Seconds unclocked{};   ///< What they would lose to the power limit if they never paused: sum of (1 - sustained_clock)
                         ///< x time.
  IssueClock clock;      ///< Of compute and comm.
  IssueClock sustained;  ///< The same if products never paused: at the clocks that the power limit leaves them.
  [[nodiscard]] Seconds busy() const { return compute + comm; }
  [[nodiscard]] Seconds exposed_copy() const { return std::max(copy_wait, copy - busy()); }
  [[nodiscard]] Seconds device() const { return busy() + exposed_copy(); }
  /// An op, alike on both clocks.
  void run(Seconds issue, Seconds run) {
    clock.op(issue, run);
    sustained.op(issue, run);
  }
};

/// Times of the nodes of the layer schedule plan, for EP overlap.
struct NodeTimes {
  std::array<ComputeSum, kNodes> forward{}, dgrad{}, wgrad{};                               ///< By Node.
  CommunicationSum dispatch_forward, combine_forward, dispatch_backward, combine_backward;  ///< EP exchange.
  NodeTimes& operator+=(const NodeTimes& other);
};

struct BlockCost {
  DirectionCost forward, backward;
  NodeTimes nodes;
  MemoryProfile memory;          ///< One micro-batch.
  Bytes rematerialised{};        ///< Dropped by forward and rebuilt for backward.
  Bytes captured{};              ///< Kept in the pools of CUDA graphs: reserved, not allocated.
  Bytes until_dispatched{};      ///< Held by forward once the tokens are dispatched, of what it keeps and holds.
  Bytes host_bytes{};            ///< Offloaded, and copies of what stays.
  Bytes offloaded{};             ///< Part of that: what leaves the device.
  Bytes cache{}, setup_cache{};  ///< Tables of the modules, as in Op.
  Bytes weight_gradients{};      ///< bf16, one of each distinct shape; not summed over pieces, which share them.
  ParameterCount parameters;
  ComputeSum mix;  ///< Both directions' compute with nothing beside it, at full clocks.
  Flops flops{};   ///< Executed by forward, dgrad and wgrad; recomputation excluded.
  /// Host and device, of a forward and another micro-batch's backward merged by EP overlap in the order in which the
  /// schedule plan issues their nodes, with the exchange on a stream of its own. Of a MoE MLP without the backward of
  /// its combine, which comes before the mixer: `pair_begin`.
  IssueClock pair, pair_begin;
  BlockCost& operator+=(const BlockCost& other);
};

/// Idle time of the GPU because of the host, by direction, when micro-batches follow each other: it synchronises, or
/// takes longer to issue the ops than the GPU to run them.
struct HostIdle {
  Seconds forward{}, backward{};
  [[nodiscard]] Seconds total() const { return forward + backward; }
};
[[nodiscard]] HostIdle host_idle(const IssueClock& forward, const IssueClock& backward);
/// What of `idle` is left beside exposed copies: while the device waits for them its host goes on.
[[nodiscard]] HostIdle beside_copies(const BlockCost& cost, const HostIdle& idle);
/// What EP overlap takes off a pair with its `idle` time, if it hides `hidden` of what the device runs: the other
/// micro-batch fills what a synchronisation would leave empty and hides copies (each way of the host link has its own),
/// and no pair is faster than its own clocks or a way copies.
[[nodiscard]] Seconds pair_saving(const BlockCost& cost, Seconds idle, Seconds hidden);

/// Sums a list after applying the options' recomputation and offloading to it.
[[nodiscard]] BlockCost block_cost(const BuildContext& context, OpList list);

/// What an op does to the clocks of host, device and copies: IssueClock::op(issue, run), copy(issue, run), or, where it
/// synchronises, op(issue, 0) and synchronise(run).
struct ClockStep {
  enum class Kind : std::uint8_t { kOp, kCopyToHost, kSynchronise, kSynchroniseByCopy };
  Kind kind = Kind::kOp;
  Seconds issue{}, run{};
  Seconds throttled{};  ///< What the power limit adds to a product's `run` if products never pause.
  [[nodiscard]] bool synchronises() const { return kind == Kind::kSynchronise || kind == Kind::kSynchroniseByCopy; }
};
/// The steps of one direction of a block, an op each. A captured region of a CUDA graph is one launch.
[[nodiscard]] std::vector<ClockStep> clock_steps(const BuildContext& context, const std::vector<Op>& ops);

/// Whether the graph captures `op`.
[[nodiscard]] bool captured(const CudaGraph& graph, const Op& op);

/// Modules the options recompute: kFull for full granularity.
[[nodiscard]] BitSet<RecomputeModule> recomputed_modules(const LayerOptions& options);

/// What running beside each other does to one direction's ops of an overlap class.
struct OverlapShares {
  double exposed = 1.0;  ///< Of the communication's time.
  double stretch = 1.0;  ///< Of the compute: its time over its time alone.
};
[[nodiscard]] std::array<OverlapShares, kOverlaps> overlap_shares(const BuildContext& context,
                                                                  const std::vector<Op>& ops);

/// Time that a merged (forward, backward) pair of one layer saves by running the exchange of one micro-batch beside the
/// compute of the other. Source: docs/formulas.md#ep-overlap.
[[nodiscard]] Seconds ep_overlap_saving(const NodeTimes& nodes, bool delay_wgrad, const Hardware& hardware);

}  // namespace foldwise::costmodel
