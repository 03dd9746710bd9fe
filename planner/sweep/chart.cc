#include "planner/sweep/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "planner/report/markup.h"
#include "planner/run/fields.h"

namespace foldwise::planner {
namespace {

// The Okabe-Ito palette, which colour-blind readers can distinguish.
constexpr std::array<std::string_view, 7> kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                   "#e69f00", "#56b4e9", "#000000"};
constexpr std::array<std::string_view, 4> kDashes{"none", "7 4", "2 3", "9 3 2 3"};  ///< For lines beyond the colours.
constexpr double kLeft = 90.0, kTop = 50.0, kWidth = 640.0, kHeight = 380.0, kLegend = 260.0, kLegendLine = 18.0;

/// A number and its unit: from 4, from "400 Gb/s".
std::pair<std::optional<double>, std::string> quantity(const SweepRow& value) {
  if (value.is_number()) return {value.get<double>(), ""};
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return {};
  return {number, text.substr(static_cast<std::size_t>(end - text.data()))};
}

/// Positions, 0 to 1, of the values of the first axis: to scale for numbers (logarithmic if they span a factor of
/// four), else evenly spaced.
class Across {
 public:
  explicit Across(const std::vector<SweepRow>& values) : count_(values.size()) {
    std::set<std::string> units;
    for (const SweepRow& value : values) {
      const auto [number, unit] = quantity(value);
      units.insert(number ? unit : "none");
      numbers_.push_back(number.value_or(0.0));
    }
    if (count_ < 2 || units != std::set<std::string>{quantity(values.front()).second}) numbers_.clear();
    if (numbers_.empty()) return;
    const auto [low, high] = std::minmax_element(numbers_.begin(), numbers_.end());
    if (*low == *high) {  // The same value, written in two ways.
      numbers_.clear();
      return;
    }
    if (*low > 0.0 && *high >= 4.0 * *low)
      for (double& number : numbers_) number = std::log(number);
  }
  [[nodiscard]] double at(std::size_t i) const {
    if (numbers_.empty()) return (static_cast<double>(i) + 0.5) / static_cast<double>(count_);
    const auto [low, high] = std::minmax_element(numbers_.begin(), numbers_.end());
    return (numbers_[i] - *low) / (*high - *low);
  }

 private:
  std::size_t count_;
  std::vector<double> numbers_;
};

/// Tick distance of 1, 2 or 5 times a power of ten that gives four to ten ticks up to `high`.
double tick_step(double high) {
  const double power = std::pow(10.0, std::floor(std::log10(high)));
  for (const double share : {0.1, 0.2, 0.5})
    if (high / (share * power) <= 10.0) return share * power;
  return power;
}

std::string text_of(const SweepRow& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

struct Scale {
  const Across& across;
  double high;
  [[nodiscard]] double x(std::size_t i) const { return kLeft + kWidth * across.at(i); }
  [[nodiscard]] double y(double value) const { return kTop + kHeight * (1.0 - value / high); }
};

std::string frame(const Sweep& sweep, const std::vector<SweepRow>& ticks, const Scale& scale, const std::string& y) {
  std::string out;
  const double bottom = kTop + kHeight, step = tick_step(scale.high);
  const auto steps = static_cast<int>(scale.high / step);
  for (int i = 0; i <= steps; ++i) {
    const double value = i * step;
    out += fmt::format(
        "<line x1=\"{0}\" y1=\"{2:.1f}\" x2=\"{1}\" y2=\"{2:.1f}\" class=\"grid\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.6g}</text>\n",
        kLeft, kLeft + kWidth, scale.y(value), kLeft - 8.0, scale.y(value) + 4.0, value);
  }
  double last = -std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    const std::string label = text_of(ticks[i]);
    const double half = 3.5 * static_cast<double>(label.size()), x = scale.x(i);
    if (x - half < last) continue;
    last = x + half + 6.0;
    out += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" class=\"axis\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\n",
        x, bottom, bottom + 5.0, bottom + 20.0, escaped(label));
  }
  out += fmt::format("<path d=\"M{0} {1}V{2}H{3}\" class=\"axis\"/>\n", kLeft, kTop, bottom, kLeft + kWidth);
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" class=\"title\">{}</text>\n", kLeft + kWidth / 2.0,
                     bottom + 42.0, escaped(sweep.axes().front().key));
  return out +
         fmt::format("<text x=\"{}\" y=\"{}\" class=\"title\">{}</text>\n", kLeft - 60.0, kTop - 20.0, escaped(y));
}

/// Values that the points of a line share: "tp 2, pp 4".
std::string line_name(const Sweep& sweep, const SweepRow& row) {
  std::string name;
  for (std::size_t i = 1; i < sweep.axes().size(); ++i)
    name += fmt::format("{}{} {}", i > 1 ? ", " : "", sweep.axes()[i].key, text_of(row.at(sweep.axes()[i].key)));
  return name;
}

struct LineStyle {
  explicit LineStyle(std::size_t line)
      : colour(kColours.at(line % kColours.size())), dash(kDashes.at(line / kColours.size() % kDashes.size())) {}
  [[nodiscard]] std::string stroke() const {
    return fmt::format(R"(stroke="{}" stroke-width="1.5" stroke-dasharray="{}")", colour, dash);
  }
  std::string_view colour, dash;
};

/// A mark for each answer, and lines between consecutive ones.
std::string line_svg(const std::vector<SweepRow>& points, const std::string& x, const std::string& y,
                     const Scale& scale, const LineStyle& style) {
  std::string path, marks;
  bool drawing = false;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const SweepRow& value = points[i].at(y);
    if (!value.is_number()) {
      drawing = false;
      continue;
    }
    const double px = scale.x(i), py = scale.y(value.get<double>());
    path += fmt::format("{}{:.1f} {:.1f}", drawing ? "L" : "M", px, py);
    drawing = true;
    const bool fits = points[i].at("status") == "fits";
    const std::string tip =
        fmt::format("{}: {} {:.6g}{}", text_of(points[i].at(x)), y, value.get<double>(), fits ? "" : ", does not fit");
    marks += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3.5" stroke="{}" fill="{}"><title>{}</title></circle>)",
                         px, py, style.colour, fits ? style.colour : "#fff", escaped(tip));
  }
  return fmt::format("<path d=\"{}\" fill=\"none\" {}/>{}\n", path, style.stroke(), marks);
}

std::string legend_svg(const std::string& name, std::size_t line, const LineStyle& style) {
  const double x = kLeft + kWidth + 16.0, y = kTop + kLegendLine * static_cast<double>(line);
  return fmt::format("<line x1=\"{0}\" y1=\"{1}\" x2=\"{2}\" y2=\"{1}\" {3}/><text x=\"{4}\" y=\"{5}\">{6}</text>\n", x,
                     y, x + 22.0, style.stroke(), x + 28.0, y + 4.0, escaped(name));
}

/// Whether a column's cells are text or true and false, as far as its name tells.
bool is_no_number(const std::string& column) {
  if (column == "sweep" || column == "status" || column == "proven" || column == "reason") return true;
  const Field* const field = find_field(column);
  return field != nullptr && field->value.type != FieldType::kInteger && field->value.type != FieldType::kNumber;
}

}  // namespace

void check_column(const Sweep& sweep, const std::vector<SweepRow>& rows, const std::string& y) {
  const std::vector<std::string> columns = sweep.columns();
  const auto fail = [&](const std::string& message) { throw ConfigError({{{config::kArguments, 0, "y"}, message}}); };
  if (std::find(columns.begin(), columns.end(), y) == columns.end())
    fail(fmt::format("expected a column of the rows, found \"{}\"{}", y, config::nearest_hint(y, columns)));
  const auto is_text = [&](const SweepRow& row) { return !row.at(y).is_null() && !row.at(y).is_number(); };
  if (is_no_number(y) || std::ranges::any_of(rows, is_text))
    fail(fmt::format("expected a column of numbers, found \"{}\"", y));
}

std::string sweep_svg(const Sweep& sweep, const std::vector<SweepRow>& rows, const std::string& y) {
  check_column(sweep, rows, y);
  const std::size_t across = sweep.axes().front().values.size(), lines = sweep.size() / across;
  std::vector<SweepRow> ticks;
  for (std::size_t i = 0; i < across; ++i) ticks.push_back(rows[i * lines].at(sweep.axes().front().key));
  double high = 0.0;
  for (const SweepRow& row : rows)
    if (row.at(y).is_number()) high = std::max(high, row.at(y).get<double>());
  const Across positions(ticks);
  const Scale scale{positions, high > 0.0 ? 1.05 * high : 1.0};
  const double height = std::max(kTop + kHeight + 60.0, kTop + kLegendLine * static_cast<double>(lines) + 20.0);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\">\n"
      "<style>text{{font:12px sans-serif;fill:#333}}.title{{font-weight:bold}}.grid{{stroke:#e5e5e5}}"
      ".axis{{stroke:#666;fill:none}}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      kLeft + kWidth + (lines > 1 ? kLegend : 30.0), height);
  out += frame(sweep, ticks, scale, y);
  if (std::any_of(rows.begin(), rows.end(), [](const SweepRow& row) { return row.at("status") == "does not fit"; }))
    out += fmt::format(R"(<text x="{}" y="{}" text-anchor="end">hollow: does not fit</text>)", kLeft + kWidth,
                       kTop - 20.0);
  for (std::size_t line = 0; line < lines; ++line) {
    std::vector<SweepRow> points;
    for (std::size_t i = 0; i < across; ++i) points.push_back(rows[i * lines + line]);
    const LineStyle style(line);
    out += line_svg(points, sweep.axes().front().key, y, scale, style);
    if (lines > 1) out += legend_svg(line_name(sweep, points.front()), line, style);
  }
  return out + "</svg>\n";
}

}  // namespace foldwise::planner
