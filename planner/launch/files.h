#pragma once
#include <string>
#include <string_view>

#include "costmodel/check.h"

// Files: those of this folder that are built in, and names of others.
namespace foldwise::planner {

namespace launch_data {
[[nodiscard]] const std::string* embedded_file(std::string_view name);  // Made by hwprofiles/embed.cmake.
}

/// The text of a file of planner/launch that is built in: "vocabularies" (.json), "prelude.sh".
[[nodiscard]] inline const std::string& launch_file(std::string_view name) {
  const std::string* text = launch_data::embedded_file(name);
  FW_CHECK(text != nullptr, "a file of planner/launch is not embedded");
  return *text;
}

/// The last part of a path: "a.sh" of "/b/a.sh"; empty where it ends in a slash.
[[nodiscard]] inline std::string base_of(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

}  // namespace foldwise::planner
