#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

// Rules that compute an unmeasured number of one GPU from another number. They are pure functions; the "derive" block
// of a profile refers to them by name. docs/measuring.md#derived lists them.
namespace foldwise::hwprofiles {

/// A number in a profile. `source`: key of the profile's /sources.
struct Quantity {
  double value = 0.0;
  std::string unit, kind, source, date, note;
};

/// a / b. Units may differ in size ("GB/s", "Gb/s"), but not in dimension.
[[nodiscard]] double ratio(const Quantity& a, const Quantity& b);

struct RuleInput {
  Quantity of;          ///< The original number, in the profile that `there` reads.
  double factor = 1.0;  ///< From "by": this GPU's number divided by the other's, or a given ratio.
  Quantity to;          ///< This GPU's number at "to".
  Quantity to_there;    ///< The other GPU's number at "to".
  /// Other numbers by JSON pointer: of this GPU, and of the other.
  std::function<Quantity(const std::string&)> own, there;
};

struct Rule {
  std::string_view name;
  bool by, to;  ///< Whether it needs these keys in addition to "field", "from" and "of".
  double (*value)(const RuleInput&);
  std::string_view summary;
};

/// Every rule: copy, scaled, inverse, proportion, below-ceiling, memory-share, element-time.
[[nodiscard]] const std::vector<Rule>& rules();

/// of: for shares, launches and latencies that do not change.
[[nodiscard]] double copy(const RuleInput& in);
/// of * factor: for rates that are proportional to the rate `by`.
[[nodiscard]] double scaled(const RuleInput& in);
/// of / factor: for times, and for shares of a peak with an unchanged absolute rate.
[[nodiscard]] double inverse(const RuleInput& in);
/// The smaller of `of` and /hbm/ceiling: for shares of the HBM bandwidth without data on the limit by SMs.
[[nodiscard]] double below_ceiling(const RuleInput& in);
/// to * of / to_there: for numbers with the same ratio to another number on both GPUs.
[[nodiscard]] double proportion(const RuleInput& in);
/// Share of the HBM bandwidth that a memory-bound kernel reaches. Each byte takes time in HBM, 1 / ceiling of the
/// bandwidth, and in the SMs. The other GPU's share gives the time in its SMs, which is inversely proportional to their
/// number:
///   1 / (1 / ceiling + max(0, 1 / of - 1 / ceiling there) * (hbm / hbm there) * (sms there / sms))
/// with /hbm/ceiling, /hbm/bandwidth and /sms. Source: benchmarks/accuracy/journal.md#memory-bound.
[[nodiscard]] double memory_share(const RuleInput& in);
/// Time per element of a software kernel. The part for its bytes (`to` there) scales with the HBM bandwidth, the rest
/// with the number of SMs, as in memory_share.
[[nodiscard]] double element_time(const RuleInput& in);

}  // namespace foldwise::hwprofiles
