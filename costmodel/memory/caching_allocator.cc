#include "costmodel/memory/caching_allocator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace foldwise::costmodel {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
// Constants of c10/cuda/CUDACachingAllocator.cpp, with its names.
constexpr std::int64_t kMinBlockSize = 512;       // Sizes are rounded up to multiples of it.
constexpr std::int64_t kSmallSize = kMiB;         // Largest "small" allocation.
constexpr std::int64_t kSmallBuffer = 2 * kMiB;   // Segment of small allocations.
constexpr std::int64_t kLargeBuffer = 20 * kMiB;  // Segment of allocations below kMinLargeAlloc.
constexpr std::int64_t kMinLargeAlloc = 10 * kMiB;
constexpr std::int64_t kRoundLarge = 2 * kMiB;

std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Expandable: begin of a pool's segment. Segments never touch.
constexpr std::int64_t kApart = std::int64_t{1} << 56;
constexpr std::int64_t segment_of(bool small, std::size_t stream) {
  return (static_cast<std::int64_t>(2 * stream) + (small ? 1 : 0)) * kApart;
}

}  // namespace

std::size_t CachingAllocator::FreeList::chunk_of(const FreePiece& piece) const {
  const auto last = chunks_.end() - 1;
  return static_cast<std::size_t>(
      std::partition_point(chunks_.begin(), last, [&](const auto& chunk) { return chunk.back() < piece; }) -
      chunks_.begin());
}

const CachingAllocator::FreePiece* CachingAllocator::FreeList::lower_bound(const FreePiece& piece) const {
  const std::vector<FreePiece>& chunk = chunks_[chunk_of(piece)];
  const auto found = std::lower_bound(chunk.begin(), chunk.end(), piece);
  return found == chunk.end() ? nullptr : &*found;
}

void CachingAllocator::FreeList::insert(const FreePiece& piece) {
  constexpr std::size_t kMost = 64;
  const std::size_t at = chunk_of(piece);
  std::vector<FreePiece>& chunk = chunks_[at];
  chunk.insert(std::lower_bound(chunk.begin(), chunk.end(), piece), piece);
  if (chunk.size() <= kMost) return;
  const auto half = chunk.begin() + kMost / 2;
  std::vector<FreePiece> upper(half, chunk.end());
  chunk.erase(half, chunk.end());
  chunks_.insert(chunks_.begin() + static_cast<std::ptrdiff_t>(at) + 1, std::move(upper));
}

void CachingAllocator::FreeList::erase(const FreePiece& piece) {
  const std::size_t at = chunk_of(piece);
  std::vector<FreePiece>& chunk = chunks_[at];
  chunk.erase(std::lower_bound(chunk.begin(), chunk.end(), piece));
  if (chunk.empty() && chunks_.size() > 1) chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(at));
}

void CachingAllocator::FreeList::change(const FreePiece& from, const FreePiece& to) {
  const std::size_t at = chunk_of(from);
  if (chunk_of(to) != at) {
    erase(from);
    insert(to);
    return;
  }
  std::vector<FreePiece>& chunk = chunks_[at];
  const auto old = std::lower_bound(chunk.begin(), chunk.end(), from);
  if (to < from) {
    const auto place = std::lower_bound(chunk.begin(), old, to);
    std::move_backward(place, old, old + 1);
    *place = to;
  } else {
    const auto place = std::lower_bound(old + 1, chunk.end(), to);
    *std::move(old + 1, place, old) = to;
  }
}

std::vector<CachingAllocator::FreePiece> CachingAllocator::FreeList::all() const {
  std::vector<FreePiece> pieces;
  for (const std::vector<FreePiece>& chunk : chunks_) pieces.insert(pieces.end(), chunk.begin(), chunk.end());
  return pieces;
}

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
  FreeList& list = pool_of(pieces_[block]).free;
  if (free)
    list.insert(entry_of(block));
  else
    list.erase(entry_of(block));
}

void CachingAllocator::set_unmapped(Block block, bool unmapped) {
  auto& list = pool_of(pieces_[block]).unmapped;
  if (unmapped)
    list.emplace(pieces_[block].address, block);
  else
    list.erase({pieces_[block].address, block});
  pieces_[block].mapped = !unmapped;
}

bool CachingAllocator::take(std::int64_t bytes) {
  if (bytes > capacity_ - reserved_) return false;
  reserved_ += bytes;
  most_reserved_ = std::max(most_reserved_, reserved_);
  return true;
}

std::optional<CachingAllocator::Block> CachingAllocator::new_segment(std::int64_t size, bool small,
                                                                     std::size_t stream) {
  const std::int64_t segment = small                   ? kSmallBuffer
                               : size < kMinLargeAlloc ? kLargeBuffer
                                                       : rounded_up(size, kRoundLarge);
  if (!take(segment)) return std::nullopt;
  const Block block = make({.address = next_address_, .size = segment, .small = small, .stream = stream});
  next_address_ += segment + kRoundLarge;  // Segments are not neighbours.
  set_free(block, true);
  return block;
}

// find_expandable_block: the lowest unmapped piece that is large enough together with the free pieces around it. The
// result is that piece, or the free piece before it.
CachingAllocator::Block CachingAllocator::place_for(std::int64_t size, bool small, std::size_t stream) {
  Pool& pool = (small ? small_ : large_)[stream];
  for (const auto& [address, unmapped] : pool.unmapped) {
    const Block first = is_free(pieces_[unmapped].previous) ? pieces_[unmapped].previous : unmapped;
    std::int64_t sum = 0;
    for (Block at = first; is_free(at) && sum < size; at = pieces_[at].next) sum += pieces_[at].size;
    if (sum >= size) return first;
  }
  const Block segment =
      make({.address = segment_of(small, stream), .size = kApart / 2, .small = small, .stream = stream});
  set_unmapped(segment, true);
  return segment;
}

// Maps the first pages of an unmapped piece. The result contains them and the free memory beside them. If the device
// runs out, pages mapped so far stay mapped.
std::optional<CachingAllocator::Block> CachingAllocator::map(Block block, std::int64_t size) {
  const std::int64_t mapped =
      std::min(rounded_up(size, pieces_[block].small ? kSmallBuffer : kLargeBuffer), pieces_[block].size);
  if (!take(mapped)) return std::nullopt;
  set_unmapped(block, false);
  if (mapped < pieces_[block].size) set_unmapped(cut(block, mapped), true);
  return join(block);
}

std::optional<CachingAllocator::Block> CachingAllocator::grown_segment(std::int64_t size, bool small,
                                                                       std::size_t stream) {
  Block block = place_for(size, small, stream);
  if (!pieces_[block].mapped) {
    const std::optional<Block> mapped = map(block, size);
    if (!mapped) return std::nullopt;
    block = *mapped;
  }
  while (pieces_[block].size < size) {
    const std::optional<Block> mapped = map(pieces_[block].next, size - pieces_[block].size);
    if (!mapped) return std::nullopt;
    block = *mapped;
  }
  return block;
}

// Cuts off what follows the first `size` bytes and returns it. It is in no list yet.
CachingAllocator::Block CachingAllocator::cut(Block block, std::int64_t size) {
  Piece rest = pieces_[block];
  rest.address += size;
  rest.size -= size;
  rest.previous = block;
  const Block tail = make(rest);
  if (rest.next != kNone) pieces_[rest.next].previous = tail;
  pieces_[block].next = tail;
  pieces_[block].size = size;
  return tail;
}

CachingAllocator::Block CachingAllocator::allocate(Bytes bytes, std::size_t stream) {
  for (; !pending_.empty() && pending_.begin()->first <= host_; pending_.erase(pending_.begin()))
    give_back(pending_.begin()->second);
  const std::int64_t size =
      std::max(kMinBlockSize, rounded_up(static_cast<std::int64_t>(std::ceil(bytes.to<double>())), kMinBlockSize));
  const bool small = size <= kSmallSize;
  const auto& free = (small ? small_ : large_)[stream].free;
  const auto grown = [&] {
    return expandable_ ? grown_segment(size, small, stream) : new_segment(size, small, stream);
  };
  const FreePiece* fit = free.lower_bound({size, std::numeric_limits<std::int64_t>::min(), Block{0}});
  std::optional<Block> found = fit != nullptr ? fit->block : grown();
  if (!found) {
    ++retries_;
    give_all_back();
    found = grown();
  }
  if (!found) {
    failure_ = {Bytes{static_cast<double>(size)}, allocated(), reserved()};
    capacity_ = kUnlimited;
    found = grown();
  }
  const Block block = *found;
  const FreePiece whole = entry_of(block);
  const std::int64_t rest = whole.size - size;
  if (small || expandable_ ? rest >= kMinBlockSize : rest > kSmallSize)
    change_free(whole, entry_of(cut(block, size)));
  else
    set_free(block, false);
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

// `from` follows `into`.
void CachingAllocator::absorb(Block from, Block into) {
  pieces_[into].size += pieces_[from].size;
  pieces_[into].next = pieces_[from].next;
  if (pieces_[from].next != kNone) pieces_[pieces_[from].next].previous = into;
  unused_.push_back(from);
}

// Joins a free mapped piece, which is in no list yet, with its free neighbours.
CachingAllocator::Block CachingAllocator::join(Block block) {
  const auto joins = [&](Block other) { return is_free(other) && pieces_[other].mapped; };
  const Block next = pieces_[block].next, previous = pieces_[block].previous;
  std::optional<FreePiece> entry;  // List entry of a neighbour, which becomes the entry of the joined piece.
  if (joins(next)) {
    if (joins(previous))
      set_free(next, false);
    else
      entry = entry_of(next);
    absorb(next, block);
  }
  if (joins(previous)) {
    entry = entry_of(previous);
    absorb(block, previous);
    block = previous;
  }
  if (entry)
    change_free(*entry, entry_of(block));
  else
    set_free(block, true);
  return block;
}

void CachingAllocator::give_back(Block block) {
  pieces_[block].used = false;
  join(block);
}

// release_cached_blocks: waits for other streams' uses. Then it gives back segments that are entirely free, or the free
// pages of expandable segments.
void CachingAllocator::give_all_back() {
  for (const auto& [done, block] : std::exchange(pending_, {})) give_back(block);
  for (auto* pools : {&large_, &small_})
    for (Pool& pool : *pools)
      for (const auto& [size, address, block] : pool.free.all()) {
        if (expandable_) {
          unmap(block);
        } else if (pieces_[block].previous == kNone && pieces_[block].next == kNone) {
          set_free(block, false);
          reserved_ -= size;
          unused_.push_back(block);
        }
      }
}

void CachingAllocator::unmap(Block block) {
  const Piece piece = pieces_[block];
  const std::int64_t page = piece.small ? kSmallBuffer : kLargeBuffer, origin = segment_of(piece.small, piece.stream),
                     offset = piece.address - origin, begin = rounded_up(offset, page),
                     end = (offset + piece.size) / page * page;
  if (end <= begin) return;
  set_free(block, false);
  reserved_ -= end - begin;
  if (end < offset + piece.size) set_free(cut(block, end - offset), true);
  if (begin > offset) {
    const Block pages = cut(block, begin - offset);
    set_free(block, true);
    block = pages;
  }
  pieces_[block].mapped = false;
  if (const Block behind = pieces_[block].next; is_free(behind) && !pieces_[behind].mapped) {
    set_unmapped(behind, false);
    absorb(behind, block);
  }
  if (const Block before = pieces_[block].previous; is_free(before) && !pieces_[before].mapped) {
    set_unmapped(before, false);
    absorb(block, before);
    block = before;
  }
  set_unmapped(block, true);
}

}  // namespace foldwise::costmodel
