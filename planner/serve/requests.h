#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/config/diagnostics.h"
#include "costmodel/config/json.h"
#include "planner/answer/plan_answer.h"
#include "planner/run/run_file.h"
#include "planner/serve/message.h"

// What bodies of requests say. A body never names a file of the host: models, systems and sets of defaults are built-in
// names as a command line takes them, or a model is an object. All else is read as a run file is.
namespace foldwise::serve {

/// File name in messages about a body.
inline constexpr const char* kBody = "request";

/// A body that is not JSON: 400. Mistakes in one that is are ConfigErrors: 422.
struct NotJson {
  config::ConfigError mistakes;
};

/// The built-in model or system that a name stands for, as on a command line; nothing if it is another one, such as a
/// file of the host. No file is read. Throws ConfigError if the name can mean several.
[[nodiscard]] std::optional<std::string> built_in_model_meant(const std::string& name);
[[nodiscard]] std::optional<std::string> built_in_system_meant(const std::string& name);

/// Throws NotJson.
[[nodiscard]] config::Document read_body(const std::string& body);

/// Throws ConfigError.
[[nodiscard]] planner::Run run_in(config::ObjectReader& reader);
/// The run that the whole body is.
[[nodiscard]] planner::Run run_in(const config::Document& document);
/// {"runs": [run, ...]}, two to `most` of them. They are named A, B, C in the answer.
[[nodiscard]] std::vector<planner::Run> runs_in(const config::Document& document);
/// Arguments of a plan, by the names of the options of `plan` with '_' for '-'; "set" has the values that fields may
/// have, "why_not" is a list of such objects, "from" a run.
[[nodiscard]] planner::PlanAsked plan_in(const config::Document& document);

/// {"schema", "errors": [{file, line, field, message}]}
[[nodiscard]] Response failure(int status, const config::ConfigError& error);
[[nodiscard]] Response failure(int status, const std::string& field, const std::string& message);
/// For the exception that is being handled: call it in a catch block. What is no std::exception goes on.
[[nodiscard]] Response failure_of_exception();
/// As the commands print it.
[[nodiscard]] Response success(nlohmann::json answer);
[[nodiscard]] std::string text_of(const nlohmann::json& value);

}  // namespace foldwise::serve
