#include "planner/run/measured.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace foldwise::planner {

using config::ObjectReader;
using nlohmann::json;

namespace {

constexpr double kLeastMeasured = 1e-9, kMostMeasured = 1e12;
constexpr std::int64_t kMostRetries = 1'000'000;

/// Each kernel is [name, calls, ms].
KernelProfile kernel_profile(ObjectReader& in) {
  KernelProfile profile;
  const auto ms = [&](std::string_view key) { return in.required_number(key, 0.0, kMostMeasured); };
  profile.kernels_rest_ms = ms("kernels_rest_ms");
  profile.wall_ms = ms("wall_ms");
  profile.busy_ms = ms("busy_ms");
  profile.compute_ms = ms("compute_ms");
  profile.exposed_comm_ms = ms("exposed_comm_ms");
  profile.exposed_host_copy_ms = in.number_or("exposed_host_copy_ms", 0.0, 0.0, kMostMeasured);
  if (profile.wall_ms > 0.0 && profile.busy_ms > profile.wall_ms)
    in.error("busy_ms", fmt::format("expected at most wall_ms, {}, found {}", profile.wall_ms, profile.busy_ms));
  const json* kernels = in.raw("kernels");
  const auto is_kernel = [](const json& k) {
    return k.is_array() && k.size() == 3 && k[0].is_string() && k[1].is_number() && k[2].is_number() &&
           k[2].get<double>() >= 0.0 && k[2].get<double>() <= kMostMeasured;
  };
  if (kernels == nullptr || !kernels->is_array() || !std::ranges::all_of(*kernels, is_kernel))
    in.error("kernels", "expected a list of [\"name\", calls, milliseconds]");
  else
    for (const json& k : *kernels) profile.kernels.push_back({k[0].get<std::string>(), k[2].get<double>()});
  return profile;
}

}  // namespace

Measured read_measured(ObjectReader& in, std::int64_t pipeline_ranks) {
  Measured m;
  const auto number = [&](std::string_view key) { return in.number(key, kLeastMeasured, kMostMeasured); };
  m.step_time_s = number("step_time_s");
  m.tokens_per_s_per_gpu = number("tokens_per_s_per_gpu");
  m.tokens_are_rounded = in.boolean_or("tokens_are_rounded", false);
  m.tflops_per_gpu = number("tflops_per_gpu");
  m.mfu_pct = number("mfu_pct");
  m.peak_memory_gib = number("peak_memory_gib");
  m.peak_reserved_gib = number("peak_reserved_gib");
  if (const auto other = number("peak_reserved_memory_gib"); other && !m.peak_reserved_gib) m.peak_reserved_gib = other;
  const auto per_rank = [&](std::string_view key) {
    return in.numbers(key, kLeastMeasured, kMostMeasured).value_or(std::vector<double>{});
  };
  m.peak_memory_gib_per_rank = per_rank("peak_memory_gib_per_rank");
  m.peak_reserved_gib_per_rank = per_rank("peak_reserved_gib_per_rank");
  for (const double gib : m.peak_reserved_gib_per_rank)
    m.peak_reserved_gib = std::max(m.peak_reserved_gib.value_or(0.0), gib);
  m.allocated_after_setup_gib = number("allocated_after_setup_gib");
  m.allocated_between_steps_gib = number("allocated_between_steps_gib");
  m.num_alloc_retries = in.integer("num_alloc_retries", 0, kMostRetries).value_or(0);
  m.pipeline_rank = in.integer("pipeline_rank", 0, std::max<std::int64_t>(1, pipeline_ranks) - 1);
  if (auto profile = in.object("kernel_profile_rank0")) m.kernel_profile = kernel_profile(*profile);
  // Facts about measurements come from many sources, so unknown keys are allowed.
  in.finish_open({"allocated_after_setup_gib", "allocated_between_steps_gib", "step_time_s", "tokens_per_s_per_gpu",
                  "tokens_are_rounded", "tflops_per_gpu", "mfu_pct", "peak_memory_gib", "peak_reserved_gib",
                  "peak_reserved_memory_gib", "step_times_s", "peak_memory_gib_per_rank", "peak_reserved_gib_per_rank",
                  "num_alloc_retries", "pipeline_rank", "kernel_profile_rank0"});
  return m;
}

}  // namespace foldwise::planner
