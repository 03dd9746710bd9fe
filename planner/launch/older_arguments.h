#pragma once
#include <string>
#include <vector>

#include "planner/launch/arguments.h"

// Arguments of releases before the oldest that Foldwise knows, in the words of later releases.
namespace foldwise::planner {

/// Replaces older flags and choices of a command by those that took their place. Says it in `notes`. A `release` that
/// the user names refuses the choices that it has not; null: none is named.
void modernize(std::vector<Argument>& arguments, const Release* release, std::vector<std::string>& notes);
/// The same for the members of a log or a configuration.
void modernize(Settings& settings, std::vector<std::string>& notes);

}  // namespace foldwise::planner
