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

// Which options Megatron (or the GPU) would refuse, and why: a table of named rules. docs/rules.md lists them.
namespace foldwise::planner {

struct Run;

/// What is to be run, and on what. Refers to its parts: they must outlive it.
struct Problem {
  const costmodel::ModelSpec& model;
  const costmodel::Hardware& hardware;
  std::int64_t num_gpus = 1;
  /// Whether experts may be laid out apart from attention: another ETP than TP, EP over CP's ranks. Megatron allows it.
  bool folding = true;
  /// Of Megatron-Core. Null: none is named, and rules of some releases alone are left out.
  const Release* release = nullptr;
  Evidence evidence = Evidence::kAny;         ///< What of a plan must have been measured.
  const MeasuredChoices* measured = nullptr;  ///< By it. Null: the built-in runs.
};

/// One rule. Both functions are pure.
struct Rule {
  std::string_view
      id;  ///< As Megatron's checks are listed in docs/rules.md, e.g. "grid.world_dense"; ours: "foldwise.*".
  std::string flags;  ///< Megatron's flags that it concerns, separated by spaces.
  bool (*violated)(const Problem&, const costmodel::TrainingOptions&);       ///< Formats nothing, allocates nothing.
  std::string (*reason)(const Problem&, const costmodel::TrainingOptions&);  ///< Only for options that violate it.
  /// Keys of the fields that it looks at: no other changes its verdict. (Data parallelism follows from tp, cp and pp.)
  std::vector<std::string> keys{};
  /// That it is a rule of, where the run names one of them. Not named: of every run.
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

/// Every rule, in the order of evaluation: the cheapest first, and each may rely on those before it (the first one
/// makes sure that every size is positive, so that later ones may divide).
[[nodiscard]] const std::vector<Rule>& rules();

/// Index in rules() of the first rule that the options violate. For the search's inner loop.
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

/// Every violated rule, in order; only the first rule's if sizes are not positive.
[[nodiscard]] std::vector<Rejection> violations(const Problem& problem, const costmodel::TrainingOptions& options);
[[nodiscard]] std::vector<Rejection> violations(const Run& run);
/// Each of them as an error at the run's place: its file, line and id.
void report_violations(const Run& run, config::Diagnostics& diagnostics);
/// The same in a release, whichever the run names.
void report_violations(const Run& run, config::Diagnostics& diagnostics, const Release& release);

/// [{rule, reason}]
[[nodiscard]] nlohmann::json rejections_json(const std::vector<Rejection>& rejections);

}  // namespace foldwise::planner
