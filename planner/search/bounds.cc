#include "planner/search/bounds.h"

#include <algorithm>

namespace foldwise::planner {

DirectionLoad& DirectionLoad::operator+=(const DirectionLoad& other) {
  work += other.work;
  compute += other.compute;
  copy += other.copy;
  products += other.products;
  unclocked += other.unclocked;
  warm += other.warm;
  return *this;
}

DirectionLoad DirectionLoad::times(double count) const {
  return {count * work, count * compute, count * copy, count * products, count * unclocked, count * warm};
}

Seconds DirectionLoad::at_least(Seconds idle) const {
  const Seconds device = std::max(work, copy);
  if (unclocked <= Seconds{} || compute <= Seconds{}) return device;
  // As throttle() in stage_cost.cc, without what attention loses beyond products.
  const Seconds others = std::max(Seconds{}, device + idle - products - warm);
  const Seconds more = costmodel::limited_products(products, (unclocked / products).to<double>(), others) - products;
  return std::max(work + more, copy);
}

Load& Load::operator+=(const Load& other) {
  forward += other.forward;
  backward += other.backward;
  saving += other.saving;
  issue += other.issue;
  return *this;
}

Load Load::times(double count) const {
  return {forward.times(count), backward.times(count), count * saving, count * issue};
}

Load load_of(const costmodel::BlockCost& cost, Seconds saving) {
  const auto direction = [](const costmodel::DirectionCost& d) {
    return DirectionLoad{.work = d.compute + d.comm,
                         .compute = d.compute,
                         .copy = d.copy,
                         .products = d.products,
                         .unclocked = d.unclocked,
                         .warm = d.warm};
  };
  return {.forward = direction(cost.forward),
          .backward = direction(cost.backward),
          .saving = saving,
          .issue = cost.forward.clock.issue() + cost.backward.clock.issue()};
}

Seconds at_least(const Load& load) {
  // The saving also shortens the time to cool. Subtracting all of it is the limit, in either direction.
  return std::max(load.forward.at_least() + load.backward.at_least() - load.saving, load.issue);
}

}  // namespace foldwise::planner
