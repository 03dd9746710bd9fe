#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/hardware/hardware.h"
#include "costmodel/model/model.h"
#include "costmodel/parallel/options.h"
#include "planner/run/release.h"

// Named sets of defaults (planner/run/defaults/*.json): what a program or its recipes take for an option that a run
// file leaves out. A value may depend on the model, on what recipes do on the GPU and on options before it in the table
// of fields.
namespace foldwise::planner {

/// The set of a run file that names none.
inline constexpr std::string_view kDefaults = "megatron-lm-0.16";

struct DefaultValue {
  nlohmann::json value;
  /// (key, values): all must hold. Keys are fields, or model.moe, model.hybrid, system.recipe_graphs.
  std::vector<std::pair<std::string, std::vector<nlohmann::json>>> when;
  std::string source;
};

struct Defaults {
  std::string name, title;
  bool megatron = true;  ///< False: another program, whose code differs from what we predict.
  std::string extends;   ///< Set whose values stand where this one has none; empty: Megatron's own defaults.
  std::vector<std::pair<std::string, std::vector<DefaultValue>>> values;  ///< By field; the first that holds counts.

  [[nodiscard]] const std::vector<DefaultValue>* find(std::string_view key) const;
};

[[nodiscard]] std::vector<std::string> built_in_defaults();  ///< Sorted.
/// The built-in set of `family` with the highest version: "megatron-bridge" gives "megatron-bridge-26.04".
[[nodiscard]] std::string newest_defaults(std::string_view family);
/// A built-in set, or the file of a path that ends in .json. Throws config::ConfigError, whose location for a name that
/// is none has the file "defaults". The result lives as long as the program.
[[nodiscard]] const Defaults& load_defaults(const std::string& name);

/// A value that was taken for a silent field.
struct Assumed {
  std::string key;
  nlohmann::json value;
  std::string from;  ///< Name of the set, or "Megatron's default".
};

/// Gives every field that `stated` lacks its value of the set, or Megatron's own. Sizes that follow from others
/// (global_batch, dp, the split) are left alone. A value that the release has not gives way to what it has instead
/// (Field::limited). Returns what was taken and matters to the run.
std::vector<Assumed> fill_silent(const Defaults& defaults, const costmodel::ModelSpec& model,
                                 const costmodel::Hardware& hardware, const std::set<std::string, std::less<>>& stated,
                                 costmodel::TrainingOptions& options, const Release* release = nullptr);

/// Options whose fields have the values of `stated` (key, value), and else those of the set.
[[nodiscard]] costmodel::TrainingOptions options_of(const Defaults& defaults, const costmodel::ModelSpec& model,
                                                    const costmodel::Hardware& hardware,
                                                    const std::map<std::string, nlohmann::json>& stated,
                                                    const Release* release = nullptr);

}  // namespace foldwise::planner
