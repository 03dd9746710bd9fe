#include "costmodel/step/reserved_memory.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "costmodel/memory/caching_allocator.h"
#include "costmodel/step/piece_replay.h"
#include "costmodel/step/rank_pieces.h"

// A rank reserves more than its tensors need, because free blocks do not fit the next tensors. Optimizer states, made
// at the end of the first step, take the place of activations. Expert rows change between micro-batches. Micro-batches
// of a pipeline are freed in another order than they were made. Weight gradients are pending on another stream while
// the host runs ahead of the device. So the sequence of allocations is replayed.
namespace foldwise::costmodel {
namespace {

using Block = CachingAllocator::Block;

// A parameter tensor of a rank, or the part of one that the rank's optimizer owns.
struct Parameter {
  double elements = 0.0;
  bool expert = false, quantised = false;
};

std::vector<Parameter> parameters_of(const std::vector<const PieceOps*>& chunk) {
  std::vector<Parameter> list;
  for (const PieceOps* piece : chunk)
    for (const Op& op : piece->balanced.forward)
      for (const Weight& weight : op.weights)
        list.insert(
            list.end(), static_cast<std::size_t>(weight.tensors),
            {static_cast<double>(weight.count) / static_cast<double>(weight.tensors), weight.expert, weight.quantised});
  return list;
}

// Parameters whose states the rank keeps: its share of the buffers. The buffers hold the parameters in reverse order,
// and shares are cut at the ends of parameters.
std::vector<Parameter> owned(const std::vector<Parameter>& all, const TrainingOptions& o) {
  const std::vector<Parameter> reversed(all.rbegin(), all.rend());
  const Shards shards = optimizer_shards(o);
  std::vector<Parameter> own;
  for (const bool expert : {false, true}) {
    double left = 0.0;
    for (const Parameter& parameter : all)
      if (parameter.expert == expert) left += parameter.elements;
    left /= expert ? shards.expert : shards.dense;
    for (const Parameter& parameter : reversed) {
      if (parameter.expert != expert || left < 1.0) continue;
      own.push_back(parameter);
      own.back().elements = std::min(own.back().elements, left);
      left -= own.back().elements;
    }
  }
  return own;
}

double elements_of(const std::vector<Parameter>& list) {
  double sum = 0.0;
  for (const Parameter& parameter : list) sum += parameter.elements;
  return sum;
}

// One pipeline rank, from set-up on.
class Rank {
 public:
  Rank(const Step& step, std::int64_t rank, const RankPieces& pieces, bool expandable, std::optional<Bytes> capacity)
      : context_(step.context),
        shape_(step.shape()),
        rank_(rank),
        blocks_(!step.composition.times.overlap_p2p),
        allocator_(expandable, capacity),
        replay_(context_.options, allocator_),
        random_(static_cast<std::uint64_t>(rank)),
        pieces_(pieces) {
    const TrainingOptions& o = context_.options;
    std::size_t all_pieces = 0;
    for (const std::vector<const PieceOps*>& chunk : pieces.chunks) {
      first_.push_back(all_pieces);
      all_pieces += chunk.size();
      resting_.emplace_back(chunk.size());
      const std::vector<Parameter> parameters = parameters_of(chunk);
      all_.insert(all_.end(), parameters.begin(), parameters.end());
    }
    own_ = owned(all_, o);
    boundary_ =
        Bytes{2.0 * rank_shape(context_.model, o.layer).tokens * static_cast<double>(context_.model.hidden_size)};
  }

  /// Allocates parameters tensor by tensor, then the buffers that replace them, then the FP32 masters.
  void set_up(const StaticBytes& fixed, Bytes lasting) {
    const Bytes primaries = fixed.parameters - fixed.low_precision_copies;
    const double elements = elements_of(all_);
    std::vector<Block> built;
    for (const Parameter& parameter : all_)
      built.push_back(allocator_.allocate(primaries * (parameter.elements / elements)));
    double quantised = 0.0;
    for (const Parameter& parameter : all_)
      if (parameter.quantised) quantised += parameter.elements;
    if (quantised > 0.0) copies_ = fixed.low_precision_copies * (1.0 / quantised);
    (void)allocator_.allocate(primaries);
    (void)allocator_.allocate(fixed.gradients);
    for (const Block block : built) allocator_.free(block);
    each_own(fixed.setup_optimizer, 1, states_);
    // A profile may have workspaces of zero or a few bytes. No rank has this many buffers.
    constexpr double kMostBuffers = 4096.0;
    lasting -= dummy_gradients();  // The first backward makes them.
    const Bytes each = std::max(context_.hardware.overheads.workspace, lasting / kMostBuffers);
    for (Bytes left = lasting; left > Bytes{}; left -= each) (void)allocator_.allocate(std::min(left, each));
  }

  /// `scheduled`: the rank's tasks of a step, with the time when each can begin.
  void micro_batches(const std::vector<ScheduledTask>& scheduled, double spread) {
    allocator_.reset_peak();
    replay_.begin_step();
    for (const Block copy : std::exchange(gradient_copies_, {})) allocator_.free(copy);  // zero_grad
    for (std::size_t i = 0; i < scheduled.size(); ++i) {
      const Task& task = scheduled[i].task;
      if (!task.forward() && !task.frees()) continue;  // The second half of a split backward frees.
      InChunk& run = begin(scheduled[i]);
      if (!task.merged) {
        for (std::size_t n = 0; n < run.chunk->size(); ++n) task.forward() ? forward(run, spread) : backward(run);
      } else {  // Layer by layer, with attention of one before the experts of the other.
        InChunk& other = begin(scheduled[i + 1]);
        while (run.pieces.size() < run.chunk->size() || !other.pieces.empty()) {
          if (run.pieces.size() < run.chunk->size()) forward(run, spread);
          if (!other.pieces.empty()) backward(other);
        }
        end(task);
        ++i;
      }
      end(scheduled[i].task);
    }
    for (std::optional<Block>* sent : {&sent_forward_, &sent_backward_}) release(*sent);
  }

  /// Allocates states in the first step, and in every step the step's own copies. Offloaded states come for each step
  /// and leave again.
  void optimizer_step(const StaticBytes& fixed, bool first) {
    replay_.synchronise();  // The host waits for the gradients' norm.
    each_own(fixed.gradient_copies, 1, gradient_copies_);
    if (!first && fixed.returning > Bytes{}) each_own(fixed.setup_optimizer, 1, states_);
    adam(fixed, first || fixed.returning > Bytes{});
    if (fixed.returning <= Bytes{}) return;
    for (const Block block : states_) allocator_.free(block);
    states_.clear();
  }

  [[nodiscard]] const CachingAllocator& allocator() const { return allocator_; }

 private:
  struct InChunk {
    const std::vector<const PieceOps*>* chunk = nullptr;
    const std::vector<bool>* joined = nullptr;
    std::vector<Resting>* resting = nullptr;
    std::size_t first = 0;  ///< Position of its first piece among the rank's.
    std::vector<InPiece> pieces;
    std::optional<Block> received;  ///< Input, later the output's gradient.
  };

  /// FusedAdam.step of Transformer Engine. Parameter by parameter it makes the states, if needed, then FP32 copies of
  /// what is below FP32. The copies live until the parameter group has stepped. So a parameter's states lie between its
  /// neighbours' copies. When the copies are freed, the holes are too small for any activation. Then the primaries are
  /// quantised (quantises_copies()).
  void adam(const StaticBytes& fixed, bool makes) {
    const double on_device = 1.0 - context_.options.step.offload.optimizer_fraction;
    const std::size_t copied = widened(context_.options.step.optimizer).size();
    const int tensors = fixed.setup_optimizer > Bytes{} ? 2 : 3;
    const Bytes states = fixed.optimizer + fixed.returning - fixed.setup_optimizer;
    const double elements = elements_of(own_);
    const bool apart = experts_apart(context_.options.layer);
    for (const bool expert : {false, true}) {  // Two optimizers, one after the other.
      std::vector<Block> copies;
      for (const Parameter& parameter : own_) {
        if ((parameter.expert && apart) != expert) continue;
        for (int n = 0; makes && states > Bytes{} && n < tensors; ++n)
          states_.push_back(
              allocator_.allocate(states * (parameter.elements / elements / static_cast<double>(tensors))));
        for (std::size_t n = 0; n < copied; ++n)
          copies.push_back(allocator_.allocate(Bytes{4.0 * on_device * parameter.elements}));
      }
      for (const Block block : std::exchange(copies, {})) allocator_.free(block);
      if (!quantises_copies(context_.options)) continue;
      for (const Parameter& parameter : own_)
        if (parameter.quantised && (parameter.expert && apart) == expert)
          copies.push_back(allocator_.allocate(Bytes{2.0 * on_device * parameter.elements}));
      for (const Block block : copies) allocator_.free(block);
    }
  }

  /// Dummy weight gradients that the replay makes.
  [[nodiscard]] Bytes dummy_gradients() const {
    std::set<GradientShape> shapes;
    for (const std::vector<const PieceOps*>& chunk : pieces_.chunks)
      for (const PieceOps* piece : chunk) shapes.insert(piece->dummies.begin(), piece->dummies.end());
    Bytes sum{};
    for (const GradientShape& shape : shapes) sum += bf16_bytes(shape);
    return sum;
  }

  [[nodiscard]] bool receives(const Task& task) const {
    const std::int64_t position = position_of(shape_, rank_, task.chunk);
    return hands_over(shape_, task.forward() ? position - 1 : position);
  }
  [[nodiscard]] bool sends(const Task& task) const {
    Task back = task;
    back.kind = task.forward() ? TaskKind::kBackward : TaskKind::kForward;
    return receives(back);
  }

  InChunk& begin(const ScheduledTask& scheduled) {
    const Task& task = scheduled.task;
    replay_.wait_until(Seconds{static_cast<double>(scheduled.start_ps) * 1e-12});
    replay_.host_works(context_.hardware.host.task);
    InChunk& run = in_flight_[{task.chunk, task.micro_batch}];
    if (blocks_ && receives(task)) replay_.synchronise();
    run.chunk = &pieces_.chunks[static_cast<std::size_t>(task.chunk)];
    run.joined = &pieces_.joined[static_cast<std::size_t>(task.chunk)];
    run.resting = &resting_[static_cast<std::size_t>(task.chunk)];
    run.first = first_[static_cast<std::size_t>(task.chunk)];
    if (receives(task)) run.received = allocator_.allocate(boundary_);
    return run;
  }

  void end(const Task& task) {
    InChunk& run = in_flight_[{task.chunk, task.micro_batch}];
    std::optional<Block>& sent = task.forward() ? sent_forward_ : sent_backward_;
    release(sent);
    if (sends(task)) {
      if (blocks_) replay_.synchronise();
      sent = allocator_.allocate(boundary_);
    }
    if (task.forward()) return;
    release(run.received);
    in_flight_.erase({task.chunk, task.micro_batch});
  }

  void forward(InChunk& run, double spread) {
    const std::size_t i = run.pieces.size();
    InPiece& in = run.pieces.emplace_back();
    in.piece = (*run.chunk)[i];
    in.resting = &(*run.resting)[i];
    in.position = run.first + i;
    if (in.piece->experts) in.excess = spread * normal_(random_);
    if (converted_.insert(in.resting).second && copies_ > Bytes{})  // From now on there are two layouts of each weight.
      for (const Parameter& parameter : parameters_of({in.piece}))
        for (int layout = 0; parameter.quantised && layout < 2; ++layout)
          (void)allocator_.allocate(0.5 * parameter.elements * copies_);
    if (i == 0) in.received = std::exchange(run.received, std::nullopt);
    replay_.host_works(in.piece->nodes);
    replay_.forward(in);
    if ((*run.joined)[i]) replay_.drop(in);
    if (in.received) allocator_.free(*std::exchange(in.received, std::nullopt));
  }

  void backward(InChunk& run) {
    std::size_t first = run.pieces.size() - 1;
    if (!run.pieces.back().rebuilt)
      while ((*run.joined)[first]) --first;
    if (first + 1 < run.pieces.size())
      for (; first < run.pieces.size(); ++first) replay_.rebuild(run.pieces[first]);
    replay_.host_works(run.pieces.back().piece->nodes);
    replay_.backward(run.pieces.back());
    run.pieces.pop_back();
  }

  void release(std::optional<Block>& block) {
    if (block) allocator_.free(*std::exchange(block, std::nullopt));
  }

  void each_own(Bytes bytes, int tensors, std::vector<Block>& blocks) {
    if (bytes <= Bytes{}) return;
    const double elements = elements_of(own_);
    for (const Parameter& parameter : own_)
      for (int i = 0; i < tensors; ++i)
        blocks.push_back(allocator_.allocate(bytes * (parameter.elements / elements / static_cast<double>(tensors))));
  }

  const StepContext& context_;
  ScheduleShape shape_;
  std::int64_t rank_;
  bool blocks_;  ///< The host waits for the device at every transfer between stages.
  CachingAllocator allocator_;
  PieceReplay replay_;
  std::mt19937_64 random_;
  std::normal_distribution<double> normal_;
  const RankPieces& pieces_;
  std::vector<Block> states_;                  ///< The optimizer's states on the device.
  std::vector<Block> gradient_copies_;         ///< FP32 copies of BF16 gradients.
  std::vector<std::vector<Resting>> resting_;  ///< [chunk][piece]
  std::vector<std::size_t> first_;             ///< [chunk]: position of its first piece among the rank's.
  std::vector<Parameter> all_, own_;
  Bytes boundary_{};
  Bytes copies_{};                      ///< Bytes per element of the low-precision copies.
  std::set<const Resting*> converted_;  ///< Pieces whose weights have low-precision copies.
  std::map<std::pair<std::int32_t, std::int32_t>, InChunk> in_flight_;  ///< By chunk and micro-batch.
  std::optional<Block> sent_forward_, sent_backward_;                   ///< Freed when the next one is sent.
};

constexpr double kMostReplayedOps = 5e6;  // Takes seconds; 0.3 to 2 us each.

/// The second step finds the states of the first. After that all steps allocate alike, except for the experts' rows,
/// which reach ever larger values: ten steps, or fewer if the micro-batches draw 80 rows per layer.
int replayed_steps(double micro_batches, double spread) {
  constexpr double kLeast = 3.0, kMost = 10.0, kDraws = 80.0;
  return static_cast<int>(spread > 0.0 ? std::clamp(std::ceil(kDraws / micro_batches), kLeast, kMost) : kLeast);
}

struct Outcome {
  Bytes reserved{};  ///< Peak of the last step, or of the step that ran out of memory.
  MemoryPressure pressure;
};

/// The first step makes the tensors that rest, and the second finds them. If the last step still gives memory back,
/// further steps show whether that ends.
Outcome steps_of(Rank& rank, const std::vector<ScheduledTask>& tasks, const StaticBytes& fixed, double spread,
                 int steps) {
  constexpr int kSettled = 2, kMore = 3;
  int pressed = 0, settled = 0;  // Steps that gave memory back, and steps counted, after the first ones.
  Outcome outcome;
  for (int n = 0, last = steps; n < last; ++n) {
    const int before = rank.allocator().retries();
    rank.micro_batches(tasks, spread);
    rank.optimizer_step(fixed, n == 0);
    outcome.reserved = rank.allocator().most_reserved();
    outcome.pressure.retries = rank.allocator().retries();
    if (const auto& failure = rank.allocator().failure()) {
      outcome.pressure.out_of_memory = {n + 1, failure->wanted, failure->allocated, failure->reserved};
      outcome.reserved = failure->reserved;
      return outcome;
    }
    if (n < kSettled) continue;
    ++settled;
    pressed += outcome.pressure.retries > before ? 1 : 0;
    if (n + 1 == steps && outcome.pressure.retries > before) last += kMore;
  }
  outcome.pressure.every_step = 2 * pressed > settled;
  return outcome;
}

/// Timelines of the schedule that the ranks replay. Micro-batches that only repeat earlier ones are left out, so that
/// few numbers of micro-batches are simulated.
class Timelines {
 public:
  explicit Timelines(const PipelineTimes& times) : times_(times) {
    for (std::int64_t rank = 0; rank < times.shape.pp; ++rank) simulated_.try_emplace(shape(rank).num_microbatches);
  }

  [[nodiscard]] ScheduleShape shape(std::int64_t rank) const { return without_repeats(times_.shape, rank); }
  /// Number of tasks that simulate() computes.
  [[nodiscard]] double tasks() const {
    double sum = 0.0;
    for (const auto& entry : simulated_)
      sum += 2.0 * static_cast<double>(times_.shape.pp * times_.shape.vpp * entry.first);
    return sum;
  }
  void simulate() {
    PipelineTimes times = times_;
    for (auto& [microbatches, timeline] : simulated_) {
      times.shape.num_microbatches = microbatches;
      timeline = costmodel::simulate(times);
    }
  }
  [[nodiscard]] const std::vector<ScheduledTask>& of(std::int64_t rank) const {
    return simulated_.at(shape(rank).num_microbatches).ranks[static_cast<std::size_t>(rank)];
  }

 private:
  const PipelineTimes& times_;
  std::map<std::int64_t, Timeline> simulated_;  ///< By number of micro-batches.
};

/// Number of ops that are replayed for both allocators of all ranks.
double replayed_ops(const Timelines& timelines, const std::vector<RankPieces>& ranks, double spread) {
  double sum = 0.0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto micro_batches =
        static_cast<double>(chunk_microbatches(timelines.shape(static_cast<std::int64_t>(rank))));
    const double replays = 2.0 * replayed_steps(micro_batches, spread) * micro_batches;
    for (const std::vector<const PieceOps*>& chunk : ranks[rank].chunks)
      for (const PieceOps* piece : chunk)
        sum += replays * static_cast<double>(piece->balanced.forward.size() + piece->balanced.backward.size());
  }
  return sum;
}

/// Fills `memory`, which is the rank's.
void replay_rank(const Step& step, std::size_t rank, const RankPieces& pieces, const Timelines& timelines,
                 double spread, const ReplayOptions& options, StageMemory& memory) {
  const StaticBytes fixed = static_bytes(step.context, step.composition.parameters[rank]);
  const auto index = static_cast<std::int64_t>(rank);
  const std::vector<ScheduledTask>& tasks = timelines.of(index);
  const int steps = replayed_steps(static_cast<double>(chunk_microbatches(timelines.shape(index))), spread);
  Bytes fsdp{};
  for (std::size_t i = rank; i < step.composition.num_stages(); i += static_cast<std::size_t>(step.shape().pp))
    fsdp = std::max(fsdp, step.composition.stage(i).fsdp_buffers);
  const auto replayed = [&](bool expandable, std::optional<Bytes> capacity) {
    Rank replay(step, index, pieces, expandable, capacity);
    replay.set_up(fixed, memory.lasting_buffers + fsdp);
    return steps_of(replay, tasks, fixed, spread, steps);
  };
  const Bytes capacity =
      std::max(Bytes{}, options.share * step.context.hardware.hbm_capacity - memory.outside() - memory.graph_pools);
  const Outcome run = replayed(true, capacity);
  memory.pressure = run.pressure;
  memory.pressure.unlimited =
      (run.pressure.retries > 0 ? replayed(true, {}).reserved : run.reserved) + memory.graph_pools;
  memory.reserved.expandable = run.reserved + memory.graph_pools;
  if (!options.segments) return;
  const Outcome plain = replayed(false, capacity);
  memory.reserved.segments = plain.reserved + memory.graph_pools;
  memory.reserved.segments_run_out = plain.pressure.out_of_memory.has_value();
}

}  // namespace

bool add_reserved(const Step& step, Prediction& prediction, const ReplayOptions& options) {
  const double spread = row_spread(step.context.model, step.context.options.layer);
  Pieces pieces(step);
  std::vector<RankPieces> ranks;
  for (std::size_t rank = 0; rank < prediction.memory.size(); ++rank)
    ranks.push_back(pieces_of(step, static_cast<std::int64_t>(rank), pieces));
  Timelines timelines(step.composition.times);
  if (timelines.tasks() + replayed_ops(timelines, ranks, spread) > kMostReplayedOps) return false;
  timelines.simulate();
  std::vector<std::size_t> order(ranks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (options.only_whether_it_fits)
    std::ranges::stable_sort(order, std::ranges::greater{},
                             [&](std::size_t rank) { return prediction.memory[rank].total(); });
  std::atomic<bool> enough = false;
  const auto replay = [&](std::size_t i) {
    if (enough) return;
    StageMemory& memory = prediction.memory[order[i]];
    replay_rank(step, order[i], ranks[order[i]], timelines, spread, options, memory);
    if (options.only_whether_it_fits && memory.pressure.out_of_memory) enough = true;
  };
  if (options.each)
    options.each(ranks.size(), replay);
  else
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) replay(rank);
  for (const StageMemory& memory : prediction.memory)
    prediction.fits = prediction.fits && !memory.pressure.out_of_memory;
  return true;
}

}  // namespace foldwise::costmodel
