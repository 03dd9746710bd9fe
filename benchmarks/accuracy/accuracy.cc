#include "benchmarks/accuracy/accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "costmodel/config/json.h"
#include "costmodel/config/output_file.h"
#include "planner/report/screen.h"

namespace foldwise::accuracy {

using namespace planner;

using nlohmann::json;

namespace {

/// Percentage points by which a group may move before the gate fails and a person must look. A change that should not
/// affect predictions moves nothing. The margins allow for another compiler's rounding, and for changes that are
/// negligible beside the errors themselves.
struct Margins {
  double mean = 0.0, median = 0.0, bias = 0.0;
};
Margins margins_of(Quantity quantity) {
  return quantity == Quantity::kStepTime ? Margins{.mean = 0.2, .median = 0.4, .bias = 0.2}
                                         : Margins{.mean = 0.1, .median = 0.1, .bias = 0.1};
}

/// A kind of error of a row.
struct Measure {
  const char* name;
  Quantity quantity;
  std::optional<double> ValidatedRow::*error;
};
constexpr std::array<Measure, 3> kMeasures = {{
    {"step time", Quantity::kStepTime, &ValidatedRow::step_error_pct},
    {"allocated memory", Quantity::kMemory, &ValidatedRow::memory_error_pct},
    {"reserved memory", Quantity::kMemory, &ValidatedRow::reserved_error_pct},
}};

struct Group {
  const Measure* measure = nullptr;
  std::map<std::string, std::vector<std::size_t>> problems;  ///< Row indices by predicted problem.
};

std::vector<std::string> groups_of(const ValidatedRow& row, const Measure& measure, const Roles& roles) {
  const std::string use = roles.of(row.run.id, measure.quantity).empty() ? "untouched" : "set a number";
  const Origin origin = roles.origin(row.run.id);
  const Reservation reason = reservation(row.run);
  if (measure.quantity == Quantity::kMemory) {
    const bool apart = !origin.own && reason != Reservation::kNone;
    return {
        fmt::format("{}, {}, {}{}{}", measure.name, use, origin.name, apart ? ", " : "", apart ? name_of(reason) : "")};
  }
  if (reason == Reservation::kRankAlone) return {fmt::format("{}, {}, {}", measure.name, use, name_of(reason))};
  std::vector<std::string> groups = {fmt::format("{}, all rows", measure.name),
                                     fmt::format("{}, {}", measure.name, use)};
  if (use == "untouched") {
    groups.push_back(fmt::format("{}, untouched, as {}", measure.name, row.run.defaults));
    if (origin.own) {
      groups.push_back(fmt::format("{}, untouched, {}", measure.name, origin.name));
    } else if (reason != Reservation::kNone) {
      groups.push_back(fmt::format("{}, untouched, {}", measure.name, name_of(reason)));
    } else {
      const std::string stated = fmt::format("{}, untouched, stated", measure.name);
      groups.push_back(stated);
      groups.push_back(fmt::format("{}, {}", stated, row.run.system_name));
      groups.push_back(fmt::format("{}, {} {}", stated, row.run.hardware.traits.generation,
                                   row.run.model.has_moe() ? "moe" : "dense"));
    }
  }
  return groups;
}

using ErrorOf = std::function<double(std::size_t row)>;

Accuracy accuracy_of(const Group& group, const ErrorOf& error_of) {
  Accuracy result;
  result.quantity = group.measure->quantity;
  std::vector<double> absolute;
  double bias = 0.0;
  for (const auto& [problem, rows] : group.problems) {
    double sum = 0.0, signed_sum = 0.0;
    for (const std::size_t row : rows) {
      sum += std::abs(error_of(row));
      signed_sum += error_of(row);
    }
    const auto count = static_cast<double>(rows.size());
    absolute.push_back(sum / count);
    bias += signed_sum / count;
    result.rows += static_cast<std::int64_t>(rows.size());
  }
  const ErrorStatistics statistics = error_statistics(absolute);
  result.predictions = statistics.count;
  result.mean = statistics.mape;
  result.median = statistics.median_ape;
  result.p90 = statistics.p90_ape;
  result.bias = bias / static_cast<double>(statistics.count);
  return result;
}

Accuracy with_readings(const Group& group, const Validation& validation, const std::vector<VariedReading>& varied) {
  const auto error_of = [&](std::size_t row) { return *(validation.rows[row].*(group.measure->error)); };
  Accuracy result = accuracy_of(group, error_of);
  if (varied.empty()) return result;
  result.least_mean = result.most_mean = result.mean;
  for (const VariedReading& reading : varied) {
    const Accuracy other = accuracy_of(group, [&](std::size_t row) {
      const auto changed = reading.rows.find(row);
      return changed == reading.rows.end() ? error_of(row)
                                           : (changed->second.*(group.measure->error)).value_or(error_of(row));
    });
    result.least_mean = std::min(*result.least_mean, other.mean);
    result.most_mean = std::max(*result.most_mean, other.mean);
  }
  return result;
}

/// The statistics that the gate compares.
std::vector<std::pair<const char*, double>> gated(const Accuracy& a) {
  return {{"mean", a.mean}, {"median", a.median}, {"bias", a.bias}};
}

double rounded(double value) { return std::round(value * 100.0) / 100.0; }

}  // namespace

std::string problem_text(const Run& run) {
  json problem = write_run(run);
  problem.erase("id");
  problem.erase("defaults");
  return problem.dump();
}

std::vector<Accuracy> accuracy(const Validation& validation, const Roles& roles,
                               const std::vector<VariedReading>& varied) {
  std::map<std::pair<const Measure*, std::string>, Group> groups;
  for (std::size_t row = 0; row < validation.rows.size(); ++row) {
    const std::string problem = problem_text(validation.rows[row].run);
    for (const Measure& measure : kMeasures) {
      if (!(validation.rows[row].*measure.error)) continue;
      for (const std::string& name : groups_of(validation.rows[row], measure, roles)) {
        Group& group = groups[{&measure, name}];
        group.measure = &measure;
        group.problems[problem].push_back(row);
      }
    }
  }
  std::vector<Accuracy> result;
  for (const auto& [key, group] : groups) {
    result.push_back(with_readings(group, validation, varied));
    result.back().group = key.second;
  }
  return result;
}

std::string roles_text(const Validation& validation, const Roles& roles) {
  std::string text;
  for (const Role& role : roles.list) {
    const auto rows =
        std::ranges::count_if(validation.rows, [&](const ValidatedRow& row) { return role.rows.contains(row.run.id); });
    if (rows > 0)
      text +=
          "  " + wrapped(fmt::format("{} rows, {}: {} ({})", rows, role.how, role.number, role.where), 98, 6) + '\n';
  }
  return text.empty() ? "" : "What rows set\n" + text;
}

std::string accuracy_text(const std::vector<Accuracy>& groups) {
  if (groups.empty()) return "";
  const bool varied = groups.front().least_mean.has_value();
  std::vector<std::string> titles = {"<group", "rows", "predictions", "mean", "med.", "p90", "bias"};
  if (varied) titles.emplace_back("mean by reading");
  Table table(titles);
  for (const Accuracy& a : groups) {
    std::vector<std::string> cells = {a.group,
                                      std::to_string(a.rows),
                                      std::to_string(a.predictions),
                                      fmt::format("{:.1f}", a.mean),
                                      fmt::format("{:.1f}", a.median),
                                      fmt::format("{:.1f}", a.p90),
                                      fmt::format("{:+.1f}", a.bias)};
    if (varied) cells.push_back(fmt::format("{:.1f} to {:.1f}", *a.least_mean, *a.most_mean));
    table.add(std::move(cells));
  }
  return "Rows that set a number of the model, and rows that set none. Errors in percent; rows for which the same is\n"
         "predicted count as one prediction\n" +
         table.text();
}

json accuracy_json(const std::vector<Accuracy>& groups) {
  json result = json::array();
  for (const Accuracy& a : groups) {
    result.push_back({{"group", a.group},
                      {"quantity", name_of(a.quantity)},
                      {"rows", a.rows},
                      {"predictions", a.predictions},
                      {"mean_ape", a.mean},
                      {"median_ape", a.median},
                      {"p90_ape", a.p90},
                      {"bias_pct", a.bias}});
    if (a.least_mean) result.back()["mean_ape_by_reading"] = {*a.least_mean, *a.most_mean};
  }
  return result;
}

void write_accuracy_bounds(const std::vector<Accuracy>& groups, const std::string& path) {
  json root = {{"_about",
                "Errors of predictions of benchmarks/accuracy/runs by group, in percent, written by --write-bounds; "
                "--bounds fails where one has moved by more than its margin. Review every change of this file."},
               {"margins", json::object()},
               {"groups", json::object()}};
  for (const Quantity quantity : {Quantity::kStepTime, Quantity::kMemory}) {
    const Margins m = margins_of(quantity);
    root["margins"][name_of(quantity)] = {{"mean", m.mean}, {"median", m.median}, {"bias", m.bias}};
  }
  for (const Accuracy& a : groups) {
    json& group = root["groups"][a.group];
    group = {{"rows", a.rows}, {"predictions", a.predictions}};
    for (const auto& [name, value] : gated(a)) group[name] = rounded(value);
  }
  config::write_output_file(path, root.dump(2) + '\n');
}

namespace {

constexpr double kWidestError = 1e6;  // Percent.
constexpr std::int64_t kMostRows = 1'000'000'000;

struct Bounds {
  std::map<std::string, std::map<std::string, double>> margins;  ///< By quantity and statistic.
  std::map<std::string, Accuracy> groups;
};

Bounds read_bounds(const std::string& path) {
  const config::Document document = config::Document::load(path);
  config::Diagnostics diagnostics;
  config::ObjectReader root(document, diagnostics);
  Bounds bounds;
  if (!root.has("margins")) root.error("margins", "expected margins by quantity, found nothing");
  if (auto margins = root.object("margins"))
    for (const Quantity quantity : {Quantity::kStepTime, Quantity::kMemory}) {
      auto of_quantity = margins->object(name_of(quantity));
      if (!of_quantity) {
        margins->error(name_of(quantity), "expected margins of mean, median and bias, found nothing");
        continue;
      }
      for (const char* name : {"mean", "median", "bias"})
        bounds.margins[name_of(quantity)][name] = of_quantity->required_number(name, 0.0, kWidestError);
    }
  if (auto groups = root.object("groups"))
    for (const std::string& name : groups->keys())
      if (auto group = groups->object(name)) {
        Accuracy& a = bounds.groups[name];
        a.rows = group->required_integer("rows", 1, kMostRows);
        a.predictions = group->required_integer("predictions", 1, kMostRows);
        a.mean = group->required_number("mean", 0.0, kWidestError);
        a.median = group->required_number("median", 0.0, kWidestError);
        a.bias = group->required_number("bias", -kWidestError, kWidestError);
        group->finish();
      }
  root.ignore_prefix('_');
  root.finish();
  diagnostics.throw_if_any();
  return bounds;
}

}  // namespace

std::vector<std::string> outside_bounds(const std::vector<Accuracy>& groups, const std::string& path) {
  const Bounds bounds = read_bounds(path);
  std::vector<std::string> lines;
  std::map<std::string, Accuracy> gone = bounds.groups;
  for (const Accuracy& now : groups) {
    const auto found = bounds.groups.find(now.group);
    if (found == bounds.groups.end()) {
      lines.push_back(fmt::format("{}: a group that {} does not have", now.group, path));
      continue;
    }
    gone.erase(now.group);
    const Accuracy& then = found->second;
    if (now.rows != then.rows || now.predictions != then.predictions)
      lines.push_back(fmt::format("{}: expected {} rows, {} predictions, found {}, {}", now.group, then.rows,
                                  then.predictions, now.rows, now.predictions));
    const auto before = gated(then), after = gated(now);
    for (std::size_t i = 0; i < after.size(); ++i) {
      const double margin = bounds.margins.at(name_of(now.quantity)).at(after[i].first);
      if (std::abs(after[i].second - before[i].second) > margin)
        lines.push_back(fmt::format("{}: expected a {} error of {:.2f} % within {} points, found {:.2f}", now.group,
                                    after[i].first, before[i].second, margin, after[i].second));
    }
  }
  for (const auto& [name, group] : gone) lines.push_back(fmt::format("{}: no rows of this group", name));
  return lines;
}

}  // namespace foldwise::accuracy
