#include "costmodel/pipeline/study_schedules.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <utility>

#include "costmodel/check.h"

// Schedules from the literature that Megatron does not run; schedule.h has the sources. Each is a function from the
// shape to one rank's list.
namespace foldwise::costmodel {
namespace {

/// Builds a list. Micro-batches of each chunk and direction come in order, so kind and chunk identify a task.
class Order {
 public:
  explicit Order(std::size_t tasks) { tasks_.reserve(tasks); }
  void forward(std::int32_t chunk, bool merged = false) { add(TaskKind::kForward, chunk, forwards_, merged); }
  void backward(std::int32_t chunk) {
    add(TaskKind::kBackward, chunk, backwards_, false);
    ++weights_[static_cast<std::size_t>(chunk)];
  }
  void input_gradient(std::int32_t chunk) { add(TaskKind::kInputGradient, chunk, backwards_, false); }
  void weight_gradient(std::int32_t chunk) { add(TaskKind::kWeightGradient, chunk, weights_, false); }
  [[nodiscard]] std::int32_t forwards(std::size_t chunk) const { return forwards_[chunk]; }
  [[nodiscard]] std::int32_t backwards(std::size_t chunk) const { return backwards_[chunk]; }
  [[nodiscard]] std::int32_t weights(std::size_t chunk) const { return weights_[chunk]; }
  [[nodiscard]] std::vector<Task> take() { return std::move(tasks_); }

 private:
  using Counts = std::array<std::int32_t, 2>;
  void add(TaskKind kind, std::int32_t chunk, Counts& next, bool merged) {
    tasks_.push_back(
        {.kind = kind, .micro_batch = next[static_cast<std::size_t>(chunk)]++, .chunk = chunk, .merged = merged});
  }
  std::vector<Task> tasks_;
  Counts forwards_{}, backwards_{}, weights_{};
};

std::vector<Task> gpipe(std::int64_t m) {
  std::vector<Task> tasks;
  for (std::int64_t i = 0; i < m; ++i)
    tasks.push_back({.kind = TaskKind::kForward, .micro_batch = static_cast<std::int32_t>(i)});
  for (std::int64_t i = m; i-- > 0;)
    tasks.push_back({.kind = TaskKind::kBackward, .micro_batch = static_cast<std::int32_t>(i)});
  return tasks;
}

std::vector<Task> zb_h1(std::int64_t pp, std::int64_t m, std::int64_t rank) {
  Order order(static_cast<std::size_t>(3 * m));
  for (std::int64_t i = 0; i < std::min(pp - 1 - rank, m); ++i) order.forward(0);
  for (std::int64_t i = 0; i < m; ++i) {
    if (order.forwards(0) < m) order.forward(0);
    order.input_gradient(0);
    if (i >= rank) order.weight_gradient(0);
  }
  while (order.weights(0) < m) order.weight_gradient(0);
  return order.take();
}

std::vector<Task> zb_v(std::int64_t pp, std::int64_t micro_batches, std::int64_t rank) {
  // With fewer micro-batches than fill the pipeline, the order is that for enough, without the missing ones.
  const std::int64_t m = std::max(2 * pp - 1, micro_batches);
  Order order(static_cast<std::size_t>(6 * m));
  const auto both = [&order](std::int32_t chunk) {
    order.input_gradient(chunk);
    order.weight_gradient(chunk);
  };
  for (std::int64_t i = 0; i < 2 * (pp - rank) - 1; ++i) order.forward(0);
  for (std::int64_t i = 0; i < rank; ++i) {
    order.forward(1);
    order.forward(0);
  }
  for (std::int64_t i = 0; i < pp - rank; ++i) {
    order.forward(1);
    both(1);
  }
  while (order.forwards(1) < order.forwards(0) || order.forwards(0) < m) {
    if (order.forwards(0) < m) order.forward(0);
    both(0);
    order.forward(1);
    both(1);
  }
  for (std::int64_t i = 0; i < rank; ++i) {
    order.input_gradient(0);
    order.input_gradient(1);
  }
  for (std::int64_t i = 0; i < pp - rank; ++i) both(0);
  while (order.weights(1) < order.backwards(1)) order.weight_gradient(1);
  while (order.weights(0) < order.backwards(0)) order.weight_gradient(0);
  std::vector<Task> tasks = order.take();
  std::erase_if(tasks, [&](const Task& task) { return task.micro_batch >= micro_batches; });
  return tasks;
}

/// Steps 1 to 8 of DualPipe on `ranks` ranks, which each hold two phases. Micro-batches of `near` enter at rank 0.
/// Those of `far` come back from the last of these ranks. `m` micro-batches run through each phase.
std::vector<Task> dual_pipe(std::int64_t ranks, std::int64_t m, std::int64_t rank, std::int32_t near) {
  FW_CHECK(m >= 2 * ranks, "DualPipe needs two micro-batches a stage and direction");
  const std::int32_t far = 1 - near;
  Order order(static_cast<std::size_t>(6 * m));
  std::deque<std::int32_t> delayed;  // Chunks whose weight gradients are delayed.
  const auto split_backward = [&](std::int32_t chunk) {
    order.input_gradient(chunk);
    delayed.push_back(chunk);
  };
  const auto weights = [&] {
    order.weight_gradient(delayed.front());
    delayed.pop_front();
  };
  const std::int64_t after = ranks - rank - 1;  // Ranks between this one and the turn.
  for (std::int64_t i = 0; i < 2 * after; ++i) order.forward(near);
  for (std::int64_t i = 0; i < rank + 1; ++i) {
    order.forward(near);
    order.forward(far);
  }
  for (std::int64_t i = 0; i < after; ++i) {
    split_backward(far);
    weights();
    order.forward(far);
  }
  for (std::int64_t i = 0; i < m - 2 * ranks + rank + 1; ++i) {
    const bool overlaps = i > 0 || after > 0;  // The first pair at the turn is not merged, for a smaller bubble.
    order.forward(near, overlaps);
    order.backward(far);
    order.forward(far, true);
    order.backward(near);
  }
  for (std::int64_t i = 0; i < after; ++i) {
    order.backward(far);
    order.forward(far, true);
    order.backward(near);
  }
  bool split = false;
  const auto drain = [&](std::int32_t chunk) {
    if (split)
      split_backward(chunk);
    else
      order.backward(chunk);
  };
  for (std::int64_t i = 0; i < rank + 1; ++i) {
    const bool half = i == (rank + 1) / 2;
    split = split || (half && rank % 2 == 1);
    drain(far);
    split = split || (half && rank % 2 == 0);
    drain(near);
  }
  for (std::int64_t i = 0; i < after; ++i) {
    weights();
    split_backward(near);
  }
  while (!delayed.empty()) weights();
  return order.take();
}

}  // namespace

std::vector<Task> study_tasks(const ScheduleShape& shape, std::int64_t rank) {
  const std::int64_t m = shape.num_microbatches;
  FW_CHECK(shape.vpp == chunks_of(shape.kind, shape.vpp));
  switch (shape.kind) {
    case Schedule::kOneF1B:
      break;
    case Schedule::kGpipe:
      return gpipe(m);
    case Schedule::kZbH1:
      return zb_h1(shape.pp, m, rank);
    case Schedule::kZbV:
      return zb_v(shape.pp, m, rank);
    case Schedule::kDualPipe: {
      // The second half of the ranks mirrors the first half.
      FW_CHECK(shape.pp % 2 == 0 && m % 2 == 0);
      return dual_pipe(shape.pp / 2, m / 2, std::min(rank, shape.pp - 1 - rank), 2 * rank < shape.pp ? 0 : 1);
    }
    case Schedule::kDualPipeV:
      return dual_pipe(shape.pp, m, rank, 0);
  }
  FW_CHECK(false, "not a study schedule");
  return {};
}

}  // namespace foldwise::costmodel
