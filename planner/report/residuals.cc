#include "planner/report/residuals.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "costmodel/check.h"
#include "costmodel/config/json.h"
#include "costmodel/config/output_file.h"

namespace foldwise::planner::data {
const std::vector<std::pair<std::string, std::string>>& embedded_files();  // Generated: the files of planner_data.
}

namespace foldwise::planner {

Residuals read_residuals(const std::string& text, const std::string& name) {
  const config::Document document = config::Document::parse(text, name);
  config::Diagnostics diagnostics;
  config::ObjectReader root(document, diagnostics);
  Residuals result;
  if (auto step_time = root.object("step_time")) {
    for (const std::string& key : step_time->keys()) {
      auto entry = step_time->object(key);
      if (!entry) continue;
      result.step_time[key] = {.count = entry->required_integer("count", 1, 1'000'000'000),
                               .p90_ape = entry->required_number("p90_ape", 0.0, 1e6)};
      entry->finish();
    }
  }
  root.ignore_prefix('_');
  root.finish();
  diagnostics.throw_if_any();
  return result;
}

const Residuals& built_in_residuals() {
  static const Residuals residuals = [] {
    for (const auto& [name, text] : data::embedded_files())
      if (name == "residuals") return read_residuals(text, "built-in residuals");
    FW_CHECK(false, "the residuals are not built in");
    return Residuals{};
  }();
  return residuals;
}

void write_residuals(const Residuals& residuals, const std::string& path) {
  nlohmann::json root = {{"_about",
                          "Absolute step-time errors in percent by GPU generation; written by foldwise validate "
                          "--write-residuals, the source of the intervals that predict prints"},
                         {"step_time", nlohmann::json::object()}};
  for (const auto& [name, residual] : residuals.step_time)
    root["step_time"][name] = {{"count", residual.count}, {"p90_ape", residual.p90_ape}};
  config::write_output_file(path, root.dump(2) + '\n');
}

std::optional<Interval> step_time_interval(const Residuals& residuals, const std::string& generation,
                                           Seconds step_time) {
  double percent = -1.0;
  if (const auto it = residuals.step_time.find(generation); it != residuals.step_time.end())
    percent = it->second.p90_ape;
  else
    for (const auto& [name, residual] : residuals.step_time) percent = std::max(percent, residual.p90_ape);
  if (percent < 0.0) return std::nullopt;
  // An error of -100 % or less says nothing about how slow the run may be; 95 % keeps the interval finite.
  const double share = percent / 100.0, low_share = std::min(share, 0.95);
  const auto seconds = step_time.to<double>();
  return Interval{.low = seconds / (1.0 + share), .high = seconds / (1.0 - low_share)};
}

}  // namespace foldwise::planner
