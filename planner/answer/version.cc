#include "planner/answer/version.h"

namespace foldwise::planner {

std::string version() {
  const std::string commit = FW_COMMIT;
  return "foldwise " FW_VERSION + (commit.empty() ? "" : " (" + commit + ")");
}

}  // namespace foldwise::planner
