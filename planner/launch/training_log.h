#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Reads what the log of a training run says beside its arguments: its iterations, its memory and its GPU.
namespace foldwise::planner {

/// In the first and the last line of the arguments (print_args() of Megatron's training/arguments.py).
inline constexpr std::string_view kArguments = "--- arguments ---", kEndOfArguments = "--- end of arguments ---";

/// Measurements from the iterations of a start.
struct LogIterations {
  nlohmann::json measured;            ///< As in a run file; null: the log has no steady iteration.
  std::vector<std::string> left_out;  ///< "iteration 10: the first that is logged". Many of one cause are one entry.
  std::size_t steady = 0;             ///< Number of lines of which `measured` is the median.
  std::string unmeasured;             ///< Why `measured` is null although the log has iterations.
};
/// Reads lines "iteration N/ M | ..." of one start. A steady line is not the first, has `global_batch`, or if that is
/// not known the last line's, and skipped no step. Its time is within 20 % of the median of such lines: evaluations,
/// checkpoints and pauses of the host raise a line's average.
[[nodiscard]] LogIterations read_iterations(const std::string& text, std::optional<std::int64_t> global_batch);

/// Whether the line is one of an iteration.
[[nodiscard]] bool is_iteration(std::string_view line);

/// The built-in system of the GPU that the text names ("NVIDIA H100 80GB HBM3"); empty if it names none that we know.
[[nodiscard]] std::string system_in(std::string_view text);

}  // namespace foldwise::planner
