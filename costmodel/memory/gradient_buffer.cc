#include "costmodel/memory/gradient_buffer.h"

#include <algorithm>
#include <numeric>

namespace foldwise::costmodel {
namespace {

constexpr std::int64_t kTensorAlignment = 64, kBucketAlignment = 128, kHighBusBandwidth = 1 << 16;  // Elements.

std::int64_t ceiling(std::int64_t value, std::int64_t divisor) { return (value + divisor - 1) / divisor; }

}  // namespace

std::int64_t aligned(std::int64_t elements) { return ceiling(elements, kTensorAlignment) * kTensorAlignment; }

GradientBuffer::GradientBuffer(std::int64_t ranks, std::int64_t bucket_size, bool high_nccl_busbw)
    : divisor_(std::lcm(ranks, high_nccl_busbw ? kHighBusBandwidth : kBucketAlignment)), bucket_size_(bucket_size) {}

void GradientBuffer::add(const TensorRun& run) {
  if (run.elements <= 0) return;
  const std::int64_t each = aligned(run.elements);
  for (std::int64_t left = run.tensors; left > 0;) {
    const std::int64_t missing = bucket_size_ - (next_ - bucket_start_) - run.elements;
    const std::int64_t filling = missing <= 0 ? 1 : 1 + ceiling(missing, each);  // Tensors until the bucket is full.
    const bool fills = bucket_size_ > 0 && filling <= left;
    const std::int64_t now = fills ? filling : left;
    next_ += now * each;
    left -= now;
    if (fills) end_bucket();
  }
}

void GradientBuffer::end_bucket() {
  if (next_ == bucket_start_) return;
  next_ = bucket_start_ = ceiling(next_, divisor_) * divisor_;
  ++buckets_;
}

}  // namespace foldwise::costmodel
