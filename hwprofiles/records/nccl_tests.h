#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "hwprofiles/records/import.h"
#include "hwprofiles/records/reader.h"

// Reads what nccl-tests prints, as text or as JSON (2.17 and later).
namespace foldwise::hwprofiles {

/// The collective of a program's name: "all_to_all" of "./build/alltoall_perf". Nothing if it is not modelled.
[[nodiscard]] std::optional<std::string> collective_of(std::string_view program);

/// Reads every table of a text. Each has its own collective, ranks and session. Tables and rows that cannot be used
/// are warnings: other collectives, one rank, wrong results. Throws ConfigError if no table can be used, a row cannot
/// be read, or an option is missing or contradicts a table.
[[nodiscard]] Records read_nccl_text(const std::string& text, const std::string& name, const ImportOptions& options);

/// The same of the object that `--json` writes. `text`: for the lines of mistakes.
[[nodiscard]] Records read_nccl_json(const nlohmann::json& root, const std::string& text, const std::string& name,
                                     const ImportOptions& options);

}  // namespace foldwise::hwprofiles
