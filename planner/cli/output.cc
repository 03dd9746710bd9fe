#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <string>

#include "planner/answer/question.h"
#include "planner/cli/commands.h"
#include "planner/run/count.h"
#include "planner/run/release.h"

namespace foldwise::cli {

CLI::Validator readable_file() {
  return {[](const std::string& path) { return path == "-" ? std::string() : CLI::ExistingFile(path); }, "FILE",
          "FILE"};
}

std::function<std::string(std::string)> counts(bool binary) {
  return [binary](const std::string& text) {
    const auto number = planner::count_in(text, binary ? 1024 : 1000);
    if (!number && text.find_first_not_of("+-.0123456789") != std::string::npos)
      throw CLI::ValidationError(fmt::format("expected a count such as 4096, 4k or 1M, found \"{}\"", text));
    return number ? std::to_string(*number) : text;
  };
}

void add_format(CLI::App& command, std::string& format) {
  command.add_option("--format", format, "Form of the result and of errors")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str()
      ->group(kOutput);
}

void add_release(CLI::App& command, std::string& release, const std::string& otherwise) {
  command
      .add_option(
          "--release", release,
          fmt::format("Of Megatron-Core: {}; default: {}", fmt::join(planner::release_names(), ", "), otherwise))
      ->transform([](const std::string& text) {
        const planner::Release* found = planner::find_release(text);
        if (found == nullptr) throw CLI::ValidationError(planner::mistake_in_release(text));
        return found->name;
      })
      ->group(kQuestion);
}

void print_result(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written && errno == EPIPE) throw StdoutClosed{};
  if (!written)
    throw config::ConfigError({{{"stdout", 0, ""}, fmt::format("cannot be written: {}", std::strerror(errno))}});
}

std::string json_text(const nlohmann::json& value) {
  return value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
}

void print_result(const nlohmann::json& result) { print_result(json_text(with_schema(result))); }

void print_and_write(const std::function<void()>& print, const std::function<void()>& write) {
  std::exception_ptr not_printed;
  try {
    print();
  } catch (...) {  // A closed stdout (head, less) must not prevent writing the files.
    not_printed = std::current_exception();
  }
  write();
  if (not_printed) std::rethrow_exception(not_printed);
}

void print_note(const std::string& text) { static_cast<void>(std::fputs((text + '\n').c_str(), stderr)); }

namespace {

/// The first rule that a text names before a colon; empty: none.
std::string first_rule_in(const std::string& text) {
  std::string first;
  std::size_t at = std::string::npos;
  for (const std::string& name : rule_names())
    if (const std::size_t here = text.find(name + ": "); here < at) {
      at = here;
      first = name;
    }
  return first;
}

/// Renames an argument of the library ("max_step_time", "set ep") to its option: "--max-step-time", "--set ep".
config::Diagnostic as_option(config::Diagnostic mistake) {
  config::Location& where = mistake.where;
  if (where.file != config::kArguments) return mistake;
  where.file = "command line";
  if (where.field.empty()) return mistake;
  const auto end =
      where.field.begin() + static_cast<std::ptrdiff_t>(std::min(where.field.find(' '), where.field.size()));
  std::replace(where.field.begin(), end, '_', '-');
  where.field.insert(0, "--");
  return mistake;
}

}  // namespace

void print_errors(const config::ConfigError& error, bool as_json) {
  std::string lines;
  nlohmann::json list = nlohmann::json::array();
  for (const config::Diagnostic& diagnostic : error.diagnostics()) {
    const config::Diagnostic mistake = as_option(diagnostic);
    lines += (lines.empty() ? "" : "\n") + mistake.text();
    list.push_back(planner::mistake_json(mistake));
  }
  if (!as_json) {
    print_note(lines);
    if (const std::string rule = first_rule_in(lines); !rule.empty())
      print_note(fmt::format("foldwise rules {} says what that demands", rule));
    return;
  }
  std::string text = json_text(with_schema({{"errors", list}}));
  text.pop_back();
  print_note(text);
}

}  // namespace foldwise::cli
