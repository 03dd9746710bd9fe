#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "costmodel/step/communication.h"

namespace foldwise::planner {

/// The communication part of the answer of `predict`: docs/output.md#predict.
[[nodiscard]] nlohmann::json communication_json(const costmodel::CommunicationReport& report);
[[nodiscard]] std::string communication_text(const costmodel::CommunicationReport& report);

}  // namespace foldwise::planner
