#include <fmt/format.h>

#include <cstdio>
#include <stdexcept>

#include "planner/cli/commands.h"

namespace foldwise::cli {

void add_format(CLI::App& command, std::string& format) {
  command.add_option("--format", format, "Form of the result and of errors")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
}

void print_result(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) throw std::runtime_error("the result cannot be written to stdout");
}

void print_result(const nlohmann::json& result) { print_result(with_schema(result).dump(2) + '\n'); }

void print_errors(const config::ConfigError& error, bool as_json) {
  if (!as_json) {
    fmt::print(stderr, "{}\n", error.what());
    return;
  }
  nlohmann::json list = nlohmann::json::array();
  for (const config::Diagnostic& diagnostic : error.diagnostics())
    list.push_back({{"file", diagnostic.where.file},
                    {"line", diagnostic.where.line},
                    {"field", diagnostic.where.field},
                    {"message", diagnostic.message}});
  fmt::print(stderr, "{}\n",
             with_schema({{"errors", list}}).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace foldwise::cli
