#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace foldwise::planner {

/// Reads counts as people write them: "4096", "4k", "128K", "1M", "500B" (G), "14.8T". `kilo` is the factor of k: 1024
/// for sequence lengths (4k is 4096, 128K 131072, 1M 1048576), 1000 for everything else: tokens of a training,
/// sequences of a step, GPUs. Nothing if the text is no such count, or is no integer in range.
[[nodiscard]] std::optional<std::int64_t> count_in(std::string_view text, int kilo);

}  // namespace foldwise::planner
