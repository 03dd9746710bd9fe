#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/config/diagnostics.h"
#include "planner/run/release.h"

// Arguments of Megatron's own parser: the flags, the values that they take, and the member of its Namespace that each
// fills. planner/launch/arguments_of_megatron.py makes planner/launch/megatron_arguments.json from the parser of each
// release.
namespace foldwise::planner {

enum class ArgumentType : std::uint8_t { kTrue, kFalse, kEither, kInteger, kNumber, kBoolean, kText };

/// One flag of Megatron's parser.
struct ArgumentSpec {
  std::string flag;  ///< "--swiglu"
  std::string dest;  ///< The member of the Namespace, as the log prints it: "swiglu".
  ArgumentType type = ArgumentType::kText;
  bool many = false;                              ///< Takes a list.
  bool may_be_empty = false;                      ///< The list may be empty (nargs "*").
  std::vector<std::string> choices;               ///< Choices of all releases; empty: any value of the type.
  ReleaseSpan releases;                           ///< Releases that have the flag.
  std::map<std::string, ReleaseSpan> choices_in;  ///< Choices that only some of these releases have.

  [[nodiscard]] bool takes_nothing() const { return type < ArgumentType::kInteger; }
};

/// Defaults of --hidden-dropout and --attention-dropout (megatron_arguments.json).
inline constexpr double kDefaultDropout = 0.1;

/// Every flag, in Megatron's order.
[[nodiscard]] const std::vector<ArgumentSpec>& argument_specs();
/// nullptr if Megatron has no such flag.
[[nodiscard]] const ArgumentSpec* find_flag(std::string_view flag);
/// Whether the flag takes that choice in the release.
[[nodiscard]] bool has_choice(std::string_view flag, const std::string& choice, const Release& release);
/// The flags that fill this member of the Namespace; empty if there is none.
[[nodiscard]] const std::vector<const ArgumentSpec*>& flags_of(std::string_view dest);

/// Why `value`, from a log or a configuration, has the wrong type for the member: "expected a whole number, found "x"".
/// Empty if the type is right or no flag fills the member.
[[nodiscard]] std::string mistake_in_member(std::string_view dest, const nlohmann::json& value);

/// A flag with the values that follow it in a script.
struct Argument {
  std::string flag;
  std::vector<std::string> values;
  int line = 0;
};

/// Members of Megatron's Namespace with their values and the lines that gave them. Scripts, logs and configuration
/// files are all read into this.
class Settings {
 public:
  struct Setting {
    nlohmann::json value;
    int line = 0;
    bool operator==(const Setting&) const = default;
  };

  void set(const std::string& dest, nlohmann::json value, int line = 0) { settings_[dest] = {std::move(value), line}; }
  void erase(const std::string& dest) { settings_.erase(dest); }

  /// Whether the member is given and not null.
  [[nodiscard]] bool has(std::string_view dest) const { return find(dest) != nullptr; }
  [[nodiscard]] const nlohmann::json* find(std::string_view dest) const;
  [[nodiscard]] bool on(std::string_view dest) const;   ///< True; false if not given.
  [[nodiscard]] bool off(std::string_view dest) const;  ///< Given as false.
  [[nodiscard]] std::int64_t integer(std::string_view dest, std::int64_t fallback) const;
  [[nodiscard]] double number(std::string_view dest, double fallback) const;
  [[nodiscard]] std::string text(std::string_view dest, std::string fallback = {}) const;
  [[nodiscard]] bool is(std::string_view dest, std::string_view value) const { return text(dest) == value; }
  [[nodiscard]] std::vector<std::string> names(std::string_view dest) const;  ///< A text is a list of one name.
  [[nodiscard]] bool lists(std::string_view dest, std::string_view name) const;
  [[nodiscard]] int line(std::string_view dest) const;
  [[nodiscard]] const std::map<std::string, Setting, std::less<>>& all() const { return settings_; }
  bool operator==(const Settings&) const = default;

 private:
  std::map<std::string, Setting, std::less<>> settings_;
};

/// Whether EP ranks get the tokens that the router sends them: no equal numbers, which predictions assume.
[[nodiscard]] bool router_decides_loads(const Settings& settings);

/// Reads arguments as Megatron's parser of `release` does. What it would refuse (a value of another type, an unknown
/// choice, a flag of another release) is added to `diagnostics`, with `file` and line. Flags that it does not know are
/// added to `unknown`. A value with an unset variable ("$TP") gives no setting.
[[nodiscard]] Settings parse_arguments(const std::vector<Argument>& arguments, const std::string& file,
                                       const Release& release, config::Diagnostics& diagnostics,
                                       std::vector<Argument>& unknown);

/// The flags for these settings, in Megatron's order. Throws std::logic_error if no flag of the release sets a member
/// to its value.
[[nodiscard]] std::vector<Argument> to_arguments(const Settings& settings, const Release& release);

/// A value as a word of a command line, which is also how Megatron's log prints it: "4", "0.25", "core_attn".
[[nodiscard]] std::string word_of(const nlohmann::json& value);

}  // namespace foldwise::planner
