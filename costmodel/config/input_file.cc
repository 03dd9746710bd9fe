#include "costmodel/config/input_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "costmodel/config/diagnostics.h"

namespace foldwise::config {
namespace {

/// Far above any profile, list of runs or log (the largest of ours has under 10 MiB); stops reads of endless devices.
constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;

}  // namespace

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
  std::ifstream in = open_input_file(path);
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

}  // namespace foldwise::config
