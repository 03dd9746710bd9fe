#include "planner/report/waterfall.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

#include "planner/report/screen.h"

namespace foldwise::planner {

using costmodel::Cause;
using costmodel::DetailEntry;
using costmodel::Prediction;
using costmodel::StagePrediction;

namespace {

constexpr std::string_view kBubble = "bubble", kRest = "rest";

using Microseconds = std::vector<std::int64_t>;  ///< [runs]

std::optional<std::size_t> common_stage(const std::vector<const Prediction*>& runs) {
  const Prediction& first = *runs.front();
  const bool same = std::ranges::all_of(runs, [&](const Prediction* run) {
    return run->stages.size() == first.stages.size() && run->critical_stage == first.critical_stage;
  });
  return same ? std::optional(first.critical_stage) : std::nullopt;
}

/// Removes "exposed_", so that four names and three numbers fit in a line of 100 characters.
std::string short_cause(const std::string& cause) {
  constexpr std::string_view kExposed = "exposed_";
  return cause.starts_with(kExposed) ? cause.substr(kExposed.size()) : cause;
}

std::vector<std::string> row(const std::vector<std::string>& names, const Microseconds& values) {
  std::vector<std::string> cells = names;
  for (const std::int64_t us : values) cells.push_back(fmt::format("{:.6f}", static_cast<double>(us) * 1e-6));
  for (std::size_t run = 1; run < values.size(); ++run)
    cells.push_back(fmt::format("{:+.6f}", static_cast<double>(values[run] - values[0]) * 1e-6));
  return cells;
}

std::vector<std::string> with_runs(std::vector<std::string> names, const std::vector<std::string>& titles) {
  names.insert(names.end(), titles.begin(), titles.end());
  for (std::size_t run = 1; run < titles.size(); ++run) names.push_back(titles[run] + " - " + titles[0]);
  return names;
}

void add(const Microseconds& from, Microseconds& to) {
  to.resize(from.size(), 0);
  for (std::size_t run = 0; run < from.size(); ++run) to[run] += from[run];
}

/// [lines][runs]
std::vector<Microseconds> rounded(const Waterfall& waterfall) {
  std::vector<Microseconds> result(waterfall.lines.size(), Microseconds(waterfall.steps.size()));
  for (std::size_t run = 0; run < waterfall.steps.size(); ++run) {
    std::vector<double> parts;
    for (const ExplainedTime& line : waterfall.lines) parts.push_back(line.seconds[run]);
    const Microseconds whole = whole_microseconds(parts, waterfall.steps[run]);
    for (std::size_t i = 0; i < whole.size(); ++i) result[i][run] = whole[i];
  }
  return result;
}

}  // namespace

double ExplainedTime::spread() const {
  double result = 0.0;
  for (const double value : seconds) result = std::max(result, std::abs(value - seconds.front()));
  return result;
}

Waterfall waterfall_of(const ExplainedLines& lines, std::vector<double> steps) {
  Waterfall result;
  result.steps = std::move(steps);
  ExplainedTime rest{.cause = std::string(kRest), .kind = "", .module = "", .group = "", .seconds = result.steps};
  for (const auto& [key, seconds] : lines) {
    for (std::size_t run = 0; run < seconds.size(); ++run) rest.seconds[run] -= seconds[run];
    result.lines.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), std::get<3>(key), seconds});
  }
  std::ranges::stable_sort(result.lines, std::ranges::greater{}, &ExplainedTime::spread);
  result.lines.push_back(std::move(rest));
  return result;
}

Waterfall waterfall(const std::vector<const Prediction*>& runs) {
  const std::optional<std::size_t> common = common_stage(runs);
  ExplainedLines lines;
  std::vector<double> steps;
  for (std::size_t run = 0; run < runs.size(); ++run) {
    const std::vector<StagePrediction>& stages = runs[run]->stages;
    const auto add_stage = [&](const StagePrediction& stage, double weight) {
      const auto add_line = [&](const DetailEntry& entry) {
        auto& seconds = lines[{std::string(to_string(entry.cause)), entry.kind, entry.module, entry.group}];
        seconds.resize(runs.size(), 0.0);
        seconds[run] += weight * entry.seconds.to<double>();
      };
      for (const DetailEntry& entry : stage.detail) add_line(entry);
      add_line({.cause = Cause::kBubble, .kind = "", .module = "pipeline", .group = "pp", .seconds = stage.bubble});
    };
    if (common)
      add_stage(stages.at(*common), 1.0);
    else
      for (const StagePrediction& stage : stages) add_stage(stage, 1.0 / static_cast<double>(stages.size()));
    steps.push_back(runs[run]->step_time.to<double>());
  }
  Waterfall result = waterfall_of(lines, std::move(steps));
  result.stage = common;
  return result;
}

nlohmann::json waterfall_json(const Waterfall& waterfall) {
  nlohmann::json lines = nlohmann::json::array();
  for (const ExplainedTime& line : waterfall.lines)
    lines.push_back({{"cause", line.cause},
                     {"kind", line.kind},
                     {"module", line.module},
                     {"group", line.group},
                     {"seconds", line.seconds}});
  return {{"stage", waterfall.stage ? nlohmann::json(*waterfall.stage) : nlohmann::json(nullptr)},
          {"lines", std::move(lines)}};
}

std::string stage_text(const Waterfall& waterfall) {
  return waterfall.stage ? fmt::format("pipeline stage {} of each run{}", *waterfall.stage,
                                       waterfall.busiest ? ", its busiest" : "")
                         : "mean over the pipeline stages of each run, whose busiest are not the same";
}

double to_microsecond(Seconds time) { return static_cast<double>(std::llround(time.to<double>() * 1e6)) * 1e-6; }

std::vector<std::int64_t> whole_microseconds(const std::vector<double>& parts, double total) {
  std::vector<std::int64_t> whole;
  whole.reserve(parts.size());
  for (const double part : parts) whole.push_back(static_cast<std::int64_t>(std::floor(part * 1e6)));
  std::vector<std::size_t> by_remainder(parts.size());
  std::iota(by_remainder.begin(), by_remainder.end(), 0U);
  std::ranges::stable_sort(by_remainder, std::ranges::greater{},
                           [&](std::size_t i) { return parts[i] * 1e6 - static_cast<double>(whole[i]); });
  std::int64_t missing = std::llround(total * 1e6) - std::accumulate(whole.begin(), whole.end(), std::int64_t{0});
  for (std::size_t i = 0; i < by_remainder.size() && missing > 0; ++i, --missing) ++whole[by_remainder[i]];
  return whole;
}

std::string waterfall_text(const Waterfall& waterfall, const std::vector<std::string>& titles, std::size_t most) {
  const std::vector<Microseconds> lines = rounded(waterfall);
  Microseconds step, rest;
  std::map<std::string, Microseconds> by_cause;
  Table ops(with_runs({"<cause", "<kind", "<module", "<group"}, titles));
  std::size_t hidden = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const ExplainedTime& line = waterfall.lines[i];
    add(lines[i], step);
    add(lines[i], by_cause[line.cause]);
    if (i < most && line.cause != kRest && line.spread() > 0.0) {
      ops.add(row({short_cause(line.cause), line.kind, line.module, line.group}, lines[i]));
    } else {
      hidden += line.cause == kRest ? 0 : 1;
      add(lines[i], rest);
    }
  }
  ops.add(row({std::string(kRest), fmt::format("{} lines", hidden), "", ""}, rest));
  ops.add(row({"step", "", "", ""}, step));

  Table causes(with_runs({"<cause"}, titles));
  static constexpr std::array kOrder = {std::string_view("compute"),      std::string_view("exposed_communication"),
                                        std::string_view("exposed_copy"), kBubble,
                                        std::string_view("host"),         kRest};
  for (const std::string_view cause : kOrder) {
    const auto found = by_cause.find(std::string(cause));
    const bool empty = found == by_cause.end() || std::ranges::all_of(found->second, [](auto us) { return us == 0; });
    if (!empty) causes.add(row({std::string(cause)}, found->second));
  }
  causes.add(row({"step"}, step));
  return fmt::format("Seconds by cause, {}\n{}\nWhat explains the difference\n{}", stage_text(waterfall), causes.text(),
                     ops.text());
}

}  // namespace foldwise::planner
