#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "costmodel/network/network.h"
#include "costmodel/parallel/options.h"
#include "costmodel/units/units.h"

// Token dispatchers of mixture-of-experts layers: one table with a row for each (ops/dispatchers/*.cc).
namespace foldwise::costmodel {

class Builder;
struct MoeSizes;

/// Sizes of a rank's exchange with its experts' group.
struct ExchangeSizes {
  GroupShape group;          ///< The ETP x EP group.
  double tokens = 0.0;       ///< T of one rank, per micro-batch.
  double hidden = 0.0;       ///< Elements per token; they travel in BF16.
  std::int64_t experts = 0;  ///< Of the whole model.
  double kernel_sms = 0.0;   ///< SMs that the dispatcher's kernel occupies.
};

struct DispatcherSpec {
  std::string_view name;  ///< Name in run files and profiles.
  std::string_view flag;  ///< Megatron's arguments.
  /// --moe-token-dispatcher-type flex: a library sends a token once to each rank, and the rank makes the copies for its
  /// experts. Otherwise the sender permutes one row for each of a token's experts into the order of the experts.
  bool once_per_rank = false;
  /// Rows arrive by source rank and are then sorted by expert. The layer holds both orders.
  bool sorts_chunks = false;
  bool gathers_all = false;              ///< Every rank gets all tokens of its group, in a buffer that Megatron keeps.
  bool permutes_fused = false;           ///< Fuses permutation, whatever --moe-permute-fusion is.
  bool pads_rows = false;                ///< Pads rows to the recipe's multiple.
  bool needs_group = false;              ///< Needs a group of several ranks.
  bool overlaps_micro_batches = false;   ///< --overlap-moe-expert-parallel-comm
  bool overlaps_shared_experts = false;  ///< --moe-shared-expert-overlap
  /// Adds the ops that take tokens to the ranks of their experts (`dispatch`) or back, with their backward.
  void (*exchange)(Builder& b, const MoeSizes& z, bool dispatch) = nullptr;
  /// Device memory of the library outside torch's allocator, for groups of several ranks; nullptr: none.
  Bytes (*buffers)(const ExchangeSizes& sizes) = nullptr;
};
[[nodiscard]] const DispatcherSpec& dispatcher_spec(Dispatcher dispatcher);
[[nodiscard]] std::span<const DispatcherSpec> dispatcher_specs();  ///< By Dispatcher.

/// DispatcherSpec::buffers, once per rank with MoE layers. Source: docs/memory.md#dispatcher-buffers.
[[nodiscard]] Bytes exchange_buffers(Dispatcher dispatcher, const ExchangeSizes& sizes);

}  // namespace foldwise::costmodel
