// config.json of a model: every model that is accepted has its parameters counted.
#include "costmodel/config/json.h"
#include "costmodel/ops/block_ops.h"
#include "planner/models/models.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return foldwise::fuzz(data, size, [](const std::string& text) {
    const foldwise::config::Document document = foldwise::config::Document::parse(text, "config.json");
    if (!document.root().is_object()) return;
    static_cast<void>(foldwise::costmodel::parameter_totals(foldwise::planner::read_inline_model(document.root())));
  });
}
