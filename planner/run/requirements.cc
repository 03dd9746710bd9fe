#include "planner/run/requirements.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "planner/run/fields.h"

namespace foldwise::planner {
namespace {

/// Splits a version for comparison: "2.14.1" into {2, 14, 1}.
std::vector<int> numbers_of(const std::string& version) {
  std::vector<int> numbers;
  for (const char* at = version.data(); at < version.data() + version.size();) {
    int number = 0;
    const auto [end, error] = std::from_chars(at, version.data() + version.size(), number);
    if (error != std::errc{}) break;
    numbers.push_back(number);
    at = end + 1;
  }
  return numbers;
}

/// Splits "Transformer Engine 2.14" into its two parts. A name alone has no version.
Requirement requirement_of(const std::string& needs) {
  const std::size_t space = needs.rfind(' ');
  const bool numbered =
      space != std::string::npos && space + 1 < needs.size() && needs[space + 1] >= '0' && needs[space + 1] <= '9';
  return numbered ? Requirement{needs.substr(0, space), needs.substr(space + 1), {}} : Requirement{needs, {}, {}};
}

}  // namespace

std::vector<Requirement> requirements(const costmodel::ModelSpec& model, const costmodel::TrainingOptions& options) {
  std::vector<Requirement> list;
  for (const Field& f : fields()) {
    if (f.limited.empty() || !f.counts_in(model, options)) continue;
    const nlohmann::json value = f.value.get(options);
    const auto row = std::ranges::find(f.limited, value, &LimitedValue::value);
    if (row == f.limited.end() || row->needs.empty()) continue;
    Requirement needed = requirement_of(row->needs);
    needed.because = fmt::format("{} {}", f.key, value_text(value));
    const auto known = std::ranges::find(list, needed.library, &Requirement::library);
    if (known == list.end())
      list.push_back(std::move(needed));
    else if (older(known->version, needed.version))
      *known = std::move(needed);
  }
  return list;
}

bool older(const std::string& version, const std::string& than) { return numbers_of(version) < numbers_of(than); }

std::string requirements_text(const std::vector<Requirement>& requirements) {
  std::string text;
  for (const Requirement& r : requirements)
    text += (text.empty() ? "" : ", ") + r.library + (r.version.empty() ? "" : " " + r.version);
  return text;
}

nlohmann::json requirements_json(const std::vector<Requirement>& requirements) {
  nlohmann::json list = nlohmann::json::array();
  for (const Requirement& r : requirements)
    list.push_back({{"library", r.library},
                    {"version", r.version.empty() ? nlohmann::json(nullptr) : nlohmann::json(r.version)},
                    {"because", r.because}});
  return list;
}

}  // namespace foldwise::planner
