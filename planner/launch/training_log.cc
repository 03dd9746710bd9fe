#include "planner/launch/training_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "planner/launch/printed.h"

namespace foldwise::planner {

using nlohmann::json;

namespace {

/// The value after `label`, within a line of parts separated by " | ": "elapsed time per iteration (ms): 1234.5".
std::optional<double> part(std::string_view line, std::string_view label) {
  const std::size_t at = line.find(label);
  if (at == std::string_view::npos) return std::nullopt;
  std::string_view rest = line.substr(at + label.size());
  const std::size_t colon = rest.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  return finite_number_in(trimmed(rest.substr(colon + 1, rest.find('|') - colon - 1)));
}

struct Iteration {
  std::int64_t number = 0;
  double seconds = 0.0;
  std::optional<double> tflops, global_batch, skipped;
};

std::optional<Iteration> iteration_in(std::string_view line) {
  const std::size_t at = line.find("iteration ");
  const auto milliseconds = part(line, "elapsed time per iteration (ms)");
  if (at == std::string_view::npos || !milliseconds || *milliseconds <= 0.0) return std::nullopt;
  const std::size_t slash = line.find('/', at);
  if (slash == std::string_view::npos) return std::nullopt;
  constexpr double kMost = 1e15;  // Exact, and more than any number of iterations.
  const auto number = finite_number_in(trimmed(line.substr(at + 10, slash - at - 10)));
  if (!number || std::abs(*number) > kMost) return std::nullopt;
  return Iteration{.number = static_cast<std::int64_t>(*number),
                   .seconds = *milliseconds / 1000.0,
                   .tflops = part(line, "throughput per GPU (TFLOP/s/GPU)"),
                   .global_batch = part(line, "global batch size"),
                   .skipped = part(line, "number of skipped iterations")};
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

/// Whether the line is a memory report "(after 1 iterations) memory (MB)". The optimizer creates its states at the end
/// of the first step, so they did not exist beside its activations.
bool is_of_first_iteration(const std::string& line) { return line.find("(after 1 iteration") != std::string::npos; }

/// Largest "max allocated" and "max reserved" of the memory reports, in GiB. MB and GB in the reports are powers of
/// two. Values that no later report repeats go to `left_out`.
void read_memory(const std::string& text, json& measured, std::vector<std::string>& left_out) {
  bool first = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool mebi = line.find("memory (MB)") != std::string::npos,
               gibi = line.find("memory (GB)") != std::string::npos;
    if (!mebi && !gibi) continue;
    if (is_of_first_iteration(line)) {
      first = true;
      continue;
    }
    for (const auto& [label, key] :
         {std::pair{"max allocated", "peak_memory_gib"}, std::pair{"max reserved", "peak_reserved_gib"}})
      if (const auto value = part(line, label)) {
        const double gib = mebi ? *value / 1024.0 : *value;
        if (gib > 0.0) measured[key] = std::max(gib, measured.value(key, 0.0));
      }
  }
  if (first && !measured.contains("peak_memory_gib"))
    left_out.emplace_back(
        "memory: reported after iteration 1, before the optimizer's states were there beside activations: no peak of "
        "the run");
}

/// Iterations that are left out for one cause.
struct LeftOut {
  std::string cause;                                   ///< Of several: "skipped a step".
  std::vector<std::pair<Iteration, std::string>> all;  ///< With what is said of each alone; empty: the cause.
};

/// One text each, or one for all if they are many.
void add_texts(const LeftOut& left_out, std::vector<std::string>& texts) {
  constexpr std::size_t kNamed = 3;
  if (left_out.all.size() <= kNamed) {
    for (const auto& [iteration, why] : left_out.all)
      texts.push_back(fmt::format("iteration {}: {}", iteration.number, why.empty() ? left_out.cause : why));
    return;
  }
  std::vector<std::string> named;
  for (std::size_t i = 0; i < kNamed; ++i) {
    const auto& [iteration, why] = left_out.all[i];
    named.push_back(why.empty() ? fmt::format("{}", iteration.number)
                                : fmt::format("{} ({})", iteration.number, why.substr(0, why.find(','))));
  }
  texts.push_back(
      fmt::format("{} iterations: {}: {}, ...", left_out.all.size(), left_out.cause, fmt::join(named, ", ")));
}

double median_seconds(const std::vector<Iteration>& list) {
  std::vector<double> seconds;
  seconds.reserve(list.size());
  for (const Iteration& iteration : list) seconds.push_back(iteration.seconds);
  return median(std::move(seconds));
}

/// The iterations that are not far from the median.
std::vector<Iteration> steady_of(const std::vector<Iteration>& kept, std::vector<std::string>& texts) {
  constexpr double kSteady = 0.20;  // Share of the median, as the header says.
  const double middle = median_seconds(kept);
  LeftOut far{.cause = fmt::format("more than 20 % from the median of {:.4g} s", middle), .all = {}};
  std::vector<Iteration> steady;
  for (const Iteration& iteration : kept) {
    if (std::abs(iteration.seconds - middle) <= kSteady * middle)
      steady.push_back(iteration);
    else
      far.all.emplace_back(iteration, fmt::format("{:.4g} s, the median is {:.4g} s", iteration.seconds, middle));
  }
  add_texts(far, texts);
  return steady;
}

/// The iterations with the run's batch that are neither the first nor skipped a step.
std::vector<Iteration> kept_of(const std::vector<Iteration>& all, std::optional<double> batch, LogIterations& result) {
  LeftOut skipped{.cause = "skipped a step", .all = {}},
      others{.cause = fmt::format("another global batch than the run's {}", batch.value_or(0.0)), .all = {}};
  std::vector<Iteration> kept;
  result.left_out.push_back(fmt::format("iteration {}: the first that is logged", all.front().number));
  for (std::size_t i = 1; i < all.size(); ++i) {
    if (all[i].skipped.value_or(0.0) > 0.0)
      skipped.all.emplace_back(all[i], "");
    else if (batch && all[i].global_batch && *all[i].global_batch != *batch)
      others.all.emplace_back(all[i], fmt::format("global batch {}, the run's is {}", *all[i].global_batch, *batch));
    else
      kept.push_back(all[i]);
  }
  add_texts(skipped, result.left_out);
  add_texts(others, result.left_out);
  if (kept.empty())
    result.unmeasured = others.all.empty()
                            ? "no iteration of the log is after the first and skipped no step"
                            : fmt::format("the log has no iteration with the run's global batch {}: the last has {}",
                                          *batch, *others.all.back().first.global_batch);
  return kept;
}

}  // namespace

bool is_iteration(std::string_view line) { return iteration_in(line).has_value(); }

LogIterations read_iterations(const std::string& text, std::optional<std::int64_t> global_batch) {
  std::vector<Iteration> all;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (const auto iteration = iteration_in(line)) all.push_back(*iteration);
  LogIterations result;
  if (all.empty()) return result;
  const std::optional<double> batch =
      global_batch ? std::optional(static_cast<double>(*global_batch)) : all.back().global_batch;
  const std::vector<Iteration> kept = kept_of(all, batch, result);
  if (kept.empty()) return result;
  const std::vector<Iteration> steady = steady_of(kept, result.left_out);
  result.steady = steady.size();
  if (steady.empty()) {
    result.unmeasured = "no iteration of the log is within 20 % of their median";
    return result;
  }
  result.measured["step_time_s"] = median_seconds(steady);
  std::vector<double> tflops;
  for (const Iteration& iteration : steady)
    if (iteration.tflops && *iteration.tflops > 0.0) tflops.push_back(*iteration.tflops);
  if (!tflops.empty()) result.measured["tflops_per_gpu"] = median(tflops);
  read_memory(text, result.measured, result.left_out);
  return result;
}

std::string system_in(std::string_view text) {
  static const std::vector<std::pair<std::string, std::string>> names = {{"NVIDIA GB300", "gb300-nvl72"},
                                                                         {"NVIDIA GB200", "gb200-nvl72"},
                                                                         {"NVIDIA B300", "b300"},
                                                                         {"NVIDIA B200", "b200"},
                                                                         {"NVIDIA H200", "h200"},
                                                                         {"NVIDIA H800", "h800"},
                                                                         {"NVIDIA H100 80GB HBM3", "h100-sxm-80gb"},
                                                                         {"NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"}};
  for (const auto& [gpu, system] : names)
    if (text.find(gpu) != std::string::npos) return system;
  return "";
}

}  // namespace foldwise::planner
