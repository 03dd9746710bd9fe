#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "planner/cli/commands.h"
#include "planner/cli/html.h"
#include "planner/foldwise.h"
#include "planner/report/comparison.h"

namespace foldwise::cli {
namespace {

struct CompareOptions {
  std::vector<std::string> files;
  std::string html;  ///< Path; empty: not asked for.
  std::string format = "text";
};

/// Reads every file before it gives up, so that the user sees the mistakes of all of them at once.
std::vector<planner::ComparedRun> predict_all(const std::vector<std::string>& files) {
  std::vector<planner::ComparedRun> runs;
  std::vector<config::Diagnostic> mistakes;
  for (const std::string& file : files) {
    try {
      planner::Run run = planner::load_run(file);
      costmodel::Prediction prediction = foldwise::predict(run);
      runs.push_back({std::move(run), std::move(prediction)});
    } catch (const config::ConfigError& error) {
      mistakes.insert(mistakes.end(), error.diagnostics().begin(), error.diagnostics().end());
    }
  }
  if (!mistakes.empty()) throw config::ConfigError(std::move(mistakes));
  return runs;
}

/// Of the first few.
std::vector<planner::Picture> schedules(const std::vector<planner::ComparedRun>& runs) {
  constexpr std::size_t kMost = 3;
  std::vector<planner::Picture> pictures;
  for (std::size_t i = 0; i < std::min(kMost, runs.size()); ++i)
    pictures.push_back(schedule_picture(runs[i].run, foldwise::compose(runs[i].run), runs[i].prediction));
  return pictures;
}

int compare(const CompareOptions& options) {
  const std::vector<planner::ComparedRun> runs = predict_all(options.files);
  const planner::Residuals& residuals = planner::built_in_residuals();
  if (!options.html.empty())
    write_page(options.html, "compare", planner::comparison_json(runs, residuals), schedules(runs));
  if (options.format == "json")
    print_result(planner::comparison_json(runs, residuals));
  else
    print_result(planner::comparison_text(runs, residuals));
  return kDone;
}

}  // namespace

void add_compare(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command = app.add_subcommand("compare", "Put runs side by side and explain the difference");
  command->add_option("runs", options->files, "Run files (JSON)")->required()->expected(2, 1000);
  add_html(*command, options->html);
  add_format(*command, options->format);
  command->callback([options, &chosen] { chosen = [options] { return compare(*options); }; });
}

}  // namespace foldwise::cli
