#include "planner/report/training_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "costmodel/ops/block_ops.h"
#include "costmodel/step/energy.h"
#include "planner/report/screen.h"

namespace foldwise::planner {

using costmodel::OptimizerKind;
using nlohmann::json;

namespace {

constexpr double kHour = 3600.0, kDay = 24.0 * kHour;  ///< Seconds.
constexpr double kMegawattHour = 1e6 * kHour;          ///< Joules.

/// Least probability that a job gets from a start to its next checkpoint.
constexpr double kLeastProgress = 1e-3;
constexpr const char* kNoProgress =
    "the training does not progress: of 1,000 starts less than one comes to its next checkpoint before a failure";

template <typename Value, typename Scale>
json or_null(const std::optional<Value>& value, Scale scale) {
  return value ? json(scale(*value)) : json(nullptr);
}

std::optional<Goodput> goodput_of(const Failures& failures, const Run& run, Seconds step_time) {
  const auto checkpoint = checkpoint_bytes(run.model, run.options);
  if (!checkpoint) return std::nullopt;
  Goodput result;
  result.checkpoint = *checkpoint;
  result.write = *checkpoint / failures.storage;
  result.mtbf = failures.mtbf_per_gpu / static_cast<double>(run.num_gpus);
  const Seconds best = daly_interval(result.write, result.mtbf);
  result.interval = std::max(1.0, std::round((best / step_time).to<double>())) * step_time;
  result.share = expected_goodput(result.interval, result.write, failures.restart, result.mtbf);
  const Seconds to_checkpoint = failures.restart + result.interval + result.write;
  result.progresses = std::exp(-(to_checkpoint / result.mtbf).to<double>()) >= kLeastProgress;
  return result;
}

}  // namespace

Seconds daly_interval(Seconds write, Seconds mtbf) {
  if (write >= 2.0 * mtbf) return mtbf;
  const auto ratio = (write / (2.0 * mtbf)).to<double>();
  const Seconds young{std::sqrt(2.0 * write.to<double>() * mtbf.to<double>())};
  return young * (1.0 + std::sqrt(ratio) / 3.0 + ratio / 9.0) - write;
}

double expected_goodput(Seconds interval, Seconds write, Seconds restart, Seconds mtbf) {
  const auto m = mtbf.to<double>();
  return interval.to<double>() /
         (m * std::exp(restart.to<double>() / m) * std::expm1((interval + write).to<double>() / m));
}

// bf16 weights, and fp32 optimizer tensors whatever their type in training: get_unscaled_state of Transformer Engine's
// FusedAdam widens them for state_dict(). From memory of sharded_state_dict in distrib_optimizer.py; not checked
// against the source. With Muon, the embedding still has Adam's second moment.
std::optional<Bytes> checkpoint_bytes(const costmodel::ModelSpec& model, const costmodel::TrainingOptions& options) {
  if (options.layer.lora) return std::nullopt;
  constexpr double kWeight = 2.0, kMaster = 4.0, kMoment = 4.0;  // Bytes.
  const costmodel::ParameterTotals totals = costmodel::parameter_totals(model);
  const OptimizerKind optimizer = options.step.optimizer.kind;
  const double moments = optimizer == OptimizerKind::kAdam ? 2.0 : 1.0;
  const double second = optimizer == OptimizerKind::kMuon ? static_cast<double>(totals.embedding_and_output) : 0.0;
  return Bytes{(kWeight + kMaster + moments * kMoment) * static_cast<double>(totals.total_with_mtp) + kMoment * second};
}

TrainingCost training_cost(const LongRun& question, const Run& run, const costmodel::Prediction& prediction) {
  TrainingCost cost;
  const auto step_tokens =
      static_cast<double>(run.options.pipeline.global_batch) * static_cast<double>(run.options.layer.seq_len);
  cost.steps = std::ceil(question.tokens / step_tokens);
  const Seconds work = cost.steps * prediction.step_time;
  const costmodel::Step step = costmodel::compose_step(run.model, run.options, run.hardware);
  const auto gpus = static_cast<double>(run.num_gpus);
  if (const auto power = costmodel::mean_power(step, prediction.step_time))
    cost.energy_j = power->to<double>() * work.to<double>() * gpus;
  if (question.failures) cost.goodput = goodput_of(*question.failures, run, prediction.step_time);
  if (cost.goodput && !cost.goodput->progresses) return cost;
  cost.wall = cost.goodput ? work / cost.goodput->share : work;
  cost.gpu_hours = cost.wall->to<double>() / kHour * gpus;
  if (question.price_per_gpu_hour) cost.money = *question.price_per_gpu_hour * *cost.gpu_hours;
  return cost;
}

json training_cost_json(const LongRun& question, const TrainingCost& cost) {
  const auto same = [](double value) { return value; };
  return {{"tokens", question.tokens},
          {"steps", cost.steps},
          {"days", or_null(cost.wall, [](Seconds wall) { return wall.to<double>() / kDay; })},
          {"gpu_hours", or_null(cost.gpu_hours, same)},
          {"money", or_null(cost.money, same)},
          {"energy_mwh", or_null(cost.energy_j, [](double joules) { return joules / kMegawattHour; })},
          {"goodput", or_null(cost.goodput,
                              [](const Goodput& g) {
                                return json{{"share", g.share},
                                            {"job_mtbf_hours", g.mtbf.to<double>() / kHour},
                                            {"checkpoint_bytes", g.checkpoint.to<double>()},
                                            {"checkpoint_s", g.write.to<double>()},
                                            {"interval_s", g.interval.to<double>()}};
                              })},
          {"note", cost.wall ? json(nullptr) : json(kNoProgress)}};
}

std::string training_cost_text(const LongRun& question, const TrainingCost& cost) {
  std::string out = fmt::format("Training on {:.4g} tokens\n", question.tokens);
  const auto line = [&](std::string_view name, const std::string& text) {
    out += fmt::format("  {:<16} {}\n", name, wrapped(text, 80, 19));
  };
  line("steps", fmt::format("{:.0f}", cost.steps));
  line("time", cost.wall ? fmt::format("{:.1f} days, {:.4g} GPU-hours", cost.wall->to<double>() / kDay, *cost.gpu_hours)
                         : kNoProgress);
  if (cost.money) line("price", fmt::format("{:.4g}", *cost.money));
  line("energy of GPUs",
       cost.energy_j ? fmt::format("{:.4g} MWh at work, without hosts, network, cooling and what failures repeat",
                                   *cost.energy_j / kMegawattHour)
                     : "not known: the system's profile has no power limit");
  if (question.failures && !cost.goodput) line("goodput", "not known: checkpoints of LoRA are not modelled");
  if (const auto& g = cost.goodput) {
    if (g->progresses) line("goodput", fmt::format("{:.2f} % of the time is work that stays", 100.0 * g->share));
    const double hours = g->mtbf.to<double>() / kHour;
    line("failures",
         fmt::format("one every {} hours", hours < 1.0 ? fmt::format("{:.2g}", hours) : fmt::format("{:.1f}", hours)));
    line("checkpoints",
         fmt::format("{:.0f} GB in {} s, one every {:.1f} minutes (Young, Daly)", g->checkpoint.to<double>() / 1e9,
                     seconds_text(g->write.to<double>()), g->interval.to<double>() / 60.0));
  }
  return out;
}

}  // namespace foldwise::planner
