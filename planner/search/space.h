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

// The space of `plan`: every field of a run file that has several values.
namespace foldwise::planner {

struct Dimension {
  const Field* field = nullptr;
  std::vector<nlohmann::json> values;  ///< At least one; mistake_in() accepts each.
  bool named = false;                  ///< Named by the user: no candidate leaves it at its default.
};

struct SearchSpace {
  std::vector<Dimension> dimensions;  ///< In the order of the table of fields.

  /// Number of candidates: the product of the dimensions. It counts candidates that Megatron refuses and repetitions
  /// (values that do not apply). Splits of layers multiply it further.
  [[nodiscard]] double size() const;
  [[nodiscard]] const Dimension* find(std::string_view key) const;
  /// Whether the user names the splits of the layers. If not, the search finds them.
  [[nodiscard]] bool names_splits() const { return find("pipeline_layout") != nullptr; }
  /// Sets the only values of the field. Adds the field if it is no dimension. mistake_in() must accept the values.
  void set(std::string_view key, std::vector<nlohmann::json> values);

 private:
  /// Keeps the modules that belong to the values of `offload.type`, unless the user names modules. A run file tells the
  /// kind of offloading by its modules.
  void keep_modules_of(const Dimension& type);
};

/// The space of the table of fields (Field::tried).
[[nodiscard]] SearchSpace default_space(const PlanFacts& facts);

/// Default of PlanProblem::effort.
inline constexpr std::int64_t kUsualEffort = 900'000;

/// Memory that PyTorch's allocator needs beyond the predicted peak for a plan to run (docs/memory.md#reserved), in bf16
/// tensors of the tokens of a rank's micro-batch. EP overlap needs more: a freed tensor that two streams use is not
/// reused at once.
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
  /// (system_overrides), if it differs from their own values. `model` and `hardware` already include it. Also the task
  /// "sft".
  nlohmann::json model_set = nlohmann::json::object();
  std::int64_t num_gpus = 1;
  bool folding = true;  ///< As in Problem (planner/rules/rules.h).
  SearchSpace space;
  const Release* release = nullptr;    ///< Release of Megatron-Core that plans run with.
  Evidence evidence = Evidence::kAny;  ///< How much of a plan must have been measured (planner/rules/evidence.h).
  std::string defaults;                ///< Name of the set of defaults for options that are not searched.
  /// Fields with the same value in every candidate: seq_len, global_batch, schedule.
  std::map<std::string, nlohmann::json> stated;
  /// Share of the device's memory that a plan leaves free. At the 99th percentile of random routing
  /// (costmodel::imbalance) the plan must fit into the whole device.
  double headroom = 0.0;
  AllocatorReserve reserve;  ///< Zero until plan() has learnt it from a plan.
  std::int64_t top = 10;
  /// A search ends unproven after this many microseconds of a core, about. Effort is counted, not measured, so that the
  /// answer is the same everywhere.
  std::int64_t effort = kUsualEffort;
  SearchParameters parameters{};
  int threads = 0;  ///< 0: all cores. The answer does not depend on it.
};

/// The problem's effort divided by `parts`, at least 1.
[[nodiscard]] inline std::int64_t share_of_effort(const PlanProblem& problem, std::int64_t parts) {
  return std::max<std::int64_t>(1, problem.effort / parts);
}

/// The problem as the rules take it.
[[nodiscard]] Problem rule_problem(const PlanProblem& problem);

/// A bf16 tensor of the tokens of a rank's micro-batch.
[[nodiscard]] Bytes tokens_of(const costmodel::ModelSpec& model, const costmodel::TrainingOptions& options);
/// Bytes that a candidate must leave to the allocator.
[[nodiscard]] Bytes reserve_of(const PlanProblem& problem, const costmodel::TrainingOptions& options);

/// The index of a candidate's value in each dimension.
using Assignment = std::vector<std::uint16_t>;

/// Options that do not depend on the searched dimensions, except on those that defaults may read.
class Bases {
 public:
  explicit Bases(const PlanProblem& problem);
  /// Options of the set of defaults. Of the dimensions only those that change numerics are applied.
  [[nodiscard]] const costmodel::TrainingOptions& of(const Assignment& assignment) const;
  [[nodiscard]] bool depends_on(std::size_t dimension) const {
    return std::find(deciding_.begin(), deciding_.end(), dimension) != deciding_.end();
  }

 private:
  std::vector<std::size_t> deciding_;  ///< Dimensions that defaults may read. Of tp only whether it is above 1.
  std::map<std::vector<std::uint16_t>, costmodel::TrainingOptions> options_;
  const PlanProblem& problem_;
};

/// Number of values of the dimension, from the first on, that can make different runs beside `options`.
[[nodiscard]] std::uint16_t values_beside(const PlanProblem& problem, const Dimension& dimension,
                                          const costmodel::TrainingOptions& options);
/// Sets the dimension to value `index`. False if that repeats another candidate: the index is not 0 and the field does
/// not apply or does not matter.
bool apply(const PlanProblem& problem, const Dimension& dimension, std::uint16_t index,
           costmodel::TrainingOptions& options);

/// A candidate of the space as options, before its layers are split; nothing if it repeats another one.
[[nodiscard]] std::optional<costmodel::TrainingOptions> candidate(const PlanProblem& problem, const Bases& bases,
                                                                  const Assignment& assignment);

/// Sets the data-parallel size from the other sizes; 1 if they do not divide the GPUs.
void settle_data_parallel(const PlanProblem& problem, costmodel::TrainingOptions& options);

}  // namespace foldwise::planner
