#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace foldwise::serve {

/// What of an HTTP request matters to an answer.
struct Request {
  std::string method;  ///< "GET", "POST".
  std::string path;    ///< "/api/predict", without the query.
  std::string query;   ///< "detail=0"
  std::string body;
  bool is_json = true;  ///< By its Content-Type.
};

struct Response {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers{};  ///< Besides those that every response has.
};

/// Value of `name` in a query; empty: it is not there.
[[nodiscard]] inline std::string_view query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), part.size() + 1));
    if (part.size() > name.size() && part.starts_with(name) && part[name.size()] == '=')
      return part.substr(name.size() + 1);
  }
  return {};
}

}  // namespace foldwise::serve
