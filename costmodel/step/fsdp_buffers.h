#pragma once
#include <cstdint>
#include <span>

#include "costmodel/ops/block_ops.h"
#include "costmodel/ops/memory_profile.h"

// Megatron-FSDP's buffers: parameters gathered before they are used, gradients that wait for their reduction. Source:
// megatron_fsdp.py and param_and_grad_buffer.py in megatron/core/distributed/fsdp/src/megatron_fsdp of 0.16.1, and what
// the allocator did in runs of it (docs/memory.md#fsdp-buffers).
namespace foldwise::costmodel {

/// Equal modules in sequence, in the order of forward.
struct ChunkPart {
  MemoryProfile memory;                        ///< Of one of them.
  const ParameterCount* parameters = nullptr;  ///< Likewise, on a rank, before FSDP shards them; null: none.
  std::int64_t times = 1;
  bool layer = false;  ///< A unit of FSDP: its parameters are gathered for it alone.
};

/// Profile of a chunk that consists of `parts`.
[[nodiscard]] MemoryProfile chunk_memory(std::span<const ChunkPart> parts);

struct FsdpMemory {
  MemoryProfile memory;  ///< chunk_memory, its highs with the buffers: a chunk has them only while it runs.
  Bytes buffers{};       ///< At most. The allocator reserves that besides: they are made on streams of their own.
  Bytes whole{};         ///< Parameters outside of units: gathered from a step's first micro-batch to its last.
};
/// Of a chunk, with a sharding for which shards_gradients().
[[nodiscard]] FsdpMemory fsdp_memory(const TrainingOptions& options, std::span<const ChunkPart> parts);

}  // namespace foldwise::costmodel
