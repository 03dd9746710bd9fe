#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/hardware/hardware.h"
#include "costmodel/model/model.h"
#include "costmodel/parallel/options.h"
#include "costmodel/step/prediction.h"
#include "planner/run/defaults.h"

namespace foldwise::planner {

/// Values that each dimension of a candidate may take, in the order candidates are numbered.
struct SearchSpace {
  std::vector<costmodel::Precision> precision;
  std::vector<std::int64_t> tp, cp, pp, vpp, ep, etp, micro_batch;
  std::vector<costmodel::Recompute> recompute;
  std::vector<costmodel::Dispatcher> dispatcher;
  std::vector<bool> ep_overlap;  ///< --overlap-moe-expert-parallel-comm with --delay-wgrad-compute.
  [[nodiscard]] std::int64_t size() const;
  /// Leaves only this value of the dimension that is the field `key` ("recompute.modules": of the choices that have
  /// it), whether or not the search would have tried it. Returns whether there is such a dimension.
  bool pin(std::string_view key, const nlohmann::json& value);
};

struct PlanProblem {
  std::string model_name, system_name;
  costmodel::ModelSpec model;
  costmodel::Hardware hardware;
  std::int64_t num_gpus = 1;
  SearchSpace space;
  std::string defaults;  ///< Name of the set of defaults that the options have which are not searched.
  /// What is not searched (seq_len, global_batch, optimizer, overlaps, graphs, software), as not_searched() gives it.
  std::vector<costmodel::TrainingOptions> base;
  std::int64_t top = 10;
  int threads = 0;  ///< 0: all cores. The answer does not depend on it.
};

/// The options of (stated, defaults) for every precision of the space: without and with tensor parallelism, on both of
/// which defaults may depend.
[[nodiscard]] std::vector<costmodel::TrainingOptions> not_searched(const Defaults& defaults,
                                                                   const costmodel::ModelSpec& model,
                                                                   const costmodel::Hardware& hardware,
                                                                   const SearchSpace& space,
                                                                   std::map<std::string, nlohmann::json> stated);
/// Every value worth trying: powers of two and divisors that the model's and the cluster's sizes allow.
[[nodiscard]] SearchSpace default_space(const costmodel::ModelSpec& model, const costmodel::Hardware& hardware,
                                        std::int64_t num_gpus, std::int64_t seq_len,
                                        std::vector<costmodel::Precision> precision);

struct Plan {
  std::int64_t number = 0;  ///< Of the candidate; breaks ties.
  costmodel::TrainingOptions options;
  costmodel::Prediction prediction;
  std::vector<std::string> why;  ///< What limits it; what it wins over the next plan by.
};

struct PlanResult {
  std::int64_t enumerated = 0, valid = 0, fitting = 0, simulated = 0;
  double seconds = 0.0;
  std::vector<std::pair<std::string, std::int64_t>> rejected_by_rule;  ///< Most first; memory is "memory.fits".
  std::vector<Plan> plans;   ///< The best candidate of each layout, fastest first; at most `top`.
  std::vector<Plan> pareto;  ///< Fastest within 100, 90, ... 50 % of the device memory, repetitions left out.
};

/// Enumerates the space, rejects by rule, then by memory, and ranks by predicted step time. The ranking is exact:
/// candidates are simulated in the order of a lower bound until no unsimulated one can enter the answer.
/// `progress` gets (done, all) in candidates from worker threads; it must be thread-safe.
[[nodiscard]] PlanResult plan(const PlanProblem& problem,
                              const std::function<void(std::int64_t, std::int64_t)>& progress = {});

/// Candidate `number` of the space as options (layout string included), before any rule is applied.
[[nodiscard]] costmodel::TrainingOptions candidate(const PlanProblem& problem, std::int64_t number);

}  // namespace foldwise::planner
