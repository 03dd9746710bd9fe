#include "planner/launch/frontend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <regex>
#include <span>
#include <utility>

#include "costmodel/config/number.h"
#include "planner/launch/complete.h"
#include "planner/launch/files.h"
#include "planner/launch/mapping.h"
#include "planner/models/models.h"

namespace foldwise::planner {

namespace frontend_data {
[[nodiscard]] std::span<const std::pair<std::string, std::string>> embedded_files();  // Made by hwprofiles/embed.cmake.
}

namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

struct FrontEnd {
  json row;
  std::regex start;
};

const std::vector<FrontEnd>& front_ends() {
  static const std::vector<FrontEnd> all = [] {
    std::vector<FrontEnd> list;
    for (const auto& [name, text] : frontend_data::embedded_files()) {
      json row = json::parse(text);
      const std::string start = row.at("start");
      list.push_back({.row = std::move(row), .start = std::regex(start)});
    }
    return list;
  }();
  return all;
}

/// What the words give: name and values, in order; of an option without "--" and with "_", of an override without "+".
struct Given {
  std::string name, word;
  Words values;
};

/// Of options, and, where the program takes `overrides` ("model.bf16=true"), of these too.
std::vector<Given> given_in(const Words& words, bool overrides) {
  std::vector<Given> given;
  bool takes_values = false;  // The last one is an option.
  for (const std::string& word : words) {
    const std::size_t equals = std::min(word.find('='), word.size());
    if (word.starts_with("--") && word.size() > 2) {
      std::string name = word.substr(2, equals - 2);
      std::ranges::replace(name, '-', '_');
      given.push_back({.name = name, .word = word.substr(0, equals), .values = {}});
      if (equals < word.size()) given.back().values.push_back(word.substr(equals + 1));
      takes_values = true;
    } else if (const std::size_t begin = word.find_first_not_of('+');
               overrides && equals < word.size() && begin < equals) {
      std::string value = word.substr(equals + 1);
      if (value.size() > 1 && (value.front() == '\'' || value.front() == '"') && value.back() == value.front())
        value = value.substr(1, value.size() - 2);
      const std::string name = word.substr(begin, equals - begin);
      given.push_back({.name = name, .word = name, .values = {value}});
      takes_values = false;
    } else if (takes_values) {
      given.back().values.push_back(word);
    }
  }
  return given;
}

/// Behind the programs around it, and behind the script, or the module, that Python runs.
Words own_words(const Started& started) {
  auto begin = started.words.begin() + static_cast<std::ptrdiff_t>(started.around);
  const auto end = started.words.end();
  if (begin == end) return {};
  const std::string program = base_of(*begin);
  if (!program.starts_with("python") && program != "torchrun") return {begin, end};
  for (auto word = begin + 1; word != end; ++word) {
    if (*word == "-m" && end - word > 1) return {word + 2, end};
    if (word->ends_with(".py")) return {word + 1, end};
  }
  return {begin, end};
}

bool says(const Words& values, std::string_view what) {
  return values.size() == 1 && std::ranges::equal(values.front(), what, [](unsigned char a, unsigned char b) {
           return std::tolower(a) == std::tolower(b);
         });
}

/// The flag that sets a member of Megatron's Namespace to that; nothing: it has it without a flag, or no flag sets it.
std::optional<Argument> argument_for(const std::string& dest, const Words& values, int line) {
  const bool truth = values.empty() || says(values, "true"), falsehood = says(values, "false");
  for (const ArgumentSpec* spec : flags_of(dest)) {
    if (!spec->takes_nothing()) {
      if (says(values, "null") || says(values, "none")) return std::nullopt;
      const bool one = !spec->many && values.size() > 1;  // A list, of a flag that takes it as one word.
      return Argument{
          .flag = spec->flag, .values = one ? Words{fmt::format("{}", fmt::join(values, ","))} : values, .line = line};
    }
    if (spec->type == ArgumentType::kEither && falsehood)
      return Argument{.flag = "--no-" + spec->flag.substr(2), .values = {}, .line = line};
    if ((spec->type == ArgumentType::kFalse && falsehood) || (spec->type != ArgumentType::kFalse && truth))
      return Argument{.flag = spec->flag, .values = {}, .line = line};
  }
  return std::nullopt;
}

/// Of what is not read, what an import speaks of: the tokenizer, layers of another program's, and what changes the cost
/// and is not modelled.
bool is_told(const std::string& dest) {
  return dest == "tokenizer_model" || dest == "spec" ||
         std::ranges::any_of(flags_of(dest), [](const ArgumentSpec* spec) { return is_not_modelled(spec->flag); });
}

class Translation {
 public:
  Translation(const json& row, const Started& started, const std::map<std::string, int>& lines)
      : row_(row),
        started_(started),
        given_(given_in(own_words(started), row.at("words") == "overrides")),
        lines_(lines) {}

  Translated run() {
    result_.front_end = row_.at("name");
    for (const Given& given : given_) take(given);
    for (const json& names : row_.at("model")) {
      if (result_.model.empty()) result_.model = model_of(names.is_array() ? names : json::array({names}));
      if (result_.model_option.empty()) result_.model_option = names.is_array() ? names.front() : names;
    }
    for (const std::string tail : row_.value("model_tails", json::array()))
      if (result_.model.ends_with(tail)) result_.model.resize(result_.model.size() - tail.size());
    for (const json& unless : row_.at("unless_given")) {
      const json& value = unless.at("value");
      const std::string dest = unless.at("megatron");
      if (!published_model(result_.model).starts_with(unless.value("model", ""))) continue;
      if (!values_.contains(dest)) set(dest, value.is_array() ? value.get<Words>() : Words{word_of(value)}, 0);
    }
    for (const json& sum : row_.value("sums", json::array())) add_to(sum);
    for (const json& rule : row_.value("given_with", json::array()))
      if (const auto found = values_.find(rule.at("when").get<std::string>());
          found != values_.end() && !says(found->second.first, "none"))
        set(rule.at("megatron"), {word_of(rule.at("value"))}, found->second.second);
    lengths();
    for (const json& rule : row_.value("without", json::array()))
      if (const auto found = values_.find(rule.at("when").get<std::string>());
          found != values_.end() && says(found->second.first, rule.at("is").get<std::string>()))
        for (const std::string dest : rule.at("drop")) values_.erase(dest);
    for (const auto& [dest, value] : values_)
      if (std::optional<Argument> argument = argument_for(dest, value.first, value.second))
        result_.arguments.push_back(std::move(*argument));
    result_.environment = row_.at("environment").get<std::map<std::string, std::string>>();
    for (const json& rule : row_.value("environment_with", json::array()))
      if (const auto found = values_.find(rule.at("when").get<std::string>());
          found != values_.end() && !says(found->second.first, "false"))
        for (const auto& [name, value] : rule.at("variables").items()) result_.environment[name] = value;
    result_.defaults = row_.value("defaults", "");
    for (const json& field : row_.value("fields", json::array())) take_field(field);
    if (!unread_.empty()) result_.notes.push_back(fmt::format("not read: {}", fmt::join(unread_, ", ")));
    if (!result_.model.empty() && row_.contains("note")) result_.notes.push_back(row_.at("note"));
    for (const json& product : row_.at("gpus"))
      if (!result_.num_gpus) result_.num_gpus = product_of(product);
    return std::move(result_);
  }

 private:
  void set(const std::string& dest, Words values, int line) { values_[dest] = {std::move(values), line}; }

  void take(const Given& given) {
    const auto line = lines_.find(given.word);
    const int at = line == lines_.end() ? 0 : line->second;
    for (const json& argument : row_.at("arguments"))
      if (argument.at("theirs") == given.name) return take_as(argument, given.values, at);
    for (const json& name : row_.at("not_read"))
      if (name == given.name) return;
    for (const std::string prefix : row_.at("prefixes")) {
      if (!given.name.starts_with(prefix)) continue;
      const std::string dest = given.name.substr(prefix.size());
      // Nothing that is modelled; often of another meaning.
      if (!flags_of(dest).empty() && !is_read(dest) && !is_told(dest)) return;
      if (flags_of(dest).empty()) {
        // Spelled as Megatron's flag, which fills a member of another name: --num-query-groups and the like.
        std::string flag = "--" + dest;
        std::ranges::replace(flag, '_', '-');
        const ArgumentSpec* spec = find_flag(flag);
        if (spec == nullptr) continue;
        if (!is_read(spec->dest) && !is_not_modelled(flag)) return;
        const bool truth = given.values.empty() || says(given.values, "true");
        if (!spec->takes_nothing() || truth)
          result_.arguments.push_back(
              {.flag = flag, .values = spec->takes_nothing() ? Words() : given.values, .line = at});
        return;
      }
      return set(dest, given.values, at);
    }
    if (std::ranges::find(unread_, given.word) == unread_.end() && !is_spoken_for(given.name))
      unread_.push_back(given.word);
  }

  /// Named elsewhere in the front end's file: its model, its size, its fields.
  [[nodiscard]] bool is_spoken_for(const std::string& name) const {
    const auto holds = [&](const auto& self, const json& value) -> bool {
      if (value.is_string()) return value == name;
      return value.is_structured() && std::ranges::any_of(value, [&](const json& item) { return self(self, item); });
    };
    return std::ranges::any_of(
        row_.items(), [&](const auto& item) { return item.key() != "arguments" && holds(holds, item.value()); });
  }

  /// A whole number that another option is added to.
  void add_to(const json& sum) {
    const auto found = values_.find(sum.at("megatron").get<std::string>());
    const auto more = number(sum.at("theirs"));
    if (found == values_.end() || !more || found->second.first.size() != 1) return;
    if (const auto own = config::number_in<std::int64_t>(found->second.first.front()))
      found->second.first = {std::to_string(*own + *more)};
  }

  /// A field of the run file: what an option says, or what holds where the start (`start`) or another field (`with`) is
  /// so.
  void take_field(const json& row) {
    const std::string key = row.at("field");
    json value = row.value("value", json());
    if (row.contains("theirs")) {
      const Words* words = find(row.at("theirs"));
      if (words == nullptr || words->empty()) return;
      value = row.contains("values") ? row.at("values").value(words->front(), json()) : json(words->front());
      if (const auto whole = config::number_in<std::int64_t>(words->front()); whole && !row.contains("values"))
        value = *whole;
    }
    if (row.contains("positive")) value = value.is_number() && value > 0 ? row.at("positive") : json();
    if (value.is_null() || (value.is_number() && value <= 0)) return;
    const json::json_pointer place("/" + std::regex_replace(key, std::regex("[.]"), "/"));
    if (row.contains("start") && !std::regex_search(started_words(), std::regex(row.at("start").get<std::string>())))
      return;
    if (row.contains("with"))
      for (const auto& [other, its] : row.at("with").items())
        if (result_.fields.value(other, json()) != its) return;
    if (!row.contains("theirs") && result_.fields.contains(place)) return;
    result_.fields[place] = std::move(value);
  }

  [[nodiscard]] std::string started_words() const {
    return fmt::format("{}", fmt::join(started_.words.begin() + static_cast<std::ptrdiff_t>(started_.around),
                                       started_.words.end(), " "))
        .substr(0, std::size_t{1} << 12);
  }

  void take_as(const json& argument, Words values, int line) {
    // A word of theirs that stands for several arguments of Megatron's.
    if (argument.contains("values")) {
      const auto meanings = argument.at("values").get<std::map<std::string, json>>();
      auto meaning = meanings.find(values.empty() ? "" : values.front());
      if (meaning == meanings.end()) meaning = meanings.find("*");
      if (meaning == meanings.end()) {
        Words known;
        for (const auto& [word, members] : meanings) known.push_back(word);
        return result_.notes.push_back(fmt::format("{} {} is not read: expected one of {}",
                                                   argument.at("theirs").get<std::string>(), fmt::join(values, " "),
                                                   fmt::join(known, ", ")));
      }
      for (const auto& [dest, value] : meaning->second.items()) set(dest, {word_of(value)}, line);
      return;
    }
    if (argument.value("commas", false) && values.size() == 1) values = split(values.front());
    set(argument.at("megatron"), std::move(values), line);
  }

  /// "[a,b]" and "a,b" as their items.
  static Words split(std::string text) {
    std::erase_if(text, [](char c) { return c == '[' || c == ']' || c == '"' || c == '\'' || c == ' '; });
    Words items(1);
    for (const char c : text)
      if (c == ',')
        items.emplace_back();
      else
        items.back() += c;
    return items;
  }

  [[nodiscard]] const Words* find(const std::string& name) const {
    const Words* values = nullptr;
    for (const Given& given : given_)
      if (given.name == name) values = &given.values;
    return values;
  }

  /// The values of all of these options, joined: a family and a size. Empty: one is not given.
  [[nodiscard]] std::string model_of(const json& names) const {
    std::string model;
    for (const std::string name : names) {
      const Words* values = find(name);
      if (values == nullptr || values->empty()) return "";
      model += (model.empty() ? "" : "-") + values->front();
    }
    return model;
  }

  [[nodiscard]] std::optional<std::int64_t> number(const std::string& name) const {
    constexpr std::int64_t kMost = 1'000'000'000;
    std::string text;
    if (name.starts_with('$')) {
      const auto found = started_.environment.find(name.substr(1));
      if (found != started_.environment.end()) text = found->second;
    } else if (const Words* values = find(name); values != nullptr && !values->empty()) {
      text = values->front();
    }
    const auto value = config::number_in<std::int64_t>(text);
    return value && *value >= 1 && *value <= kMost ? value : std::nullopt;
  }

  [[nodiscard]] std::optional<std::int64_t> product_of(const json& names) const {
    std::int64_t product = 1;
    for (const std::string name : names) {
      const auto value = number(name);
      if (!value || __builtin_mul_overflow(product, *value, &product)) return std::nullopt;
    }
    return product;
  }

  /// Lengths that are said in tokens of a GPU, or as a sum; the batch as a product.
  void lengths() {
    if (row_.contains("sequence")) {
      std::int64_t sum = 0;
      for (const std::string name : row_.at("sequence")) sum += number(name).value_or(0);
      if (sum > 0) set("seq_length", {std::to_string(sum)}, 0);
    }
    if (row_.contains("tokens"))
      if (const auto tokens = number(row_.at("tokens"))) {
        const auto cp = values_.find("context_parallel_size");
        const auto ranks = cp == values_.end() || cp->second.first.empty()
                               ? std::optional<std::int64_t>(1)
                               : config::number_in<std::int64_t>(cp->second.first.front());
        const std::int64_t all = *tokens * std::clamp<std::int64_t>(ranks.value_or(1), 1, 1'000'000);
        set("seq_length", {std::to_string(all)}, 0);
        set("micro_batch_size", {"1"}, 0);
        result_.notes.push_back(
            fmt::format("{} packs sequences into micro-batches of {} tokens: taken as one sequence of that length each",
                        result_.front_end, all));
      }
    if (row_.contains("global_batch") && !values_.contains("global_batch_size"))
      for (const json& product : row_.at("global_batch"))
        if (const auto batch = product_of(product); batch && !values_.contains("global_batch_size"))
          set("global_batch_size", {std::to_string(*batch)}, 0);
    if (const auto length = values_.find("seq_length");
        length != values_.end() && !values_.contains("max_position_embeddings"))
      set("max_position_embeddings", length->second.first, 0);
  }

  const json& row_;
  const Started& started_;
  std::vector<Given> given_;
  const std::map<std::string, int>& lines_;
  Words unread_;
  std::map<std::string, std::pair<Words, int>> values_;  ///< By member of Megatron's Namespace, with the line.
  Translated result_;
};

}  // namespace

std::optional<Translated> translated(const Started& started, const std::map<std::string, int>& lines) {
  const std::string words = fmt::format(
      "{}", fmt::join(started.words.begin() + static_cast<std::ptrdiff_t>(started.around), started.words.end(), " "));
  for (const FrontEnd& front_end : front_ends())
    if (std::regex_search(words.substr(0, std::size_t{64} << 10), front_end.start) &&
        words.find(front_end.row.value("with", "")) != std::string::npos)
      return Translation(front_end.row, started, lines).run();
  return std::nullopt;
}

std::string published_model(const std::string& name) {
  const std::string base = base_of(name.substr(0, name.find_last_not_of('/') + 1));
  const std::vector<std::string> known = built_in_models();
  const std::string found = find_model(base, "");
  return std::ranges::find(known, found) != known.end() ? found : "";
}

}  // namespace foldwise::planner
