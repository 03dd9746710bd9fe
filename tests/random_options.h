#pragma once
#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "planner/run/fields.h"

namespace foldwise::planner {

/// Values of fields, the same everywhere: the standard's distributions are each library's own.
class RandomOptions {
 public:
  explicit RandomOptions(unsigned seed) : bits_(seed) {}
  std::size_t below(std::size_t n) { return bits_() % n; }
  template <typename T>
  T one_of(const std::vector<T>& list) {
    return list[below(list.size())];
  }

  /// Some value of the field: of numbers small ones, and powers of two.
  nlohmann::json any_value(const Field& f) {
    using nlohmann::json;
    const FieldValue& v = f.value;
    switch (v.type) {
      case FieldType::kInteger: {
        const std::int64_t n = below(2) == 0 ? static_cast<std::int64_t>(below(9)) : std::int64_t{1} << below(8);
        return std::clamp(n, static_cast<std::int64_t>(v.low),
                          static_cast<std::int64_t>(std::min(v.high, 1'000'000.0)));
      }
      case FieldType::kNumber:
        return one_of(std::vector<double>{0.0, 0.25, 0.5, 1.0});
      case FieldType::kBoolean:
        return below(2) == 0;
      case FieldType::kName:
        return one_of(v.names);
      case FieldType::kNames: {
        json list = json::array();
        for (const std::string& name : v.names)
          if (below(v.names.size()) < 2) list.push_back(name);
        return list;
      }
      case FieldType::kIntegers:
        return json{std::int64_t{1} << below(3), 2};
      case FieldType::kText:
        return one_of(
            std::vector<std::string>{"", "Et*6|t*6L", "Et*3|t*3|t*3|t*3L", "Et*3|t*3|t*3|t*3m|L", "Et|L", "E"});
      case FieldType::kObject:
        break;
    }
    return nullptr;
  }

  /// Sets some value where the field applies and takes it (an empty list of modules may be none of its values).
  void give(const Field& f, costmodel::TrainingOptions& options) {
    const nlohmann::json value = any_value(f);
    if (f.applies_to(options) && mistake_in(f, value).empty()) f.value.set(options, value);
  }

 private:
  std::mt19937 bits_;
};

/// Fields that a value can be given to.
inline std::vector<const Field*> settable_fields() {
  std::vector<const Field*> list;
  for (const Field& f : fields())
    if (f.is_option() && f.value.set && f.value.type != FieldType::kObject) list.push_back(&f);
  return list;
}

}  // namespace foldwise::planner
