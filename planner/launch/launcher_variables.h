#pragma once
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/launch/script.h"

// Environment variables that shells, launchers and schedulers set for a script.
namespace foldwise::planner {

/// A variable that the script reads and nobody set.
struct Unset {
  std::string name;
  int line = 0;
  [[nodiscard]] int position() const {  ///< 2 for "$2"; 0 if it has a name.
    return name.front() == '$' ? std::atoi(name.c_str() + 1) : 0;
  }
  [[nodiscard]] std::string text() const { return name.front() == '$' ? name : "$" + name; }
};

/// Parses bash's "SCRIPT: line 6: TP: unbound variable".
[[nodiscard]] std::vector<Unset> unset_in(const std::string& output);

/// Whether a shell or we set this variable.
[[nodiscard]] bool is_shells(const std::string& name);

/// The options of a script's #SBATCH lines. sbatch reads them until the first command.
[[nodiscard]] std::vector<std::string> sbatch_words(const std::string& text);

/// Jobs that differ in SLURM_ARRAY_TASK_ID.
struct JobArray {
  std::int64_t first = 0, tasks = 0;
};
/// The array of "--array=0-15:4%2" or "--array=1,3"; nothing if there is none.
[[nodiscard]] std::optional<JobArray> job_array(const std::vector<std::string>& sbatch);

/// Variables that Slurm sets for a job's script.
[[nodiscard]] std::map<std::string, std::string> slurm_variables(const std::vector<std::string>& sbatch);

/// The value of a variable that launchers or schedulers set, if a script reads it without setting it.
[[nodiscard]] std::optional<std::string> launchers_value(const std::string& name, const ScriptQuestion& question);

}  // namespace foldwise::planner
