#include "costmodel/memory/gradient_buffer.h"

#include <algorithm>

namespace foldwise::costmodel {
namespace {

constexpr std::int64_t kTensorAlignment = 64, kBucketAlignment = 128, kHighBusBandwidth = 1 << 16;  // Elements.

std::int64_t ceiling(std::int64_t value, std::int64_t divisor) { return (value + divisor - 1) / divisor; }

}  // namespace

std::int64_t aligned(std::int64_t elements) { return ceiling(elements, kTensorAlignment) * kTensorAlignment; }

GradientBuffer::GradientBuffer(std::int64_t ranks, std::int64_t bucket_size, bool high_nccl_busbw)
    : bucket_size_(bucket_size) {
  const std::int64_t even = ranks & -ranks;  // Largest power of two that divides it.
  divisor_ = ranks / even * std::max(even, high_nccl_busbw ? kHighBusBandwidth : kBucketAlignment);
}

void GradientBuffer::add(const TensorRun& run) {
  if (run.elements <= 0) return;
  const std::int64_t each = aligned(run.elements);
  if (within_bucket(run.tensors * each)) return add_within_bucket(run.tensors * each);
  // Number of tensors that fill a bucket with `used` elements. The last one counts without its alignment.
  const auto filling = [&](std::int64_t used) {
    return 1 + ceiling(std::max<std::int64_t>(0, bucket_size_ - used - run.elements), each);
  };
  std::int64_t left = run.tensors;
  if (const std::int64_t first = filling(next_ - bucket_start_); first <= left) {
    next_ += first * each;
    left -= first;
    end_bucket();
    const std::int64_t others = filling(0), full = left / others;  // All these buckets are alike.
    next_ = bucket_start_ += full * (ceiling(others * each, divisor_) * divisor_);
    buckets_ += full;
    left -= full * others;
  }
  next_ += left * each;
}

void GradientBuffer::end_bucket() {
  if (next_ == bucket_start_) return;
  next_ = bucket_start_ = ceiling(next_, divisor_) * divisor_;
  ++buckets_;
}

}  // namespace foldwise::costmodel
