#include "hwprofiles/load/derive.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "costmodel/check.h"
#include "hwprofiles/load/fields.h"

namespace foldwise::hwprofiles {
namespace {

using config::Diagnostics;
using config::Document;
using config::nearest_hint;
using config::ObjectReader;
using nlohmann::json;

/// Whether it is a path into a profile. Keys of profiles need no escapes.
bool is_pointer(const json& value) {
  return value.is_string() && value.get_ref<const std::string&>().starts_with("/") &&
         value.get_ref<const std::string&>().find('~') == std::string::npos;
}

/// Expands a pattern or a list of patterns.
std::vector<std::string> pointers(ObjectReader& reader, const char* key) {
  std::vector<std::string> list;
  const json* raw = reader.raw(key);
  if (raw == nullptr) return list;
  const auto add = [&](const json& pattern) {
    if (!is_pointer(pattern)) {
      reader.error(key,
                   fmt::format("expected a JSON pointer such as \"/sms\" or a list of them, found {}", pattern.dump()));
      return;
    }
    for (std::string& pointer : expanded(pattern.get<std::string>())) list.push_back(std::move(pointer));
  };
  if (raw->is_array())
    for (const json& pattern : *raw) add(pattern);
  else
    add(*raw);
  return list;
}

/// Reads "by": a pointer, or [over, under].
void read_by(ObjectReader& reader, Derivation& rule) {
  const json* by = reader.raw("by");
  if (by == nullptr) return;
  const auto positive = [](const json& number) { return number.is_number() && number.get<double>() > 0.0; };
  if (is_pointer(*by))
    rule.by = by->get<std::string>();
  else if (by->is_array() && by->size() == 2 && positive((*by)[0]) && positive((*by)[1]))
    rule.factor = (*by)[0].get<double>() / (*by)[1].get<double>();
  else
    reader.error("by",
                 fmt::format("expected a JSON pointer or [over, under], two numbers above 0, found {}", by->dump()));
}

const Rule* read_rule(ObjectReader& reader) {
  const std::string name = reader.required_string("rule");
  std::vector<std::string> known;
  for (const Rule& rule : rules()) {
    if (rule.name == name) return &rule;
    known.emplace_back(rule.name);
  }
  if (name.empty()) return nullptr;
  std::string list;
  for (const std::string& rule : known) list += (list.empty() ? "" : ", ") + rule;
  reader.error("rule", fmt::format("expected one of {}, found \"{}\"{}", list, name, nearest_hint(name, known)));
  return nullptr;
}

/// Source of a rule: "h200", "/gemm/bf16/launch", "/gemm/fp8/per_group of h200".
std::string place_of(const Derivation& rule) {
  if (rule.from.empty()) return rule.of;
  return rule.of == rule.field ? rule.from : rule.of + " of " + rule.from;
}

std::string note_of(const Derivation& rule, const RuleInput& in) {
  if (!rule.note.empty()) return rule.note;
  const std::string where = place_of(rule);
  const std::string by = rule.by.empty() ? "" : ", the ratio of " + rule.by;
  std::string note = "as " + where;
  if (rule.rule->name == "scaled") note += fmt::format(" x {:.3f}{}", in.factor, by);
  if (rule.rule->name == "inverse") note += fmt::format(" / {:.3f}{}", in.factor, by);
  if (rule.rule->name == "proportion") note = fmt::format("{} x the ratio of {}", rule.to, where);
  if (rule.rule->name == "below-ceiling") note += ", at most /hbm/ceiling";
  if (rule.rule->name == "memory-share" || rule.rule->name == "element-time")
    note = fmt::format("from {:.3g} on {} by its SMs and HBM", in.of.value, rule.from);
  else if (!in.of.note.empty())
    note += ": " + in.of.note;
  return note;
}

}  // namespace

std::vector<std::string> expanded(const std::string& pattern) {
  const std::size_t open = pattern.find('{');
  const std::size_t close = open == std::string::npos ? open : pattern.find('}', open);
  if (close == std::string::npos) return {pattern};
  const std::vector<std::string> tails = expanded(pattern.substr(close + 1));
  std::vector<std::string> list;
  for (std::size_t at = open + 1; at <= close;) {
    const std::size_t end = std::min(pattern.find(',', at), close);
    for (const std::string& tail : tails) list.push_back(pattern.substr(0, open) + pattern.substr(at, end - at) + tail);
    at = end + 1;
  }
  return list;
}

std::vector<Derivation> read_derivations(const Document& document, const json& merged,
                                         const std::vector<std::string>& systems, Diagnostics& diagnostics) {
  std::vector<Derivation> list;
  if (!document.root().contains("derive")) return list;
  ObjectReader top(document, diagnostics);
  for (ObjectReader& reader : top.objects("derive")) {
    Derivation common;
    common.where = reader.location("field");
    common.rule = read_rule(reader);
    common.from = reader.string("from").value_or("");
    if (!common.from.empty() && std::find(systems.begin(), systems.end(), common.from) == systems.end())
      reader.error("from", fmt::format("expected a built-in system, found \"{}\"{}", common.from,
                                       nearest_hint(common.from, systems)));
    const std::vector<std::string> fields = pointers(reader, "field");
    const std::vector<std::string> of = reader.has("of") ? pointers(reader, "of") : fields;
    read_by(reader, common);
    const std::vector<std::string> to = pointers(reader, "to");
    common.source = reader.string("source").value_or("");
    common.note = reader.string("note").value_or("");
    reader.finish();
    if (!reader.has("field")) reader.error("field", "expected the JSON pointer of a number; missing");
    if (common.rule != nullptr) {
      for (const auto& [key, needed] : {std::pair{"by", common.rule->by}, std::pair{"to", common.rule->to}})
        if (reader.has(key) != needed)
          reader.error(
              key, fmt::format("{} by the rule \"{}\"", needed ? "missing; needed" : "not read", common.rule->name));
    }
    const auto of_each = [&](const std::vector<std::string>& pointers, std::size_t i) {
      return pointers.empty() ? "" : pointers[std::min(i, pointers.size() - 1)];
    };
    bool parallel = true;
    for (const auto& [key, pointers] : {std::pair{"of", &of}, std::pair{"to", &to}}) {
      if (pointers->size() <= 1 || pointers->size() == fields.size()) continue;
      reader.error(key, fmt::format("expected one pointer or {}, one for each field, found {}", fields.size(),
                                    pointers->size()));
      parallel = false;
    }
    if (common.rule == nullptr || !parallel) continue;
    for (std::size_t i = 0; i < fields.size(); ++i) {
      Derivation one = common;
      one.field = fields[i];
      one.of = of_each(of, i);
      one.to = of_each(to, i);
      list.push_back(std::move(one));
    }
  }

  // An attention row or a peak may be derived completely, so the fields are those of the profile with all derived
  // numbers.
  json complete = merged;
  for (const Derivation& derivation : list)
    if (!has(complete, derivation.field))
      if (json* const number = place(complete, derivation.field)) *number = {{"value", 0.0}};
  std::map<std::string, bool> known;  // By pointer: whether the field is a share.
  std::vector<std::string> names;
  for (const Field& field : fields(complete)) {
    known.emplace(field.pointer, field.range == Range::kShare);
    names.push_back(field.pointer);
  }
  std::set<std::string> seen;
  for (Derivation& derivation : list) {
    const auto found = known.find(derivation.field);
    if (found == known.end())
      diagnostics.error(derivation.where, fmt::format("a profile has no number \"{}\"{}", derivation.field,
                                                      nearest_hint(derivation.field, names)));
    else
      derivation.share = found->second;
    if (!seen.insert(derivation.field).second)
      diagnostics.error(derivation.where, fmt::format("a second rule for {}", derivation.field));
  }
  return list;
}

PartialProfile& Deriver::profile(const std::string& system) {
  auto found = profiles_.find(system);
  if (found == profiles_.end()) found = profiles_.emplace(system, load_(system)).first;
  return found->second;
}

std::string Deriver::citation(const std::string& system, const std::string& key) {
  const json& tree = profile(system).tree;
  const auto sources = tree.find("sources");
  return sources == tree.end() ? "" : text_of(*sources, key);
}

Quantity Deriver::at(const std::string& system, const std::string& pointer) { return wanted(system, pointer, nullptr); }

Quantity Deriver::wanted(const std::string& system, const std::string& pointer, const Derivation* by) {
  const auto fail = [&](const std::string& message) {
    FW_CHECK(by != nullptr, message);
    throw config::ConfigError({{by->where, message}});
  };
  const PartialProfile& there = profile(system);
  if (has(there.tree, pointer)) {
    const json& node = there.tree.at(json::json_pointer(pointer));
    if (!is_quantity(node) || !node.at("value").is_number())
      fail(fmt::format("{}{} is not a number", pointer, system.empty() ? "" : " of " + system));
    if (by != nullptr && unit_size(text_of(node, "unit")) == 0.0)
      fail(fmt::format("{}{} has no unit that is known", pointer, system.empty() ? "" : " of " + system));
    return {.value = node.at("value").get<double>(),
            .unit = text_of(node, "unit"),
            .kind = text_of(node, "kind"),
            .source = text_of(node, "source"),
            .date = text_of(node, "date"),
            .note = text_of(node, "note")};
  }
  const auto found = there.derivations.find(pointer);
  if (found == there.derivations.end()) {
    std::vector<std::string> names;
    for (const Field& field : fields(there.tree))
      if (has(there.tree, field.pointer)) names.push_back(field.pointer);
    fail(fmt::format("{} has no number \"{}\"{}", system.empty() ? "the profile" : system, pointer,
                     nearest_hint(pointer, names)));
  }
  if (const auto first = std::find(open_.begin(), open_.end(), std::pair{system, pointer}); first != open_.end()) {
    std::string circle = pointer;
    for (auto it = first + 1; it != open_.end(); ++it)
      circle += " from " + it->second + (it->first.empty() ? "" : " of " + it->first);
    throw config::ConfigError({{found->second.where, fmt::format("derived from itself: {} from {}", circle, pointer)}});
  }
  open_.emplace_back(system, pointer);
  Quantity result = derived(system, found->second);
  open_.pop_back();
  json* const number = place(profile(system).tree, pointer);
  if (number == nullptr)
    throw config::ConfigError(
        {{found->second.where, fmt::format("{} lies below what is no object in the profile", pointer)}});
  *number = json_of(result);
  return result;
}

Quantity Deriver::derived(const std::string& system, const Derivation& derivation) {
  const std::string& other = derivation.from.empty() ? system : derivation.from;
  const auto own = [&](const std::string& pointer) { return wanted(system, pointer, &derivation); };
  const auto there = [&](const std::string& pointer) { return wanted(other, pointer, &derivation); };
  RuleInput in{
      .of = there(derivation.of), .factor = derivation.factor, .to = {}, .to_there = {}, .own = own, .there = there};
  if (!derivation.by.empty()) in.factor = ratio(own(derivation.by), there(derivation.by));
  if (!derivation.to.empty()) {
    in.to = own(derivation.to);
    in.to_there = there(derivation.to);
  }
  double value = derivation.rule->value(in);
  if (derivation.share) value = std::min(1.0, value);
  return {.value = value,
          .unit = derivation.rule->value == proportion ? in.to.unit : in.of.unit,
          .kind = "assumed",
          .source = derivation.source.empty() ? in.of.source : derivation.source,
          .date = in.of.date,
          .note = note_of(derivation, in)};
}

json json_of(const Quantity& quantity) {
  return {{"value", quantity.value},   {"unit", quantity.unit}, {"kind", quantity.kind},
          {"source", quantity.source}, {"date", quantity.date}, {"note", quantity.note}};
}

}  // namespace foldwise::hwprofiles
