#include "planner/uncertainty/beliefs.h"

#include <Eigen/Cholesky>
#include <boost/random/bernoulli_distribution.hpp>
#include <boost/random/mersenne_twister.hpp>
#include <boost/random/normal_distribution.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <string>

namespace foldwise::planner {
namespace {

constexpr double kLess = 0.01;    ///< Least relative reduction of the expected loss by a suggested run.
constexpr double kKnown = 1e-12;  ///< Smaller variances are rounding errors.

Eigen::Index index_of(std::size_t i) { return static_cast<Eigen::Index>(i); }

Eigen::VectorXd logs_of(const std::vector<Contender>& contenders) {
  Eigen::VectorXd logs(index_of(contenders.size()));
  for (std::size_t i = 0; i < contenders.size(); ++i)
    logs[index_of(i)] = std::log(contenders[i].step_time.to<double>());
  return logs;
}

/// ln(step time / step time of the draw's fastest contender) [draw x contender].
Eigen::MatrixXd behind_fastest(const Eigen::VectorXd& logs, const Beliefs& beliefs) {
  Eigen::MatrixXd behind = beliefs.draws.leftCols(logs.size()).rowwise() + logs.transpose();
  behind.colwise() -= behind.rowwise().minCoeff().eval();
  return behind;
}

/// Mean loss, over the first `draws`, of choosing the contender with the lowest expected time once `measured` are
/// known.
double loss_after(const Eigen::VectorXd& logs, const Eigen::MatrixXd& behind, const Beliefs& beliefs,
                  const std::vector<std::size_t>& measured, Eigen::Index draws) {
  const Eigen::Index contenders = logs.size(), count = index_of(measured.size());
  Eigen::MatrixXd between(count, count), to_contenders(count, contenders), surprises(draws, count);
  for (Eigen::Index i = 0; i < count; ++i) {
    const Eigen::Index run = index_of(measured[static_cast<std::size_t>(i)]);
    for (Eigen::Index k = 0; k < count; ++k)
      between(i, k) = beliefs.covariance(run, index_of(measured[static_cast<std::size_t>(k)]));
    to_contenders.row(i) = beliefs.covariance.row(run).head(contenders);
    surprises.col(i) = beliefs.draws.col(run).head(draws).array() - beliefs.mean[run];
  }
  const Eigen::MatrixXd gain = between.ldlt().solve(to_contenders);
  const Eigen::VectorXd variance =
      beliefs.covariance.diagonal().head(contenders) - gain.cwiseProduct(to_contenders).colwise().sum().transpose();
  const Eigen::VectorXd expected = logs + beliefs.mean.head(contenders) + 0.5 * variance;
  const Eigen::MatrixXd seem = (surprises * gain).rowwise() + expected.transpose();
  double lost = 0.0;
  for (Eigen::Index draw = 0; draw < draws; ++draw) {
    Eigen::Index chosen = 0;
    seem.row(draw).minCoeff(&chosen);
    lost += std::expm1(behind(draw, chosen));
  }
  return lost / static_cast<double>(draws);
}

}  // namespace

Eigen::MatrixXd loadings(const ErrorModel& errors, const std::vector<Exposure>& runs) {
  std::map<std::string, Eigen::Index> columns;
  for (const Exposure& run : runs)
    for (const auto& [name, exposed] : run) columns.try_emplace(name, 0);
  Eigen::Index next = 0;
  for (auto& [name, column] : columns) column = next++;
  Eigen::MatrixXd result = Eigen::MatrixXd::Zero(static_cast<Eigen::Index>(runs.size()), next);
  for (std::size_t i = 0; i < runs.size(); ++i)
    for (const auto& [name, exposed] : runs[i])
      result(static_cast<Eigen::Index>(i), columns.at(name)) = exposed * errors.sd_of(name);
  return result;
}

Contender contender(const Run& run, Seconds step_time, const ErrorModel& errors) {
  Contender result{.step_time = step_time,
                   .causes = exposure(run, step_time),
                   .on_virtual_machine = more_on_virtual_machine(run, step_time)};
  if (run.hardware.site) return result;
  for (const Resource resource : kSiteResources) {
    const std::string name(to_string(resource));
    const double sd = errors.sd_of(name);
    const double less = slope(run, step_time, resource, std::exp(-sd)),
                 more = slope(run, step_time, resource, std::exp(sd));
    result.causes[name] = 0.5 * (less + more);
    result.bends[name] = 0.5 * (more - less);
  }
  return result;
}

Beliefs::Beliefs(const std::vector<Contender>& runs, const ErrorModel& errors) {
  std::vector<Exposure> exposures;
  exposures.reserve(2 * runs.size());
  for (const Contender& run : runs) exposures.push_back(run.causes);
  for (const Contender& run : runs) exposures.push_back(run.bends);
  const Eigen::MatrixXd both = loadings(errors, exposures);
  const Eigen::Index count = both.rows() / 2, causes = both.cols();
  const Eigen::MatrixXd loads = both.topRows(count), bends = both.bottomRows(count);
  // For a standard normal z, |z| has mean sqrt(2 / pi) and variance 1 - 2 / pi, and z is uncorrelated with |z|.
  mean = std::sqrt(2.0 / std::numbers::pi) * bends.rowwise().sum();
  covariance = loads * loads.transpose() + (1.0 - 2.0 / std::numbers::pi) * bends * bends.transpose();
  covariance.diagonal().array() += errors.layout_sd * errors.layout_sd;
  Eigen::VectorXd more(count);
  for (std::size_t i = 0; i < runs.size(); ++i) more[index_of(i)] = runs[i].on_virtual_machine;
  mean += kVirtualMachines * more;
  covariance += kVirtualMachines * (1.0 - kVirtualMachines) * more * more.transpose();
  boost::random::mt19937_64 bits(20'260'101);  // An arbitrary fixed seed: equal questions get equal answers.
  boost::random::normal_distribution<double> normal;
  draws.resize(kDraws, count);
  Eigen::VectorXd drawn(causes);
  boost::random::mt19937_64 machines(20'260'102);
  boost::random::bernoulli_distribution<double> virtual_machine(kVirtualMachines);
  for (Eigen::Index draw = 0; draw < kDraws; ++draw) {
    for (double& error : drawn) error = normal(bits);
    const double kind = virtual_machine(machines) ? 1.0 : 0.0;
    for (Eigen::Index i = 0; i < count; ++i) {
      double error = errors.layout_sd * normal(bits) + kind * more[i];
      for (Eigen::Index c = 0; c < causes; ++c) error += loads(i, c) * drawn[c] + bends(i, c) * std::abs(drawn[c]);
      draws(draw, i) = error;
    }
  }
}

void Beliefs::learn(std::size_t run, double error) {
  const Eigen::Index at = index_of(run);
  if (covariance(at, at) <= kKnown) return;
  const Eigen::VectorXd gain = covariance.col(at) / covariance(at, at);
  mean += gain * (error - mean[at]);
  // Matheron's rule: conditions each draw on the measured error.
  draws += (error - draws.col(at).array()).matrix().eval() * gain.transpose();
  covariance -= (gain * covariance.row(at)).eval();
}

std::vector<Odds> odds(const std::vector<Contender>& contenders, const Beliefs& beliefs) {
  const Eigen::MatrixXd behind = behind_fastest(logs_of(contenders), beliefs);
  std::vector<Odds> result(contenders.size());
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    const auto column = behind.col(index_of(i)).array();
    result[i] = {.best = (column == 0.0).cast<double>().mean(), .expected_loss = column.expm1().mean()};
  }
  return result;
}

std::vector<Informative> most_informative(const std::vector<Contender>& contenders, const Beliefs& beliefs,
                                          const std::vector<std::size_t>& among, std::size_t count) {
  const Eigen::VectorXd logs = logs_of(contenders);
  const Eigen::MatrixXd behind = behind_fastest(logs, beliefs);
  std::vector<std::size_t> left;
  for (const std::size_t run : among)
    if (beliefs.covariance(index_of(run), index_of(run)) > kKnown) left.push_back(run);
  // Backward elimination, because some runs are informative only together.
  std::vector<std::size_t> order;  // The run that was kept longest comes first.
  while (!left.empty()) {
    double least = std::numeric_limits<double>::infinity();
    std::size_t missed_least = 0;
    for (std::size_t i = 0; i < left.size(); ++i) {
      std::vector<std::size_t> others = left;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      const double loss = loss_after(logs, behind, beliefs, others, kDraws / 5);
      if (loss >= least) continue;
      least = loss;
      missed_least = i;
    }
    order.insert(order.begin(), left[missed_least]);
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(missed_least));
  }
  std::vector<Informative> chosen;
  double lost = loss_after(logs, behind, beliefs, {}, kDraws);
  std::size_t telling = 0;
  for (const std::size_t run : order) {
    if (chosen.size() == count) break;
    left.push_back(run);
    chosen.push_back({.run = run, .expected_loss = loss_after(logs, behind, beliefs, left, kDraws)});
    if (chosen.back().expected_loss >= (1.0 - kLess) * lost) continue;
    lost = chosen.back().expected_loss;
    telling = chosen.size();
  }
  chosen.resize(telling);
  return chosen;
}

}  // namespace foldwise::planner
