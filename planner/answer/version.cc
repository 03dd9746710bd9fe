#include "planner/answer/version.h"

namespace foldwise::planner {

nlohmann::json with_schema(nlohmann::json answer) {
  answer["schema"] = kSchema;
  return answer;
}

std::string version() {
  const std::string commit = FW_COMMIT;
  return "foldwise " FW_VERSION + (commit.empty() ? "" : " (" + commit + ")");
}

}  // namespace foldwise::planner
