#include "planner/launch/sandbox.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill is POSIX's.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "planner/launch/files.h"
#include "planner/launch/temporary_folder.h"

namespace foldwise::planner {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostOutput = std::size_t{64} << 20;  ///< Bytes; more output means an endless loop.
constexpr std::size_t kKeptOutput = std::size_t{256} << 10;
constexpr std::size_t kKeptTrace = std::size_t{64} << 10;
constexpr std::size_t kMostProcesses = 200;
constexpr std::size_t kMostMemory = std::size_t{2} << 30;  ///< Bytes, all processes together.
constexpr std::size_t kMostEntries = 2000;                 ///< Entries of a folder that are shown one by one.
constexpr const char* kSmall = "67108864";                 ///< Bytes that the script may write.
constexpr const char* kOwn = "/run/foldwise";              ///< Folder of the sandbox's own files.

/// An open file descriptor; -1 if none.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor(Descriptor&&) = delete;
  Descriptor& operator=(Descriptor&&) = delete;
  void close() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }
  [[nodiscard]] int number() const { return number_; }

 private:
  int number_;
};

void write_file(const fs::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!out.flush()) throw std::system_error(EIO, std::generic_category(), path.string());
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::vector<std::string> stand_in_names() {
  std::vector<std::string> names;
  std::istringstream in(launch_file("programs.txt"));
  for (std::string name; std::getline(in, name);) names.push_back(name);
  return names;
}

/// Writes the files of the sandbox's own folder.
void write_own_files(const SandboxRequest& request, const fs::path& own) {
  for (const char* name : {"runner", "prelude"}) write_file(own / name, launch_file(fmt::format("{}.sh", name)));
  write_file(own / "stand_in", launch_file("stand_in.sh"));
  fs::permissions(own / "stand_in", fs::perms::owner_all | fs::perms::group_exec | fs::perms::others_exec,
                  fs::perm_options::add);
  write_file(own / "script", request.text);
  for (const char* name : {"starts", "trace", "python3"}) write_file(own / name, "");
  fs::create_directory(own / "modules");
  write_file(own / "modules" / "torch.py", launch_file("torch_stand_in.py"));
  write_file(own / "modules" / "sitecustomize.py", launch_file("modules_stand_in.py"));
  fs::create_directory(own / "bin");
  for (const std::string& name : stand_in_names()) fs::create_symlink("../stand_in", own / "bin" / name);
  std::string made;
  for (const MadePath& path : request.made) {
    constexpr std::array<const char*, 4> kKinds = {"file", "folder", "program", "link"};
    made += fmt::format("{}{}{}{}{}{}", kKinds.at(static_cast<std::size_t>(path.kind)), '\0', path.path, '\0',
                        path.target, '\0');
  }
  write_file(own / "made", made);
}

using Words = std::vector<std::string>;

void add(Words& words, std::initializer_list<std::string> more) { words.insert(words.end(), more); }

/// Shows a folder whose entries are read-only and to which files can be added: a new folder with each entry bound.
/// Programs of a cluster among the entries are replaced by stand-ins. Hidden entries are not shown, because they may
/// hold settings and keys.
void show_entries(const fs::path& folder, const fs::path& but, bool only_files, Words& words) {
  static const std::vector<std::string> stand_ins = stand_in_names();
  std::error_code ignored;
  Words binds;
  std::size_t count = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string path = entry.path().string();
    if (entry.path().filename().string().starts_with('.') || entry.path() == but) continue;
    if (++count > kMostEntries) break;
    if (entry.is_symlink(ignored) && !only_files)
      add(binds, {"--symlink", fs::read_symlink(entry.path(), ignored).string(), path});
    else if (entry.is_regular_file(ignored) && !path.starts_with("/usr/") &&
             std::ranges::find(stand_ins, base_of(path)) != stand_ins.end())
      add(binds, {"--symlink", std::string(kOwn) + "/stand_in", path});
    else if (entry.is_regular_file(ignored) || (!only_files && entry.is_directory(ignored)))
      add(binds, {"--ro-bind-try", path, path});
  }
  if (count > kMostEntries && !only_files) return add(words, {"--ro-bind-try", folder.string(), folder.string()});
  add(words, {"--size", kSmall, "--tmpfs", folder.string()});
  words.insert(words.end(), binds.begin(), binds.end());
}

bool is_below(const fs::path& path, const fs::path& folder) {
  const auto [end, at] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end();
}

/// Shows the script's tree: entry by entry for opened folders and every folder on the way to the script.
void show_tree(const SandboxRequest& request, Words& words) {
  std::vector<fs::path> opened(request.opened.begin(), request.opened.end());
  const fs::path script = request.script;
  if (!request.tree.empty())
    for (fs::path folder = script.parent_path(); is_below(folder, request.tree); folder = folder.parent_path()) {
      opened.push_back(folder);
      if (folder == folder.parent_path()) break;
    }
  std::ranges::sort(opened);
  opened.erase(std::unique(opened.begin(), opened.end()), opened.end());
  for (const fs::path& folder : opened) show_entries(folder, script, request.only_files, words);
}

/// Replaces programs of the system that a script may start by path with stand-ins. The system's Python stays available
/// for small computations.
void replace_programs(const fs::path& own, Words& words) {
  std::error_code ignored;
  for (const char* folder : {"/usr/bin", "/usr/local/bin"})
    for (const std::string& name : stand_in_names()) {
      const fs::path program = fs::path(folder) / name;
      if (name == "tail" || name == "sh" || !fs::is_regular_file(program, ignored)) continue;
      const std::string real = fs::canonical(program, ignored).string();
      if (real.empty() || !real.starts_with("/usr/")) continue;
      if (name == "python3") add(words, {"--ro-bind", real, std::string(kOwn) + "/python3"});
      add(words, {"--ro-bind", (own / "stand_in").string(), real});
    }
}

/// What the stand-ins say of the machine.
void add_machine(const Machine& machine, std::map<std::string, std::string>& environment) {
  environment["FOLDWISE_GPU"] = machine.gpu;
  environment["FOLDWISE_GPUS_PER_NODE"] = std::to_string(machine.gpus_per_node);
  environment["FOLDWISE_GPU_MEMORY"] = std::to_string(machine.memory_mib);
  environment["FOLDWISE_CAPABILITY"] = fmt::format("{}.0", machine.capability);
  std::string& versions = environment["FOLDWISE_VERSIONS"];
  for (const auto& [module, version] : machine.versions) versions += fmt::format("{}={} ", module, version);
}

Words sandbox_words(const SandboxRequest& request, const fs::path& own, int info) {
  Words words = {"bwrap", "--unshare-user", "--unshare-all", "--disable-userns", "--die-with-parent", "--new-session"};
  add(words, {"--clearenv", "--uid", "1000", "--gid", "1000", "--hostname", "localhost"});
  add(words, {"--info-fd", std::to_string(info), "--size", kSmall, "--tmpfs", "/", "--ro-bind", "/usr", "/usr"});
  std::error_code ignored;
  for (const char* name : {"bin", "sbin", "lib", "lib32", "lib64"}) {
    const fs::path path = fs::path("/") / name;
    if (fs::is_symlink(path, ignored))
      add(words, {"--symlink", fs::read_symlink(path, ignored).string(), path.string()});
    else
      add(words, {"--ro-bind-try", path.string(), path.string()});
  }
  for (const char* path : {"/etc/alternatives", "/etc/ld.so.cache"}) add(words, {"--ro-bind-try", path, path});
  add(words, {"--proc", "/proc", "--dev", "/dev", "--size", kSmall, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"});
  show_tree(request, words);
  add(words, {"--ro-bind", own.string(), kOwn});
  for (const char* name : {"starts", "trace"})
    add(words, {"--bind", (own / name).string(), std::string(kOwn) + "/" + name});
  replace_programs(own, words);
  add(words, {"--ro-bind", (own / "script").string(), request.script});
  std::map<std::string, std::string> environment = request.environment;
  environment["PATH"] = std::string(kOwn) + "/bin:/usr/local/bin:/usr/bin:/bin";
  environment["HOME"] = "/home/user";
  environment["USER"] = "user";
  environment["LC_ALL"] = "C.UTF-8";
  environment["FOLDWISE_FOLDER"] = request.folder;
  add_machine(request.machine, environment);
  if (request.strict) environment["FOLDWISE_STRICT"] = "1";
  if (request.tolerant) environment["FOLDWISE_TOLERANT"] = "1";
  for (const std::string& word : request.around)
    environment["FOLDWISE_AROUND"] += (environment["FOLDWISE_AROUND"].empty() ? "" : "\x1f") + word;
  for (const auto& [name, value] : environment) add(words, {"--setenv", name, value});
  add(words, {"--", "/bin/bash", "--norc", "--noprofile", std::string(kOwn) + "/runner", request.script});
  words.insert(words.end(), request.arguments.begin(), request.arguments.end());
  return words;
}

/// The number of processes in the sandbox and the bytes that they hold. `child` is its first process.
std::pair<std::size_t, std::size_t> use_of(pid_t child) {
  std::pair<std::size_t, std::size_t> use;
  const std::string root = fmt::format("/proc/{}/root", child), processes = root + "/proc";
  std::error_code ignored;
  if (!fs::exists(root + kOwn + "/runner", ignored)) return use;  // Its root is still the machine's.
  DIR* folder = opendir(processes.c_str());
  if (folder == nullptr) return use;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  while (const dirent* entry = readdir(folder)) {
    const std::string_view name(&entry->d_name[0]);
    if (name.find_first_not_of("0123456789") != std::string_view::npos) continue;
    if (++use.first > kMostProcesses) break;  // A fork bomb starts processes faster than they are read.
    std::ifstream in(fmt::format("{}/{}/statm", processes, name));
    std::size_t size = 0, resident = 0;
    if (in >> size >> resident) use.second += resident * page;
  }
  closedir(folder);
  return use;
}

/// Parses bubblewrap's {"child-pid": 12, ...}; 0 if it is not there yet.
pid_t child_in(const fs::path& info) {
  const std::string text = read_file(info);
  const std::size_t at = text.find("\"child-pid\": ");
  return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + 13);
}

/// Gives this thread the highest priority if it may. It may as root, for whom the process limit of runner.sh does not
/// hold.
class RunsFirst {
 public:
  RunsFirst() {
    const sched_param first{.sched_priority = 1};
    raised_ =
        sched_getscheduler(0) == SCHED_OTHER && sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first) == 0;
  }
  ~RunsFirst() {
    const sched_param usual{.sched_priority = 0};
    if (raised_) sched_setscheduler(0, SCHED_OTHER, &usual);
  }
  RunsFirst(const RunsFirst&) = delete;
  RunsFirst& operator=(const RunsFirst&) = delete;

 private:
  bool raised_ = false;
};

/// Waits for `bwrap`, reads its output, and kills it if it exceeds a limit.
void watch(pid_t bwrap, const Descriptor& output, const fs::path& info, std::chrono::seconds time,
           SandboxResult& result) {
  const RunsFirst runs_first;
  const auto end = std::chrono::steady_clock::now() + time;
  std::size_t printed = 0;
  pid_t child = 0;
  const auto read_output = [&] {
    std::array<char, 65536> buffer{};
    for (ssize_t count = 1; count > 0;) {
      count = read(output.number(), buffer.data(), buffer.size());
      if (count <= 0) return;
      printed += static_cast<std::size_t>(count);
      const std::size_t room = kKeptOutput - std::min(kKeptOutput, result.output.size());
      result.output.append(buffer.data(), std::min(room, static_cast<std::size_t>(count)));
      if (printed > kMostOutput) return;
    }
  };
  for (;;) {
    pollfd waits{.fd = output.number(), .events = POLLIN, .revents = 0};
    constexpr int kMilliseconds = 5;  // A fork bomb starts about ten processes in that time.
    poll(&waits, 1, kMilliseconds);
    if ((waits.revents & POLLIN) == 0 && waits.revents != 0) usleep(kMilliseconds * 1000);
    read_output();
    int status = 0;
    if (const pid_t ended = waitpid(bwrap, &status, WNOHANG); ended == bwrap || (ended < 0 && errno != EINTR)) break;
    if (child == 0) child = child_in(info);
    const auto [processes, memory] = use_of(child);
    if (processes > kMostProcesses) result.killed = fmt::format("it started more than {} processes", kMostProcesses);
    if (memory > kMostMemory) result.killed = fmt::format("it took more than {} GiB of memory", kMostMemory >> 30U);
    if (printed > kMostOutput) result.killed = fmt::format("it printed more than {} MiB", kMostOutput >> 20U);
    if (std::chrono::steady_clock::now() > end) result.killed = fmt::format("it took more than {} s", time.count());
    if (result.killed.empty()) continue;
    if (child > 0) kill(child, SIGKILL);  // First process of its namespace; all others end with it.
    kill(bwrap, SIGKILL);
    while (waitpid(bwrap, &status, 0) < 0 && errno == EINTR) {
    }
    break;
  }
  read_output();
}

/// Parses records of fields that each end with a NUL: "start", number of words around, number of own words, these
/// words, NAME=VALUE..., "end"; or "no command", file, line, word.
void read_records(const std::string& text, SandboxResult& result) {
  std::vector<std::string> fields;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\0', at), text.size());
    fields.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  for (std::size_t i = 0; i + 2 < fields.size(); ++i) {
    if (fields[i] == "no command" && i + 3 < fields.size()) {
      const NoCommand found{
          .file = base_of(fields[i + 1]), .line = std::atoi(fields[i + 2].c_str()), .word = fields[i + 3]};
      if (std::ranges::find(result.no_commands, found) == result.no_commands.end()) result.no_commands.push_back(found);
      i += 3;
    }
    if (fields[i] != "start") continue;
    const auto around = static_cast<std::size_t>(std::strtoul(fields[i + 1].c_str(), nullptr, 10));
    const auto own = static_cast<std::size_t>(std::strtoul(fields[i + 2].c_str(), nullptr, 10));
    std::size_t at = i + 3;
    if (around > fields.size() || own > fields.size() || at + around + own > fields.size()) break;
    Started started{.words = {fields.begin() + static_cast<std::ptrdiff_t>(at),
                              fields.begin() + static_cast<std::ptrdiff_t>(at + around + own)},
                    .around = around,
                    .environment = {}};
    for (at += around + own; at < fields.size() && fields[at] != "end"; ++at)
      if (const std::size_t equals = fields[at].find('='); equals != std::string::npos && equals > 0)
        if (!fields[at].starts_with("FOLDWISE_") && !fields[at].starts_with("BASH_"))
          started.environment[fields[at].substr(0, equals)] = fields[at].substr(equals + 1);
    result.starts.push_back(std::move(started));
    i = at;
  }
}

}  // namespace

SandboxResult run_in_sandbox(const SandboxRequest& request) {
  SandboxResult result;
  const TemporaryFolder temporary;
  const fs::path own = temporary.path() / "own";
  fs::create_directory(own);
  write_own_files(request, own);
  const fs::path info_path = temporary.path() / "info";
  write_file(info_path, "");

  std::array<int, 2> pipe_ends{};
  if (pipe2(pipe_ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    throw std::system_error(errno, std::generic_category(), "pipe");
  const Descriptor output(pipe_ends[0]);
  Descriptor input(pipe_ends[1]);
  fcntl(input.number(), F_SETFL, 0);  // Only the script's end of the pipe blocks.

  constexpr int kInfo = 3;
  Words words = sandbox_words(request, own, kInfo);
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  // bubblewrap gets an empty environment, because the script can read the environment of every process that it sees.
  std::array<char*, 1> environment{};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, input.number(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, input.number(), STDERR_FILENO);
  posix_spawn_file_actions_addopen(&actions, kInfo, info_path.c_str(), O_WRONLY, 0);
  posix_spawn_file_actions_addclosefrom_np(&actions, kInfo + 1);
  pid_t bwrap = 0;
  const int error = posix_spawnp(&bwrap, "bwrap", &actions, nullptr, argv.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  input.close();
  if (error != 0) {
    result.unavailable = fmt::format("bwrap (Debian's package bubblewrap): {}", std::strerror(error));
    return result;
  }
  watch(bwrap, output, info_path, request.time, result);
  const std::string starts = read_file(own / "starts");
  if (!starts.starts_with(std::string_view("ready\0", 6))) {
    result.unavailable = result.output.substr(0, result.output.find('\n'));
    if (result.unavailable.empty()) result.unavailable = "bwrap: " + result.killed;
  }
  read_records(starts, result);
  const std::string trace = read_file(own / "trace");
  result.trace = trace.substr(trace.size() - std::min(trace.size(), kKeptTrace));
  return result;
}

}  // namespace foldwise::planner
