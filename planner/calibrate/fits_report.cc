#include "planner/calibrate/fits_report.h"

#include <fmt/format.h>

#include "planner/report/screen.h"

namespace foldwise::planner {

using hwprofiles::FittedCurve;
using nlohmann::json;

namespace {
std::string number(double value) { return fmt::format("{:.1f}", value); }
}  // namespace

json fits_json(const std::vector<FittedCurve>& curves) {
  json result = json::array();
  for (const FittedCurve& curve : curves) {
    json parameters = json::array(), range = json::object();
    for (std::size_t i = 0; i < curve.parameters.size(); ++i)
      parameters.push_back(
          {{"field", curve.parameters[i].pointer}, {"value", curve.values[i]}, {"unit", curve.parameters[i].unit}});
    for (const auto& [property, ends] : curve.range) range[property] = {ends.first, ends.second};
    const auto error = [](const hwprofiles::FitError& e) {
      return json{{"samples", e.samples}, {"median", e.median}, {"mean", e.mean}};
    };
    result.push_back({{"curve", curve.name},
                      {"training", error(curve.training)},
                      {"left_out", curve.validated.samples > 0 ? error(curve.validated) : json(nullptr)},
                      {"parameters", std::move(parameters)},
                      {"range", std::move(range)}});
  }
  return result;
}

std::string fits_text(const std::vector<FittedCurve>& curves) {
  Table table({"<curve", "settings", "median", "mean", "left out: median", "mean", "<fitted"});
  for (const FittedCurve& curve : curves) {
    const auto percent = [](const hwprofiles::FitError& error, double value) {
      return error.samples == 0 ? std::string("-") : number(100.0 * value);
    };
    std::string values;
    for (std::size_t i = 0; i < curve.parameters.size(); ++i) {
      const hwprofiles::Parameter& parameter = curve.parameters[i];
      const std::string name = parameter.pointer.starts_with(curve.pointer + "/")
                                   ? parameter.pointer.substr(curve.pointer.size() + 1)
                                   : parameter.pointer;
      values += fmt::format("{}{} {:.4g}{}", values.empty() ? "" : ", ", name, curve.values[i],
                            parameter.unit == "1" ? "" : " " + parameter.unit);
    }
    table.add({curve.name, fmt::format("{}", curve.training.samples), percent(curve.training, curve.training.median),
               percent(curve.training, curve.training.mean), percent(curve.validated, curve.validated.median),
               percent(curve.validated, curve.validated.mean), values});
  }
  return table.text();
}

}  // namespace foldwise::planner
