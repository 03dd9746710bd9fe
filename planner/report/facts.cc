#include "planner/report/facts.h"

namespace foldwise::planner {

using nlohmann::json;

std::string fact_text(const hwprofiles::Profile& profile, const std::string& pointer) {
  const json::json_pointer at(pointer);
  if (!profile.json.contains(at)) return "";
  const json& entry = profile.json.at(at);
  if (!entry.is_object() || !entry.contains("value")) return entry.dump();
  const std::string unit = entry.value("unit", "");
  return entry["value"].dump() + (unit.empty() || unit == "1" ? "" : " " + unit);
}

json facts_json(const hwprofiles::Profile& profile) {
  json facts = json::array();
  for (const auto& [pointer, provenance] : profile.provenance)
    facts.push_back({{"field", pointer},
                     {"value", fact_text(profile, pointer)},
                     {"kind", provenance.kind},
                     {"source", provenance.source},
                     {"date", provenance.date},
                     {"note", provenance.note}});
  return facts;
}

}  // namespace foldwise::planner
