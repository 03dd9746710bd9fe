#include "benchmarks/accuracy/ordering.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>

#include "benchmarks/accuracy/accuracy.h"
#include "planner/report/explanation.h"
#include "planner/report/screen.h"

namespace foldwise::accuracy {

using namespace planner;

using nlohmann::json;

namespace {

using Question = std::vector<const ValidatedRow*>;

double seconds_of(const ValidatedRow* row) { return row->step->seconds; }
double predicted_of(const ValidatedRow* row) { return row->prediction.step_time.to<double>(); }

void count(Ordered& pairs, bool right) {
  ++pairs.pairs;
  pairs.right += right ? 1 : 0;
}

void add_pairs(const Question& rows, Ordering& ordering) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t k = 0; k < i; ++k) {
      if (rows[i]->run.options == rows[k]->run.options) continue;
      const double predicted = std::log(predicted_of(rows[i]) / predicted_of(rows[k])),
                   measured = std::log(seconds_of(rows[i]) / seconds_of(rows[k]));
      const bool right = predicted * measured > 0.0;
      if (std::abs(measured) > std::log1p(kApart)) count(ordering.measured_apart, right);
      count(std::abs(predicted) > std::log1p(kIndistinguishable) ? ordering.predicted_apart : ordering.predicted_near,
            right);
    }
}

void add_choice(const Question& rows, Ordering& ordering) {
  const bool is_one =
      std::ranges::all_of(rows, [&](const ValidatedRow* row) { return row->run.options == rows.front()->run.options; });
  if (is_one) return;
  const ValidatedRow* chosen = *std::ranges::min_element(rows, {}, predicted_of);
  const double loss = 100.0 * (seconds_of(chosen) / seconds_of(*std::ranges::min_element(rows, {}, seconds_of)) - 1.0);
  ordering.mean_loss_pct = (ordering.mean_loss_pct * static_cast<double>(ordering.questions) + loss) /
                           static_cast<double>(ordering.questions + 1);
  ++ordering.questions;
  if (loss <= ordering.worst_loss_pct) return;
  ordering.worst_loss_pct = loss;
  ordering.worst = run_name(chosen->run);
}

Ordering ordering_of(const std::string& group, const std::map<std::string, Question>& questions) {
  Ordering result;
  result.group = group;
  for (const auto& [text, rows] : questions) {
    add_pairs(rows, result);
    add_choice(rows, result);
  }
  return result;
}

std::string right_text(const Ordered& pairs) { return fmt::format("{} of {}", pairs.right, pairs.pairs); }

}  // namespace

std::string question_text(const Run& run) {
  static constexpr const char* kSame[] = {
      "date_or_release", "host",         "model",         "model_overrides", "task",     "system",    "num_gpus",
      "precision",       "global_batch", "fp8_attention", "seq_len",         "software", "optimizer", "token_drop",
      "capacity_factor", "mtp",          "expert_load"};
  json key = {run.json.value("/source/title"_json_pointer, "")};
  for (const char* name : kSame) key.push_back(run.json.value(name, json()));
  for (json& value : key)  // A consequence of EP overlap and FSDP.
    if (value.is_object()) value.erase("cuda_device_max_connections");
  return key.dump();
}

std::vector<Ordering> orderings(const Validation& validation, const Roles& roles) {
  std::map<std::string, Question> all, untouched;
  for (const ValidatedRow& row : validation.rows) {
    // If the source states no batch, its throughput was converted with a batch that we chose.
    if (!row.step || !row.run.json.contains("global_batch") || reservation(row.run) == Reservation::kRankAlone)
      continue;
    all[question_text(row.run)].push_back(&row);
    if (roles.of(row.run.id, Quantity::kStepTime).empty()) untouched[question_text(row.run)].push_back(&row);
  }
  return {ordering_of("all rows", all), ordering_of("untouched", untouched)};
}

std::string orderings_text(const std::vector<Ordering>& orderings) {
  Table table({"<runs of one question", "5 % apart", "predicted 3 %", "nearer", "questions", "loss %", "worst",
               "<chosen there"});
  for (const Ordering& o : orderings)
    if (o.questions > 0)
      table.add({o.group, right_text(o.measured_apart), right_text(o.predicted_apart), right_text(o.predicted_near),
                 std::to_string(o.questions), fmt::format("{:.1f}", o.mean_loss_pct),
                 fmt::format("{:.1f}", o.worst_loss_pct), shortened(o.worst, 40)});
  return "Measured runs of one question that differ in what a plan chooses: pairs predicted in their order, and what\n"
         "the one predicted to be the fastest takes longer than the fastest\n" +
         table.text();
}

json orderings_json(const std::vector<Ordering>& orderings) {
  json result = json::array();
  for (const Ordering& o : orderings)
    result.push_back({{"group", o.group},
                      {"measured_apart", {{"pairs", o.measured_apart.pairs}, {"right", o.measured_apart.right}}},
                      {"predicted_apart", {{"pairs", o.predicted_apart.pairs}, {"right", o.predicted_apart.right}}},
                      {"predicted_near", {{"pairs", o.predicted_near.pairs}, {"right", o.predicted_near.right}}},
                      {"questions", o.questions},
                      {"mean_loss_pct", o.mean_loss_pct},
                      {"worst_loss_pct", o.worst_loss_pct},
                      {"worst", o.worst}});
  return result;
}

}  // namespace foldwise::accuracy
