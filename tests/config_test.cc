#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/config/diagnostics.h"
#include "costmodel/config/json.h"

namespace foldwise::config_test {

using foldwise::config::ConfigError;
using foldwise::config::Diagnostic;
using foldwise::config::Diagnostics;
using foldwise::config::Document;
using foldwise::config::nearest;
using foldwise::config::ObjectReader;

namespace {

const std::string inputs = FW_INVALID_INPUTS_DIR "/";

/// A reader that uses every kind of accessor.
void read_everything(const Document& document, Diagnostics& diagnostics) {
  ObjectReader in(document, diagnostics);
  in.ignore_prefix('_');
  (void)in.required_integer("tp", 1, 1024);
  (void)in.integer("layers", 1, 1024);
  (void)in.integer("experts", 1, 1024);
  (void)in.integer("tokens", 1, 1024);
  (void)in.integer("micro_batch", 1, 1024);
  (void)in.number("rate", 0.0, 1e9);
  (void)in.number("share", 0.0, 1.0);
  (void)in.boolean("flag");
  (void)in.string("name");
  (void)in.choice<int>("precision", {{"bf16", 0}, {"fp8-current", 1}});
  if (auto inner = in.object("inner")) inner->finish();
  (void)in.integers("sizes", 0, 1024);
  (void)in.strings("texts");
  for (ObjectReader& run : in.objects("runs")) {
    (void)run.required_string("id");
    run.finish();
  }
  in.finish();
}

/// Every message about one of our invalid inputs, without its folder.
std::string complaint_about(const std::string& file) {
  try {
    Diagnostics diagnostics;
    read_everything(Document::load(inputs + file), diagnostics);
    diagnostics.throw_if_any();
  } catch (const ConfigError& error) {
    std::string text = error.what();
    for (std::size_t at = 0; (at = text.find(inputs, at)) != std::string::npos;) text.erase(at, inputs.size());
    return text;
  }
  return "(read without complaint)";
}

std::string messages(const Diagnostics& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics.list()) text += diagnostic.text() + "\n";
  return text;
}

}  // namespace

// --- Is a text that is not JSON refused, with the place, before anything reads it? ---------------------------------

TEST(Document, SaysWhereATruncatedFileEnds) {
  EXPECT_EQ(complaint_about("json_truncated.json"),
            "json_truncated.json:4: not valid JSON at column 1: "
            "syntax error while parsing value - unexpected end of input; expected '[', '{', or a literal");
}

TEST(Document, ReportsEveryDuplicateKeyAtOnce) {
  EXPECT_EQ(complaint_about("json_duplicate_keys.json"),
            "json_duplicate_keys.json:4: /inner/a: duplicate key; the first is on line 3\n"
            "json_duplicate_keys.json:5: /tp: duplicate key; the first is on line 2");
}

TEST(Document, RefusesATrailingComma) {
  EXPECT_EQ(complaint_about("json_trailing_comma.json"),
            "json_trailing_comma.json:3: not valid JSON at column 1: "
            "syntax error while parsing object key - unexpected '}'; expected string literal");
}

TEST(Document, RefusesNaN) {
  EXPECT_EQ(complaint_about("json_nan.json"),
            "json_nan.json:2: not valid JSON at column 9: "
            "syntax error while parsing value - invalid literal");
}

TEST(Document, RefusesANumberThatNoDoubleHolds) {
  EXPECT_EQ(complaint_about("json_number_overflow.json"),
            "json_number_overflow.json:2: not valid JSON at column 15: number overflow parsing '1e999'");
}

TEST(Document, RefusesTextThatIsNotUtf8) {
  EXPECT_EQ(complaint_about("json_bad_utf8.json"),
            "json_bad_utf8.json:2: not valid JSON at column 12: "
            "syntax error while parsing value - invalid string: ill-formed UTF-8 byte");
}

TEST(Document, RefusesAnEmptyFile) {
  EXPECT_EQ(complaint_about("json_empty.json"),
            "json_empty.json:1: not valid JSON at column 1: expected an object or a list, found nothing");
}

TEST(Document, RefusesNestingThatNoFileOfOursHas) {
  EXPECT_EQ(complaint_about("json_too_deep.json"), "json_too_deep.json:1: nested more than 100 levels deep");
}

TEST(Document, TellsADirectoryFromAFile) {
  try {
    (void)Document::load(FW_INVALID_INPUTS_DIR);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()), FW_INVALID_INPUTS_DIR ": expected a file, found a directory");
  }
}

TEST(Document, NamesAFileThatIsNotThere) {
  EXPECT_EQ(complaint_about("no_such_file.json"), "no_such_file.json: no such file");
}

// --- Does every value know its line? ---------------------------------------------------------------------------------

TEST(Document, KnowsTheLineOfEachValue) {
  const Document document =
      Document::parse("{\n\"a\": 1\n,\n\"b\": [\n10,\n{\"c\":\n\"x\"}\n]\n,\"d/e~\": 3\n}", "text");
  EXPECT_EQ(document.line(""), 1);
  EXPECT_EQ(document.line("/a"), 2);  // The parser reads one character beyond a number: not its newline.
  EXPECT_EQ(document.line("/b"), 4);
  EXPECT_EQ(document.line("/b/0"), 5);
  EXPECT_EQ(document.line("/b/1"), 6);
  EXPECT_EQ(document.line("/b/1/c"), 7);
  EXPECT_EQ(document.line("/d~1e~0"), 9);
  EXPECT_EQ(document.line("/b/1/missing/deeper"), 6);
  EXPECT_EQ(document.line("/missing"), 1);
  EXPECT_EQ(document.file(), "text");
}

// --- Is every mistake in an object reported, and in one go? ----------------------------------------------------------

TEST(ObjectReader, ReportsEveryMistypedFieldAtOnce) {
  EXPECT_EQ(complaint_about("json_wrong_types.json"),
            "json_wrong_types.json:2: /tp: expected a whole number of at least 1, found -2\n"
            "json_wrong_types.json:3: /layers: expected a whole number, found 1.5\n"
            "json_wrong_types.json:4: /experts: expected a whole number, found \"8\"\n"
            "json_wrong_types.json:5: /tokens: expected a whole number of at most 1024, found 1e+30\n"
            "json_wrong_types.json:6: /micro_batch: expected a whole number, found true\n"
            "json_wrong_types.json:7: /rate: expected a number, found \"fast\"\n"
            "json_wrong_types.json:8: /share: expected a number of at most 1, found 1.5\n"
            "json_wrong_types.json:9: /flag: expected true or false, found 1\n"
            "json_wrong_types.json:10: /name: expected a text in quotes, found 3\n"
            "json_wrong_types.json:11: /precision: expected one of \"bf16\", \"fp8-current\", found \"fp8-curent\"; "
            "the nearest is \"fp8-current\"\n"
            "json_wrong_types.json:12: /inner: expected an object, found an empty list\n"
            "json_wrong_types.json:13: /sizes/1: expected a whole number of at least 0, found -1\n"
            "json_wrong_types.json:13: /sizes/2: expected a whole number, found 2.5\n"
            "json_wrong_types.json:14: /texts/1: expected a text in quotes, found 1\n"
            "json_wrong_types.json:15: /runs/1: expected an object, found 7\n"
            "json_wrong_types.json:15: /runs/0/id: expected a text in quotes, found 1");
}

TEST(ObjectReader, ReportsUnknownKeysWithTheNearestKnownOne) {
  EXPECT_EQ(complaint_about("json_unknown_keys.json"),
            "json_unknown_keys.json:4: /micro_bacth: unknown key; the nearest known key is \"micro_batch\"\n"
            "json_unknown_keys.json:5: /runs/0/idd: unknown key; the nearest known key is \"id\"\n"
            "json_unknown_keys.json:6: /something_else: unknown key");
}

TEST(ObjectReader, RefusesARootThatIsNotAnObject) {
  EXPECT_EQ(complaint_about("json_root_is_list.json"), "json_root_is_list.json:1: expected an object, found a list");
}

TEST(ObjectReader, ReportsAMissingFieldAtItsObject) {
  const Document document = Document::parse("{\n\n\"inner\": {}\n}", "run.json");
  Diagnostics diagnostics;
  ObjectReader in(document, diagnostics);
  auto inner = in.object("inner");
  ASSERT_TRUE(inner.has_value());
  EXPECT_EQ(inner->required_integer("tp", 2, 8), 2);
  EXPECT_EQ(inner->required_number("rate", 0.5, 1), 0.5);
  EXPECT_EQ(inner->required_string("name"), "");
  EXPECT_EQ(messages(diagnostics),
            "run.json:3: /inner/tp: expected a whole number, found nothing\n"
            "run.json:3: /inner/rate: expected a number, found nothing\n"
            "run.json:3: /inner/name: expected a text in quotes, found nothing\n");
}

TEST(ObjectReader, CountsNullAsMissing) {
  const Document document = Document::parse(R"({"tp": null, "name": null})", "run.json");
  Diagnostics diagnostics;
  ObjectReader in(document, diagnostics);
  EXPECT_FALSE(in.has("tp"));
  EXPECT_TRUE(in.present("tp"));
  EXPECT_EQ(in.integer_or("tp", 7, 1, 8), 7);
  EXPECT_EQ(in.string("name"), std::nullopt);
  EXPECT_EQ(in.raw("name"), nullptr);
  in.finish();
  EXPECT_EQ(messages(diagnostics), "");
}

TEST(ObjectReader, TakesWholeNumbersOfAnySpellingButNothingElse) {
  const Document document = Document::parse(
      R"({"a": 9223372036854775807, "b": 18446744073709551615, "c": 8.0, "d": -9223372036854775808, "e": 1e19})", "x");
  constexpr auto kLow = std::numeric_limits<std::int64_t>::min(), kHigh = std::numeric_limits<std::int64_t>::max();
  Diagnostics diagnostics;
  ObjectReader in(document, diagnostics);
  EXPECT_EQ(in.integer("a", kLow, kHigh), kHigh);
  EXPECT_EQ(in.integer("b", kLow, kHigh), std::nullopt);
  EXPECT_EQ(in.integer("c", kLow, kHigh), 8);
  EXPECT_EQ(in.integer("d", kLow, kHigh), kLow);
  EXPECT_EQ(in.integer("e", kLow, kHigh), std::nullopt);
  EXPECT_EQ(messages(diagnostics),
            "x:1: /b: expected a whole number of at most 9223372036854775807, found 18446744073709551615\n"
            "x:1: /e: expected a whole number of at most 9223372036854775807, found 1e+19\n");
}

TEST(ObjectReader, RefusesNaNInValuesThatNeverWereText) {
  const Document document = Document::parse("{}", "x");
  const nlohmann::json object = {{"rate", std::nan("")}, {"tp", std::nan("")}};
  Diagnostics diagnostics;
  ObjectReader in(document, object, "", diagnostics);
  EXPECT_EQ(in.number("rate", 0, 1), std::nullopt);
  EXPECT_EQ(in.integer("tp", 0, 1), std::nullopt);
  EXPECT_EQ(messages(diagnostics),
            "x:1: /rate: expected a finite number, found nan\nx:1: /tp: expected a whole number, found nan\n");
}

TEST(ObjectReader, OutlivesTheDocumentItWasMadeFrom) {
  Diagnostics diagnostics;
  std::optional<ObjectReader> inner;
  {
    const Document document = Document::parse(R"({"a": {"b": {"c": 5}}})", "x");
    ObjectReader in(document, diagnostics);
    inner = in.object("a")->object("b");
  }
  ASSERT_TRUE(inner.has_value());
  EXPECT_EQ(inner->integer("c", 0, 9), 5);
  EXPECT_EQ(inner->pointer(), "/a/b");
}

TEST(ObjectReader, ShortensLongValuesInMessages) {
  const Document document =
      Document::parse(R"({"tp": ")" + std::string(58, 'a') + "\u00e9" + std::string(200, 'b') + "\"}", "x");
  Diagnostics diagnostics;
  ObjectReader in(document, diagnostics);
  (void)in.integer("tp", 0, 9);
  // The two bytes of the accented letter stay together: 58 letters and the opening quote remain.
  EXPECT_EQ(messages(diagnostics), "x:1: /tp: expected a whole number, found \"" + std::string(58, 'a') + "...\n");
}

// --- Are suggestions typing mistakes, and only those? ----------------------------------------------------------------

TEST(Nearest, FindsTypingMistakes) {
  const std::vector<std::string> known = {"tp", "hidden_size", "num_hidden_layers", "fp8-current"};
  EXPECT_EQ(nearest("hiden_size", known), "hidden_size");   // One letter missing.
  EXPECT_EQ(nearest("hidden_szie", known), "hidden_size");  // Two neighbours swapped.
  EXPECT_EQ(nearest("Hidden-Size", known), "hidden_size");  // Case and dashes are ignored.
  EXPECT_EQ(nearest("num_hidden_layer", known), "num_hidden_layers");
  EXPECT_EQ(nearest("tpp", known), "tp");
}

TEST(Nearest, LeavesOtherWordsAlone) {
  EXPECT_EQ(nearest("optimizer", {"tp", "hidden_size"}), "");
  EXPECT_EQ(nearest("x", {"y"}), "");
  EXPECT_EQ(nearest("", {"a"}), "");
  EXPECT_EQ(nearest("anything", {}), "");
}

// Is the word that was meant found where one of its letters is missing?
RC_GTEST_PROP(Nearest, FindsAnyWordWithOneLetterLeftOut, ()) {
  const auto word = *rc::gen::container<std::string>(12, rc::gen::inRange('a', 'z'));
  const auto at = *rc::gen::inRange<std::size_t>(0, word.size());
  std::string typed = word;
  typed.erase(at, 1);
  RC_ASSERT(nearest(typed, {"0123456789", word}) == word);
}

// --- Do messages come in the order in which a person would fix them? -------------------------------------------------

TEST(Diagnostics, ComeInFileAndLineOrder) {
  Diagnostics diagnostics;
  diagnostics.error({"b.json", 2, "/x"}, "third");
  diagnostics.error({"a.json", 9, "/x"}, "second");
  diagnostics.error({"a.json", 0, ""}, "first");
  diagnostics.error({"b.json", 2, "/a"}, "fourth");
  try {
    diagnostics.throw_if_any();
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()),
              "a.json: first\na.json:9: /x: second\nb.json:2: /x: third\nb.json:2: /a: fourth");
    EXPECT_EQ(error.diagnostics().size(), 4U);
  }
}

TEST(Diagnostics, AreOneLineEachWhateverTheKey) {
  EXPECT_EQ((Diagnostic{{"a\tb.json", 3, "/x\ny"}, "unknown key"}.text()), "a\\x09b.json:3: /x\\x0ay: unknown key");
}

TEST(Diagnostics, ThrowNothingWhenThereAreNone) { EXPECT_NO_THROW(Diagnostics{}.throw_if_any()); }

// --- Can any text crash the reader? ----------------------------------------------------------------------------------

// Is a file that was cut anywhere read or refused, without a crash?
RC_GTEST_PROP(Document, EitherParsesOrRefusesAnyPartOfAValidText, ()) {
  const std::string text = R"({"a": [1, -2.5e3, true, null], "bé": {"c": "\u00e9\n", "d/~": {}}, "e": [[], [{}]]})";
  const auto from = *rc::gen::inRange<std::size_t>(0, text.size());
  const auto length = *rc::gen::inRange<std::size_t>(0, text.size() - from + 1);
  try {
    (void)Document::parse(text.substr(from, length), "part");
  } catch (const ConfigError& error) {
    RC_ASSERT(!error.diagnostics().empty());
    RC_ASSERT(error.diagnostics().front().where.line >= 1);
  }
}

// Is any sequence of bytes read or refused, without a crash?
RC_GTEST_PROP(Document, EitherParsesOrRefusesAnyBytes, ()) {
  const auto text = *rc::gen::container<std::string>(
      rc::gen::oneOf(rc::gen::arbitrary<char>(), rc::gen::elementOf(std::string("{}[],:\"\\0123456789.eE+-\n tfn"))));
  try {
    const Document document = Document::parse(text, "bytes");
    Diagnostics diagnostics;
    read_everything(document, diagnostics);
  } catch (const ConfigError& error) {
    RC_ASSERT(!error.diagnostics().empty());
  }
}

// Is every whole number of 64 bits read as it is written?
RC_GTEST_PROP(ObjectReader, GivesBackEveryWholeNumberInRange, (std::int64_t value)) {
  const Document document = Document::parse("{\"n\": " + std::to_string(value) + "}", "x");
  Diagnostics diagnostics;
  ObjectReader in(document, diagnostics);
  RC_ASSERT(in.integer("n", value, value) == std::optional<std::int64_t>(value));
  RC_ASSERT(diagnostics.ok());
}

}  // namespace foldwise::config_test
