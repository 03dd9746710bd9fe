#include "planner/report/decision.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/random/mersenne_twister.hpp>
#include <boost/random/normal_distribution.hpp>
#include <cmath>
#include <map>
#include <set>

#include "planner/report/prediction_report.h"
#include "planner/report/table.h"

namespace foldwise::planner {
namespace {

constexpr double kLikely = 0.01;  ///< Choices less likely to be the fastest are counted, not listed.

/// Errors of each contender by what it is exposed to, in standard deviations: a row of numbers that one draw
/// multiplies.
struct Loads {
  std::vector<std::vector<double>> by_contender;
  std::size_t causes = 0;
};

/// What all contenders share changes no order, and is left out.
Loads loads_of(const std::vector<Contender>& contenders, const ErrorModel& errors) {
  std::set<std::string> names;
  for (const Contender& c : contenders)
    for (const auto& [name, exposed] : c.causes) names.insert(name);
  Loads loads{std::vector<std::vector<double>>(contenders.size()), 0};
  for (const std::string& name : names) {
    const auto exposed = [&](const Contender& c) {
      const auto it = c.causes.find(name);
      return it != c.causes.end() ? it->second : 0.0;
    };
    const double first = exposed(contenders.front());
    if (std::ranges::all_of(contenders, [&](const Contender& c) { return exposed(c) == first; })) continue;
    const double sd = errors.sd_of(name);
    for (std::size_t i = 0; i < contenders.size(); ++i) loads.by_contender[i].push_back(sd * exposed(contenders[i]));
    ++loads.causes;
  }
  return loads;
}

}  // namespace

std::vector<Odds> odds(const std::vector<Contender>& contenders, const ErrorModel& errors) {
  if (contenders.empty()) return {};
  const Loads loads = loads_of(contenders, errors);
  boost::random::mt19937_64 bits(20'260'101);  // Any number: the answer must not depend on when it is asked for.
  boost::random::normal_distribution<double> normal;
  std::vector<Odds> result(contenders.size());
  std::vector<double> seconds(contenders.size()), drawn(loads.causes);
  for (int draw = 0; draw < kDraws; ++draw) {
    for (double& error : drawn) error = normal(bits);
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      double error = errors.layout_sd * normal(bits);
      for (std::size_t c = 0; c < loads.causes; ++c) error += loads.by_contender[i][c] * drawn[c];
      seconds[i] = contenders[i].step_time.to<double>() * std::exp(error);
    }
    const auto fastest = std::ranges::min_element(seconds);
    result[static_cast<std::size_t>(fastest - seconds.begin())].best += 1.0 / kDraws;
    for (std::size_t i = 0; i < contenders.size(); ++i)
      result[i].expected_loss += Seconds{(seconds[i] - *fastest) / kDraws};
  }
  return result;
}

std::optional<Decision> decide(const PlanProblem& problem, const PlanResult& result, const ErrorModel& errors) {
  if (result.plans.empty()) return std::nullopt;
  Decision decision;
  std::vector<Contender> contenders;
  const auto add = [&](Decision::Choice choice, const Plan& plan) {
    const Run run = run_of(problem, plan);
    const Seconds step_time = plan.prediction.step_time;
    contenders.push_back({step_time, exposure(run, step_time)});
    choice.unmeasured = errors.unmeasured(contenders.back().causes, run.hardware.traits.generation);
    decision.choices.push_back(std::move(choice));
  };
  for (std::size_t i = 0; i < result.plans.size(); ++i)
    add({.name = fmt::format("plan {}", i + 1), .plan = i, .alternative = {}, .odds = {}, .unmeasured = {}},
        result.plans[i]);
  for (std::size_t i = 0; i < result.alternatives.size(); ++i)
    if (const Alternative& a = result.alternatives[i]; a.plan)
      add({.name = a.choice, .plan = {}, .alternative = i, .odds = {}, .unmeasured = {}}, *a.plan);
  const std::vector<Odds> all = odds(contenders, errors);
  for (std::size_t i = 0; i < all.size(); ++i) decision.choices[i].odds = all[i];
  const auto loss = [](const Decision::Choice& choice) { return choice.odds.expected_loss; };
  decision.answer =
      static_cast<std::size_t>(std::ranges::min_element(decision.choices, {}, loss) - decision.choices.begin());
  return decision;
}

nlohmann::json decision_json(const Decision& decision) {
  nlohmann::json choices = nlohmann::json::array();
  for (const Decision::Choice& c : decision.choices)
    choices.push_back({{"name", c.name},
                       {"plan", c.plan ? nlohmann::json(*c.plan) : nlohmann::json(nullptr)},
                       {"alternative", c.alternative ? nlohmann::json(*c.alternative) : nlohmann::json(nullptr)},
                       {"best_probability", c.odds.best},
                       {"expected_loss_s", c.odds.expected_loss.to<double>()},
                       {"unmeasured", c.unmeasured}});
  return {{"draws", kDraws}, {"answer", decision.answer}, {"choices", std::move(choices)}};
}

std::string decision_text(const Decision& decision, const PlanResult& result) {
  if (decision.choices.size() < 2) return "";
  const Seconds fastest = result.plans.front().prediction.step_time;
  Table table({"<choice", "fastest %", "expected loss %", "<never measured"});
  std::size_t left = 0;
  for (std::size_t i = 0; i < decision.choices.size(); ++i) {
    const Decision::Choice& c = decision.choices[i];
    if (c.odds.best < kLikely && i != decision.answer && i != 0) {
      ++left;
      continue;
    }
    table.add({shortened(c.name, 36), fmt::format("{:.0f}", 100.0 * c.odds.best),
               fmt::format("{:.1f}", 100.0 * (c.odds.expected_loss / fastest).to<double>()),
               shortened(fmt::format("{}", fmt::join(c.unmeasured, ", ")), 36)});
  }
  const Decision::Choice& answer = decision.choices[decision.answer];
  std::string out = "\nHow sure that is: what errors like the measured ones leave of the order\n" + table.text();
  if (left > 0) out += fmt::format("  {} others are the fastest in less than {:.0f} % each\n", left, 100.0 * kLikely);
  out += fmt::format("  Least is lost, in the mean, by {}.\n", answer.name);
  return out;
}

}  // namespace foldwise::planner
