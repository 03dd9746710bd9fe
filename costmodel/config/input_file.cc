#include "costmodel/config/input_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "costmodel/config/diagnostics.h"

namespace foldwise::config {
namespace {

/// Far above any profile, list of runs or log; our largest has less than 10 MiB. It stops reads of endless devices.
constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;

std::string read_all(std::istream& in, const std::function<void(std::string)>& fail) {
  std::string text;
  std::vector<char> block(std::size_t{1} << 16);
  while (in) {
    in.read(block.data(), static_cast<std::streamsize>(block.size()));
    text.append(block.data(), static_cast<std::size_t>(in.gcount()));
    if (text.size() > kMaxFileBytes) fail(fmt::format("larger than {} MiB", kMaxFileBytes >> 20U));
  }
  if (in.bad()) fail("cannot be read to its end");
  return text;
}

}  // namespace

bool is_input_file(const std::string& path) {
  std::error_code error;
  return path == "-" || std::filesystem::is_regular_file(path, error);
}

std::ifstream open_input_file(const std::string& path) {
  const auto fail = [&](std::string message) { throw ConfigError({{{path, 0, ""}, std::move(message)}}); };
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) fail("no such file");
  if (status.type() == std::filesystem::file_type::directory) fail("expected a file, found a directory");
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(fmt::format("cannot be read: {}", std::strerror(errno)));
  return in;
}

std::string read_input_file(const std::string& path) {
  const auto fail = [&](std::string message) { throw ConfigError({{{path, 0, ""}, std::move(message)}}); };
  if (path == "-") {  // All readers of stdin get the same text.
    static std::mutex mutex;
    static std::optional<std::string> given;
    const std::lock_guard lock(mutex);
    if (!given) given = read_all(std::cin, fail);
    return *given;
  }
  std::ifstream in = open_input_file(path);
  return read_all(in, fail);
}

}  // namespace foldwise::config
