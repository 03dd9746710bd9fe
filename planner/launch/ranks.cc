#include "planner/launch/ranks.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <set>
#include <sstream>

#include "costmodel/config/number.h"
#include "planner/launch/files.h"
#include "planner/launch/machine.h"

namespace foldwise::planner {

namespace {

using Words = std::vector<std::string>;
using Count = std::optional<std::int64_t>;

/// What the programs around a start ask for, from the outermost to the innermost.
struct Job {
  Count nodes, tasks, per_node;
  Count gpus;  ///< Of a node.

  [[nodiscard]] Count ranks() const {
    if (tasks) return tasks;
    if (nodes && per_node) return *nodes * *per_node;
    if (nodes && gpus) return *nodes * *gpus;  // A script that starts a process for each GPU.
    return std::nullopt;
  }
};

/// The number in "8", in the "2-4" of Slurm's nodes or in the "1:4" of torchrun's: the larger one.
Count count_of(const Words& words, const Words& names) {
  const auto value = last_option(words, names);
  return value ? rank_count(value->substr(value->find_last_of(":-") + 1)) : std::nullopt;
}

/// srun(1), sbatch(1): a step has the job's nodes and tasks unless it asks for others.
void take_slurm(const Words& words, Job& job) {
  const Count nodes = count_of(words, {"--nodes", "-N"}), tasks = count_of(words, {"--ntasks", "-n"}),
              per_node = count_of(words, {"--ntasks-per-node", "--tasks-per-node"});
  if (nodes) job.nodes = nodes;
  if (per_node) job.per_node = per_node;
  if (tasks || ((nodes || per_node) && job.per_node)) job.tasks = tasks;
  if (const Count gpus = gpus_asked(words)) job.gpus = gpus;
}

/// Open MPI's mpirun(1): -N and -npernode, "--map-by ppr:8:node"; Hydra's: -ppn, -perhost.
void take_mpi(const Words& words, Job& job) {
  Count per_node = count_of(words, {"-N", "-npernode", "--npernode", "-ppn", "--ppn", "-perhost"});
  if (const auto map = last_option(words, {"--map-by", "-map-by"});
      map && map->starts_with("ppr:") && map->find(":node") != std::string::npos)
    per_node = rank_count(map->substr(4, map->find(':', 4) - 4));
  if (const auto hosts = last_option(words, {"-H", "-host", "--host", "-hosts"}))
    job.nodes = 1 + std::ranges::count(*hosts, ',');
  const Count tasks = count_of(words, {"-n", "-np", "--np", "-c"});
  if (per_node) job.per_node = per_node;
  if (tasks || per_node) job.tasks = tasks;
}

/// IBM's jsrun: resource sets of some tasks each.
void take_jsrun(const Words& words, Job& job) {
  const Count sets = count_of(words, {"--nrs", "-n"}), tasks = count_of(words, {"--np", "-p"});
  if (sets) job.tasks = *sets * count_of(words, {"--tasks_per_rs", "-a"}).value_or(1);
  if (tasks) job.tasks = tasks;
}

/// The words of each program around a start, with its name first.
std::vector<Words> programs_around(const Started& started) {
  static const std::set<std::string> names = [] {
    std::istringstream in(
        "sbatch salloc srun mpirun mpiexec jsrun docker podman singularity apptainer enroot kubectl numactl nsys ncu "
        "ssh sudo unshare taskset ray conda mamba micromamba uv pdsh clush tmux screen torchrun");
    return std::set<std::string>{std::istream_iterator<std::string>(in), {}};
  }();
  std::vector<Words> programs;
  for (std::size_t i = 0; i < started.around; ++i) {
    if (programs.empty() || names.contains(started.words[i])) programs.emplace_back();
    programs.back().push_back(started.words[i]);
  }
  return programs;
}

Count variable_of(const Started& started, const char* name) {
  const auto found = started.environment.find(name);
  return found == started.environment.end() ? std::nullopt
                                            : rank_count(found->second.substr(found->second.find(':') + 1));
}

/// Without an option torchrun takes the variable PET_NAME (torch/distributed/run.py, argparse_util.py).
Count ranks_of_torchrun(const Words& words, const Started& started, Count job_nodes, std::int64_t gpus_per_node) {
  std::optional<std::string> processes = last_option(words, {"--nproc-per-node", "--nproc_per_node"});
  if (const auto set = started.environment.find("PET_NPROC_PER_NODE"); !processes && set != started.environment.end())
    processes = set->second;
  Count on_node = rank_count(processes.value_or(""));
  if (processes && (*processes == "gpu" || *processes == "auto"))
    on_node = visible_gpus(started.environment, gpus_per_node);
  Count nodes = count_of(words, {"--nnodes"});
  if (!nodes && last_option(words, {"--nnodes"})) return std::nullopt;  // The variable is empty.
  if (!nodes) nodes = variable_of(started, "PET_NNODES");
  if (!nodes) nodes = job_nodes.value_or(1);
  return on_node ? Count(*on_node * *nodes) : std::nullopt;
}

/// deepspeed/launcher/runner.py: without --num_gpus all of a node, without --num_nodes those of a file of hosts, or
/// one.
Count ranks_of_deepspeed(const Words& words, const Started& started, std::int64_t gpus_per_node) {
  if (last_option(words, {"--include", "-i", "--exclude", "-e"})) return std::nullopt;
  const Count gpus = count_of(words, {"--num_gpus"}), nodes = count_of(words, {"--num_nodes"});
  if (!nodes && (!gpus || last_option(words, {"--hostfile", "-H"}))) return std::nullopt;
  return gpus.value_or(visible_gpus(started.environment, gpus_per_node)) * nodes.value_or(1);
}

}  // namespace

std::optional<std::string> last_option(const Words& words, const Words& names) {
  std::optional<std::string> value;
  for (std::size_t i = 0; i < words.size(); ++i)
    for (const std::string& name : names) {
      if (words[i] == name && i + 1 < words.size()) value = words[i + 1];
      if (words[i].starts_with(name + "=")) value = words[i].substr(name.size() + 1);
      if (name.size() == 2 && words[i].size() > 2 && words[i].starts_with(name) &&
          std::isdigit(static_cast<unsigned char>(words[i][2])) != 0)
        value = words[i].substr(2);
    }
  return value;
}

std::optional<std::int64_t> gpus_asked(const Words& slurm) {
  const auto number_of = [](const std::string& text) { return rank_count(text.substr(text.find_last_of(':') + 1)); };
  std::istringstream resources(last_option(slurm, {"--gres"}).value_or(""));
  for (std::string resource; std::getline(resources, resource, ',');)
    if (resource == "gpu" || resource.starts_with("gpu:")) return number_of(resource).value_or(1);
  const auto gpus = last_option(slurm, {"--gpus-per-node"});
  return gpus ? number_of(*gpus) : std::nullopt;
}

std::optional<std::int64_t> rank_count(const std::string& text) {
  constexpr std::int64_t kMost = 1'000'000'000;
  const auto number = config::number_in<std::int64_t>(text);
  return number && *number >= 1 && *number <= kMost ? number : std::nullopt;
}

std::optional<std::int64_t> ranks_of(const Started& started, std::size_t end, std::int64_t gpus_per_node) {
  const Words own(started.words.begin() + static_cast<std::ptrdiff_t>(std::min(started.around, end)),
                  started.words.begin() + static_cast<std::ptrdiff_t>(end));
  std::vector<Words> programs = programs_around(started);
  programs.push_back(own);
  Job job;
  for (const Words& words : programs) {
    const std::string name = words.empty() ? "" : base_of(words.front());
    if (name == "sbatch" || name == "salloc" || name == "srun") take_slurm(words, job);
    if (name.starts_with("mpirun") || name.starts_with("mpiexec")) take_mpi(words, job);
    if (name == "jsrun") take_jsrun(words, job);
  }
  const auto starts = [&](const std::string& program) {
    return std::ranges::any_of(own, [&](const std::string& word) { return base_of(word) == program; });
  };
  if (starts("torchrun") || starts("torch.distributed.run") || starts("torch.distributed.launch") ||
      last_option(own, {"--nproc-per-node", "--nproc_per_node"}))
    return ranks_of_torchrun(own, started, job.nodes, gpus_per_node);
  if (starts("deepspeed")) return ranks_of_deepspeed(own, started, gpus_per_node);
  // Megatron reads it (megatron/training/arguments.py, parse_args), whatever started the process.
  if (const Count world = variable_of(started, "WORLD_SIZE")) return world;
  return job.ranks();
}

}  // namespace foldwise::planner
