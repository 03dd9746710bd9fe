#include "planner/models/families.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "costmodel/check.h"

namespace foldwise::planner {

namespace family_data {
[[nodiscard]] const std::string* embedded_file(std::string_view name);  // Made by hwprofiles/embed.cmake.
}

namespace {

using nlohmann::json;
using Spellings = std::map<std::string, std::vector<std::string>>;

struct Table {
  Spellings spellings;  ///< Names of our keys in any family.
  std::map<std::string, Family> families;
};

Family read_family(const std::string& name, const json& all) {
  const json& row = all.at(name);
  Family family;
  if (row.contains("as")) family = read_family(row.at("as"), all);
  family.model_type = name;
  const auto replace = [&]<typename Value>(const char* key, Value& value) {
    if (row.contains(key)) value = row.at(key).get<Value>();
  };
  replace("parts", family.parts);
  replace("nested", family.nested);
  replace("spelled", family.spelled);
  replace("set", family.set);
  replace("ignored", family.ignored);
  replace("note", family.notes);
  replace("approximated", family.approximated);
  return family;
}

const Table& table() {
  static const Table result = [] {
    const std::string* text = family_data::embedded_file("families");
    FW_CHECK(text != nullptr, "the families of models are not built in");
    const json data = json::parse(*text);
    Table read{.spellings = data.at("spellings").get<Spellings>(), .families = {}};
    for (const auto& item : data.at("families").items())
      read.families.emplace(item.key(), read_family(item.key(), data.at("families")));
    return read;
  }();
  return result;
}

/// Keys that stand for one number: in some files a list with that of every layer.
const std::set<std::string, std::less<>>& numbers() {
  static const std::set<std::string, std::less<>> keys = {"num_experts", "num_experts_per_tok", "moe_intermediate_size",
                                                          "n_shared_experts", "shared_expert_intermediate_size"};
  return keys;
}

/// Value of a key and the way to it.
struct Found {
  json value;
  std::string path;
};

class Respeller {
 public:
  explicit Respeller(config::ObjectReader& in) : in_(in) {
    for (const auto& item : in.json().items())
      if (!item.value().is_null()) found_[item.key()] = {item.value(), item.key()};
  }

  void take_out(const std::string& object, const std::string& prefix) {
    const auto it = found_.find(object);
    if (it == found_.end() || !it->second.value.is_object()) return;
    const json inside = it->second.value;
    found_.erase(it);
    for (const auto& item : inside.items())
      if (!item.value().is_null() && item.key() != "model_type")
        found_.try_emplace(prefix + item.key(), Found{item.value(), object + '/' + item.key()});
  }
  void drop(const std::string& key) { found_.erase(key); }

  /// What of `names` there is becomes `key`; they mean the same.
  void rename(const std::string& key, const std::vector<std::string>& names) {
    const Found* first = nullptr;
    for (const std::string& name : names) {
      const auto it = found_.find(name);
      if (it == found_.end() || taken_.contains(name)) continue;
      taken_.insert(name);
      if (first == nullptr) {
        first = &it->second;
      } else if (first->value != it->second.value) {
        const auto last = [](const std::string& path) { return path.substr(path.rfind('/') + 1); };
        in_.spell({{"it", first->path}});
        in_.error("it", fmt::format("{} is {}, but {} is {}; they mean the same", last(first->path),
                                    first->value.dump(), last(it->second.path), it->second.value.dump()));
        in_.spell({});
      }
    }
    if (first != nullptr) put(key, *first);
  }

  [[nodiscard]] Respelled take() {
    for (const auto& [key, value] : found_)
      if (!taken_.contains(key)) put(key, value);
    return std::move(result_);
  }

 private:
  void put(const std::string& key, const Found& from) {
    json value = from.value;
    const auto same = [&](const json& element) { return element == value.front(); };
    if (numbers().contains(key) && value.is_array() && value.size() > 1 &&
        std::all_of(value.begin(), value.end(), same))
      value = json(value.front());
    result_.config[key] = std::move(value);
    if (from.path != key) result_.spellings[key] = from.path;
  }

  config::ObjectReader& in_;
  std::map<std::string, Found> found_;
  std::set<std::string> taken_;
  Respelled result_{json::object(), {}};
};

}  // namespace

bool Family::has(const std::string& part) const { return std::find(parts.begin(), parts.end(), part) != parts.end(); }

const std::map<std::string, Family>& known_families() { return table().families; }

Family family_by_keys(const json& config) {
  const auto any = [&](const std::string& key) {
    const auto said = [&](const std::string& name) { return config.contains(name) && !config.at(name).is_null(); };
    const auto others = table().spellings.find(key);
    return said(key) ||
           (others != table().spellings.end() && std::any_of(others->second.begin(), others->second.end(), said));
  };
  Family family;
  const bool moe = any("num_experts"), latent = any("kv_lora_rank"), linear = any("linear_num_key_heads");
  family.model_type = latent ? (moe ? "deepseek_v3" : "youtu") : linear ? "qwen3_next" : moe ? "qwen3_moe" : "llama";
  family.parts.emplace_back(moe ? "moe" : "dense");
  if (latent) family.parts.emplace_back("latent");
  if (moe && !any("moe_intermediate_size")) family.spelled["moe_intermediate_size"] = {"intermediate_size"};
  if (latent) family.ignored = {"head_dim"};
  // A gate goes with SiLU; where it goes with another activation, a family says so.
  for (const char* key : {"hidden_act", "hidden_activation", "activation_function"})
    if (const auto it = config.find(key); it != config.end() && it->is_string())
      family.set["gated_linear_unit"] = it->get<std::string>().find("relu") == std::string::npos &&
                                        it->get<std::string>().find("gelu") == std::string::npos;
  return family;
}

Respelled respelled(config::ObjectReader& in, const Family& family) {
  Respeller respeller(in);
  for (const auto& [object, prefix] : family.nested) respeller.take_out(object, prefix);
  for (const std::string& key : family.ignored) respeller.drop(key);
  for (const auto& [key, names] : family.spelled) respeller.rename(key, names);
  for (const auto& [key, names] : table().spellings) {
    if (family.spelled.contains(key)) continue;
    std::vector<std::string> all = {key};
    all.insert(all.end(), names.begin(), names.end());
    respeller.rename(key, all);
  }
  Respelled result = respeller.take();
  for (const auto& item : family.set.items())
    if (!result.config.contains(item.key())) result.config[item.key()] = item.value();
  return result;
}

}  // namespace foldwise::planner
