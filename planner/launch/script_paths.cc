#include "planner/launch/script_paths.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <regex>
#include <sstream>
#include <system_error>
#include <utility>

#include "planner/launch/files.h"

namespace foldwise::planner {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostFolders = 3;  // Folders above the script's that are searched.

/// Whether a folder holds more than work: a home, a folder above one, or "/tmp".
bool holds_more(const fs::path& path) {
  const char* home_name = std::getenv("HOME");
  const fs::path home = fs::path(home_name != nullptr ? home_name : "/root").lexically_normal();
  const auto [end, at] = std::mismatch(path.begin(), path.end(), home.begin(), home.end());
  return end == path.end() || path == home || std::distance(path.begin(), path.end()) <= 2;
}

/// Lets the script add files to this folder, if it sees the folder.
bool open_folder(fs::path folder, SandboxRequest& request) {
  std::error_code ignored;
  while (!fs::is_directory(folder, ignored) && folder.has_relative_path()) folder = folder.parent_path();
  const std::string path = folder.string();
  const bool seen = path.starts_with("/usr/") ||
                    (!request.only_files && !request.tree.empty() && (path + "/").starts_with(request.tree + "/"));
  if (!seen || std::ranges::find(request.opened, path) != request.opened.end()) return false;
  request.opened.push_back(path);
  return true;
}

bool make_path(MadePath::Kind kind, const std::string& path, SandboxRequest& request) {
  MadePath made{.kind = kind, .path = path.starts_with('/') ? path : request.folder + "/" + path};
  if (path.empty() || std::ranges::find(request.made, made) != request.made.end()) return false;
  if (path.starts_with("/usr/")) open_folder(fs::path(path).parent_path(), request);
  request.made.push_back(std::move(made));
  return true;
}

/// For a checkout without .git: if the script names a file outside its tree, the tree becomes the folder above.
bool widen(const fs::path& file, SandboxRequest& request) {
  std::error_code ignored;
  const auto holds = [&](const fs::path& folder) { return file.string().starts_with(folder.string() + "/"); };
  if (!fs::is_regular_file(file, ignored) || holds(request.tree)) return false;
  fs::path up = fs::path(request.tree).parent_path();
  for (std::size_t i = 0; i < kMostFolders && !holds_more(up); ++i, up = up.parent_path())
    if (holds(up)) return request.tree = up.string(), true;
  return false;
}

/// The same for a relative path, if the script has changed to a folder above.
bool widen_to(const std::string& path, SandboxRequest& request) {
  std::error_code ignored;
  if (path.starts_with('/')) return false;
  fs::path up = fs::path(request.tree).parent_path();
  for (std::size_t i = 0; i < kMostFolders && !holds_more(up); ++i, up = up.parent_path())
    if (fs::is_regular_file(up / path, ignored)) return request.tree = up.string(), true;
  return false;
}

/// The script may name a file by its path in the cluster's checkout ("/root/slime/scripts/models/x.sh"). Links the
/// file here whose path ends in the same three or two parts.
bool take_elsewhere(const fs::path& file, SandboxRequest& request) {
  std::error_code ignored;
  constexpr std::size_t kMostParts = 5;
  if (file.extension() != ".sh") return false;
  std::vector<fs::path> ends = {file.filename()};  // "x.sh", "models/x.sh", ...
  for (fs::path up = file.parent_path(); up.has_filename() && ends.size() < kMostParts; up = up.parent_path())
    ends.push_back(up.filename() / ends.back());
  for (std::size_t parts = ends.size(); parts-- > 1;) {
    fs::path up = request.tree;
    for (std::size_t i = 0; i <= kMostFolders && !holds_more(up); ++i, up = up.parent_path()) {
      const fs::path here = up / ends[parts];
      if (!fs::is_regular_file(here, ignored)) continue;
      MadePath made{.kind = MadePath::Kind::kLink, .path = file.string(), .target = here.string()};
      if (std::ranges::find(request.made, made) != request.made.end()) return false;
      request.tree = up.string();
      request.made.push_back(std::move(made));
      return true;
    }
  }
  return false;
}

/// Provides programs that the script names by a path that does not exist here.
bool start_programs(const SandboxResult& result, SandboxRequest& request) {
  static const std::regex program(R"(^\++ (?:[A-Za-z_]+=(?:'[^']*'|[^ ']*) )*(/[^ '=]{1,4096})( |$))");
  std::istringstream in(result.trace);
  std::error_code ignored;
  bool changed = false;
  for (std::string line; std::getline(in, line);) {
    std::smatch found;
    const std::string begin = line.substr(0, 8192);
    if (std::regex_search(begin, found, program) && !fs::exists(found[1].str(), ignored))
      changed |= make_path(MadePath::Kind::kProgram, found[1], request);
  }
  return changed;
}

bool make_tested(const SandboxResult& result, SandboxRequest& request) {
  static const std::regex test(R"(^\++ (?:\[\[|'\['|test|\[) [^\n]*-([defrsxL]) '?([^' \n]{1,4096}))");
  std::vector<std::pair<std::string, std::string>> tested;
  std::istringstream in(result.trace);
  for (std::string line; std::getline(in, line);)
    if (std::smatch found; line.size() < 8192 && std::regex_search(line, found, test))
      tested.emplace_back(found[1], found[2]);
  constexpr std::size_t kLast = 8;
  for (std::size_t i = 0; i < std::min(kLast, tested.size()); ++i) {
    const auto& [kind, path] = tested[tested.size() - 1 - i];
    const bool folder = kind == "d" || path.ends_with('/');
    if (make_path(folder ? MadePath::Kind::kFolder : MadePath::Kind::kFile, path, request)) return true;
  }
  return false;
}

}  // namespace

void choose_tree(const ScriptQuestion& question, SandboxRequest& request) {
  std::error_code ignored;
  const std::string name = base_of(question.file).empty() ? "launch.sh" : base_of(question.file);
  request.folder = "/sandbox";
  request.script = "/sandbox/" + name;
  const fs::path folder = question.folder.empty() ? fs::path() : fs::canonical(question.folder, ignored);
  if (folder.empty()) return;
  request.folder = folder.string();
  request.script = (folder / name).string();
  request.tree = folder.string();
  if (holds_more(folder)) {
    request.only_files = true;
    return;
  }
  for (fs::path up = folder; !holds_more(up); up = up.parent_path())
    if (fs::exists(up / ".git", ignored)) {
      request.tree = up.string();
      break;
    }
}

std::vector<std::string> missing_paths(const std::string& output) {
  static const std::regex missing(R"((?:line \d+|bash): ([^\n]{1,4096}?): No such file or directory)");
  std::vector<std::string> paths;
  for (std::sregex_iterator it(output.begin(), output.end(), missing), end; it != end; ++it) {
    const std::string text = (*it)[1],
                      path = text.substr(text.rfind(": ") == std::string::npos ? 0 : text.rfind(": ") + 2);
    if (!path.starts_with("--")) paths.push_back(path);  // An option where bash expects a command.
  }
  return paths;
}

bool find_beside(const std::string& path, SandboxRequest& request) {
  const fs::path file = path.starts_with('/') ? fs::path(path) : fs::path(request.folder) / path;
  return !request.tree.empty() && !request.only_files &&
         (widen(file.lexically_normal(), request) || widen_to(path, request) ||
          take_elsewhere(file.lexically_normal(), request));
}

bool mend_paths(const std::vector<std::string>& missing, const SandboxResult& result, SandboxRequest& request) {
  static const std::regex frozen(
      R"((?:line \d+: |['\u2018]|: )([^\n:'\u2019]{1,4096})['\u2019]?: Read-only file system)");
  const std::string& output = result.output;
  std::error_code ignored;
  bool changed = false;
  for (const std::string& path : missing) {
    if (!path.starts_with('/') && !request.tree.empty() && request.folder != request.tree &&
        fs::exists(fs::path(request.tree) / path, ignored)) {
      request.folder = request.tree;
      return true;
    }
    const bool program =
        path.find("/bin/") != std::string::npos && !path.ends_with(".sh") && base_of(path) != "activate";
    changed |= make_path(program ? MadePath::Kind::kProgram : MadePath::Kind::kFile, path, request);
  }
  for (std::sregex_iterator it(output.begin(), output.end(), frozen), end; it != end; ++it) {
    const std::string path = (*it)[1];
    changed |=
        open_folder((path.starts_with('/') ? fs::path(path) : fs::path(request.folder) / path).parent_path(), request);
  }
  return start_programs(result, request) || changed || make_tested(result, request);
}

}  // namespace foldwise::planner
