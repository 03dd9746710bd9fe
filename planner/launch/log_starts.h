#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// The starts of a training in one log. A job that Slurm requeues appends to the log of the start before.
namespace foldwise::planner {

/// What one start printed. Parts of the log's text.
struct LogStart {
  std::string_view text{};    ///< From its line "---- arguments ----" up to that of the next start.
  std::string_view before{};  ///< What was printed before, since the last iteration of the start before.
  int lines_before = 0;       ///< Lines of the log before `text`.
  bool complete = false;      ///< The arguments have their end.
  bool iterations = false;    ///< `text` has lines of iterations.
  std::size_t number = 1;     ///< Counted from 1.

  [[nodiscard]] int line() const { return lines_before + 1; }
};
/// Every start whose log has arguments, in order.
[[nodiscard]] std::vector<LogStart> starts_in(std::string_view text);

/// The start to read: `wanted`, counted from 1, or for 0 the last complete one that has iterations, else the last
/// complete one, else the last. Null: there are fewer than `wanted`.
[[nodiscard]] const LogStart* start_to_read(const std::vector<LogStart>& starts, std::int64_t wanted);

/// The built-in system of the GPU that this start names, or else of the first one that the log names; empty if it names
/// none that we know.
[[nodiscard]] std::string system_in(const LogStart& start, std::string_view log);

/// The unpadded size in the line " > padded vocab (size: 151643) with 37 dummy tokens (new size: 151680)", which
/// Megatron prints after the arguments (core_v0.12.0 training/tokenizer/tokenizer.py:118, core_v0.16.1 :126,
/// core_v0.19.0 training/vocab_utils.py:36).
[[nodiscard]] std::optional<std::int64_t> printed_vocabulary(std::string_view text);

}  // namespace foldwise::planner
