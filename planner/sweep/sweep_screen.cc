#include "planner/sweep/sweep_screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "planner/sweep/chart.h"

namespace foldwise::planner {
namespace {

using nlohmann::json;

constexpr std::size_t kLeastBar = 8, kMostBar = 40;  ///< Columns.

const std::vector<std::pair<std::string, std::string>> shown = {
    {"step_time_s", "step s"}, {"tokens_per_s_per_gpu", "tokens/s/GPU"},
    {"mfu_pct", "MFU %"},      {"peak_device_memory_gib", "GiB"},
    {"days", "days"},          {"gpu_hours", "GPU hours"},
    {"money", "money"}};

/// Choices of the plan to show, in sweeps that plan.
const std::vector<std::string> chosen = {"tp", "cp", "pp", "vpp", "ep", "micro_batch"};

std::string cell_text(const nlohmann::ordered_json& cell) {
  if (cell.is_null()) return "-";
  if (cell.is_string()) return cell.get<std::string>();
  if (!cell.is_number_float()) return cell.dump();
  return seconds_text(cell.get<double>());
}

double number_of(const SweepRow& row, const std::string& column) {
  const auto found = row.find(column);
  return found != row.end() && found->is_number() ? found->get<double>() : 0.0;
}

/// Each reason once, without the part that the table already shows.
std::string reasons_text(const Screen& screen, const Sweep& sweep, const std::vector<SweepRow>& rows) {
  std::map<std::string, std::vector<std::size_t>> points;
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i].at("reason").is_string()) points[rows[i].at("reason").get<std::string>()].push_back(i);
  std::string out;
  for (const auto& [reason, which] : points) {
    std::string where;
    for (const Axis& axis : sweep.axes())
      where += fmt::format("{}{}={}", where.empty() ? "" : ", ", axis.key, cell_text(rows[which.front()].at(axis.key)));
    const std::string more = which.size() > 1 ? fmt::format(" and {} more", which.size() - 1) : "";
    out += wrapped(fmt::format("{}{}: {}", where, more, reason), screen.width, 2) + '\n';
  }
  return out;
}

}  // namespace

std::string sweep_screen(const Screen& screen, const Sweep& sweep, const std::vector<SweepRow>& rows,
                         const std::string& y) {
  check_column(sweep, rows, y);
  const bool plans = std::ranges::count(sweep.columns(), "proven") > 0;
  std::vector<std::string> titles, columns;
  const auto add = [&](const std::string& column, const std::string& title) {
    titles.push_back(title);
    columns.push_back(column);
  };
  for (const Axis& axis : sweep.axes()) add(axis.key, axis.key);
  for (const auto& [column, title] : shown)
    if (std::ranges::count(sweep.columns(), column) > 0) add(column, title);
  if (plans)
    for (const std::string& column : chosen)
      if (std::ranges::count(columns, column) == 0) add(column, column == "micro_batch" ? "mbs" : column);
  if (std::ranges::count(columns, y) == 0) add(y, y);
  double most = 0.0;
  for (const SweepRow& row : rows)
    if (row.at("status") == "fits") most = std::max(most, number_of(row, y));
  titles.push_back("<" + y);
  const auto table_of = [&](std::size_t bar) {
    Table table(titles);
    for (const SweepRow& row : rows) {
      std::vector<std::string> cells;
      for (const std::string& column : columns) {
        const auto found = row.find(column);
        cells.push_back(found == row.end() ? "-" : cell_text(*found));
      }
      const double share = most > 0.0 ? number_of(row, y) / most : 0.0;
      const std::string drawn(static_cast<std::size_t>(std::llround(share * static_cast<double>(bar))), '#');
      cells.push_back(row.at("status") == "fits" ? screen.in(fmt::fg(fmt::terminal_color::cyan), drawn)
                                                 : row.at("status").get<std::string>());
      table.add(std::move(cells));
    }
    return table.text(0);
  };
  const std::string without = table_of(0);
  const std::size_t used = without.find('\n') - y.size();  // The line of titles ends with the title of the bar.
  std::string out = table_of(std::clamp(screen.width > used ? screen.width - used : 0, kLeastBar, kMostBar));
  if (const std::string reasons = reasons_text(screen, sweep, rows); !reasons.empty()) out += '\n' + reasons;
  return out;
}

}  // namespace foldwise::planner
