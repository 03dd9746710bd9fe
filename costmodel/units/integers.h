#pragma once
#include <cstdint>

namespace foldwise::costmodel {

/// a / b rounded up: the number of pieces of size `b` that hold `a`. Both are positive.
[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace foldwise::costmodel
