#pragma once
#include <CLI/CLI.hpp>

#include "planner/answer/question.h"

// Options that several commands have.
namespace foldwise::cli {

using planner::check_range;
using planner::CostArguments;
using planner::effort_of;
using planner::long_run;
using planner::meant;
using planner::PlanArguments;
using planner::read_sets;
using planner::request_of;

void add_plan_arguments(CLI::App& command, PlanArguments& arguments);
/// Reads the runs of run files and run lists; adds their mistakes to `diagnostics`.
[[nodiscard]] std::vector<planner::Run> read_runs(const std::vector<std::string>& files,
                                                  config::Diagnostics& diagnostics);

void add_cost_arguments(CLI::App& command, CostArguments& arguments);

}  // namespace foldwise::cli
