#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

// A self-contained HTML page with an answer: tables that sort and filter, charts, sources of the numbers, and the
// command. It loads nothing over the network.
namespace foldwise::planner {

/// A schedule drawn by schedule_svg().
struct Picture {
  std::string title, svg;
};

struct Page {
  std::string kind;       ///< The command: "plan", "predict", "compare", "diagnose", "sweep".
  std::string command;    ///< The complete command line, quoted for a shell.
  std::string program;    ///< Name and version.
  nlohmann::json answer;  ///< Output of --format json (docs/output.md); for a sweep {axes, columns, rows}.
  nlohmann::json systems = nlohmann::json::array();  ///< [{name, facts}], facts as `systems NAME` prints them.
  std::vector<Picture> pictures;
};

/// Whether plotly.js was found at build time. Without it pages say so, and draw simpler charts.
[[nodiscard]] bool has_chart_library();

/// A file of the page (planner/report/page), for other pages that draw alike. Empty if there is none of that name.
[[nodiscard]] std::string_view page_file(std::string_view name);

/// All text of the page is escaped: it cannot become markup or script.
[[nodiscard]] std::string html(const Page& page);

}  // namespace foldwise::planner
