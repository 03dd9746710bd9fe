#include "costmodel/config/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "costmodel/config/diagnostics.h"

namespace foldwise::config {
namespace {

namespace fs = std::filesystem;

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int number() const { return number_; }
  /// 0, or -1 with errno. A network file system may report only here that it is full.
  int close() { return ::close(std::exchange(number_, -1)); }

 private:
  int number_;
};

std::string cannot_be_written(int error) { return fmt::format("cannot be written: {}", std::strerror(error)); }

[[noreturn]] void fail(const std::string& path, int error) {
  throw ConfigError({{{path, 0, ""}, cannot_be_written(error)}});
}

/// Follows symbolic links to a missing or a regular file.
fs::path followed(fs::path path) {
  constexpr int kMostLinks = 40;  // Linux has the same limit.
  std::error_code error;
  for (int links = 0; links < kMostLinks && fs::is_symlink(path, error); ++links)
    path = path.parent_path() / fs::read_symlink(path, error);
  return path;
}

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

/// 0, or the errno of creating or renaming a file in it.
int folder_error(const fs::path& folder) {
  struct stat found {};
  if (::stat(folder.c_str(), &found) != 0) return errno;
  if (!S_ISDIR(found.st_mode)) return ENOTDIR;
  return ::access(folder.c_str(), W_OK | X_OK) == 0 ? 0 : errno;
}

/// 0, or an errno.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor, text.data(), text.size());
    if (count < 0 && errno != EINTR) return errno;
    if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
  }
  return 0;
}

/// 0, or an errno. File systems without fsync are accepted.
int sync(int descriptor) { return ::fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP ? 0 : errno; }

/// Writes a new file beside `path` and returns its name.
std::string write_beside(const std::string& path, const fs::path& target, std::string_view text) {
  constexpr int kMostTries = 100;  // Names left by killed programs with our process number.
  std::string name;
  int number = -1;
  for (int i = 0; i < kMostTries && number < 0; ++i) {
    name = fmt::format("{}.new-{}-{}", target.string(), ::getpid(), i);
    number = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (number < 0 && errno != EEXIST) break;
  }
  if (number < 0) fail(path, errno);
  Descriptor file(number);
  struct stat old {};
  if (::stat(target.c_str(), &old) ==
      0) {  // The new file gets the old one's owner and mode, as far as we may set them.
    if (::fchown(number, old.st_uid, old.st_gid) == 0 || old.st_uid == ::geteuid()) ::fchmod(number, old.st_mode);
  }
  int error = write_all(number, text);
  if (error == 0) error = sync(number);
  if (file.close() != 0 && error == 0) error = errno;
  if (error != 0) {
    ::unlink(name.c_str());
    fail(path, error);
  }
  return name;
}

}  // namespace

std::string output_file_mistake(const std::string& path) {
  if (path.empty()) return "expected the path of a file, found nothing";
  struct stat found {};
  if (::stat(path.c_str(), &found) == 0) {
    if (S_ISDIR(found.st_mode)) return cannot_be_written(EISDIR);
    if (::access(path.c_str(), W_OK) != 0) return cannot_be_written(errno);
    if (!S_ISREG(found.st_mode)) return "";
  } else if (errno != ENOENT) {
    return cannot_be_written(errno);
  }
  const fs::path target = followed(path);
  if (!target.has_filename()) return cannot_be_written(EISDIR);
  const int error = folder_error(folder_of(target));
  return error == 0 ? "" : cannot_be_written(error);
}

std::string output_folder_mistake(const std::string& path) {
  if (path.empty()) return "expected the path of a directory, found nothing";
  std::error_code error;
  fs::path folder = fs::absolute(path, error).lexically_normal();
  while (fs::symlink_status(folder, error).type() == fs::file_type::not_found && folder != folder.root_path())
    folder = folder.has_filename() ? folder.parent_path() : folder.parent_path().parent_path();
  const int wrong = folder_error(folder);
  return wrong == 0 ? "" : cannot_be_written(wrong);
}

bool same_file(const std::string& a, const std::string& b) {
  struct stat first {
  }, second{};
  const bool has_a = ::stat(a.c_str(), &first) == 0, has_b = ::stat(b.c_str(), &second) == 0;
  const bool kept = S_ISREG(first.st_mode) || S_ISFIFO(first.st_mode);
  if (has_a && has_b) return kept && first.st_dev == second.st_dev && first.st_ino == second.st_ino;
  if (has_a || has_b) return false;
  const fs::path to_a = followed(a), to_b = followed(b);
  std::error_code error;
  return to_a.filename() == to_b.filename() && fs::equivalent(folder_of(to_a), folder_of(to_b), error);
}

void write_output_file(const std::string& path, std::string_view text) {
  if (const std::string mistake = output_file_mistake(path); !mistake.empty())
    throw ConfigError({{{path, 0, ""}, mistake}});
  struct stat found {};
  if (::stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    Descriptor device(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (device.number() < 0) fail(path, errno);
    if (const int error = write_all(device.number(), text); error != 0) fail(path, error);
    return;
  }
  StagedFiles one;
  one.add(path, text);
  one.commit();
}

StagedFiles::~StagedFiles() {
  for (const Staged& file : files_) ::unlink(file.beside.c_str());
}

void StagedFiles::add(const std::string& path, std::string_view text) {
  if (const std::string mistake = output_file_mistake(path); !mistake.empty())
    throw ConfigError({{{path, 0, ""}, mistake}});
  const fs::path target = followed(path);
  files_.push_back({path, write_beside(path, target, text), target.string()});
}

void StagedFiles::commit() {
  std::set<fs::path> folders;
  while (!files_.empty()) {
    const Staged& file = files_.front();
    if (::rename(file.beside.c_str(), file.target.c_str()) != 0) fail(file.path, errno);
    folders.insert(folder_of(file.target));
    files_.erase(files_.begin());
  }
  for (const fs::path& path : folders) {
    const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder.number() >= 0)
      // The files are already there; the sync only protects them from a crash.
      static_cast<void>(sync(folder.number()));
  }
}

}  // namespace foldwise::config
