#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "planner/run/run_file.h"

// Values of a run that follow from its fields: sizes from other sizes, splits as layouts, the depth of multi-token
// prediction. Contradictions are reported. The reader calls these functions in order; tests reach them through
// read_run().
namespace foldwise::planner {

/// A run file's values between reading and use.
struct Reading {
  Run& run;
  std::set<std::string, std::less<>> stated{};   ///< Keys that the file gives, including those with mistakes.
  std::set<std::string, std::less<>> misread{};  ///< Keys whose value was reported. They are not reported again.
  /// Numbers and truths that the file gives for fields, by key.
  std::map<std::string, nlohmann::json, std::less<>> read{};
  bool have_model = false, have_system = false;

  // Keys that fill no member of TrainingOptions.
  std::optional<std::int64_t> mtp{};
  std::optional<bool> mtp_is_on{}, mtp_use_repeated_layer{}, token_drop{}, offload_weights{};
  std::optional<std::int64_t> first_layers{}, last_layers{};
  bool account_for_embedding = false, account_for_loss = false;
  bool vpp_follows = false;  ///< VPP follows from pipeline_layout.
  std::optional<std::vector<std::int64_t>> hierarchical_sizes{};

  /// Reports a mistake of content at `key`.
  std::function<void(std::string_view key, std::string message)> refuse{};

  [[nodiscard]] bool states(std::string_view key) const { return stated.contains(key); }
  /// Records the value that a field was given, and why.
  void assume(std::string_view key, std::string_view value, std::string_view why);
};

/// Gives the model `depth` depths of multi-token prediction. If the model has no layers for them, its last layer is
/// used.
void set_mtp_depth(costmodel::ModelSpec& model, std::int64_t depth);
/// Whether Megatron refuses the model's MTP layers. It does beside hyper-connections.
[[nodiscard]] bool excludes_mtp(const costmodel::ModelSpec& model);

/// Call before default values are filled in. Sets the data-parallel size and the options that token_drop stands for.
void derive_sizes(Reading& reading);
/// Call after default values are filled in. Derives batch, MTP and split, and reports every contradiction. Fields that
/// do not apply get their defaults.
void derive_rest(Reading& reading);

}  // namespace foldwise::planner
