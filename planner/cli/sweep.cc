#include "planner/sweep/sweep.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/config/output_file.h"
#include "planner/cli/commands.h"
#include "planner/cli/html.h"
#include "planner/cli/outputs.h"
#include "planner/cli/plan_arguments.h"
#include "planner/cli/terminal.h"
#include "planner/run/near_names.h"
#include "planner/sweep/chart.h"
#include "planner/sweep/row_file.h"
#include "planner/sweep/sweep_screen.h"

namespace foldwise::cli {
namespace {

struct SweepOptions : PlanArguments {
  std::string run;  ///< Empty: the sweep plans.
  bool plan = false;
  std::vector<std::string> sets;
  std::string out, svg, html;  ///< Paths; empty: rows to stdout, no chart, no page.
  std::string y = "tokens_per_s_per_gpu";
  std::string format;  ///< Empty: a table on a terminal, else CSV.
  CostArguments cost;
};

/// The options of `plan` that were given, but for those that a sweep of a run file has too.
using Given = std::set<std::string>;

/// Reports an option whose value the axis replaces at every point.
void check_axis(const std::string& key, const SweepOptions& options, const Given& given,
                config::Diagnostics& diagnostics) {
  static const std::map<std::string, std::string> same = {{"model", "--model"},
                                                          {"system", "--system"},
                                                          {"num_gpus", "--gpus"},
                                                          {"seq_len", "--seq-len"},
                                                          {"global_batch", "--global-batch"},
                                                          {"precision", "--precision"},
                                                          {"schedule", "--schedule"},
                                                          {"release", "--release"}};
  const auto option = same.find(key);
  if (option == same.end()) return;
  if (given.contains(option->second) || (key == "release" && !options.release.empty()))
    diagnostics.error({"command line", 0, "--set " + key},
                      fmt::format("contradicts {}: give one of them", option->second));
}

planner::SweepQuestion question_of(const SweepOptions& options, const Given& given, config::Diagnostics& diagnostics) {
  if (options.plan) {
    if (!options.run.empty())
      diagnostics.error({"command line", 0, "--plan"}, fmt::format("found a run file too, \"{}\"", options.run));
    return planner::PlanQuestion{request_of(options, diagnostics), effort_of(options)};
  }
  if (!given.empty())
    diagnostics.error({"command line", 0, "--plan"}, "needed for what `plan` is asked: --model, --gpus, --pin, ...");
  if (!options.run.empty()) {
    nlohmann::json run = config::Document::load(options.run).root();
    if (!options.release.empty() && run.is_object()) run["release"] = options.release;  // Overrides the file's.
    return planner::RunQuestion{options.run, std::move(run)};
  }
  diagnostics.error({"command line", 0, "sweep"}, "expected a run file, or --plan");
  return {};
}

planner::Sweep sweep_of(const SweepOptions& options, const Given& given) {
  config::Diagnostics diagnostics;
  std::vector<planner::Axis> axes;
  for (auto& [key, values] : read_sets("set", options.sets, diagnostics)) {
    for (std::string& value : values) {
      if (key == "model") value = meant(planner::model_meant, value, diagnostics);
      if (key == "system") value = meant(planner::system_meant, value, diagnostics);
    }
    check_axis(key, options, given, diagnostics);
    axes.push_back({key, std::move(values)});
  }
  const std::optional<planner::LongRun> training = long_run(options.cost, diagnostics);
  planner::SweepQuestion question = question_of(options, given, diagnostics);
  if (options.threads < 0 || options.threads > 1024)
    diagnostics.error({"command line", 0, "--threads"}, fmt::format("expected 0 to 1024, found {}", options.threads));
  diagnostics.throw_if_any();
  return {std::move(question), std::move(axes), training, version()};
}

/// Data of a sweep's page. Rows read from a file and computed rows give the same table.
nlohmann::json page_json(const planner::Sweep& sweep, std::vector<planner::SweepRow> rows) {
  nlohmann::json axes = nlohmann::json::array();
  for (const planner::Axis& axis : sweep.axes()) axes.push_back(axis.key);
  for (planner::SweepRow& row : rows) row.erase("run");  // CSV rows do not have it.
  return {{"axes", axes},
          {"columns", sweep.columns()},
          {"models", sweep.models()},
          {"rows", std::move(rows)},
          {"systems", sweep.systems()}};
}

/// Draws the progress in points.
void draw_share(ProgressLines& lines, std::size_t done, std::size_t all) {
  if (lines.is_due())
    lines.draw({fmt::format("{}  {} of {} points", share_bar(static_cast<double>(done) / static_cast<double>(all)),
                            done, all)});
}

int sweep(const SweepOptions& options, const Given& given) {
  using planner::RowFormat;
  const planner::Sweep sweep = sweep_of(options, given);
  planner::check_column(sweep, {}, options.y);
  const RowFormat format = options.format == "jsonl" ? RowFormat::kJsonLines : RowFormat::kCsv;
  std::vector<planner::SweepRow> rows;
  std::optional<planner::RowFile> file;
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  const bool table = options.format == "table" || (terminal && (!options.out.empty() || options.format.empty()));
  if (!options.out.empty()) {
    file.emplace(options.out, format, sweep);
    for (const std::string& line : file->found()) rows.push_back(planner::read_row(format, sweep.columns(), line));
    if (!rows.empty()) print_note(fmt::format("{}: {} of {} rows found", options.out, rows.size(), sweep.size()));
  } else if (!table) {
    print_result(planner::header_text(format, sweep.columns()));
  }
  ProgressLines lines;
  planner::for_rows(sweep, rows.size(), options.threads, [&](const planner::SweepRow& row) {
    const std::string text = planner::row_text(format, row);
    if (file)
      file->append(text);
    else if (!table)
      print_result(text);
    rows.push_back(row);
    if (file || table) draw_share(lines, rows.size(), sweep.size());
  });
  lines.erase();
  if (file) file->expect_unchanged();
  if (!options.svg.empty()) config::write_output_file(options.svg, planner::sweep_svg(sweep, rows, options.y));
  if (!options.html.empty()) write_page(options.html, "sweep", page_json(sweep, rows));
  if (table) print_result(planner::sweep_screen(screen_of_stdout(), sweep, rows, options.y));
  const bool any = std::any_of(rows.begin(), rows.end(), [](const auto& row) { return row.at("status") == "fits"; });
  return any ? kDone : kNothingFits;
}

}  // namespace

void add_sweep(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<SweepOptions>();
  CLI::App* command = app.add_subcommand("sweep", "Predict, or plan, every combination of values of some fields");
  command->add_option("run", options->run, "Run file (JSON) that is changed and predicted at each point");
  command
      ->add_flag(
          "--plan", options->plan,
          "Instead: each point is a search, asked as `plan` is; `plan` itself also tries changes of its first plan")
      ->group(kQuestion);
  command
      ->add_option("--set", options->sets,
                   "Values that a field takes: tp=1,2,4; of the model model_overrides.num_hidden_layers=32,61; of the "
                   "system system.hbm.capacity=141GB,192GB. The last one given varies fastest")
      ->required()
      ->allow_extra_args(false)  // The next word may be the run file.
      ->group(kQuestion);
  add_output_file(*command, "--out", options->out, "File of the rows; one that a killed sweep left is gone on with");
  command
      ->add_option(
          "--format", options->format,
          "Form of the rows: CSV, or JSON lines with each row's run file, or a table with bars of --y; default: "
          "a table in a terminal, else CSV")
      ->check(CLI::IsMember({"csv", "jsonl", "table"}))
      ->group(kOutput);
  add_output_file(*command, "--svg", options->svg,
                  "Write a chart: the first --set across, a line for each of the others");
  command->add_option("--y", options->y, "Column that charts show")->capture_default_str()->group(kOutput);
  add_html(*command, options->html);
  add_cost_arguments(*command, options->cost);
  const std::vector<CLI::Option*> before = command->get_options();
  add_plan_arguments(*command, *options);
  std::vector<const CLI::Option*> of_plan;
  for (const CLI::Option* option : command->get_options())
    if (std::ranges::count(before, option) == 0) of_plan.push_back(option);
  command->callback([options, of_plan, &chosen] {
    Given given;
    for (const CLI::Option* option : of_plan)
      if (const std::string name = option->get_name();
          option->count() > 0 && name != "--threads" && name != "--release")
        given.insert(name);
    chosen = [options, given] { return sweep(*options, given); };
  });
}

}  // namespace foldwise::cli
