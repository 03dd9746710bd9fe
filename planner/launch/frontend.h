#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/launch/arguments.h"
#include "planner/launch/sandbox.h"

// Programs around Megatron that have names of their own for its arguments. Each is one file of
// planner/launch/frontends: how its start is known, its names and Megatron's, what it sets where nothing is given,
// where its model and its number of ranks stand.
namespace foldwise::planner {

/// A start in Megatron's own arguments.
struct Translated {
  std::string front_end;
  std::vector<Argument> arguments;
  std::map<std::string, std::string> environment;  ///< That the front end sets itself.
  std::string defaults;      ///< A set of them (planner/run/defaults), where the program's own are another one.
  std::string model;         ///< As it names it; empty: the arguments have the geometry, or nothing has.
  std::string model_option;  ///< That it is named by; empty: the front end's models are Megatron's arguments.
  std::optional<std::int64_t> num_gpus;
  nlohmann::json fields = nlohmann::json::object();  ///< Of the run file, that no argument of Megatron's says: LoRA.
  std::vector<std::string> notes;
};

/// Nothing: `started` is no front end's. `lines`: of the names that stand in the file once.
[[nodiscard]] std::optional<Translated> translated(const Started& started, const std::map<std::string, int>& lines);

/// The built-in model of a name as people write it: of an organisation, in any case, with "-Instruct", a date or the
/// like behind it, or a folder of its name; empty: none.
[[nodiscard]] std::string published_model(const std::string& name);

}  // namespace foldwise::planner
