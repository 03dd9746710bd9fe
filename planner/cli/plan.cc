#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/config/input_file.h"
#include "costmodel/config/output_file.h"
#include "planner/answer/plan_answer.h"
#include "planner/answer/run_answer.h"
#include "planner/cli/commands.h"
#include "planner/cli/html.h"
#include "planner/cli/import.h"
#include "planner/cli/outputs.h"
#include "planner/cli/plan_arguments.h"
#include "planner/cli/terminal.h"
#include "planner/foldwise.h"
#include "planner/launch/arguments.h"
#include "planner/launch/export.h"

namespace foldwise::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kReport = "report.html";  ///< In the --out folder, beside the plans.

struct PlanOptions {
  planner::PlanAsked asked;
  std::vector<std::string> sets;
  std::vector<std::string> why_not;  ///< "tp=4,pp=8": one question each.
  std::vector<std::string> measured;
  std::string from, out, html;  ///< Paths; empty: none.
  std::vector<std::string> explain;
  bool verbose = false;
  std::string format = "text";
  bool log_search = false;
};

/// Reads the "key=value,key=value" text of each --why-not.
std::vector<planner::PlanAsked::Values> read_questions(const std::vector<std::string>& texts,
                                                       config::Diagnostics& diagnostics) {
  std::vector<planner::PlanAsked::Values> questions;
  for (const std::string& text : texts) {
    planner::PlanAsked::Values& parts = questions.emplace_back();
    for (const std::string& part : CLI::detail::split(text, ',')) {
      const std::size_t equals = part.find('=');
      if (equals == std::string::npos || equals == 0)
        diagnostics.error({"command line", 0, "--why-not"}, fmt::format("expected key=value, found \"{}\"", part));
      else if (!parts.emplace(part.substr(0, equals), std::vector{part.substr(equals + 1)}).second)
        diagnostics.error({"command line", 0, "--why-not " + part.substr(0, equals)}, "given twice");
    }
  }
  return questions;
}

volatile std::sig_atomic_t interrupted = 0;

void (*end_program)(int) = SIG_DFL;  ///< Previous signal handler.

const char* name_of(planner::Work work) {
  switch (work) {
    case planner::Work::kSearch:
      return "searching";
    case planner::Work::kAlternatives:
      return "what each choice earns";
    case planner::Work::kHosts:
      return "on slower hosts";
    case planner::Work::kStates:
      return "other optimizer states";
    case planner::Work::kUnproven:
      return "faster, never run together";
    case planner::Work::kList:
      break;
  }
  return "more plans";
}

/// The first Ctrl-C ends the search with its plans so far, the second the program.
std::function<bool(const planner::Progress&)> progress_in(ProgressLines& lines) {
  end_program = std::signal(SIGINT, [](int) {
    interrupted = 1;
    std::signal(SIGINT, end_program);
  });
  return [&lines, shown = false](const planner::Progress& now) mutable {
    const bool is_first = now.first != nullptr && !shown;
    if (!lines.is_due(is_first)) return interrupted == 0;
    std::vector<std::string> drawn;
    if (now.first != nullptr) {
      const planner::Plan& plan = *now.first;
      const costmodel::Layout l = plan.options.layout();
      drawn.push_back(fmt::format("First plan  {} s a step: TP {} CP {} PP {} VPP {} DP {} EP {}, micro-batch {}",
                                  planner::seconds_text(plan.prediction.step_time.to<double>()), l.tp, l.cp, l.pp,
                                  l.vpp, l.dp, l.ep, plan.options.layer.micro_batch));
      shown = true;
    }
    std::string best;
    if (now.first == nullptr && now.best > Seconds{})
      best = fmt::format(", best so far {} s", planner::seconds_text(now.best.to<double>()));
    drawn.push_back(fmt::format("{}  {}{}", share_bar(now.share), name_of(now.work), best));
    lines.draw(drawn);
    return interrupted == 0;
  };
}

using Files = std::map<std::string, std::string>;  ///< File contents by name.

/// Stems of runs that Megatron's arguments cannot express, by what says so.
using Refused = std::map<std::string, std::vector<std::string>>;

/// Adds STEM.json of a run, and STEM.flags and STEM.sbatch if Megatron's arguments can express it.
void add_run(Files& files, Refused& refused, const fs::path& folder, const std::string& stem, const std::string& text) {
  files[stem + ".json"] = text + '\n';
  const planner::Run run = foldwise::parse_run(text, (folder / (stem + ".json")).string());
  try {
    const planner::Launch launch = planner::launch_of(run);
    files[stem + ".flags"] = planner::launch_text(launch, planner::LaunchTarget::kMegatronLm);
    files[stem + ".sbatch"] = planner::launch_text(launch, planner::LaunchTarget::kSlurm);
  } catch (const config::ConfigError& error) {
    refused[error.what()].push_back(stem);
  }
}

/// Run file and launch files of each plan and of each suggested run: plan-1.json, .flags, .sbatch, suggest-1.json ...
Files files_of(const fs::path& folder, const planner::PlanAnswer& answer) {
  Files files;
  Refused refused;
  const std::vector<planner::Plan>& plans = answer.answered.result.plans;
  for (std::size_t i = 0; i < plans.size(); ++i)
    add_run(files, refused, folder, fmt::format("plan-{}", i + 1),
            foldwise::run_file(answer.answered.problem, plans[i]));
  const std::vector<planner::Plan>& unproven = answer.answered.result.unproven;
  for (std::size_t i = 0; i < unproven.size(); ++i)
    add_run(files, refused, folder, fmt::format("unproven-{}", i + 1),
            foldwise::run_file(answer.answered.problem, unproven[i]));
  if (answer.decision && answer.decision->suggestions)
    for (std::size_t i = 0; i < answer.decision->suggestions->size(); ++i)
      add_run(files, refused, folder, fmt::format("suggest-{}", i + 1),
              planner::write_run((*answer.decision->suggestions)[i].run).dump(2));
  for (const auto& [why, stems] : refused)
    print_note(fmt::format("{}: no arguments start {}:\n{}", folder.string(), fmt::join(stems, ", "), why));
  return files;
}

bool is_of_plan(const std::string& name) {
  static const std::regex name_pattern(R"((plan|suggest|unproven)-[1-9][0-9]*\.(json|flags|sbatch))");
  return std::regex_match(name, name_pattern);
}

/// Moves other plans and their page in the folder to a subfolder before-N. Files that a job may use are thus never
/// overwritten, and a folder holds the plans of one answer.
void set_aside(const fs::path& folder, const Files& files) {
  std::vector<fs::path> others;
  for (const fs::path& path : fs::directory_iterator(folder)) {
    const auto ours = files.find(path.filename().string());
    if (is_of_plan(path.filename().string()) &&
        (ours == files.end() || ours->second != config::read_input_file(path.string())))
      others.push_back(path);
  }
  if (others.empty()) return;
  if (const fs::path page = folder / kReport; fs::exists(page)) others.push_back(page);
  fs::path aside;
  for (int i = 1; fs::exists(aside = folder / fmt::format("before-{}", i));) ++i;
  fs::create_directory(aside);
  for (const fs::path& path : others) fs::rename(path, aside / path.filename());
  print_note(fmt::format("{}: held other plans, which are in {} now", folder.string(), aside.string()));
}

/// Writes all files, or none if the disk is full.
void write_files(const std::string& directory, const Files& files) {
  config::StagedFiles staged;
  for (const auto& [name, text] : files) staged.add(fs::path(directory) / name, text);
  try {
    set_aside(directory, files);
  } catch (const fs::filesystem_error& error) {
    throw config::ConfigError({{{directory, 0, "--out"}, error.what()}});
  }
  staged.commit();
}

/// The schedule of plan 1.
std::vector<planner::Picture> pictures_of(const planner::Answered& answered) {
  if (answered.result.plans.empty()) return {};
  const planner::Plan& first = answered.result.plans.front();
  const planner::Run run = planner::run_of(answered.problem, first);
  return {planner::schedule_picture(run, foldwise::compose(run), first.prediction)};
}

/// Assumptions of the answer that the command line does not state.
std::vector<std::string> defaults_of(const CLI::App& command, const planner::PlanProblem& problem) {
  std::vector<std::string> list;
  const auto add = [&](const char* option, const std::string& text) {
    if (command.count(option) == 0) list.push_back(text);
  };
  add("--headroom", fmt::format("{:g} % of memory free", 100.0 * problem.headroom));
  const bool of_run = command.count("--from") > 0;
  if (!of_run) {
    add("--model", problem.model_name);
    add("--system", problem.system_name);
    add("--gpus", fmt::format("{} GPUs", problem.num_gpus));
    add("--global-batch", fmt::format("batch {}", problem.stated.at("global_batch").get<std::int64_t>()));
    add("--seq-len", fmt::format("seq {}", problem.stated.at("seq_len").get<std::int64_t>()));
    add("--precision", problem.space.find("precision")->values.front().get<std::string>());
  }
  add("--release", "Megatron-Core " + problem.release->text());
  if (!of_run && problem.model.has_moe()) list.emplace_back("balanced routing");
  return list;
}

/// What Megatron's arguments cannot express in plan 1, the first of it; empty if it can be exported.
std::string not_exported(const planner::PlanAnswer& answer) {
  if (answer.answered.result.plans.empty()) return "";
  try {
    const std::string text = foldwise::run_file(answer.answered.problem, answer.answered.result.plans.front());
    static_cast<void>(planner::launch_of(foldwise::parse_run(text, "plan-1.json")));
    return "";
  } catch (const config::ConfigError& error) {
    return error.diagnostics().front().message;
  }
}

/// Commands for plan 1, to be copied.
std::vector<std::string> next_of(const PlanOptions& options) {
  const std::string folder = options.out.empty() ? "plans" : options.out;
  std::vector<std::string> list;
  if (options.out.empty()) list.push_back(command_line() + " --out " + folder);
  list.push_back(fmt::format("foldwise export {}/plan-1.json --to torchrun --trial > trial.sh", folder));
  return list;
}

int plan(const PlanOptions& options, const CLI::App& command) {
  config::Diagnostics diagnostics;
  planner::PlanAsked asked = options.asked;
  for (auto& [key, values] : read_sets("set", options.sets, diagnostics))
    if (!asked.set.emplace(key, std::move(values)).second)
      diagnostics.error({"command line", 0, "--set " + key}, "given twice");
  asked.why_not = read_questions(options.why_not, diagnostics);
  asked.decision.measured = read_runs(options.measured, diagnostics);
  if (!options.from.empty()) {
    try {
      asked.from = run_from(options.from, command.count("--system") > 0 ? asked.system : "");
    } catch (const config::ConfigError& error) {
      diagnostics.add(error);
      diagnostics.throw_if_any();
    }
  }
  std::optional<OwnFolder> folder;
  if (!options.out.empty()) folder.emplace(options.out);
  ProgressLines lines;
  const planner::PlanAnswer answer = planner::plan_answer(asked, diagnostics, progress_in(lines));
  lines.erase();
  const bool has_page = !options.html.empty() || folder, in_json = options.format == "json";
  const nlohmann::json whole = has_page || in_json ? planner::plan_answer_json(answer) : nlohmann::json();
  const std::string page = has_page ? page_text("plan", whole, pictures_of(answer.answered)) : "";
  const auto text = [&] {
    std::vector<std::string> explain = options.explain;
    if (options.verbose) explain.emplace_back("search");
    const std::string refused = not_exported(answer);
    const bool starts = !answer.answered.result.plans.empty() && refused.empty();
    return planner::plan_answer_text(answer,
                                     {.screen = screen_of_stdout(),
                                      .about = "",
                                      .defaults = defaults_of(command, answer.answered.problem),
                                      .next = starts ? next_of(options) : std::vector<std::string>{},
                                      .not_exported = refused,
                                      .most_lines = command.count("--top") > 0 ? 0 : planner::PlanScreen{}.most_lines},
                                     explain);
  };
  print_and_write([&] { in_json ? print_result(whole) : print_result(text()); },
                  [&] {
                    if (folder) {
                      Files files = files_of(options.out, answer);
                      files[kReport] = page;
                      write_files(options.out, files);
                    }
                    if (!options.html.empty()) config::write_output_file(options.html, page);
                  });
  if (options.log_search) print_note(planner::log_text(answer.answered.result));
  return answer.answered.result.plans.empty() ? kNothingFits : kDone;
}

}  // namespace

void add_plan(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand("plan", "Find the fastest layout that fits");
  add_plan_arguments(*command, options->asked);
  command->add_option("--top", options->asked.top, "Plans to list")->capture_default_str()->group(kOutput);
  const auto add = [&](const char* name, auto& value, const char* what, const char* group) {
    return command->add_option(name, value, what)->group(group);
  };
  add("--set", options->sets,
      "Values that a field may have: tp=1,2,4; any field of a run file. Of the model one value: mtp=0, "
      "model_overrides.num_hidden_layers=12",
      kQuestion);
  CLI::Option* from = add("--from", options->from,
                          "A run whose question is asked: its model, system, GPUs, batch and numerics; a run file, or "
                          "what import reads",
                          kQuestion)
                          ->check(readable_file());
  for (const char* of_run : {"--model", "--gpus", "--seq-len", "--global-batch", "--precision", "--schedule"})
    from->excludes(command->get_option(of_run));
  add("--why-not", options->why_not,
      "Why a layout is no plan: tp=4,pp=8; the rule, the memory that it lacks, or what it loses", kQuestion);
  add("--objective", options->asked.objective,
      "Fastest; least memory within a step time; fewest GPUs within a step time", kQuestion)
      ->check(CLI::IsMember({"time", "memory", "gpus"}))
      ->capture_default_str();
  add("--max-step-time", options->asked.max_step_time, "Seconds that a step may take", kQuestion);
  add("--slack", options->asked.slack_pct, "Percent that the plan of least memory may be slower than the fastest",
      kQuestion)
      ->default_str(fmt::format("{:g}", planner::kSlackPct));
  add("--suggest", options->asked.decision.suggest,
      "Runs to name that tell most about which plan is the fastest, before one decides", kSearch)
      ->capture_default_str();
  add("--suggest-gpus", options->asked.decision.suggest_gpus,
      "Most GPUs of such a run; default: as many as the plans have", kSearch);
  add("--measured", options->measured,
      "Run files of this system with measured steps: what is said of how sure the order is knows them", kSearch)
      ->check(readable_file());
  add_explain(*command, options->explain, planner::plan_explanations());
  command->add_flag("-v,--verbose", options->verbose, "The same as --explain search")->group(kOutput);
  add_output_folder(*command, "--out", options->out,
                    "Directory for run file, arguments and Slurm job of each plan, and the page of --html");
  add_html(*command, options->html);
  add_format(*command, options->format);
  add_cost_arguments(*command, options->asked.cost);
  command->add_flag("--log-search", options->log_search,
                    "Print what each strategy of the search did, on stderr: moves, effort, gains (docs/search.md)");
  command->callback([options, command, &chosen] { chosen = [options, command] { return plan(*options, *command); }; });
}

}  // namespace foldwise::cli
