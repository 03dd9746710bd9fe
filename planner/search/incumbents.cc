#include "planner/search/incumbents.h"

#include <algorithm>

#include "planner/search/parameters.h"

namespace foldwise::planner {

void Incumbents::offer(const Solution& found) {
  const auto [entry, fresh] = found_.try_emplace(key(found.options.layout()));
  if (!fresh && std::tie(entry->second->time, entry->second->assignment) <= std::tie(found.time, found.assignment))
    return;
  entry->second = std::make_shared<const Solution>(found);
  fastest_ = std::min(fastest_, found.time.to<double>());
  limit_ = kWindow * fastest_;
  if (found_.size() < top_) return;
  std::vector<double> times;
  times.reserve(found_.size());
  for (const auto& [layout, known] : found_) times.push_back(known->time.to<double>());
  const auto last = times.begin() + static_cast<std::ptrdiff_t>(top_ - 1);
  std::nth_element(times.begin(), last, times.end());
  limit_ = std::min(limit_, std::max(fastest_, (1.0 - kTolerance) * *last));
}

double Incumbents::limit(const costmodel::Layout& layout) const {
  const auto known = found_.find(key(layout));
  if (known == found_.end()) return limit_;
  const auto time = known->second->time.to<double>();
  return std::min(limit_, std::max(fastest_, (1.0 - kTolerance) * time));
}

std::vector<Solution> Incumbents::first(std::size_t count) const {
  std::vector<Solution> list;
  for (const auto& [layout, known] : found_) list.push_back(*known);
  std::sort(list.begin(), list.end(), [](const Solution& a, const Solution& b) {
    return std::tie(a.time, a.assignment) < std::tie(b.time, b.assignment);
  });
  if (list.size() > count) list.resize(count);
  return list;
}

std::vector<Solution> Incumbents::sorted() const {
  std::vector<Solution> list = first(top_);
  std::erase_if(list, [&](const Solution& f) { return f.time.to<double>() > kWindow * fastest_; });
  return list;
}

Statistics& Statistics::operator+=(const Statistics& other) {
  rejected.resize(std::max(rejected.size(), other.rejected.size()), 0.0);
  for (std::size_t i = 0; i < other.rejected.size(); ++i) rejected[i] += other.rejected[i];
  valid = valid || other.valid;
  composed += other.composed;
  fitting += other.fitting;
  simulated += other.simulated;
  return *this;
}

}  // namespace foldwise::planner
