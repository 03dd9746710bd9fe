#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "planner/foldwise.h"

// Runs of and questions about a small model, for several tests.
namespace foldwise::planner {

inline Run run_with(const nlohmann::json& changes) {
  nlohmann::json run = {{"model", "mini-mixtral-8l"},
                        {"system", "h200"},
                        {"num_gpus", 16},
                        {"seq_len", 4096},
                        {"global_batch", 128},
                        {"micro_batch", 1},
                        {"tp", 1},
                        {"pp", 2},
                        {"ep", 4},
                        {"etp", 1},
                        {"cp", 1},
                        {"precision", "bf16"},
                        {"dispatcher", "alltoall"}};
  if (!changes.is_null()) run.update(changes);
  return foldwise::parse_run(run.dump());
}

inline foldwise::PlanRequest mini_request(std::map<std::string, std::vector<std::string>> set = {}) {
  set.insert({{"cp", {"1"}}, {"etp", {"1"}}, {"cuda_graph.impl", {"none"}}, {"pp", {"1", "2"}}, {"vpp", {"1", "2"}}});
  return {.model = "mini-mixtral-8l",
          .system = "h100-sxm-80gb",
          .release = {},
          .num_gpus = 8,
          .global_batch = 64,
          .precisions = {},
          .set = std::move(set)};
}

}  // namespace foldwise::planner
