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

// What was measured together. A plan that joins choices which no run has joined may not start, or may not take the time
// that is predicted of each by itself: `plan --evidence` says how much of a plan must have been run.
namespace foldwise::planner {

/// How much of a plan must stand in measured runs of its GPU generation.
enum class Evidence : std::uint8_t {
  kRun,    ///< All of its choices, in one run.
  kParts,  ///< Each of its choices, in some run.
  kAny,    ///< Nothing.
};
[[nodiscard]] const std::vector<std::pair<std::string, Evidence>>& evidence_names();
[[nodiscard]] std::string_view name_of(Evidence evidence);
/// The next level, which asks for less. Requires another than kAny.
[[nodiscard]] constexpr Evidence less(Evidence evidence) {
  return evidence == Evidence::kRun ? Evidence::kParts : Evidence::kAny;
}

/// What runs are told apart by, in the order in which a search decides it.
enum class ChoicePart : std::uint8_t {
  kPrecision,   ///< bf16, fp8 (every recipe of Hopper's), mxfp8, nvfp4.
  kContext,     ///< cp_comm_type; none where CP is 1.
  kExperts,     ///< software.experts; dense models have none.
  kDispatcher,  ///< none where EP x ETP is 1, but for DeepEP and HybridEP.
  kGraphs,      ///< cuda_graph.impl.
  kPipeline,    ///< none, 1f1b, interleaved.
  kEpOverlap,   ///< overlaps.ep_a2a.
  kSharding,    ///< sharding.
  kOffload,     ///< none, activations, layers, optimizer, states, and what of them is joined.
};
inline constexpr std::size_t kChoiceParts = 9;
/// "experts", as in messages and in JSON.
[[nodiscard]] std::string_view name_of(ChoicePart part);

/// A run's choices, each as a small number that only this file reads.
using JointChoice = std::array<std::uint8_t, kChoiceParts>;
[[nodiscard]] JointChoice joint_choice(const costmodel::ModelSpec& model, const costmodel::TrainingOptions& options);
/// "fused", of one part.
[[nodiscard]] std::string text_of(ChoicePart part, std::uint8_t value);

/// A measured run.
struct MeasuredChoice {
  std::string id;
  std::string generation;  ///< Of the GPU: "hopper".
  std::string model;
  std::int64_t num_gpus = 1;
  JointChoice choice{};
};

/// Measured runs by what they chose.
class MeasuredChoices {
 public:
  explicit MeasuredChoices(std::vector<MeasuredChoice> runs);

  /// The built-in runs: hwprofiles/data/evidence.json.
  [[nodiscard]] static const MeasuredChoices& built_in();

  [[nodiscard]] bool has_generation(const std::string& generation) const;
  /// Whether a run of the generation has the first `parts` of these choices together; of kParts: whether some run has
  /// each of them. Takes no time to speak of.
  [[nodiscard]] bool has(Evidence level, const std::string& generation, const JointChoice& choice,
                         std::size_t parts = kChoiceParts) const;
  /// kRun, kParts, or kAny where a choice was never measured on the generation.
  [[nodiscard]] Evidence level_of(const std::string& generation, const JointChoice& choice) const;
  /// The run that differs in the fewest choices, and among those of the model and the number of GPUs nearest to these;
  /// null: none of the generation.
  [[nodiscard]] const MeasuredChoice* nearest(const std::string& generation, const JointChoice& choice,
                                              const std::string& model, std::int64_t num_gpus) const;

 private:
  struct Generation {
    std::string name;
    /// Sorted, of each number of leading parts: the runs' choices as one number.
    std::array<std::vector<std::uint64_t>, kChoiceParts + 1> joint;
    std::array<std::uint64_t, kChoiceParts> alone{};  ///< Bits of the values that some run has.
  };
  [[nodiscard]] const Generation* find(const std::string& generation) const;

  std::vector<MeasuredChoice> runs_;
  std::vector<Generation> generations_;
};

/// What stands for a run's choices.
struct RunEvidence {
  Evidence level = Evidence::kAny;  ///< The strictest that it meets.
  std::string nearest;              ///< Id of a measured run; empty: none of the GPU generation.
  std::vector<std::string> lacks;   ///< What that run chose otherwise: "dispatcher hybridep (nearest run: alltoall)".
};
[[nodiscard]] RunEvidence evidence_of(const Run& run, const MeasuredChoices& measured = MeasuredChoices::built_in());
/// {level, nearest, lacks}
[[nodiscard]] nlohmann::json evidence_json(const RunEvidence& evidence);

/// Rows as hwprofiles/data/evidence.json has them.
[[nodiscard]] nlohmann::json measured_choices_json(const std::vector<MeasuredChoice>& runs);
[[nodiscard]] MeasuredChoice measured_choice(const Run& run);

}  // namespace foldwise::planner
