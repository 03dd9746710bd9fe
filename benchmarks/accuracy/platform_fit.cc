#include "benchmarks/accuracy/platform_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>
#include <stdexcept>
#include <utility>

#include "benchmarks/accuracy/error_learning.h"
#include "hwprofiles/fit/least_squares.h"
#include "hwprofiles/load/profile.h"
#include "planner/report/screen.h"

namespace foldwise::accuracy {

using namespace planner;
namespace {

/// A system and the row's overrides of it.
using SystemKey = std::pair<std::string, nlohmann::json>;

SystemKey key_of(const Run& run) {
  return {run.system_name, run.json.value(hwprofiles::kChanges, nlohmann::json::object())};
}

std::string machine_or_file(const Run& run) {
  const std::string machine = machine_of(run);
  return machine.empty() ? std::filesystem::path(run.file).stem().string() : machine;
}

/// log(predicted / measured) of one row.
struct RowError {
  const ValidatedRow* row;
  double error;
};

/// Rows with a measured step time, by machine (in one group without a name if machines have no factors), and their
/// profiles. The parameters of a fit are the logarithms of the factors of the groups, then of the machines.
class FittedRows {
 public:
  FittedRows(const Validation& validation, const std::vector<FieldGroup>& groups, bool per_machine) : groups_(groups) {
    for (const ValidatedRow& row : validation.rows) {
      if (!row.step) continue;
      rows_[per_machine ? machine_or_file(row.run) : ""].push_back(&row);
      const SystemKey key = key_of(row.run);
      if (!profiles_.contains(key)) profiles_.emplace(key, profile_of(row.run));
    }
    machines_ = per_machine ? rows_.size() : 0;
  }

  [[nodiscard]] const std::map<std::string, std::vector<const ValidatedRow*>>& rows() const { return rows_; }
  [[nodiscard]] const std::map<SystemKey, hwprofiles::Profile>& profiles() const { return profiles_; }
  [[nodiscard]] std::size_t machines() const { return machines_; }
  [[nodiscard]] std::size_t size() const { return groups_.size() + machines_; }

  /// Errors of the rows that `use` accepts.
  template <typename Use>
  [[nodiscard]] std::vector<double> log_errors(const std::vector<double>& logs, const Use& use) {
    std::vector<double> errors, of_machine(logs.begin(), logs.begin() + static_cast<std::ptrdiff_t>(groups_.size()));
    of_machine.push_back(0.0);
    std::size_t next = groups_.size();
    for (const auto& [machine, rows] : rows_) {
      if (machines_ > 0) of_machine.back() = logs[next++];
      for (const RowError& row : errors_of(machine, of_machine))
        if (use(*row.row)) errors.push_back(row.error);
    }
    return errors;
  }

  /// `logs`: of the groups, then of this machine. Cached: a machine's factor affects only its own rows.
  const std::vector<RowError>& errors_of(const std::string& machine, const std::vector<double>& logs) {
    const auto [found, made] = errors_.try_emplace({machine, logs});
    if (!made) return found->second;
    std::map<std::string, double> factors;
    for (std::size_t i = 0; i < groups_.size(); ++i)
      for (const std::string& field : groups_[i]) factors[field] = std::exp(logs[i] + logs.back());
    std::map<SystemKey, costmodel::Hardware> hardware;
    for (const ValidatedRow* row : rows_.at(machine)) {
      const Run& run = row->run;
      const SystemKey key = key_of(run);
      if (!hardware.contains(key)) hardware.emplace(key, hwprofiles::scaled(profiles_.at(key), factors));
      const costmodel::Prediction prediction =
          as_measured(run, costmodel::predict(run.model, run.options, hardware.at(key)));
      found->second.push_back({row, std::log(prediction.step_time.to<double>() / row->step->seconds)});
    }
    return found->second;
  }

 private:
  std::vector<FieldGroup> groups_;
  std::map<std::string, std::vector<const ValidatedRow*>> rows_;
  std::map<SystemKey, hwprofiles::Profile> profiles_;
  std::size_t machines_ = 0;
  std::map<std::pair<std::string, std::vector<double>>, std::vector<RowError>> errors_;
};

template <typename Use>
std::vector<double> fit(FittedRows& problem, const Use& use) {
  constexpr double kWidest = 10.0;  // Largest factor in either direction.
  // Errors within a machine are 4 %, between machines 20 %. A machine's factor counts like one row at 1.
  constexpr double kMachineWeight = 0.04 / 0.20;
  const auto n = static_cast<Eigen::Index>(problem.size());
  const Eigen::VectorXd limit = Eigen::VectorXd::Constant(n, std::log(kWidest));
  const auto residuals = [&](const Eigen::VectorXd& logs) {
    std::vector<double> errors = problem.log_errors({logs.begin(), logs.end()}, use);
    for (const double log : logs.tail(static_cast<Eigen::Index>(problem.machines())))
      errors.push_back(kMachineWeight * log);
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

PlatformFit fit_platform(const Validation& validation, const std::vector<FieldGroup>& groups, bool per_machine) {
  FittedRows problem(validation, groups, per_machine);
  std::set<std::string> models;
  for (const auto& [machine, rows] : problem.rows())
    for (const ValidatedRow* row : rows) models.insert(row->run.model_name);
  const auto mistake = [](std::string what) {
    throw config::ConfigError({{{"command line", 0, "--fit"}, std::move(what)}});
  };
  if (models.empty()) mistake("no row has a measured step time");
  for (const FieldGroup& group : groups)
    for (const std::string& field : group)
      for (const auto& [key, profile] : problem.profiles()) try {
          static_cast<void>(hwprofiles::scaled(profile, {{field, 1.0}}));
        } catch (const std::invalid_argument& error) {
          mistake(fmt::format("expected numbers of the profile such as /host/module; {}", error.what()));
        }

  const auto all = [](const ValidatedRow&) { return true; };
  const std::vector<double> logs = fit(problem, all);
  PlatformFit result;
  result.before = error_statistics(percent(problem.log_errors(std::vector<double>(problem.size(), 0.0), all)));
  result.training = error_statistics(percent(problem.log_errors(logs, all)));
  if (models.size() > 1) {
    std::vector<double> left_out;
    for (const std::string& model : models) {
      const auto of_model = [&](const ValidatedRow& row) { return row.run.model_name == model; };
      const std::vector<double> others = fit(problem, [&](const ValidatedRow& row) { return !of_model(row); });
      for (const double error : problem.log_errors(others, of_model)) left_out.push_back(error);
    }
    result.left_out = error_statistics(percent(left_out));
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    FittedGroup group{groups[i], std::exp(logs[i]), {}};
    for (const auto& [key, profile] : problem.profiles())
      for (const std::string& field : groups[i]) {
        const nlohmann::json& quantity = profile.json.at(nlohmann::json::json_pointer(field));
        group.values[key.first][field] = fmt::format("{:.4g} {}", group.factor * quantity.at("value").get<double>(),
                                                     quantity.at("unit").get<std::string>());
      }
    result.groups.push_back(std::move(group));
  }
  if (per_machine) {
    constexpr double kStep = 0.01;
    std::vector<double> of_machine(logs.begin(), logs.begin() + std::ssize(groups));
    of_machine.push_back(0.0);
    std::size_t next = groups.size();
    for (const auto& [machine, rows] : problem.rows()) {
      of_machine.back() = logs[next++];
      FittedMachine fitted{machine, rows.front()->run.system_name, std::ssize(rows), 0, std::exp(of_machine.back())};
      const std::vector<RowError>& at = problem.errors_of(machine, of_machine);
      of_machine.back() += kStep;
      const std::vector<RowError>& then = problem.errors_of(machine, of_machine);
      for (std::size_t i = 0; i < at.size(); ++i)
        fitted.following += (then[i].error - at[i].error) / kStep >= kFollows ? 1 : 0;
      result.machines.push_back(std::move(fitted));
    }
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
  if (fit.machines.empty()) return text;
  Table machines({"<machine", "<system", "rows", "follow", "times these"});
  std::map<std::string, std::vector<double>> logs;
  for (const FittedMachine& machine : fit.machines) {
    machines.add({machine.name, machine.system, std::to_string(machine.rows), std::to_string(machine.following),
                  fmt::format("{:.2f}", machine.factor)});
    if (machine.following >= kFewestRuns) logs[machine.system].push_back(std::log(machine.factor));
  }
  text += "\nMachines, and how many of their rows' steps change by half of what these fields do and more\n" +
          machines.text();
  for (const auto& [system, of_system] : logs)
    text += fmt::format(
        "{}: {} machines with two and more such rows, {:.3f} times these in the geometric mean\n", system,
        of_system.size(),
        std::exp(std::accumulate(of_system.begin(), of_system.end(), 0.0) / static_cast<double>(of_system.size())));
  return text;
}

nlohmann::json platform_fit_json(const PlatformFit& fit) {
  const auto errors = [](const ErrorStatistics& s) -> nlohmann::json {
    if (s.count == 0) return nullptr;
    return {{"rows", s.count}, {"mape_pct", s.mape}, {"median_ape_pct", s.median_ape}, {"bias_pct", s.bias_pct}};
  };
  nlohmann::json groups = nlohmann::json::array(), machines = nlohmann::json::array();
  for (const FittedGroup& group : fit.groups)
    groups.push_back({{"fields", group.fields}, {"factor", group.factor}, {"values", group.values}});
  for (const FittedMachine& machine : fit.machines)
    machines.push_back({{"name", machine.name},
                        {"system", machine.system},
                        {"rows", machine.rows},
                        {"following", machine.following},
                        {"factor", machine.factor}});
  return {{"errors",
           {{"before", errors(fit.before)}, {"training", errors(fit.training)}, {"left_out", errors(fit.left_out)}}},
          {"groups", std::move(groups)},
          {"machines", std::move(machines)}};
}

}  // namespace foldwise::accuracy
