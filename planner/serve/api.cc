#include "planner/serve/api.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hwprofiles/load/profile.h"
#include "hwprofiles/load/systems.h"
#include "planner/answer/catalog.h"
#include "planner/answer/rule_pages.h"
#include "planner/answer/run_answer.h"
#include "planner/foldwise.h"
#include "planner/models/models.h"
#include "planner/report/fields_report.h"
#include "planner/serve/requests.h"
#include "planner/serve/site.h"
#include "planner/serve/values.h"

namespace foldwise::serve {
namespace {

using nlohmann::json;

/// The whole answer of `predict`. ?detail=1: the prediction and the run alone; 0: without the interval, the seconds of
/// stages and those of ops too, each of which takes as long as the prediction.
Response predict(const Request& request) {
  const std::string_view detail = query_value(request.query, "detail");
  if (!detail.empty() && detail != "0" && detail != "1" && detail != "2")
    return failure(422, "detail", fmt::format("expected 0, 1 or 2, found {}", text_of(detail)));
  const planner::Run run = run_in(read_body(request.body));
  const costmodel::Step step = foldwise::compose(run);
  if (detail.empty() || detail == "2") return success(planner::run_answer_json(run, planner::run_answer(run, step)));
  const bool some = detail == "1";
  const costmodel::Prediction prediction = foldwise::predict(run, step, some);
  std::optional<planner::Interval> interval;
  if (some) interval = planner::step_time_interval(planner::built_in_errors(), run, prediction.step_time);
  json answer = planner::prediction_json(run, prediction, interval);
  answer["run"] = planner::write_run(run);
  return success(std::move(answer));
}

Response compare(const Request& request) {
  const std::vector<planner::Run> runs = runs_in(read_body(request.body));
  std::vector<std::function<planner::Run()>> readers;
  readers.reserve(runs.size());
  for (const planner::Run& run : runs) readers.emplace_back([&run] { return run; });
  return success(planner::comparison_json(planner::predict_all(readers), planner::built_in_errors()));
}

Response check(const Request& request) { return success(values_json(read_body(request.body))); }

Response schedule(const Request& request) {
  const planner::Run run = run_in(read_body(request.body));
  const costmodel::Step step = foldwise::compose(run);
  const planner::Picture picture = planner::schedule_picture(run, step, foldwise::predict(run, step));
  return success({{"title", picture.title}, {"svg", picture.svg}});
}

Response fields(const Request& /*unused*/) {
  static const std::string text = success(planner::fields_json()).body;
  return {.body = text};
}
Response models(const Request& /*unused*/) { return success(planner::models_json()); }
Response systems(const Request& /*unused*/) {
  static const std::string text = success(planner::systems_json()).body;
  return {.body = text};
}
Response rules(const Request& /*unused*/) {
  static const std::string text = success(planner::rules_json()).body;
  return {.body = text};
}
Response description(const Request& /*unused*/) { return {.body = openapi()}; }

struct Route {
  std::string_view method, path;
  Response (*answer)(const Request&);
};
constexpr std::array kRoutes = {
    Route{"POST", "/api/predict", predict},
    Route{"POST", "/api/compare", compare},
    Route{"POST", "/api/check", check},
    Route{"POST", "/api/schedule", schedule},
    Route{"GET", "/api/fields", fields},
    Route{"GET", "/api/models", models},
    Route{"GET", "/api/systems", systems},
    Route{"GET", "/api/rules", rules},
    Route{"GET", "/api/openapi.json", description},
    Route{"POST", "/api/plan", nullptr},
};

Response wrong_method(std::string_view allowed) {
  Response response = failure(405, "", fmt::format("expected {}", allowed));
  response.headers.emplace_back("Allow", allowed);
  return response;
}

/// "%2F" in an address is '/'. What is no two digits of base 16 stays.
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t at = 0; at < text.size(); ++at) {
    unsigned char code = 0;
    const bool coded = text[at] == '%' && at + 2 < text.size();
    const char* const digits = text.data() + at + 1;
    if (coded && std::from_chars(digits, digits + 2, code, 16).ptr == digits + 2) {
      decoded += static_cast<char>(code);
      at += 2;
    } else {
      decoded += text[at];
    }
  }
  return decoded;
}

/// One entry of a catalogue: /api/models/NAME.
Response entry(const std::string& path) {
  const auto named = [&](std::string_view folder) {
    return path.starts_with(folder) ? percent_decoded(path).substr(folder.size()) : "";
  };
  if (const std::string name = named("/api/models/"); !name.empty())
    if (const auto model = built_in_model_meant(name)) return success(planner::model_json(*model));
  if (const std::string name = named("/api/systems/"); !name.empty())
    if (const auto system = built_in_system_meant(name))
      return success(planner::system_json(hwprofiles::load_profile(*system)));
  if (const std::string name = named("/api/rules/"); !name.empty())
    if (const auto rule = std::ranges::find(planner::rules(), std::string_view(name), &planner::Rule::id);
        rule != planner::rules().end())
      return success(planner::rule_json(*rule));
  return failure(404, path.substr(0, 200), "there is nothing here; /api/openapi.json lists what there is");
}

Response routed(const Request& request) {
  for (const Route& route : kRoutes)
    if (route.path == request.path && route.method == request.method && request.method == "POST" && !request.is_json)
      return failure(415, "", "expected Content-Type: application/json");
  for (const Route& route : kRoutes)
    if (route.path == request.path)
      return route.method == request.method && route.answer != nullptr ? route.answer(request)
                                                                       : wrong_method(route.method);
  if (const Response* file = site_file(request.path)) return request.method == "GET" ? *file : wrong_method("GET");
  Response found = entry(request.path);
  return found.status == 200 && request.method != "GET" ? wrong_method("GET") : found;
}

}  // namespace

Response respond(const Request& request) {
  try {
    return routed(request);
  } catch (...) {
    return failure_of_exception();
  }
}

}  // namespace foldwise::serve
