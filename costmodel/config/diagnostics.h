#pragma once
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace foldwise::config {

/// Location::file of a mistake in the arguments of a call. The field is then the argument, with a key if the argument
/// has several: "seq_len", "set ep". A program names its options instead (planner/cli/outputs.h).
inline constexpr const char* kArguments = "arguments";

/// Place of a mistake in the user's input.
struct Location {
  std::string file;   ///< As the user wrote it; kArguments for arguments of a call; "command line" for options.
  int line = 0;       ///< 1-based; 0 if there is no line.
  std::string field;  ///< JSON pointer such as "/optimizer/exp_avg_dtype"; empty for the whole file.
};

struct Diagnostic {
  Location where;
  std::string message;  ///< "expected X, found Y", without file, line and field.

  /// "runs.json:14: /tp: expected a positive integer, found -2"
  [[nodiscard]] std::string text() const;
};

/// Thrown once with all mistakes in the user's input. what() has one line per diagnostic.
class ConfigError : public std::runtime_error {
 public:
  explicit ConfigError(std::vector<Diagnostic> diagnostics);
  [[nodiscard]] const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }

 private:
  std::vector<Diagnostic> diagnostics_;
};

/// Collects mistakes, so that a user sees all of them at once, at most the first kMost.
class Diagnostics {
 public:
  static constexpr std::size_t kMost = 1000;

  void error(Location where, std::string message) {
    if (!full()) list_.push_back({std::move(where), std::move(message)});
  }
  /// Adds the mistakes that another reader found.
  void add(const ConfigError& error) {
    for (const Diagnostic& diagnostic : error.diagnostics()) this->error(diagnostic.where, diagnostic.message);
  }
  /// Whether no more mistakes are taken, so that a reader may stop.
  [[nodiscard]] bool full() const { return list_.size() >= kMost; }
  [[nodiscard]] bool ok() const { return list_.empty(); }
  [[nodiscard]] const std::vector<Diagnostic>& list() const { return list_; }
  /// Throws ConfigError with all diagnostics in file, then line order; does nothing if there are none.
  void throw_if_any() const;

 private:
  std::vector<Diagnostic> list_;
};

/// The member of `known` nearest to `word` by edit distance; "" if none is near enough to be a typing mistake.
[[nodiscard]] std::string nearest(const std::string& word, const std::vector<std::string>& known);
/// A message's end that suggests the nearest name, or the names that `word` is short for (lookup.h): "; the nearest is
/// "..."", or "". `noun`: "; the nearest NOUN is "..."".
[[nodiscard]] std::string nearest_hint(const std::string& word, const std::vector<std::string>& known,
                                       const std::string& noun = "");

}  // namespace foldwise::config
