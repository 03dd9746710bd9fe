#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "costmodel/memory/caching_allocator.h"
#include "costmodel/ops/block_cost.h"

namespace foldwise::costmodel {

/// Rows in PieceOps::loaded, relative to balanced ones. Any number above one gives the slope.
inline constexpr double kLoad = 1.5;

/// Op lists of one piece of the model. Every size is linear in the experts' rows, so two lists give all sizes.
struct PieceOps {
  OpList balanced, loaded;
  std::vector<ClockStep> forward_steps, backward_steps;  ///< The steps of `balanced`.
  bool experts = false;                                  ///< Whether rows vary.
  Seconds nodes{};  ///< Time of the host, per direction, for the piece's nodes of EP overlap's schedule plan.
  /// Dummy gradients that its first backward makes: of a layer's linears, but not in graphs of Transformer Engine,
  /// whose tensors are in the graphs' pools.
  std::set<GradientShape> dummies;
};

/// Tensors that a piece holds between micro-batches, by op and position in Op::keeps.
using TensorKey = std::pair<std::size_t, std::size_t>;
using Resting = std::map<TensorKey, CachingAllocator::Block>;

/// One micro-batch in flight in one piece of the rank.
struct InPiece {
  const PieceOps* piece = nullptr;
  Resting* resting = nullptr;
  std::size_t position = 0;  ///< Among the pieces of the rank.
  double excess = 0.0;       ///< Rows of the experts relative to balanced ones, minus one.
  std::vector<std::pair<std::int32_t, CachingAllocator::Block>> kept;  ///< By the backward step that frees it.
  std::vector<std::pair<TensorKey, CachingAllocator::Block>> rests;    ///< Kept, but not freed by backward.
  std::vector<std::pair<TensorKey, Bytes>> allocated_by_backward;      ///< Resting tensors of a recomputed region.
  std::optional<CachingAllocator::Block> received;      ///< Input of the block, if it came from another stage.
  std::vector<std::pair<std::int32_t, Bytes>> dropped;  ///< Step and size of tensors that forward no longer keeps.
  bool rebuilt = false;                                 ///< Its recomputation has run, together with its unit's.
};

/// How far the host is ahead of the device. The host issues launches until the queue is full or an op waits for the
/// device.
class Clocks {
 public:
  void issue(const ClockStep& step, std::int32_t launches);
  void synchronise(Seconds stall);
  void host_works(Seconds time) { host_ += time; }
  /// The device waits for another rank's device.
  void device_waits(Seconds until);
  [[nodiscard]] Seconds host() const { return host_; }
  [[nodiscard]] Seconds device() const { return device_; }
  [[nodiscard]] Seconds copies() const { return copies_; }

 private:
  static constexpr std::int32_t kLaunchQueue = 1024;  // Pending launches of a stream: assumed, from practice.

  Seconds host_{}, device_{}, copies_{};
  std::deque<std::pair<Seconds, std::int32_t>> queue_;  ///< Ops not known to have ended: end time and launches.
  std::int32_t queued_ = 0;                             ///< Sum of their launches.
};

/// Replays the allocations of a piece's op lists through torch's caching allocator, tensor by tensor as the ops keep,
/// hold and need them. A block that another stream used is reusable after the host has seen that the device passed that
/// use.
class PieceReplay {
 public:
  /// `options` and `allocator` must outlive this object.
  PieceReplay(const TrainingOptions& options, CachingAllocator& allocator)
      : graph_(options.layer.cuda_graph),
        allocator_(allocator),
        side_stream_(!is_fsdp(options.step.sharding)),
        exchanges_apart_(options.pipeline.overlaps.ep_a2a),
        shared_expert_streams_(options.step.shared_expert_streams),
        waits_for_copies_(options.layer.offload_modules.contains(OffloadModule::kLayer) ||
                          options.layer.cuda_graph.impl == GraphImpl::kFullIteration) {}

  void forward(InPiece& in);
  /// Frees what forward kept. Of a unit that is recomputed at once, only the first piece's input stays.
  void drop(InPiece& in);
  /// Runs forward again, before the unit's backward.
  void rebuild(InPiece& in);
  void backward(InPiece& in);

  void begin_step();
  /// The device waits for other ranks until `since` after the begin of the step.
  void wait_until(Seconds since) { clocks_.device_waits(step_ + since); }
  void host_works(Seconds time);
  /// The host waits for the device.
  void synchronise();

 private:
  using Block = CachingAllocator::Block;
  using Working = std::vector<std::pair<Block, Bytes>>;  ///< Blocks with their requested bytes.

  /// Streams with their own memory pools: ScheduleNode in core/pipeline_parallel/utils.py and SharedExpertMLP in
  /// core/transformer/moe/shared_experts.py, Core 0.16.1. From kSharedExperts on they are torch's pool, from which
  /// layers take streams in turn.
  enum Stream : std::size_t { kCompute, kExchange, kSharedExperts };
  static constexpr std::size_t kTorchStreams = CachingAllocator::kStreams - kSharedExperts;

  void look();
  template <typename After>
  void run(InPiece& in, const std::vector<Op>& ops, const std::vector<Op>& loaded, const std::vector<ClockStep>& steps,
           std::size_t begin, std::size_t end, const After& after);
  [[nodiscard]] std::size_t stream_of(const InPiece& in, const Op& op) const;
  void needs(const InPiece& in, const Op& op, const Op& loaded, Working& working);
  void keep(InPiece& in, const Op& op, std::size_t i, std::size_t k, Bytes loaded);
  void free_from(InPiece& in, std::int32_t step);

  const CudaGraph& graph_;
  CachingAllocator& allocator_;
  bool side_stream_;      ///< Gradients are accumulated on another stream than the one that made them.
  bool exchanges_apart_;  ///< Dispatch and combine have their own stream (EP overlap).
  bool shared_expert_streams_;
  /// Whether the device waits for offloading copies, so that few are pending. It does for layers offloaded whole, and
  /// in a graph of the whole iteration, where Megatron requires a limit
  /// (fine_grained_offloading_max_inflight_offloads).
  bool waits_for_copies_;
  Clocks clocks_;
  Seconds step_{};                   ///< Begin of the step.
  Working now_;                      ///< Tensors of needs(), with their memory.
  std::set<GradientShape> dummies_;  ///< Shapes whose dummy gradient exists.
  std::vector<Bytes> missing_;
};

}  // namespace foldwise::costmodel
