#include "hwprofiles/load/derive_rules.h"

#include <algorithm>

#include "costmodel/check.h"
#include "hwprofiles/load/fields.h"

namespace foldwise::hwprofiles {

double ratio(const Quantity& a, const Quantity& b) {
  if (a.unit == b.unit) return a.value / b.value;
  const double size_a = unit_size(a.unit), size_b = unit_size(b.unit);
  FW_CHECK(size_a > 0.0 && size_b > 0.0, a.unit + " over " + b.unit);
  return a.value * size_a / (b.value * size_b);
}

double copy(const RuleInput& in) { return in.of.value; }
double scaled(const RuleInput& in) { return in.of.value * in.factor; }
double inverse(const RuleInput& in) { return in.of.value / in.factor; }
double proportion(const RuleInput& in) { return in.to.value * ratio(in.of, in.to_there); }

double below_ceiling(const RuleInput& in) { return std::min(in.of.value, in.own("/hbm/ceiling").value); }

double memory_share(const RuleInput& in) {
  const double per_sm =
      ratio(in.own("/hbm/bandwidth"), in.there("/hbm/bandwidth")) * ratio(in.there("/sms"), in.own("/sms"));
  const double sm_time = std::max(0.0, 1.0 / in.of.value - 1.0 / in.there("/hbm/ceiling").value) * per_sm;
  return 1.0 / (1.0 / in.own("/hbm/ceiling").value + sm_time);
}

double element_time(const RuleInput& in) {
  const auto seconds_of_bytes = [](const std::function<Quantity(const std::string&)>& gpu, double bytes) {
    const Quantity bandwidth = gpu("/hbm/bandwidth");
    return bytes / (gpu("/hbm/ceiling").value * bandwidth.value * unit_size(bandwidth.unit));
  };
  const double unit = unit_size(in.of.unit), bytes = in.to_there.value * unit_size(in.to_there.unit);
  const double in_sms = std::max(0.0, in.of.value * unit - seconds_of_bytes(in.there, bytes));
  return (seconds_of_bytes(in.own, bytes) + in_sms * ratio(in.there("/sms"), in.own("/sms"))) / unit;
}

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all{
      {"copy", false, false, copy, "the same number"},
      {"scaled", true, false, scaled, "times the ratio of `by`, this GPU's over the other's"},
      {"inverse", true, false, inverse, "over the ratio of `by`"},
      {"proportion", false, true, proportion, "this GPU's `to` times what the number is of `to` on the other"},
      {"below-ceiling", false, false, below_ceiling, "a share of the HBM bandwidth, at most the ceiling"},
      {"memory-share", false, false, memory_share, "a share of the HBM bandwidth by SMs, HBM and its ceiling"},
      {"element-time", false, true, element_time, "the time of `to` bytes by the HBM bandwidth, the rest by the SMs"}};
  return all;
}

}  // namespace foldwise::hwprofiles
