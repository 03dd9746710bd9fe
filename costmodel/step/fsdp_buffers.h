#pragma once
#include <cstdint>
#include <span>

#include "costmodel/ops/block_ops.h"
#include "costmodel/ops/memory_profile.h"

// Megatron-FSDP's buffers: parameters that are gathered before use, and gradients that wait for their reduction.
// Source: megatron_fsdp.py and param_and_grad_buffer.py in megatron/core/distributed/fsdp/src/megatron_fsdp of 0.16.1
// and 0.19.0, and the allocator's behaviour in runs of them (docs/memory.md#fsdp-buffers).
namespace foldwise::costmodel {

/// Equal modules in sequence, in forward order.
struct ChunkPart {
  MemoryProfile memory;                        ///< Of one module.
  const ParameterCount* parameters = nullptr;  ///< Of one module on a rank, before FSDP shards them; null: none.
  std::int64_t times = 1;
  bool layer = false;  ///< A unit of FSDP, whose parameters are gathered separately.
};

/// Profile of a chunk that consists of `parts`.
[[nodiscard]] MemoryProfile chunk_memory(std::span<const ChunkPart> parts);

struct FsdpMemory {
  /// Profile of the chunk. Its high levels include the buffers, which a chunk has only while it runs.
  MemoryProfile memory;
  Bytes buffers{};  ///< Most at any moment. The allocator reserves it in addition, because the buffers are made on
                    ///< their own streams.
  Bytes whole{};    ///< Parameters outside units: gathered from a step's first micro-batch to its last.
  Bytes between_steps{};           ///< `whole` and the units that are gathered at the end of a step for the next one.
  double outside = 0.0;            ///< Share of the chunk's parameters outside units.
  double outside_gradients = 0.0;  ///< The same share of the trained parameters.
  double last_gather = 0.0;        ///< Share of the units' parameters that are gathered before backward may begin.
};
/// Memory of a chunk. The sharding must satisfy shards_gradients(). `transposes`: dropped_transpose_bytes().
[[nodiscard]] FsdpMemory fsdp_memory(const TrainingOptions& options, std::span<const ChunkPart> parts,
                                     double transposes = 0.0);

}  // namespace foldwise::costmodel
