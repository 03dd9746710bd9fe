#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/hardware/hardware.h"
#include "costmodel/model/model.h"
#include "costmodel/parallel/options.h"
#include "planner/rules/rules.h"
#include "planner/run/defaults.h"
#include "planner/run/fields.h"
#include "planner/search/parameters.h"

// What `plan` may choose: every field of a run file that has several values.
namespace foldwise::planner {

struct Dimension {
  const Field* field = nullptr;
  std::vector<nlohmann::json> values;  ///< At least one; mistake_in() accepts each.
  bool named = false;                  ///< By the user: never left at its default.
};

struct SearchSpace {
  std::vector<Dimension> dimensions;  ///< In the order of the table of fields.

  /// Candidates, the product of the dimensions: those that Megatron refuses and repetitions (a value that does not
  /// apply) included. Splits of layers come on top.
  [[nodiscard]] double size() const;
  [[nodiscard]] const Dimension* find(std::string_view key) const;
  /// Whether the user names the splits of the layers; else the search finds them.
  [[nodiscard]] bool names_splits() const { return find("pipeline_layout") != nullptr; }
  /// Leaves only these values of the field, or adds it. Requires values that mistake_in() accepts.
  void set(std::string_view key, std::vector<nlohmann::json> values);

 private:
  /// The kind of offloading that is told by its modules: those of the values of `offload.type`, unless they are named.
  void keep_modules_of(const Dimension& type);
};

/// The values that the table of fields gives (Field::tried).
[[nodiscard]] SearchSpace default_space(const PlanFacts& facts);

/// Of PlanProblem::effort, unless asked for otherwise.
inline constexpr std::int64_t kUsualEffort = 900'000;

/// Memory that torch must have for a plan to run, beyond what counts as needed (docs/memory.md#reserved), in bf16
/// tensors of the tokens of a rank's micro-batch. With EP overlap it is more: a tensor that two streams use is not
/// there again when it is freed.
struct AllocatorReserve {
  double plain = 0.0, ep_overlap = 0.0;
  [[nodiscard]] double of(const costmodel::TrainingOptions& options) const {
    return options.pipeline.overlaps.ep_a2a ? ep_overlap : plain;
  }
};

struct PlanProblem {
  std::string model_name, system_name;
  costmodel::ModelSpec model;
  costmodel::Hardware hardware;
  /// What a run file states about the model (mtp, mtp_use_repeated_layer, model_overrides) and the system
  /// (system_overrides), as far as it is not their own: `model` and `hardware` have it. And a task "sft".
  nlohmann::json model_set = nlohmann::json::object();
  std::int64_t num_gpus = 1;
  bool folding = true;  ///< As in Problem (planner/rules/rules.h).
  SearchSpace space;
  const Release* release = nullptr;    ///< Of Megatron-Core, that plans run with.
  Evidence evidence = Evidence::kAny;  ///< What of a plan must have been measured (planner/rules/evidence.h).
  std::string defaults;                ///< Name of the set of defaults that gives the options which are not searched.
  /// Fields that every candidate has: seq_len, global_batch, schedule.
  std::map<std::string, nlohmann::json> stated;
  /// Share of the device's memory that a plan leaves free. At the 99th percentile of random routing
  /// (costmodel::imbalance) it must fit all the same, into the whole device.
  double headroom = 0.0;
  AllocatorReserve reserve;  ///< None until plan() has learnt it from a plan.
  std::int64_t top = 10;
  /// Microseconds of a core, about, after which a search ends unproven: counted, not measured, so that the answer is
  /// the same everywhere.
  std::int64_t effort = kUsualEffort;
  SearchParameters parameters{};
  int threads = 0;  ///< 0: all cores. The answer does not depend on it.
};

/// One part in so many of the problem's effort, at least something.
[[nodiscard]] inline std::int64_t share_of_effort(const PlanProblem& problem, std::int64_t parts) {
  return std::max<std::int64_t>(1, problem.effort / parts);
}

/// As the rules see it.
[[nodiscard]] Problem rule_problem(const PlanProblem& problem);

/// A bf16 tensor of the tokens of a rank's micro-batch.
[[nodiscard]] Bytes tokens_of(const costmodel::ModelSpec& model, const costmodel::TrainingOptions& options);
/// What a candidate must leave to the allocator.
[[nodiscard]] Bytes reserve_of(const PlanProblem& problem, const costmodel::TrainingOptions& options);

/// Which value of each dimension a candidate has.
using Assignment = std::vector<std::uint16_t>;

/// Options that are the same for all candidates with these values of the dimensions on which defaults may depend.
class Bases {
 public:
  explicit Bases(const PlanProblem& problem);
  /// Options as the set of defaults gives them, before any dimension is applied but those that change numerics.
  [[nodiscard]] const costmodel::TrainingOptions& of(const Assignment& assignment) const;
  [[nodiscard]] bool depends_on(std::size_t dimension) const {
    return std::find(deciding_.begin(), deciding_.end(), dimension) != deciding_.end();
  }

 private:
  std::vector<std::size_t> deciding_;  ///< Dimensions; of tp only whether it is above 1.
  std::map<std::vector<std::uint16_t>, costmodel::TrainingOptions> options_;
  const PlanProblem& problem_;
};

/// How many of the dimension's values, the first ones, can make a run of their own beside `options`.
[[nodiscard]] std::uint16_t values_beside(const PlanProblem& problem, const Dimension& dimension,
                                          const costmodel::TrainingOptions& options);
/// Gives `options` value `index` of the dimension. Returns false if that repeats another candidate: the field does not
/// apply or does not matter, and the index is not 0.
bool apply(const PlanProblem& problem, const Dimension& dimension, std::uint16_t index,
           costmodel::TrainingOptions& options);

/// A candidate of the space as options, before its layers are split; nothing if it repeats another one.
[[nodiscard]] std::optional<costmodel::TrainingOptions> candidate(const PlanProblem& problem, const Bases& bases,
                                                                  const Assignment& assignment);

/// The data-parallel size that the other sizes leave; 1 if they do not divide the GPUs.
void settle_data_parallel(const PlanProblem& problem, costmodel::TrainingOptions& options);

}  // namespace foldwise::planner
