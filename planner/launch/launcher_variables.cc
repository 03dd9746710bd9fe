#include "planner/launch/launcher_variables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>

#include "planner/launch/ranks.h"

namespace foldwise::planner {

namespace {

using Words = std::vector<std::string>;

std::set<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

}  // namespace

std::vector<Unset> unset_in(const std::string& output) {
  static const std::regex message(R"(line (\d+): (\$?[A-Za-z_0-9]+)(\[[^\]]*\])?: unbound variable)");
  std::vector<Unset> result;
  for (std::sregex_iterator it(output.begin(), output.end(), message), end; it != end; ++it)
    result.push_back({.name = std::isdigit(static_cast<unsigned char>((*it)[2].str().front())) != 0
                                  ? "$" + (*it)[2].str()
                                  : (*it)[2].str(),
                      .line = std::atoi((*it)[1].str().c_str())});
  return result;
}

bool is_shells(const std::string& name) {
  static const std::set<std::string> names = {"BASH_REMATCH", "OLDPWD", "REPLY", "OPTARG", "_"};
  return names.contains(name) || name.starts_with("FOLDWISE_");
}

Words sbatch_words(const std::string& text) {
  Words words;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin != std::string::npos && line[begin] != '#') break;
    if (!line.starts_with("#SBATCH")) continue;
    std::istringstream words_in(line.substr(7));
    for (std::string word; words_in >> word && !word.starts_with('#');) words.push_back(word);
  }
  return words;
}

std::optional<JobArray> job_array(const Words& sbatch) {
  const auto spec = last_option(sbatch, {"--array", "-a"});
  if (!spec) return std::nullopt;
  JobArray array;
  std::istringstream in(spec->substr(0, spec->find('%')));
  for (std::string part; std::getline(in, part, ',');) {
    const auto number = [](const std::string& text) { return rank_count(text).value_or(0); };
    const std::size_t dash = part.find('-'), colon = part.find(':');
    const std::int64_t first = number(part.substr(0, dash)),
                       step =
                           colon == std::string::npos ? 1 : std::max<std::int64_t>(1, number(part.substr(colon + 1))),
                       last = dash == std::string::npos ? first : number(part.substr(dash + 1, colon - dash - 1));
    if (array.tasks == 0) array.first = first;
    array.tasks += std::max<std::int64_t>(0, last - first) / step + 1;
  }
  return array;
}

std::map<std::string, std::string> slurm_variables(const Words& sbatch) {
  std::map<std::string, std::string> variables;
  if (sbatch.empty()) return variables;
  const auto set = [&](const std::optional<std::string>& value, const Words& names) {
    if (value && !value->empty())
      for (const std::string& name : names) variables[name] = *value;
  };
  std::optional<std::string> nodes = last_option(sbatch, {"--nodes", "-N"});
  if (nodes) nodes = nodes->substr(nodes->find('-') + 1);  // "2-4": from 2 to 4.
  set(nodes, {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
  set(last_option(sbatch, {"--ntasks-per-node", "--tasks-per-node"}), {"SLURM_NTASKS_PER_NODE"});
  std::optional<std::string> tasks = last_option(sbatch, {"--ntasks", "-n"});
  if (!tasks && variables.contains("SLURM_NNODES") && variables.contains("SLURM_NTASKS_PER_NODE")) {
    const auto count = rank_count(*nodes), on_node = rank_count(variables["SLURM_NTASKS_PER_NODE"]);
    if (count && on_node) tasks = std::to_string(*count * *on_node);
  }
  set(tasks, {"SLURM_NTASKS", "SLURM_NPROCS"});
  constexpr std::int64_t kMostGpus = 64;
  if (const auto gpus = gpus_asked(sbatch); gpus && *gpus <= kMostGpus) {
    set(std::to_string(*gpus), {"SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"});
    std::string& visible = variables["CUDA_VISIBLE_DEVICES"];
    for (std::int64_t gpu = 0; gpu < *gpus; ++gpu) visible += fmt::format("{}{}", gpu > 0 ? "," : "", gpu);
  }
  std::istringstream exports(last_option(sbatch, {"--export"}).value_or(""));
  for (std::string pair; std::getline(exports, pair, ',');)
    if (const std::size_t equals = pair.find('='); equals != std::string::npos && equals > 0)
      variables[pair.substr(0, equals)] = pair.substr(equals + 1);
  if (const auto array = job_array(sbatch)) {
    variables["SLURM_ARRAY_TASK_ID"] = std::to_string(array->first);
    variables["SLURM_ARRAY_TASK_COUNT"] = std::to_string(array->tasks);
  }
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
      "GPUS_PER_NODE NPROC_PER_NODE MLP_WORKER_GPU KUBERNETES_CONTAINER_RESOURCE_GPU "
      "SLURM_GPUS_ON_NODE SLURM_GPUS_PER_NODE SLURM_NTASKS_PER_NODE");
  static const std::set<std::string> nodes =
      words_of("NNODES NUM_NODES WORLD_SIZE SLURM_NNODES SLURM_JOB_NUM_NODES PET_NNODES MLP_WORKER_NUM");
  if (zero.contains(name)) return "0";
  if (node.contains(name)) return "localhost";
  if (port.contains(name)) return "6000";
  if (one.contains(name)) return "1";
  if (name == "SLURM_JOB_NAME") return "job";
  if (gpus.contains(name))
    return std::to_string(
        std::min(question.num_gpus.value_or(question.machine.gpus_per_node), question.machine.gpus_per_node));
  if (!question.num_gpus) return std::nullopt;
  if (nodes.contains(name))
    return std::to_string(std::max<std::int64_t>(1, *question.num_gpus / question.machine.gpus_per_node));
  if (name == "SLURM_NTASKS" || name == "SLURM_NPROCS") return std::to_string(*question.num_gpus);
  return std::nullopt;
}

}  // namespace foldwise::planner
