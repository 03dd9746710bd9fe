#pragma once
#include <cstdint>

// Layout of DistributedDataParallel's buffers with the distributed optimizer. They hold gradients with padding, and
// beside them the BF16 or low-precision parameters. Source: _ParamAndGradBuffer in
// megatron/core/distributed/param_and_grad_buffer.py (core_v0.16.1).
namespace foldwise::costmodel {

/// A run of equal parameter tensors.
struct TensorRun {
  std::int64_t elements = 0;  ///< Of each tensor.
  std::int64_t tensors = 1;
  bool operator==(const TensorRun&) const = default;
};

/// Elements that a tensor occupies. The next tensor starts at a multiple of 64.
[[nodiscard]] std::int64_t aligned(std::int64_t elements);

class GradientBuffer {
 public:
  /// `ranks` share the buffer. A bucket ends with the tensor that brings it to `bucket_size` elements; 0: only at the
  /// end. Its end is padded to a multiple of lcm(ranks, 128), or of lcm(ranks, 2^16) with `high_nccl_busbw`.
  GradientBuffer(std::int64_t ranks, std::int64_t bucket_size, bool high_nccl_busbw);

  /// Adds tensors. Call it in the reverse order of the model's parameters.
  void add(const TensorRun& run);
  /// Adds tensors of `elements` in all, aligned, that do not end a bucket.
  void add_within_bucket(std::int64_t elements) { next_ += elements; }
  /// Whether tensors of this many elements do not end a bucket.
  [[nodiscard]] bool within_bucket(std::int64_t elements) const {
    return bucket_size_ == 0 || next_ - bucket_start_ + elements < bucket_size_;
  }
  /// Call before and after a tensor with a bucket of its own (a shared embedding), and after the last tensor.
  void end_bucket();

  /// Whether no bucket needs padding if the aligned sizes of all tensors are multiples of `granule`.
  [[nodiscard]] bool ends_fall_on(std::int64_t granule) const { return granule % divisor_ == 0; }
  /// Elements of the buckets that have ended.
  [[nodiscard]] std::int64_t elements() const { return bucket_start_; }
  [[nodiscard]] std::int64_t buckets() const { return buckets_; }

 private:
  std::int64_t divisor_ = 0, bucket_size_;
  std::int64_t bucket_start_ = 0, next_ = 0, buckets_ = 0;
};

}  // namespace foldwise::costmodel
