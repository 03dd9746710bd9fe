#include "planner/report/error_learning.h"

#include <fmt/format.h>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numbers>
#include <set>
#include <utility>

#include "planner/report/accuracy.h"
#include "planner/report/ordering.h"
#include "planner/report/table.h"

namespace foldwise::planner {

using nlohmann::json;

namespace {

/// What is known before any row, worth one row each: sites differ by a tenth in what they have of a resource, and a
/// mechanism is off by a hundredth. Without it the likeliest deviation of what few rows have would be none.
constexpr double kPriorSiteSd = 0.1, kPriorMechanismSd = 0.01;
constexpr int kSteps = 400;

/// ln(measured / predicted) of a prediction, the mean of its rows; or such a number less another one.
struct Sample {
  Exposure causes;
  double error = 0.0;
  double layouts = 1.0;  ///< Errors of single layouts in it.
  std::string group{};   ///< Rows that are left out together.
  const Run* run = nullptr;
};

struct Samples {
  std::vector<Sample> single, pairs;
  std::map<std::string, std::vector<Sample>> elsewhere;             ///< Of other programs, by what they are taken as.
  std::map<std::string, std::map<std::string, std::int64_t>> rows;  ///< By cause and GPU generation.
};

Sample sample_of(const std::vector<const ValidatedRow*>& rows) {
  const Run& run = rows.front()->run;
  Sample sample{.causes = exposure(run, rows.front()->prediction.step_time), .run = &run};
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

Samples samples_of(const Validation& validation, const Roles& roles) {
  std::map<std::string, std::vector<const ValidatedRow*>> predictions;
  for (const ValidatedRow& row : validation.rows)
    if (const Reservation reason = reservation(row.run);
        row.step && reason != Reservation::kMicroBatchUnknown && reason != Reservation::kRankAlone)
      predictions[problem_text(row.run)].push_back(&row);
  Samples result;
  std::map<std::string, std::vector<Sample>> questions;
  for (const auto& [problem, rows] : predictions) {
    Sample sample = sample_of(rows);
    if (reservation(*sample.run) == Reservation::kOtherSoftware) {
      result.elsewhere["as " + sample.run->defaults].push_back(std::move(sample));
      continue;
    }
    for (const auto& [name, exposed] : sample.causes) ++result.rows[name][sample.run->hardware.traits.generation];
    std::vector<Sample>& alike = questions[question_text(*sample.run)];
    for (const Sample& other : alike) result.pairs.push_back(difference(sample, other));
    alike.push_back(sample);
    if (std::ranges::all_of(
            rows, [&](const ValidatedRow* row) { return roles.of(row->run.id, Quantity::kStepTime).empty(); }))
      result.single.push_back(std::move(sample));
  }
  return result;
}

using Use = std::function<bool(const Sample&)>;

/// Variances of the causes, and last of layouts, that make the samples likeliest. Each step multiplies them by what
/// minorizes the likelihood (K. Lange, "MM Optimization Algorithms", 2016, section 8.6 on variance components), so it
/// never falls and no variance becomes negative.
Eigen::VectorXd likeliest_variances(const Eigen::MatrixXd& squares, const Eigen::VectorXd& errors,
                                    const Eigen::VectorXd& prior) {
  Eigen::VectorXd variances = prior;
  for (int step = 0; step < kSteps; ++step) {
    const Eigen::ArrayXd total = (squares * variances).array();
    // Squares that a normal distribution would have to have for the slope that a Laplace one has here.
    const Eigen::ArrayXd seen = std::numbers::sqrt2 * errors.array().abs() * total.sqrt();
    const Eigen::ArrayXd up =
        (squares.transpose() * (seen / total.square()).matrix()).array() + prior.array() / variances.array().square();
    const Eigen::ArrayXd down = (squares.transpose() * total.inverse().matrix()).array() + variances.array().inverse();
    variances.array() *= (up / down).sqrt();
  }
  return variances;
}

ErrorModel learn(const Samples& samples, const Use& use) {
  std::vector<const Sample*> used;
  std::set<std::string> names;
  for (const std::vector<Sample>* list : {&samples.single, &samples.pairs})
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
  for (const Resource resource : kSiteResources)
    prior[static_cast<Eigen::Index>(std::distance(names.begin(), names.find(std::string(to_string(resource)))))] =
        kPriorSiteSd * kPriorSiteSd;
  const Eigen::VectorXd variances = likeliest_variances(squares, errors, prior);
  Eigen::Index column = 0;
  for (const std::string& name : names) result.causes[name].sd = std::sqrt(variances[column++]);
  result.layout_sd = std::sqrt(variances[last]);
  return result;
}

/// What the errors of another program have beyond those of the other causes, as one cause more.
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

/// A prediction, and what the other groups say of its error.
struct LeftOut {
  const Sample* sample = nullptr;
  double deviation = 0.0;
  [[nodiscard]] double in_deviations() const { return std::abs(sample->error) / deviation; }
};

std::vector<LeftOut> left_out(const Samples& samples) {
  std::set<std::string> groups;
  for (const Sample& sample : samples.single) groups.insert(sample.group);
  std::vector<LeftOut> result;
  if (groups.size() < 2) return result;
  for (const std::string& group : groups) {
    const ErrorModel others = learn(samples, [&](const Sample& sample) { return sample.group != group; });
    for (const Sample& sample : samples.single)
      if (sample.group == group) result.push_back({&sample, others.deviation(sample.causes)});
  }
  return result;
}

std::vector<double> in_deviations(const std::vector<LeftOut>& list, const std::string& but_group = "") {
  std::vector<double> values;
  for (const LeftOut& one : list)
    if (one.sample->group != but_group) values.push_back(one.in_deviations());
  return values;
}

}  // namespace

ErrorModel learn_errors(const Validation& validation, const Roles& roles) {
  const Samples samples = samples_of(validation, roles);
  if (samples.single.empty()) return {};
  ErrorModel result = learn(samples, [](const Sample&) { return true; });
  for (const auto& [name, rows] : samples.rows) {
    if (!result.causes.contains(name)) result.causes[name].sd = kPriorMechanismSd;
    result.causes[name].rows = rows;
  }
  for (const auto& [name, elsewhere] : samples.elsewhere) result.causes[name] = beyond(result, name, elsewhere);
  const std::vector<double> seen = in_deviations(left_out(samples));
  if (seen.empty()) return {};
  const double scale = quantile(seen, 0.8) / kNormal80;
  for (auto& [name, cause] : result.causes) cause.sd *= scale;
  result.layout_sd *= scale;
  result.quantile_95 = quantile(seen, 0.95) / scale;
  return result;
}

std::vector<Coverage> left_out_coverage(const Validation& validation, const Roles& roles) {
  const Samples samples = samples_of(validation, roles);
  const std::vector<LeftOut> list = left_out(samples);
  struct Held {
    std::vector<double> in_80, in_95, half_widths;
  };
  std::map<std::string, Held> groups;
  for (const LeftOut& one : list) {
    const std::vector<double> others = in_deviations(list, one.sample->group);
    if (others.empty()) continue;
    const double width_80 = quantile(others, 0.8), seen = one.in_deviations();
    const Run& run = *one.sample->run;
    for (const std::string& name : {std::string("all"), run.hardware.traits.generation, run.system_name,
                                    std::string(run.model.has_moe() ? "moe" : "dense"), "as " + run.defaults}) {
      Held& held = groups[name];
      held.in_80.push_back(seen <= width_80 ? 1.0 : 0.0);
      held.in_95.push_back(seen <= quantile(others, 0.95) ? 1.0 : 0.0);
      held.half_widths.push_back(100.0 * std::expm1(width_80 * one.deviation));
    }
  }
  const auto mean = [](const std::vector<double>& values) {
    double sum = 0.0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
  };
  std::vector<Coverage> result;
  result.reserve(groups.size());
  for (const auto& [name, held] : groups)
    result.push_back({.group = name,
                      .predictions = static_cast<std::int64_t>(held.in_80.size()),
                      .share_80 = mean(held.in_80),
                      .share_95 = mean(held.in_95),
                      .half_width_pct = quantile(held.half_widths, 0.5)});
  return result;
}

std::string errors_text(const ErrorModel& errors, const std::vector<Coverage>& coverage) {
  if (errors.causes.empty()) return "";
  std::string out =
      "Intervals of untouched predictions, from the errors of other models, systems and software: percent of\n"
      "measured times inside, and half their width\n";
  Table held({"<group", "predictions", "in 80 %", "in 95 %", "width of 80 %"});
  for (const Coverage& c : coverage)
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
  return out + causes.text();
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

}  // namespace foldwise::planner
