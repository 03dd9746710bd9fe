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

// Predictions of a run with one field changed, everything else being equal.
namespace foldwise::planner {

/// A field with another value. If that makes another field count that did not count before, also a value of that field.
struct Change {
  struct Setting {
    const Field* field = nullptr;
    nlohmann::json from, to;
  };
  std::vector<Setting> settings;
  costmodel::TrainingOptions options;
  Seconds step_time{};
  Bytes peak_memory{};  ///< Fullest stage, with overheads.
  bool fits_host = false;
  bool gives_memory_back = false;  ///< Torch has no room for it, though it fits. Only known of Insight::best.
  /// "recompute.granularity none -> selective, recompute.modules ...".
  [[nodiscard]] std::string text() const;
  /// Values by field that turn the complete run file of `base`, the options before the change, into that of the changed
  /// run. Null: the field is unset, or means nothing any more.
  [[nodiscard]] nlohmann::json set(const costmodel::TrainingOptions& base) const;
};

/// `options` with `value` for the field. Values that follow from it change too: DP is set from the other sizes (it
/// stays if they do not divide the GPUs), another number of stages splits the layers anew, and fields that act no more
/// get their defaults. Rules may refuse the
/// result.
[[nodiscard]] costmodel::TrainingOptions with_value(const Problem& problem, costmodel::TrainingOptions options,
                                                    const Field& field, const nlohmann::json& value);

/// Splits the layers over the stages as evenly as Megatron does, otherwise as balanced as a layout string allows. False
/// if the rules refuse the options with any split.
bool split_layers(const Problem& problem, costmodel::TrainingOptions& options);

struct Neighbours {
  std::int64_t predicted = 0, refused = 0;  ///< Number of changes tried, by result.
  std::vector<Change> changes;              ///< The predicted changes, fastest first, whether or not they fit.
  /// The fastest change that fits: peak device memory at most `most`, at the 99th percentile of random routing at most
  /// `capacity`, and host memory at most what there is. nullptr if there is none.
  [[nodiscard]] const Change* fastest(const Problem& problem, Bytes most, Bytes capacity) const;
};

/// Every change of one field that `plan` searches (Field::tried). A name takes every other value. A number takes the
/// next smaller and larger value that rules allow. A set gains or loses one member. The options must satisfy the rules.
[[nodiscard]] Neighbours neighbours(const Problem& problem, const costmodel::TrainingOptions& options);

/// One difference between two runs, applied alone to the first run.
struct LoneDifference {
  std::string field;               ///< "model", "system", "num_gpus" or a field's key.
  std::vector<Rejection> refused;  ///< Empty: it was predicted.
  Seconds step_time{};             ///< Step time of the first run with this difference.
  bool fits = false;
};

/// Every difference of `to` from `from`. Each gets the value that `to` has, what follows from it (with_value()), and
/// the values of fields that count only with it. Differences that change no option by themselves are left out.
[[nodiscard]] std::vector<LoneDifference> lone_differences(const Run& from, const Run& to);

}  // namespace foldwise::planner
