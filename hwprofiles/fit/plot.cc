#include "hwprofiles/fit/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace foldwise::hwprofiles {
namespace {

constexpr int kPanel = 260, kMargin = 48, kPanelsPerRow = 4;

/// Ends of a logarithmic axis, as exponents of ten.
std::pair<int, int> decades(const FittedCurve& curve) {
  double low = 1e300, high = 0.0;
  for (const FittedPoint& point : curve.points) {
    for (const Seconds time : {point.measured, point.validated > Seconds{} ? point.validated : point.predicted}) {
      low = std::min(low, time.to<double>() * 1e6);
      high = std::max(high, time.to<double>() * 1e6);
    }
  }
  const int first = static_cast<int>(std::floor(std::log10(low)));
  return {first, std::max(first + 1, static_cast<int>(std::ceil(std::log10(high))))};
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) result += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return result;
}

std::string panel(const FittedCurve& curve, int left, int top) {
  const auto [first, last] = decades(curve);
  const double scale = (kPanel - 2.0 * kMargin) / (last - first);
  const auto along = [&, from = first](Seconds time) { return (std::log10(time.to<double>() * 1e6) - from) * scale; };
  const auto x = [&](Seconds time) { return left + kMargin + along(time); };
  const auto y = [&](Seconds time) { return top + kPanel - kMargin - along(time); };
  std::string out = fmt::format(
      "<text x=\"{}\" y=\"{}\" class=\"title\">{}</text>\n"
      "<text x=\"{}\" y=\"{}\">{} settings, left out {:.1f} %</text>\n"
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"frame\"/>\n",
      left + kMargin, top + 18, escaped(curve.name), left + kMargin, top + 34, curve.points.size(),
      100 * (curve.validated.samples > 0 ? curve.validated : curve.training).median, left + kMargin, top + kMargin,
      kPanel - 2 * kMargin, kPanel - 2 * kMargin);
  const Seconds low = microseconds(std::pow(10.0, first)), high = microseconds(std::pow(10.0, last));
  out += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"equal\"/>\n", x(low),
                     y(low), x(high), y(high));
  for (int decade = first; decade <= last; ++decade) {
    const Seconds at = microseconds(std::pow(10.0, decade));
    const std::string label = decade < 3 ? fmt::format("{:g} us", std::pow(10.0, decade))
                                         : fmt::format("{:g} ms", std::pow(10.0, decade - 3));
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" class=\"tick\">{}</text>\n", x(at), top + kPanel - kMargin + 14,
                       label);
  }
  for (const FittedPoint& point : curve.points) {
    const bool left_out = point.validated > Seconds{};
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2\" class=\"{}\"/>\n", x(point.measured),
                       y(left_out ? point.validated : point.predicted), left_out ? "left-out" : "fitted");
  }
  return out;
}

}  // namespace

std::string plot(const std::vector<FittedCurve>& curves, const std::string& title) {
  const int count = static_cast<int>(curves.size()), rows = (count + kPanelsPerRow - 1) / kPanelsPerRow;
  const int width = kPanel * std::min(count, kPanelsPerRow), height = kPanel * rows + 40;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\">\n"
      "<style>text{{font:11px sans-serif;fill:#333}}.title{{font-weight:bold}}.tick{{font-size:9px;text-anchor:middle}}"
      ".frame{{fill:none;stroke:#999}}.equal{{stroke:#999;stroke-dasharray:4 3}}"
      ".left-out{{fill:#1f6feb;fill-opacity:.5}}.fitted{{fill:#bf3989;fill-opacity:.5}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
      "<text x=\"{2}\" y=\"20\" class=\"title\">{3}: measured (across) against predicted by a fit without the setting "
      "(up)"
      "</text>\n",
      width, height, kMargin, escaped(title));
  for (int i = 0; i < count; ++i)
    out += panel(curves[static_cast<std::size_t>(i)], kPanel * (i % kPanelsPerRow), 40 + kPanel * (i / kPanelsPerRow));
  return out + "</svg>\n";
}

}  // namespace foldwise::hwprofiles
