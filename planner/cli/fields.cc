#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "planner/cli/commands.h"
#include "planner/report/fields_report.h"
#include "planner/report/output_file.h"

namespace foldwise::cli {
namespace {

struct FieldsOptions {
  std::string write;
  std::string format = "text";
};

int fields(const FieldsOptions& options) {
  if (!options.write.empty()) {
    std::ifstream in(options.write);
    const std::string document((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    planner::write_output_file(options.write, planner::with_field_tables(document, options.write));
    fmt::print(stderr, "tables of fields and defaults written to {}\n", options.write);
    return kDone;
  }
  if (options.format == "json")
    print_result(planner::fields_json());
  else
    print_result(planner::fields_text());
  return kDone;
}

}  // namespace

void add_fields(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<FieldsOptions>();
  CLI::App* command = app.add_subcommand("fields", "List every field of a run file: values, default, Megatron's flag");
  command->add_option("--write", options->write, "Instead: renew the tables of this document (docs/run-file.md)");
  add_format(*command, options->format);
  command->callback([options, &chosen] { chosen = [options] { return fields(*options); }; });
}

}  // namespace foldwise::cli
