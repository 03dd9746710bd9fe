#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

// One page for a browser that holds an answer and everything that shows it: tables that sort and filter, charts, where
// the numbers come from, the command. It asks for nothing over the network.
namespace foldwise::planner {

/// A schedule, as schedule_svg() draws it.
struct Picture {
  std::string title, svg;
};

struct Page {
  std::string kind;       ///< The command: "plan", "predict", "compare", "diagnose", "sweep".
  std::string command;    ///< The whole line, as a shell reads it.
  std::string program;    ///< Name and version.
  nlohmann::json answer;  ///< What --format json prints (docs/output.md); of a sweep {axes, columns, rows}.
  nlohmann::json systems = nlohmann::json::array();  ///< [{name, facts}], facts as `systems NAME` prints them.
  std::vector<Picture> pictures;
};

/// Whether plotly.js was there when the program was built. Without it pages say so, and draw plainer charts.
[[nodiscard]] bool has_chart_library();

/// The page. Texts of it stay texts, whatever they are made of.
[[nodiscard]] std::string html(const Page& page);

}  // namespace foldwise::planner
