#include "hwprofiles/records/record_ops.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>
#include <variant>

#include "costmodel/check.h"
#include "hwprofiles/load/profile.h"

namespace foldwise::hwprofiles {
namespace {

using costmodel::AttentionWork;
using costmodel::CollectiveWork;
using costmodel::GemmWork;
using costmodel::Grouping;
using costmodel::Hardware;
using costmodel::HostCopyWork;
using costmodel::MathFormat;
using costmodel::MemoryOp;
using costmodel::MemoryWork;
using costmodel::Op;
using costmodel::Phase;

std::string text(const Measurement& measurement, const char* key) {
  const auto found = measurement.of.find(key);
  return found == measurement.of.end() ? "" : found->second;
}

std::int64_t size(const Measurement& measurement, const char* key) {
  const auto found = measurement.shape.find(key);
  FW_CHECK(found != measurement.shape.end(), measurement.kernel + " without " + key);
  return found->second;
}

template <typename Enum>
std::optional<Enum> named(const std::vector<std::pair<std::string, Enum>>& names, const std::string& name) {
  for (const auto& [known, value] : names)
    if (known == name) return value;
  return std::nullopt;
}

Phase phase_of(const Measurement& measurement) {
  const std::string phase = text(measurement, "phase");
  return phase == "dgrad" || phase == "backward" ? Phase::kDgrad : phase == "wgrad" ? Phase::kWgrad : Phase::kForward;
}

Op op_of(Phase phase, costmodel::Work work) {
  Op op;
  op.phase = phase;
  op.work = work;
  return op;
}

/// Bytes read and written to quantise an element of an activation, for records that include it: in FP8 an amax pass and
/// a cast, else a cast that computes the scales.
double quantised_bytes(MathFormat format) {
  switch (format) {
    case MathFormat::kFp8:
      return 2.0 + 2.0 + 1.0;
    case MathFormat::kFp8Block:
      return 2.0 + 1.0 + 4.0 / 128.0;
    case MathFormat::kMxfp8:
      return 2.0 + 1.0 + 1.0 / 32.0;
    case MathFormat::kNvfp4:
      return 2.0 + 0.5 + 1.0 / 16.0;
    case MathFormat::kBf16:
    case MathFormat::kFp32:
      return 0.0;
  }
  return 0.0;
}

std::vector<Op> gemm_ops(const Measurement& measurement, std::int64_t groups) {
  const auto format = named(math_format_names(), text(measurement, "format"));
  if (!format) return {};
  const Phase phase = phase_of(measurement);
  const bool accumulates = phase == Phase::kWgrad;
  if (groups > 1 || measurement.kernel == "grouped_gemm") {
    const std::int64_t n = size(measurement, "n"), k = size(measurement, "k");
    const double rows = static_cast<double>(size(measurement, "rows")) / static_cast<double>(groups);
    if (phase == Phase::kWgrad)
      return {op_of(phase, GemmWork{*format, static_cast<double>(k), n, static_cast<std::int64_t>(std::ceil(rows)),
                                    groups, accumulates})};
    return {
        op_of(phase, GemmWork{*format, rows, n, k, groups, accumulates,
                              text(measurement, "kernels") == "one" ? Grouping::kOneKernel : Grouping::kSideBySide})};
  }
  const std::int64_t m = size(measurement, "m"), n = size(measurement, "n"), k = size(measurement, "k");
  std::vector<Op> ops{op_of(phase, GemmWork{*format, static_cast<double>(m), n, k, 1, accumulates})};
  if (text(measurement, "includes") == "quantize")
    ops.push_back(op_of(phase, MemoryWork{MemoryOp::kQuantize, Bytes{quantised_bytes(*format) * static_cast<double>(m) *
                                                                     static_cast<double>(k)}}));
  return ops;
}

/// FLOPs per pair of rows: forward 2 (dqk + dv), backward 2 (3 dqk + 2 dv).
std::vector<Op> attention_ops(const Measurement& measurement) {
  const std::string format = text(measurement, "format");
  if (format != "bf16" && format != "fp8") return {};
  const auto real = [&](const char* key) { return static_cast<double>(size(measurement, key)); };
  const double qk = real("head_dim"), v = real("head_dim_v"), seq = real("seq");
  const double query_rows = real("batch") * real("heads") * seq, key_rows = real("batch") * real("kv_heads") * seq;
  const double window = measurement.shape.contains("window") ? real("window") : 0.0;
  const double keys = window > 0.0                            ? window - window * window / (2.0 * seq)
                      : text(measurement, "mask") == "causal" ? seq / 2.0
                                                              : seq;
  const double pairs = query_rows * keys;
  const bool backward = phase_of(measurement) == Phase::kDgrad, fp8 = format == "fp8";
  const double flops = 2.0 * pairs * (backward ? 3.0 * qk + 2.0 * v : qk + v);
  const Phase phase = backward ? Phase::kDgrad : Phase::kForward;
  std::vector<Op> ops{
      op_of(phase, AttentionWork{size(measurement, "head_dim"), Flops{flops}, query_rows, backward, fp8, window})};
  if (backward)
    for (const MemoryWork& pass : costmodel::attention_backward_passes(query_rows, key_rows, qk, v))
      ops.push_back(op_of(phase, pass));
  return ops;
}

}  // namespace

std::vector<Op> ops_of(const Measurement& measurement) {
  const std::string& kernel = measurement.kernel;
  if (kernel == "gemm") return gemm_ops(measurement, 1);
  if (kernel == "grouped_gemm") return gemm_ops(measurement, size(measurement, "groups"));
  if (kernel == "attention") return attention_ops(measurement);
  if (kernel == "memory") {
    const auto op = named(memory_op_names(), text(measurement, "op"));
    if (!op) return {};
    return {op_of(Phase::kForward, MemoryWork{*op, Bytes{measurement.bytes}})};
  }
  if (kernel == "copy") {
    const std::string direction = text(measurement, "direction");
    if (direction != "h2d" && direction != "d2h") return {};
    const Bytes bytes{static_cast<double>(size(measurement, "bytes"))};
    return {op_of(Phase::kForward, HostCopyWork{.bytes = bytes, .to_host = direction == "d2h"})};
  }
  if (kernel == "collective") {
    const auto kind = named(collective_kind_names(), text(measurement, "collective"));
    if (!kind || text(measurement, "distribution") == "uneven") return {};
    CollectiveWork work;
    work.kind = *kind;
    work.bytes = Bytes{static_cast<double>(size(measurement, "bytes"))};
    const bool between = measurement.shape.contains("ranks_per_domain");
    work.shape = {.ranks = size(measurement, "ranks"),
                  .ranks_per_domain = size(measurement, between ? "ranks_per_domain" : "ranks")};
    return {op_of(Phase::kForward, work)};
  }
  return {};
}

Seconds predicted_time(const std::vector<Op>& ops, const Hardware& hw) {
  Seconds sum{};
  for (const Op& op : ops) sum += costmodel::op_time(op, hw);
  return sum;
}

bool under_load(const Measurement& measurement) { return text(measurement, "load") == "sustained"; }

Hardware measured_alone(Hardware hw, bool loaded) {
  for (costmodel::MemoryCurve& curve : hw.memory) curve.step_share = 0.0;
  if (!loaded) return hw;
  for (const auto& entry : math_format_names()) {
    const double clock = sustained_clock(hw, entry.second);
    for (double& sustained : hw.gemm.at(static_cast<std::size_t>(entry.second)).sustained) sustained *= clock;
  }
  return hw;
}

Seconds measured_time(const Measurement& measurement) {
  FW_CHECK(!measurement.samples_us.empty());
  std::vector<double> sorted = measurement.samples_us;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return microseconds(*middle);
}

}  // namespace foldwise::hwprofiles
