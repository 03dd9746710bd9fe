#include "planner/report/platform_fit.h"

#include <fmt/format.h>

#include <cmath>
#include <set>
#include <stdexcept>
#include <utility>

#include "hwprofiles/fit/least_squares.h"
#include "hwprofiles/load/profile.h"
#include "planner/report/table.h"

namespace foldwise::planner {
namespace {

/// A system, and what its row replaces of it.
using SystemKey = std::pair<std::string, nlohmann::json>;

/// Rows with a measured step, and the profiles they run on.
struct FittedRows {
  std::vector<const ValidatedRow*> rows;
  std::map<SystemKey, hwprofiles::Profile> profiles;
  std::vector<FieldGroup> groups;
};

SystemKey key_of(const Run& run) {
  return {run.system_name, run.json.value(hwprofiles::kChanges, nlohmann::json::object())};
}

std::map<std::string, double> by_field(const std::vector<FieldGroup>& groups, const std::vector<double>& logs) {
  std::map<std::string, double> factors;
  for (std::size_t i = 0; i < groups.size(); ++i)
    for (const std::string& field : groups[i]) factors[field] = std::exp(logs[i]);
  return factors;
}

/// log(predicted / measured) of the rows that `use` accepts.
template <typename Use>
std::vector<double> log_errors(const FittedRows& problem, const std::vector<double>& logs, const Use& use) {
  std::map<SystemKey, costmodel::Hardware> hardware;
  const std::map<std::string, double> factors = by_field(problem.groups, logs);
  for (const auto& [key, profile] : problem.profiles) hardware[key] = hwprofiles::scaled(profile, factors);
  std::vector<double> errors;
  for (const ValidatedRow* row : problem.rows) {
    if (!use(*row)) continue;
    const Run& run = row->run;
    const costmodel::Prediction prediction =
        as_measured(run, costmodel::predict(run.model, run.options, hardware.at(key_of(run))));
    const auto seconds = prediction.step_time.to<double>();
    errors.push_back(std::log(seconds / row->step->seconds));
  }
  return errors;
}

template <typename Use>
std::vector<double> fit(const FittedRows& problem, const Use& use) {
  constexpr double kWidest = 10.0;  // Factor either way.
  const auto n = static_cast<Eigen::Index>(problem.groups.size());
  const Eigen::VectorXd limit = Eigen::VectorXd::Constant(n, std::log(kWidest));
  const auto residuals = [&](const Eigen::VectorXd& logs) {
    const std::vector<double> errors = log_errors(problem, {logs.begin(), logs.end()}, use);
    return Eigen::VectorXd(Eigen::Map<const Eigen::VectorXd>(errors.data(), static_cast<Eigen::Index>(errors.size())));
  };
  const Eigen::VectorXd logs = hwprofiles::robust_least_squares(residuals, Eigen::VectorXd::Zero(n), -limit, limit);
  return {logs.begin(), logs.end()};
}

std::vector<double> percent(const std::vector<double>& logs) {
  std::vector<double> errors;
  errors.reserve(logs.size());
  for (const double log : logs) errors.push_back(100.0 * (std::exp(log) - 1.0));
  return errors;
}

}  // namespace

PlatformFit fit_platform(const Validation& validation, const std::vector<FieldGroup>& groups) {
  FittedRows problem{{}, {}, groups};
  std::set<std::string> models;
  for (const ValidatedRow& row : validation.rows) {
    if (!row.step) continue;
    problem.rows.push_back(&row);
    models.insert(row.run.model_name);
    const SystemKey key = key_of(row.run);
    if (!problem.profiles.contains(key)) problem.profiles.emplace(key, profile_of(row.run));
  }
  const auto mistake = [](std::string what) {
    throw config::ConfigError({{{"command line", 0, "--fit"}, std::move(what)}});
  };
  if (problem.rows.empty()) mistake("no row has a measured step time");
  for (const FieldGroup& group : groups)
    for (const std::string& field : group)
      for (const auto& [key, profile] : problem.profiles) try {
          static_cast<void>(hwprofiles::scaled(profile, {{field, 1.0}}));
        } catch (const std::invalid_argument& error) {
          mistake(fmt::format("expected numbers of the profile such as /host/module; {}", error.what()));
        }

  const auto all = [](const ValidatedRow&) { return true; };
  const std::vector<double> logs = fit(problem, all);
  PlatformFit result;
  result.before = error_statistics(percent(log_errors(problem, std::vector<double>(groups.size(), 0.0), all)));
  result.training = error_statistics(percent(log_errors(problem, logs, all)));
  if (models.size() > 1) {
    std::vector<double> left_out;
    for (const std::string& model : models) {
      const auto of_model = [&](const ValidatedRow& row) { return row.run.model_name == model; };
      const std::vector<double> others = fit(problem, [&](const ValidatedRow& row) { return !of_model(row); });
      for (const double error : log_errors(problem, others, of_model)) left_out.push_back(error);
    }
    result.left_out = error_statistics(percent(left_out));
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    FittedGroup group{groups[i], std::exp(logs[i]), {}};
    for (const auto& [key, profile] : problem.profiles)
      for (const std::string& field : groups[i]) {
        const nlohmann::json& quantity = profile.json.at(nlohmann::json::json_pointer(field));
        group.values[key.first][field] = fmt::format("{:.4g} {}", group.factor * quantity.at("value").get<double>(),
                                                     quantity.at("unit").get<std::string>());
      }
    result.groups.push_back(std::move(group));
  }
  return result;
}

std::string platform_fit_text(const PlatformFit& fit) {
  std::string text =
      "Fitted to the step times of these rows; left out: every model predicted by the fit of the others\n";
  Table errors({"<errors in %", "rows", "MAPE", "med.", "bias"});
  const auto add = [&](const char* name, const ErrorStatistics& s) {
    if (s.count > 0)
      errors.add({name, std::to_string(s.count), fmt::format("{:.1f}", s.mape), fmt::format("{:.1f}", s.median_ape),
                  fmt::format("{:+.1f}", s.bias_pct)});
  };
  add("before", fit.before);
  add("training", fit.training);
  add("left out", fit.left_out);
  text += errors.text();
  for (const FittedGroup& group : fit.groups) {
    text += fmt::format("factor {:.4g}\n", group.factor);
    for (const auto& [system, values] : group.values)
      for (const auto& [field, value] : values) text += fmt::format("  {}: {} = {}\n", system, field, value);
  }
  return text;
}

}  // namespace foldwise::planner
