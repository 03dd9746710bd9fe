#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/launch/script.h"

// Environment variables that shells, launchers and schedulers set for a script.
namespace foldwise::planner {

/// Whether a shell or we set this variable.
[[nodiscard]] bool is_shells(const std::string& name);

/// The options of a script's #SBATCH lines.
[[nodiscard]] std::vector<std::string> sbatch_words(const std::string& text);

/// Variables that Slurm sets for a job's script.
[[nodiscard]] std::map<std::string, std::string> slurm_variables(const std::vector<std::string>& sbatch);

/// The value of a variable that launchers or schedulers set, if a script reads it without setting it.
[[nodiscard]] std::optional<std::string> launchers_value(const std::string& name, const ScriptQuestion& question);

}  // namespace foldwise::planner
