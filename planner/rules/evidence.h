#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/hardware/hardware.h"
#include "costmodel/model/model.h"
#include "costmodel/parallel/options.h"
#include "planner/run/run_file.h"

// Which choices were measured together. A plan with choices that no run has joined may not start, or may take longer
// than predicted. `plan --evidence` says how much of a plan must have been measured.
namespace foldwise::planner {

/// How much of a plan must occur in measured runs of its GPU generation.
enum class Evidence : std::uint8_t {
  kRun,    ///< All its choices in one run.
  kParts,  ///< Each of its choices in some run.
  kAny,    ///< Nothing.
};
[[nodiscard]] const std::vector<std::pair<std::string, Evidence>>& evidence_names();
[[nodiscard]] std::string_view name_of(Evidence evidence);
/// The next weaker level. `evidence` must not be kAny.
[[nodiscard]] constexpr Evidence less(Evidence evidence) {
  return evidence == Evidence::kRun ? Evidence::kParts : Evidence::kAny;
}

/// Choices by which runs are told apart, in the order in which a search decides them.
enum class ChoicePart : std::uint8_t {
  kPrecision,   ///< bf16, fp8 (every recipe of Hopper's), mxfp8, nvfp4.
  kContext,     ///< cp_comm_type; none where CP is 1.
  kExperts,     ///< software.experts; dense models have none.
  kDispatcher,  ///< none where EP x ETP is 1, but for DeepEP and HybridEP.
  kGraphs,      ///< cuda_graph.impl.
  kPipeline,    ///< none, 1f1b, interleaved.
  kEpOverlap,   ///< overlaps.ep_a2a.
  kSharding,    ///< sharding.
  kOffload,     ///< none, activations, layers, optimizer, states, and their combinations.
};
inline constexpr std::size_t kChoiceParts = 9;
/// Name in messages and in JSON: "experts".
[[nodiscard]] std::string_view name_of(ChoicePart part);

/// A run's choices. The number of each is private to evidence.cc.
using JointChoice = std::array<std::uint8_t, kChoiceParts>;
[[nodiscard]] JointChoice joint_choice(const costmodel::ModelSpec& model, const costmodel::TrainingOptions& options);
/// Name of a part's value: "fused".
[[nodiscard]] std::string text_of(ChoicePart part, std::uint8_t value);

/// A measured run.
struct MeasuredChoice {
  std::string id;
  std::string generation;  ///< GPU generation: "hopper".
  std::string model;
  std::int64_t num_gpus = 1;
  JointChoice choice{};
};

/// Measured runs by their choices.
class MeasuredChoices {
 public:
  explicit MeasuredChoices(std::vector<MeasuredChoice> runs);

  /// The built-in runs: hwprofiles/data/evidence.json.
  [[nodiscard]] static const MeasuredChoices& built_in();

  [[nodiscard]] bool has_generation(const std::string& generation) const;
  /// kRun: whether a run of the generation has the first `parts` choices together. kParts: whether for each of them
  /// some run has it. Fast enough for the search's inner loop.
  [[nodiscard]] bool has(Evidence level, const std::string& generation, const JointChoice& choice,
                         std::size_t parts = kChoiceParts) const;
  /// The strictest level that holds: kRun, kParts, or kAny if a choice was never measured on the generation.
  [[nodiscard]] Evidence level_of(const std::string& generation, const JointChoice& choice) const;
  /// The run of the generation with the fewest different choices; among these the one with the nearest model and number
  /// of GPUs. Null if the generation has no run.
  [[nodiscard]] const MeasuredChoice* nearest(const std::string& generation, const JointChoice& choice,
                                              const std::string& model, std::int64_t num_gpus) const;

 private:
  struct Generation {
    std::string name;
    /// For each number of leading parts, the packed choices of all runs, sorted.
    std::array<std::vector<std::uint64_t>, kChoiceParts + 1> joint;
    std::array<std::uint64_t, kChoiceParts> alone{};  ///< Bit set of the values that some run has.
  };
  [[nodiscard]] const Generation* find(const std::string& generation) const;

  std::vector<MeasuredChoice> runs_;
  std::vector<Generation> generations_;
};

/// The measured runs that support a run's choices.
struct RunEvidence {
  Evidence level = Evidence::kAny;  ///< The strictest level that holds.
  std::string nearest;              ///< Id of the nearest measured run; empty: the GPU generation has none.
  /// Choices in which that run differs: "dispatcher hybridep (nearest run: alltoall)".
  std::vector<std::string> lacks;
};
[[nodiscard]] RunEvidence evidence_of(const Run& run, const MeasuredChoices& measured = MeasuredChoices::built_in());
/// {level, nearest, lacks}
[[nodiscard]] nlohmann::json evidence_json(const RunEvidence& evidence);

/// The rows of hwprofiles/data/evidence.json.
[[nodiscard]] nlohmann::json measured_choices_json(const std::vector<MeasuredChoice>& runs);
[[nodiscard]] MeasuredChoice measured_choice(const Run& run);

}  // namespace foldwise::planner
