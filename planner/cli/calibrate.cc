#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/config/output_file.h"
#include "hwprofiles/fit/calibration.h"
#include "hwprofiles/fit/plot.h"
#include "hwprofiles/load/systems.h"
#include "hwprofiles/records/import.h"
#include "hwprofiles/records/launched.h"
#include "planner/calibrate/fits_report.h"
#include "planner/calibrate/site_fit.h"
#include "planner/cli/commands.h"
#include "planner/cli/kernel_program.h"
#include "planner/cli/outputs.h"
#include "planner/cli/plan_arguments.h"
#include "planner/cli/terminal.h"
#include "planner/foldwise.h"

namespace foldwise::cli {
namespace {

struct CalibrateOptions {
  std::string device;
  std::vector<std::string> records, imports, runs;
  std::string system;
  hwprofiles::ImportOptions import;
  std::string out = "calibration";
  std::string base;
  std::vector<std::string> only;
  int nvlink_domain = 0;
  bool quick = false, thorough = false, force = false;
  std::uint64_t seed = hwprofiles::kFitSeed;
  std::vector<std::string> explain;
  std::string format = "text";
};

[[noreturn]] void wrong_option(std::string message) {
  throw config::ConfigError({{{"command line", 0, ""}, std::move(message)}});
}

std::filesystem::path program_of(const CalibrateOptions& options) {
  if (options.device == "cuda")
    return find_program("foldwise-kernels-cuda", "build it where a CUDA compiler is found (docs/measuring.md#cuda)");
  return find_program("foldwise-kernels", "build the target foldwise-kernels");
}

/// Measures the device; returns the program's exit status. Skips what an interrupted run has already measured.
int measure(const CalibrateOptions& options, const std::filesystem::path& program, const std::string& file) {
  std::vector<std::string> arguments{"--out", file};
  if (options.quick) arguments.emplace_back("--quick");
  if (options.thorough) arguments.emplace_back("--thorough");
  if (!options.only.empty()) arguments.push_back(fmt::format("--only={}", fmt::join(options.only, ",")));
  if (options.nvlink_domain > 0) arguments.push_back(fmt::format("--nvlink-domain={}", options.nvlink_domain));
  return run_program(program, arguments);
}

/// The records that `program` writes.
hwprofiles::Records measured(const CalibrateOptions& options, const std::filesystem::path& program,
                             const std::string& file) {
  if (const int status = measure(options, program, file); status != 0)
    throw config::ConfigError(
        {{{program.string(), 0, ""}, fmt::format("ended with status {}, see its messages above", status)}});
  return hwprofiles::read_records(file);
}

/// Merges the files. All must be of one device.
hwprofiles::Records together(std::vector<hwprofiles::Records> files) {
  std::string lines;
  for (const hwprofiles::Records& file : files) lines += to_json_lines(file);
  std::string name = files.size() == 1 ? files.front().file : fmt::format("{} files", files.size());
  hwprofiles::Records all = hwprofiles::parse_records(lines, name);
  for (hwprofiles::Records& file : files)
    std::move(file.warnings.begin(), file.warnings.end(), std::back_inserter(all.warnings));
  return all;
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

/// Writes the records. Without `force`, refuses to overwrite measurements that are not among them.
void write_records(const std::string& file, const hwprofiles::Records& records, bool force) {
  const std::string text = to_json_lines(records);
  if (!force && std::filesystem::exists(file)) {
    std::vector<std::string> there;
    try {
      there = sorted_lines(to_json_lines(hwprofiles::read_records(file)));
    } catch (const config::ConfigError&) {  // Not a file of records: not ours to replace.
      there = {""};
    }
    const std::vector<std::string> ours = sorted_lines(text);
    if (!std::includes(ours.begin(), ours.end(), there.begin(), there.end()))
      throw config::ConfigError(
          {{{file, 0, ""},
            "holds other measurements, which are kept: give another --out, or --force to replace them"}});
  }
  config::write_output_file(file, text);
}

/// Last component of a path: "mine" for "runs/mine/".
std::string folder_name(const std::filesystem::path& folder) {
  const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

/// The measured runs, all of one system. A system that the user names replaces theirs.
std::vector<planner::Run> site_runs(const CalibrateOptions& options) {
  config::Diagnostics diagnostics;
  std::vector<planner::Run> runs = read_runs(options.runs, diagnostics);
  if (!options.system.empty())
    for (planner::Run& run : runs) {
      run.system_name = options.system;
      run.hardware = planner::profile_of(run).hardware;
    }
  for (const planner::Run& run : runs) {
    const config::Location where{run.file, run.line, run.id};
    planner::report_violations(run, diagnostics);
    if (run.system_name != runs.front().system_name)
      diagnostics.error(where, fmt::format("is on {}, the first run on {}: give runs of one site, or --system",
                                           run.system_name, runs.front().system_name));
  }
  diagnostics.throw_if_any();
  return runs;
}

int calibrate_site(const CalibrateOptions& options) {
  const std::filesystem::path out(options.out);
  const planner::SiteFit fit = planner::fit_site(site_runs(options), folder_name(out), planner::built_in_errors());
  const OwnFolder folder(options.out);
  const std::string profile = (out / "profile.json").string();
  if (!options.force && std::filesystem::exists(profile))
    throw config::ConfigError({{{profile, 0, ""}, "is there already: give another --out, or --force to replace it"}});
  config::write_output_file(profile, fit.profile);
  if (options.format == "json") {
    nlohmann::json result = planner::site_fit_json(fit);
    result["profile"] = profile;
    print_result(result);
  } else {
    print_result(planner::site_fit_text(fit) +
                 fmt::format("\n{}: {} with these factors, for --system\n", profile, fit.system));
  }
  return kDone;
}

int calibrate(const CalibrateOptions& options) {
  if ((!options.device.empty() ? 1 : 0) + (!options.records.empty() ? 1 : 0) + (!options.imports.empty() ? 1 : 0) +
          (!options.runs.empty() ? 1 : 0) !=
      1)
    wrong_option(
        "give one of --device (measure), --records (fit what was measured), --import (from other programs) and --runs "
        "(measured steps of a site)");
  if (options.thorough && options.device != "cuda") wrong_option("--thorough belongs to --device cuda");
  if (options.nvlink_domain > 0 && options.device != "cuda") wrong_option("--nvlink-domain belongs to --device cuda");
  const hwprofiles::Launched process = hwprofiles::launched();
  if (process.size > 1 && options.device != "cuda")
    wrong_option(fmt::format("one of {} processes: only --device cuda measures with several", process.size));
  if (!options.runs.empty()) return calibrate_site(options);
  const std::filesystem::path out(options.out);
  const std::string file = (out / "records.jsonl").string();
  if (process.rank > 0) return measure(options, program_of(options), file);  // Rank 0 writes, fits and reports.
  std::optional<OwnFolder> folder;  // Created when there is something to write.
  hwprofiles::Records records;
  if (!options.device.empty()) {
    const std::filesystem::path program = program_of(options);
    folder.emplace(options.out);
    records = measured(options, program, file);
  } else {
    std::vector<hwprofiles::Records> files;
    for (const std::string& path : options.records) files.push_back(hwprofiles::read_records(path));
    for (const std::string& path : options.imports) files.push_back(hwprofiles::import_records(path, options.import));
    records = together(std::move(files));
  }
  for (const config::Diagnostic& warning : records.warnings) print_note(warning.text());

  const hwprofiles::Session& session = records.sessions.back();
  const std::string& device = session.device;
  const std::string known = hwprofiles::system_of_device(device);
  const std::string base = !options.base.empty() ? options.base : known.empty() ? "h200" : known;
  if (const std::int64_t domain = foldwise::load_system(base).network.ranks_per_domain;
      session.hosts.size() > 1 && session.nvlink_domain != domain)
    print_note(fmt::format(
        "measured in NVLink domains of {} GPUs, {} has {}: say so in the profile (network/ranks_per_domain)",
        session.nvlink_domain, base, domain));
  const hwprofiles::Calibration result = hwprofiles::calibrate(records, folder_name(out), base, options.seed);
  if (!folder) {
    folder.emplace(options.out);
    write_records(file, records, options.force);
  }
  const std::string profile = (out / "profile.json").string(), image = (out / "fit.svg").string();
  config::write_output_file(profile, result.profile);
  config::write_output_file(image, hwprofiles::plot(result.curves, device));

  if (options.format == "json") {
    print_result({{"device", device},
                  {"base", base},
                  {"records", file},
                  {"profile", profile},
                  {"plot", image},
                  {"settings", records.measurements.size()},
                  {"curves", planner::fits_json(result.curves)}});
    return kDone;
  }
  const planner::Screen screen = screen_of_stdout();
  std::string text = planner::wrapped(
      fmt::format("{}: {} settings, {}", device, records.measurements.size(), planner::fits_in_short(result.curves)),
      screen.width, 1);
  text += '\n';
  text += planner::line_of(screen, "Profile",
                           {fmt::format("{}: what was measured; the rest as {}{}", profile, base,
                                        known == base ? "" : " and marked assumed")});
  text += planner::line_of(screen, "Files",
                           {fmt::format("{}: measured against predicted", image), fmt::format("{}: records", file)});
  text += planner::command_of(screen, "Next", fmt::format("foldwise validate {} --system {}", file, profile));
  text += fmt::format(
      "\nErrors in percent of the measured time, of the settings themselves and of\n"
      "thirds of them left out of the fit (seed {})\n",
      options.seed);
  text += planner::fits_text(result.curves, planner::is_asked(options.explain, "values"));
  print_result(text);
  return kDone;
}

}  // namespace

void add_calibrate(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App* command = app.add_subcommand("calibrate", "Measure a device, fit its curves and write a profile");
  CLI::Option* device = command->add_option("--device", options->device, "Measure the GPUs or the CPU of this machine")
                            ->check(CLI::IsMember({"cuda", "cpu"}));
  command
      ->add_option("--nvlink-domain", options->nvlink_domain,
                   "GPUs that share NVLink, of several hosts too (srun, mpirun: a process a host); default: a host's")
      ->check(CLI::Range(1, 1024));
  command->add_option("--records", options->records, "Fit these records (JSON Lines) instead of measuring")
      ->expected(1, 1000);
  CLI::Option* import = command
                            ->add_option("--import", options->imports,
                                         "Fit what other programs measured: nccl-tests output, PyTorch profiler traces")
                            ->expected(1, 1000);
  CLI::Option* runs =
      command
          ->add_option("--runs", options->runs,
                       "Adjust a system's host, clocks, NVLink and NICs to measured steps of one site (run files with "
                       "`measured`, as import makes them of logs)")
          ->expected(1, 1000);
  command->add_option("--system", options->system, "System that --runs adjust; default: the one that they name")
      ->needs(runs);
  command->add_option("--device-name", options->import.device, "Device of an import that does not name it")
      ->needs(import);
  command
      ->add_option("--ranks", options->import.ranks,
                   "Ranks of nccl-tests output without a device list; default: by its bandwidths")
      ->check(CLI::Range(2, 1'000'000))
      ->needs(import);
  command
      ->add_option("--collective", options->import.collective, "Collective of nccl-tests output that does not name it")
      ->needs(import);
  add_output_folder(*command, "--out", options->out, "Directory for records.jsonl, profile.json and fit.svg")
      ->capture_default_str();
  command
      ->add_option("--base", options->base, "Built-in system for what is not measured; default: the one of the device")
      ->excludes(runs);
  command->add_option("--only", options->only, "Kernels to measure: gemm, memory, ...")->delimiter(',')->needs(device);
  command->add_flag("--force", options->force, "Replace other measurements that --out holds");
  CLI::Option* quick = command->add_flag("--quick", options->quick, "Fewer settings")->needs(device);
  command->add_flag("--thorough", options->thorough, "More of them (cuda: five minutes instead of under three)")
      ->excludes(quick);
  command->add_option("--seed", options->seed, "Decides which settings a fit leaves out")
      ->capture_default_str()
      ->excludes(runs);
  add_explain(*command, options->explain, {{"values", "the fitted values of each curve"}});
  add_format(*command, options->format);
  command->callback([options, &chosen] { chosen = [options] { return calibrate(*options); }; });
}

}  // namespace foldwise::cli
