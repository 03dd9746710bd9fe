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

// Named sets of defaults (planner/run/defaults/*.json): the values that a program or its recipes use for options that a
// run file leaves out. A value may depend on the model, on what recipes do on the GPU, and on options that come earlier
// in the table of fields.
namespace foldwise::planner {

/// The set that is used if a run file names none.
inline constexpr std::string_view kDefaults = "megatron-lm-0.16";

struct DefaultValue {
  nlohmann::json value;
  /// (key, values): all conditions must hold. A key is a field, model.moe, model.hybrid or system.recipe_graphs.
  std::vector<std::pair<std::string, std::vector<nlohmann::json>>> when;
  std::string source;
};

struct Defaults {
  std::string name, title;
  bool megatron = true;  ///< False: another program, whose code differs from what we predict.
  std::string extends;   ///< Name of a set that fills the gaps of this one; empty: Megatron's own defaults.
  /// By field. The first value whose conditions hold is used.
  std::vector<std::pair<std::string, std::vector<DefaultValue>>> values;

  [[nodiscard]] const std::vector<DefaultValue>* find(std::string_view key) const;
};

[[nodiscard]] std::vector<std::string> built_in_defaults();  ///< Sorted.
/// The built-in set of `family` with the highest version: "megatron-bridge" gives "megatron-bridge-26.04".
[[nodiscard]] std::string newest_defaults(std::string_view family);
/// A built-in set, or a file if the name is a path that ends in .json. Throws config::ConfigError; for an unknown name
/// its location has the file "defaults". The result lives as long as the program.
[[nodiscard]] const Defaults& load_defaults(const std::string& name);

/// A default that was used for a field that the run file leaves out.
struct Assumed {
  std::string key;
  nlohmann::json value;
  std::string from;  ///< Name of the set, or "Megatron's default".
};

/// Sets every field that `stated` lacks to the value of the set, or to Megatron's own default. Sizes that follow from
/// others (global_batch, dp, the split) stay. A value that the release does not have is replaced by the one of
/// Field::limited. Returns the values that were used and matter to the run.
std::vector<Assumed> fill_silent(const Defaults& defaults, const costmodel::ModelSpec& model,
                                 const costmodel::Hardware& hardware, const std::set<std::string, std::less<>>& stated,
                                 costmodel::TrainingOptions& options, const Release* release = nullptr);

/// Options with the values of `stated` (key, value). All other fields have the values of the set.
[[nodiscard]] costmodel::TrainingOptions options_of(const Defaults& defaults, const costmodel::ModelSpec& model,
                                                    const costmodel::Hardware& hardware,
                                                    const std::map<std::string, nlohmann::json>& stated,
                                                    const Release* release = nullptr);

}  // namespace foldwise::planner
