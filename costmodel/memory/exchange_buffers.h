#pragma once
#include <cstdint>

#include "costmodel/network/network.h"
#include "costmodel/parallel/options.h"
#include "costmodel/units/units.h"

namespace foldwise::costmodel {

/// What a rank exchanges with its experts' group: the group, tokens of a micro-batch and their width.
struct ExchangeSizes {
  GroupShape group;          ///< ETP x EP.
  double tokens = 0.0;       ///< T of one rank.
  double hidden = 0.0;       ///< Elements of a token; they travel in bf16.
  std::int64_t experts = 0;  ///< Of the model.
  double deep_ep_sms = 0.0;  ///< DeepEP has a channel for two of them.
};

/// Device memory that DeepEP or HybridEP take beside torch's allocator, once per rank with MoE layers; zero with the
/// other dispatchers. Source: docs/memory.md#dispatcher-buffers.
[[nodiscard]] Bytes exchange_buffers(Dispatcher dispatcher, const ExchangeSizes& sizes);

}  // namespace foldwise::costmodel
