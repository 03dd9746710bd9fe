#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "planner/launch/machine.h"

// bash evaluates a launch script in a sandbox (bubblewrap). The sandbox has no network, an empty home, a clean
// environment, and limits on time, processes, memory, files and output. The system's programs and the script's folder
// are read-only. Programs of a cluster (torchrun, python, srun, docker, nvidia-smi, ...) are replaced by stand-ins
// (planner/launch/sandbox), which record what would be started.
namespace foldwise::planner {

/// A path that the sandbox creates before the script runs, if it does not exist.
struct MadePath {
  enum class Kind : std::uint8_t { kFile, kFolder, kProgram, kLink };
  Kind kind = Kind::kFile;
  std::string path;
  std::string target{};  ///< Target of a link.
  bool operator==(const MadePath&) const = default;
};

struct SandboxRequest {
  std::string text;    ///< The script.
  std::string script;  ///< Its path in the sandbox, absolute.
  std::string folder;  ///< Folder where it is started; absolute.
  /// A folder of the machine that the script may read, absolute; empty: none. `only_files`: it sees only the files
  /// directly in it. Set for folders with more than work (a home, /tmp).
  std::string tree;
  bool only_files = false;
  std::vector<std::string> arguments;
  std::map<std::string, std::string> environment;  ///< The whole environment except PATH and HOME.
  std::vector<std::string> around;  ///< Words of the program that starts the script: "--nodes=4" of its #SBATCH lines.
  std::vector<std::string> opened;  ///< Folders of the machine where the script may add files.
  std::vector<MadePath> made;
  bool strict = false;    ///< An unset variable ends the script (set -u).
  bool tolerant = false;  ///< A command that fails does not end the script (no set -e).
  Machine machine;
  std::chrono::seconds time{10};  ///< Time limit.
};

/// A start of a program of the cluster.
struct Started {
  std::vector<std::string> words;
  std::size_t around = 0;  ///< Number of leading words that belong to the programs around it (srun, docker).
  std::map<std::string, std::string> environment;
  bool operator==(const Started&) const = default;
};

/// A line that bash took for a command and that begins with an option or a number.
struct NoCommand {
  std::string file;  ///< Last part of its name; "environment" and the like for texts of bash -c.
  int line = 0;
  std::string word;
  bool operator==(const NoCommand&) const = default;
};

struct SandboxResult {
  std::string unavailable;  ///< Why there is no sandbox here; empty: the script was run.
  std::vector<Started> starts;
  std::vector<NoCommand> no_commands;
  std::string output;  ///< The beginning of the script's output.
  std::string trace;   ///< The end of bash's trace (set -x).
  std::string killed;  ///< Why it was killed: "it took more than 10 s"; empty: it ended by itself.
};

[[nodiscard]] SandboxResult run_in_sandbox(const SandboxRequest& request);

}  // namespace foldwise::planner
