#include "planner/sweep/sweep.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/config/output_file.h"
#include "planner/cli/commands.h"
#include "planner/cli/html.h"
#include "planner/cli/outputs.h"
#include "planner/cli/plan_arguments.h"
#include "planner/run/near_names.h"
#include "planner/sweep/chart.h"
#include "planner/sweep/row_file.h"

namespace foldwise::cli {
namespace {

struct SweepOptions : PlanArguments {
  std::string run;  ///< Empty: plans.
  bool plan = false;
  std::vector<std::string> sets;
  std::string out, svg, html;  ///< Paths; empty: rows go to stdout, no chart, no page.
  std::string y = "tokens_per_s_per_gpu";
  std::string format = "csv";
  CostArguments cost;
};

planner::SweepQuestion question_of(const SweepOptions& options, bool plan_arguments_given,
                                   config::Diagnostics& diagnostics) {
  if (options.plan) {
    if (!options.run.empty())
      diagnostics.error({"command line", 0, "--plan"}, fmt::format("found a run file too, \"{}\"", options.run));
    return planner::PlanQuestion{request_of(options, diagnostics), effort_of(options), options.top};
  }
  if (plan_arguments_given)
    diagnostics.error({"command line", 0, "--plan"}, "needed for what `plan` is asked: --model, --gpus, --pin, ...");
  if (!options.run.empty()) {
    nlohmann::json run = config::Document::load(options.run).root();
    if (!options.release.empty() && run.is_object()) run["release"] = options.release;  // Whatever the file says.
    return planner::RunQuestion{options.run, std::move(run)};
  }
  diagnostics.error({"command line", 0, "sweep"}, "expected a run file, or --plan");
  return {};
}

planner::Sweep sweep_of(const SweepOptions& options, bool plan_arguments_given) {
  config::Diagnostics diagnostics;
  std::vector<planner::Axis> axes;
  for (auto& [key, values] : read_sets("--set", options.sets, diagnostics)) {
    for (std::string& value : values) {
      if (key == "model") value = meant(planner::model_meant, value, diagnostics);
      if (key == "system") value = meant(planner::system_meant, value, diagnostics);
    }
    axes.push_back({key, std::move(values)});
  }
  const std::optional<planner::LongRun> training = long_run(options.cost, diagnostics);
  planner::SweepQuestion question = question_of(options, plan_arguments_given, diagnostics);
  if (options.threads < 0 || options.threads > 1024)
    diagnostics.error({"command line", 0, "--threads"}, fmt::format("expected 0 to 1024, found {}", options.threads));
  diagnostics.throw_if_any();
  return {std::move(question), std::move(axes), training, version()};
}

/// What the page of a sweep shows: the table, the same of rows that were found as of rows that were computed.
nlohmann::json page_json(const planner::Sweep& sweep, std::vector<planner::SweepRow> rows) {
  nlohmann::json axes = nlohmann::json::array();
  for (const planner::Axis& axis : sweep.axes()) axes.push_back(axis.key);
  for (planner::SweepRow& row : rows) row.erase("run");  // CSV has none.
  return {{"axes", axes}, {"columns", sweep.columns()}, {"rows", std::move(rows)}, {"systems", sweep.systems()}};
}

int sweep(const SweepOptions& options, bool plan_arguments_given) {
  using planner::RowFormat;
  const planner::Sweep sweep = sweep_of(options, plan_arguments_given);
  const RowFormat format = options.format == "csv" ? RowFormat::kCsv : RowFormat::kJsonLines;
  std::vector<planner::SweepRow> rows;
  std::optional<planner::RowFile> file;
  if (options.out.empty()) {
    print_result(planner::header_text(format, sweep.columns()));
  } else {
    file.emplace(options.out, format, sweep);
    for (const std::string& line : file->found()) rows.push_back(planner::read_row(format, sweep.columns(), line));
    if (!rows.empty()) print_note(fmt::format("{}: {} of {} rows found", options.out, rows.size(), sweep.size()));
  }
  const bool terminal = isatty(STDERR_FILENO) != 0 && file;
  planner::for_rows(sweep, rows.size(), options.threads, [&](const planner::SweepRow& row) {
    const std::string text = planner::row_text(format, row);
    file ? file->append(text) : print_result(text);
    rows.push_back(row);
    if (terminal) fmt::print(stderr, "\r{} of {}", rows.size(), sweep.size());
  });
  if (terminal) fmt::print(stderr, "\n");
  if (file) file->expect_unchanged();
  if (!options.svg.empty()) config::write_output_file(options.svg, planner::sweep_svg(sweep, rows, options.y));
  if (!options.html.empty()) write_page(options.html, "sweep", page_json(sweep, rows));
  const bool any = std::any_of(rows.begin(), rows.end(), [](const auto& row) { return row.at("status") == "fits"; });
  return any ? kDone : kNothingFits;
}

}  // namespace

void add_sweep(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<SweepOptions>();
  CLI::App* command = app.add_subcommand("sweep", "Predict, or plan, every combination of values of some fields");
  command->add_option("run", options->run, "Run file (JSON) that is changed and predicted at each point");
  command->add_flag("--plan", options->plan, "Instead: each point is the first plan of a search, asked as `plan` is");
  command
      ->add_option("--set", options->sets,
                   "Values that a field takes: tp=1,2,4; of the model model_overrides.num_hidden_layers=32,61; of the "
                   "system system.hbm.capacity=141GB,192GB. The last one given varies fastest")
      ->required()
      ->allow_extra_args(false);  // The next word may be the run file.
  add_output_file(*command, "--out", options->out, "File of the rows; one that a killed sweep left is gone on with");
  command->add_option("--format", options->format, "Form of the rows: CSV, or JSON lines with each row's run file")
      ->check(CLI::IsMember({"csv", "jsonl"}))
      ->capture_default_str();
  add_output_file(*command, "--svg", options->svg,
                  "Write a chart: the first --set across, a line for each of the others");
  command->add_option("--y", options->y, "Column that the chart shows")->capture_default_str();
  add_html(*command, options->html);
  add_cost_arguments(*command, options->cost);
  const auto before = command->get_options().size();
  add_plan_arguments(*command, *options);
  command->callback([options, command, before, &chosen] {
    const std::vector<CLI::Option*> all = command->get_options();
    const bool given =
        std::any_of(all.begin() + static_cast<std::ptrdiff_t>(before), all.end(), [](CLI::Option* option) {
          return option->count() > 0 && option->get_name() != "--threads" && option->get_name() != "--release";
        });
    chosen = [options, given] { return sweep(*options, given); };
  });
}

}  // namespace foldwise::cli
