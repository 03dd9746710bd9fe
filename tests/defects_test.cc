// Is one mistake in a file, of any kind and in any of its fields, one message with file, line, field, what was expected
// and what was found, with exit code 2 and nothing written? The mistakes are made from a valid file and the table of
// fields that its reader has.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "planner/run/fields.h"
#include "tests/program_test.h"

namespace foldwise::planner {
namespace {

using nlohmann::ordered_json;

/// A file with one mistake, and what is said of it.
struct Defect {
  std::string text;
  int line = 0;           ///< 0: the message has none.
  std::string field;      ///< Empty: the message has none.
  std::string message;    ///< A part of it.
  bool followed = false;  ///< The mistake has consequences that are mistakes too, and are told after it.
};

constexpr const char* kNoJson = "not valid JSON at column";

int line_of(const std::string& text, std::size_t at) {
  return 1 + static_cast<int>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
}

/// Mistakes in a JSON text that has one value a line.
class JsonDefects {
 public:
  explicit JsonDefects(ordered_json valid) : valid_(std::move(valid)) {}

  /// The value at `pointer`, which the valid file may lack, is `value`, any text.
  void value(const std::string& pointer, const std::string& value, const std::string& message,
             const std::string& below = "") {
    auto [text, at] = marked(pointer);
    add(text.replace(at, kMark.size(), value), at, pointer + below, message);
  }
  /// The member at `pointer` stands there twice, has another key, or is the last that was written.
  void twice(const std::string& pointer) {
    auto [text, at] = marked(pointer);
    text.replace(at, kMark.size(), fmt::format("1,\n{}: 1", ordered_json(key_of(pointer)).dump()));
    add(text, at + 4, pointer, fmt::format("duplicate key; the first is on line {}", line_of(text, at)));
  }
  void renamed(const std::string& pointer, const std::string& key, const std::string& message) {
    ordered_json tree = valid_, value = at_or_null(pointer);
    ordered_json& parent = tree[ordered_json::json_pointer(parent_of(pointer))];
    if (parent.is_object()) parent.erase(key_of(pointer));
    parent[key] = "THE-VALUE";
    std::string text = tree.dump(1);
    const std::size_t at = text.find(kMark);
    add(text.replace(at, kMark.size(), value.dump()), at, parent_of(pointer) + "/" + key, message);
    defects.back().followed = true;
  }
  void cut(const std::string& pointer) {
    auto [text, at] = marked(pointer);
    text.resize(at);
    add(text, at, "", kNoJson);
  }

  [[nodiscard]] std::string valid() const { return valid_.dump(1); }
  std::vector<Defect> defects;

 private:
  static constexpr std::string_view kMark = "\"THE-VALUE\"";

  static std::string key_of(const std::string& pointer) { return pointer.substr(pointer.rfind('/') + 1); }
  static std::string parent_of(const std::string& pointer) { return pointer.substr(0, pointer.rfind('/')); }
  ordered_json at_or_null(const std::string& pointer) const {
    const ordered_json::json_pointer at(pointer);
    return valid_.contains(at) ? valid_.at(at) : ordered_json(1);
  }
  [[nodiscard]] std::pair<std::string, std::size_t> marked(const std::string& pointer) const {
    ordered_json tree = valid_;
    tree[ordered_json::json_pointer(pointer)] = "THE-VALUE";
    std::string text = tree.dump(1);
    const std::size_t at = text.find(kMark);
    return {std::move(text), at};
  }
  void add(const std::string& text, std::size_t at, const std::string& field, const std::string& message) {
    defects.push_back({text, line_of(text, at), message == kNoJson ? "" : field, message});
  }

  ordered_json valid_;
};

class Defects : public ProgramTest {
 protected:
  /// `arguments` have {} where the file stands.
  void expect_told(const std::string& valid, const std::vector<Defect>& defects, const std::string& arguments,
                   const std::string& name) const {
    const std::string file = path(name);
    const std::string command = fmt::format(fmt::runtime(arguments), file);
    static_cast<void>(write_text(name, valid));
    const Outcome good = foldwise(command);
    ASSERT_EQ(good.code, 0) << good.err;
    const std::set<std::string> written = files_but(name);
    for (const std::string& other : written) std::filesystem::remove(path(other));
    for (const Defect& defect : defects) {
      static_cast<void>(write_text(name, defect.text));
      const Outcome outcome = foldwise(command);
      std::string expected = file;
      if (defect.line > 0) expected += ':' + std::to_string(defect.line);
      expected += ": ";
      if (!defect.field.empty()) expected += defect.field + ": ";
      const std::size_t found = outcome.err.find(expected);
      const std::string told =
          found == std::string::npos ? "" : outcome.err.substr(found, outcome.err.find('\n', found) - found);
      const bool as_expected = outcome.code == 2 && outcome.out.empty() &&
                               told.find(defect.message) != std::string::npos &&
                               (defect.followed || outcome.err == told + '\n');
      EXPECT_TRUE(as_expected) << "exit code " << outcome.code << ", expected " << expected << defect.message
                               << "\nfound " << outcome.err.substr(0, 600);
    }
    EXPECT_EQ(files_but(name), (std::set<std::string>{"stdout", "stderr"}));
  }

 private:
  [[nodiscard]] std::set<std::string> files_but(const std::string& name) const {
    std::set<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      files.insert(entry.path().filename().string());
    files.erase(name);
    return files;
  }
};

/// A value that is none of the field's, and what is said of it, at the field or below it.
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
    of.value(pointer, "NaN", kNoJson);
    of.value(pointer, "1e999", kNoJson);
    of.twice(pointer);
    of.renamed(pointer, f.key.substr(f.key.rfind('.') + 1) + "x", "unknown key; the nearest known key is");
    of.cut(pointer);
  }
  for (const JsonDefects& of : {of_run, of_lora})
    expect_told(of.valid(), of.defects, "predict {} --trace " + path("trace.json"), "run.json");
}

}  // namespace
}  // namespace foldwise::planner
