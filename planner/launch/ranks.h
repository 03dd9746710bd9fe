#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/launch/sandbox.h"

// How many ranks a start has, by the options and variables of the programs around it. Each program's own options count:
// the -N of srun are nodes, that of mpirun are ranks of a node, and that of numactl says nothing of ranks.
namespace foldwise::planner {

/// The number of ranks; nothing if the start does not say it. `end`: number of words before the training's own
/// arguments.
[[nodiscard]] std::optional<std::int64_t> ranks_of(const Started& started, std::size_t end, std::int64_t gpus_per_node);

/// The value of an option where it is given last: "--nodes 4", "--nodes=4", "-N 4", "-N4".
[[nodiscard]] std::optional<std::string> last_option(const std::vector<std::string>& words,
                                                     const std::vector<std::string>& names);

/// GPUs of a node in Slurm's options: "--gres=gpu:h100:8,tmpdisk:100", "--gpus-per-node=h100:8".
[[nodiscard]] std::optional<std::int64_t> gpus_asked(const std::vector<std::string>& slurm);

/// Parses a number of ranks or nodes. The product of two fits 64 bits.
[[nodiscard]] std::optional<std::int64_t> rank_count(const std::string& text);

}  // namespace foldwise::planner
