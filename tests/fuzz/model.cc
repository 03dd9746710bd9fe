// config.json of a model. The parameters of every accepted model are counted.
#include "costmodel/config/json.h"
#include "costmodel/ops/block_ops.h"
#include "planner/models/models.h"
#include "tests/fuzz/fuzz.h"

std::vector<std::string> foldwise::fuzz_words() {
  std::vector<std::string> out;
  for (const std::string& name : planner::built_in_models())
    add_words(out, nlohmann::json::parse(planner::built_in_model_text(name)));
  return out;
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return foldwise::fuzz(data, size, [](const std::string& text) {
    const foldwise::config::Document document = foldwise::config::Document::parse(text, "config.json");
    if (!document.root().is_object()) return;
    static_cast<void>(foldwise::costmodel::parameter_totals(foldwise::planner::read_inline_model(document.root())));
  });
}
