#include "planner/report/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <utility>

#include "costmodel/step/reserved_memory.h"
#include "planner/report/prediction_report.h"
#include "planner/report/screen.h"
#include "planner/rules/rules.h"
#include "planner/run/names.h"

namespace foldwise::planner {

using nlohmann::json;

namespace {

struct Errors {
  std::vector<double> step_time, memory;
};

Errors errors_of(const std::vector<ValidatedRow>& rows) {
  Errors errors;
  for (const ValidatedRow& row : rows) {
    if (row.step_error_pct) errors.step_time.push_back(*row.step_error_pct);
    if (row.memory_error_pct) errors.memory.push_back(*row.memory_error_pct);
  }
  return errors;
}

using KeyOf = std::function<std::string(const Run&)>;
const std::vector<std::pair<std::string, KeyOf>>& groupings() {
  static const std::vector<std::pair<std::string, KeyOf>> list = {
      {"kind",
       [](const Run& run) { return run.hardware.traits.generation + (run.model.has_moe() ? " moe" : " dense"); }},
      {"model", [](const Run& run) { return run.model_name; }},
      {"system", [](const Run& run) { return run.system_name; }},
      {"precision", [](const Run& run) { return name_of(run.options.layer.precision); }},
      {"release",
       [](const Run& run) { return run.date_or_release.empty() ? std::string("none") : run.date_or_release; }},
  };
  return list;
}

std::map<std::string, Errors> grouped(const Validation& validation, const KeyOf& key) {
  std::map<std::string, Errors> groups;
  for (const ValidatedRow& row : validation.rows) {
    Errors& errors = groups[key(row.run)];
    if (row.step_error_pct) errors.step_time.push_back(*row.step_error_pct);
    if (row.memory_error_pct) errors.memory.push_back(*row.memory_error_pct);
  }
  return groups;
}

json statistics_json(const std::vector<double>& errors) {
  const ErrorStatistics s = error_statistics(errors);
  if (s.count == 0)
    return {{"count", 0}, {"mape", nullptr}, {"median_ape", nullptr}, {"p90_ape", nullptr}, {"bias_pct", nullptr}};
  return {{"count", s.count},
          {"mape", s.mape},
          {"median_ape", s.median_ape},
          {"p90_ape", s.p90_ape},
          {"bias_pct", s.bias_pct}};
}

json errors_json(const Errors& errors) {
  return {{"step_time", statistics_json(errors.step_time)}, {"memory", statistics_json(errors.memory)}};
}

template <typename T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

json row_json(const ValidatedRow& row, const ErrorModel& errors) {
  const auto interval = step_time_interval(errors, row.run, row.prediction.step_time);
  json inferred = json::object();
  for (const auto& [key, reason] : row.run.inferred) inferred[key] = reason;
  return {{"id", row.run.id},
          {"file", row.run.file},
          {"defaults", row.run.defaults},
          {"inferred", inferred},
          {"measured",
           {{"step_time_s", row.step ? json(row.step->seconds) : json(nullptr)},
            {"from", row.step ? json(row.step->from) : json(nullptr)},
            {"peak_memory_gib", or_null(row.run.measured.peak_memory_gib)}}},
          {"predicted", prediction_json(row.run, row.prediction, interval)},
          {"error_pct", or_null(row.step_error_pct)},
          {"memory_error_pct", or_null(row.memory_error_pct)},
          {"reserved_error_pct", or_null(row.reserved_error_pct)},
          {"memory_per_rank_error_pct", row.rank_memory_errors_pct},
          {"reserved_per_rank_error_pct", row.rank_reserved_errors_pct},
          {"allocated_after_setup_error_pct", or_null(row.after_setup_error_pct)},
          {"allocated_between_steps_error_pct", or_null(row.between_steps_error_pct)}};
}

/// Keys of rows that were inferred, not stated by the source.
struct Inferences {
  std::int64_t rows = 0;
  std::vector<std::pair<std::string, std::int64_t>> keys;  ///< Most frequent first.
};
Inferences inferences(const Validation& validation) {
  Inferences result;
  std::map<std::string, std::int64_t> counts;
  for (const std::vector<ValidatedRow>* rows : {&validation.rows, &validation.out_of_memory})
    for (const ValidatedRow& row : *rows) {
      if (!row.run.inferred.empty()) ++result.rows;
      for (const auto& inferred : row.run.inferred) ++counts[inferred.first];
    }
  result.keys.assign(counts.begin(), counts.end());
  std::stable_sort(result.keys.begin(), result.keys.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return result;
}

}  // namespace

std::string inferences_text(const Screen& screen, const Validation& validation) {
  const Inferences found = inferences(validation);
  if (found.rows == 0) return "";
  std::string keys;
  for (const auto& [key, count] : found.keys) keys += fmt::format("{}{} {}", keys.empty() ? "" : ", ", key, count);
  return "  " +
         wrapped(fmt::format("{} of {} rows state keys that were inferred, not published: {}", found.rows,
                             validation.rows.size() + validation.out_of_memory.size(), keys),
                 screen.width - 2, 6) +
         "\n";
}

namespace {

// Errors of one kind over all rows, on one line: largest and root mean square.
std::string spread_text(const std::string& what, const std::vector<double>& errors) {
  if (errors.empty()) return "";
  double worst = 0.0, square = 0.0;
  for (const double error : errors) {
    if (std::abs(error) > std::abs(worst)) worst = error;
    square += error * error / static_cast<double>(errors.size());
  }
  return fmt::format("  {} {}: rms {:.2f} %, worst {:+.2f} %\n", errors.size(), what, std::sqrt(square), worst);
}

// With the allocator settings that the run states.
Bytes reserved_of(const Run& run, const costmodel::StageMemory& memory) {
  const bool expands = alloc_conf_of(run).value_or("").find("expandable_segments:True") != std::string::npos;
  return expands ? memory.reserved.expandable : memory.reserved.segments;
}

}  // namespace

std::string memory_by_rank(const Validation& validation) {
  std::vector<double> peaks, reserved, setup, rest;
  for (const ValidatedRow& row : validation.rows) {
    peaks.insert(peaks.end(), row.rank_memory_errors_pct.begin(), row.rank_memory_errors_pct.end());
    reserved.insert(reserved.end(), row.rank_reserved_errors_pct.begin(), row.rank_reserved_errors_pct.end());
    if (row.after_setup_error_pct) setup.push_back(*row.after_setup_error_pct);
    if (row.between_steps_error_pct) rest.push_back(*row.between_steps_error_pct);
  }
  const std::string lines = spread_text("allocated peaks of single ranks", peaks) +
                            spread_text("reserved peaks of single ranks", reserved) +
                            spread_text("levels after set-up", setup) + spread_text("levels between steps", rest);
  return lines.empty() ? "" : "Memory in detail, where a row has it\n" + lines;
}

namespace {

// Pipeline rank is the slowest dimension in Megatron's rank order: global rank r is on pipeline rank r / (world / pp).
void add_memory_errors(ValidatedRow& row) {
  const Measured& m = row.run.measured;
  const std::vector<costmodel::StageMemory>& memory = row.prediction.memory;
  const auto error = [](const costmodel::StageMemory& stage, Bytes costmodel::StageMemory::*level, double gib) {
    return 100.0 * (in_gib(stage.*level) - gib) / gib;
  };
  if (m.allocated_after_setup_gib)
    row.after_setup_error_pct =
        error(memory.front(), &costmodel::StageMemory::allocated_after_setup, *m.allocated_after_setup_gib);
  if (m.allocated_between_steps_gib)
    row.between_steps_error_pct =
        error(memory.front(), &costmodel::StageMemory::allocated_between_steps, *m.allocated_between_steps_gib);
  const std::vector<double>& peaks = m.peak_memory_gib_per_rank;
  for (std::size_t rank = 0; rank < peaks.size() && peaks.size() % memory.size() == 0; ++rank) {
    const double predicted = in_gib(memory[rank * memory.size() / peaks.size()].allocated());
    row.rank_memory_errors_pct.push_back(100.0 * (predicted - peaks[rank]) / peaks[rank]);
  }
  const std::vector<double>& reserved = m.peak_reserved_gib_per_rank;
  for (std::size_t rank = 0; rank < reserved.size() && reserved.size() % memory.size() == 0; ++rank) {
    const double predicted = in_gib(reserved_of(row.run, memory[rank * memory.size() / reserved.size()]));
    row.rank_reserved_errors_pct.push_back(100.0 * (predicted - reserved[rank]) / reserved[rank]);
  }
}

Bytes peak_reserved(const Run& run, const costmodel::Prediction& prediction) {
  Bytes most{};
  for (const costmodel::StageMemory& memory : prediction.memory) most = std::max(most, reserved_of(run, memory));
  return most;
}

// Allocated memory of the fullest rank, or reserved memory if the source has only that.
struct MemoryFigure {
  double measured = 0.0, predicted = 0.0;
  std::optional<double> error_pct;
};
std::optional<MemoryFigure> memory_figure(const ValidatedRow& row) {
  const Measured& m = row.run.measured;
  if (m.peak_memory_gib)
    return MemoryFigure{*m.peak_memory_gib, in_gib(peak_allocated(row.prediction)), row.memory_error_pct};
  if (m.peak_reserved_gib)
    return MemoryFigure{*m.peak_reserved_gib, in_gib(peak_reserved(row.run, row.prediction)), row.reserved_error_pct};
  return std::nullopt;
}

std::string percent(const std::optional<double>& value) { return value ? fmt::format("{:+.1f}", *value) : "-"; }

std::string rows_table(const Screen& screen, const std::vector<const ValidatedRow*>& rows) {
  Table table({"s", "predicted", "err %", "GiB", "pred.", "err %", "<row"});
  for (const ValidatedRow* row : rows) {
    const auto memory = memory_figure(*row);
    table.add({row->step ? seconds_text(row->step->seconds) : "-", seconds_text(row->prediction.step_time.to<double>()),
               percent(row->step_error_pct), memory ? fmt::format("{:.2f}", memory->measured) : "-",
               fmt::format("{:.2f}", memory ? memory->predicted : in_gib(peak_allocated(row->prediction))),
               percent(memory ? memory->error_pct : std::nullopt), run_name(row->run)});
  }
  return table.text(2, screen.width);
}

constexpr std::size_t kWorst = 10;

/// All rows, or those with the largest errors of step time, then of memory.
std::vector<const ValidatedRow*> rows_to_show(const Validation& validation, bool all) {
  std::vector<const ValidatedRow*> rows;
  for (const ValidatedRow& row : validation.rows) rows.push_back(&row);
  if (all || rows.size() <= kWorst) return rows;
  std::ranges::stable_sort(rows, std::ranges::greater{}, [](const ValidatedRow* row) {
    const auto memory = memory_figure(*row);
    return std::pair(std::abs(row->step_error_pct.value_or(0.0)),
                     std::abs(memory ? memory->error_pct.value_or(0.0) : 0.0));
  });
  rows.resize(kWorst);
  return rows;
}

void add_statistics(Table& table, const std::string& name, const Errors& errors) {
  std::vector<std::string> cells = {shortened(name, 26)};
  for (const std::vector<double>* list : {&errors.step_time, &errors.memory}) {
    const ErrorStatistics s = error_statistics(*list);
    cells.push_back(fmt::format("{}", s.count));
    for (const double value : {s.mape, s.median_ape, s.p90_ape})
      cells.push_back(s.count > 0 ? fmt::format("{:.1f}", value) : "-");
    cells.push_back(s.count > 0 ? fmt::format("{:+.1f}", s.bias_pct) : "-");
  }
  table.add(std::move(cells));
}

Table statistics_table(const std::string& title) {
  return Table(
      {fmt::format("<{}", title), "steps", "MAPE", "med.", "p90", "bias", "memory", "MAPE", "med.", "p90", "bias"});
}

}  // namespace

std::string mistake_in_step(const Run& run, Seconds predicted) {
  constexpr double kFarthest = 10.0;
  const auto step = measured_step(run);
  if (!step) return "expected a measured step time";
  const double factor = step->seconds / predicted.to<double>();
  if (factor > 1.0 / kFarthest && factor < kFarthest) return "";
  return fmt::format(
      "expected a step within {:g} times the predicted {:.4g} s, found {:.4g} s from measured.{}: in seconds?",
      kFarthest, predicted.to<double>(), step->seconds, step->from);
}

std::optional<MeasuredStep> measured_step(const Run& run) {
  const Measured& m = run.measured;
  if (run.out_of_memory) return std::nullopt;
  if (m.step_time_s) return MeasuredStep{*m.step_time_s, "step_time_s"};
  const costmodel::TrainingOptions& o = run.options;
  const auto seq_len = static_cast<double>(o.layer.seq_len);
  const double tokens = static_cast<double>(o.pipeline.global_batch) * seq_len;
  const auto gpus = static_cast<double>(run.num_gpus);
  const auto from_tflops = [&](double tflops_per_gpu) {
    return costmodel::megatron_flops(run.model, tokens, tokens * seq_len, o.layer.tp) / (tflops_per_gpu * 1e12 * gpus);
  };
  // Conventions for FLOPs differ (packed sequences, frozen weights, windows, ungated experts). TFLOPS refine rounded
  // tokens only if both agree to one global sample per second and 0.5 TFLOPS.
  if (m.tokens_per_s_per_gpu) {
    const double from_tokens = tokens / (*m.tokens_per_s_per_gpu * gpus);
    const bool refines = m.tflops_per_gpu && m.tokens_are_rounded && run.task == "pretrain" &&
                         std::abs(from_tflops(*m.tflops_per_gpu) / from_tokens - 1.0) <=
                             seq_len / (*m.tokens_per_s_per_gpu * gpus) + 0.5 / *m.tflops_per_gpu;
    if (!refines) return MeasuredStep{from_tokens, "tokens_per_s_per_gpu"};
  }
  if (m.tflops_per_gpu) return MeasuredStep{from_tflops(*m.tflops_per_gpu), "tflops_per_gpu"};
  if (m.mfu_pct) {
    const double peak = run.hardware.mfu_peak(o.layer.precision).to<double>() / 1e12;
    if (peak > 0.0) return MeasuredStep{from_tflops(*m.mfu_pct / 100.0 * peak), "mfu_pct"};
  }
  return std::nullopt;
}

ErrorStatistics error_statistics(std::vector<double> errors_pct) {
  ErrorStatistics s;
  s.count = static_cast<std::int64_t>(errors_pct.size());
  if (errors_pct.empty()) return s;
  const auto n = static_cast<double>(errors_pct.size());
  for (double& error : errors_pct) {
    s.bias_pct += error / n;
    error = std::abs(error);
    s.mape += error / n;
  }
  std::sort(errors_pct.begin(), errors_pct.end());
  const auto percentile = [&](double share) {
    const double position = share * (n - 1.0);
    const auto below = static_cast<std::size_t>(position);
    const std::size_t above = std::min(below + 1, errors_pct.size() - 1);
    const double weight = position - static_cast<double>(below);
    return errors_pct[below] * (1.0 - weight) + errors_pct[above] * weight;
  };
  s.median_ape = percentile(0.5);
  s.p90_ape = percentile(0.9);
  return s;
}

std::string machine_of(const Run& run) {
  const auto host = run.json.find("host");
  return host != run.json.end() && host->is_string() ? host->get<std::string>() : "";
}

costmodel::Prediction as_measured(const Run& run, costmodel::Prediction prediction) {
  if (!run.measured.pipeline_rank) return prediction;
  const auto rank = static_cast<std::size_t>(*run.measured.pipeline_rank);
  prediction.stages = {prediction.stages.at(rank)};
  prediction.memory = {prediction.memory.at(rank)};
  prediction.step_time -= prediction.stages.front().bubble;
  prediction.critical_stage = 0;
  return prediction;
}

Validation validate(std::vector<RunList> lists) {
  Validation validation;
  for (RunList& list : lists) {
    for (Unreadable& row : list.unreadable) validation.skipped.push_back({std::move(row.id), std::move(row.reason)});
    for (Run& run : list.runs) {
      const std::string name = run_name(run);
      std::string reasons;
      for (const Rejection& rejection : violations(run)) reasons += (reasons.empty() ? "" : "; ") + rejection.text();
      if (!reasons.empty()) {
        validation.skipped.push_back({name, reasons});
        continue;
      }
      ValidatedRow row;
      try {
        const costmodel::Step step = costmodel::compose_step(run.model, run.options, run.hardware);
        row.prediction = costmodel::predict(step);
        const Measured& m = run.measured;
        const bool reserved = !m.peak_reserved_gib_per_rank.empty() || m.peak_reserved_gib;
        if (reserved && !costmodel::add_reserved(step, row.prediction)) {
          validation.skipped.push_back({name, "allocates too often for its reserved memory to be followed"});
          continue;
        }
      } catch (const std::logic_error& error) {
        validation.skipped.push_back({name, fmt::format("a bug of ours: {}", error.what())});
        validation.found_bug = true;
        continue;
      }
      row.step = measured_step(run);
      row.run = std::move(run);
      if (row.run.out_of_memory) {
        validation.out_of_memory.push_back(std::move(row));
        continue;
      }
      const Measured& m = row.run.measured;
      if (!row.step && !m.peak_memory_gib && !m.peak_reserved_gib) {
        validation.skipped.push_back({name, "nothing measured that we predict"});
        continue;
      }
      row.prediction = as_measured(row.run, std::move(row.prediction));
      const auto error = [](double predicted, double measured) { return 100.0 * (predicted - measured) / measured; };
      if (row.step) row.step_error_pct = error(row.prediction.step_time.to<double>(), row.step->seconds);
      if (m.peak_memory_gib) row.memory_error_pct = error(in_gib(peak_allocated(row.prediction)), *m.peak_memory_gib);
      if (m.peak_reserved_gib)
        row.reserved_error_pct = error(in_gib(peak_reserved(row.run, row.prediction)), *m.peak_reserved_gib);
      add_memory_errors(row);
      validation.rows.push_back(std::move(row));
    }
  }
  return validation;
}

Validation validate_files(const std::vector<std::string>& files) {
  std::vector<RunList> lists;
  lists.reserve(files.size());
  for (const std::string& file : files) lists.push_back(load_runs(file));
  return validate(std::move(lists));
}

json validation_json(const Validation& validation, const ErrorModel& errors) {
  json result = {{"rows", json::array()}, {"skipped", json::array()}, {"out_of_memory", json::array()}};
  for (const ValidatedRow& row : validation.rows) result["rows"].push_back(row_json(row, errors));
  for (const SkippedRow& row : validation.skipped)
    result["skipped"].push_back({{"id", row.id}, {"reason", row.reason}});
  for (const ValidatedRow& row : validation.out_of_memory)
    result["out_of_memory"].push_back({{"id", row.run.id},
                                       {"predicted_fits", row.prediction.fits},
                                       {"peak_device_memory_gib", in_gib(row.prediction.peak_memory)},
                                       {"capacity_gib", in_gib(row.run.hardware.hbm_capacity)}});
  const Inferences found = inferences(validation);
  result["inferred"] = {{"rows", found.rows}, {"keys", json::object()}};
  for (const auto& [key, count] : found.keys) result["inferred"]["keys"][key] = count;
  result["summary"] = errors_json(errors_of(validation.rows));
  result["by"] = json::object();
  for (const auto& [name, key] : groupings()) {
    json groups = json::object();
    for (const auto& [group, of_group] : grouped(validation, key)) groups[group] = errors_json(of_group);
    result["by"][name] = std::move(groups);
  }
  return result;
}

std::string skipped_text(const Screen& screen, const Validation& validation) {
  if (validation.skipped.empty()) return "";
  std::string out = "Skipped\n";
  for (const SkippedRow& row : validation.skipped)
    out += "  " + wrapped(fmt::format("{}: {}", row.id, row.reason), screen.width - 2, 6) + '\n';
  return out;
}

std::string statistics_text(const Validation& validation) {
  std::string out = "Step times first, then peak allocated memory; p90 is the 90th percentile of absolute errors\n";
  for (const auto& [name, key] : groupings()) {
    Table table = statistics_table("by " + name);
    for (const auto& [group, errors] : grouped(validation, key)) add_statistics(table, group, errors);
    if (!table.empty()) out += table.text() + '\n';
  }
  out.pop_back();
  return out;
}

std::string validation_text(const Screen& screen, const Validation& validation, bool all_rows) {
  constexpr std::size_t kFew = 5;  // Skipped rows. More are only counted; --explain skipped names them.
  std::string out = fmt::format("{} rows predicted, {} skipped{}", validation.rows.size(), validation.skipped.size(),
                                validation.skipped.size() > kFew ? " (--explain skipped)" : "");
  if (!validation.out_of_memory.empty())
    out += fmt::format(", {} ran out of memory when measured", validation.out_of_memory.size());
  out += '\n';
  if (validation.skipped.size() <= kFew) out += skipped_text(screen, validation);
  for (const ValidatedRow& row : validation.out_of_memory)
    if (!row.prediction.fits || validation.out_of_memory.size() <= kFew || all_rows)
      out += fmt::format("  {}: ran out of memory; predicted that it {} ({:.2f} of {:.2f} GiB)\n", row.run.id,
                         row.prediction.fits ? "FITS" : "does not fit", in_gib(row.prediction.peak_memory),
                         in_gib(row.run.hardware.hbm_capacity));
  if (validation.rows.empty()) return out;
  out += "\nErrors in percent of the measured value: (predicted - measured) / measured\n";
  Table all = statistics_table("all rows");
  add_statistics(all, "", errors_of(validation.rows));
  for (const auto& [kind, errors] : grouped(validation, groupings().front().second)) add_statistics(all, kind, errors);
  out += all.text() + '\n';
  const bool some = !all_rows && validation.rows.size() > kWorst;
  out += some ? fmt::format("The {} rows with the largest errors (--rows: all of them)\n", kWorst)
              : "Measured and predicted seconds per step and GiB of peak allocated memory\n";
  return out + rows_table(screen, rows_to_show(validation, all_rows));
}

}  // namespace foldwise::planner
