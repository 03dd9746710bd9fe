#include "planner/cli/outputs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/config/diagnostics.h"
#include "costmodel/config/output_file.h"
#include "planner/cli/commands.h"

namespace foldwise::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Value names in --help, which mark an option as an output.
constexpr const char* kFile = "FILE";
constexpr const char* kFolder = "DIRECTORY";

struct Output {
  std::string option, path;
};

/// Adds the parts of an option's text that may be paths: "system=mine.json,h200" has three.
void add_words(const std::string& text, std::vector<std::string>& words) {
  words.push_back(text);
  if (text.find('=') == std::string::npos) return;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of("=,", at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
}

/// Adds the files that reading `path` reads: itself and, if it is JSON, the files that it names, recursively.
void add_inputs(const std::string& path, std::set<std::string>& inputs) {
  static const std::set<std::string> name_files = {"base", "defaults", "extends", "model", "system"};  // Keys.
  std::error_code error;
  if (fs::is_fifo(path, error)) inputs.insert(path);  // A FIFO can only be read once, by the command.
  if (!fs::is_regular_file(path, error) || !inputs.insert(path).second) return;
  std::set<std::string> names;
  bool names_file = false;
  // Keeps no values: the file may have any size and depth.
  const auto take = [&](int /*depth*/, json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::key) names_file = name_files.contains(value.get_ref<const std::string&>());
    if (event == json::parse_event_t::value && value.is_string() && names_file) names.insert(value.get<std::string>());
    return event == json::parse_event_t::object_start || event == json::parse_event_t::array_start ||
           event == json::parse_event_t::key;
  };
  std::ifstream in(path, std::ios::binary);
  try {
    const json nothing = json::parse(in, take, false);
  } catch (const std::ios_base::failure&) {  // The command that reads it reports the error.
  }
  for (const std::string& name : names)
    for (const fs::path& place : {fs::path(path).parent_path() / name, fs::path(name)})
      add_inputs(place.lexically_normal().string(), inputs);
}

/// Whether `plan` or `calibrate` may write a file of this name into `folder`.
bool written_into(const std::string& folder, const std::string& file) {
  std::error_code error;
  const std::string name = fs::path(file).filename().string();
  return (name.starts_with("plan-") || name == "profile.json") &&
         fs::equivalent(folder, fs::absolute(file, error).parent_path(), error);
}

bool is_stdout(const std::string& path) {
  struct stat file {
  }, out{};
  return ::stat(path.c_str(), &file) == 0 && ::fstat(STDOUT_FILENO, &out) == 0 && S_ISREG(file.st_mode) &&
         file.st_dev == out.st_dev && file.st_ino == out.st_ino;
}

}  // namespace

CLI::Option* add_output_file(CLI::App& command, const std::string& name, std::string& path, const std::string& what) {
  return command.add_option(name, path, what)->type_name(kFile)->group(kOutput);
}

CLI::Option* add_output_folder(CLI::App& command, const std::string& name, std::string& path, const std::string& what) {
  return command.add_option(name, path, what)->type_name(kFolder)->group(kOutput);
}

void check_outputs(const CLI::App& command) {
  config::Diagnostics diagnostics;
  std::vector<Output> files;
  std::vector<std::string> folders;
  std::vector<std::string> words;
  for (const CLI::Option* option : command.get_options()) {
    const std::string type = option->get_type_name(), name = option->get_name();
    for (const std::string& text : option->results()) {
      if (type != kFile && type != kFolder) {
        add_words(text, words);
        continue;
      }
      const std::string wrong = type == kFile ? config::output_file_mistake(text) : config::output_folder_mistake(text);
      if (!wrong.empty())
        diagnostics.error({text.empty() ? "command line" : text, 0, text.empty() ? name : ""}, wrong);
      else if (type == kFile)
        files.push_back({name, text});
      else
        folders.push_back(text);
    }
  }
  std::set<std::string> inputs;
  if (!files.empty() || !folders.empty())
    for (const std::string& word : words) add_inputs(word, inputs);
  for (const std::string& folder : folders)
    for (const std::string& input : inputs)
      if (written_into(folder, input))
        diagnostics.error({input, 0, ""}, fmt::format("is read, and would be replaced by what goes into {}", folder));
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto& [option, path] = files[i];
    const auto refuse = [&, &where = path, &name = option](const std::string& why) {
      diagnostics.error({where, 0, ""}, fmt::format("{} would replace it: {}", name, why));
    };
    for (const std::string& input : inputs)
      if (config::same_file(path, input)) refuse(fmt::format("it is read too, as {}", input));
    for (std::size_t k = 0; k < i; ++k)
      if (config::same_file(path, files[k].path)) refuse(fmt::format("{} writes it too", files[k].option));
    if (is_stdout(path)) refuse("stdout goes there");
  }
  diagnostics.throw_if_any();
}

namespace {

/// Paths that a signal handler removes. It may only call unlink() and rmdir().
struct LeftBehind {
  std::array<char, PATH_MAX> lock{};
  std::vector<std::string> folders;
};
LeftBehind& left_behind() {
  static LeftBehind all;
  return all;
}

extern "C" void remove_and_end(int signal) {
  remove_left_behind();
  std::signal(signal, SIG_DFL);
  ::raise(signal);
}

constexpr std::array kEnding = {SIGINT, SIGTERM, SIGHUP};

}  // namespace

void remove_left_behind() noexcept {
  const LeftBehind& all = left_behind();
  if (all.lock.front() != '\0') ::unlink(all.lock.data());
  for (const std::string& folder : all.folders) ::rmdir(folder.c_str());
}

OwnFolder::OwnFolder(std::string path) : path_(std::move(path)), lock_((fs::path(path_) / ".foldwise-lock").string()) {
  std::error_code error;
  for (fs::path missing = fs::absolute(path_).lexically_normal(); !fs::exists(missing, error);
       missing = missing.parent_path())
    if (missing.has_filename()) made_.push_back(missing);
  fs::create_directories(path_, error);
  if (error) fail(fmt::format("cannot be made: {}", error.message()));
  for (;;) {
    // Programs that we start inherit the lock, and keep it if we are killed.
    descriptor_ = ::open(lock_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
    if (descriptor_ < 0) fail(fmt::format("cannot be written: {}", std::strerror(errno)));
    // File systems without locks give no protection.
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      ::close(std::exchange(descriptor_, -1));
      fail("another foldwise writes into it");
    }
    struct stat mine {
    }, there{};
    if (::fstat(descriptor_, &mine) == 0 && ::stat(lock_.c_str(), &there) == 0 && mine.st_ino == there.st_ino) break;
    ::close(descriptor_);  // Its last owner removed it between our open() and flock().
  }
  LeftBehind& all = left_behind();
  for (const fs::path& folder : made_) all.folders.push_back(folder.string());
  fs::absolute(lock_).string().copy(all.lock.data(), all.lock.size() - 1);
  for (const int signal : kEnding)
    if (std::signal(signal, remove_and_end) == SIG_IGN) std::signal(signal, SIG_IGN);  // nohup
}

OwnFolder::~OwnFolder() { give_up(); }

void OwnFolder::give_up() {
  left_behind().lock.front() = '\0';
  if (descriptor_ >= 0) {
    ::unlink(lock_.c_str());
    ::close(descriptor_);
  }
  for (const fs::path& folder : made_) ::rmdir(folder.c_str());  // Fails if the folder is not empty.
}

void OwnFolder::fail(const std::string& what) {
  give_up();
  throw config::ConfigError({{{path_, 0, ""}, what}});
}

}  // namespace foldwise::cli
