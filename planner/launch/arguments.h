#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/config/diagnostics.h"
#include "planner/run/release.h"

// Megatron's arguments as its own parser has them: which flags there are, what they take, and which member of its
// Namespace each fills. planner/launch/megatron_arguments.json lists them, made from the parser of each release by
// planner/launch/arguments_of_megatron.py.
namespace foldwise::planner {

enum class ArgumentType : std::uint8_t { kTrue, kFalse, kEither, kInteger, kNumber, kBoolean, kText };

/// One flag of Megatron's parser.
struct ArgumentSpec {
  std::string flag;  ///< "--swiglu"
  std::string dest;  ///< The member of the Namespace; its log prints it: "swiglu".
  ArgumentType type = ArgumentType::kText;
  bool many = false;                              ///< Takes a list.
  bool may_be_empty = false;                      ///< A list of none, too (nargs "*").
  std::vector<std::string> choices;               ///< Of any release; empty: any value of the type.
  ReleaseSpan releases;                           ///< That have the flag.
  std::map<std::string, ReleaseSpan> choices_in;  ///< Choices that not every release of the flag has.

  [[nodiscard]] bool takes_nothing() const { return type < ArgumentType::kInteger; }
};

/// --hidden-dropout and --attention-dropout where they are not given (megatron_arguments.json).
inline constexpr double kDefaultDropout = 0.1;

/// Every flag, in Megatron's order.
[[nodiscard]] const std::vector<ArgumentSpec>& argument_specs();
/// nullptr: Megatron knows no such flag.
[[nodiscard]] const ArgumentSpec* find_flag(std::string_view flag);
/// Whether the flag takes that choice in the release.
[[nodiscard]] bool has_choice(std::string_view flag, const std::string& choice, const Release& release);
/// Its flags; empty: none fills that member.
[[nodiscard]] const std::vector<const ArgumentSpec*>& flags_of(std::string_view dest);

/// What is wrong with the type of `value`, which a log or a configuration gives that member: "expected a whole number,
/// found "x""; empty: nothing, or no flag fills it.
[[nodiscard]] std::string mistake_in_member(std::string_view dest, const nlohmann::json& value);

/// A flag with what follows it, as it stands in a script.
struct Argument {
  std::string flag;
  std::vector<std::string> values;
  int line = 0;
};

/// Members of Megatron's Namespace and their values, with the lines that gave them: what a script, a log and a
/// configuration file have in common.
class Settings {
 public:
  struct Setting {
    nlohmann::json value;
    int line = 0;
    bool operator==(const Setting&) const = default;
  };

  void set(const std::string& dest, nlohmann::json value, int line = 0) { settings_[dest] = {std::move(value), line}; }
  void erase(const std::string& dest) { settings_.erase(dest); }

  /// Given, and not null.
  [[nodiscard]] bool has(std::string_view dest) const { return find(dest) != nullptr; }
  [[nodiscard]] const nlohmann::json* find(std::string_view dest) const;
  [[nodiscard]] bool on(std::string_view dest) const;   ///< True; false and not given are alike.
  [[nodiscard]] bool off(std::string_view dest) const;  ///< Given as false.
  [[nodiscard]] std::int64_t integer(std::string_view dest, std::int64_t fallback) const;
  [[nodiscard]] double number(std::string_view dest, double fallback) const;
  [[nodiscard]] std::string text(std::string_view dest, std::string fallback = {}) const;
  [[nodiscard]] bool is(std::string_view dest, std::string_view value) const { return text(dest) == value; }
  [[nodiscard]] std::vector<std::string> names(std::string_view dest) const;  ///< A text is a list of one.
  [[nodiscard]] bool lists(std::string_view dest, std::string_view name) const;
  [[nodiscard]] int line(std::string_view dest) const;
  [[nodiscard]] const std::map<std::string, Setting, std::less<>>& all() const { return settings_; }
  bool operator==(const Settings&) const = default;

 private:
  std::map<std::string, Setting, std::less<>> settings_;
};

/// As Megatron's parser of `release` reads them. Adds what it would refuse (a value of another type, a choice that is
/// none, a flag of another release) to `diagnostics`, at `file` and the line; flags that it does not know to `unknown`.
/// A value with a variable that nobody set ("$TP") gives no setting.
[[nodiscard]] Settings parse_arguments(const std::vector<Argument>& arguments, const std::string& file,
                                       const Release& release, config::Diagnostics& diagnostics,
                                       std::vector<Argument>& unknown);

/// The flags that give these settings, in Megatron's order. Throws std::logic_error for a member that no flag of the
/// release fills with its value.
[[nodiscard]] std::vector<Argument> to_arguments(const Settings& settings, const Release& release);

/// A value as one word of a command line or as Megatron's log prints it: "4", "0.25", "core_attn".
[[nodiscard]] std::string word_of(const nlohmann::json& value);

}  // namespace foldwise::planner
