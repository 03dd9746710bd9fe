#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "planner/foldwise.h"
#include "planner/report/training_cost.h"

// A table over fields of run, model and system: every combination of the values that its user lists, each a prediction
// or a plan (docs/sweep.md).
namespace foldwise::planner {

/// A field and the values that it takes, one after the other.
struct Axis {
  std::string key;  ///< Of a run file, "model_overrides.KEY", or "system.KEY" with a number of the system's profile.
  std::vector<std::string> values;  ///< As typed on a command line.
};

/// One run file, changed at every point.
struct RunQuestion {
  std::string file;    ///< What messages call it.
  nlohmann::json run;  ///< As read.
  std::string text{};  ///< What it was read from; empty: the file.
};

/// One question to `plan`, changed at every point. The row of a point is its first plan.
struct PlanQuestion {
  PlanRequest request;
  std::int64_t effort = kUsualEffort, top = 10;  ///< As in PlanProblem.
};

using SweepQuestion = std::variant<RunQuestion, PlanQuestion>;

/// A row: cells in the order of Sweep::columns(), null where there is nothing to say.
using SweepRow = nlohmann::ordered_json;

class Sweep {
 public:
  /// Throws ConfigError with every mistake in axes and question that is there at all points: an axis that is no field,
  /// a value that is none of it, no such model or system, a run file of bad form.
  /// `program`: who computes the rows, such as its version; rows of another one are of another sweep.
  Sweep(SweepQuestion question, std::vector<Axis> axes, std::optional<LongRun> long_run = {},
        const std::string& program = "");

  /// Points: the product of the axes' values. The last axis varies fastest.
  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] const std::vector<Axis>& axes() const { return axes_; }
  /// "sweep", the axes, then what each point is answered with (docs/sweep.md).
  [[nodiscard]] std::vector<std::string> columns() const;
  /// The systems that its points run on, {"system", "system_overrides"} as in a run file.
  [[nodiscard]] std::vector<nlohmann::json> systems() const;
  /// The cells that are known before a point is computed: "sweep" and the axes. "sweep" names question, axes and
  /// program; rows of another sweep have another one.
  [[nodiscard]] SweepRow known_cells(std::size_t point) const;
  /// All cells, and "run", the run file of the answer (null: refused, or nothing fits). A point that cannot be answered
  /// is a row with the reason. Equal for equal arguments; may be called from several threads.
  [[nodiscard]] SweepRow row(std::size_t point) const;

 private:
  [[nodiscard]] std::vector<std::string> values(std::size_t point) const;
  void predict_point(const std::vector<std::string>& values, SweepRow& row) const;
  void plan_point(const std::vector<std::string>& values, SweepRow& row) const;
  void fill(const Run& run, const Prediction& prediction, SweepRow& row) const;

  SweepQuestion question_;
  std::vector<Axis> axes_;
  std::optional<LongRun> long_run_;
  std::string name_;
};

/// Computes the rows from `first` on and hands them to `take` in order, one at a time. `threads`: 0 is one per core;
/// rows do not depend on it.
void for_rows(const Sweep& sweep, std::size_t first, int threads, const std::function<void(const SweepRow&)>& take);

}  // namespace foldwise::planner
