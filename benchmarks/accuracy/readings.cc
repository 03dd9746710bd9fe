#include "benchmarks/accuracy/readings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "costmodel/config/json.h"
#include "costmodel/step/stage_split.h"
#include "planner/report/screen.h"
#include "planner/run/fields.h"

namespace foldwise::accuracy {

using namespace planner;

using nlohmann::json;

namespace {

json::json_pointer pointer_to(std::string key) {
  std::ranges::replace(key, '.', '/');
  return json::json_pointer("/" + key);
}

/// The row re-read with these values in its run file; nullopt if that is invalid, or has no measurement.
std::optional<ValidatedRow> reread(const ValidatedRow& row, const std::map<std::string, json>& values) {
  json changed = row.run.json;
  for (const auto& [key, value] : values) changed[pointer_to(key)] = value;
  RunList list;
  try {
    list.runs.push_back(parse_run(changed.dump(), row.run.file));
  } catch (const config::ConfigError&) {
    return std::nullopt;
  }
  Validation validation = validate({std::move(list)});
  if (validation.rows.empty()) return std::nullopt;
  return std::move(validation.rows.front());
}

/// Whether both rows have the same kinds of errors, and at least one differs.
bool differ(const ValidatedRow& a, const ValidatedRow& b) {
  bool differ = false;
  for (const auto error :
       {&ValidatedRow::step_error_pct, &ValidatedRow::memory_error_pct, &ValidatedRow::reserved_error_pct}) {
    if ((a.*error).has_value() != (b.*error).has_value()) return false;
    differ = differ || a.*error != b.*error;
  }
  return differ;
}

/// The layout whose busiest rank has the least work: a guess for sources that do not state the layout.
std::string balanced_split(const Run& run) {
  const costmodel::StepContext context{run.model, run.options, run.hardware};
  const costmodel::ModelKinds kinds = costmodel::model_kinds(run.model);
  const std::int64_t mtp = run.model.mtp_num_layers;
  return to_layout_string(rank_balanced_stages(kinds, model_costs(context, kinds), mtp, mtp > 0,
                                               run.options.pipeline.pp, run.options.pipeline.vpp));
}

std::string text_of(const std::map<std::string, json>& values) {
  std::string text;
  for (const auto& [key, value] : values)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key, value_text(value));
  return text;
}

/// Step-time errors of the rows that a reading changes, with and without the reading.
std::pair<ErrorStatistics, ErrorStatistics> with_and_without(const Validation& validation,
                                                             const VariedReading& reading) {
  std::vector<double> with, without;
  for (const auto& [row, other] : reading.rows)
    if (validation.rows[row].step_error_pct && other.step_error_pct) {
      with.push_back(*validation.rows[row].step_error_pct);
      without.push_back(*other.step_error_pct);
    }
  return {error_statistics(with), error_statistics(without)};
}

constexpr std::size_t kSpreadsPrinted = 15;

std::string spreads_text(const Validation& validation, const std::vector<ReadingSpread>& spreads) {
  Table table({"err %", "least", "most", "<row", "<most moved by"});
  for (std::size_t i = 0; i < std::min(spreads.size(), kSpreadsPrinted); ++i) {
    const ReadingSpread& s = spreads[i];
    table.add({fmt::format("{:+.1f}", *validation.rows[s.row].step_error_pct), fmt::format("{:+.1f}", s.least),
               fmt::format("{:+.1f}", s.most), validation.rows[s.row].run.id, s.by});
  }
  return "Rows whose step-time error a reading decides most, of " + std::to_string(spreads.size()) + '\n' +
         table.text();
}

}  // namespace

std::vector<VariedReading> vary_readings(const Validation& validation, const Roles& roles) {
  std::map<std::string, VariedReading> varied;
  const auto vary = [&](const std::string& what, std::size_t row, const std::map<std::string, json>& values) {
    std::optional<ValidatedRow> other = reread(validation.rows[row], values);
    if (!other || !differ(validation.rows[row], *other)) return;
    varied[what].what = what;
    varied[what].rows.emplace(row, std::move(*other));
  };
  for (std::size_t row = 0; row < validation.rows.size(); ++row) {
    const Run& run = validation.rows[row].run;
    for (const auto& [key, reason] : run.inferred) {
      if (key == "pipeline_layout")
        vary(key + " balanced", row, {{key, balanced_split(run)}});
      else
        vary(key + " not inferred", row, {{key, nullptr}});
    }
    for (const Role& role : roles.list)
      if (!role.instead.empty() && role.rows.contains(run.id)) vary(text_of(role.instead), row, role.instead);
  }
  std::vector<VariedReading> result;
  result.reserve(varied.size());
  for (auto& [what, reading] : varied) result.push_back(std::move(reading));
  std::ranges::stable_sort(result, std::ranges::greater{}, [](const VariedReading& r) { return r.rows.size(); });
  return result;
}

std::vector<ReadingSpread> reading_spreads(const Validation& validation, const std::vector<VariedReading>& varied) {
  std::map<std::size_t, ReadingSpread> spreads;
  for (const VariedReading& reading : varied)
    for (const auto& [row, other] : reading.rows) {
      const std::optional<double>& as_read = validation.rows[row].step_error_pct;
      if (!as_read || !other.step_error_pct) continue;
      ReadingSpread& spread = spreads.try_emplace(row, ReadingSpread{row, *as_read, *as_read, "", 0.0}).first->second;
      spread.least = std::min(spread.least, *other.step_error_pct);
      spread.most = std::max(spread.most, *other.step_error_pct);
      if (const double moved = std::abs(*other.step_error_pct - *as_read); moved > spread.moved) {
        spread.moved = moved;
        spread.by = reading.what;
      }
    }
  std::vector<ReadingSpread> result;
  result.reserve(spreads.size());
  for (auto& [row, spread] : spreads) result.push_back(std::move(spread));
  std::ranges::stable_sort(result, std::ranges::greater{}, &ReadingSpread::moved);
  return result;
}

std::string readings_text(const Validation& validation, const std::vector<VariedReading>& varied) {
  Table table({"<reading", "rows", "mean as read", "bias", "mean instead", "bias"});
  for (const VariedReading& reading : varied) {
    const auto [with, without] = with_and_without(validation, reading);
    if (with.count == 0) continue;
    table.add({reading.what, std::to_string(with.count), fmt::format("{:.1f}", with.mape),
               fmt::format("{:+.1f}", with.bias_pct), fmt::format("{:.1f}", without.mape),
               fmt::format("{:+.1f}", without.bias_pct)});
  }
  if (table.empty()) return "";
  return "Readings of what sources leave unsaid, each taken back: step-time errors in percent of the rows that it "
         "changes\n" +
         table.text() + '\n' + spreads_text(validation, reading_spreads(validation, varied));
}

json readings_json(const Validation& validation, const std::vector<VariedReading>& varied) {
  json result = json::array();
  for (const VariedReading& reading : varied) {
    json rows = json::array();
    for (const auto& [row, other] : reading.rows) {
      const auto or_null = [](const std::optional<double>& value) { return value ? json(*value) : json(nullptr); };
      rows.push_back({{"id", validation.rows[row].run.id},
                      {"error_pct", or_null(other.step_error_pct)},
                      {"memory_error_pct", or_null(other.memory_error_pct)},
                      {"reserved_error_pct", or_null(other.reserved_error_pct)}});
    }
    result.push_back({{"reading", reading.what}, {"rows", std::move(rows)}});
  }
  return result;
}

}  // namespace foldwise::accuracy
