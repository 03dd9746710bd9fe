#include "planner/search/bounds.h"

#include <algorithm>
#include <cmath>

namespace foldwise::planner {

namespace {

Seconds device(const Load& load) {
  return std::max(load.forward, load.copy_forward) + std::max(load.backward, load.copy_backward) - load.saving;
}

/// Seconds that the products of a stage take beside `others`, stretched as throttle() in stage_cost.cc does it.
double stretched(double products, double unclocked, double others) {
  const double a = 1.0 - unclocked / products, b = others - products, c = -products * others;
  return (-b + std::sqrt(b * b - 4.0 * a * c)) / (2.0 * a);
}

}  // namespace

Load& Load::operator+=(const Load& other) {
  forward += other.forward;
  backward += other.backward;
  copy_forward += other.copy_forward;
  copy_backward += other.copy_backward;
  compute_forward += other.compute_forward;
  compute_backward += other.compute_backward;
  saving += other.saving;
  issue += other.issue;
  products += other.products;
  unclocked += other.unclocked;
  return *this;
}

Load Load::times(double count) const {
  return {count * forward,         count * backward,         count * copy_forward, count * copy_backward,
          count * compute_forward, count * compute_backward, count * saving,       count * issue,
          count * products,        count * unclocked};
}

Load load_of(const costmodel::BlockCost& cost, Seconds saving) {
  const costmodel::DirectionCost &f = cost.forward, &b = cost.backward;
  return {.forward = f.compute + f.comm,
          .backward = b.compute + b.comm,
          .copy_forward = f.copy,
          .copy_backward = b.copy,
          .compute_forward = f.compute,
          .compute_backward = b.compute,
          .saving = saving,
          .issue = f.clock.issue() + b.clock.issue(),
          .products = cost.mix.products,
          .unclocked = cost.unclocked};
}

Seconds at_least(const Load& load) {
  const double alone = device(load).to<double>(), products = load.products.to<double>();
  double time = alone;
  if (load.unclocked > Seconds{}) {
    const double others = std::max(0.0, alone - products);
    time = stretched(products, load.unclocked.to<double>(), others) + others;
  }
  return Seconds{std::max(time, load.issue.to<double>())};
}

Stretch stretch_of(const Load& load, Seconds idle) {
  const Seconds compute = load.compute_forward + load.compute_backward;
  if (load.unclocked <= Seconds{} || compute <= Seconds{}) return {};
  const double products = load.products.to<double>(),
               others = std::max(0.0, (device(load) + idle - load.products).to<double>()),
               more = (stretched(products, load.unclocked.to<double>(), others) - products) / compute.to<double>();
  return {more * load.compute_forward, more * load.compute_backward};
}

}  // namespace foldwise::planner
