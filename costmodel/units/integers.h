#pragma once
#include <cstdint>

namespace foldwise::costmodel {

/// The quotient rounded up: pieces of `b` that hold `a`, both positive.
[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace foldwise::costmodel
