#include "hwprofiles/load/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "costmodel/check.h"
#include "hwprofiles/load/cluster.h"
#include "hwprofiles/load/derive.h"
#include "hwprofiles/load/derive_rules.h"
#include "hwprofiles/load/fields.h"
#include "hwprofiles/load/quantity_reader.h"
#include "hwprofiles/load/systems.h"

// A profile is a tree of quantities, each `{"value": 8000, "unit": "GB/s", "kind": "datasheet", "source": "DGXC",
// "date": ...}`. One table (`fields`) lists every quantity with its pointer, dimension and place in Hardware. Reading
// and the checks for unknown and missing keys use it. A profile with a "base" is a stack of documents: each quantity,
// with its provenance, comes from the uppermost document that has it, or a rule for it in its "derive" block.
namespace foldwise::hwprofiles {

namespace {

using config::Diagnostics;
using config::Document;
using config::ObjectReader;
using costmodel::AttentionCurve;
using costmodel::LinkType;
using costmodel::Network;
using nlohmann::json;

const std::string kBuiltIn = "built-in ";  // Prefix of a built-in document's name.
/// Keys with texts instead of quantities.
const std::string links_pointer = "/network/links";
const std::vector<std::pair<std::string, LinkType>> nic_links{{"infiniband", LinkType::kInfiniband},
                                                              {"ethernet", LinkType::kEthernet}};
const std::vector<std::pair<std::string, LinkType>> host_links{{"pcie", LinkType::kPcie},
                                                               {"nvlink-c2c", LinkType::kNvlinkC2c}};

/// The uppermost part of `pointer` that `tree` lacks, so that a missing group gives one message.
std::string first_missing(const json& tree, const std::string& pointer) {
  for (std::size_t end = pointer.find('/', 1); end != std::string::npos; end = pointer.find('/', end + 1))
    if (!has(tree, pointer.substr(0, end))) return pointer.substr(0, end);
  return pointer;
}

[[noreturn]] void fail(const config::Location& where, std::string message) {
  Diagnostics diagnostics;
  diagnostics.error(where, std::move(message));
  diagnostics.throw_if_any();
  FW_CHECK(false);
  std::abort();
}

std::string unknown_system(const std::string& name, const char* otherwise) {
  const std::vector<std::string> known = built_in_systems();
  return fmt::format("expected a built-in system ({}){}, found \"{}\"{}", fmt::join(known, ", "), otherwise, name,
                     config::nearest_hint(name, known));
}

Document load_document(const std::string& name) {
  if (const std::string* text = embedded_file(name)) return Document::parse(*text, kBuiltIn + name);
  if (name != "-" && name.find('/') == std::string::npos && !name.ends_with(".json"))
    fail({.file = "system", .line = 0, .field = ""}, unknown_system(name, " or a path that ends in .json"));
  return Document::load(name);
}

/// Built-in system named by "base"; empty if there is none.
std::string base_in(const Document& document) {
  const auto base = document.root().find("base");
  if (base == document.root().end()) return "";
  const config::Location where{.file = document.file(), .line = document.line("/base"), .field = "/base"};
  if (!base->is_string()) fail(where, "expected the name of a built-in system");
  std::string name = find_system(base->get<std::string>(), "");
  if (embedded_file(name) == nullptr) fail(where, unknown_system(name, ""));
  return name;
}

/// The document and its bases, uppermost first.
std::vector<Document> with_bases(Document document) {
  if (is_cluster(document)) {
    const std::string base = base_in(document);
    if (base.empty())
      fail({.file = document.file(), .line = document.line(""), .field = "/base"},
           "expected the built-in system that this one differs from, found nothing");
    document = expanded_cluster(document, load_profile(base).json);
  }
  std::vector<Document> stack{std::move(document)};
  for (;;) {
    const Document& top = stack.back();
    if (!top.root().is_object()) fail({.file = top.file(), .line = top.line(""), .field = ""}, "expected an object");
    const std::string base = base_in(top);
    if (base.empty()) return stack;
    FW_CHECK(stack.size() < 8, "built-in profiles are based on each other");
    stack.push_back(load_document(base));
  }
}

/// Merges `change` over `tree`: groups are merged, quantities and texts replaced.
void merge(json& tree, const json& change) {
  for (const auto& item : change.items()) {
    json& place = tree[item.key()];
    if (item.value().is_object() && !is_quantity(item.value()) && place.is_object() && !is_quantity(place))
      merge(place, item.value());
    else
      place = item.value();
  }
}

/// Keys of a profile that are not groups of quantities.
const std::set<std::string> tops{"name",    "gpu", "device", "generation", "base",
                                 "sources", "fit", "derive", "unmeasured"};

/// Reports every key below `pointer` that is not on the path of a field.
void check_keys(const Document& document, const json& node, const std::string& pointer,
                const std::set<std::string>& leaves, Diagnostics& diagnostics) {
  std::set<std::string> known;
  const std::string prefix = pointer + "/";
  for (auto leaf = leaves.lower_bound(prefix); leaf != leaves.end() && leaf->starts_with(prefix); ++leaf)
    known.insert(leaf->substr(prefix.size(), leaf->find('/', prefix.size()) - prefix.size()));
  if (pointer.empty()) known.insert(tops.begin(), tops.end());
  for (const auto& item : node.items()) {
    const std::string& key = item.key();
    std::string at = pointer;
    at.append("/").append(key);
    const config::Location where{.file = document.file(), .line = document.line(at), .field = at};
    if (!known.contains(key)) {
      diagnostics.error(where,
                        pointer == "/attention"
                            ? "expected a head dimension such as \"128\""
                            : "unknown key" + config::nearest_hint(key, {known.begin(), known.end()}, "known key"));
      continue;
    }
    if (leaves.contains(at) || (pointer.empty() && tops.contains(key))) continue;
    if (!item.value().is_object())
      diagnostics.error(where, "expected an object");
    else
      check_keys(document, item.value(), at, leaves, diagnostics);
  }
}

void read_identity(const std::vector<Document>& stack, const std::string& name, Profile& profile,
                   Diagnostics& diagnostics) {
  const auto owner = [&](const char* key) -> const Document& {
    for (const Document& document : stack)
      if (document.root().contains(key)) return document;
    return stack.front();
  };
  ObjectReader top(stack.front(), diagnostics);
  const std::string stem = std::filesystem::path(name).stem().string();
  profile.hardware.name = top.has("name") ? top.required_string("name") : stem;
  profile.hardware.gpu = ObjectReader(owner("gpu"), diagnostics).required_string("gpu");
  (void)top.string("device");  // Read by device_of().
  profile.hardware.unmeasured = top.string("unmeasured").value_or("");
  if (stack.size() > 1 && !stack.front().file().starts_with(kBuiltIn))
    profile.hardware.unmeasured = "numbers of the system overridden";
  profile.hardware.traits.generation = ObjectReader(owner("generation"), diagnostics).required_string("generation");
}

/// Reads the links of NICs and hosts from the uppermost document that has them.
void read_links(const std::vector<Document>& stack, Network& network, Diagnostics& diagnostics) {
  for (const Document& document : stack) {
    if (!has(document.root(), links_pointer)) continue;
    ObjectReader reader(document, document.root().at(json::json_pointer(links_pointer)), links_pointer, diagnostics);
    network.nic_link = reader.choice("nic", nic_links).value_or(network.nic_link);
    network.host_link = reader.choice("host", host_links).value_or(network.host_link);
    reader.finish();
    return;
  }
}

/// Measured numbers that scale with a datasheet number if a document changes only the latter: collectives with NVLink's
/// bandwidth, attention with the peak.
struct Follower {
  const char* by;
  const char *start, *end;  ///< Start and end of their pointers.
  const char* rule;
};
constexpr Follower kFollowers[] = {{"/network/nvlink_bandwidth", "/network/nvlink/", "/bandwidth", "scaled"},
                                   {"/peak/bf16", "/attention/", "_rate", "scaled"},
                                   {"/peak/bf16", "/attention/", "_tile", "inverse"}};

/// Derivations for numbers among `known` that follow the numbers of `from` that `document` changes.
std::vector<Derivation> followers(const Document& document, const std::string& from,
                                  const std::vector<std::string>& known) {
  std::vector<Derivation> list;
  for (const Follower& follower : kFollowers) {
    if (!has(document.root(), follower.by)) continue;
    const auto rule =
        std::find_if(rules().begin(), rules().end(), [&](const Rule& r) { return r.name == follower.rule; });
    for (const std::string& pointer : known)
      if (pointer.starts_with(follower.start) && pointer.ends_with(follower.end))
        list.push_back({.field = pointer,
                        .rule = &*rule,
                        .from = from,
                        .of = pointer,
                        .by = follower.by,
                        .where = {.file = document.file(), .line = document.line(follower.by), .field = follower.by}});
  }
  return list;
}

/// Merges the documents. Numbers that a "derive" block sets and the same document does not state remain to be derived.
PartialProfile merged(const std::vector<Document>& stack) {
  PartialProfile profile{.tree = json::object(), .derivations = {}};
  Diagnostics diagnostics;
  for (std::size_t i = stack.size(); i-- > 0;) {
    const json& root = stack[i].root();
    merge(profile.tree, root);
    std::erase_if(profile.derivations, [&](const auto& derivation) { return has(root, derivation.first); });
    std::vector<Derivation> own = read_derivations(stack[i], profile.tree, built_in_systems(), diagnostics);
    if (i + 1 < stack.size()) {
      std::vector<std::string> known;
      for (const Field& field : fields(profile.tree))
        if (has(profile.tree, field.pointer) || profile.derivations.contains(field.pointer))
          known.push_back(field.pointer);
      std::string from = stack[i + 1].file();
      if (from.starts_with(kBuiltIn)) from.erase(0, kBuiltIn.size());
      for (Derivation& follower : followers(stack[i], from, known))
        if (std::none_of(own.begin(), own.end(), [&](const Derivation& d) { return d.field == follower.field; }))
          own.push_back(std::move(follower));
    }
    for (Derivation& derivation : own) {
      if (has(root, derivation.field)) continue;
      const json::json_pointer pointer(derivation.field);
      if (profile.tree.contains(pointer)) profile.tree.at(pointer.parent_pointer()).erase(pointer.back());
      profile.derivations.insert_or_assign(derivation.field, std::move(derivation));
    }
  }
  diagnostics.throw_if_any();
  for (const char* key : {"base", "fit", "derive", "unmeasured"})
    profile.tree.erase(key);  // Keys of documents, not of the merged profile.
  if (!stack.front().root().contains("device")) profile.tree.erase("device");
  return profile;
}

/// The derived numbers with their citations.
json derived(const PartialProfile& profile) {
  json result = json::object();
  Deriver deriver(
      [&](const std::string& system) { return system.empty() ? profile : merged(with_bases(load_document(system))); });
  for (const auto& [pointer, derivation] : profile.derivations) {
    const Quantity quantity = deriver.at("", pointer);
    *place(result, pointer) = json_of(quantity);
    const bool own_source = derivation.from.empty() || !derivation.source.empty();
    result["sources"][quantity.source] = deriver.citation(own_source ? "" : derivation.from, quantity.source);
  }
  return result;
}

/// Reports numbers of the network that contradict each other.
void check_network(const Document& top, const Profile& profile, Diagnostics& diagnostics) {
  const Network& network = profile.hardware.network;
  const std::string used = "/network/ranks_per_domain";
  if (profile.provenance.contains(used) && network.ranks_per_domain > network.nvlink_domain) {
    diagnostics.error({.file = top.file(), .line = top.line(used), .field = used},
                      fmt::format("expected at most the {} GPUs of /network/nvlink_domain, found {}",
                                  network.nvlink_domain, network.ranks_per_domain));
  }
  if (network.ranks_per_domain % network.gpus_per_nic != 0) {
    const std::string shared = "/network/gpus_per_nic";
    diagnostics.error(
        {.file = top.file(), .line = top.line(shared), .field = shared},
        fmt::format("{} does not divide the {} GPUs of {}", network.gpus_per_nic, network.ranks_per_domain, used));
  }
}

/// Reports a power limit that the GPU exceeds before it computes anything. A limit of 0 is none.
void check_power(const Document& top, const Profile& profile, Diagnostics& diagnostics) {
  const costmodel::PowerSpec& power = profile.hardware.power;
  const std::string limit = "/power/limit";
  if (power.limit > Watts{} && power.limit <= power.base)
    diagnostics.error({.file = top.file(), .line = top.line(limit), .field = limit},
                      fmt::format("expected more than the {:.0f} W of /power/base, found {:.0f} W",
                                  power.base.to<double>(), power.limit.to<double>()));
}

Profile read_profile(const std::vector<Document>& stack, const std::string& name) {
  Diagnostics diagnostics;
  Profile profile;
  PartialProfile partial = merged(stack);
  const json derived_numbers = derived(partial);
  profile.json = std::move(partial.tree);
  merge(profile.json, derived_numbers);

  read_identity(stack, name, profile, diagnostics);
  read_links(stack, profile.hardware.network, diagnostics);
  const std::vector<std::int64_t> rows = head_dims(profile.json);
  for (const std::int64_t head_dim : rows) {
    AttentionCurve row;
    row.head_dim = head_dim;
    profile.hardware.attention.push_back(row);
  }

  const std::vector<Field> list = fields(profile.json);
  std::set<std::string> leaves;
  for (const Field& field : list) leaves.insert(field.pointer);
  const std::vector<NamesField> names = names_fields(profile.json);
  for (const NamesField& field : names) leaves.insert(field.pointer);
  for (const std::string& curve : curves(profile.json)) leaves.insert(curve + "/fit");
  leaves.insert(links_pointer);
  for (const Document& document : stack) check_keys(document, document.root(), "", leaves, diagnostics);

  std::vector<json> sources;
  for (std::size_t i = 0; i < stack.size(); ++i) {
    Diagnostics ignored;  // the citations of a base are checked once, at its own level
    sources.push_back(sources_of(stack, i, i == 0 ? diagnostics : ignored));
  }
  std::set<std::string> missing;
  if (!profile.json.contains("attention")) missing.insert("/attention");
  for (const NamesField& field : names) {
    std::size_t i = 0;
    while (i < stack.size() && !has(stack[i].root(), field.pointer)) ++i;
    if (i < stack.size())
      read_names(stack[i], field, stack[i].root().at(json::json_pointer(field.pointer)), sources[i], profile,
                 diagnostics);
    else if (field.required)
      missing.insert(first_missing(profile.json, field.pointer));
  }
  Diagnostics of_derived;  // Reported only if the numbers that they derive from are correct.
  for (const Field& field : list) {
    bool found = has(derived_numbers, field.pointer);
    if (found)
      read_quantity(stack.front(), field, derived_numbers.at(json::json_pointer(field.pointer)),
                    derived_numbers.at("sources"), profile, of_derived);
    for (std::size_t i = 0; i < stack.size() && !found; ++i) {
      if (!has(stack[i].root(), field.pointer)) continue;
      found = true;
      read_quantity(stack[i], field, stack[i].root().at(json::json_pointer(field.pointer)), sources[i], profile,
                    diagnostics);
    }
    if (!found && field.required) missing.insert(first_missing(profile.json, field.pointer));
  }
  const auto level = [&](const char* pointer) {
    return std::ranges::find_if(stack, [&](const Document& document) { return has(document.root(), pointer); });
  };
  if (level("/host/module") < level("/host/virtual_machine"))  // The price comes from another document than the ratio.
    profile.hardware.host.virtual_machine = 1.0;
  if (diagnostics.ok()) diagnostics = of_derived;
  read_fits(stack, profile, diagnostics);
  for (const std::string& pointer : missing)
    diagnostics.error({.file = stack.front().file(), .line = stack.front().line(pointer), .field = pointer},
                      stack.size() > 1 ? "missing" : "missing, and there is no \"base\" to take it from");
  const Document& top = stack.front();
  if (rows.empty() && profile.json.contains("attention"))
    diagnostics.error({.file = top.file(), .line = top.line("/attention"), .field = "/attention"},
                      "expected at least one row, such as \"128\"");
  check_network(top, profile, diagnostics);
  check_power(top, profile, diagnostics);
  diagnostics.throw_if_any();
  return profile;
}

/// The only field that `key` matches; nullptr if none or several do, which is reported.
const Field* changed_field(const std::vector<Field>& list, const json& profile, const std::string& key,
                           Diagnostics& diagnostics) {
  std::string pointer = "/" + key;
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  std::vector<const Field*> ends;
  std::vector<std::string> known;
  for (const Field& field : list) {
    if (field.pointer == pointer) return &field;
    if (!has(profile, field.pointer)) continue;
    // "nvlink.bandwidth" also matches /network/nvlink_bandwidth.
    std::string flat = field.pointer, wanted = pointer;
    std::replace(flat.begin(), flat.end(), '/', '_');
    std::replace(wanted.begin(), wanted.end(), '/', '_');
    if (flat.ends_with(wanted)) ends.push_back(&field);
    known.push_back(field.pointer.substr(1));
    std::replace(known.back().begin(), known.back().end(), '/', '.');
    known.push_back(field.pointer.substr(field.pointer.rfind('/') + 1));
  }
  if (ends.size() == 1) return ends.front();
  std::vector<std::string> found;
  found.reserve(ends.size());
  for (const Field* field : ends) found.push_back(field->pointer);
  diagnostics.error({.file = kChanges, .line = 0, .field = "/" + key},
                    found.empty()
                        ? "no number of the system" + config::nearest_hint(key, known)
                        : fmt::format("expected one number, found {}: {}", found.size(), fmt::join(found, ", ")));
  return nullptr;
}

/// Value in base units.
double size_of(const json& quantity) {
  return quantity.at("value").get<double>() * unit_size(quantity.at("unit").get<std::string>());
}

/// Whether the power limit lowers the clock of some products.
bool power_limits(const costmodel::PowerSpec& power) {
  return std::ranges::any_of(power.joule_per_flop, [](double joule) { return joule > 0.0; });
}

/// A document that changes these numbers of a profile, to be put on top of it.
Document changing(const json& quantities, const Profile& profile) {
  json tree = {{"name", profile.hardware.name}, {"sources", {{kChanges, "the run's system_overrides"}}}};
  for (const auto& item : quantities.items()) *place(tree, item.key()) = item.value();
  return Document::parse(tree.dump(), kChanges);
}

}  // namespace

Profile load_profile(const std::string& name) {
  const auto read = [&] { return read_profile(with_bases(load_document(name)), name); };
  if (embedded_file(name) == nullptr) return read();
  static std::mutex mutex;
  static std::map<std::string, Profile> built_in;  // Reading takes milliseconds and always gives the same.
  const std::lock_guard lock(mutex);
  const auto known = built_in.find(name);
  return known != built_in.end() ? known->second : built_in.emplace(name, read()).first->second;
}

Profile load_profile(const std::string& name, const json& changes) {
  if (changes.is_null() || changes.empty()) return load_profile(name);
  const std::vector<Document> stack = with_bases(load_document(name));
  const Profile profile = load_profile(name);
  const std::vector<Field> list = fields(profile.json);
  const auto changed = [&](const json& quantities) {
    std::vector<Document> over = stack;
    over.insert(over.begin(), changing(quantities, profile));
    return read_profile(over, name);
  };
  Diagnostics diagnostics;
  json quantities = json::object();
  for (const auto& item : changes.items()) {
    const config::Location where{.file = kChanges, .line = 0, .field = "/" + item.key()};
    const Field* field = changed_field(list, profile.json, item.key(), diagnostics);
    if (field == nullptr) continue;
    const json quantity = quantity_of(profile.json, field->pointer, item.value(), kChanges, where, diagnostics);
    if (quantity.is_null()) continue;
    // A number that only derivations use has no effect if no derivation uses it.
    const json::json_pointer pointer(field->pointer);
    const bool same = profile.json.contains(pointer) && size_of(profile.json.at(pointer)) == size_of(quantity);
    costmodel::Hardware direct = profile.hardware;
    field->set(direct, size_of(quantity));
    const auto derives_nothing = [&] {
      costmodel::Hardware hardware = changed({{field->pointer, quantity}}).hardware;
      hardware.unmeasured = profile.hardware.unmeasured;
      return hardware == profile.hardware;
    };
    const bool unused = field->pointer == "/power/limit" && !power_limits(profile.hardware.power);
    if (!same && (unused || (direct == profile.hardware && derives_nothing())))
      diagnostics.error(where, fmt::format("no time or size of {} follows from it", name));
    quantities[field->pointer] = quantity;
  }
  diagnostics.throw_if_any();
  Profile result = changed(quantities);
  result.hardware.unmeasured = "numbers of the system overridden";
  return result;
}

Profile parse_profile(const std::string& text, const std::string& name) {
  return read_profile(with_bases(Document::parse(text, name)), name);
}

QuantitySetter quantity_setter(const json& profile, const std::string& pointer) {
  for (const Field& field : fields(profile))
    if (field.pointer == pointer) return field.set;
  FW_CHECK(false, "a profile has no " + pointer);
  std::abort();
}

costmodel::Hardware scaled(const Profile& profile, const std::map<std::string, double>& factors) {
  costmodel::Hardware hardware = profile.hardware;
  const std::vector<Field> list = fields(profile.json);
  for (const auto& entry : factors) {
    const std::string& pointer = entry.first;
    const auto field =
        std::find_if(list.begin(), list.end(), [&](const Field& candidate) { return candidate.pointer == pointer; });
    if (field == list.end() || !has(profile.json, pointer))
      throw std::invalid_argument(fmt::format("{}: no quantity {}", hardware.name, pointer));
    const json& quantity = profile.json.at(json::json_pointer(pointer));
    for (const auto& [unit, size] : field->dimension->units)
      if (quantity.at("unit") == unit) field->set(hardware, entry.second * size * quantity.at("value").get<double>());
  }
  return hardware;
}

}  // namespace foldwise::hwprofiles
