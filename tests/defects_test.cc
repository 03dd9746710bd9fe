// Is one mistake in a file, of any kind and in any of its fields, one message with file, line, field, what was expected
// and what was found, with exit code 2 and nothing written? The mistakes are made from a valid file and the table of
// fields that its reader has.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/step/reserved_memory.h"
#include "costmodel/step/step.h"
#include "hwprofiles/load/fields.h"
#include "hwprofiles/load/profile.h"
#include "planner/launch/arguments.h"
#include "planner/launch/dump.h"
#include "planner/launch/mapping.h"
#include "planner/run/fields.h"
#include "planner/run/run_file.h"
#include "tests/program_test.h"

namespace foldwise::planner::defects_test {
namespace {

using nlohmann::ordered_json;

/// A file with one mistake, and the expected message.
struct Defect {
  std::string text;
  int line = 0;           ///< 0: no line in the message.
  std::string field;      ///< Empty: no field in the message.
  std::string message;    ///< Part of the message.
  bool followed = false;  ///< The mistake causes other mistakes, which are reported after it.
};

constexpr const char* kNoJson = "not valid JSON at column";

int line_of(const std::string& text, std::size_t at) {
  return 1 + static_cast<int>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
}

/// Mistakes in a JSON text with one value per line, or in JSON Lines: a list, whose indices no message contains.
class JsonDefects {
 public:
  enum class Form : std::uint8_t { kOneText, kLines };
  explicit JsonDefects(ordered_json valid, Form form = Form::kOneText) : valid_(std::move(valid)), form_(form) {}

  /// Replaces the value at `pointer`, which the valid file may lack, by any text.
  void value(const std::string& pointer, const std::string& value, const std::string& message,
             const std::string& below = "") {
    auto [text, at] = marked(pointer);
    add(text.replace(at, kMark.size(), value), at, pointer + below, message);
  }
  /// Duplicates the member at `pointer`.
  void twice(const std::string& pointer) {
    auto [text, at] = marked(pointer);
    const char* space = form_ == Form::kLines ? " " : "\n";
    text.replace(at, kMark.size(), fmt::format("1,{}{}: 1", space, ordered_json(key_of(pointer)).dump()));
    add(text, at + 4, pointer, fmt::format("duplicate key; the first is on line {}", line_of(text, at)));
  }
  void renamed(const std::string& pointer, const std::string& key, const std::string& message) {
    ordered_json tree = valid_, value = at_or_null(pointer);
    ordered_json& parent = tree[ordered_json::json_pointer(parent_of(pointer))];
    if (parent.is_object()) parent.erase(key_of(pointer));
    parent[key] = "THE-VALUE";
    std::string text = text_of(tree);
    const std::size_t at = text.find(kMark);
    add(text.replace(at, kMark.size(), value.dump()), at, parent_of(pointer) + "/" + key, message);
    defects.back().followed = true;
  }
  /// Removes the value, which is reported at its parent.
  void missing(const std::string& pointer, const std::string& message) {
    ordered_json tree = valid_;
    const std::string parent = parent_of(pointer);
    tree[ordered_json::json_pointer(parent)].erase(key_of(pointer));
    auto [marked_text, at] = marked(parent);
    add(text_of(tree), 0, pointer, message);
    defects.back().line = line_of(marked_text, at);
  }
  void cut(const std::string& pointer) {
    auto [text, at] = marked(pointer);
    text.erase(at, form_ == Form::kLines ? text.find('\n', at) - at : text.size());
    add(text, at, "", kNoJson);
  }
  /// All mistakes that any member may have.
  void broken(const std::string& pointer) {
    value(pointer, "NaN", kNoJson);
    value(pointer, "1e999", kNoJson);
    twice(pointer);
    cut(pointer);
  }

  [[nodiscard]] std::string valid() const { return text_of(valid_); }
  std::vector<Defect> defects;

 private:
  static constexpr std::string_view kMark = "\"THE-VALUE\"";

  [[nodiscard]] std::string text_of(const ordered_json& tree) const {
    if (form_ == Form::kOneText) return tree.dump(1);
    std::string text;
    for (const ordered_json& line : tree) text += line.dump() + '\n';
    return text;
  }
  static std::string key_of(const std::string& pointer) { return pointer.substr(pointer.rfind('/') + 1); }
  static std::string parent_of(const std::string& pointer) { return pointer.substr(0, pointer.rfind('/')); }
  [[nodiscard]] ordered_json at_or_null(const std::string& pointer) const {
    const ordered_json::json_pointer at(pointer);
    return valid_.contains(at) ? valid_.at(at) : ordered_json(1);
  }
  [[nodiscard]] std::pair<std::string, std::size_t> marked(const std::string& pointer) const {
    ordered_json tree = valid_;
    tree[ordered_json::json_pointer(pointer)] = "THE-VALUE";
    std::string text = text_of(tree);
    const std::size_t at = text.find(kMark);
    return {std::move(text), at};
  }
  void add(const std::string& text, std::size_t at, const std::string& field, const std::string& message) {
    std::string told = message == kNoJson ? "" : field;
    if (form_ == Form::kLines && !told.empty()) told.erase(0, told.find('/', 1));
    defects.push_back({text, line_of(text, at), told, message});
  }

  ordered_json valid_;
  Form form_;
};

class Defects : public ProgramTest {
 protected:
  /// `arguments` contains {} for the file.
  void expect_told(const std::string& valid, const std::vector<Defect>& defects, const std::string& arguments,
                   const std::string& name, std::set<std::string> there = {}) const {
    const std::string file = path(name);
    const std::string command = fmt::format(fmt::runtime(arguments), file);
    static_cast<void>(write_text(name, valid));
    const Outcome good = foldwise(command);
    ASSERT_EQ(good.code, 0) << good.err;
    there.insert({name, "stdout", "stderr"});
    for (const std::string& other : files())
      if (!there.contains(other)) std::filesystem::remove_all(path(other));
    double slowest_s = 0.0;
    for (std::size_t i = 0; i < defects.size(); i += FW_EVERY) {
      const Defect& defect = defects[i];
      static_cast<void>(write_text(name, defect.text));
      const auto start = std::chrono::steady_clock::now();
      const Outcome outcome = foldwise(command);
      slowest_s = std::max(slowest_s, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      std::string expected = file;
      if (defect.line > 0) expected += ':' + std::to_string(defect.line);
      expected += ": ";
      if (!defect.field.empty()) expected += defect.field + ": ";
      const std::size_t found = outcome.err.find(expected);
      const std::string told =
          found == std::string::npos ? "" : outcome.err.substr(found, outcome.err.find('\n', found) - found);
      const bool as_expected = outcome.code == 2 && outcome.out.empty() && contents(file) == defect.text &&
                               told.find(defect.message) != std::string::npos &&
                               (defect.followed || outcome.err == told + '\n');
      EXPECT_TRUE(as_expected) << "exit code " << outcome.code << ", expected " << expected << defect.message
                               << "\nfound " << outcome.err.substr(0, 600);
    }
    EXPECT_EQ(files(), there);
    fmt::print("{}: {} mistakes, {:.3f} s the slowest\n", name, defects.size(), slowest_s);
  }

 private:
  [[nodiscard]] std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      names.insert(entry.path().filename().string());
    return names;
  }
};

/// A value that the field does not take, and the message, at the field or below it.
struct WrongValue {
  std::string value, message;
  std::string below{};
};

std::vector<WrongValue> wrong_values(const FieldValue& v) {
  const auto low = static_cast<std::int64_t>(v.low), high = static_cast<std::int64_t>(v.high);
  const std::string near = v.names.empty() ? "" : v.names.front() + "x";
  const std::string unknown =
      v.names.empty() ? "" : fmt::format(R"(, found "{}"; the nearest is "{}")", near, v.names.front());
  std::vector<WrongValue> list;
  switch (v.type) {
    case FieldType::kInteger:
      list = {
          {R"("x")", R"(expected a whole number, found "x")"},
          {"[1]", "expected a whole number, found a list"},
          {"{}", "expected a whole number, found an object"},
          {"1.5", "expected a whole number, found 1.5"},
          {std::to_string(low - 1), fmt::format("expected a whole number of at least {}, found {}", low, low - 1)},
          {std::to_string(high + 1), fmt::format("expected a whole number of at most {}, found {}", high, high + 1)},
          {"1e300", fmt::format("expected a whole number of at most {}, found 1e+300", high)}};
      break;
    case FieldType::kNumber:
      list = {{R"("x")", R"(expected a number, found "x")"},
              {"false", "expected a number, found false"},
              {"[1]", "expected a number, found a list"},
              {"-1e300", fmt::format("expected a number of at least {}, found -1e+300", v.low)},
              {"1e300", fmt::format("expected a number of at most {}, found 1e+300", v.high)}};
      break;
    case FieldType::kBoolean:
      list = {{R"("true")", R"(expected true or false, found "true")"},
              {"1", "expected true or false, found 1"},
              {"[]", "expected true or false, found an empty list"},
              {"{}", "expected true or false, found an object"}};
      break;
    case FieldType::kName:
      list = {{"7", "expected a text in quotes, found 7"},
              {R"(["x"])", "expected a text in quotes, found a list"},
              {R"("")", R"(, found "")"},
              {'"' + near + '"', unknown}};
      break;
    case FieldType::kNames:
      list = {{"7", "expected a list of texts, found 7"},
              {"{}", "expected a list of texts, found an object"},
              {"[7]", "expected a text in quotes, found 7", "/0"},
              {"[\"" + near + "\"]", unknown}};
      break;
    case FieldType::kText:
      list = {{"7", "expected a text in quotes, found 7"},
              {R"(["x"])", "expected a text in quotes, found a list"},
              {"true", "expected a text in quotes, found true"}};
      break;
    case FieldType::kIntegers:
      list = {{"7", "expected a list of whole numbers, found 7"},
              {R"(["x"])", R"(expected a whole number, found "x")", "/0"},
              {"[0]", "expected a whole number of at least 1, found 0", "/0"}};
      break;
    case FieldType::kObject:
      list = {{"7", "expected an object"}, {"[]", "expected an object"}, {R"("x")", "expected an object"}};
      break;
  }
  return list;
}

TEST_F(Defects, OfARunFile) {
  nlohmann::json lora = small_run();
  lora["task"] = "lora";
  JsonDefects of_run(ordered_json::parse(small_run().dump())), of_lora(ordered_json::parse(lora.dump()));
  for (const Field& f : fields()) {
    JsonDefects& of = f.key.starts_with("lora.") ? of_lora : of_run;
    std::string pointer = "/" + f.key;
    std::ranges::replace(pointer, '.', '/');
    for (const auto& [value, message, below] : wrong_values(f.value)) of.value(pointer, value, message, below);
    of.broken(pointer);
    of.renamed(pointer, f.key.substr(f.key.rfind('.') + 1) + "x", "unknown key; the nearest known key is");
  }
  for (const JsonDefects& of : {of_run, of_lora})
    expect_told(of.valid(), of.defects, "predict {} --trace " + path("trace.json"), "run.json");
}

std::string data_file(const std::string& name) { return contents(std::filesystem::path(FW_DATA_DIR) / name); }

// Each number of a profile gets one of the mistakes, in turn.
TEST_F(Defects, OfAProfile) {
  const ordered_json h200 = ordered_json::parse(data_file("systems/h200.json"));
  JsonDefects of(h200);
  std::size_t turn = 0;
  for (const hwprofiles::Field& f : hwprofiles::fields(h200)) {
    if (!h200.contains(ordered_json::json_pointer(f.pointer))) continue;
    const std::string value = f.pointer + "/value", unit = f.pointer + "/unit", kind = f.pointer + "/kind",
                      source = f.pointer + "/source";
    switch (turn++ % 14) {
      case 0:
        of.value(value, R"("x")", R"(expected a number, found "x")");
        break;
      case 1:
        of.value(value, "-1e299", "found -1e+299");
        break;
      case 2:
        of.value(value, "1e299", "found 1e+299");
        break;
      case 3:
        of.value(value, "[1]", "expected a number, found a list");
        break;
      case 4:
        of.missing(value, "expected a number, found nothing");
        break;
      case 5:
        of.value(unit, R"("furlong")", fmt::format("expected the unit of {}, one of ", f.dimension->name));
        break;
      case 6:
        of.value(unit, "7", "expected a text in quotes, found 7");
        break;
      case 7:
        of.missing(unit, fmt::format("expected the unit of {}, one of ", f.dimension->name));
        break;
      case 8:
        of.value(kind, R"("guessed")", R"(expected one of datasheet, measured, fitted, assumed, found "guessed")");
        break;
      case 9:
        of.value(source, R"("nobody")", R"(expected a key of /sources, found "nobody")");
        break;
      case 10:
        of.value(f.pointer, "7", "expected an object with value, unit, kind and source, found 7");
        break;
      case 11:
        of.value(f.pointer + "/values", "7", "unknown key; the nearest known key is \"value\"");
        break;
      case 12:
        of.renamed(f.pointer, f.pointer.substr(f.pointer.rfind('/') + 1) + "x", "unknown key");
        break;
      default:
        of.broken(value);
    }
  }
  EXPECT_GE(of.defects.size(), 100U);
  expect_told(of.valid(), of.defects, "systems {}", "mine.json");
}

// Keys of three families of configurations: DeepSeek, Qwen3-Next and Mixtral.
TEST_F(Defects, OfAModel) {
  const FieldValue integer{.type = FieldType::kInteger}, boolean{.type = FieldType::kBoolean};
  const std::vector<std::pair<std::string, std::vector<std::string>>> read = {
      {"deepseek-v3",
       {"vocab_size",
        "hidden_size",
        "intermediate_size",
        "moe_intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "n_routed_experts",
        "n_shared_experts",
        "num_experts_per_tok",
        "first_k_dense_replace",
        "moe_layer_freq",
        "n_group",
        "topk_group",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "max_position_embeddings",
        "num_nextn_predict_layers",
        "tie_word_embeddings"}},
      {"qwen3-next-80b-a3b",
       {"head_dim", "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads",
        "linear_num_value_heads", "num_experts", "full_attention_interval", "shared_expert_intermediate_size",
        "use_qk_norm"}},
      {"mixtral-8x7b", {"num_local_experts", "num_key_value_heads"}}};
  for (const auto& [name, keys] : read) {
    JsonDefects of(ordered_json::parse(data_file("../../planner/models/data/" + name + ".json")));
    for (const std::string& key : keys) {
      const std::string pointer = "/" + key;
      if (key.starts_with("tie_") || key.starts_with("use_")) {
        for (const WrongValue& wrong : wrong_values(boolean)) of.value(pointer, wrong.value, wrong.message);
      } else {
        for (const char* value : {R"("x")", "[1]", "{}", "1.5", "-1", "1e300"})
          if (key != "moe_layer_freq" || value != std::string("[1]"))  // A number per layer.
            of.value(pointer, value, "expected a whole number");
      }
      of.broken(pointer);
      // Without these keys the configuration is of another family and lacks other keys.
      if (key != "n_routed_experts" && key != "num_local_experts" && key != "linear_num_key_heads")
        of.renamed(pointer, key + "x", "unknown key; the nearest known key is \"" + key + '"');
    }
    for (const WrongValue& wrong : wrong_values({.type = FieldType::kName, .names = {"silu"}}))
      of.value("/hidden_act", wrong.value, wrong.message);
    for (const char* family : {"7", "[]"})
      of.value("/model_type", family, "expected");  // An unknown name is read by its keys.
    expect_told(of.valid(), of.defects, "models {}", "config.json");
  }
}

TEST_F(Defects, OfRecords) {
  ordered_json lines = ordered_json::array();
  std::istringstream file(contents(FW_FUZZ_DIR "/records/kinds.jsonl"));
  for (std::string line; std::getline(file, line);) lines.push_back(ordered_json::parse(line));
  JsonDefects of(lines, JsonDefects::Form::kLines);
  const auto texts = wrong_values({.type = FieldType::kText});
  const auto wrong = [&](const std::string& pointer, const std::vector<WrongValue>& values) {
    for (const auto& [value, message, below] : values) of.value(pointer, value, message, below);
    of.broken(pointer);
    of.missing(pointer, "expected");
  };
  for (const char* key : {"session", "program", "started", "device"}) wrong(std::string("/0/") + key, texts);
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const std::string at = "/" + std::to_string(i);
    for (const auto& [key, value] : lines[i]["of"].items()) {
      const std::string pointer = fmt::format("{}/of/{}", at, key);
      of.value(pointer, "7", "expected a text in quotes, found 7");
      if (key != "variant") of.value(pointer, R"("?")", R"(found "?")");  // Any text is valid.
      of.broken(pointer);
    }
    for (const auto& [key, value] : lines[i]["shape"].items())
      wrong(fmt::format("{}/shape/{}", at, key), {{R"("x")", R"(expected a whole number, found "x")"},
                                                  {"0", "expected a whole number of at least 1, found 0"},
                                                  {"1.5", "expected a whole number, found 1.5"},
                                                  {"1e300", "expected a whole number of at most"}});
    for (const char* key : {"flops", "bytes"})
      wrong(at + "/" + key, {{R"("x")", R"(expected a number, found "x")"}, {"-1", "expected a number of at least 0"}});
    wrong(at + "/samples_us", {{"7", "expected a list of times"},
                               {"[]", "expected a list of times"},
                               {R"(["x"])", "expected times in microseconds above 0, found \"x\""},
                               {"[0]", "expected times in microseconds above 0, found 0"}});
    wrong(at + "/correct", {{"1", "expected true or false, found 1"}});
    of.value(at + "/kernel", R"("gem")", R"(found "gem")");
    of.value(at + "/session", R"("another")", R"(expected the id of a session line above, found "another")");
    of.value(at + "/schema", "9", "expected 1, found 9: written by another version");
    of.value(at + "/warmup", "3", "unknown key; the nearest known key is \"warmups\"");
  }
  EXPECT_GE(of.defects.size(), 100U);
  expect_told(of.valid(), of.defects, "validate {}", "records.jsonl");
}

// At each position of a layout, a character that makes it invalid.
TEST_F(Defects, OfALayout) {
  const std::string layout = "Et*15|t*17L";
  nlohmann::json run = small_run();
  run["pipeline_layout"] = layout;
  JsonDefects of(ordered_json::parse(run.dump()));
  for (const char c : std::string("xEtL|()*1 "))
    for (std::size_t at = 0; at <= layout.size(); ++at) {
      std::string text = layout;
      of.value("/pipeline_layout", '"' + text.insert(at, 1, c) + '"', "expected");
    }
  EXPECT_GE(of.defects.size(), 100U);
  expect_told(of.valid(), of.defects, "predict {}", "run.json");
}

nlohmann::json measured_runs() {
  nlohmann::json runs = {small_run(), small_run()};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    runs[i]["id"] = "run" + std::to_string(i);
    runs[i]["micro_batch"] = i + 1;
    runs[i]["measured"] = {{"step_time_s", 10.0}};
  }
  return runs;
}

TEST_F(Defects, OfMeasuredRuns) {
  JsonDefects of(ordered_json::parse(measured_runs().dump()));
  for (const char* key : {"step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "peak_memory_gib",
                          "peak_reserved_gib", "allocated_after_setup_gib", "allocated_between_steps_gib"}) {
    const std::string pointer = std::string("/1/measured/") + key;
    for (const auto& [value, message, below] : wrong_values({.type = FieldType::kNumber, .low = 1e-9, .high = 1e12}))
      of.value(pointer, value, message);
    of.broken(pointer);
    of.renamed(pointer, std::string(key) + "x", "unknown key; the nearest known key is");
  }
  const FieldValue rank{.type = FieldType::kInteger, .low = 0, .high = small_run().value("pp", 1) - 1.0};
  for (const auto& [value, message, below] : wrong_values(rank)) of.value("/1/measured/pipeline_rank", value, message);
  for (const char* key : {"peak_memory_gib_per_rank", "peak_reserved_gib_per_rank"})
    for (const char* value : {"7", "{}"})
      of.value(std::string("/1/measured/") + key, value, "expected a list of numbers, found ");
  for (const char* key : {"peak_memory_gib_per_rank", "peak_reserved_gib_per_rank"})
    for (const char* value : {R"(["x"])", "[-1]", "[[]]"})
      of.value(std::string("/1/measured/") + key, value, "expected a number", "/0");
  for (const Field& f : fields()) {
    if (f.key.find('.') != std::string::npos) continue;
    const auto wrong = wrong_values(f.value);
    of.value("/1/" + f.key, wrong.front().value, wrong.front().message);
    of.value("/1/" + f.key, wrong.back().value, wrong.back().message, wrong.back().below);
  }
  EXPECT_GE(of.defects.size(), 100U);
  expect_told(of.valid(), of.defects, "calibrate --runs {} --out " + path("site"), "runs.json");
}

/// Mistakes in texts that are not JSON: line `number`, from 1, becomes `changed`.
class LineDefects {
 public:
  explicit LineDefects(const std::string& valid) {
    std::istringstream in(valid);
    for (std::string line; std::getline(in, line);) lines_.push_back(line);
  }
  void line(std::size_t number, const std::string& changed, const std::string& field, const std::string& message) {
    std::vector<std::string> lines = lines_;
    lines.at(number - 1) = changed;
    defects.push_back({text_of(lines), static_cast<int>(number), field, message});
  }
  [[nodiscard]] std::string valid() const { return text_of(lines_); }
  [[nodiscard]] const std::vector<std::string>& lines() const { return lines_; }
  std::vector<Defect> defects;

 private:
  static std::string text_of(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += line + '\n';
    return text;
  }
  std::vector<std::string> lines_;
};

// Every flag of a release's Megatron parser, with a value that it does not take.
TEST_F(Defects, OfALaunchScript) {
  const std::vector<std::string> start = {"CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc-per-node 8 pretrain_gpt.py",
                                          "--num-layers 32",
                                          "--hidden-size 4096",
                                          "--ffn-hidden-size 14336",
                                          "--num-attention-heads 32",
                                          "--seq-length 4096",
                                          "--max-position-embeddings 4096",
                                          "--vocab-size 32000",
                                          "--micro-batch-size 1",
                                          "--global-batch-size 64",
                                          "--tensor-model-parallel-size 2",
                                          "--sequence-parallel",
                                          "--swiglu",
                                          "--bf16",
                                          "--lr 1e-4"};
  const auto script = [&](const ArgumentSpec* spec, const std::string& words) {
    Defect made;
    std::vector<std::string> lines;
    for (const std::string& line : start)
      if (spec == nullptr || line.substr(0, line.find(' ')) != spec->flag) lines.push_back(line);
    if (spec != nullptr) lines.push_back(spec->flag + words);
    for (std::size_t i = 0; i < lines.size(); ++i) made.text += lines[i] + (i + 1 < lines.size() ? " \\\n  " : "\n");
    made.line = static_cast<int>(lines.size());
    if (spec != nullptr) made.field = spec->flag;
    return made;
  };
  const Release* release = find_release("0.16.1");
  std::vector<Defect> defects;
  std::size_t turn = 0;
  for (const ArgumentSpec& spec : argument_specs()) {
    if (++turn % 3 != 0 || spec.flag == "--help") continue;  // Only a third of them, which takes seconds.
    std::string words, message;
    if (!spec.releases.has(*release)) {
      words = spec.takes_nothing() ? "" : " 1";
      message = "expected a flag of Megatron-Core 0.16.1; ";
    } else if (spec.takes_nothing()) {
      words = " yes";
      message = R"(expected no value, found "yes")";
    } else if (spec.type == ArgumentType::kInteger) {
      words = turn % 2 == 0 ? " 1.5" : " two";
      message = fmt::format("expected a whole number, found \"{}\"", words.substr(1));
    } else if (spec.type == ArgumentType::kNumber) {
      words = turn % 2 == 0 ? " nan" : " one";
      message = fmt::format("expected a number, found \"{}\"", words.substr(1));
    } else if (!spec.choices.empty()) {
      const bool any = std::ranges::none_of(
          spec.choices, [&](const std::string& choice) { return has_choice(spec.flag, choice, *release); });
      if (any) continue;  // Only later releases have a list of choices.
      words = ' ' + spec.choices.front() + 'x';
      message = fmt::format("found \"{}\"", words.substr(1));
    } else if (!spec.many) {
      words = " one more";
      message = R"(expected one value, found "one more")";
    } else if (spec.may_be_empty) {
      continue;
    } else {
      message = "expected a value, found nothing";
    }
    defects.push_back(script(&spec, words));
    defects.back().message = message;
  }
  EXPECT_GE(defects.size(), 100U);
  expect_told(script(nullptr, "").text, defects, "import {} --system h200 --release 0.16.1", "launch.sh");
}

/// A value of the wrong type for the member, and the message; nullopt if every value is valid.
std::optional<WrongValue> wrong_value(const std::string& dest) {
  if (!is_read(dest) || flags_of(dest).empty()) return std::nullopt;
  switch (flags_of(dest).front()->type) {
    case ArgumentType::kInteger:
      return WrongValue{"two", "expected a whole number, found "};
    case ArgumentType::kNumber:
      return WrongValue{"half", "expected a number, found "};
    case ArgumentType::kText:
      return std::nullopt;
    case ArgumentType::kTrue:
    case ArgumentType::kFalse:
    case ArgumentType::kEither:
    case ArgumentType::kBoolean:
      break;
  }
  return WrongValue{"perhaps", "expected true or false, found "};
}

// Members that are read, in the argument block of a log and in two Megatron-Bridge configurations.
TEST_F(Defects, OfWhatARunPrints) {
  std::size_t count = 0;
  for (const char* name : {"qwen_log.txt", "bridge/deepseek-v3-recipe.yaml", "bridge/qwen3-30b-a3b.yaml"}) {
    const bool yaml = std::string(name).ends_with(".yaml");
    LineDefects of(contents(std::filesystem::path(FW_LAUNCHES_DIR) / name));
    std::string section;
    for (std::size_t i = 0; i < of.lines().size(); ++i) {
      const std::string& line = of.lines()[i];
      if (yaml && !line.empty() && line.front() != ' ') section = line.substr(0, line.find(':'));
      const std::size_t end = yaml ? line.find(": ") : line.find(" ..");
      if (end == std::string::npos || (yaml && (line.size() < 3 || line[1] != ' ' || line[2] == ' '))) continue;
      const std::string member = line.substr(0, end).substr(line.substr(0, end).find_last_of(' ') + 1);
      if (!section.empty() && section != "model" && section != "train" && section != "ddp" && section != "optimizer")
        continue;
      std::string dest = member;
      if (yaml)
        for (const BridgeMember& known : bridge_members())
          if (known.name == member && known.section == section) dest = known.dest;
      const std::optional<WrongValue> wrong = wrong_value(dest);
      if (!wrong) continue;
      const std::size_t value = yaml ? end + 2 : line.find_last_of(' ') + 1;
      of.line(i + 1, line.substr(0, value) + wrong->value, dest, wrong->message);
    }
    count += of.defects.size();
    expect_told(of.valid(), of.defects, "import {} --system h200 --gpus 1024", yaml ? "configuration.yaml" : "log.txt");
  }
  EXPECT_GE(count, 100U);
}

// A truncated trace, or a kernel with an invalid time.
TEST_F(Defects, OfATrace) {
  const std::string text = contents(FW_FUZZ_DIR "/traces/profiled.json");
  const ordered_json trace = ordered_json::parse(text);
  const std::string run = write(
      "model.json",
      {{"model", "llama3-8b"}, {"system", "h200"}, {"num_gpus", 2}, {"tp", 2}, {"seq_len", 4096}, {"global_batch", 2}});
  JsonDefects of(trace);
  const ordered_json& events = trace.at("traceEvents");
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].value("cat", "") != "kernel") continue;
    const std::string at = fmt::format("/traceEvents/{}", i);
    for (const char* key : {"/ts", "/dur"}) {
      of.value(at + key, R"("soon")", "found no number");
      of.value(at + key, "-1", "expected microseconds from 0 to ");
      of.value(at + key, "1e30", "expected microseconds from 0 to ");
      of.missing(at + key, "found no number");
    }
  }
  for (Defect& defect : of.defects) {  // An event is checked at its end.
    std::size_t at = 0;
    for (int line = 1; line < defect.line; ++line) at = defect.text.find('\n', at) + 1;
    defect.line = line_of(defect.text, defect.text.find("\n  }", at) + 1);
  }
  for (std::size_t i = 1; i < 40; ++i) {
    const std::string part = of.valid().substr(0, i * of.valid().size() / 40);
    of.defects.push_back({part, line_of(part, part.size()), "", "not JSON from byte"});
  }
  EXPECT_GE(of.defects.size(), 100U);
  expect_told(of.valid(), of.defects, "diagnose " + run + " --trace {}", "trace.json", {"model.json"});
}

constexpr std::int64_t kSizes[] = {1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18,
                                   1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28};

/// Microseconds of an all-reduce at 300 GB/s.
double time_of(std::int64_t size, int ranks) {
  return 10.0 + ranks + static_cast<double>(size) / 3e5 * 2.0 * (ranks - 1) / ranks;
}

// Each number in each row of nccl-tests output, as text and as JSON.
TEST_F(Defects, OfNcclTests) {
  const auto table = [](int ranks) {
    std::string text = "# Collective test starting: all_reduce_perf\n";
    for (int i = 0; i < ranks; ++i)
      text += fmt::format("#  Rank {} Pid 811 on host device {} [0000:19:00] NVIDIA H200\n", i, i);
    text += "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n";
    for (const std::int64_t size : kSizes)
      text += fmt::format("{0} {1} float sum -1 {2:.2f} 1.0 1.0 0 {2:.2f} 1.0 1.0 0\n", size, size / 4,
                          time_of(size, ranks));
    return text;
  };
  // A curve needs several group sizes.
  const std::string command = "calibrate --import {} " + write_text("eight.txt", table(8)) + " --out " + path("out");
  LineDefects of(table(2));
  std::size_t count = 0;
  for (std::size_t i = 0; i < of.lines().size(); ++i) {
    const std::string& line = of.lines()[i];
    std::istringstream in(line);
    std::vector<std::string> words{std::istream_iterator<std::string>(in), {}};
    if (words.empty() || words.front().find_first_not_of("0123456789") != std::string::npos) continue;
    for (const char* time : {"soon", "-1", "nan", "inf", "1e30", "12.5us"}) {
      std::vector<std::string> changed = words;
      changed[words.size() - 8] = time;
      of.line(i + 1, fmt::format("{}", fmt::join(changed, " ")), "time",
              fmt::format("expected a time in microseconds, at most 1e+12, found \"{}\"", time));
    }
    for (const std::size_t left : {1U, 5U, 10U})
      of.line(i + 1,
              fmt::format("{}", fmt::join(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(left), " ")), "",
              fmt::format("expected a row of nccl-tests (size, count, type, ..., and twice time, algbw, busbw, "
                          "#wrong), found {} words",
                          left));
    of.line(i + 1, std::string(400, '9') + line, "size", "expected a size in bytes");
  }
  count += of.defects.size();
  expect_told(of.valid(), of.defects, command, "nccl.txt", {"eight.txt"});

  ordered_json result = ordered_json::parse(contents(FW_GOLDEN_DIR "/nccl_tests_reduce_scatter.json"));
  result["args"] = {"all_reduce_perf"};
  result["results"] = ordered_json::array();
  for (const std::int64_t size : kSizes)
    result["results"].push_back({{"size", size}, {"out_of_place", {{"time", time_of(size, 2)}}}});
  JsonDefects json(result);
  for (std::size_t i = 0; i < result["results"].size(); ++i)
    for (const char* key : {"/size", "/out_of_place/time"}) {
      const std::string at = fmt::format("/results/{}{}", i, key);
      for (const char* value : {R"("x")", "-1", "1e300", "[]", "{}", "true", "null"})
        json.value(at, value, "expected a ");
      json.value(at, "NaN", kNoJson);
      json.cut(at);
      json.missing(at, "expected a ");
    }
  count += json.defects.size();
  EXPECT_GE(count, 100U);
  expect_told(json.valid(), json.defects, command, "nccl.json", {"eight.txt"});
}

// A sweep reads its run file as `predict` does, and its file of rows must belong to the same sweep. Uses a third of the
// mistakes of form in the run file; mistakes of content are reported in the rows.
TEST_F(Defects, OfASweep) {
  const std::string sweep = " --set micro_batch=1,2 --set vpp=1,2,4 --out ";
  JsonDefects of(ordered_json::parse(small_run().dump()));
  std::size_t turn = 0;
  for (const Field& f : fields()) {
    if (f.key == "micro_batch" || f.key == "vpp" || f.key.starts_with("lora.")) continue;
    std::string pointer = "/" + f.key;
    std::ranges::replace(pointer, '.', '/');
    for (const auto& [value, message, below] : wrong_values(f.value))
      if (message.find("nearest") == std::string::npos && value != R"("")" && ++turn % 3 == 0)
        of.value(pointer, value, message, below);
    if (++turn % 3 == 0) of.cut(pointer);
  }
  EXPECT_GE(of.defects.size(), 100U);
  expect_told(of.valid(), of.defects, "sweep {}" + sweep + path("rows.csv"), "run.json");

  const std::string run = write("run.json", small_run());
  ASSERT_EQ(foldwise("sweep " + run + sweep + path("rows.csv")).code, 0);
  LineDefects rows(contents(path("rows.csv")));
  for (std::size_t number = 1; number <= rows.lines().size(); ++number) {
    const std::string& line = rows.lines()[number - 1];
    const std::string message =
        number == 1 ? "other columns than this sweep's" : "a row of another sweep: expected one that starts with ";
    // Start of a row: the sweep's name and the values of its point.
    std::size_t end = 0;
    for (int commas = 0; commas < 3; ++end) commas += line[end] == ',' ? 1 : 0;
    for (std::size_t at = 0; at < end; ++at)
      rows.line(number, line.substr(0, at) + '?' + line.substr(at + 1), "", message);
  }
  EXPECT_GE(rows.defects.size(), 100U);
  expect_told(rows.valid(), rows.defects, "sweep " + run + sweep + "{}", "rows.csv", {"run.json"});
}

// Whatever number of a system is as small or as large as its reader takes, is a run predicted, with what its allocator
// reserves, in a moment, or refused in one message?
TEST(Systems, NoNumberTakesForEver) {
  const planner::Run small =
      parse_run(R"({"model": "mini-llama-16l", "system": "h200", "num_gpus": 4, "seq_len": 4096, "global_batch": 4})");
  const hwprofiles::Profile profile = hwprofiles::load_profile("h200");
  int predicted = 0, tried = 0;
  for (const hwprofiles::Field& f : hwprofiles::fields(profile.json)) {
    if (!hwprofiles::has(profile.json, f.pointer)) continue;
    for (const double number : {0.0, f.dimension->least, f.dimension->most}) {
      if (tried++ % FW_EVERY != 0) continue;
      if (hwprofiles::out_of_range(f, number, f.dimension->units.front().first)) continue;
      planner::Run changed = small;
      f.set(changed.hardware, number);
      const auto start = std::chrono::steady_clock::now();
      try {
        const costmodel::Step step = costmodel::compose_step(changed.model, changed.options, changed.hardware);
        costmodel::Prediction prediction = costmodel::predict(step);
        static_cast<void>(costmodel::add_reserved(step, prediction, {}));
        ++predicted;
      } catch (const std::range_error&) {  // Reported as a mistake (planner/cli/main.cc).
      }
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5)) << f.pointer << " = " << number;
    }
  }
  EXPECT_GE(predicted, 200 / FW_EVERY);
}

// Values that fields do not take, on the command line.
TEST_F(Defects, OfACommandLine) {
  std::vector<std::pair<std::string, std::string>> said;
  for (const Field& f : fields())
    if (f.is_option() && f.tried != nullptr && f.value.type != FieldType::kIntegers)
      for (const WrongValue& wrong : wrong_values(f.value))
        if (wrong.value.find_first_of("[]{}\"") == std::string::npos)
          said.emplace_back(fmt::format("plan --set {}={}", f.key, wrong.value), "--set " + f.key + ": expected ");
  for (const char* option : {"--gpus", "--seq-len", "--global-batch", "--top", "--effort", "--headroom", "--threads"})
    for (const char* value : {"x", "-1", "nan", "1e300", "''"})
      said.emplace_back(fmt::format("plan {} {}", option, value), option);
  for (std::size_t i = 0; i < said.size(); i += FW_EVERY) {
    const auto& [arguments, message] = said[i];
    const Outcome outcome = foldwise(arguments);
    EXPECT_TRUE(outcome.code == 2 && outcome.out.empty() && outcome.err.starts_with("command line: ") &&
                outcome.err.find(message) != std::string::npos &&
                std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1)
        << arguments << "\nexit code " << outcome.code << "\nfound " << outcome.err.substr(0, 600);
  }
  EXPECT_GE(said.size(), 100U);
}

}  // namespace
}  // namespace foldwise::planner::defects_test
