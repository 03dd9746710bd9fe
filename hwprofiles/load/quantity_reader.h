#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

#include "costmodel/config/json.h"
#include "hwprofiles/load/fields.h"
#include "hwprofiles/load/profile.h"

// Reads the quantities of a profile's documents, with their provenance and fits, into a Profile. Mistakes are reported.
namespace foldwise::hwprofiles {

/// Citations that the document at `level` may use: its own and those of its bases.
[[nodiscard]] nlohmann::json sources_of(const std::vector<config::Document>& stack, std::size_t level,
                                        config::Diagnostics& diagnostics);

/// Reads `node`, which is the field in `document`. `sources`: citations that it may refer to.
void read_names(const config::Document& document, const NamesField& field, const nlohmann::json& node,
                const nlohmann::json& sources, Profile& profile, config::Diagnostics& diagnostics);
void read_quantity(const config::Document& document, const Field& field, const nlohmann::json& node,
                   const nlohmann::json& sources, Profile& profile, config::Diagnostics& diagnostics);

/// Reads each curve's fit from the same document as its numbers: the uppermost one with the curve.
void read_fits(const std::vector<config::Document>& stack, Profile& profile, config::Diagnostics& diagnostics);

}  // namespace foldwise::hwprofiles
