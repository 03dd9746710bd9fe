#include "planner/answer/question.h"

#include <algorithm>
#include <cmath>

#include "hwprofiles/load/systems.h"
#include "planner/models/models.h"
#include "planner/run/count.h"
#include "planner/run/names.h"
#include "planner/run/near_names.h"

namespace foldwise::planner {

nlohmann::json mistake_json(const config::Diagnostic& mistake) {
  return {{"file", mistake.where.file},
          {"line", mistake.where.line},
          {"field", mistake.where.field},
          {"message", mistake.message}};
}

std::string meant(std::string (*meaning)(const std::string&), const std::string& name, config::Diagnostics& diagnostics,
                  const std::string& otherwise) {
  try {
    return meaning(name);
  } catch (const config::ConfigError& error) {
    diagnostics.add(error);
    return otherwise;
  }
}

std::string set_key(const std::string& key, config::Diagnostics& diagnostics) {
  if (key.find("overrides.") != std::string::npos || key.starts_with("system.")) return key;
  return meant(field_meant, key, diagnostics);
}

std::vector<std::pair<std::string, std::vector<std::string>>> read_sets(const std::string& option,
                                                                        const std::vector<std::string>& texts,
                                                                        config::Diagnostics& diagnostics) {
  std::vector<std::pair<std::string, std::vector<std::string>>> sets;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      diagnostics.error({config::kArguments, 0, option}, fmt::format("expected key=value, found \"{}\"", text));
      continue;
    }
    std::vector<std::string> values;
    for (std::size_t at = equals + 1; at <= text.size();) {
      const std::size_t end = std::min(text.find(',', at), text.size());
      values.push_back(text.substr(at, end - at));
      at = end + 1;
    }
    const std::size_t mistakes = diagnostics.list().size();
    std::string key = set_key(text.substr(0, equals), diagnostics);
    if (diagnostics.list().size() > mistakes) continue;
    sets.emplace_back(std::move(key), std::move(values));
  }
  return sets;
}

PlanArguments usual_question() {
  PlanArguments asked;
  asked.model = "deepseek-v3";
  asked.system = "gb200-nvl72";
  asked.gpus = 256;
  return asked;
}

PlanRequest request_of(const PlanArguments& arguments, config::Diagnostics& diagnostics) {
  check_range<std::int64_t>("top", arguments.top, 1, 1000, diagnostics);
  check_range("threads", arguments.threads, 0, 1024, diagnostics);
  check_range("effort", arguments.effort_seconds, 0.1, 1e6, diagnostics);
  // With a mistake another name stands in, so that mistakes of the other arguments are found too.
  PlanRequest request{
      .model = meant(model_meant, arguments.model, diagnostics, built_in_models().front()),
      .system = meant(system_meant, arguments.system, diagnostics, hwprofiles::built_in_systems().front()),
      .release = arguments.release,
      .num_gpus = arguments.gpus,
      .seq_len = arguments.seq_len,
      .global_batch = arguments.global_batch,
      .precisions = {},
      .all_precisions = arguments.precision == "all",
      .schedule = {},
      .set = {},
      .headroom = arguments.headroom_pct / 100.0,
      .folding = !arguments.no_folding};
  for (const auto& [name, value] : schedule_names())
    if (name == arguments.schedule) request.schedule = value;
  for (const auto& [name, value] : evidence_names())
    if (name == arguments.evidence) request.evidence = value;
  for (const auto& [name, precision] : precision_names())
    if (arguments.precision == name) request.precisions.push_back(precision);
  for (auto& [key, values] : read_sets("pin", arguments.pins, diagnostics))
    if (!request.set.emplace(key, std::move(values)).second)
      diagnostics.error({config::kArguments, 0, "pin " + key}, "given twice");
  return request;
}

std::int64_t effort_of(const PlanArguments& arguments) { return std::llround(arguments.effort_seconds * 1e6); }

std::optional<LongRun> long_run(const CostArguments& a, config::Diagnostics& diagnostics) {
  const auto mistake = [&](const char* option, const std::string& message) {
    diagnostics.error({config::kArguments, 0, option}, message);
  };
  const bool failures = a.mtbf_hours || a.storage_gb_s || a.restart_s;
  if (a.tokens.empty()) {
    if (failures || a.price) mistake("tokens", "needed for --price, --mtbf, --storage and --restart");
    return std::nullopt;
  }
  LongRun result;
  result.tokens = static_cast<double>(count_in(a.tokens, 1000).value_or(0));
  if (!(result.tokens >= 1.0 && result.tokens <= 1e18))
    mistake("tokens", fmt::format("expected a number of tokens such as 14.8T, found \"{}\"", a.tokens));
  if (a.price) check_range("price", *a.price, 0.0, 1e6, diagnostics);
  result.price_per_gpu_hour = a.price;
  if (!failures) return result;
  if (!a.mtbf_hours || !a.storage_gb_s || !a.restart_s) {
    mistake("mtbf", "--mtbf, --storage and --restart are needed together");
    return result;
  }
  check_range("mtbf", *a.mtbf_hours, 1e-3, 1e9, diagnostics);
  check_range("storage", *a.storage_gb_s, 1e-3, 1e9, diagnostics);
  check_range("restart", *a.restart_s, 0.0, 1e7, diagnostics);
  result.failures = Failures{Seconds{*a.mtbf_hours * 3600.0}, gb_per_s(*a.storage_gb_s), Seconds{*a.restart_s}};
  return result;
}

}  // namespace foldwise::planner
