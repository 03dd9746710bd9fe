#pragma once
#include "planner/launch/sandbox.h"

namespace foldwise::planner {

/// Whether scripts can be evaluated here. Containers may forbid the necessary namespaces.
inline bool has_sandbox() {
  static const std::string why = [] {
    SandboxRequest request;
    request.script = "/sandbox/x";
    request.folder = "/sandbox";
    return run_in_sandbox(request).unavailable;
  }();
  return why.empty();
}

}  // namespace foldwise::planner
