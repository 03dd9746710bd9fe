// Exports run files with texts from the input: in every field that takes a text, and in the paths of model and system.
// With fuzz/exported.py, bash and Python verify that the arguments are these texts.
#include "planner/launch/export.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "costmodel/config/input_file.h"
#include "costmodel/config/output_file.h"
#include "planner/run/fields.h"
#include "planner/run/run_file.h"
#include "tests/fuzz/fuzz.h"

namespace {

using nlohmann::json;

constexpr char kBetween = '\x1e';  // Separates the texts of two fields.

/// A program that answers each line with a line.
class Checker {
 public:
  Checker() {
    std::array<int, 2> to{}, from{};
    if (::pipe(to.data()) != 0 || ::pipe(from.data()) != 0) std::abort();
    if (::fork() == 0) {
      ::dup2(to[0], STDIN_FILENO);
      ::dup2(from[1], STDOUT_FILENO);
      for (const int end : {to[0], to[1], from[0], from[1]}) ::close(end);
      ::execlp("python3", "python3", FW_ROOT "/tests/fuzz/exported.py", nullptr);
      ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    asked_ = ::fdopen(to[1], "w");
    answered_ = ::fdopen(from[0], "r");
  }
  std::string wrong(const json& about) {
    std::fputs((about.dump() + '\n').c_str(), asked_);
    std::fflush(asked_);
    std::string line;
    for (int c = std::fgetc(answered_); c != '\n'; c = std::fgetc(answered_)) {
      if (c == EOF) std::abort();
      line += static_cast<char>(c);
    }
    return json::parse(line).get<std::string>();
  }

 private:
  std::FILE *asked_ = nullptr, *answered_ = nullptr;
};

/// Path of a file with this name.
std::string file_named(std::string name, const std::string& text) {
  static const std::string folder = [] {
    std::string pattern = (std::filesystem::temp_directory_path() / "foldwise-fuzz-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    return pattern;
  }();
  std::erase_if(name, [](char c) { return c == '/' || c == '\0'; });
  const std::string path = folder + '/' + name.substr(0, 200) + ".json";
  foldwise::config::write_output_file(path, text);
  return path;
}

}  // namespace

std::vector<std::string> foldwise::fuzz_words() {
  return {
      "$(touch X)", "`id`", "; curl evil", "\n", "'", "\"", "\"\"\"", "\\", "${PATH}", "#", "expandable_segments:True",
      "\x1e",       ".json"};
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foldwise::planner;  // NOLINT(google-build-using-namespace)
  static const std::string model =
                               foldwise::config::read_input_file(FW_ROOT "/planner/models/data/mini-llama-16l.json"),
                           system = foldwise::config::read_input_file(FW_ROOT "/hwprofiles/data/systems/h200.json");
  static Checker checker;
  return foldwise::fuzz(data, size, [](const std::string& input) {
    json run = {{"model", "mini-llama-16l"}, {"system", "h200"},   {"num_gpus", 8},
                {"seq_len", 4096},           {"global_batch", 64}, {"pp", 2}};
    std::size_t at = 0;
    const auto next = [&] {
      const std::size_t end = std::min(input.find(kBetween, at), input.size());
      const std::string text = input.substr(std::min(at, end), end - std::min(at, end));
      at = std::min(end + 1, input.size());
      return text;
    };
    const auto set = [&](std::string key, const json& value) {
      std::ranges::replace(key, '.', '/');
      run[json::json_pointer("/" + key)] = value;
    };
    set("id", next());
    for (const Field& field : fields()) {
      if (field.value.type != FieldType::kText) continue;
      const std::string text = next();
      if (text.empty()) continue;
      set(field.key, field.key == "model"    ? file_named(text, model)
                     : field.key == "system" ? file_named(text, system)
                                             : text);
    }
    std::string text;
    try {
      text = run.dump();
    } catch (const json::type_error&) {  // Not UTF-8, so not a run file.
      return;
    }
    const Run read = parse_run(text);
    for (const auto& [name, target] : launch_targets()) {
      json exported = launch_json(launch_of(read, target), target);
      exported["target"] = name;
      exported["layout"] = run.value("pipeline_layout", json());
      if (const std::string wrong = checker.wrong(exported); !wrong.empty()) {
        std::fprintf(stderr, "%s: %s\n%s\n", name.c_str(), wrong.c_str(), text.c_str());
        std::abort();
      }
    }
  });
}
