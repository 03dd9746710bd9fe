#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "costmodel/units/units.h"

namespace foldwise::costmodel {

/// What torch's caching allocator takes from the device for a sequence of allocations: best fit among
/// cached blocks, split where the rest is worth it, neighbours merged when freed, nothing ever given back.
/// Source: c10/cuda/CUDACachingAllocator.cpp, default settings (no max_split_size, no garbage collection).
class CachingAllocator {
 public:
  using Block = std::size_t;  ///< Handle of an allocation.
  static constexpr std::size_t kStreams = 3;

  /// `expandable`: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, one growing segment a pool instead of many.
  explicit CachingAllocator(bool expandable) : expandable_(expandable) {}

  /// `stream`: each has pools of its own.
  [[nodiscard]] Block allocate(Bytes bytes, std::size_t stream = 0);
  void free(Block block);
  /// Another stream has used the block (record_stream): it is there again when the device has reached `done` and the
  /// host, which looks whenever it allocates, has seen it.
  void free_after(Block block, Seconds done);
  [[nodiscard]] std::size_t stream(Block block) const { return pieces_[block].stream; }
  [[nodiscard]] Bytes size(Block block) const { return Bytes{static_cast<double>(pieces_[block].size)}; }
  /// Moves the host's clock, which starts at 0 and never goes back.
  void set_time(Seconds host) { host_ = host; }
  /// torch.cuda.memory_reserved and memory_allocated.
  [[nodiscard]] Bytes reserved() const { return Bytes{static_cast<double>(reserved_)}; }
  [[nodiscard]] Bytes allocated() const { return Bytes{static_cast<double>(allocated_)}; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Piece {
    std::int64_t address = 0, size = 0;
    std::size_t previous = kNone, next = kNone;  ///< Neighbours in the segment.
    bool used = false, small = false;
    std::size_t stream = 0;
  };
  struct Pool {
    std::set<std::tuple<std::int64_t, std::int64_t, Block>> free;  ///< By size, then address.
    Block last = kNone;                                            ///< Expandable: end of the segment.
  };

  Block make(Piece piece);
  Pool& pool_of(const Piece& piece) { return (piece.small ? small_ : large_)[piece.stream]; }
  Block new_segment(std::int64_t size, bool small, std::size_t stream);
  Block grown_segment(std::int64_t size, bool small, std::size_t stream);
  void set_free(Block block, bool free);
  void give_back(Block block);

  bool expandable_;
  std::int64_t reserved_ = 0, allocated_ = 0, next_address_ = 0;
  std::vector<Piece> pieces_;
  std::vector<Block> unused_;  ///< Entries of `pieces_` that merging has emptied.
  std::array<Pool, kStreams> small_, large_;
  Seconds host_{};
  std::multimap<Seconds, Block> pending_;  ///< Freed, but used by another stream until then.
};

}  // namespace foldwise::costmodel
