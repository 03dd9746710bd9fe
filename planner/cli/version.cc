#include "planner/cli/commands.h"

namespace foldwise::cli {

std::string version() {
  const std::string commit = FW_COMMIT;
  return "foldwise " FW_VERSION + (commit.empty() ? "" : " (" + commit + ")");
}

}  // namespace foldwise::cli
