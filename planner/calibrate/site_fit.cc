#include "planner/calibrate/site_fit.h"

#include <fmt/format.h>

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

#include "costmodel/step/step.h"
#include "planner/report/prediction_report.h"
#include "planner/report/screen.h"
#include "planner/report/validation.h"
#include "planner/uncertainty/beliefs.h"

namespace foldwise::planner {

using nlohmann::json;

namespace {

constexpr Eigen::Index kParameters = std::size(kSiteResources);
/// Prior standard deviations of ln(factor). Clocks of GPUs of one model: from records of a second H100
/// (benchmarks/accuracy/journal.md#memory-bound). NVLink is assumed to vary equally. Those of hosts and fabrics come
/// from the error model.
constexpr double kClockSd = 0.02, kNvlinkSd = 0.02;
/// Deviation of ln(step time) per exposure, for single runs: docs/accuracy.md#site.
constexpr double kRunSd = 0.1;
constexpr int kSteps = 6;  ///< Gauss-Newton steps. Elasticities vary little, so the second step already changes little.

bool matches(const std::string& text, const char* first, const char* last) {
  return text.starts_with(first) && text.ends_with(last);
}

/// Exponent of the factor on `resource` in the profile's number at `pointer`; 0 if the number does not belong to it.
double power_of(Resource resource, const std::string& pointer) {
  switch (resource) {
    case Resource::kHost:
      for (const costmodel::HostPrice& price : costmodel::kHostPrices)
        if (pointer == fmt::format("/host/{}", price.name)) return -1.0;
      return 0.0;
    case Resource::kFlops:
      if (pointer.starts_with("/gemm/") && pointer.find("/sustained/") != std::string::npos) return 1.0;
      if (matches(pointer, "/attention/", "_rate")) return 1.0;
      return matches(pointer, "/attention/", "_tile") ? -1.0 : 0.0;
    case Resource::kNvlink:
      return matches(pointer, "/network/nvlink/", "/bandwidth") ? 1.0 : 0.0;
    case Resource::kNic:
      return pointer == "/network/nic_bandwidth" ? 1.0 : 0.0;
    case Resource::kPower:
    case Resource::kHbmBandwidth:
    case Resource::kHbmCapacity:
      return 0.0;
  }
  return 0.0;
}

/// Scale of each number of the profile, by JSON pointer. Shares stay at most 1. Numbers that the run states are not
/// scaled.
std::map<std::string, double> scales(const hwprofiles::Profile& profile, const std::vector<double>& factors) {
  std::map<std::string, double> result;
  for (const auto& [pointer, provenance] : profile.provenance)
    for (std::size_t i = 0; i < factors.size(); ++i) {
      const double power = power_of(kSiteResources[i], pointer);
      if (power == 0.0 || factors[i] == 1.0) continue;
      const json& quantity = profile.json.at(json::json_pointer(pointer));
      if (quantity.at("source") == hwprofiles::kChanges) continue;
      double scale = std::pow(factors[i], power);
      if (pointer.find("/sustained/") != std::string::npos)
        scale = std::min(scale, 1.0 / quantity.at("value").get<double>());
      result[pointer] = scale;
    }
  return result;
}

std::vector<double> factors_of(const Eigen::VectorXd& logs) {
  std::vector<double> factors(static_cast<std::size_t>(logs.size()));
  std::ranges::transform(logs, factors.begin(), [](double log) { return std::exp(log); });
  return factors;
}

/// A measured run and its system with the run's overrides.
struct SiteRun {
  Run run;
  hwprofiles::Profile profile;
};

/// ln(step time) of each run, for these logarithms of the factors.
Eigen::VectorXd log_steps(const std::vector<SiteRun>& list, const Eigen::VectorXd& logs) {
  Eigen::VectorXd result(static_cast<Eigen::Index>(list.size()));
  for (Eigen::Index i = 0; i < result.size(); ++i) {
    const auto& [run, profile] = list[static_cast<std::size_t>(i)];
    const costmodel::Hardware site = site_hardware(profile, factors_of(logs));
    const costmodel::Step step = costmodel::compose_step(run.model, run.options, site);
    result[i] = std::log(as_measured(run, costmodel::predict(step, false)).step_time.to<double>());
  }
  return result;
}

/// Covariance of the runs' errors whose causes are not the resources with a factor.
Eigen::MatrixXd other_errors(const std::vector<SiteRun>& list, const ErrorModel& errors) {
  const auto n = static_cast<Eigen::Index>(list.size());
  std::vector<Exposure> causes;
  causes.reserve(list.size());
  for (const SiteRun& one : list) causes.push_back(mechanisms(one.run));
  const Eigen::MatrixXd loads = loadings(errors, causes);
  Eigen::MatrixXd result =
      loads * loads.transpose() + errors.layout_sd * errors.layout_sd * Eigen::MatrixXd::Identity(n, n);
  // A single run's use of host and networks also has a prediction error.
  for (Eigen::Index i = 0; i < n; ++i) {
    const Run& run = list[static_cast<std::size_t>(i)].run;
    const costmodel::Step step = costmodel::compose_step(run.model, run.options, run.hardware);
    for (const auto& [name, exposed] : exposure(run, costmodel::step_time(step)))
      if (is_site(name)) result(i, i) += std::pow(kRunSd * exposed, 2);
  }
  return result;
}

struct Posterior {
  Eigen::VectorXd logs;        ///< [parameter] ln(factor).
  Eigen::MatrixXd covariance;  ///< [parameter x parameter] of logs.
  Eigen::MatrixXd gain;        ///< [parameter x run]: derivative of ln(factor) by ln(measured).
};

/// Posterior mode. Parameters that are not `free` stay 0. `precision` is the inverse of other_errors().
Posterior posterior(const std::vector<SiteRun>& list, const Eigen::VectorXd& measured, const Eigen::MatrixXd& precision,
                    const Eigen::VectorXd& prior_sd, const std::vector<bool>& free) {
  constexpr double kChange = 0.02;
  Posterior result{Eigen::VectorXd::Zero(kParameters), {}, {}};
  for (int step = 0; step < kSteps; ++step) {
    const Eigen::VectorXd at = log_steps(list, result.logs);
    Eigen::MatrixXd slopes = Eigen::MatrixXd::Zero(at.size(), kParameters);
    for (Eigen::Index p = 0; p < kParameters; ++p) {
      if (!free[static_cast<std::size_t>(p)]) continue;
      Eigen::VectorXd logs = result.logs;
      logs[p] += kChange;
      slopes.col(p) = (log_steps(list, logs) - at) / kChange;
    }
    const Eigen::VectorXd known = prior_sd.array().square().inverse();
    Eigen::MatrixXd information = slopes.transpose() * precision * slopes;
    information.diagonal() += known;
    result.covariance = information.ldlt().solve(Eigen::MatrixXd::Identity(kParameters, kParameters));
    result.gain = result.covariance * slopes.transpose() * precision;
    result.logs = result.gain * (measured - at + slopes * result.logs);
  }
  return result;
}

std::string profile_text(const hwprofiles::Profile& profile, const std::string& name, const std::string& system,
                         const SiteFit& fit, const Posterior& posterior) {
  constexpr const char* kSource = "site_runs";
  json tree = profile.json;
  tree["name"] = name;
  tree["sources"][kSource] =
      fmt::format("foldwise calibrate --runs: {} measured steps, factors on {}", fit.runs.size(), system);
  for (const auto& [pointer, scale] : scales(profile, fit.factors())) {
    json& quantity = tree.at(json::json_pointer(pointer));
    quantity["value"] = scale * quantity.at("value").get<double>();
    quantity["kind"] = "fitted";
    quantity["source"] = kSource;
    quantity.erase("date");
    quantity["note"] = fmt::format("{} times that of {}", scale, system);
  }
  for (Eigen::Index i = 0; i < kParameters; ++i)
    for (Eigen::Index k = i; k < kParameters; ++k)
      tree["site"][fmt::format("{}_{}", to_string(kSiteResources[i]), to_string(kSiteResources[k]))] = {
          {"value", posterior.covariance(i, k)},
          {"unit", "1"},
          {"kind", "fitted"},
          {"source", kSource},
          {"note", "covariance of ln(factor)"}};
  return tree.dump(2) + '\n';
}

}  // namespace

std::vector<double> SiteFit::factors() const {
  std::vector<double> result;
  result.reserve(parameters.size());
  for (const SiteParameter& parameter : parameters) result.push_back(parameter.factor);
  return result;
}

costmodel::Hardware site_hardware(const hwprofiles::Profile& profile, const std::vector<double>& factors) {
  return hwprofiles::scaled(profile, scales(profile, factors));
}

SiteFit fit_site(const std::vector<Run>& runs, const std::string& name, const ErrorModel& errors) {
  std::vector<SiteRun> list;
  SiteFit fit;
  config::Diagnostics diagnostics;
  for (const Run& run : runs) {
    const auto step = measured_step(run);
    if (!step) continue;
    if (std::string wrong = mistake_in_step(run, costmodel::predict(run.model, run.options, run.hardware).step_time);
        !wrong.empty())
      diagnostics.error({run.file, run.line, run.id}, std::move(wrong));
    list.push_back({run, profile_of(run)});
    fit.runs.push_back(run_name(run));
    fit.measured.push_back(step->seconds);
  }
  diagnostics.throw_if_any();
  if (list.empty()) throw config::ConfigError({{{config::kArguments, 0, "runs"}, "no run has a measured step time"}});
  fit.system = list.front().run.system_name;
  Eigen::VectorXd measured(static_cast<Eigen::Index>(list.size())), prior_sd(kParameters);
  for (Eigen::Index i = 0; i < measured.size(); ++i) measured[i] = std::log(fit.measured[static_cast<std::size_t>(i)]);
  for (Eigen::Index p = 0; p < kParameters; ++p) {
    const Resource resource = kSiteResources[p];
    prior_sd[p] = resource == Resource::kFlops    ? kClockSd
                  : resource == Resource::kNvlink ? kNvlinkSd
                                                  : errors.sd_of(std::string(to_string(resource)));
  }
  const Eigen::MatrixXd others = other_errors(list, errors);
  const Eigen::MatrixXd precision = others.ldlt().solve(Eigen::MatrixXd::Identity(others.rows(), others.cols()));

  // First fit all parameters to find those that the runs determine, then fit those alone.
  std::vector<bool> free(kParameters, true);
  const Posterior all = posterior(list, measured, precision, prior_sd, free);
  for (Eigen::Index p = 0; p < kParameters; ++p)
    free[static_cast<std::size_t>(p)] = std::abs(all.logs[p]) > kSure * std::sqrt(all.covariance(p, p));
  const Posterior found = posterior(list, measured, precision, prior_sd, free);

  const Eigen::VectorXd before = log_steps(list, Eigen::VectorXd::Zero(kParameters)),
                        after = log_steps(list, found.logs);
  for (Eigen::Index i = 0; i < measured.size(); ++i) {
    fit.before.push_back(std::exp(before[i]));
    fit.after.push_back(std::exp(after[i]));
  }
  for (Eigen::Index p = 0; p < kParameters; ++p) {
    SiteParameter parameter{.resource = kSiteResources[p],
                            .factor = std::exp(found.logs[p]),
                            .prior_sd = prior_sd[p],
                            .sd = std::sqrt(found.covariance(p, p)),
                            .told = free[static_cast<std::size_t>(p)],
                            .moved = {}};
    for (Eigen::Index i = 0; i < measured.size(); ++i)
      parameter.moved.push_back(found.gain(p, i) * (measured[i] - before[i]));
    fit.parameters.push_back(std::move(parameter));
  }
  fit.profile = profile_text(hwprofiles::load_profile(fit.system), name, fit.system, fit, found);
  return fit;
}

std::string site_fit_text(const SiteFit& fit) {
  double before = 0.0, after = 0.0;  // Mean absolute errors in percent.
  for (std::size_t i = 0; i < fit.runs.size(); ++i) {
    const double percent = 100.0 / fit.measured[i] / static_cast<double>(fit.runs.size());
    before += percent * std::abs(fit.before[i] - fit.measured[i]);
    after += percent * std::abs(fit.after[i] - fit.measured[i]);
  }
  std::string out = fmt::format(
      "{}: {} measured steps, {:.1f} % off before, {:.1f} % after\n\n"
      "Factors on the profile's resources, and their standard deviations in percent\n",
      fit.system, fit.runs.size(), before, after);
  Table parameters({"<", "factor", "before", "after", "<"});
  for (const SiteParameter& p : fit.parameters)
    parameters.add({std::string(to_string(p.resource)), p.told ? fmt::format("{:.3f}", p.factor) : "-",
                    fmt::format("{:.0f}", 100.0 * p.prior_sd), fmt::format("{:.0f}", 100.0 * p.sd),
                    p.told ? "" : "left as it is: these runs cannot tell it from 1"});
  out += parameters.text() + "\nSeconds per step, and percent by which each run moved the factors\n";
  std::vector<std::string> titles = {"<run", "measured", "before", "err %", "after", "err %"};
  for (const SiteParameter& p : fit.parameters)
    if (p.told) titles.emplace_back(to_string(p.resource));
  Table runs(titles);
  for (std::size_t i = 0; i < fit.runs.size(); ++i) {
    const auto error = [&](double seconds) {
      return fmt::format("{:+.1f}", 100.0 * (seconds - fit.measured[i]) / fit.measured[i]);
    };
    std::vector<std::string> cells = {shortened(fit.runs[i], 44),  seconds_text(fit.measured[i]),
                                      seconds_text(fit.before[i]), error(fit.before[i]),
                                      seconds_text(fit.after[i]),  error(fit.after[i])};
    for (const SiteParameter& p : fit.parameters)
      if (p.told) cells.push_back(fmt::format("{:+.1f}", 100.0 * p.moved[i]));
    runs.add(std::move(cells));
  }
  return out + runs.text();
}

json site_fit_json(const SiteFit& fit) {
  json parameters = json::object(), runs = json::array();
  for (const SiteParameter& p : fit.parameters)
    parameters[to_string(p.resource)] = {
        {"factor", p.factor}, {"sd", p.sd}, {"prior_sd", p.prior_sd}, {"told", p.told}, {"moved", p.moved}};
  for (std::size_t i = 0; i < fit.runs.size(); ++i)
    runs.push_back({{"run", fit.runs[i]},
                    {"measured_s", fit.measured[i]},
                    {"before_s", fit.before[i]},
                    {"after_s", fit.after[i]}});
  return {{"system", fit.system}, {"parameters", parameters}, {"runs", runs}};
}

}  // namespace foldwise::planner
