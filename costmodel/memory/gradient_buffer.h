#pragma once
#include <cstdint>

// Layout of a buffer of DistributedDataParallel with the distributed optimizer: gradients, and the bf16 or
// low-precision parameters beside them, lie in it with padding. Source: _ParamAndGradBuffer in
// megatron/core/distributed/param_and_grad_buffer.py (core_v0.16.1).
namespace foldwise::costmodel {

/// Equal parameter tensors that follow each other.
struct TensorRun {
  std::int64_t elements = 0;  ///< Of each.
  std::int64_t tensors = 1;
  bool operator==(const TensorRun&) const = default;
};

/// Elements that a tensor takes: the next one starts at a multiple of 64.
[[nodiscard]] std::int64_t aligned(std::int64_t elements);

class GradientBuffer {
 public:
  /// `ranks` share it. A bucket ends with the tensor that brings it to `bucket_size` elements; 0: never. Its end is
  /// padded to a multiple of lcm(ranks, 128), with `high_nccl_busbw` of lcm(ranks, 2^16).
  GradientBuffer(std::int64_t ranks, std::int64_t bucket_size, bool high_nccl_busbw);

  /// In the reverse order of the model's parameters.
  void add(const TensorRun& run);
  /// Tensors of `elements` in all, aligned, that do not end a bucket.
  void add_within_bucket(std::int64_t elements) { next_ += elements; }
  /// Whether that is so for tensors of as many.
  [[nodiscard]] bool within_bucket(std::int64_t elements) const {
    return bucket_size_ == 0 || next_ - bucket_start_ + elements < bucket_size_;
  }
  /// Before and after a tensor with a bucket of its own (a shared embedding), and after the last one.
  void end_bucket();

  /// Whether no bucket of tensors whose aligned sizes are multiples of `granule` needs padding at its end.
  [[nodiscard]] bool ends_fall_on(std::int64_t granule) const { return granule % divisor_ == 0; }
  /// Of the buckets that have ended.
  [[nodiscard]] std::int64_t elements() const { return bucket_start_; }
  [[nodiscard]] std::int64_t buckets() const { return buckets_; }

 private:
  std::int64_t divisor_ = 0, bucket_size_;
  std::int64_t bucket_start_ = 0, next_ = 0, buckets_ = 0;
};

}  // namespace foldwise::costmodel
