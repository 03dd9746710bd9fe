#include "planner/report/comparison.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "planner/report/explanation.h"
#include "planner/report/prediction_report.h"
#include "planner/report/screen.h"
#include "planner/report/waterfall.h"
#include "planner/run/fields.h"

namespace foldwise::planner {

using costmodel::Prediction;
using costmodel::StageMemory;
using nlohmann::json;

namespace {

constexpr std::size_t kExplanationLines = 12;
constexpr std::size_t kTextWidth = 100;
constexpr std::size_t kMostTakenApart = 8;  ///< Runs. Each difference from the first run costs one prediction.

/// Characters per column of `columns` after a first column of `first` characters, clamped to 10 to 24.
std::size_t cell_width(std::size_t first, std::size_t columns) {
  const std::size_t room = kTextWidth > first ? (kTextWidth - first) / columns : 0;
  return std::clamp<std::size_t>(room > 2 ? room - 2 : 0, 10, 24);
}

struct Row {
  const char* name;
  std::vector<double> values;
};

std::vector<const Prediction*> predictions(const std::vector<ComparedRun>& runs) {
  std::vector<const Prediction*> list;
  list.reserve(runs.size());
  for (const ComparedRun& item : runs) list.push_back(&item.prediction);
  return list;
}

double tokens_of_step(const Run& run) {
  return static_cast<double>(run.options.pipeline.global_batch) * static_cast<double>(run.options.layer.seq_len);
}

/// Seconds in which `other` trains on as many tokens as a step of `first` holds.
Seconds time_of_same_work(const ComparedRun& first, const ComparedRun& other) {
  return other.prediction.step_time * (tokens_of_step(first.run) / tokens_of_step(other.run));
}

bool steps_hold_same_work(const std::vector<ComparedRun>& runs) {
  return std::ranges::all_of(
      runs, [&](const ComparedRun& item) { return tokens_of_step(item.run) == tokens_of_step(runs.front().run); });
}

std::size_t fastest_of(const std::vector<ComparedRun>& runs) {
  const auto time = [&](const ComparedRun& item) { return time_of_same_work(runs.front(), item); };
  return static_cast<std::size_t>(std::ranges::min_element(runs, {}, time) - runs.begin());
}

constexpr std::string_view kPerToken = "Steps hold different work, so time per token is compared. ";

std::vector<Row> seconds_by_cause(const Waterfall& waterfall) {
  std::vector<Row> rows;
  for (const char* cause : {"compute", "exposed_communication", "exposed_copy", "bubble", "host", "rest"}) {
    rows.push_back({cause, std::vector<double>(waterfall.steps.size(), 0.0)});
    for (const ExplainedTime& line : waterfall.lines)
      for (std::size_t run = 0; line.cause == cause && run < line.seconds.size(); ++run)
        rows.back().values[run] += line.seconds[run];
  }
  rows.push_back({"step", waterfall.steps});
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

std::optional<Interval> interval_of(const ComparedRun& item, const ErrorModel& errors) {
  return step_time_interval(errors, item.run, item.prediction.step_time);
}

/// Whether runs of a measured pair may differ in it (docs/accuracy.md#pairs): `plan` chooses or derives it.
bool is_choice_of_plan(const std::string& key) {
  const Field* const f = find_field(key);
  return key == "dp" || key == "pipeline_layout" || key == "sequence_parallel" || (f != nullptr && f->tried != nullptr);
}

json distance_json(const ComparedRun& first, const ComparedRun& other, const Distance& d) {
  const auto from = first.prediction.step_time.to<double>(), to = other.prediction.step_time.to<double>();
  json alone = json::array();
  for (const LoneDifference& lone : d.alone) {
    json entry = {{"field", lone.field},    {"refused", rejections_json(lone.refused)},
                  {"step_time_s", nullptr}, {"change_s", nullptr},
                  {"share", nullptr},       {"fits", nullptr}};
    if (lone.refused.empty()) {
      const auto then = lone.step_time.to<double>();
      entry["step_time_s"] = then;
      entry["change_s"] = then - from;
      if (to != from) entry["share"] = (then - from) / (to - from);
      entry["fits"] = lone.fits;
    }
    alone.push_back(std::move(entry));
  }
  const LoneDifference* const nearest = d.nearest(first.prediction.step_time, other.prediction.step_time);
  return {{"slower_pct", d.slower_pct},
          {"error_pct", d.error_pct},
          {"exceeds_error", d.exceeds_error},
          {"single_changes", std::move(alone)},
          {"nearest", nearest != nullptr ? json(nearest->field) : json(nullptr)}};
}

/// How much slower the slower one of the two is: the error is in percent of the faster one, too.
std::string distance_words(const Distance& d, const std::string& name) {
  const bool faster = d.slower_pct < 0.0;
  return fmt::format("{} is {:.2f} % slower than {}: {} {:.3g} % within which the model cannot tell such runs apart",
                     faster ? "A" : name, faster ? 100.0 * (1.0 / (1.0 + d.slower_pct / 100.0) - 1.0) : d.slower_pct,
                     faster ? name : "A", d.exceeds_error ? "more than the" : "inside of the", d.error_pct);
}

std::string distance_text(const Screen& screen, const Distance& d, const std::string& name) {
  const std::string text = (d.per_token ? std::string(kPerToken) : std::string()) + distance_words(d, name);
  return wrapped(text, screen.width, 2) + '\n';
}

std::string alone_table(const Screen& screen, const ComparedRun& first, const ComparedRun& other, const Distance& d,
                        const std::string& name) {
  const double from = to_microsecond(first.prediction.step_time), to = to_microsecond(other.prediction.step_time);
  Table table({fmt::format("<A with one field of {}", name), "step s", "change s", "of the way", "<fits"});
  double sum = 0.0;
  std::size_t more = 0;
  for (const LoneDifference& lone : d.alone) {
    const double change = lone.refused.empty() ? to_microsecond(lone.step_time) - from : 0.0;
    sum += change;
    if (lone.refused.empty() && std::abs(change) < 0.5e-6) {
      ++more;
      continue;
    }
    if (!lone.refused.empty()) {
      table.add({lone.field, "refused", "", "", ""});
      table.note("      " + wrapped(lone.refused.front().reason, screen.width - 6, 6));
      continue;
    }
    table.add({lone.field, fmt::format("{:.6f}", from + change), fmt::format("{:+.6f}", change),
               to != from ? fmt::format("{:.0f} %", 100.0 * change / (to - from)) : "", lone.fits ? "yes" : "NO"});
  }
  if (table.empty()) return "";
  std::string out = '\n' + table.text();
  if (more > 0) out += fmt::format("  {} of the fields change no microsecond alone.\n", more);
  out += fmt::format("  Alone they come to {:+.6f} s, together to {:+.6f} s.\n", sum, to - from);
  if (const LoneDifference* nearest = d.nearest(first.prediction.step_time, other.prediction.step_time))
    out += fmt::format("  The one change that comes nearest to {}: {}, {:+.6f} s from it.\n", name, nearest->field,
                       to_microsecond(nearest->step_time) - to);
  return out;
}

json rows_json(const std::vector<Row>& rows) {
  json result = json::object();
  for (const Row& row : rows) result[row.name] = row.values;
  return result;
}

}  // namespace

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
      if (field.key == "task") return run.task;  // To the cost model, fine-tuning of all weights is pretraining.
      const json value = field.applies_to(run.options) ? field.value.get(run.options) : json(nullptr);
      return value.is_null() ? "-" : value_text(value);
    });
  }
  return result;
}

const LoneDifference* Distance::nearest(Seconds first, Seconds other) const {
  const LoneDifference* result = nullptr;
  Seconds least = units::math::abs(other - first);
  for (const LoneDifference& lone : alone)
    if (const Seconds left = units::math::abs(other - lone.step_time); lone.refused.empty() && left < least) {
      least = left;
      result = &lone;
    }
  return result;
}

Distance distance(const ComparedRun& first, const ComparedRun& other, const ErrorModel& of_all, bool with_alone) {
  const Seconds from = first.prediction.step_time, to = other.prediction.step_time;
  const Seconds same_work = time_of_same_work(first, other);
  Distance result{.slower_pct = 100.0 * ((same_work / from).to<double>() - 1.0),
                  .per_token = !steps_hold_same_work({first, other}),
                  .alone = {}};
  const std::vector<Difference> fields = differences({first, other});
  double error = kIndistinguishable;
  if (!std::ranges::all_of(fields, [](const Difference& d) { return is_choice_of_plan(d.field); })) {
    const ErrorModel errors = peers_of(first.run) == peers_of(other.run) ? of_all.of_peers(first.run) : of_all;
    error = std::max(error,
                     std::expm1(kNormal80 * errors.deviation_between(exposure(first.run, from), exposure(other.run, to),
                                                                     first.run.system_name == other.run.system_name)));
  }
  result.error_pct = 100.0 * error;
  result.exceeds_error = std::max(from, same_work) > (1.0 + error) * std::min(from, same_work);
  if (!with_alone) return result;
  result.alone = lone_differences(first.run, other.run);
  const double sign = to < from ? -1.0 : 1.0;
  std::ranges::stable_sort(result.alone, std::ranges::greater{}, [&](const LoneDifference& lone) {
    return lone.refused.empty() ? sign * (lone.step_time - from).to<double>()
                                : -std::numeric_limits<double>::infinity();
  });
  return result;
}

json comparison_json(const std::vector<ComparedRun>& runs, const ErrorModel& errors) {
  json result = json::object();
  result["runs"] = json::array();
  for (const ComparedRun& item : runs)
    result["runs"].push_back({{"file", item.run.file},
                              {"run", write_run(item.run)},
                              {"prediction", prediction_json(item.run, item.prediction, interval_of(item, errors))}});
  result["differences"] = json::array();
  for (const Difference& difference : differences(runs))
    result["differences"].push_back({{"field", difference.field}, {"values", difference.values}});
  const Waterfall time = waterfall(predictions(runs));
  json explained = waterfall_json(time);
  result["stage"] = std::move(explained["stage"]);
  result["seconds"] = rows_json(seconds_by_cause(time));
  result["memory_gib"] = rows_json(gib_by_cause(runs));
  result["explanation"] = std::move(explained["lines"]);
  result["distances"] = json::array();
  for (std::size_t i = 1; i < runs.size(); ++i)
    result["distances"].push_back(
        distance_json(runs.front(), runs[i], distance(runs.front(), runs[i], errors, runs.size() <= kMostTakenApart)));
  result["fastest"] = fastest_of(runs);
  return result;
}

namespace {

std::string title_of(const ComparedRun& item) { return item.run.id.empty() ? item.run.file : item.run.id; }

std::string runs_table(const Screen& screen, const std::vector<ComparedRun>& runs) {
  const char* const against = steps_hold_same_work(runs) ? "vs A" : "s/token vs A";
  Table table({"", "step s", against, "tokens/s/GPU", "TFLOPS", "MFU %", "GiB", "<fits", "<run"});
  const auto first = runs.front().prediction.step_time.to<double>();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Prediction& p = runs[i].prediction;
    const auto step = p.step_time.to<double>();
    const auto same_work = time_of_same_work(runs.front(), runs[i]).to<double>();
    table.add({label(i), seconds_text(step), i == 0 ? "" : fmt::format("{:+.1f} %", 100.0 * (same_work / first - 1.0)),
               grouped_digits(p.tokens_per_s_per_gpu), fmt::format("{:.0f}", p.model_tflops_per_gpu),
               fmt::format("{:.1f}", p.mfu_pct), fmt::format("{:.1f}", in_gib(p.peak_memory)), p.fits ? "yes" : "NO",
               title_of(runs[i])});
  }
  return table.text(0, screen.width);
}

/// Label of a line of the waterfall: "communication dispatch over ep".
std::string line_name(const ExplainedTime& line) {
  constexpr std::string_view kExposed = "exposed_";
  std::string name = line.cause.starts_with(kExposed) ? line.cause.substr(kExposed.size()) : line.cause;
  if (line.cause == "compute")
    name = line.module.empty() ? line.kind : line.module + ' ' + line.kind;
  else if (!line.kind.empty())
    name += ' ' + line.kind;
  if (!line.group.empty() && line.cause != "bubble") name += " over " + line.group;
  return name;
}

/// The waterfall lines in which a run gains (or loses) against the first run.
std::string moved_line(const Screen& screen, const Waterfall& waterfall, std::size_t run, bool gains) {
  std::vector<std::pair<double, std::string>> moved;
  double sum = 0.0;
  for (const ExplainedTime& line : waterfall.lines) {
    const double more = line.seconds[run] - line.seconds.front();
    if (gains != (more < 0.0) || std::abs(more) < 1e-6) continue;
    moved.emplace_back(more, line_name(line));
    sum += more;
  }
  if (moved.empty()) return "";
  std::ranges::stable_sort(moved, std::ranges::greater{}, [](const auto& entry) { return std::abs(entry.first); });
  std::vector<std::string> pieces;
  pieces.reserve(moved.size());
  const auto number = [](double more) {
    return fmt::format("{}{} s", more < 0.0 ? '-' : '+', seconds_text(std::abs(more)));
  };
  for (const auto& [more, what] : moved) pieces.push_back(fmt::format("{} {}", number(more), what));
  pieces.front() = number(sum) + ": " + pieces.front();
  return one_line_of(screen, label(run) + (gains ? " gains" : " loses"), pieces);
}

std::string memory_line(const Screen& screen, const std::vector<ComparedRun>& runs, std::size_t run) {
  std::vector<std::pair<double, std::string>> moved;
  double total = 0.0;
  for (const Row& row : gib_by_cause(runs)) {
    const double more = row.values[run] - row.values.front();
    if (std::string_view(row.name) == "total")
      total = more;
    else if (std::abs(more) >= 0.05)
      moved.emplace_back(more, row.name);
  }
  if (moved.empty()) return "";
  std::ranges::stable_sort(moved, std::ranges::greater{}, [](const auto& entry) { return std::abs(entry.first); });
  std::vector<std::string> pieces;
  pieces.reserve(moved.size());
  for (const auto& [more, what] : moved) pieces.push_back(fmt::format("{:+.1f} {}", more, what));
  pieces.front() = fmt::format("{:+.1f} GiB: {}", total, pieces.front());
  return one_line_of(screen, label(run) + " memory", pieces);
}

/// "B is 3.46 % slower than A, more than the 3 % ..."
std::string verdict(const Screen& screen, const std::vector<ComparedRun>& runs, const ErrorModel& errors) {
  const std::size_t fastest = fastest_of(runs);
  const std::size_t other = fastest == 0 ? 1 : fastest;
  const Distance d = distance(runs.front(), runs[other], errors, false);
  std::string text(steps_hold_same_work(runs) ? std::string_view() : kPerToken);
  if (runs.size() > 2) text += label(fastest) + " is the fastest. ";
  if (d.slower_pct == 0.0 && differences({runs.front(), runs[other]}).empty())
    text += fmt::format("{} is the same run as A.", label(other));
  else
    text += distance_words(d, label(other)) + '.';
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (!runs[i].prediction.fits) text += fmt::format(" {} DOES NOT FIT.", label(i));
  return screen.in(fmt::emphasis::bold, wrapped(text, screen.width, 1)) + '\n';
}

std::string fields_table(const std::vector<ComparedRun>& runs) {
  Table fields(titles("what differs", runs, false));
  for (const Difference& difference : differences(runs)) {
    std::vector<std::string> row = {difference.field};
    for (const std::string& value : difference.values) row.push_back(shortened(value, cell_width(38, runs.size())));
    fields.add(std::move(row));
  }
  return fields.empty() ? "  The runs have the same configuration.\n" : fields.text();
}

std::string differs_line(const Screen& screen, const std::vector<ComparedRun>& runs) {
  std::vector<std::string> pieces;
  for (const Difference& difference : differences(runs))
    pieces.push_back(fmt::format("{} {}", difference.field, fmt::join(difference.values, " / ")));
  return pieces.empty() ? line_of(screen, "Differs", {"in nothing"}) : one_line_of(screen, "Differs", pieces);
}

}  // namespace

const Explanations& comparison_explanations() {
  static const Explanations list = {{"fields", "every field that differs"},
                                    {"ops", "seconds by cause and op, which add up to the step"},
                                    {"memory", "GiB by kind on the fullest stage"},
                                    {"changes", "what each difference does alone"}};
  return list;
}

std::string comparison_text(const std::vector<ComparedRun>& runs, const ErrorModel& errors, const Screen& screen,
                            const std::vector<std::string>& explain) {
  constexpr std::size_t kMostExplained = 4;  // Runs after the first. --explain shows the others.
  const Waterfall time = waterfall(predictions(runs));
  std::string out = verdict(screen, runs, errors) + '\n' + runs_table(screen, runs) + '\n' + differs_line(screen, runs);
  for (std::size_t i = 1; i < runs.size() && i <= kMostExplained; ++i)
    out += moved_line(screen, time, i, true) + moved_line(screen, time, i, false) + memory_line(screen, runs, i);
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (const std::string note = unread_keys_note(runs[i].run.model, runs[i].run.options.layer); !note.empty())
      out += wrapped(fmt::format("{}: {}", label(i), note.substr(0, note.size() - 1)), screen.width, 3) + '\n';

  if (is_asked(explain, "fields")) out += '\n' + fields_table(runs);
  if (is_asked(explain, "ops")) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < runs.size(); ++i) names.push_back(label(i));
    out += '\n' + waterfall_text(time, names, kExplanationLines);
  }
  if (is_asked(explain, "memory")) {
    Table memory(titles("GiB on the fullest stage", runs, true));
    for (const Row& row : gib_by_cause(runs)) memory.add(cells(row.name, row.values));
    out += '\n' + memory.text();
  }
  if (is_asked(explain, "changes"))
    for (std::size_t i = 1; i < runs.size(); ++i) {
      const Distance d = distance(runs.front(), runs[i], errors, runs.size() <= kMostTakenApart);
      out += '\n' + distance_text(screen, d, label(i)) + alone_table(screen, runs.front(), runs[i], d, label(i));
    }
  return out;
}

}  // namespace foldwise::planner
