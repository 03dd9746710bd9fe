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
#include "planner/sweep/axes.h"

// A table over fields of run, model and system: a prediction or plan for every combination of the listed values
// (docs/sweep.md).
namespace foldwise::planner {

/// A run file that each point changes.
struct RunQuestion {
  std::string file;    ///< Name in messages.
  nlohmann::json run;  ///< Parsed.
  std::string text{};  ///< Source text; empty: read from the file.
};

/// A question to `plan` that each point changes. The row of a point is its plan 1.
struct PlanQuestion {
  PlanRequest request;
  std::int64_t effort = kUsualEffort;  ///< As in PlanProblem.
};

using SweepQuestion = std::variant<RunQuestion, PlanQuestion>;

/// A row: cells in the order of Sweep::columns(); null if there is no value.
using SweepRow = nlohmann::ordered_json;

class Sweep {
 public:
  /// Throws ConfigError with every mistake that affects all points: an axis that is not a field, a value that its field
  /// does not take, an unknown model or system, a malformed run file. `program`: who computes the rows, for example its
  /// version. Rows of different programs belong to different sweeps.
  Sweep(SweepQuestion question, std::vector<Axis> axes, std::optional<LongRun> long_run = {},
        const std::string& program = "");

  /// Number of points: the product of the axes' lengths. The last axis varies fastest.
  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] const std::vector<Axis>& axes() const { return axes_; }
  /// "sweep", the axes, then the columns of the answers (docs/sweep.md).
  [[nodiscard]] std::vector<std::string> columns() const;
  /// Systems of the points, as {"system", "system_overrides"} of a run file.
  [[nodiscard]] std::vector<nlohmann::json> systems() const;
  /// Models of the points: built-in names, or paths.
  [[nodiscard]] const std::vector<std::string>& models() const { return models_; }
  /// Cells known before a point is computed: "sweep" and the axes. "sweep" identifies question, axes and program; it
  /// differs between sweeps.
  [[nodiscard]] SweepRow known_cells(std::size_t point) const;
  /// All cells, and "run", the run file of the answer (null: refused, or nothing fits). The row of a point without an
  /// answer states the reason. Equal for equal arguments. Thread-safe.
  [[nodiscard]] SweepRow row(std::size_t point) const;

 private:
  void check_plans(config::Diagnostics& diagnostics) const;
  [[nodiscard]] std::vector<std::string> values(std::size_t point) const;
  void predict_point(const std::vector<std::string>& values, SweepRow& row) const;
  void plan_point(const std::vector<std::string>& values, SweepRow& row) const;
  void fill(const Run& run, const Prediction& prediction, SweepRow& row) const;

  SweepQuestion question_;
  std::vector<Axis> axes_;
  std::vector<std::string> models_;
  std::optional<LongRun> long_run_;
  std::string name_;
};

/// Computes the rows from `first` on and passes them to `take` in order, one at a time. `threads`: 0 is one per core;
/// the rows do not depend on it.
void for_rows(const Sweep& sweep, std::size_t first, int threads, const std::function<void(const SweepRow&)>& take);

}  // namespace foldwise::planner
