#pragma once
#include <string>
#include <string_view>

namespace foldwise::planner {

/// `text` escaped for SVG and HTML, in text and in quoted attributes.
[[nodiscard]] std::string escaped(std::string_view text);

}  // namespace foldwise::planner
