// CTest runs cases of one program side by side: each process has a folder of its own, which testing::TempDir() returns.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace {

/// Made before main(), and removed at the end of the process that made it.
class OwnDirectory {
 public:
  OwnDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "foldwise-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
    setenv("TEST_TMPDIR", path_.c_str(), 1);
  }
  OwnDirectory(const OwnDirectory&) = delete;
  OwnDirectory& operator=(const OwnDirectory&) = delete;
  ~OwnDirectory() {
    std::error_code ignored;
    if (getpid() == owner_) std::filesystem::remove_all(path_, ignored);
  }

 private:
  pid_t owner_ = getpid();
  std::filesystem::path path_;
};

const OwnDirectory own_directory;

}  // namespace
