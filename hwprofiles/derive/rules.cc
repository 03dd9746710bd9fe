#include "hwprofiles/derive/rules.h"

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

double memory_share(const RuleInput& in) {
  const double per_sm =
      ratio(in.own("/hbm/bandwidth"), in.there("/hbm/bandwidth")) * ratio(in.there("/sms"), in.own("/sms"));
  const double sm_time = std::max(0.0, 1.0 / in.of.value - 1.0 / in.there("/hbm/ceiling").value) * per_sm;
  return 1.0 / (1.0 / in.own("/hbm/ceiling").value + sm_time);
}

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all{
      {"copy", false, false, copy, "the same number"},
      {"scaled", true, false, scaled, "times the ratio of `by`, this GPU's over the other's"},
      {"inverse", true, false, inverse, "over the ratio of `by`"},
      {"proportion", false, true, proportion, "this GPU's `to` times what the number is of `to` on the other"},
      {"memory-share", false, false, memory_share, "a share of the HBM bandwidth by SMs, HBM and its ceiling"}};
  return all;
}

}  // namespace foldwise::hwprofiles
