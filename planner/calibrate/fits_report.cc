#include "planner/calibrate/fits_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "planner/report/screen.h"

namespace foldwise::planner {

using hwprofiles::FittedCurve;
using nlohmann::json;

namespace {
std::string number(double value) { return fmt::format("{:.1f}", value); }

std::string values_of(const FittedCurve& curve) {
  std::string values;
  for (std::size_t i = 0; i < curve.parameters.size(); ++i) {
    const hwprofiles::Parameter& parameter = curve.parameters[i];
    const std::string name = parameter.pointer.starts_with(curve.pointer + "/")
                                 ? parameter.pointer.substr(curve.pointer.size() + 1)
                                 : parameter.pointer;
    values += fmt::format("{}{} {:.4g}{}", values.empty() ? "" : ", ", name, curve.values[i],
                          parameter.unit == "1" ? "" : " " + parameter.unit);
  }
  return values;
}

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

std::string fits_text(const std::vector<FittedCurve>& curves, bool fitted_values) {
  std::vector<std::string> titles = {"<curve", "settings", "median", "mean", "left out: median", "mean"};
  if (fitted_values) titles.emplace_back("<fitted");
  Table table(titles);
  for (const FittedCurve& curve : curves) {
    const auto percent = [](const hwprofiles::FitError& error, double value) {
      return error.samples == 0 ? std::string("-") : number(100.0 * value);
    };
    std::vector<std::string> cells = {curve.name,
                                      fmt::format("{}", curve.training.samples),
                                      percent(curve.training, curve.training.median),
                                      percent(curve.training, curve.training.mean),
                                      percent(curve.validated, curve.validated.median),
                                      percent(curve.validated, curve.validated.mean)};
    if (fitted_values) cells.push_back(values_of(curve));
    table.add(std::move(cells));
  }
  return table.text();
}

std::string fits_in_short(const std::vector<FittedCurve>& curves) {
  std::vector<double> fitted, left_out;
  for (const FittedCurve& curve : curves) {
    fitted.push_back(curve.training.median);
    if (curve.validated.samples > 0) left_out.push_back(curve.validated.median);
  }
  const auto median = [](std::vector<double>& of) {
    std::ranges::nth_element(of, of.begin() + std::ssize(of) / 2);
    return 100.0 * of[of.size() / 2];
  };
  std::string text = fmt::format("{} curve{}", curves.size(), curves.size() == 1 ? "" : "s");
  if (!fitted.empty()) text += fmt::format(", {:.1f} % off in the median", median(fitted));
  if (!left_out.empty()) text += fmt::format(", {:.1f} % where left out of the fit", median(left_out));
  return text;
}

}  // namespace foldwise::planner
