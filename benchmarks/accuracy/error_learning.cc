#include "benchmarks/accuracy/error_learning.h"

#include <fmt/format.h>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numbers>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "benchmarks/accuracy/accuracy.h"
#include "benchmarks/accuracy/ordering.h"
#include "planner/report/screen.h"

namespace foldwise::accuracy {

using namespace planner;

using nlohmann::json;

namespace {

/// Prior, worth one row for each cause: sites differ by 10 % in a resource, and a mechanism is wrong by 1 %. Without it
/// the most likely deviation of a cause with few rows would be 0.
constexpr double kPriorSiteSd = 0.1, kPriorMechanismSd = 0.01;
/// Start of the search for the most likely deviations. It is above most of them: from below, the search would stop at
/// the prior's own maximum. Deviations of origins start at the prior, so that an error that either could explain is
/// attributed to a property of the run.
constexpr double kFirstSd = 0.2;
constexpr int kSteps = 400;

const std::string host_cause(to_string(Resource::kHost));  // In Exposure and ErrorModel::causes.

constexpr double kFewestMachines = 5.0;
/// Groups with at least this many predictions scale their intervals by their own errors.
constexpr std::size_t kFewestPeers = 20;

/// ln(measured / predicted) of a prediction, as the mean over its rows; or a difference of two such numbers.
struct Sample {
  Exposure causes;
  double error = 0.0;
  double layouts = 1.0;  ///< Number of layout errors that it contains.
  std::string group{};   ///< Rows that are left out together.
  const Run* run = nullptr;
  Seconds step_time{};  ///< Predicted.
};

/// Our runs by machine: ln(factor on the host's time) of those that wait for their host.
using Machines = std::map<std::string, std::vector<double>>;

struct Samples {
  std::vector<Sample> published, own;  ///< Untouched ones of other people, and ours.
  /// Rows that showed that something was missing. Their remaining errors tend to be too small, so they are used to
  /// learn deviations but are not counted.
  std::vector<Sample> mended;
  std::vector<Sample> pairs;
  std::map<std::string, std::vector<Sample>> elsewhere;  ///< Other programs, silent sources, plans, by cause.
  std::map<std::string, std::map<std::string, std::int64_t>> rows;  ///< By cause and GPU generation.
  Machines machines;

  /// Deviation of ln(factor on the host's time) of a run from the profile's host. Machines have equal weight, because
  /// no profile is made on one of them. Nullopt if there are too few.
  [[nodiscard]] std::optional<double> host_sd(const std::string& but_machine = "") const {
    double variance = 0.0, count = 0.0;
    for (const auto& [machine, logs] : machines) {
      if (machine == but_machine || std::ssize(logs) < kFewestRuns) continue;
      variance += std::inner_product(logs.begin(), logs.end(), logs.begin(), 0.0) / static_cast<double>(logs.size());
      ++count;
    }
    return count < kFewestMachines ? std::nullopt : std::optional(std::sqrt(variance / count));
  }
};

Sample sample_of(const std::vector<const ValidatedRow*>& rows) {
  const Run& run = rows.front()->run;
  Sample sample{.causes = exposure(run, rows.front()->prediction.step_time),
                .run = &run,
                .step_time = rows.front()->prediction.step_time};
  for (const ValidatedRow* row : rows)
    sample.error +=
        std::log(row->step->seconds / row->prediction.step_time.to<double>()) / static_cast<double>(rows.size());
  sample.group = fmt::format("{} {} {}", run.model_name, run.system_name, run.defaults);
  return sample;
}

Sample difference(const Sample& a, const Sample& b) {
  Sample result{.causes = a.causes, .error = a.error - b.error, .layouts = 2.0, .group = a.group, .run = a.run};
  for (const auto& [name, exposed] : b.causes) result.causes[name] -= exposed;
  return result;
}

/// Rows of each prediction. Runs on different machines of ours count as different predictions.
using Predictions = std::map<std::string, std::vector<const ValidatedRow*>>;

Predictions predictions_of(const Validation& validation) {
  Predictions result;
  for (const ValidatedRow& row : validation.rows)
    if (row.step && reservation(row.run) != Reservation::kRankAlone)
      result[problem_text(row.run) + machine_of(row.run)].push_back(&row);
  return result;
}

Machines machines_of(const std::vector<const Validation*>& validations, const Roles& roles) {
  Machines result;
  for (const Validation* validation : validations)
    for (const ValidatedRow& row : validation->rows) {
      const std::string machine = machine_of(row.run);
      if (!row.step || machine.empty() || !roles.origin(row.run.id).own || row.run.chosen ||
          reservation(row.run) == Reservation::kMemoryGone)
        continue;
      Sample sample = sample_of({&row});
      const double exposed = -sample.causes[host_cause];  // More of the resource makes the step faster.
      if (exposed >= kFollows) result[machine].push_back(sample.error / exposed);
    }
  return result;
}

Samples samples_of(const Validation& validation, const Roles& roles, const Validation& hosts) {
  const auto roles_of = [&](const std::vector<const ValidatedRow*>& rows) {
    std::vector<const Role*> all;
    for (const ValidatedRow* row : rows)
      std::ranges::copy(roles.of(row->run.id, Quantity::kStepTime), std::back_inserter(all));
    return all;
  };
  Samples result;
  result.machines = machines_of({&validation, &hosts}, roles);
  std::map<std::string, std::vector<Sample>> questions;
  const auto count = [&](const Sample& sample) {
    for (const auto& [name, exposed] : sample.causes) ++result.rows[name][sample.run->hardware.traits.generation];
  };
  for (const auto& [problem, rows] : predictions_of(validation)) {
    const Sample sample = sample_of(rows);
    const std::vector<const Role*> set = roles_of(rows);
    if (const Reservation reason = reservation(*sample.run); reason != Reservation::kNone) {
      const bool other = reason == Reservation::kOtherSoftware;
      if ((other || is_silent(reason)) && set.empty())
        result.elsewhere[other ? "as " + sample.run->defaults : std::string(name_of(reason))].push_back(sample);
      continue;
    }
    count(sample);
    std::vector<Sample>& alike = questions[question_text(*sample.run)];
    for (const Sample& other : alike) result.pairs.push_back(difference(sample, other));
    alike.push_back(sample);
    if (set.empty())
      (roles.origin(sample.run->id).own ? result.own : result.published).push_back(sample);
    else if (std::ranges::all_of(set, &Role::only_showed))
      result.mended.push_back(sample);
  }
  for (const auto& [problem, rows] : predictions_of(hosts)) {
    const std::vector<const Role*> set = roles_of(rows);
    if (reservation(rows.front()->run) != Reservation::kNone || !std::ranges::all_of(set, &Role::only_showed)) continue;
    if (rows.front()->run.chosen) {
      result.elsewhere[kChosen].push_back(sample_of(rows));
      continue;
    }
    std::vector<Sample>& list = set.empty() ? result.own : result.mended;
    list.push_back(sample_of(rows));
    count(list.back());
  }
  return result;
}

using Use = std::function<bool(const Sample&)>;

/// Variances of the causes, and last of layouts, that maximise the likelihood of the samples, from `first` on. The one
/// in column `known`, if any, stays as in `prior`. Each step is a minorise-maximise update (K. Lange, "MM Optimization
/// Algorithms", 2016, section 8.6 on variance components): the likelihood never falls, and no variance becomes
/// negative.
Eigen::VectorXd likeliest_variances(const Eigen::MatrixXd& squares, const Eigen::VectorXd& errors,
                                    const Eigen::VectorXd& prior, const Eigen::VectorXd& first,
                                    std::optional<Eigen::Index> known) {
  Eigen::VectorXd variances = first;
  if (known) variances[*known] = prior[*known];
  for (int step = 0; step < kSteps; ++step) {
    const Eigen::ArrayXd total = (squares * variances).array();
    // Squared errors that give a normal distribution the slope of the Laplace distribution at this error.
    const Eigen::ArrayXd seen = std::numbers::sqrt2 * errors.array().abs() * total.sqrt();
    const Eigen::ArrayXd up =
        (squares.transpose() * (seen / total.square()).matrix()).array() + prior.array() / variances.array().square();
    const Eigen::ArrayXd down = (squares.transpose() * total.inverse().matrix()).array() + variances.array().inverse();
    variances.array() *= (up / down).sqrt();
    if (known) variances[*known] = prior[*known];
  }
  return variances;
}

ErrorModel learn(const Samples& samples, const Use& use) {
  std::vector<const Sample*> used;
  std::set<std::string> names;
  for (const std::vector<Sample>* list : {&samples.published, &samples.own, &samples.mended, &samples.pairs})
    for (const Sample& sample : *list)
      if (use(sample)) {
        used.push_back(&sample);
        for (const auto& [name, exposed] : sample.causes) names.insert(name);
      }
  ErrorModel result;
  if (used.empty()) return result;
  const auto rows = static_cast<Eigen::Index>(used.size()), last = static_cast<Eigen::Index>(names.size());
  Eigen::MatrixXd squares = Eigen::MatrixXd::Zero(rows, last + 1);
  Eigen::VectorXd errors(rows), prior = Eigen::VectorXd::Constant(last + 1, kPriorMechanismSd * kPriorMechanismSd);
  for (Eigen::Index row = 0; row < rows; ++row) {
    const Sample& sample = *used[static_cast<std::size_t>(row)];
    errors[row] = sample.error;
    squares(row, last) = sample.layouts;
    Eigen::Index column = 0;
    for (const std::string& name : names) {
      const auto it = sample.causes.find(name);
      if (it != sample.causes.end()) squares(row, column) = it->second * it->second;
      ++column;
    }
  }
  std::optional<Eigen::Index> known;
  for (const Resource resource : kSiteResources) {
    const auto name = names.find(std::string(to_string(resource)));
    if (name == names.end()) continue;  // All runs are on measured sites.
    const auto site = static_cast<Eigen::Index>(std::distance(names.begin(), name));
    const std::optional<double> measured = resource == Resource::kHost ? samples.host_sd() : std::nullopt;
    prior[site] = std::pow(measured.value_or(kPriorSiteSd), 2);
    if (measured) known = site;
  }
  Eigen::VectorXd first = prior.cwiseMax(kFirstSd * kFirstSd);
  Eigen::Index column = 0;
  for (const std::string& name : names) {
    if (is_origin(name)) first[column] = prior[column];
    ++column;
  }
  const Eigen::VectorXd variances = likeliest_variances(squares, errors, prior, first, known);
  column = 0;
  for (const std::string& name : names) result.causes[name].sd = std::sqrt(variances[column++]);
  result.layout_sd = std::sqrt(variances[last]);
  return result;
}

/// Additional deviation in the errors of another program, of rows that leave something out, or of plans, as one more
/// cause.
ErrorCause beyond(const ErrorModel& errors, const std::string& name, const std::vector<Sample>& samples) {
  ErrorModel known = errors;
  known.causes[name].sd = 0.0;
  ErrorCause cause;
  double variance = 0.0;
  for (const Sample& sample : samples) {
    variance += (sample.error * sample.error - std::pow(known.deviation(sample.causes), 2)) /
                static_cast<double>(samples.size());
    ++cause.rows[sample.run->hardware.traits.generation];
  }
  cause.sd = std::max(kPriorMechanismSd, std::sqrt(std::max(0.0, variance)));
  return cause;
}

double quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  const double position = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], position - static_cast<double>(below));
}

/// A prediction, and its deviation learnt from other groups.
struct LeftOut {
  const Sample* sample = nullptr;
  double learnt = 0.0;  ///< Deviation without `known`.
  double known = 0.0;   ///< Deviation by differences between hosts.

  [[nodiscard]] double error() const { return std::abs(sample->error); }
  /// Deviation with the learnt part scaled by `scale`.
  [[nodiscard]] double deviation(double scale) const { return std::hypot(scale * learnt, known); }
  /// Smallest scale at which the 80 % interval contains the error.
  [[nodiscard]] double scale() const {
    return std::sqrt(std::max(0.0, std::pow(error() / kNormal80, 2) - known * known)) / learnt;
  }
};

std::vector<LeftOut> left_out(const Samples& samples) {
  std::map<std::string, std::vector<const Sample*>> groups;
  for (const std::vector<Sample>* list : {&samples.published, &samples.own})
    for (const Sample& sample : *list) groups[sample.group].push_back(&sample);
  std::vector<LeftOut> result;
  for (const auto& [group, members] : groups) {
    const ErrorModel others = learn(samples, [&left = group](const Sample& sample) { return sample.group != left; });
    if (others.causes.empty()) continue;
    for (const Sample* sample : members) {
      Exposure causes = sample->causes;
      const std::optional<double> host_sd = samples.host_sd(machine_of(*sample->run));
      const double known = std::abs(causes[host_cause]) * host_sd.value_or(0.0);
      if (host_sd) causes[host_cause] = 0.0;
      result.push_back({sample, others.deviation(causes), known});
    }
  }
  return result;
}

/// Bound for one more value of this kind with at least this probability (Lei et al., "Distribution-Free Predictive
/// Inference for Regression", 2018). A quantile of few values is too low.
double conformal_quantile(std::vector<double> values, double probability) {
  std::ranges::sort(values);
  const auto rank = static_cast<std::size_t>(std::ceil(probability * static_cast<double>(values.size() + 1)));
  return values.at(std::min(rank, values.size()) - 1);
}

/// Scale at which 80 % intervals contain 80 % of these predictions, then the number of deviations that contain 95 %.
Peers scale_of(const std::vector<const LeftOut*>& list) {
  std::vector<double> scales, deviations;
  for (const LeftOut* one : list) scales.push_back(one->scale());
  const double scale = conformal_quantile(std::move(scales), 0.8);
  for (const LeftOut* one : list) deviations.push_back(one->error() / one->deviation(scale));
  return {scale, conformal_quantile(std::move(deviations), 0.95)};
}

/// Scales of all predictions, and of groups with many peers.
struct Scales {
  Peers all;
  std::map<std::string, Peers> peers;

  [[nodiscard]] const Peers& of(const Run& run) const {
    const Peers* const known = known_peers(peers, run);
    return known != nullptr ? *known : all;
  }
};

std::optional<Scales> scales_of(const std::vector<LeftOut>& list, const std::string& but_group = "") {
  std::vector<const LeftOut*> used;
  std::map<std::string, std::vector<const LeftOut*>> peers;
  for (const LeftOut& one : list) {
    if (one.sample->group == but_group) continue;
    used.push_back(&one);
    for (const std::string& name : peers_of(*one.sample->run)) peers[name].push_back(&one);
  }
  if (used.empty()) return {};
  Scales result{.all = scale_of(used), .peers = {}};
  for (const auto& [name, members] : peers)
    if (members.size() >= kFewestPeers) result.peers[name] = scale_of(members);
  return result;
}

/// Groups of Coverage that a run belongs to.
std::vector<std::string> groups_of(const Run& run, const Roles& roles) {
  const Origin origin = roles.origin(run.id);
  return {"all",
          run.hardware.traits.generation,
          run.system_name,
          run.model.has_moe() ? "moe" : "dense",
          "as " + run.defaults,
          origin.own ? origin.name : Origin{}.name};
}

/// Predictions of a group: 1 if an interval holds the measured time, else 0; and half widths of 80 % intervals,
/// percent.
struct Held {
  std::vector<double> in_80, in_95, half_widths;

  [[nodiscard]] Coverage of(const std::string& group) const {
    const auto mean = [](const std::vector<double>& values) {
      return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    };
    return {.group = group,
            .predictions = std::ssize(in_80),
            .share_80 = mean(in_80),
            .share_95 = mean(in_95),
            .half_width_pct = quantile(half_widths, 0.5)};
  }
};

std::vector<Coverage> coverage_of(const std::vector<LeftOut>& list, const Roles& roles) {
  std::map<std::string, Held> groups;
  for (const LeftOut& one : list) {
    const std::optional<Scales> others = scales_of(list, one.sample->group);
    if (!others) continue;
    const Peers& its = others->of(*one.sample->run);
    const double deviation = one.deviation(its.scale);
    for (const std::string& name : groups_of(*one.sample->run, roles)) {
      Held& held = groups[name];
      held.in_80.push_back(one.error() <= kNormal80 * deviation ? 1.0 : 0.0);
      held.in_95.push_back(one.error() <= its.quantile_95 * deviation ? 1.0 : 0.0);
      held.half_widths.push_back(100.0 * std::expm1(kNormal80 * deviation));
    }
  }
  std::vector<Coverage> result;
  result.reserve(groups.size());
  for (const auto& [name, held] : groups) result.push_back(held.of(name));
  return result;
}

/// How often intervals hold the plans of one machine if kChosen is learnt from those of the others. Nullopt for plans
/// of one machine only.
std::optional<Coverage> coverage_of_chosen(ErrorModel errors, const ErrorModel& unscaled,
                                           const std::vector<Sample>& plans, double scale) {
  std::map<std::string, std::vector<const Sample*>> machines;
  for (const Sample& plan : plans) machines[machine_of(*plan.run)].push_back(&plan);
  if (machines.size() < 2) return std::nullopt;
  Held held;
  for (const auto& [machine, its] : machines) {
    std::vector<Sample> others;
    std::ranges::copy_if(plans, std::back_inserter(others),
                         [&name = machine](const Sample& plan) { return machine_of(*plan.run) != name; });
    errors.causes[kChosen].sd = scale * beyond(unscaled, kChosen, others).sd;
    for (const Sample* plan : its) {
      const Interval interval = *step_time_interval(errors, *plan->run, plan->step_time);
      const double measured = plan->step_time.to<double>() * std::exp(plan->error);
      held.in_80.push_back(interval.low <= measured && measured <= interval.high ? 1.0 : 0.0);
      held.in_95.push_back(interval.low_95 <= measured && measured <= interval.high_95 ? 1.0 : 0.0);
      held.half_widths.push_back(100.0 * (std::sqrt(interval.high / interval.low) - 1.0));
    }
  }
  return held.of(kChosen);
}

}  // namespace

Learnt learn_errors(const Validation& validation, const Roles& roles, const Validation& hosts) {
  const Samples samples = samples_of(validation, roles, hosts);
  const std::vector<LeftOut> list = left_out(samples);
  const std::optional<Scales> seen = scales_of(list);
  if (!seen) return {};
  Learnt result;
  ErrorModel& errors = result.errors;
  errors = learn(samples, [](const Sample&) { return true; });
  for (const auto& [name, rows] : samples.rows) {
    if (!errors.causes.contains(name)) errors.causes[name].sd = kPriorMechanismSd;
    errors.causes[name].rows = rows;
  }
  const ErrorModel unscaled = errors;
  for (const auto& [name, elsewhere] : samples.elsewhere) errors.causes[name] = beyond(unscaled, name, elsewhere);
  for (auto& [name, cause] : errors.causes)
    if (name != host_cause || !samples.host_sd()) cause.sd *= seen->all.scale;
  errors.layout_sd *= seen->all.scale;
  errors.quantile_95 = seen->all.quantile_95;
  for (const auto& [name, its] : seen->peers) errors.peers[name] = {its.scale / seen->all.scale, its.quantile_95};
  result.coverage = coverage_of(list, roles);
  if (const auto plans = samples.elsewhere.find(kChosen); plans != samples.elsewhere.end())
    if (const auto held = coverage_of_chosen(errors, unscaled, plans->second, seen->all.scale))
      result.coverage.push_back(*held);
  return result;
}

std::string errors_text(const Learnt& learnt) {
  const ErrorModel& errors = learnt.errors;
  if (errors.causes.empty()) return "";
  std::string out =
      "Intervals of untouched predictions, from the errors of other models, systems and software: percent of\n"
      "measured times inside, and half their width\n";
  Table held({"<group", "predictions", "in 80 %", "in 95 %", "width of 80 %"});
  for (const Coverage& c : learnt.coverage)
    held.add({c.group, std::to_string(c.predictions), fmt::format("{:.0f}", 100.0 * c.share_80),
              fmt::format("{:.0f}", 100.0 * c.share_95), fmt::format("{:.1f}", c.half_width_pct)});
  out += held.text() + "\nWhat errors come from: standard deviations in percent, of sites that of what they have\n";
  Table causes({"<cause", "percent", "predictions"});
  std::vector<std::pair<std::string, ErrorCause>> sorted(errors.causes.begin(), errors.causes.end());
  std::ranges::stable_sort(sorted, std::ranges::greater{}, [](const auto& entry) { return entry.second.sd; });
  for (const auto& [name, cause] : sorted) {
    std::int64_t rows = 0;
    for (const auto& [generation, count] : cause.rows) rows += count;
    causes.add({name, fmt::format("{:.1f}", 100.0 * cause.sd), std::to_string(rows)});
  }
  causes.add({"one layout against another", fmt::format("{:.1f}", 100.0 * errors.layout_sd), ""});
  out += causes.text() + "\nOf those, but the host's, runs with many like them have, and how many hold 95 %\n";
  Table peers({"<runs", "times", "95 %"});
  for (const auto& [name, its] : errors.peers)
    peers.add({name, fmt::format("{:.2f}", its.scale), fmt::format("{:.2f}", its.quantile_95)});
  peers.add({"others", "1.00", fmt::format("{:.2f}", errors.quantile_95)});
  return out + peers.text();
}

json coverage_json(const std::vector<Coverage>& coverage) {
  json result = json::array();
  for (const Coverage& c : coverage)
    result.push_back({{"group", c.group},
                      {"predictions", c.predictions},
                      {"share_80", c.share_80},
                      {"share_95", c.share_95},
                      {"half_width_pct", c.half_width_pct}});
  return result;
}

}  // namespace foldwise::accuracy
