#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hwprofiles/load/profile.h"
#include "planner/report/validation.h"
#include "planner/run/run_file.h"
#include "planner/search/sensitivity.h"
#include "planner/uncertainty/error_model.h"

// What a site's own runs say of the site: `calibrate --runs`. Its host, clocks, NVLink and NICs each have a factor on
// what the profile says, known beforehand to be about 1 by as much as sites differ (ErrorModel). Measured steps move
// them, as far as errors that have nothing to do with the site leave: maximum a posteriori of normal errors in ln(step
// time), predicted anew after each step. docs/accuracy.md#site.
namespace foldwise::planner {

struct SiteParameter {
  Resource resource = Resource::kHost;
  double factor = 1.0;  ///< Of what there is of the resource: 2 is a host twice as fast. 1 where the runs cannot tell.
  double prior_sd = 0.0;      ///< Of ln(factor) beforehand.
  double sd = 0.0;            ///< And afterwards.
  bool told = false;          ///< 1 is farther away than kSure deviations.
  std::vector<double> moved;  ///< By run: what its error contributes to ln(factor), to first order.
};
inline constexpr double kSure = 1.96;  ///< 95 % of a normal lie nearer.

struct SiteFit {
  std::string system;  ///< The profile that the factors are on.
  std::vector<std::string> runs;
  std::vector<double> measured, before, after;  ///< Seconds per step, by run.
  std::vector<SiteParameter> parameters;        ///< By kSiteResources.
  std::string profile;  ///< Text: the system's, with what the factors make of its numbers, and what is left unknown of
                        ///< them as `site`.
  [[nodiscard]] std::vector<double> factors() const;  ///< By kSiteResources.
};

/// The profile's hardware with `factors` by kSiteResources, but for numbers that a run's file says.
[[nodiscard]] costmodel::Hardware site_hardware(const hwprofiles::Profile& profile, const std::vector<double>& factors);

/// Requires runs of one system. `name` is the new profile's. Throws ConfigError where none has a measured step time.
[[nodiscard]] SiteFit fit_site(const std::vector<Run>& runs, const std::string& name, const ErrorModel& errors);

[[nodiscard]] std::string site_fit_text(const SiteFit& fit);
[[nodiscard]] nlohmann::json site_fit_json(const SiteFit& fit);

}  // namespace foldwise::planner
