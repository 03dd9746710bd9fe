#include "costmodel/memory/caching_allocator.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace foldwise::costmodel {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
// Constants of c10/cuda/CUDACachingAllocator.cpp under their names there.
constexpr std::int64_t kMinBlockSize = 512;       // Sizes are rounded to multiples of it.
constexpr std::int64_t kSmallSize = kMiB;         // Largest "small" allocation.
constexpr std::int64_t kSmallBuffer = 2 * kMiB;   // Segment of small allocations.
constexpr std::int64_t kLargeBuffer = 20 * kMiB;  // Segment of allocations below kMinLargeAlloc.
constexpr std::int64_t kMinLargeAlloc = 10 * kMiB;
constexpr std::int64_t kRoundLarge = 2 * kMiB;

std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

CachingAllocator::Block CachingAllocator::make(Piece piece) {
  if (unused_.empty()) {
    pieces_.push_back(piece);
    return pieces_.size() - 1;
  }
  const Block block = unused_.back();
  unused_.pop_back();
  pieces_[block] = piece;
  return block;
}

void CachingAllocator::set_free(Block block, bool free) {
  const Piece& piece = pieces_[block];
  auto& list = pool_of(piece).free;
  if (free)
    list.emplace(piece.size, piece.address, block);
  else
    list.erase({piece.size, piece.address, block});
}

CachingAllocator::Block CachingAllocator::new_segment(std::int64_t size, bool small, std::size_t stream) {
  const std::int64_t segment = small                   ? kSmallBuffer
                               : size < kMinLargeAlloc ? kLargeBuffer
                                                       : rounded_up(size, kRoundLarge);
  reserved_ += segment;
  const Block block = make({.address = next_address_, .size = segment, .small = small, .stream = stream});
  next_address_ += segment + kRoundLarge;  // Segments are not neighbours.
  set_free(block, true);
  return block;
}

// The free end of the segment, mapped until it holds `size`.
CachingAllocator::Block CachingAllocator::grown_segment(std::int64_t size, bool small, std::size_t stream) {
  Pool& pool = (small ? small_ : large_)[stream];
  constexpr std::int64_t kApart = std::int64_t{1} << 50;  // The pools' address ranges do not meet.
  const bool ends_free = pool.last != kNone && !pieces_[pool.last].used;
  if (ends_free) set_free(pool.last, false);
  const std::int64_t missing = size - (ends_free ? pieces_[pool.last].size : 0);
  const std::int64_t mapped = rounded_up(missing, small ? kSmallBuffer : kLargeBuffer);
  reserved_ += mapped;
  if (ends_free) {
    pieces_[pool.last].size += mapped;
  } else {
    const Block before = pool.last;
    const std::int64_t address = before == kNone ? (small ? kApart : 0) + static_cast<std::int64_t>(2 * stream) * kApart
                                                 : pieces_[before].address + pieces_[before].size;
    pool.last = make({.address = address, .size = mapped, .previous = before, .small = small, .stream = stream});
    if (before != kNone) pieces_[before].next = pool.last;
  }
  set_free(pool.last, true);
  return pool.last;
}

CachingAllocator::Block CachingAllocator::allocate(Bytes bytes, std::size_t stream) {
  for (; !pending_.empty() && pending_.begin()->first <= host_; pending_.erase(pending_.begin()))
    give_back(pending_.begin()->second);
  const std::int64_t size =
      std::max(kMinBlockSize, rounded_up(static_cast<std::int64_t>(std::ceil(bytes.to<double>())), kMinBlockSize));
  const bool small = size <= kSmallSize;
  Pool& pool = (small ? small_ : large_)[stream];
  const auto fit = pool.free.lower_bound({size, std::numeric_limits<std::int64_t>::min(), Block{0}});
  const Block block = fit != pool.free.end() ? std::get<Block>(*fit)
                      : expandable_          ? grown_segment(size, small, stream)
                                             : new_segment(size, small, stream);
  set_free(block, false);
  const std::int64_t rest = pieces_[block].size - size;
  if (small || expandable_ ? rest >= kMinBlockSize : rest > kSmallSize) {
    const Block tail = make({.address = pieces_[block].address + size,
                             .size = rest,
                             .previous = block,
                             .next = pieces_[block].next,
                             .small = small,
                             .stream = stream});
    if (pieces_[tail].next != kNone) pieces_[pieces_[tail].next].previous = tail;
    if (pool.last == block) pool.last = tail;
    pieces_[block].next = tail;
    pieces_[block].size = size;
    set_free(tail, true);
  }
  pieces_[block].used = true;
  allocated_ += pieces_[block].size;
  return block;
}

void CachingAllocator::free(Block block) {
  allocated_ -= pieces_[block].size;
  give_back(block);
}

void CachingAllocator::free_after(Block block, Seconds done) {
  allocated_ -= pieces_[block].size;
  pending_.emplace(done, block);
}

void CachingAllocator::give_back(Block block) {
  pieces_[block].used = false;
  Pool& pool = pool_of(pieces_[block]);
  const auto absorb = [&](Block from, Block into) {  // `from` follows `into`.
    pieces_[into].size += pieces_[from].size;
    pieces_[into].next = pieces_[from].next;
    if (pieces_[from].next != kNone) pieces_[pieces_[from].next].previous = into;
    if (pool.last == from) pool.last = into;
    unused_.push_back(from);
  };
  if (const Block next = pieces_[block].next; next != kNone && !pieces_[next].used) {
    set_free(next, false);
    absorb(next, block);
  }
  if (const Block previous = pieces_[block].previous; previous != kNone && !pieces_[previous].used) {
    set_free(previous, false);
    absorb(block, previous);
    block = previous;
  }
  set_free(block, true);
}

}  // namespace foldwise::costmodel
