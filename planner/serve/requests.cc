#include "planner/serve/requests.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <stdexcept>
#include <utility>

#include "hwprofiles/load/systems.h"
#include "planner/answer/question.h"
#include "planner/answer/version.h"
#include "planner/models/models.h"
#include "planner/run/defaults.h"
#include "planner/run/names.h"
#include "planner/run/near_names.h"
#include "planner/run/release.h"

namespace foldwise::serve {
namespace {

using config::Diagnostics;
using config::Document;
using config::ObjectReader;
using nlohmann::json;
using planner::PlanAsked;

constexpr std::size_t kMostRuns = 16;         ///< That one request compares.
constexpr std::int64_t kMostPlans = 100;      ///< That one request lists.
constexpr double kMostEffortSeconds = 600.0;  ///< Of a core, about.

/// The built-in name that the text of `key` stands for; nothing if it is no text. Reports another name. No file is
/// read.
std::optional<std::string> built_in_name(ObjectReader& reader, const char* key, const std::vector<std::string>& known,
                                         std::optional<std::string> (*meant)(const std::string&), Diagnostics& errors) {
  const json* value = reader.raw(key);
  if (value == nullptr || !value->is_string()) return std::nullopt;  // Its reader says what else is wrong.
  const auto name = value->get<std::string>();
  if (std::ranges::find(known, name) != known.end()) return name;
  try {
    if (std::optional<std::string> found = meant(name)) return found;
  } catch (const config::ConfigError& error) {  // It can mean several.
    for (const config::Diagnostic& mistake : error.diagnostics())
      errors.error(reader.location(key), "expected a built-in name: " + mistake.message);
    return std::nullopt;
  }
  std::string hint = config::nearest_hint(name, known);
  if (hint.empty()) hint = fmt::format("; such as {}", fmt::join(known.begin(), known.begin() + 3, ", "));
  errors.error(reader.location(key),
               fmt::format("expected a built-in name, found {}{}", text_of(name.substr(0, 60)), hint));
  return std::nullopt;
}

/// The object with the built-in names of its model and its system. Reports others.
json with_full_names(ObjectReader& reader, Diagnostics& errors) {
  static const std::vector<std::string> models = planner::built_in_models(), systems = hwprofiles::built_in_systems();
  json object = reader.json();
  if (const auto model = built_in_name(reader, "model", models, built_in_model_meant, errors)) object["model"] = *model;
  if (const auto system = built_in_name(reader, "system", systems, built_in_system_meant, errors))
    object["system"] = *system;
  return object;
}

/// The same of everything in a run file that may be a path.
json run_with_full_names(ObjectReader& reader, Diagnostics& errors) {
  static const std::vector<std::string> defaults = planner::built_in_defaults();
  const auto no_other = [](const std::string&) { return std::optional<std::string>(); };
  static_cast<void>(built_in_name(reader, "defaults", defaults, no_other, errors));
  return with_full_names(reader, errors);
}

/// Values as typed on a command line.
std::vector<std::string> texts_of(const std::string& key, const json& value) {
  const bool of_json = key.find("overrides.") != std::string::npos || key.starts_with("system.");
  const auto text = [&](const json& one) {
    if (one.is_string()) return one.get<std::string>();
    return of_json || one.is_object() ? text_of(one) : planner::value_text(one);
  };
  std::vector<std::string> texts;
  if (!value.is_array() || of_json) return {text(value)};
  for (const json& one : value) texts.push_back(text(one));
  return texts;
}

PlanAsked::Values values_in(const json& object, Diagnostics& errors) {
  PlanAsked::Values values;
  for (const auto& [key, value] : object.items()) {
    const std::size_t mistakes = errors.list().size();
    std::string name = planner::set_key(key, errors);
    if (errors.list().size() == mistakes) values[std::move(name)] = texts_of(key, value);
  }
  return values;
}

void read_sets(ObjectReader& in, PlanAsked& asked, Diagnostics& errors) {
  if (const json* set = in.raw("set"); set != nullptr && set->is_object())
    asked.set = values_in(*set, errors);
  else if (set != nullptr)
    in.error("set", "expected an object of values by field, such as {\"tp\": [2, 4]}");
  for (const ObjectReader& question : in.objects("why_not"))
    asked.why_not.push_back(values_in(question.json(), errors));
}

/// One of `names`; the first of each pair.
template <typename Pairs>
std::string choice(ObjectReader& in, const char* key, const std::string& otherwise, const Pairs& names,
                   const std::vector<std::string>& others = {}) {
  std::vector<std::pair<std::string, std::string>> known;
  known.reserve(names.size() + others.size());
  for (const auto& entry : names) known.emplace_back(entry.first, entry.first);
  for (const std::string& other : others) known.emplace_back(other, other);
  return in.choice<std::string>(key, known).value_or(otherwise);
}

void read_search(ObjectReader& in, PlanAsked& asked, Diagnostics& errors) {
  asked.headroom_pct = in.number_or("headroom", asked.headroom_pct, 0.0, 99.0);
  asked.no_folding = in.boolean_or("no_folding", false);
  asked.top = in.integer_or("top", asked.top, 1, kMostPlans);
  asked.effort_seconds = in.number_or("effort", asked.effort_seconds, 0.1, kMostEffortSeconds);
  asked.evidence = choice(in, "evidence", asked.evidence, planner::evidence_names());
  asked.schedule = choice(in, "schedule", asked.schedule, planner::schedule_names());
  asked.precision = choice(in, "precision", asked.precision, planner::precision_names(), {"all"});
  asked.objective =
      choice(in, "objective", asked.objective, std::vector<std::pair<std::string, int>>{}, {"time", "memory", "gpus"});
  asked.max_step_time = in.number("max_step_time", 1e-6, 1e9);
  asked.slack_pct = in.number("slack", 0.0, 1000.0);
  if (const auto release = in.string("release")) {
    asked.release = *release;
    if (const std::string wrong = planner::mistake_in_release(*release); !wrong.empty()) in.error("release", wrong);
  }
  asked.cost.tokens = in.string("tokens").value_or("");
  asked.cost.price = in.number("price", 0.0, 1e6);
  read_sets(in, asked, errors);
}

std::optional<std::string> if_built_in(std::string name, const std::vector<std::string>& known) {
  return std::ranges::find(known, name) == known.end() ? std::nullopt : std::optional(std::move(name));
}

}  // namespace

std::optional<std::string> built_in_model_meant(const std::string& name) {
  return if_built_in(planner::model_meant(name), planner::built_in_models());
}

std::optional<std::string> built_in_system_meant(const std::string& name) {
  return if_built_in(planner::system_meant(name), hwprofiles::built_in_systems());
}

Document read_body(const std::string& body) {
  try {
    return Document::parse(body, kBody);
  } catch (const config::ConfigError& error) {
    throw NotJson{error};
  }
}

planner::Run run_in(ObjectReader& reader) {
  Diagnostics errors;
  const json run_json = run_with_full_names(reader, errors);
  errors.throw_if_any();
  ObjectReader again = reader.of(run_json).reporting_to(errors);
  planner::Run run = planner::read_run(again, errors);
  errors.throw_if_any();
  return run;
}

planner::Run run_in(const Document& document) {
  Diagnostics errors;
  ObjectReader reader(document, errors);
  errors.throw_if_any();
  return run_in(reader);
}

std::vector<planner::Run> runs_in(const Document& document) {
  Diagnostics errors;
  ObjectReader in(document, errors);
  std::vector<ObjectReader> readers = in.objects("runs");
  if (errors.ok() && (readers.size() < 2 || readers.size() > kMostRuns))
    in.error("runs", fmt::format("expected 2 to {} runs, found {}", kMostRuns, readers.size()));
  in.finish();
  std::vector<planner::Run> runs;
  for (ObjectReader& reader : readers) {
    try {
      runs.push_back(run_in(reader));
      runs.back().file = std::string(1, static_cast<char>('A' + runs.size() - 1));
    } catch (const config::ConfigError& error) {
      errors.add(error);
    }
  }
  errors.throw_if_any();
  return runs;
}

PlanAsked plan_in(const Document& document) {
  Diagnostics errors;
  ObjectReader given(document, errors);
  const json full = with_full_names(given, errors);
  ObjectReader in = given.of(full);
  PlanAsked asked;
  static_cast<planner::PlanArguments&>(asked) = planner::usual_question();
  asked.model = in.string("model").value_or(asked.model);
  asked.system = in.string("system").value_or(asked.system);
  asked.gpus = in.integer_or("gpus", asked.gpus, 1, 1'000'000);
  asked.seq_len = in.integer_or("seq_len", asked.seq_len, 1, std::int64_t{1} << 24);
  asked.global_batch = in.integer_or("global_batch", asked.global_batch, 1, std::int64_t{1} << 24);
  read_search(in, asked, errors);
  if (auto from = in.object("from")) {
    try {
      asked.from = run_in(*from);
    } catch (const config::ConfigError& error) {
      errors.add(error);
    }
  }
  in.finish();
  errors.throw_if_any();
  return asked;
}

std::string text_of(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

Response failure(int status, const config::ConfigError& error) {
  json list = json::array();
  for (const config::Diagnostic& mistake : error.diagnostics()) list.push_back(planner::mistake_json(mistake));
  return {.status = status, .body = text_of(planner::with_schema({{"errors", std::move(list)}}))};
}

Response failure(int status, const std::string& field, const std::string& message) {
  return failure(status, config::ConfigError({{{kBody, 0, field}, message}}));
}

Response failure_of_exception() {
  try {
    throw;
  } catch (const NotJson& error) {
    return failure(400, error.mistakes);
  } catch (const config::ConfigError& error) {
    return failure(422, error);
  } catch (const std::range_error& error) {  // Overflow of times (costmodel/pipeline/limits.h).
    return failure(422, "", error.what());
  } catch (const std::exception& error) {
    return failure(500, "", fmt::format("this is a bug of ours, please report it: {}", error.what()));
  }
}

Response success(json answer) { return {.body = text_of(planner::with_schema(std::move(answer)))}; }

}  // namespace foldwise::serve
