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

/// What main() was called with, for answers to name.
void remember_command(int argc, const char* const* argv);
[[nodiscard]] const std::string& command_line();

/// Adds `--html FILE`, which sets `path`; empty: not asked for.
void add_html(CLI::App& command, std::string& path);

/// `answer` is what --format json prints.
[[nodiscard]] std::string page_text(const std::string& kind, const nlohmann::json& answer,
                                    std::vector<planner::Picture> pictures = {});
/// Does nothing where `path` is empty.
void write_page(const std::string& path, const std::string& kind, const nlohmann::json& answer,
                std::vector<planner::Picture> pictures = {});

/// The schedule of a step, with as many tasks as a page still scrolls well with.
[[nodiscard]] planner::Picture schedule_picture(const planner::Run& run, const costmodel::Step& step,
                                                const costmodel::Prediction& prediction);
/// "mixtral-8x7b on 16 h200, schedule 1f1b, 2 pipeline ranks, 16 micro-batches": what a picture of a run is called.
[[nodiscard]] std::string picture_title(const planner::Run& run);

}  // namespace foldwise::cli
