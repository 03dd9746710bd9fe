#include "planner/launch/verdict.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "costmodel/config/input_file.h"
#include "costmodel/config/output_file.h"
#include "planner/launch/files.h"
#include "planner/launch/machine.h"
#include "planner/launch/temporary_folder.h"

namespace foldwise::planner {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

/// Runs the words without a shell, with standard output redirected to stderr. Returns the exit status.
int run_words(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv.front(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    throw config::ConfigError({{{config::kArguments, 0, "python"},
                                fmt::format("{} cannot be run: {}", words.front(), std::strerror(error))}});
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), words.front());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

json request_of(const Launch& launch, const Run& run, const std::string& megatron) {
  json arguments = json::array(), environment = json::object();
  for (const Settings* settings : {&launch.model, &launch.plan, &launch.trial})
    for (const Argument& argument : to_arguments(*settings, *launch.release)) {
      arguments.push_back(argument.flag);
      for (const std::string& value : argument.values) arguments.push_back(value);
    }
  for (const EnvironmentVariable& variable : launch.environment) environment[variable.name] = variable.value;
  return {{"megatron", megatron},
          {"arguments", std::move(arguments)},
          {"world_size", launch.num_gpus},
          {"capability", {compute_capability(run.hardware), 0}},
          {"environment", std::move(environment)}};
}

std::string text_or_empty(const json& value) { return value.is_string() ? value.get<std::string>() : std::string(); }

}  // namespace

Verdict verdict_of(const Launch& launch, const Run& run, const std::string& megatron, const std::string& python) {
  if (!fs::exists(fs::path(megatron) / "megatron" / "training" / "arguments.py"))
    throw config::ConfigError({{{config::kArguments, 0, "check"},
                                fmt::format("expected a folder of Megatron-LM, found no megatron/training/arguments.py "
                                            "in {}",
                                            megatron)}});
  const TemporaryFolder folder;
  const fs::path program = folder.path() / "check_arguments.py", request = folder.path() / "request.json",
                 answer = folder.path() / "answer.json";
  config::write_output_file(program, launch_file("check_arguments.py"));
  config::write_output_file(request, request_of(launch, run, megatron).dump());
  const int status = run_words({python, program.string(), request.string(), answer.string()});
  if (status != 0 || !fs::exists(answer))
    throw config::ConfigError(
        {{{config::kArguments, 0, "check"}, fmt::format("{} ended with {} before it had an answer", python, status)}});
  const json said = json::parse(config::read_input_file(answer.string()));
  Verdict verdict{.accepted = said.at("accepted"),
                  .stage = text_or_empty(said.at("stage")),
                  .error = text_or_empty(said.at("error")),
                  .at = text_or_empty(said.at("at")),
                  .versions = {},
                  .too_old = {},
                  .notes = said.at("notes")};
  for (const auto& [library, version] : said.at("versions").items())
    verdict.versions.emplace_back(library, version.get<std::string>());
  for (const Requirement& needed : requirements(run.model, run.options))
    for (const auto& [library, version] : verdict.versions)
      if (library == needed.library && older(version, needed.version)) verdict.too_old.push_back({needed, version});
  return verdict;
}

std::string verdict_text(const Verdict& verdict, const std::string& megatron) {
  std::string text;
  if (verdict.accepted)
    text += fmt::format("{}: accepted by its parser, its validation and its configuration\n", megatron);
  else
    text += fmt::format("{}{}{}: {}: {}\n", megatron, verdict.at.empty() ? "" : "/", verdict.at, verdict.stage,
                        verdict.error);
  for (const TooOld& library : verdict.too_old)
    text += fmt::format("{} {} is too old: {} needs {}\n", library.needed.library, library.found,
                        library.needed.because, library.needed.version);
  for (const auto& [library, version] : verdict.versions) text += fmt::format("installed: {} {}\n", library, version);
  for (const std::string& note : verdict.notes) text += "note: " + note + '\n';
  return text;
}

json verdict_json(const Verdict& verdict) {
  const auto or_null = [](const std::string& text) { return text.empty() ? json(nullptr) : json(text); };
  json versions = json::object(), too_old = json::array();
  for (const auto& [library, version] : verdict.versions) versions[library] = version;
  for (const TooOld& library : verdict.too_old)
    too_old.push_back(
        {{"library", library.needed.library}, {"needs", library.needed.version}, {"found", library.found}});
  return {{"accepted", verdict.accepted},
          {"stage", or_null(verdict.stage)},
          {"error", or_null(verdict.error)},
          {"at", or_null(verdict.at)},
          {"versions", versions},
          {"too_old", too_old},
          {"notes", verdict.notes}};
}

}  // namespace foldwise::planner
