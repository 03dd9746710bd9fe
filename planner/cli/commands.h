#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "costmodel/config/diagnostics.h"
#include "planner/answer/version.h"

// The subcommands. Each registers its options. Parsing the command line stores the chosen one in `Command`.
namespace foldwise::cli {

using planner::version;
using planner::with_schema;

enum ExitCode : int { kDone = 0, kOurBug = 1, kBadInput = 2, kNothingFits = 3 };

/// Runs a subcommand; returns an ExitCode.
using Command = std::function<int()>;

void add_plan(CLI::App& app, Command& chosen);
void add_predict(CLI::App& app, Command& chosen);
void add_sweep(CLI::App& app, Command& chosen);
void add_diagnose(CLI::App& app, Command& chosen);
void add_compare(CLI::App& app, Command& chosen);
void add_validate(CLI::App& app, Command& chosen);
void add_calibrate(CLI::App& app, Command& chosen);
void add_export(CLI::App& app, Command& chosen);
void add_import(CLI::App& app, Command& chosen);
void add_models(CLI::App& app, Command& chosen);
void add_systems(CLI::App& app, Command& chosen);
void add_fields(CLI::App& app, Command& chosen);
void add_rules(CLI::App& app, Command& chosen);
void add_serve(CLI::App& app, Command& chosen);

void add_shell(CLI::App& app, Command& chosen);  ///< `completion` and `man`, of all that `app` has when run.

/// Groups of a command's options in its help, in the manual and in completions.
inline constexpr const char *kQuestion = "Question", *kSearch = "Search", *kOutput = "Output", *kCost = "Cost";

/// Values of an option, if it takes a fixed set.
[[nodiscard]] std::vector<std::string> values_in_help(const CLI::Option& option);

/// Adds `--format text|json`, which sets `json`.
void add_format(CLI::App& command, std::string& format);

/// Validator of an input file, or "-" for stdin.
[[nodiscard]] CLI::Validator readable_file();

/// Parses counts with a suffix: 500B, 14.8T, 4k. `binary`: powers of 1024, as for sequence lengths: 4k is 4096, 128K
/// 131072.
[[nodiscard]] std::function<std::string(std::string)> counts(bool binary = false);

/// Thrown when the reader of stdout has closed it. The program then ends silently.
struct StdoutClosed {};

/// Adds `--release`, which sets `release` to the name of a release.
void add_release(CLI::App& command, std::string& release, const std::string& otherwise = "the newest with a number");

[[nodiscard]] std::vector<std::string> rule_names();

/// Prints a complete result to stdout; JSON must be an object. Throws ConfigError if it cannot be written, or
/// StdoutClosed.
void print_result(const std::string& text);
void print_result(const nlohmann::json& result);

/// JSON as printed, with a final newline. Bytes that are not UTF-8, of a path or a log, become U+FFFD.
[[nodiscard]] std::string json_text(const nlohmann::json& value);

/// Prints the answer, then writes its files. A failure of one does not prevent the other. Rethrows its exception.
void print_and_write(const std::function<void()>& print, const std::function<void()>& write);

/// Ends the program with a message and the exit code of bad input. Allocates no memory.
[[noreturn]] void end_without_memory();
/// Makes failed allocations call end_without_memory(). `json`: form of its message.
void end_without_memory_as(bool json);

/// Prints a line to stderr. Ignores errors.
void print_note(const std::string& text);

/// Prints mistakes to stderr: one line each, or one JSON object {"errors": [{file, line, field, message}]}.
void print_errors(const config::ConfigError& error, bool as_json);

}  // namespace foldwise::cli
