#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "costmodel/network/network.h"
#include "costmodel/parallel/options.h"
#include "costmodel/units/units.h"

// Token dispatchers of mixture-of-experts layers: one value each (ops/dispatchers/*.cc), one table.
namespace foldwise::costmodel {

class Builder;
struct MoeSizes;

/// What a rank exchanges with its experts' group: the group, tokens of a micro-batch and their width.
struct ExchangeSizes {
  GroupShape group;          ///< ETP x EP.
  double tokens = 0.0;       ///< T of one rank.
  double hidden = 0.0;       ///< Elements of a token; they travel in bf16.
  std::int64_t experts = 0;  ///< Of the model.
  double kernel_sms = 0.0;   ///< SMs that the dispatcher's kernel occupies.
};

struct DispatcherSpec {
  std::string_view name;  ///< In run files and profiles.
  std::string_view flag;  ///< What Megatron is told.
  /// --moe-token-dispatcher-type flex: a library sends a token once to a rank, which makes the copies of its experts.
  /// Otherwise the sender permutes rows, one for each of a token's experts, into the order of the experts.
  bool once_per_rank = false;
  bool sorts_chunks = false;    ///< Rows arrive by source rank and are sorted by expert; the layer holds both orders.
  bool gathers_all = false;     ///< Every rank gets all tokens of its group, in a buffer that Megatron keeps.
  bool permutes_fused = false;  ///< Whatever --moe-permute-fusion says.
  bool pads_rows = false;       ///< To the multiple of the precision recipe.
  bool needs_group = false;     ///< Of more than one rank.
  bool overlaps_micro_batches = false;   ///< --overlap-moe-expert-parallel-comm
  bool overlaps_shared_experts = false;  ///< --moe-shared-expert-overlap
  /// Ops that take tokens to the ranks of their experts (`dispatch`) or back, with their backward.
  void (*exchange)(Builder& b, const MoeSizes& z, bool dispatch) = nullptr;
  /// Device memory that the library takes beside torch's allocator, for groups above one; none: nothing.
  Bytes (*buffers)(const ExchangeSizes& sizes) = nullptr;
};
[[nodiscard]] const DispatcherSpec& dispatcher_spec(Dispatcher dispatcher);
[[nodiscard]] std::span<const DispatcherSpec> dispatcher_specs();  ///< Of all, by Dispatcher.

/// DispatcherSpec::buffers, once per rank with MoE layers. Source: docs/memory.md#dispatcher-buffers.
[[nodiscard]] Bytes exchange_buffers(Dispatcher dispatcher, const ExchangeSizes& sizes);

}  // namespace foldwise::costmodel
