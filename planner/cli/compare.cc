#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "planner/answer/run_answer.h"
#include "planner/cli/commands.h"
#include "planner/cli/html.h"
#include "planner/cli/terminal.h"
#include "planner/foldwise.h"
#include "planner/report/comparison.h"

namespace foldwise::cli {
namespace {

struct CompareOptions {
  std::vector<std::string> files;
  std::string release;
  std::string html;  ///< Path; empty: none.
  std::vector<std::string> explain;
  std::string format = "text";
};

std::vector<planner::ComparedRun> predict_all(const std::vector<std::string>& files, const planner::Release* release) {
  std::vector<std::function<planner::Run()>> readers;
  readers.reserve(files.size());
  for (const std::string& file : files)
    readers.emplace_back([&file, release] { return planner::load_run(file, release); });
  return planner::predict_all(readers);
}

/// Schedules of the first kMost runs.
std::vector<planner::Picture> schedules(const std::vector<planner::ComparedRun>& runs) {
  constexpr std::size_t kMost = 3;
  std::vector<planner::Picture> pictures;
  for (std::size_t i = 0; i < std::min(kMost, runs.size()); ++i)
    pictures.push_back(planner::schedule_picture(runs[i].run, foldwise::compose(runs[i].run), runs[i].prediction));
  return pictures;
}

int compare(const CompareOptions& options) {
  const std::vector<planner::ComparedRun> runs = predict_all(options.files, planner::find_release(options.release));
  const planner::ErrorModel& errors = planner::built_in_errors();
  print_and_write(
      [&] {
        options.format == "json"
            ? print_result(planner::comparison_json(runs, errors))
            : print_result(planner::comparison_text(runs, errors, screen_of_stdout(), options.explain));
      },
      [&] {
        if (!options.html.empty())
          write_page(options.html, "compare", planner::comparison_json(runs, errors), schedules(runs));
      });
  return kDone;
}

}  // namespace

void add_compare(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command = app.add_subcommand("compare", "Put runs side by side and explain the difference");
  command->add_option("runs", options->files, "Run files (JSON)")->required()->expected(2, 1000);
  add_release(*command, options->release, "each run file's");
  add_explain(*command, options->explain, planner::comparison_explanations());
  add_html(*command, options->html);
  add_format(*command, options->format);
  command->callback([options, &chosen] { chosen = [options] { return compare(*options); }; });
}

}  // namespace foldwise::cli
