#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "planner/run/run_file.h"

// What the fields of a run make of each other: sizes that follow from sizes, splits as layouts, the depth of
// multi-token prediction, contradictions. The reader calls these in order; tests see them through read_run().
namespace foldwise::planner {

/// A run file's values between reading and use.
struct Reading {
  Run& run;
  std::set<std::string, std::less<>> stated{};   ///< Keys that the file gives, those with a mistake too.
  std::set<std::string, std::less<>> misread{};  ///< Keys whose value was reported: no reason for a second report.
  bool have_model = false, have_system = false;

  // Keys that fill no member of TrainingOptions.
  std::optional<std::int64_t> mtp{};
  std::optional<bool> mtp_is_on{}, mtp_use_repeated_layer{}, token_drop{}, offload_weights{};
  std::optional<std::int64_t> first_layers{}, last_layers{};
  bool account_for_embedding = false, account_for_loss = false;
  bool vpp_follows = false;  ///< From pipeline_layout.
  std::optional<std::vector<std::int64_t>> hierarchical_sizes{};

  /// A mistake of content at `key`.
  std::function<void(std::string_view key, std::string message)> refuse{};

  [[nodiscard]] bool states(std::string_view key) const { return stated.contains(key); }
  /// Notes what was taken for a field, and why.
  void assume(std::string_view key, std::string_view value, std::string_view why);
};

/// Gives the model so many depths of multi-token prediction; one that has no layers for them takes its last one.
void set_mtp_depth(costmodel::ModelSpec& model, std::int64_t depth);
/// Whether Megatron refuses the model's MTP layers: beside hyper-connections.
[[nodiscard]] bool excludes_mtp(const costmodel::ModelSpec& model);

/// Before silent fields are filled: the data-parallel size, what token_drop is short for.
void derive_sizes(Reading& reading);
/// After it: batch, MTP, split, and every contradiction. Leaves fields that do not apply at their defaults.
void derive_rest(Reading& reading);

}  // namespace foldwise::planner
