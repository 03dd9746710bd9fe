#include "benchmarks/accuracy/evidence.h"

#include <cstddef>
#include <nlohmann/json.hpp>

#include "planner/rules/evidence.h"

namespace foldwise::accuracy {

std::string evidence_text(const std::vector<const planner::Validation*>& validations) {
  std::vector<planner::MeasuredChoice> runs;
  for (const planner::Validation* validation : validations)
    for (const planner::ValidatedRow& row : validation->rows)
      if (row.step && !row.run.measured.pipeline_rank) runs.push_back(planner::measured_choice(row.run));
  std::string text =
      "{\n\"_about\": \"What measured runs chose together; written by foldwise-accuracy --write-evidence, read by plan "
      "--evidence\",\n\"runs\": [\n";
  const nlohmann::json rows = planner::measured_choices_json(runs);
  for (std::size_t i = 0; i < rows.size(); ++i) text += rows[i].dump() + (i + 1 < rows.size() ? ",\n" : "\n");
  return text + "]}\n";
}

}  // namespace foldwise::accuracy
