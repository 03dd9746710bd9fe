#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/units/units.h"
#include "planner/run/run_file.h"
#include "planner/search/sensitivity.h"

// How far measured step times deviate from predicted ones, and why. Every interval and probability that we print comes
// from here. ln(measured / predicted) of a run is a sum of independent normal errors with mean 0: one for each cause
// that the run is exposed to, and one for its layout alone. Runs that share a cause share its error, which cancels when
// they are compared. Learnt by benchmarks/accuracy/error_learning.h; docs/accuracy.md#uncertainty.
namespace foldwise::planner {

/// By cause: 1 for a property of the run ("EP overlap", "as torchtitan"). For a resource that varies between sites
/// (kSiteResources), and the host's time for experts: elasticity of the step time.
using Exposure = std::map<std::string, double>;

/// Cause of plans: a search tends to find runs that the model predicts too fast.
inline constexpr const char* kChosen = "chosen by a search";

/// Resources of which a site may have more or less than its system's profile says; named by to_string().
inline constexpr Resource kSiteResources[] = {Resource::kHost, Resource::kFlops, Resource::kNvlink, Resource::kNic};

/// Causes of a run with this predicted step time. Makes a prediction for each of kSiteResources. On a measured site
/// (Hardware::site) its remaining uncertainty counts instead, as causes with deviation 1.
[[nodiscard]] Exposure exposure(const Run& run, Seconds step_time);
/// The causes of exposure() except those about resources. Makes no prediction.
[[nodiscard]] Exposure mechanisms(const Run& run);
/// Elasticity d ln(step time) / d ln(resource), from a prediction with `factor` times the resource.
[[nodiscard]] double slope(const Run& run, Seconds step_time, Resource resource, double factor);
/// One of kSiteResources, or the uncertainty that a measured site leaves.
[[nodiscard]] bool is_site(const std::string& cause);
/// About the source of a run, not its options. No plan has such a cause.
[[nodiscard]] bool is_origin(const std::string& cause);

struct ErrorCause {
  double sd = 0.0;  ///< Standard deviation of ln(measured / predicted); for a resource, of ln(its factor).
  std::map<std::string, std::int64_t> rows;  ///< Number of predictions with this cause, by GPU generation.
  bool operator==(const ErrorCause&) const = default;
};

/// Groups of runs with similar errors, most specific first: MoE or dense models on the run's system ("h200 moe"), then
/// on GPUs of its generation ("hopper moe").
[[nodiscard]] std::vector<std::string> peers_of(const Run& run);

/// Error statistics of a group with many runs.
struct Peers {
  double scale = 1.0;  ///< Deviations relative to those of all runs, without differences between hosts.
  double quantile_95 = 0.0;
  bool operator==(const Peers&) const = default;
};
/// The first group of peers_of(run) that `known` has; nullptr if it has none.
[[nodiscard]] const Peers* known_peers(const std::map<std::string, Peers>& known, const Run& run);

struct ErrorModel {
  std::map<std::string, ErrorCause> causes;
  double layout_sd = 0.0;
  double quantile_95 = 0.0;              ///< |error| / standard deviation of rows left out of the fit; normal: 1.96.
  std::map<std::string, Peers> peers{};  ///< Groups with many runs, by name.
  bool operator==(const ErrorModel&) const = default;

  /// The errors of the run's peers if these are known, else of all runs.
  [[nodiscard]] ErrorModel of_peers(const Run& run) const;

  /// Deviation of a cause. Unknown causes get the largest one of causes about a run's options.
  [[nodiscard]] double sd_of(const std::string& cause) const;
  /// Standard deviation of ln(measured / predicted).
  [[nodiscard]] double deviation(const Exposure& run) const;
  /// Deviation of the difference between two runs' errors. Shared causes cancel; resources only on one site.
  [[nodiscard]] double deviation_between(const Exposure& a, const Exposure& b, bool one_site) const;
  /// Causes that no row has, or none on this GPU generation. See sd_of().
  [[nodiscard]] std::vector<std::string> unmeasured(const Exposure& run, const std::string& generation) const;
};

/// Intervals in seconds that contain 80 % and 95 % of measured runs.
struct Interval {
  double low = 0.0, high = 0.0;
  double low_95 = 0.0, high_95 = 0.0;
  std::vector<std::string> unmeasured;  ///< ErrorModel::unmeasured().
};
inline constexpr double kNormal80 = 1.2815515655446004;  ///< Deviations of a normal's 80 % interval.

struct Odds {
  double best = 0.0;           ///< Probability of being the fastest of all contenders.
  double expected_loss = 0.0;  ///< Mean excess of its step time over the fastest contender's, relative to the latter.
};

/// Probability that a host with assumed prices is as slow as the measured virtual machines
/// (HostSpec::of_virtual_machine). Chosen, not counted.
inline constexpr double kVirtualMachines = 0.5;
/// ln(step time on such a virtual machine / step time at the assumed prices); 0 if the prices are measured.
[[nodiscard]] double more_on_virtual_machine(const Run& run, Seconds step_time);

/// Includes both kinds of host if the prices are assumed. Nullopt for an empty error model.
[[nodiscard]] std::optional<Interval> step_time_interval(const ErrorModel& errors, const Run& run, Seconds step_time);

/// hwprofiles/data/residuals.json as built into the program.
[[nodiscard]] const ErrorModel& built_in_errors();

/// Throws ConfigError. `name`: name of the text in its messages.
[[nodiscard]] ErrorModel read_errors(const std::string& text, const std::string& name);
/// Writes a new file beside `path` and renames it, so that no reader sees a partial file. Throws ConfigError.
void write_errors(const ErrorModel& errors, const std::string& path);

}  // namespace foldwise::planner
