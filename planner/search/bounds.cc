#include "planner/search/bounds.h"

#include <algorithm>
#include <cmath>

namespace foldwise::planner {

Load& Load::operator+=(const Load& other) {
  forward += other.forward;
  backward += other.backward;
  copy_forward += other.copy_forward;
  copy_backward += other.copy_backward;
  saving += other.saving;
  issue += other.issue;
  products += other.products;
  unclocked += other.unclocked;
  return *this;
}

Load Load::times(double count) const {
  return {count * forward, count * backward, count * copy_forward, count * copy_backward,
          count * saving,  count * issue,    count * products,     count * unclocked};
}

Load load_of(const costmodel::BlockCost& cost, Seconds saving) {
  const costmodel::DirectionCost &f = cost.forward, &b = cost.backward;
  return {.forward = f.compute + f.comm,
          .backward = b.compute + b.comm,
          .copy_forward = f.copy,
          .copy_backward = b.copy,
          .saving = saving,
          .issue = f.clock.issue() + b.clock.issue(),
          .products = cost.mix.products,
          .unclocked = cost.unclocked};
}

Seconds at_least(const Load& load) {
  const double device = (std::max(load.forward, load.copy_forward) + std::max(load.backward, load.copy_backward) -
                         load.saving)
                            .to<double>(),
               products = load.products.to<double>(), unclocked = load.unclocked.to<double>();
  double time = device;
  if (unclocked > 0.0) {  // As throttle() in stage_cost.cc.
    const double others = std::max(0.0, device - products), lost = unclocked / products;
    const double a = 1.0 - lost, b = others - products, c = -products * others;
    time = (-b + std::sqrt(b * b - 4.0 * a * c)) / (2.0 * a) + others;
  }
  return Seconds{std::max(time, load.issue.to<double>())};
}

}  // namespace foldwise::planner
