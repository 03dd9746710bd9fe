#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hwprofiles/load/systems.h"
#include "planner/cli/commands.h"
#include "planner/models/models.h"
#include "planner/run/fields.h"

// Shell completions and the manual page, from the same data as --help.
namespace foldwise::cli {
namespace {

std::vector<CLI::App*> commands_of(CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

/// "--gpus", "-h,--help"; for a positional its name.
std::string names_of(const CLI::Option& option) { return option.get_name(false, true); }

std::vector<std::string> long_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// "key=" of every settable field.
std::vector<std::string> settable_keys() {
  std::vector<std::string> keys;
  for (const planner::Field& f : planner::fields())
    if (f.value.set) keys.push_back(f.key + "=");
  return keys;
}

/// Values of an option or positional, if they are a fixed set: those of CLI::IsMember, or names that we know.
std::vector<std::string> values_of(const CLI::App& command, const CLI::Option& option) {
  const std::string name = option.get_lnames().empty() ? option.get_name() : option.get_lnames().front();
  if (name == "model" || (name == "name" && command.get_name() == "models")) return planner::built_in_models();
  if (name == "system" || (name == "name" && command.get_name() == "systems")) return hwprofiles::built_in_systems();
  if (name == "set" || name == "pin") return settable_keys();
  if (name == "name" && command.get_name() == "rules") return rule_names();
  return values_in_help(option);
}

std::string bash_completion(CLI::App& app) {
  std::vector<std::string> names;
  std::string values, options;
  for (CLI::App* command : commands_of(app)) {
    const std::string& name = command->get_name();
    names.push_back(name);
    std::vector<std::string> words = long_names(*command);
    for (const CLI::Option* option : command->get_options()) {
      const std::vector<std::string> known = values_of(*command, *option);
      if (known.empty()) continue;
      if (option->get_positional()) words.insert(words.end(), known.begin(), known.end());
      for (const std::string& long_name : option->get_lnames())
        values += fmt::format("    '{} --{}') words='{}' ;;\n", name, long_name, fmt::join(known, " "));
    }
    options += fmt::format("      {}) words='{}' ;;\n", name, fmt::join(words, " "));
  }
  const std::vector<std::string> own = long_names(app);
  return fmt::format(R"(# Completion of foldwise: made by `foldwise completion`.
_foldwise() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words='{} {}'
  COMPREPLY=()
  if [ "$COMP_CWORD" -gt 1 ]; then
    words=
    case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{}    *) case "${{COMP_WORDS[1]}}" in
{}      esac ;;
    esac
  fi
  while read -r word; do COMPREPLY+=("$word"); done < <(compgen -W "$words" -- "$current")
  [[ "${{COMPREPLY[0]:-}}" != *= ]] || compopt -o nospace 2>/dev/null || true
}}
complete -o bashdefault -o default -F _foldwise foldwise
)",
                     fmt::join(names, " "), fmt::join(own, " "), values, options);
}

/// Quotes for a shell, within a description in zsh's brackets.
std::string quoted(std::string text) {
  for (std::size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += 4) text.replace(at, 1, "'\\''");
  return '\'' + text + '\'';
}

std::string in_brackets(std::string text) {
  for (const char special : {'\\', '[', ']', ':'})
    for (std::size_t at = 0; (at = text.find(special, at)) != std::string::npos; at += 2) text.insert(at, 1, '\\');
  return text;
}

bool takes_value(const CLI::Option& option) { return option.get_type_size() != 0; }

/// zsh's _arguments, with the descriptions of the help.
std::string zsh_completion(CLI::App& app) {
  std::string commands, cases;
  for (CLI::App* command : commands_of(app)) {
    commands += fmt::format("    {}\n", quoted(command->get_name() + ':' + command->get_description()));
    std::string specs;
    std::size_t positional = 0;
    for (const CLI::Option* option : command->get_options()) {
      const std::vector<std::string> known = values_of(*command, *option);
      const std::string action = known.empty() ? "_files" : fmt::format("({})", fmt::join(known, " "));
      const std::string words = in_brackets(option->get_description());
      if (option->get_positional())
        specs +=
            fmt::format(" \\\n        {}", quoted(fmt::format("{}:{}:{}", ++positional, option->get_name(), action)));
      for (const std::string& name : option->get_lnames())
        specs += fmt::format(" \\\n        {}",
                             quoted(takes_value(*option) ? fmt::format("*--{}=[{}]:{}:{}", name, words, name, action)
                                                         : fmt::format("--{}[{}]", name, words)));
    }
    cases += fmt::format("      {})\n        _arguments{} ;;\n", command->get_name(), specs);
  }
  return fmt::format(R"(#compdef foldwise
# Completion of foldwise: made by `foldwise completion zsh`.
_foldwise() {{
  local -a commands=(
{}  )
  if (( CURRENT == 2 )); then
    _describe command commands
  else
    local command=$words[2]
    shift words
    (( CURRENT-- ))
    case $command in
{}    esac
  fi
}}
compdef _foldwise foldwise
)",
                     commands, cases);
}

std::string fish_completion(CLI::App& app) {
  std::string out = "# Completion of foldwise: made by `foldwise completion fish`.\ncomplete -c foldwise -e\n";
  for (CLI::App* command : commands_of(app)) {
    out += fmt::format("complete -c foldwise -n __fish_use_subcommand -f -a {} -d {}\n", command->get_name(),
                       quoted(command->get_description()));
    const std::string when = quoted("__fish_seen_subcommand_from " + command->get_name());
    for (const CLI::Option* option : command->get_options()) {
      const std::vector<std::string> known = values_of(*command, *option);
      const std::string values = known.empty() ? "" : " -f -a " + quoted(fmt::format("{}", fmt::join(known, " ")));
      if (option->get_positional() && !known.empty())
        out += fmt::format("complete -c foldwise -n {}{}\n", when, values);
      for (const std::string& name : option->get_lnames())
        out += fmt::format("complete -c foldwise -n {} -l {}{} -d {}{}\n", when, name,
                           takes_value(*option) ? " -r" : "", quoted(option->get_description()), values);
    }
  }
  return out;
}

/// Escapes text for a manual page, so that roff interprets none of it.
std::string roff(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\')
      result += "\\e";
    else if (c == '-')
      result += "\\-";
    else
      result += c;
  }
  return !result.empty() && (result.front() == '.' || result.front() == '\'') ? "\\&" + result : result;
}

std::string roff_option(const CLI::Option& option) {
  const std::string type = takes_value(option) ? ' ' + option.get_type_name() : "";
  std::string out =
      fmt::format(".TP\n.B {}\n{}", roff((option.get_positional() ? option.get_name() : names_of(option)) + type),
                  roff(option.get_description()));
  if (!option.get_default_str().empty()) out += roff(" [" + option.get_default_str() + "]");
  return out + '\n';
}

/// Options in the groups of the help.
std::string roff_options(const CLI::App& command) {
  std::string out;
  for (const CLI::Option* option : command.get_options())
    if (option->get_positional()) out += roff_option(*option);
  for (const std::string& group : command.get_groups()) {
    std::string of_group;
    for (const CLI::Option* option : command.get_options())
      if (!option->get_positional() && option->get_group() == group) of_group += roff_option(*option);
    if (!of_group.empty()) out += fmt::format(".PP\n{}:\n{}", roff(group), of_group);
  }
  return out;
}

std::string manual(CLI::App& app) {
  std::string out = fmt::format(".TH FOLDWISE 1 \"\" \"{}\"\n.SH NAME\nfoldwise \\- {}\n", roff(version()),
                                roff(app.get_description()));
  out += ".SH SYNOPSIS\n.B foldwise\n.I command\n[options]\n.SH OPTIONS\n" + roff_options(app) + ".SH COMMANDS\n";
  for (CLI::App* command : commands_of(app)) {
    out += fmt::format(".SS {}\n{}.\n", roff(command->get_name()), roff(command->get_description()));
    out += roff_options(*command);
    if (!command->get_footer().empty()) out += ".PP\n.nf\n" + roff(command->get_footer()) + "\n.fi\n";
  }
  return out + ".SH EXIT STATUS\n" + roff(app.get_footer()) + '\n';
}

}  // namespace

std::vector<std::string> values_in_help(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t open = type.find('{'), close = type.find('}', open);
  if (close == std::string::npos) return {};
  std::vector<std::string> values;
  for (std::size_t at = open + 1; at < close;) {
    const std::size_t end = std::min(type.find(',', at), close);
    values.push_back(type.substr(at, end - at));
    at = end + 1;
  }
  return values;
}

void add_shell(CLI::App& app, Command& chosen) {
  auto shell = std::make_shared<std::string>();
  CLI::App* completion = app.add_subcommand("completion", "Print a script that completes commands in a shell");
  completion->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->callback([shell, &app, &chosen] {
    chosen = [shell, &app] {
      print_result(*shell == "zsh"    ? zsh_completion(app)
                   : *shell == "fish" ? fish_completion(app)
                                      : bash_completion(app));
      return kDone;
    };
  });
  CLI::App* man = app.add_subcommand("man", "Print the manual page, in roff");
  man->callback([&app, &chosen] {
    chosen = [&app] {
      print_result(manual(app));
      return kDone;
    };
  });
}

}  // namespace foldwise::cli
