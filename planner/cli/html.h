#pragma once
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/report/html.h"

// --html: an answer as a page (planner/report/html.h).
namespace foldwise::cli {

/// Stores the arguments of main() for command_line().
void remember_command(int argc, const char* const* argv);
[[nodiscard]] const std::string& command_line();

/// Adds `--html FILE`, which sets `path`; empty: no page.
void add_html(CLI::App& command, std::string& path);

/// `answer`: the output of --format json.
[[nodiscard]] std::string page_text(const std::string& kind, const nlohmann::json& answer,
                                    std::vector<planner::Picture> pictures = {});
/// Does nothing if `path` is empty.
void write_page(const std::string& path, const std::string& kind, const nlohmann::json& answer,
                std::vector<planner::Picture> pictures = {});

}  // namespace foldwise::cli
