#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/units/units.h"
#include "planner/run/run_file.h"
#include "planner/search/sensitivity.h"

// How far measured step times may lie from predicted ones, and why: the source of every interval and probability that
// we print. ln(measured / predicted) of a run is a sum of errors, each of a cause that the run is exposed to and of its
// own normal distribution around 0, and one of the run's layout alone. Runs that share a cause share its error, so it
// cancels where they are compared. Learnt by benchmarks/accuracy/error_learning.h; docs/accuracy.md#uncertainty.
namespace foldwise::planner {

/// By cause: 1 for what a run does or is ("EP overlap", "as torchtitan"); for what sites differ in (kSiteResources),
/// and what a host takes for experts, the relative change of the step time over that of the resource.
using Exposure = std::map<std::string, double>;

/// Of plans: a search finds what the model is too fast for.
inline constexpr const char* kChosen = "chosen by a search";

/// What a site has more or less of than its system's profile says, under the names of to_string().
inline constexpr Resource kSiteResources[] = {Resource::kHost, Resource::kFlops, Resource::kNvlink, Resource::kNic};

/// Causes of a run whose step is predicted to take `step_time`. Makes a prediction for each of kSiteResources. On a
/// system of which runs were looked at (Hardware::site) what they left unknown counts instead, as causes of
/// deviation 1.
[[nodiscard]] Exposure exposure(const Run& run, Seconds step_time);
/// What exposure() names of a run without predicting anything: its causes but for those that are about resources.
[[nodiscard]] Exposure mechanisms(const Run& run);
/// Relative change of the step time over that of the resource, with `factor` times of it.
[[nodiscard]] double slope(const Run& run, Seconds step_time, Resource resource, double factor);
/// One of kSiteResources, or what runs left unknown of a site.
[[nodiscard]] bool is_site(const std::string& cause);
/// Of where a run comes from, not of what it does: no plan chooses it.
[[nodiscard]] bool is_origin(const std::string& cause);

struct ErrorCause {
  double sd = 0.0;                           ///< Of ln(measured / predicted), or of ln(factor on the resource).
  std::map<std::string, std::int64_t> rows;  ///< Predictions that are exposed to it, by GPU generation.
  bool operator==(const ErrorCause&) const = default;
};

/// Whose errors those of a run are like: of MoE or dense models on its system ("h200 moe"), or else on GPUs of its
/// generation ("hopper moe").
[[nodiscard]] std::vector<std::string> peers_of(const Run& run);

/// What is known of runs that have many peers.
struct Peers {
  double scale = 1.0;  ///< Their deviations over those of all runs, but for what hosts differ by.
  double quantile_95 = 0.0;
  bool operator==(const Peers&) const = default;
};
/// Of the first of a run's peers that `known` has, by name; null: of none.
[[nodiscard]] const Peers* known_peers(const std::map<std::string, Peers>& known, const Run& run);

struct ErrorModel {
  std::map<std::string, ErrorCause> causes;
  double layout_sd = 0.0;
  double quantile_95 = 0.0;  ///< Of absolute errors over their standard deviations, of rows left out; normal: 1.96.
  std::map<std::string, Peers> peers{};  ///< Those of whom there are many, by name.
  bool operator==(const ErrorModel&) const = default;

  /// The errors of runs like this one: of its peers if they are known, or else of all.
  [[nodiscard]] ErrorModel of_peers(const Run& run) const;

  /// Of a cause; of one that no row has, the worst known one of what runs do.
  [[nodiscard]] double sd_of(const std::string& cause) const;
  /// Standard deviation of ln(measured / predicted).
  [[nodiscard]] double deviation(const Exposure& run) const;
  /// The same of one run's less another's: what both are exposed to cancels, and what sites differ in only at one site.
  [[nodiscard]] double deviation_between(const Exposure& a, const Exposure& b, bool one_site) const;
  /// That no row tells of: of a cause that none has, or none on this generation. See sd_of().
  [[nodiscard]] std::vector<std::string> unmeasured(const Exposure& run, const std::string& generation) const;
};

/// What four of five measured runs lie in, and 19 of 20, in seconds.
struct Interval {
  double low = 0.0, high = 0.0;
  double low_95 = 0.0, high_95 = 0.0;
  std::vector<std::string> unmeasured;  ///< ErrorModel::unmeasured().
};
inline constexpr double kNormal80 = 1.2815515655446004;  ///< Standard deviations that hold 80 % of a normal.

/// Of one of several runs that may be chosen.
struct Odds {
  double best = 0.0;           ///< Probability of being the fastest of all contenders.
  double expected_loss = 0.0;  ///< Mean of what its step takes longer than that of the fastest one, as a share of that.
};

/// Of hosts that a profile assumes the prices of, those that take what virtual machines were measured to take
/// (HostSpec::of_virtual_machine). Nobody has counted them.
inline constexpr double kVirtualMachines = 0.5;
/// ln of the run's step there over its step at the assumed prices; 0: the prices are measured.
[[nodiscard]] double more_on_virtual_machine(const Run& run, Seconds step_time);

/// Of either kind of host, where its prices are assumed. None of an empty model.
[[nodiscard]] std::optional<Interval> step_time_interval(const ErrorModel& errors, const Run& run, Seconds step_time);

/// hwprofiles/data/residuals.json as built into the program.
[[nodiscard]] const ErrorModel& built_in_errors();

/// Throws ConfigError; `name` is what its messages call the text.
[[nodiscard]] ErrorModel read_errors(const std::string& text, const std::string& name);
/// Writes `path` anew: beside it first, then renamed, so that a reader never sees half a file. Throws ConfigError.
void write_errors(const ErrorModel& errors, const std::string& path);

}  // namespace foldwise::planner
