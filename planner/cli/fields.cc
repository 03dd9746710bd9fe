#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>

#include "costmodel/config/input_file.h"
#include "costmodel/config/output_file.h"
#include "planner/cli/commands.h"
#include "planner/cli/outputs.h"
#include "planner/report/fields_report.h"

namespace foldwise::cli {
namespace {

struct FieldsOptions {
  std::string write;
  std::string format = "text";
};

int fields(const FieldsOptions& options) {
  if (!options.write.empty()) {
    const std::string document = config::read_input_file(options.write);
    config::write_output_file(options.write, planner::with_field_tables(document, options.write));
    print_note(fmt::format("tables of fields and defaults written to {}", options.write));
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
  add_output_file(*command, "--write", options->write, "Instead: renew the tables of this document (docs/run-file.md)");
  add_format(*command, options->format);
  command->callback([options, &chosen] { chosen = [options] { return fields(*options); }; });
}

}  // namespace foldwise::cli
