#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "costmodel/config/diagnostics.h"
#include "planner/answer/version.h"

// The subcommands. Each registers its options; parsing the command line leaves the chosen one in `Command`.
namespace foldwise::cli {

using planner::version;
using planner::with_schema;

enum ExitCode : int { kDone = 0, kOurBug = 1, kBadInput = 2, kNothingFits = 3 };

/// What the user asked for; returns an ExitCode.
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

void add_shell(CLI::App& app, Command& chosen);  ///< `completion` and `man`, of all that `app` has when they run.

/// What the options of a command are about: groups of its help, of the manual and of completions.
inline constexpr const char *kQuestion = "Question", *kSearch = "Search", *kOutput = "Output", *kCost = "Cost";

/// The values that an option takes, where they are a closed set.
[[nodiscard]] std::vector<std::string> values_in_help(const CLI::Option& option);

/// Adds `--format text|json`, which sets `json`.
void add_format(CLI::App& command, std::string& format);

/// Of an option that names a file to be read, or "-" for stdin.
[[nodiscard]] CLI::Validator readable_file();

/// Counts as people write them: 500B, 14.8T, 4k; `binary` where 1024 is meant, as in lengths of sequences: 4k is 4096,
/// 128K 131072.
[[nodiscard]] std::function<std::string(std::string)> counts(bool binary = false);

/// Whoever read stdout has gone: nothing is left to be done, or said.
struct StdoutClosed {};

/// Adds `--release`, which sets `release` to the name of one.
void add_release(CLI::App& command, std::string& release, const std::string& otherwise = "the newest with a number");

/// Of all rules.
[[nodiscard]] std::vector<std::string> rule_names();

/// Results go to stdout, whole; JSON is an object. Throws ConfigError if they cannot be written, or StdoutClosed.
void print_result(const std::string& text);
void print_result(const nlohmann::json& result);

/// As it is printed, with its end; bytes that are no UTF-8, of a path or a log, become U+FFFD.
[[nodiscard]] std::string json_text(const nlohmann::json& value);

/// Prints the answer, then writes its files: neither is lost where the other fails. Throws what either threw.
void print_and_write(const std::function<void()>& print, const std::function<void()>& write);

/// Ends the program with a message and the exit code of bad input, wherever it is.
[[noreturn]] void end_without_memory();
/// From now on memory that is not there ends it so; the message as text or as JSON.
void end_without_memory_as(bool json);

/// A line to stderr; lost where that is closed or full.
void print_note(const std::string& text);

/// Mistakes of the user go to stderr: a line each, or one JSON object {"errors": [{file, line, field, message}]}.
void print_errors(const config::ConfigError& error, bool as_json);

}  // namespace foldwise::cli
