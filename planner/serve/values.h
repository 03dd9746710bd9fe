#pragma once
#include <nlohmann/json.hpp>

#include "costmodel/config/json.h"

namespace foldwise::serve {

/// Which values of each field rules refuse in the run that the body is, all else left as it is:
///   {run, refused: [{rule, reason}], fields: {KEY: {value, applies, values: [{value, refused: [{rule, reason}]}]}}}
/// `run` is the complete run file. Fields with names, switches, and sizes that `plan` tries are there. `rule` is null
/// where the reader of run files refuses the value.
[[nodiscard]] nlohmann::json values_json(const config::Document& document);

}  // namespace foldwise::serve
