#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
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
  Seconds comm{};        ///< Exposed collectives of the piece, including the EP exchange.
  Seconds copy{};        ///< Copies over the host link, before any is hidden under compute.
  Seconds copy_wait{};   ///< Copies exposed by their order, whatever could hide them; set for a stage.
  Seconds products{};    ///< Part of `compute` in GEMMs and attention, alone and at full clocks.
  Seconds attention{};   ///< Part of `products` in attention.
  Seconds unclocked{};   ///< Time that products lose to the power limit if they never pause: sum of (1 -
                         ///< sustained_clock) x time.
  Seconds warm{};        ///< Part of the other compute during which the GPU does not cool: (1 - memory_pause) x time.
  IssueClock clock;      ///< Clock of compute and communication.
  IssueClock sustained;  ///< The same if products never pause, at the clocks that the power limit then leaves.
  [[nodiscard]] Seconds busy() const { return compute + comm; }
  [[nodiscard]] Seconds exposed_copy() const { return std::max(copy_wait, copy - busy()); }
  [[nodiscard]] Seconds device() const { return busy() + exposed_copy(); }
  /// Runs an op with the same times on both clocks.
  void run(Seconds issue, Seconds run) {
    clock.op(issue, run);
    sustained.op(issue, run);
  }
};

/// Times of the nodes of the layer schedule plan under EP overlap.
struct NodeTimes {
  std::array<ComputeSum, kNodes> forward{}, dgrad{}, wgrad{};                               ///< By Node.
  CommunicationSum dispatch_forward, combine_forward, dispatch_backward, combine_backward;  ///< EP exchange.
  NodeTimes& operator+=(const NodeTimes& other);
};

struct BlockCost {
  DirectionCost forward, backward;
  NodeTimes nodes;
  MemoryProfile memory;          ///< One micro-batch.
  Bytes rematerialised{};        ///< Dropped by forward and rebuilt in backward.
  Bytes captured{};              ///< Kept in the pools of CUDA graphs: reserved, not allocated.
  Bytes until_dispatched{};      ///< Part of what forward keeps and holds that exists once the tokens are dispatched.
  Bytes host_bytes{};            ///< Offloaded tensors, and copies of tensors that stay.
  Bytes offloaded{};             ///< Part of `host_bytes` that leaves the device.
  Bytes cache{}, setup_cache{};  ///< Tables of the modules, as in Op.
  Bytes weight_gradients{};  ///< One BF16 gradient of each distinct shape. Pieces share them, so they are not summed.
  ParameterCount parameters;
  ComputeSum mix;  ///< Compute of both directions with nothing beside it, at full clocks.
  Flops flops{};   ///< Executed by forward, dgrad and wgrad; recomputation excluded.
  /// Clocks of host and device for a forward and another micro-batch's backward merged by EP overlap, in the order in
  /// which the schedule plan issues their nodes. The exchange has its own stream. In a MoE MLP, `pair_begin` has the
  /// backward of combine, which comes before the mixer.
  IssueClock pair, pair_begin;
  BlockCost& operator+=(const BlockCost& other);
};

/// Shape [out, in] of a weight gradient.
using GradientShape = std::pair<double, std::int64_t>;
/// That of the tensor of Op::dummy_gradient; nothing for other ops.
[[nodiscard]] std::optional<GradientShape> dummy_gradient(const Op& op);
[[nodiscard]] Bytes bf16_bytes(const GradientShape& shape);

/// Idle time of the GPU by direction, when micro-batches follow each other. The host causes it by synchronising, or by
/// taking longer to issue ops than the GPU to run them.
struct HostIdle {
  Seconds forward{}, backward{};
  [[nodiscard]] Seconds total() const { return forward + backward; }
};
[[nodiscard]] HostIdle host_idle(const IssueClock& forward, const IssueClock& backward);
/// Part of `idle` that remains beside exposed copies. While the device waits for copies, the host continues.
[[nodiscard]] HostIdle beside_copies(const BlockCost& cost, const HostIdle& idle);
/// Time that EP overlap takes off a pair with `idle` time, if it hides `hidden` of the device's work. The other
/// micro-batch fills the gaps of synchronisations and hides copies (each direction of the host link separately). A pair
/// is no faster than its own clocks or the copies of one direction.
[[nodiscard]] Seconds pair_saving(const BlockCost& cost, Seconds idle, Seconds hidden);

/// Applies the options' recomputation and offloading to a list and sums it.
[[nodiscard]] BlockCost block_cost(const BuildContext& context, OpList list);

/// Effect of an op on the clocks of host, device and copies: IssueClock::op(issue, run) or copy(issue, run). A
/// synchronising op is op(issue, 0) and synchronise(run).
struct ClockStep {
  enum class Kind : std::uint8_t { kOp, kCopyToHost, kSynchronise, kSynchroniseByCopy };
  Kind kind = Kind::kOp;
  Seconds issue{}, run{};
  Seconds throttled{};  ///< Time that the power limit adds to a product's `run` if products never pause.
  [[nodiscard]] bool synchronises() const { return kind == Kind::kSynchronise || kind == Kind::kSynchroniseByCopy; }
};
/// The clock steps of one direction of a block, one per op. A captured region of a CUDA graph is one launch.
[[nodiscard]] std::vector<ClockStep> clock_steps(const BuildContext& context, const std::vector<Op>& ops);

/// Whether the graph captures `op`.
[[nodiscard]] bool captured(const CudaGraph& graph, const Op& op);

/// Modules the options recompute: kFull for full granularity.
[[nodiscard]] BitSet<RecomputeModule> recomputed_modules(const LayerOptions& options);

/// Effect of overlap on the ops of one direction and one overlap class.
struct OverlapShares {
  double exposed = 1.0;  ///< Share of the communication's time that is exposed.
  double stretch = 1.0;  ///< Time of the compute over its time alone.
};
[[nodiscard]] std::array<OverlapShares, kOverlaps> overlap_shares(const BuildContext& context,
                                                                  const std::vector<Op>& ops);

/// Time that EP overlap saves for a merged (forward, backward) pair of one layer by running the exchange of one
/// micro-batch beside the compute of the other. Source: docs/formulas.md#ep-overlap.
[[nodiscard]] Seconds ep_overlap_saving(const NodeTimes& nodes, bool delay_wgrad, const Hardware& hardware);

}  // namespace foldwise::costmodel
