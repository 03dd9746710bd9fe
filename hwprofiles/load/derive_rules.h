#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

// How a number that nobody has measured on one GPU follows from another number: pure functions, each with a name that
// the "derive" block of a profile uses. docs/measuring.md#derived lists them.
namespace foldwise::hwprofiles {

/// A number as a profile writes it; `source` is a key of the profile's /sources.
struct Quantity {
  double value = 0.0;
  std::string unit, kind, source, date, note;
};

/// a / b; units may differ in size ("GB/s", "Gb/s") but not in what they measure.
[[nodiscard]] double ratio(const Quantity& a, const Quantity& b);

struct RuleInput {
  Quantity of;          ///< The number that is carried over, in the profile `there` reads.
  double factor = 1.0;  ///< What "by" says: this GPU's number over the other's, or a ratio that is given.
  Quantity to;          ///< This GPU's number at "to".
  Quantity to_there;    ///< The other's.
  /// Any other number, by JSON pointer, of this GPU and of the other.
  std::function<Quantity(const std::string&)> own, there;
};

struct Rule {
  std::string_view name;
  bool by, to;  ///< Keys that it needs beside "field", "from" and "of".
  double (*value)(const RuleInput&);
  std::string_view summary;
};

/// Every rule: copy, scaled, inverse, proportion, below-ceiling, memory-share, element-time.
[[nodiscard]] const std::vector<Rule>& rules();

/// of: what shares, launches and latencies keep.
[[nodiscard]] double copy(const RuleInput& in);
/// of * factor: rates grow with the rate `by`.
[[nodiscard]] double scaled(const RuleInput& in);
/// of / factor: times, and shares of a peak where the absolute rate is the same, shrink with the rate `by`.
[[nodiscard]] double inverse(const RuleInput& in);
/// The smaller of `of` and /hbm/ceiling: shares of the HBM bandwidth where nothing says how SMs limit them.
[[nodiscard]] double below_ceiling(const RuleInput& in);
/// to * of / to_there: the number stands to another of this GPU as it does on the other GPU.
[[nodiscard]] double proportion(const RuleInput& in);
/// Share of the HBM bandwidth that a memory-bound kernel reaches. A byte takes its time in HBM, 1 / ceiling of the
/// bandwidth, and its time in the SMs, which the other GPU's share shows and which shrinks with the number of SMs:
///   1 / (1 / ceiling + max(0, 1 / of - 1 / ceiling there) * (hbm / hbm there) * (sms there / sms))
/// with /hbm/ceiling, /hbm/bandwidth and /sms. Source: benchmarks/accuracy/journal.md#memory-bound.
[[nodiscard]] double memory_share(const RuleInput& in);
/// Time of an element of a software kernel: what its bytes, `to` there, take of the HBM bandwidth shrinks with the
/// bandwidth, the rest with the number of SMs, as for memory_share.
[[nodiscard]] double element_time(const RuleInput& in);

}  // namespace foldwise::hwprofiles
