#include "planner/report/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "planner/report/prediction_report.h"
#include "planner/report/table.h"
#include "planner/run/fields.h"

namespace foldwise::planner {

using costmodel::DetailEntry;
using costmodel::Prediction;
using costmodel::StageMemory;
using nlohmann::json;

namespace {

constexpr std::size_t kExplanationLines = 12;
constexpr std::size_t kWidth = 100;
constexpr std::size_t kNumberColumn = 11;  ///< Digits of a number and the space before it.

/// Characters left for each of `columns` after a first column of `first`, within reason.
std::size_t cell_width(std::size_t first, std::size_t columns) {
  const std::size_t room = kWidth > first ? (kWidth - first) / columns : 0;
  return std::clamp<std::size_t>(room > 2 ? room - 2 : 0, 10, 24);
}

/// Characters left for the name of a line with a number per run and a change per run but the first.
std::size_t name_width(std::size_t runs) {
  const std::size_t numbers = kNumberColumn * (2 * runs - 1) + 2;
  return std::clamp<std::size_t>(kWidth > numbers ? kWidth - numbers : 0, 24, 60);
}

struct Row {
  const char* name;
  std::vector<double> values;
};

std::vector<Row> seconds_by_cause(const std::vector<ComparedRun>& runs) {
  std::vector<Row> rows = {
      {"compute", {}}, {"exposed_communication", {}}, {"exposed_copy", {}}, {"bubble", {}}, {"host", {}}, {"step", {}}};
  for (const ComparedRun& item : runs) {
    const costmodel::Breakdown& b = item.prediction.breakdown;
    const Seconds parts[] = {b.compute, b.exposed_communication,  b.exposed_copy, b.bubble,
                             b.host,    item.prediction.step_time};
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].values.push_back(parts[i].to<double>());
  }
  return rows;
}

const StageMemory& fullest_stage(const Prediction& prediction) {
  return *std::max_element(prediction.memory.begin(), prediction.memory.end(),
                           [](const StageMemory& a, const StageMemory& b) { return a.total() < b.total(); });
}

std::vector<Row> gib_by_cause(const std::vector<ComparedRun>& runs) {
  std::vector<Row> rows = {{"parameters", {}}, {"gradients", {}}, {"optimizer", {}}, {"activations", {}},
                           {"buffers", {}},    {"overhead", {}},  {"total", {}},     {"host", {}}};
  for (const ComparedRun& item : runs) {
    const StageMemory memory = item.prediction.memory.empty() ? StageMemory{} : fullest_stage(item.prediction);
    const Bytes parts[] = {memory.parameters, memory.gradients,  memory.optimizer, memory.activations,
                           memory.buffers,    memory.overhead(), memory.total(),   memory.host};
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].values.push_back(in_gib(parts[i]));
  }
  return rows;
}

std::string label(std::size_t i) {
  return i < 26 ? std::string(1, static_cast<char>('A' + i)) : fmt::format("R{}", i + 1);
}

std::vector<std::string> titles(const std::string& first, const std::vector<ComparedRun>& runs, bool with_change) {
  std::vector<std::string> result = {fmt::format("<{}", first)};
  for (std::size_t i = 0; i < runs.size(); ++i) result.push_back(label(i));
  if (with_change)
    for (std::size_t i = 1; i < runs.size(); ++i) result.push_back(label(i) + " - A");
  return result;
}

std::vector<std::string> cells(const std::string& first, const std::vector<double>& values) {
  std::vector<std::string> result = {first};
  const auto text = [](double value) { return fmt::format("{:.{}f}", value, std::abs(value) < 10.0 ? 4 : 2); };
  for (const double value : values) result.push_back(text(value));
  for (std::size_t i = 1; i < values.size(); ++i)
    result.push_back(fmt::format("{}{}", values[i] >= values[0] ? "+" : "", text(values[i] - values[0])));
  return result;
}

json rows_json(const std::vector<Row>& rows) {
  json result = json::object();
  for (const Row& row : rows) result[row.name] = row.values;
  return result;
}

}  // namespace

double ExplainedTime::spread() const {
  double result = 0.0;
  for (const double value : seconds) result = std::max(result, std::abs(value - seconds.front()));
  return result;
}

std::vector<Difference> differences(const std::vector<ComparedRun>& runs) {
  std::vector<Difference> result;
  const auto add = [&](const std::string& key, const auto& text_of) {
    Difference difference{.field = key, .values = {}};
    for (const ComparedRun& item : runs) difference.values.push_back(text_of(item.run));
    if (std::adjacent_find(difference.values.begin(), difference.values.end(), std::not_equal_to<>()) !=
        difference.values.end())
      result.push_back(std::move(difference));
  };
  add("model", [](const Run& run) { return run.model_name; });
  const auto overrides = [&](const char* key) {
    add(key, [&](const Run& run) {
      const auto given = run.json.find(key);
      return given == run.json.end() || given->empty() ? std::string("-") : given->dump();
    });
  };
  overrides("model_overrides");
  add("mtp", [](const Run& run) { return std::to_string(run.model.mtp_num_layers); });
  add("system", [](const Run& run) { return run.system_name; });
  overrides("system_overrides");
  add("num_gpus", [](const Run& run) { return std::to_string(run.num_gpus); });
  for (const Field& field : fields()) {
    if (!field.is_option()) continue;
    add(field.key, [&](const Run& run) {
      if (field.key == "task") return run.task;  // Fine-tuning of all weights is pretraining to the cost model.
      const json value = field.applies_to(run.options) ? field.value.get(run.options) : json(nullptr);
      return value.is_null() ? "-" : value_text(value);
    });
  }
  return result;
}

std::vector<ExplainedTime> explanation(const std::vector<ComparedRun>& runs) {
  std::map<std::tuple<std::string, std::string, std::string, std::string>, std::vector<double>> lines;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto add = [&](const std::string& cause, const DetailEntry& entry) {
      auto& seconds = lines[{cause, entry.kind, entry.module, entry.group}];
      seconds.resize(runs.size(), 0.0);
      seconds[i] += entry.seconds.to<double>();
    };
    for (const DetailEntry& entry : runs[i].prediction.detail) add(entry.cause, entry);
    const bool listed = std::any_of(runs[i].prediction.detail.begin(), runs[i].prediction.detail.end(),
                                    [](const DetailEntry& entry) { return entry.cause == "bubble"; });
    if (!listed)
      add("bubble", {.cause = "",
                     .kind = "",
                     .module = "pipeline",
                     .group = "pp",
                     .seconds = runs[i].prediction.breakdown.bubble});
  }
  std::vector<ExplainedTime> result;
  result.reserve(lines.size());
  for (auto& [key, seconds] : lines)
    result.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), std::get<3>(key), std::move(seconds)});
  std::stable_sort(result.begin(), result.end(),
                   [](const ExplainedTime& a, const ExplainedTime& b) { return a.spread() > b.spread(); });
  return result;
}

json comparison_json(const std::vector<ComparedRun>& runs, const Residuals& residuals) {
  json result = json::object();
  result["runs"] = json::array();
  for (const ComparedRun& item : runs)
    result["runs"].push_back(
        {{"file", item.run.file},
         {"run", write_run(item.run)},
         {"prediction", prediction_json(item.run, item.prediction,
                                        step_time_interval(residuals, item.run.hardware.traits.generation,
                                                           item.prediction.step_time))}});
  result["differences"] = json::array();
  for (const Difference& difference : differences(runs))
    result["differences"].push_back({{"field", difference.field}, {"values", difference.values}});
  result["seconds"] = rows_json(seconds_by_cause(runs));
  result["memory_gib"] = rows_json(gib_by_cause(runs));
  result["explanation"] = json::array();
  for (const ExplainedTime& line : explanation(runs))
    result["explanation"].push_back({{"cause", line.cause},
                                     {"kind", line.kind},
                                     {"module", line.module},
                                     {"group", line.group},
                                     {"seconds", line.seconds}});
  std::size_t fastest = 0;
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (runs[i].prediction.step_time < runs[fastest].prediction.step_time) fastest = i;
  result["fastest"] = fastest;
  return result;
}

std::string comparison_text(const std::vector<ComparedRun>& runs) {
  std::string out;
  Table summary({"", "step s", "tokens/s/GPU", "TFLOPS/GPU", "MFU %", "memory GiB", "<fits", "<run"});
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Prediction& p = runs[i].prediction;
    const std::string& id = runs[i].run.id;
    summary.add({label(i), seconds_text(p.step_time.to<double>()), fmt::format("{:.0f}", p.tokens_per_s_per_gpu),
                 fmt::format("{:.1f}", p.model_tflops_per_gpu), fmt::format("{:.1f}", p.mfu_pct),
                 fmt::format("{:.2f}", in_gib(p.peak_memory)), p.fits ? "yes" : "NO",
                 shortened(id.empty() ? runs[i].run.file : id, 36)});
  }
  out += summary.text() + '\n';

  Table fields(titles("what differs", runs, false));
  for (const Difference& difference : differences(runs)) {
    std::vector<std::string> row = {difference.field};
    for (const std::string& value : difference.values) row.push_back(shortened(value, cell_width(38, runs.size())));
    fields.add(std::move(row));
  }
  out += (fields.empty() ? "  The runs have the same configuration.\n" : fields.text()) + '\n';

  Table seconds(titles("seconds on the busiest stage", runs, true));
  for (const Row& row : seconds_by_cause(runs)) seconds.add(cells(row.name, row.values));
  out += seconds.text() + '\n';

  Table memory(titles("GiB on the fullest stage", runs, true));
  for (const Row& row : gib_by_cause(runs)) memory.add(cells(row.name, row.values));
  out += memory.text() + '\n';

  const std::vector<ExplainedTime> lines = explanation(runs);
  Table why(titles("what explains the difference, seconds", runs, true));
  double all = 0.0, shown = 0.0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    all += lines[i].spread();
    if (i >= kExplanationLines || lines[i].spread() <= 0.0) continue;
    shown += lines[i].spread();
    std::string name = lines[i].cause;
    for (const std::string& part : {lines[i].kind, lines[i].module, lines[i].group})
      if (!part.empty()) name += fmt::format("{}{}", name == lines[i].cause ? ": " : " ", part);
    why.add(cells(shortened(name, name_width(runs.size())), lines[i].seconds));
  }
  if (!why.empty())
    out += why.text() +
           fmt::format("  These lines hold {:.0f} % of all that differs.\n", all > 0.0 ? 100.0 * shown / all : 0.0);
  return out;
}

}  // namespace foldwise::planner
