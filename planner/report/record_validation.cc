#include "planner/report/record_validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "hwprofiles/load/range.h"
#include "hwprofiles/records/record_ops.h"
#include "planner/report/screen.h"

namespace foldwise::planner {

using hwprofiles::Measurement;
using nlohmann::json;

namespace {

constexpr std::size_t kWorstRows = 10;

/// Kernel and its conditions, without those that the curve does not depend on.
std::string kind_of(const Measurement& measurement) {
  std::string kind = measurement.kernel;
  for (const char* key : {"op", "collective", "direction", "format", "phase", "load"})
    if (const auto found = measurement.of.find(key); found != measurement.of.end()) kind += " " + found->second;
  return kind;
}

std::string shape_text(const Measurement& measurement) {
  std::string text;
  for (const auto& [name, value] : measurement.shape)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
  return text;
}

/// Whether the system has the ops' formats and curves.
bool has_curves(const std::vector<costmodel::Op>& ops, const costmodel::Hardware& hw) {
  return std::all_of(ops.begin(), ops.end(), [&](const costmodel::Op& op) {
    const auto* gemm = std::get_if<costmodel::GemmWork>(&op.work);
    return gemm == nullptr || hw.gemm.at(static_cast<std::size_t>(gemm->format)).peak > FlopRate{};
  });
}

std::map<std::string, std::vector<double>> errors_by_kind(const KernelValidation& validation) {
  std::map<std::string, std::vector<double>> errors;
  for (const ValidatedKernel& row : validation.rows) errors[row.kind].push_back(row.error_pct);
  return errors;
}

json statistics_json(const ErrorStatistics& s) {
  return {{"count", s.count},
          {"mape", s.mape},
          {"median_ape", s.median_ape},
          {"p90_ape", s.p90_ape},
          {"bias_pct", s.bias_pct}};
}

std::string number(double value) { return fmt::format("{:.1f}", value); }

}  // namespace

KernelValidation validate(const std::vector<hwprofiles::Records>& files, const hwprofiles::Profile& profile) {
  KernelValidation validation;
  validation.system = profile.hardware.name;
  const costmodel::Hardware idle = hwprofiles::measured_alone(profile.hardware, false),
                            loaded = hwprofiles::measured_alone(profile.hardware, true);
  for (const hwprofiles::Records& records : files) {
    validation.warnings.insert(validation.warnings.end(), records.warnings.begin(), records.warnings.end());
    for (const Measurement& measurement : records.measurements) {
      const std::vector<costmodel::Op> ops = hwprofiles::ops_of(measurement);
      ValidatedKernel row{.measurement = measurement, .kind = kind_of(measurement), .outside = {}};
      if (ops.empty() || !has_curves(ops, idle)) {
        ++validation.skipped[row.kind];
        continue;
      }
      row.measured_us = hwprofiles::measured_time(measurement).to<double>() * 1e6;
      row.predicted_us =
          hwprofiles::predicted_time(ops, hwprofiles::under_load(measurement) ? loaded : idle).to<double>() * 1e6;
      row.error_pct = 100.0 * (row.predicted_us / row.measured_us - 1.0);
      for (const hwprofiles::OutOfRange& outside : hwprofiles::outside_of_fit(ops.front(), profile))
        row.outside.push_back(outside.text());
      validation.rows.push_back(std::move(row));
    }
  }
  return validation;
}

json validation_json(const KernelValidation& validation) {
  json result = {{"system", validation.system},
                 {"kernels", json::array()},
                 {"skipped", json::array()},
                 {"summary", json::object()}};
  for (const ValidatedKernel& row : validation.rows)
    result["kernels"].push_back({{"kernel", row.measurement.kernel},
                                 {"of", row.measurement.of},
                                 {"shape", row.measurement.shape},
                                 {"measured_us", row.measured_us},
                                 {"predicted_us", row.predicted_us},
                                 {"error_pct", row.error_pct},
                                 {"outside_of_fit", row.outside}});
  for (const auto& [kind, count] : validation.skipped) result["skipped"].push_back({{"kind", kind}, {"count", count}});
  for (const auto& [kind, errors] : errors_by_kind(validation))
    result["summary"][kind] = statistics_json(error_statistics(errors));
  return result;
}

std::string validation_text(const KernelValidation& validation) {
  std::string out = fmt::format("{} kernels predicted with {}\nErrors in percent of the measured time\n\n",
                                validation.rows.size(), validation.system);
  Table table({"<kernel", "count", "median", "mean", "p90", "bias", "beyond fit"});
  for (const auto& [kind, errors] : errors_by_kind(validation)) {
    const ErrorStatistics s = error_statistics(errors);
    const auto beyond =
        std::count_if(validation.rows.begin(), validation.rows.end(),
                      [&, name = kind](const auto& row) { return row.kind == name && !row.outside.empty(); });
    table.add({kind, fmt::format("{}", s.count), number(s.median_ape), number(s.mape), number(s.p90_ape),
               fmt::format("{:+.1f}", s.bias_pct), fmt::format("{}", beyond)});
  }
  out += table.text();
  std::vector<const ValidatedKernel*> worst;
  for (const ValidatedKernel& row : validation.rows) worst.push_back(&row);
  std::stable_sort(worst.begin(), worst.end(), [](const ValidatedKernel* a, const ValidatedKernel* b) {
    return std::abs(a->error_pct) > std::abs(b->error_pct);
  });
  worst.resize(std::min(worst.size(), kWorstRows));
  Table rows({"<largest errors", "measured us", "predicted", "error", "<shape"});
  for (const ValidatedKernel* row : worst)
    rows.add({row->kind, number(row->measured_us), number(row->predicted_us), fmt::format("{:+.1f}", row->error_pct),
              shape_text(row->measurement)});
  if (!rows.empty()) out += '\n' + rows.text();
  if (!validation.skipped.empty()) {
    std::string kinds;
    for (const auto& [kind, count] : validation.skipped)
      kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", count, kind);
    out += "\nNot predicted, because the model has no such op or the system no such curve\n  " + wrapped(kinds, 98, 2) +
           '\n';
  }
  return out;
}

}  // namespace foldwise::planner
