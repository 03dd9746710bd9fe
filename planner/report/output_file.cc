#include "planner/report/output_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "costmodel/config/diagnostics.h"

namespace foldwise::planner {

void write_output_file(const std::string& path, const std::string& text) {
  const auto fail = [&](const std::string& what) {
    throw config::ConfigError({{{path, 0, ""}, fmt::format("cannot be written: {}", what)}});
  };
  const std::string beside = path + ".new";
  {
    std::ofstream out(beside, std::ios::binary | std::ios::trunc);
    out << text;
    out.close();
    if (!out) fail(std::strerror(errno));
  }
  std::error_code error;
  std::filesystem::rename(beside, path, error);
  if (error) fail(error.message());
}

}  // namespace foldwise::planner
