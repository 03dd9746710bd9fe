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

// Where the seconds of runs side by side go, op by op: the lines of each run add up to its step.
namespace foldwise::planner {

/// Seconds of one (cause, kind, module, group) in every run.
struct ExplainedTime {
  std::string cause, kind, module, group;  ///< As in DetailEntry; cause "bubble" or "rest" besides.
  std::vector<double> seconds;             ///< [runs]
  /// Largest distance from the first run.
  [[nodiscard]] double spread() const;
};

struct Waterfall {
  /// Pipeline stage that every run's lines are of: the busiest one of each. None: the mean over each run's stages,
  /// because their pipelines differ.
  std::optional<std::size_t> stage;
  bool busiest = true;  ///< Whether `stage` is.
  /// The one that differs most first. "rest", the last one, is what no other names.
  std::vector<ExplainedTime> lines;
  std::vector<double> steps;  ///< Seconds of each run's step.
};

/// Seconds of every run by cause, kind, module and group.
using ExplainedLines = std::map<std::tuple<std::string, std::string, std::string, std::string>, std::vector<double>>;

/// Of `lines`, in their order, and the "rest" of the steps.
[[nodiscard]] Waterfall waterfall_of(const ExplainedLines& lines, std::vector<double> steps);

/// Requires predictions with detail.
[[nodiscard]] Waterfall waterfall(const std::vector<const costmodel::Prediction*>& runs);

/// "pipeline stage 3 of each run, ...", "mean over the pipeline stages ...".
[[nodiscard]] std::string stage_text(const Waterfall& waterfall);

/// {stage, lines [{cause, kind, module, group, seconds [runs]}]}: docs/output.md#compare.
[[nodiscard]] nlohmann::json waterfall_json(const Waterfall& waterfall);

/// Seconds in whole microseconds: what texts print, so that what they subtract is what they print.
[[nodiscard]] double to_microsecond(Seconds time);

/// Microseconds of the parts, each within one of its own, that add up to those of `total` as the parts do.
[[nodiscard]] std::vector<std::int64_t> whole_microseconds(const std::vector<double>& parts, double total);

/// A table by cause and one of the `most` lines that differ most and the rest, in seconds with six digits, a column a
/// run, named by `titles`, and one for what each but the first differs by. All columns and rows add up as printed.
[[nodiscard]] std::string waterfall_text(const Waterfall& waterfall, const std::vector<std::string>& titles,
                                         std::size_t most);

}  // namespace foldwise::planner
