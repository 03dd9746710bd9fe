#include "planner/report/insight_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "planner/report/explanation.h"
#include "planner/report/prediction_report.h"
#include "planner/report/screen.h"
#include "planner/report/waterfall.h"

namespace foldwise::planner {

using costmodel::Prediction;
using nlohmann::json;

namespace {

constexpr std::size_t kWaterfallLines = 8;

double seconds_of(Seconds time) { return time.to<double>(); }

double percent(Seconds part, Seconds whole) { return 100.0 * (part / whole).to<double>(); }

std::string resource_text(Resource resource) {
  switch (resource) {
    case Resource::kFlops:
      return "FLOPs, same power limit";
    case Resource::kPower:
      return "power limit";
    case Resource::kHbmBandwidth:
      return "HBM bandwidth";
    case Resource::kHbmCapacity:
      return "HBM capacity, and the best change";
    case Resource::kNvlink:
      return "NVLink bandwidth";
    case Resource::kNic:
      return "NIC bandwidth";
    case Resource::kHost:
      break;
  }
  return "host speed";
}

json change_json(const costmodel::TrainingOptions& options, const Prediction& prediction,
                 const std::optional<Change>& change) {
  if (!change) return nullptr;
  return {{"change", change->text()},
          {"set", change->set(options)},
          {"step_time_s", seconds_of(change->step_time)},
          {"gain_s", seconds_of(prediction.step_time - change->step_time)},
          {"peak_device_memory_gib", in_gib(change->peak_memory)}};
}

std::string change_line(const Screen& screen, const char* before, const Prediction& prediction, const Change& change) {
  return "  " +
         wrapped(fmt::format("{}{}: {} s ({:+.1f} %), {:.1f} GiB", before, change.text(),
                             seconds_text(seconds_of(change.step_time)),
                             -percent(prediction.step_time - change.step_time, prediction.step_time),
                             in_gib(change.peak_memory)),
                 screen.width - 2, 4) +
         '\n';
}

std::string asked_text(const WhyNot& why) {
  std::vector<std::string> list;
  for (const auto& [key, values] : why.asked) {
    std::vector<std::string> texts;
    for (const json& value : values) texts.push_back(value_text(value));
    list.push_back(fmt::format("{}={}", key, fmt::join(texts, " or ")));
  }
  return fmt::format("{}", fmt::join(list, ", "));
}

std::string against_first(const Screen& screen, const Plan& first, const WhyNot& why) {
  const Plan& plan = *why.plan;
  const Seconds lost = plan.prediction.step_time - first.prediction.step_time;
  std::string out = fmt::format("The fastest {} with it: {}, micro-batch {}: {} s, {:.1f} GiB. ",
                                why.proven ? "that there is" : "found", layout_text(plan.options.layout()),
                                plan.options.layer.micro_batch, seconds_text(seconds_of(plan.prediction.step_time)),
                                in_gib(plan.prediction.peak_memory));
  if (plan.options == first.options) return wrapped(out + "That is plan 1.", screen.width, 2) + '\n';
  out += fmt::format(
      "Against plan 1 {} s, {:+.2f} %",
      fmt::format("{:+.6f}", to_microsecond(plan.prediction.step_time) - to_microsecond(first.prediction.step_time)),
      percent(lost, first.prediction.step_time));
  if (lost < Seconds{})
    out += ": the search for that ended before it saw this one";
  else if (lost <= kIndistinguishable * first.prediction.step_time)
    out += fmt::format(", which is within the {:g} % that the model cannot tell apart", 100.0 * kIndistinguishable);
  return wrapped(out + ".", screen.width, 2) + "\n\n" +
         waterfall_text(waterfall({&first.prediction, &plan.prediction}), {"first", "asked"}, kWaterfallLines);
}

}  // namespace

json insight_json(const costmodel::TrainingOptions& options, const Prediction& prediction, const Insight& insight) {
  const Walls& w = insight.walls;
  json sensitivities = json::array();
  for (const Sensitivity& s : insight.sensitivities)
    sensitivities.push_back({{"resource", to_string(s.resource)},
                             {"factor", Insight::kMore},
                             {"step_time_s", seconds_of(s.step_time)},
                             {"gain_s", seconds_of(s.gain)}});
  return {{"walls",
           {{"compute", w.compute},
            {"memory", w.memory},
            {"communication", w.communication},
            {"host", w.host},
            {"bubble", w.bubble}}},
          {"memory_used", w.memory_used},
          {"binding", insight.binding ? json(to_string(*insight.binding)) : json(nullptr)},
          {"sensitivities", std::move(sensitivities)},
          {"best_change", change_json(options, prediction, insight.best)},
          {"best_change_with_more_memory", change_json(options, prediction, insight.best_with_more_memory)},
          {"changes_predicted", insight.neighbours.predicted},
          {"changes_refused", insight.neighbours.refused}};
}

std::string insight_text(const Prediction& prediction, const Insight& insight, const Screen& screen) {
  const Walls& w = insight.walls;
  std::string out = "What the step of the busiest stage is spent on, and what would shorten it\n";
  out += "  " +
         wrapped(fmt::format("compute {:.1f} %, memory {:.1f} % (recomputation, offloading), communication {:.1f} %, "
                             "host {:.1f} %, bubble {:.1f} %; the fullest GPU uses {:.1f} % of its memory",
                             100.0 * w.compute, 100.0 * w.memory, 100.0 * w.communication, 100.0 * w.host,
                             100.0 * w.bubble, 100.0 * w.memory_used),
                 screen.width - 2, 2) +
         '\n';
  Table table({"<with 10 % more", "step s", "gain s", "gain"});
  for (const Sensitivity& s : insight.sensitivities)
    table.add({resource_text(s.resource), seconds_text(seconds_of(s.step_time)),
               fmt::format("{:.4f}", seconds_of(s.gain)),
               fmt::format("{:.2f} %", percent(s.gain, prediction.step_time))});
  out += table.text();
  out += fmt::format("  Limit: {}\n", insight.binding ? resource_text(*insight.binding) : "none of these");
  if (insight.best)
    out += change_line(screen, "Best single change: ", prediction, *insight.best);
  else
    out += "  No single change that fits makes it faster\n";
  if (insight.best_with_more_memory &&
      (!insight.best || insight.best_with_more_memory->step_time < insight.best->step_time))
    out += change_line(screen, "With 10 % more HBM: ", prediction, *insight.best_with_more_memory);
  out += fmt::format("  {} changes predicted, {} refused by rules\n", insight.neighbours.predicted,
                     insight.neighbours.refused);
  return out;
}

json why_not_json(const PlanProblem& problem, const PlanResult& result, const WhyNot& why) {
  json entry = {{"set", why.asked}, {"refused", why.refused}, {"proven", why.proven}, {"shortage", nullptr},
                {"plan", nullptr},  {"slower_s", nullptr},    {"waterfall", nullptr}};
  if (why.shortage) entry["shortage"] = shortage_json(problem, *why.shortage);
  if (!why.plan) return entry;
  const Prediction& p = why.plan->prediction;
  entry["plan"] = {{"run", write_run(run_of(problem, *why.plan))},
                   {"step_time_s", seconds_of(p.step_time)},
                   {"peak_device_memory_gib", in_gib(p.peak_memory)}};
  if (result.plans.empty()) return entry;
  const Prediction& first = result.plans.front().prediction;
  entry["slower_s"] = seconds_of(p.step_time - first.step_time);
  entry["waterfall"] = waterfall_json(waterfall({&first, &p}));
  return entry;
}

std::string why_not_text(const PlanProblem& problem, const PlanResult& result, const WhyNot& why,
                         const Screen& screen) {
  std::string out = fmt::format("Why not {}?\n", asked_text(why));
  for (const std::string& reason : why.refused) out += "  " + wrapped(reason, screen.width - 2, 4) + '\n';
  if (why.shortage)
    out += why.shortage->nearest.empty() ? "Nothing was found with it, with any memory: rules refuse it.\n"
                                         : near_miss_text(problem, why.shortage->nearest.front(), screen);
  if (why.plan && !result.plans.empty())
    out += against_first(screen, result.plans.front(), why);
  else if (why.plan)
    out += fmt::format("  It fits: {} s\n", seconds_text(seconds_of(why.plan->prediction.step_time)));
  return out;
}

}  // namespace foldwise::planner
