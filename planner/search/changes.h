#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/parallel/options.h"
#include "costmodel/step/prediction.h"
#include "planner/rules/rules.h"
#include "planner/run/fields.h"
#include "planner/run/run_file.h"

// What one field of a run comes to with another value, all else as it is.
namespace foldwise::planner {

/// A field with another value; where that lets a field count that did not, a value of that one too.
struct Change {
  struct Setting {
    const Field* field = nullptr;
    nlohmann::json from, to;
  };
  std::vector<Setting> settings;
  costmodel::TrainingOptions options;
  Seconds step_time{};
  Bytes peak_memory{};  ///< Of the fullest stage, with overheads.
  bool fits_host = false;
  /// "recompute.granularity none -> selective, recompute.modules ...".
  [[nodiscard]] std::string text() const;
};

/// `options` with the field at `value`. What follows from it follows: DP of the other sizes (as it was where they do
/// not divide the GPUs), and, with another number of stages, the split of the layers. Rules may refuse the result.
[[nodiscard]] costmodel::TrainingOptions with_value(const Problem& problem, costmodel::TrainingOptions options,
                                                    const Field& field, const nlohmann::json& value);

/// Splits the layers over the options' stages as evenly as Megatron does, or else as balanced as a layout string can
/// say. False if the rules refuse the options whatever the split.
bool split_layers(const Problem& problem, costmodel::TrainingOptions& options);

struct Neighbours {
  std::int64_t predicted = 0, refused = 0;  ///< Changes that were tried, by what became of them.
  std::vector<Change> changes;              ///< Those predicted, fastest first; whether or not they fit.
  /// The fastest change that needs at most so much of the device, at the 99th percentile of random routing at most
  /// `capacity`, and no more of the host than there is. nullptr: none.
  [[nodiscard]] const Change* fastest(const Problem& problem, Bytes most, Bytes capacity) const;
};

/// Every change of one field that `plan` searches (Field::tried): of names all, of numbers the next one on either side
/// that rules allow, of sets one member more or less. Options must satisfy the rules.
[[nodiscard]] Neighbours neighbours(const Problem& problem, const costmodel::TrainingOptions& options);

/// One difference of two runs, made in the first of them alone.
struct LoneDifference {
  std::string field;               ///< "model", "system", "num_gpus" or a field's key.
  std::vector<Rejection> refused;  ///< Empty: it was predicted.
  Seconds step_time{};             ///< Of the first run with it.
  bool fits = false;
};

/// Every difference of `to` from `from`, each as `to` has it, with what follows from it (with_value()) and the values
/// of fields that count only with it. What changes no option by itself is left out.
[[nodiscard]] std::vector<LoneDifference> lone_differences(const Run& from, const Run& to);

}  // namespace foldwise::planner
