#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Lists of layers as Megatron's flags take them. --moe-layer-freq, --linear-attention-freq and --window-attn-skip-freq
// take a number or a list in Python's syntax: "([0]*3+[1]*58)".
namespace foldwise::planner {

inline constexpr std::size_t kMostLayers = 16'384;  ///< The bound of the readers of models.

/// Writes the shortest period of a list, repeated: "([0]*1+[1]*1)*24".
[[nodiscard]] std::string list_text(const std::vector<bool>& layers);

/// The values of sums and products of lists of whole numbers; nothing if the text is none.
[[nodiscard]] std::optional<std::vector<std::int64_t>> list_values(std::string_view text);

}  // namespace foldwise::planner
