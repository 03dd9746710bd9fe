#pragma once
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "costmodel/units/units.h"

namespace foldwise::costmodel {

/// Granularity in which large allocations take memory from the device and return it, with expandable segments.
inline constexpr Bytes kExpandablePage{20.0 * 1048576.0};

/// Model of torch's caching allocator: memory that it takes from the device for a sequence of allocations. It uses the
/// best fit among cached blocks, splits a block if the rest is large enough, and merges neighbours when they are freed.
/// If the device has no more memory, cached blocks go back to it and the allocation is tried once more. Source:
/// c10/cuda/CUDACachingAllocator.cpp, default settings (no max_split_size, no garbage collection).
class CachingAllocator {
 public:
  using Block = std::size_t;                   ///< Handle of an allocation.
  static constexpr std::size_t kStreams = 34;  ///< The compute stream, one for exchanges, and a pool of torch (32).

  /// `expandable`: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, one growing segment per pool. `capacity`: device
  /// memory available to torch.
  explicit CachingAllocator(bool expandable, std::optional<Bytes> capacity = {})
      : expandable_(expandable), capacity_(capacity ? static_cast<std::int64_t>(capacity->to<double>()) : kUnlimited) {}

  /// Each stream has its own pools.
  [[nodiscard]] Block allocate(Bytes bytes, std::size_t stream = 0);
  void free(Block block);
  /// Frees a block that another stream has used (record_stream). The block is reusable after the device has reached
  /// `done` and the host has noticed it; the host checks at every allocation.
  void free_after(Block block, Seconds done);
  [[nodiscard]] std::size_t stream(Block block) const { return pieces_[block].stream; }
  [[nodiscard]] Bytes size(Block block) const { return Bytes{static_cast<double>(pieces_[block].size)}; }
  /// Moves the host's clock, which starts at 0 and never goes back.
  void set_time(Seconds host) { host_ = host; }
  /// torch.cuda.memory_reserved and memory_allocated.
  [[nodiscard]] Bytes reserved() const { return Bytes{static_cast<double>(reserved_)}; }
  [[nodiscard]] Bytes allocated() const { return Bytes{static_cast<double>(allocated_)}; }
  /// torch.cuda.max_memory_reserved since reset_peak(), which is torch.cuda.reset_peak_memory_stats.
  [[nodiscard]] Bytes most_reserved() const { return Bytes{static_cast<double>(most_reserved_)}; }
  void reset_peak() { most_reserved_ = reserved_; }
  /// Number of times that cached memory was given back: torch's num_alloc_retries.
  [[nodiscard]] int retries() const { return retries_; }

  /// An allocation that failed even after cached memory was given back.
  struct Failure {
    Bytes wanted{}, allocated{}, reserved{};
  };
  /// The first failure. After it the model continues as if the device were unlimited.
  [[nodiscard]] const std::optional<Failure>& failure() const { return failure_; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  static constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
  struct Piece {
    std::int64_t address = 0, size = 0;
    std::size_t previous = kNone, next = kNone;  ///< Neighbours in the segment.
    bool used = false, small = false;
    bool mapped = true;  ///< Backed by memory. The end of an expandable segment and pages given back are not.
    std::size_t stream = 0;
  };
  struct FreePiece {
    std::int64_t size, address;
    Block block;
    bool operator<(const FreePiece& other) const {
      return size != other.size ? size < other.size : address < other.address;
    }
  };
  /// Free pieces in ascending order. They change with every op, and there may be thousands: chunks of a bounded size
  /// are faster than a tree where there are few, and than one vector where there are many.
  class FreeList {
   public:
    /// The first piece that is not less; null if there is none.
    [[nodiscard]] const FreePiece* lower_bound(const FreePiece& piece) const;
    void insert(const FreePiece& piece);
    void erase(const FreePiece& piece);
    void change(const FreePiece& from, const FreePiece& to);
    [[nodiscard]] std::vector<FreePiece> all() const;

   private:
    /// The chunk in which the piece belongs.
    [[nodiscard]] std::size_t chunk_of(const FreePiece& piece) const;
    std::vector<std::vector<FreePiece>> chunks_{1};  ///< Only a chunk that is alone may be empty.
  };
  struct Pool {
    FreeList free;                                      ///< Mapped pieces.
    std::set<std::pair<std::int64_t, Block>> unmapped;  ///< By address.
  };

  Block make(Piece piece);
  Pool& pool_of(const Piece& piece) { return (piece.small ? small_ : large_)[piece.stream]; }
  [[nodiscard]] bool is_free(Block block) const { return block != kNone && !pieces_[block].used; }
  /// Takes memory from the device; false if it does not have that much.
  bool take(std::int64_t bytes);
  /// A free block of at least `size` bytes; nothing if the device has no room for it.
  std::optional<Block> new_segment(std::int64_t size, bool small, std::size_t stream);
  std::optional<Block> grown_segment(std::int64_t size, bool small, std::size_t stream);
  /// The place in an expandable segment with `size` bytes of free pieces, mapped or not.
  Block place_for(std::int64_t size, bool small, std::size_t stream);
  std::optional<Block> map(Block block, std::int64_t size);
  [[nodiscard]] FreePiece entry_of(Block block) const { return {pieces_[block].size, pieces_[block].address, block}; }
  void set_free(Block block, bool free);
  /// Replaces a free piece by another one of its pool.
  void change_free(const FreePiece& from, const FreePiece& to) { pool_of(pieces_[to.block]).free.change(from, to); }
  void set_unmapped(Block block, bool unmapped);
  Block cut(Block block, std::int64_t size);
  void absorb(Block from, Block into);
  Block join(Block block);
  void give_back(Block block);
  void give_all_back();
  void unmap(Block block);

  bool expandable_;
  std::int64_t capacity_;
  std::int64_t reserved_ = 0, allocated_ = 0, most_reserved_ = 0, next_address_ = 0;
  int retries_ = 0;
  std::optional<Failure> failure_;
  std::vector<Piece> pieces_;
  std::vector<Block> unused_;  ///< Indices of `pieces_` that merging has emptied.
  std::array<Pool, kStreams> small_, large_;
  Seconds host_{};
  std::multimap<Seconds, Block> pending_;  ///< Freed, but in use by another stream until then.
};

}  // namespace foldwise::costmodel
