#pragma once
#include <cstdint>
#include <map>
#include <vector>

namespace foldwise::planner {

/// Numbers distinct values in the order of their first occurrence.
template <typename Value>
class Numbered {
 public:
  explicit Numbered(std::vector<Value>& values) : values_(values) {}
  std::int32_t operator()(const Value& value) {
    const auto [found, is_new] = numbers_.emplace(value, static_cast<std::int32_t>(values_.size()));
    if (is_new) values_.push_back(value);
    return found->second;
  }

 private:
  std::vector<Value>& values_;
  std::map<Value, std::int32_t> numbers_;
};

}  // namespace foldwise::planner
