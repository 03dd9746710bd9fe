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

// Programs around Megatron with their own names for its arguments. Each is one file of planner/launch/frontends. It
// says how a start of the program is recognized, maps its names to Megatron's, and has its defaults and the places of
// its model and number of ranks.
namespace foldwise::planner {

/// A start of a front end, translated to Megatron's arguments.
struct Translated {
  std::string front_end;
  std::vector<Argument> arguments;
  std::map<std::string, std::string> environment;  ///< Set by the front end itself.
  std::string defaults;  ///< Name of a set of defaults (planner/run/defaults), if the program has its own.
  std::string model;     ///< The front end's name for it; empty: the arguments have the geometry, or none is given.
  /// Option that names the model; empty: the front end gives models as Megatron's arguments.
  std::string model_option;
  bool length_of_model = false;  ///< Without a sequence length it is the model's.
  std::optional<std::int64_t> num_gpus;
  nlohmann::json fields = nlohmann::json::object();  ///< Fields of the run file that no argument expresses: LoRA.
  std::vector<std::string> notes;
};

/// Nothing if `started` is not a front end. `lines`: lines of the names that occur once in the file.
[[nodiscard]] std::optional<Translated> translated(const Started& started, const std::map<std::string, int>& lines);

}  // namespace foldwise::planner
