#pragma once
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "costmodel/step/prediction.h"
#include "costmodel/step/step.h"
#include "planner/report/html.h"
#include "planner/run/run_file.h"

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

/// The schedule of a step, limited to a number of tasks that browsers still scroll smoothly.
[[nodiscard]] planner::Picture schedule_picture(const planner::Run& run, const costmodel::Step& step,
                                                const costmodel::Prediction& prediction);
/// Title of a run's picture: "mixtral-8x7b on 16 h200, schedule 1f1b, 2 pipeline ranks, 16 micro-batches".
[[nodiscard]] std::string picture_title(const planner::Run& run);

}  // namespace foldwise::cli
