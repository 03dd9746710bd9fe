#pragma once
#include <string>
#include <string_view>

namespace foldwise::planner {

/// `text` as it may stand in SVG and HTML, between tags and in quotes.
[[nodiscard]] std::string escaped(std::string_view text);

}  // namespace foldwise::planner
