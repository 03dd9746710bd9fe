#include "planner/search/strategies/polish.h"

#include "planner/search/strategies/state.h"

namespace foldwise::planner {

bool Polish::step(SearchState& search) {
  search.refine(search.incumbents.sorted());
  return false;
}

}  // namespace foldwise::planner
