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

// `calibrate --runs`: fits a site's hardware to its runs. Host, clocks, NVLink and NICs each have a factor on the
// profile's numbers. Its prior is 1 with the variation between sites (ErrorModel). Measured steps update the factors:
// maximum a posteriori for normal errors in ln(step time), linearised anew in each step. docs/accuracy.md#site.
namespace foldwise::planner {

struct SiteParameter {
  Resource resource = Resource::kHost;
  double factor = 1.0;    ///< Relative amount of the resource: 2 is a host twice as fast. 1 if the runs cannot tell.
  double prior_sd = 0.0;  ///< Prior deviation of ln(factor).
  double sd = 0.0;        ///< Posterior deviation of ln(factor).
  bool told = false;      ///< Differs from 1 by more than kSure deviations.
  std::vector<double> moved;  ///< By run: contribution of its error to ln(factor), to first order.
};
inline constexpr double kSure = 1.96;  ///< Deviations of a normal's 95 % interval.

struct SiteFit {
  std::string system;  ///< The profile that the factors apply to.
  std::vector<std::string> runs;
  std::vector<double> measured, before, after;  ///< Seconds per step, by run.
  std::vector<SiteParameter> parameters;        ///< By kSiteResources.
  std::string profile;  ///< Text of the site's profile: the system's with scaled numbers, and their remaining
                        ///< uncertainty as `site`.
  [[nodiscard]] std::vector<double> factors() const;  ///< In the order of kSiteResources.
};

/// The profile's hardware with `factors` in the order of kSiteResources. Numbers that the run's file states stay.
[[nodiscard]] costmodel::Hardware site_hardware(const hwprofiles::Profile& profile, const std::vector<double>& factors);

/// Requires runs of one system. `name`: name of the new profile. Throws ConfigError if no run has a measured step time.
[[nodiscard]] SiteFit fit_site(const std::vector<Run>& runs, const std::string& name, const ErrorModel& errors);

[[nodiscard]] std::string site_fit_text(const SiteFit& fit);
[[nodiscard]] nlohmann::json site_fit_json(const SiteFit& fit);

}  // namespace foldwise::planner
