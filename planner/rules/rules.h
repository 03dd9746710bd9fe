#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/config/diagnostics.h"
#include "costmodel/hardware/hardware.h"
#include "costmodel/model/model.h"
#include "costmodel/parallel/options.h"
#include "planner/rules/evidence.h"
#include "planner/run/release.h"

// Options that Megatron or the GPU would refuse, and why: a table of named rules. docs/rules.md lists them.
namespace foldwise::planner {

struct Run;

/// A model and a system for a run. Refers to both, so they must outlive it.
struct Problem {
  const costmodel::ModelSpec& model;
  const costmodel::Hardware& hardware;
  std::int64_t num_gpus = 1;
  /// Whether experts may be laid out apart from attention: ETP may differ from TP, and EP may span CP's ranks. Megatron
  /// allows it.
  bool folding = true;
  /// Release of Megatron-Core. Null: none is named, and rules that hold only in some releases are skipped.
  const Release* release = nullptr;
  Evidence evidence = Evidence::kAny;         ///< How much of a plan must have been measured.
  const MeasuredChoices* measured = nullptr;  ///< Runs for `evidence`; null: the built-in runs.
};

/// One rule. Both functions are pure.
struct Rule {
  /// Id of Megatron's check in docs/rules.md, e.g. "grid.world_dense"; our own rules: "foldwise.*".
  std::string_view id;
  std::string flags;  ///< Megatron's flags that the rule reads, separated by spaces.
  bool (*violated)(const Problem&, const costmodel::TrainingOptions&);  ///< Allocates and formats nothing.
  std::string (*reason)(const Problem&,
                        const costmodel::TrainingOptions&);  ///< Call only if the options violate the rule.
  /// Keys of the fields that the rule reads; no other field changes its result. (Data parallelism follows from tp, cp
  /// and pp.)
  std::vector<std::string> keys{};
  /// Releases in which the rule holds, for runs that name one. If not named(), it holds for every run.
  ReleaseSpan releases{};
  [[nodiscard]] bool holds_in(const Release* release) const {
    return !releases.named || (release != nullptr && releases.has(*release));
  }
  [[nodiscard]] bool broken(const Problem& problem, const costmodel::TrainingOptions& options) const {
    return holds_in(problem.release) && violated(problem, options);
  }
  /// The reason if the options violate the rule.
  [[nodiscard]] std::optional<std::string> violation(const Problem& problem,
                                                     const costmodel::TrainingOptions& options) const;
};

/// All rules in the order of evaluation, cheapest first. A rule may rely on those before it. The first one ensures that
/// every size is positive, so later ones may divide.
[[nodiscard]] const std::vector<Rule>& rules();

/// Index in rules() of the first violated rule, for the search's inner loop.
[[nodiscard]] std::optional<std::size_t> first_violated(const Problem& problem,
                                                        const costmodel::TrainingOptions& options);

struct Rejection {
  std::string_view rule;
  std::string reason;  ///< "--expert-model-parallel-size 48 does not divide --num-experts 256"
  /// "grid.world_expert: --expert-model-parallel-size 48 does not divide ..."
  [[nodiscard]] std::string text() const;
};
[[nodiscard]] std::optional<Rejection> first_violation(const Problem& problem,
                                                       const costmodel::TrainingOptions& options);

/// Every violated rule, in order. If a size is not positive, only the first rule.
[[nodiscard]] std::vector<Rejection> violations(const Problem& problem, const costmodel::TrainingOptions& options);
[[nodiscard]] std::vector<Rejection> violations(const Run& run);
/// Reports each violation as an error at the run's place: file, line and id.
void report_violations(const Run& run, config::Diagnostics& diagnostics);
/// The same in `release`, whatever release the run names.
void report_violations(const Run& run, config::Diagnostics& diagnostics, const Release& release);

/// [{rule, reason}]
[[nodiscard]] nlohmann::json rejections_json(const std::vector<Rejection>& rejections);

}  // namespace foldwise::planner
