#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "costmodel/hardware/hardware.h"
#include "costmodel/units/units.h"
#include "planner/run/names.h"

// How far predictions were off when `validate` last looked: the source of every interval that we print.
namespace foldwise::planner {

/// Absolute step-time errors of one GPU generation.
struct Residual {
  std::int64_t count = 0;
  double p90_ape = 0.0;  ///< Percent.
  bool operator==(const Residual&) const = default;
};

/// By the generation that the profile names: "hopper".
struct Residuals {
  std::map<std::string, Residual> step_time;
};

struct Interval {
  double low = 0.0, high = 0.0;
};

/// hwprofiles/data/residuals.json as built into the program.
[[nodiscard]] const Residuals& built_in_residuals();

[[nodiscard]] Residuals read_residuals(const std::string& text, const std::string& name);

/// Writes `path` anew: beside it first, then renamed, so that a reader never sees half a file. Throws ConfigError.
void write_residuals(const Residuals& residuals, const std::string& path);

/// Step times that the measurement would have with an error of -p90 to +p90 percent: error is (predicted - measured) /
/// measured, so measured lies in [t / (1 + p90), t / (1 - p90)]. Of a generation without residuals the worst known one
/// counts; without any there is no interval.
[[nodiscard]] std::optional<Interval> step_time_interval(const Residuals& residuals, const std::string& generation,
                                                         Seconds step_time);

}  // namespace foldwise::planner
