#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "costmodel/step/prediction.h"

// Compares the seconds of several runs, op by op. The lines of each run add up to its step time.
namespace foldwise::planner {

/// Seconds of one (cause, kind, module, group) in every run.
struct ExplainedTime {
  std::string cause, kind, module, group;  ///< As in DetailEntry, or cause "bubble" or "rest".
  std::vector<double> seconds;             ///< [runs]
  /// Largest absolute difference from the first run.
  [[nodiscard]] double spread() const;
};

struct Waterfall {
  /// Pipeline stage of the lines of every run: each run's busiest one. Nullopt: the lines are means over the stages,
  /// because the pipelines differ.
  std::optional<std::size_t> stage;
  bool busiest = true;  ///< Whether `stage` is the busiest.
  /// Largest difference first. The last one, "rest", is what no other line covers.
  std::vector<ExplainedTime> lines;
  std::vector<double> steps;  ///< Seconds of each run's step.
};

/// Seconds of every run by cause, kind, module and group.
using ExplainedLines = std::map<std::tuple<std::string, std::string, std::string, std::string>, std::vector<double>>;

/// A waterfall of `lines`, in their order, and of the "rest" of each step.
[[nodiscard]] Waterfall waterfall_of(const ExplainedLines& lines, std::vector<double> steps);

/// The predictions must have detail.
[[nodiscard]] Waterfall waterfall(const std::vector<const costmodel::Prediction*>& runs);

/// "pipeline stage 3 of each run, ...", "mean over the pipeline stages ...".
[[nodiscard]] std::string stage_text(const Waterfall& waterfall);

/// {stage, lines [{cause, kind, module, group, seconds [runs]}]}: docs/output.md#compare.
[[nodiscard]] nlohmann::json waterfall_json(const Waterfall& waterfall);

/// Seconds rounded to whole microseconds, as texts print them. Differences of printed times then match.
[[nodiscard]] double to_microsecond(Seconds time);

/// The parts, which add up to `total`, in microseconds: each rounded up or down so that they still do.
[[nodiscard]] std::vector<std::int64_t> whole_microseconds(const std::vector<double>& parts, double total);

/// A table by cause and a table of the `most` lines with the largest differences, in seconds with six digits: one
/// column per run, named by `titles`, and one for the difference of each later run from the first. Rows and columns add
/// up as printed.
[[nodiscard]] std::string waterfall_text(const Waterfall& waterfall, const std::vector<std::string>& titles,
                                         std::size_t most);

}  // namespace foldwise::planner
