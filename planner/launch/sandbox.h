#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

// bash evaluates a launch script in a sandbox (bubblewrap): no network, a file system of its own that sees the system's
// programs and the script's folder read-only, an empty home, a clean environment, limits on time, processes, memory,
// files and output. Programs of a cluster (torchrun, python, srun, docker, nvidia-smi, ...) are stand-ins
// (planner/launch/sandbox): they write down what would be started.
namespace foldwise::planner {

/// What the sandbox makes before the script runs, where it is not there.
struct MadePath {
  enum class Kind : std::uint8_t { kFile, kFolder, kProgram, kLink };
  Kind kind = Kind::kFile;
  std::string path;
  std::string target{};  ///< Of a link.
  bool operator==(const MadePath&) const = default;
};

struct SandboxRequest {
  std::string text;    ///< The script.
  std::string script;  ///< Its path in the sandbox, absolute.
  std::string folder;  ///< Where it is started; absolute.
  /// A folder of the machine that it may read, absolute; empty: none. Of a folder that holds more than work (a home,
  /// /tmp), `only_files`: the files in it and no folder.
  std::string tree;
  bool only_files = false;
  std::vector<std::string> arguments;
  std::map<std::string, std::string> environment;  ///< All of it, but for PATH and HOME.
  std::vector<std::string> around;                 ///< Words of what starts the script: "--nodes=4" of its #SBATCH.
  std::vector<std::string> opened;                 ///< Folders of the machine to which files can be added.
  std::vector<MadePath> made;
  bool strict = false;    ///< A variable that was never set ends the script (set -u).
  bool tolerant = false;  ///< A command that fails does not (no set -e).
  std::int64_t gpus_per_node = 8;
  std::string gpu = "NVIDIA GPU";  ///< As nvidia-smi calls it.
  std::chrono::seconds time{10};   ///< Until it is ended.
};

/// A program of the cluster as the script started it.
struct Started {
  std::vector<std::string> words;
  std::size_t around = 0;  ///< Of these, words of the programs around it (srun, docker); they come first.
  std::map<std::string, std::string> environment;
  bool operator==(const Started&) const = default;
};

struct SandboxResult {
  std::string unavailable;  ///< Why there is no sandbox here; empty: there is one, and the script was run.
  std::vector<Started> starts;
  std::string output;  ///< The first of what the script printed.
  std::string trace;   ///< The last of bash's trace (set -x).
  std::string killed;  ///< "it took more than 10 s"; empty: it ended by itself.
};

[[nodiscard]] SandboxResult run_in_sandbox(const SandboxRequest& request);

}  // namespace foldwise::planner
