#include "planner/launch/launcher_variables.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <sstream>

namespace foldwise::planner {

namespace {

using Words = std::vector<std::string>;

std::string option_in(const Words& words, const Words& names) {
  std::string value;
  for (std::size_t i = 0; i < words.size(); ++i)
    for (const std::string& name : names) {
      if (words[i] == name && i + 1 < words.size()) value = words[i + 1];
      if (words[i].starts_with(name + "=")) value = words[i].substr(name.size() + 1);
    }
  return value;
}

std::set<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

}  // namespace

bool is_shells(const std::string& name) {
  static const std::set<std::string> names = {"BASH_REMATCH", "OLDPWD", "REPLY", "OPTARG", "_"};
  return names.contains(name) || name.starts_with("FOLDWISE_");
}

Words sbatch_words(const std::string& text) {
  Words words;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("#SBATCH")) continue;
    std::istringstream words_in(line.substr(7));
    for (std::string word; words_in >> word && !word.starts_with('#');) words.push_back(word);
  }
  return words;
}

std::map<std::string, std::string> slurm_variables(const Words& sbatch) {
  std::map<std::string, std::string> variables;
  if (sbatch.empty()) return variables;
  const auto set = [&](const Words& options, const Words& names) {
    if (const std::string value = option_in(sbatch, options); !value.empty())
      for (const std::string& name : names) variables[name] = value.substr(value.find_last_of(':') + 1);
  };
  set({"--nodes", "-N"}, {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
  set({"--ntasks", "-n"}, {"SLURM_NTASKS", "SLURM_NPROCS"});
  set({"--ntasks-per-node"}, {"SLURM_NTASKS_PER_NODE"});
  set({"--gres", "--gpus-per-node"}, {"SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"});
  return variables;
}

std::optional<std::string> launchers_value(const std::string& name, const ScriptQuestion& question) {
  static const std::set<std::string> zero = words_of(
      "RANK NODE_RANK LOCAL_RANK SLURM_PROCID SLURM_NODEID SLURM_LOCALID PET_NODE_RANK OMPI_COMM_WORLD_RANK "
      "JOB_COMPLETION_INDEX MLP_ROLE_INDEX INDEX NODE_ID OMPI_COMM_WORLD_LOCAL_RANK");
  static const std::set<std::string> node = words_of(
      "MASTER_ADDR SLURM_JOB_NODELIST SLURM_NODELIST MLP_WORKER_0_HOST PET_MASTER_ADDR SLURMD_NODENAME MLP_HOST");
  static const std::set<std::string> port = words_of("MASTER_PORT MLP_WORKER_0_PORT PET_MASTER_PORT");
  static const std::set<std::string> one = words_of("SLURM_JOB_ID SLURM_JOBID SLURM_ARRAY_TASK_ID");
  static const std::set<std::string> gpus = words_of(
      "GPUS_PER_NODE NPROC_PER_NODE MLP_WORKER_GPU KUBERNETES_CONTAINER_RESOURCE_GPU N_GPUS NUM_GPUS "
      "SLURM_GPUS_ON_NODE SLURM_GPUS_PER_NODE SLURM_NTASKS_PER_NODE");
  static const std::set<std::string> nodes =
      words_of("NNODES NUM_NODES WORLD_SIZE SLURM_NNODES SLURM_JOB_NUM_NODES PET_NNODES MLP_WORKER_NUM");
  if (zero.contains(name)) return "0";
  if (node.contains(name)) return "localhost";
  if (port.contains(name)) return "6000";
  if (one.contains(name)) return "1";
  if (name == "SLURM_JOB_NAME") return "job";
  if (gpus.contains(name))
    return std::to_string(std::min(question.num_gpus.value_or(question.gpus_per_node), question.gpus_per_node));
  if (!question.num_gpus) return std::nullopt;
  if (nodes.contains(name))
    return std::to_string(std::max<std::int64_t>(1, *question.num_gpus / question.gpus_per_node));
  if (name == "SLURM_NTASKS" || name == "SLURM_NPROCS") return std::to_string(*question.num_gpus);
  return std::nullopt;
}

}  // namespace foldwise::planner
