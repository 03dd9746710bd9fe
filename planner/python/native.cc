#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "hwprofiles/load/systems.h"
#include "planner/answer/catalog.h"
#include "planner/answer/diagnose_answer.h"
#include "planner/answer/plan_answer.h"
#include "planner/answer/question.h"
#include "planner/answer/run_answer.h"
#include "planner/answer/version.h"
#include "planner/foldwise.h"
#include "planner/launch/export.h"
#include "planner/launch/import.h"
#include "planner/models/models.h"
#include "planner/python/values.h"
#include "planner/report/comparison.h"
#include "planner/report/fields_report.h"
#include "planner/report/record_validation.h"
#include "planner/report/trace.h"
#include "planner/report/validation.h"
#include "planner/run/names.h"
#include "planner/run/near_names.h"
#include "planner/sweep/chart.h"
#include "planner/sweep/row_file.h"
#include "planner/sweep/sweep.h"

// Extension module of the Python package: the library's functions on JSON text. config::ConfigError becomes
// foldwise.ConfigError. Calls that take longer than a prediction release the interpreter lock.
namespace foldwise {
namespace {

namespace nb = nanobind;
using config::Diagnostics;
using nlohmann::json;

/// Raises foldwise.ConfigError([(file, line, field, message)]).
void raise(const ConfigError& error) {
  nb::list mistakes;
  for (const config::Diagnostic& mistake : error.diagnostics())
    mistakes.append(nb::make_tuple(mistake.where.file, mistake.where.line, mistake.where.field, mistake.message));
  const nb::object type = nb::module_::import_("foldwise.errors").attr("ConfigError");
  PyErr_SetObject(type.ptr(), type(mistakes).ptr());
}

std::string text_of(json answer) { return planner::with_schema(std::move(answer)).dump(); }

/// Text of a run: from a file, or from a dict, which has no line numbers.
struct RunText {
  std::string text, name;
  bool is_file = false;

  [[nodiscard]] Run run() const {
    if (is_file) return parse_run(text, name);
    try {
      Run run = parse_run(text, name);
      run.line = 0;
      return run;
    } catch (const ConfigError& error) {
      std::vector<config::Diagnostic> list = error.diagnostics();
      for (config::Diagnostic& mistake : list)
        if (mistake.where.file == name) mistake.where.line = 0;
      throw ConfigError(std::move(list));
    }
  }
};

planner::CostArguments cost_of(const Arguments& arguments) {
  planner::CostArguments cost;
  arguments.take("tokens", cost.tokens);
  arguments.take("price", cost.price);
  arguments.take("mtbf", cost.mtbf_hours);
  arguments.take("storage", cost.storage_gb_s);
  arguments.take("restart", cost.restart_s);
  return cost;
}

std::optional<planner::LongRun> long_run_of(const nb::dict& values, Diagnostics& diagnostics) {
  return planner::long_run(cost_of(Arguments(values, diagnostics)), diagnostics);
}

void check_release(const std::string& release, Diagnostics& diagnostics) {
  if (release.empty()) return;
  if (std::string wrong = planner::mistake_in_release(release); !wrong.empty())
    diagnostics.error({config::kArguments, 0, "release"}, std::move(wrong));
}

template <typename Name>
void check_name(const char* key, const std::string& value, const std::vector<Name>& names, Diagnostics& diagnostics) {
  std::vector<std::string> known;
  for (const Name& name : names) {
    if constexpr (std::is_same_v<Name, std::string>)
      known.push_back(name);
    else
      known.push_back(name.first);
  }
  if (std::find(known.begin(), known.end(), value) == known.end())
    diagnostics.error({config::kArguments, 0, key},
                      fmt::format("expected {}, found \"{}\"", fmt::join(known, ", "), value));
}

planner::PlanAsked::Values named_values(const planner::PlanAsked::Values& values, Diagnostics& diagnostics) {
  planner::PlanAsked::Values result;
  for (const auto& [key, texts] : values) result[planner::set_key(key, diagnostics)] = texts;
  return result;
}

planner::PlanAsked plan_asked(const nb::dict& values, Diagnostics& diagnostics) {
  const Arguments arguments(values, diagnostics);
  planner::PlanAsked asked;
  arguments.take("model", asked.model);
  arguments.take("system", asked.system);
  arguments.take("release", asked.release);
  check_release(asked.release, diagnostics);
  arguments.take("evidence", asked.evidence);
  check_name("evidence", asked.evidence, planner::evidence_names(), diagnostics);
  arguments.take("gpus", asked.gpus);
  arguments.take("seq_len", asked.seq_len);
  arguments.take("global_batch", asked.global_batch);
  arguments.take("precision", asked.precision);
  arguments.take("headroom_pct", asked.headroom_pct);
  arguments.take("no_folding", asked.no_folding);
  arguments.take("schedule", asked.schedule);
  arguments.take("top", asked.top);
  arguments.take("threads", asked.threads);
  arguments.take("effort", asked.effort_seconds);
  arguments.take("set", asked.set);
  arguments.take("why_not", asked.why_not);
  arguments.take("objective", asked.objective);
  arguments.take("max_step_time", asked.max_step_time);
  arguments.take("slack_pct", asked.slack_pct);
  arguments.take("suggest", asked.decision.suggest);
  arguments.take("suggest_gpus", asked.decision.suggest_gpus);
  asked.cost = cost_of(arguments);
  asked.set = named_values(asked.set, diagnostics);
  check_name("objective", asked.objective, std::vector<std::string>{"time", "memory", "gpus"}, diagnostics);
  check_name("schedule", asked.schedule, planner::schedule_names(), diagnostics);
  if (!asked.precision.empty() && asked.precision != "all")
    check_name("precision", asked.precision, planner::precision_names(), diagnostics);
  return asked;
}

/// Runs `work` on another thread. This one keeps the interpreter, handles Ctrl-C and calls `progress` with (share of
/// the effort, best seconds, least seconds). An exception from either ends the work and is raised.
planner::PlanAnswer watched(const std::function<planner::PlanAnswer(const planner::Report&)>& work,
                            const nb::object& progress) {
  std::mutex mutex;
  std::optional<planner::Progress> latest;
  std::atomic<bool> goes_on = true;
  std::exception_ptr raised;
  std::future<planner::PlanAnswer> done = std::async(std::launch::async, [&] {
    return work([&](const planner::Progress& now) {
      const std::lock_guard lock(mutex);
      latest = now;
      return goes_on.load();
    });
  });
  const auto is_done = [&] {
    const nb::gil_scoped_release others;
    return done.wait_for(std::chrono::milliseconds(goes_on ? 50 : 1000)) == std::future_status::ready;
  };
  const auto report = [&] {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    std::optional<planner::Progress> now;
    {
      const std::lock_guard lock(mutex);
      now = std::exchange(latest, {});
    }
    if (!now || progress.is_none()) return;
    const nb::object answer = progress(now->share, now->best.to<double>(), now->least.to<double>());
    if (answer.ptr() == Py_False) goes_on = false;
  };
  while (!is_done()) {
    if (!goes_on) continue;
    try {
      report();
    } catch (const nb::python_error&) {
      raised = std::current_exception();
      goes_on = false;
    }
  }
  if (raised) {
    done.wait();
    std::rethrow_exception(raised);
  }
  return done.get();
}

std::string plan_text(const nb::dict& values, const std::optional<RunText>& from, const std::vector<RunText>& measured,
                      const nb::object& progress) {
  Diagnostics diagnostics;
  planner::PlanAsked asked = plan_asked(values, diagnostics);
  if (from) asked.from = from->run();
  for (const RunText& text : measured) asked.decision.measured.push_back(text.run());
  const planner::PlanAnswer answer = watched(
      [&](const planner::Report& report) { return planner::plan_answer(asked, diagnostics, report); }, progress);
  const nb::gil_scoped_release others;
  return text_of(planner::plan_answer_json(answer));
}

/// `kind`: type of the dicts in the result.
nb::object predict_run(const RunText& text, const nb::dict& values, bool explain, nb::handle kind) {
  Diagnostics diagnostics;
  const std::optional<planner::LongRun> question = long_run_of(values, diagnostics);
  diagnostics.throw_if_any();
  const json answer = [&] {
    const nb::gil_scoped_release others;
    const Run run = text.run();
    const Step step = compose(run);
    if (explain) return planner::with_schema(planner::run_answer_json(run, planner::run_answer(run, step, question)));
    const Prediction prediction = predict(run, step);
    json said = planner::prediction_json(run, prediction, {});
    if (question)
      said["training"] = planner::training_cost_json(*question, planner::training_cost(*question, run, prediction));
    return planner::with_schema(std::move(said));
  }();
  return to_python(answer, kind);
}

std::string compare(const std::vector<RunText>& texts) {
  const nb::gil_scoped_release others;
  std::vector<std::function<Run()>> readers;
  readers.reserve(texts.size());
  for (const RunText& text : texts) readers.emplace_back([&text] { return text.run(); });
  return text_of(planner::comparison_json(planner::predict_all(readers), planner::built_in_errors()));
}

std::string diagnose(const RunText& text, const std::vector<std::string>& traces, const std::string& log) {
  const nb::gil_scoped_release others;
  const Run run = log.empty() ? text.run() : planner::with_logged_time(text.run(), log);
  return text_of(planner::diagnosis_json(run, planner::diagnose_answer(run, planner::read_traces(traces))));
}

std::string validate(const std::vector<std::string>& files) {
  const nb::gil_scoped_release others;
  return text_of(planner::validation_json(planner::validate_files(files), planner::built_in_errors()));
}

std::string check_text(const RunText& text) { return planner::rejections_json(foldwise::check(text.run())).dump(); }

std::string export_run(const RunText& text, const std::string& to, const std::string& release) {
  Diagnostics diagnostics;
  check_name("to", to, planner::launch_targets(), diagnostics);
  check_release(release, diagnostics);
  diagnostics.throw_if_any();
  planner::LaunchTarget target{};
  for (const auto& [name, value] : planner::launch_targets())
    if (name == to) target = value;
  Run run = text.run();
  if (!release.empty()) run = planner::in_release(run, *planner::find_release(release));
  return text_of(planner::launch_json(planner::launch_of(run, target), target));
}

std::string import_launch(const std::string& text, const std::string& file, const nb::dict& values) {
  Diagnostics diagnostics;
  const Arguments arguments(values, diagnostics);
  planner::ImportRequest request;
  arguments.take("system", request.system);
  arguments.take("model", request.model);
  arguments.take("gpus", request.num_gpus);
  std::string release;
  arguments.take("release", release);
  arguments.take("env", request.variables);
  request.folder = std::filesystem::absolute(file).parent_path().string();
  check_release(release, diagnostics);
  request.release = planner::find_release(release);
  diagnostics.throw_if_any();
  return text_of(planner::imported_json(planner::import_launch(text, file, request)));
}

costmodel::StepTimeline timeline_of(const RunText& text) {
  const Run run = text.run();
  const Step step = compose(run);
  return costmodel::step_timeline(step, predict(run, step));
}

std::string schedule_svg(const RunText& text, const std::string& title) {
  const nb::gil_scoped_release others;
  return planner::schedule_svg(timeline_of(text), title);
}

std::string trace(const RunText& text, const std::string& title) {
  const nb::gil_scoped_release others;
  return planner::trace_json(timeline_of(text), title).dump();
}

/// A sweep over the run file if given, else over plans.
planner::Sweep sweep_of(const std::optional<RunText>& run, const nb::dict& values, std::vector<planner::Axis> axes) {
  Diagnostics diagnostics;
  for (planner::Axis& axis : axes) axis.key = planner::set_key(axis.key, diagnostics);
  const std::optional<planner::LongRun> question = long_run_of(values, diagnostics);
  planner::SweepQuestion asked;
  if (run) {
    asked = planner::RunQuestion{run->name, config::Document::parse(run->text, run->name).root(), run->text};
  } else {
    planner::PlanAsked plan = plan_asked(values, diagnostics);
    PlanRequest request = planner::request_of(plan, diagnostics);
    request.set.merge(plan.set);
    asked = planner::PlanQuestion{std::move(request), planner::effort_of(plan)};
  }
  diagnostics.throw_if_any();
  return {std::move(asked), std::move(axes), question, planner::version()};
}

/// Uses one core: other cores compute other rows.
std::string sweep_row(const planner::Sweep& sweep, std::size_t point) {
  const nb::gil_scoped_release others;
  tbb::task_arena one(1);
  return one.execute([&] { return sweep.row(point).dump(); });
}

void bind_sweep(nb::module_& m) {
  using planner::RowFile;
  using planner::RowFormat;
  using planner::Sweep;
  const auto format_of = [](const std::string& path) {
    return path.ends_with(".csv") ? RowFormat::kCsv : RowFormat::kJsonLines;
  };
  nb::class_<Sweep>(m, "Sweep")
      .def("__len__", &Sweep::size)
      .def("columns", &Sweep::columns)
      .def("row", &sweep_row, nb::arg("point"))
      .def(
          "known_cells", [](const Sweep& sweep, std::size_t point) { return sweep.known_cells(point).dump(); },
          nb::arg("point"))
      .def(
          "svg",
          [](const Sweep& sweep, const std::vector<std::string>& rows, const std::string& y) {
            std::vector<planner::SweepRow> parsed;
            parsed.reserve(rows.size());
            for (const std::string& row : rows) parsed.push_back(planner::SweepRow::parse(row));
            return planner::sweep_svg(sweep, parsed, y);
          },
          nb::arg("rows"), nb::arg("y"));
  m.def(
      "sweep",
      [](const std::optional<RunText>& run, const nb::dict& values,
         const std::vector<std::pair<std::string, std::vector<std::string>>>& axes) {
        std::vector<planner::Axis> list;
        list.reserve(axes.size());
        for (const auto& [key, texts] : axes) list.push_back({key, texts});
        return sweep_of(run, values, std::move(list));
      },
      nb::arg("run").none(), nb::arg("arguments"), nb::arg("axes"));
  nb::class_<RowFile>(m, "RowFile")
      .def(
          "__init__",
          [format_of](RowFile* self, const std::string& path, const Sweep& sweep) {
            new (self) RowFile(path, format_of(path), sweep);
          },
          nb::arg("path"), nb::arg("sweep"))
      .def("found",
           [format_of](const RowFile& file, const std::string& path, const Sweep& sweep) {
             std::vector<std::string> rows;
             for (const std::string& line : file.found())
               rows.push_back(planner::read_row(format_of(path), sweep.columns(), line).dump());
             return rows;
           })
      .def("append", [format_of](RowFile& file, const std::string& path, const std::string& row) {
        file.append(planner::row_text(format_of(path), planner::SweepRow::parse(row)));
      });
}

}  // namespace
}  // namespace foldwise

NB_MODULE(_native, m) {
  using namespace foldwise;
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void*) {
        try {
          std::rethrow_exception(thrown);
        } catch (const ConfigError& error) {
          raise(error);
        } catch (const std::range_error& error) {  // Overflow of times (costmodel/pipeline/limits.h).
          raise(ConfigError({{{"run", 0, ""}, error.what()}}));
        }
      },
      nullptr);
  nb::class_<RunText>(m, "RunText")
      .def(
          "__init__",
          [](RunText* self, std::string text, std::string name, bool is_file) {
            new (self) RunText{std::move(text), std::move(name), is_file};
          },
          nb::arg("text"), nb::arg("name"), nb::arg("is_file"));
  m.def("version", &planner::version);
  m.def("plan", &plan_text, nb::arg("arguments"), nb::arg("from_run").none(), nb::arg("measured"),
        nb::arg("progress").none());
  m.def("predict", &predict_run, nb::arg("run"), nb::arg("arguments"), nb::arg("explain"), nb::arg("kind"));
  m.def("compare", &compare, nb::arg("runs"));
  m.def("diagnose", &diagnose, nb::arg("run"), nb::arg("traces"), nb::arg("log"));
  m.def("validate", &validate, nb::arg("files"));
  m.def("check", &check_text, nb::arg("run"));
  m.def("export_run", &export_run, nb::arg("run"), nb::arg("to"), nb::arg("release"));
  m.def("import_launch", &import_launch, nb::arg("text"), nb::arg("file"), nb::arg("arguments"));
  m.def("schedule_svg", &schedule_svg, nb::arg("run"), nb::arg("title"));
  m.def("trace", &trace, nb::arg("run"), nb::arg("title"));
  m.def("fields", [] { return text_of(planner::fields_json()); });
  m.def("models", &planner::built_in_models);
  m.def("systems", &hwprofiles::built_in_systems);
  m.def(
      "model", [](const std::string& name) { return text_of(planner::model_json(planner::model_meant(name))); },
      nb::arg("name"));
  m.def(
      "system",
      [](const std::string& name) {
        return text_of(planner::system_json(hwprofiles::load_profile(planner::system_meant(name))));
      },
      nb::arg("name"));
  bind_sweep(m);
}
