#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

// Reads what the log of a training run says beside its arguments: its iterations, its memory and its GPU.
namespace foldwise::planner {

/// Measurements from the iterations of a log.
struct LogIterations {
  nlohmann::json measured;            ///< As in a run file; null: the log has no steady iteration.
  std::vector<std::string> left_out;  ///< One entry each: "iteration 10: the first that is logged".
  std::size_t steady = 0;             ///< Number of lines of which `measured` is the median.
};
/// Reads lines "iteration N/ M | ...". A steady line is not the first, has the last line's global batch and skipped no
/// step. Its time is within 20 % of the median of such lines: evaluations, checkpoints and pauses of the host raise a
/// line's average.
[[nodiscard]] LogIterations read_iterations(const std::string& text);

/// The built-in system of the GPU that the text names ("NVIDIA H100 80GB HBM3"); empty if it names none that we know.
[[nodiscard]] std::string system_in(const std::string& text);

}  // namespace foldwise::planner
