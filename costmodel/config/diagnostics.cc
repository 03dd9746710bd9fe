#include "costmodel/config/diagnostics.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <tuple>
#include <utility>

#include "costmodel/config/lookup.h"

namespace foldwise::config {
namespace {

constexpr std::size_t kLongestMessage = 1500, kLongestField = 300, kMostDiagnostics = 200;

/// The beginning and the end of a long text. What was found may be a whole file.
std::string shortened(const std::string& text, std::size_t most) {
  if (text.size() <= most) return text;
  const auto inside = [&](std::size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U; };
  std::size_t begin = most * 3 / 4, end = text.size() - most / 4;
  while (begin > 0 && inside(begin)) --begin;  // Does not cut a character.
  while (end < text.size() && inside(end)) ++end;
  return text.substr(0, begin) + " ... " + text.substr(end);
}

std::vector<Diagnostic> readable(std::vector<Diagnostic> list) {
  for (Diagnostic& diagnostic : list) {
    diagnostic.message = shortened(diagnostic.message, kLongestMessage);
    diagnostic.where.file = shortened(diagnostic.where.file, kLongestMessage);
    diagnostic.where.field = shortened(diagnostic.where.field, kLongestField);
  }
  if (const std::size_t more = list.size(); more > kMostDiagnostics) {
    list.resize(kMostDiagnostics);
    list.push_back(
        {{list.back().where.file, 0, ""},
         (more < Diagnostics::kMost ? "" : "at least ") + std::to_string(more - kMostDiagnostics) + " more mistakes"});
  }
  return list;
}

std::string joined(const std::vector<Diagnostic>& diagnostics) {
  std::string text;
  for (const Diagnostic& diagnostic : diagnostics) {
    if (!text.empty()) text += '\n';
    text += diagnostic.text();
  }
  return text;
}

/// Keys, paths and quoted values may contain any character, but a diagnostic is one line.
std::string on_one_line(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      result += c;
    } else {
      constexpr const char* kDigits = "0123456789abcdef";
      result += "\\x";
      result += kDigits[byte >> 4U];
      result += kDigits[byte & 0xFU];
    }
  }
  return result;
}

/// Folds case and the two dashes, which people mix up. A suggestion should not depend on them.
std::string folded(const std::string& word) {
  std::string result = word;
  for (char& c : result) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

/// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b` (optimal string alignment).
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitution = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = last;
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string Diagnostic::text() const {
  std::string result = on_one_line(where.file);
  if (where.line > 0) result += (result.empty() ? "line " : ":") + std::to_string(where.line);
  if (!where.field.empty()) result += (result.empty() ? "" : ": ") + on_one_line(where.field);
  return result + (result.empty() ? "" : ": ") + on_one_line(message);
}

ConfigError::ConfigError(std::vector<Diagnostic> diagnostics)
    : std::runtime_error(joined(readable(diagnostics))), diagnostics_(readable(std::move(diagnostics))) {}

void Diagnostics::throw_if_any() const {
  if (list_.empty()) return;
  std::vector<Diagnostic> sorted = list_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Diagnostic& a, const Diagnostic& b) {
    return std::tie(a.where.file, a.where.line) < std::tie(b.where.file, b.where.line);
  });
  throw ConfigError(std::move(sorted));
}

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  // At most a third of the letters may be wrong, and at most three. Otherwise it is another word, not a typing mistake.
  const std::size_t allowed = std::clamp<std::size_t>(word.size() / 3, 1, 3);
  const std::string wanted = folded(word);
  std::string best;
  std::size_t best_distance = allowed + 1;
  for (const std::string& candidate : known) {
    const std::size_t longer = std::max(candidate.size(), word.size());
    if (longer - std::min(candidate.size(), word.size()) > allowed) continue;
    const std::size_t distance = edit_distance(wanted, folded(candidate));
    if (distance < best_distance && distance < longer) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string nearest_hint(const std::string& word, const std::vector<std::string>& known, const std::string& noun) {
  std::string found;  // Completions come before similar names: "h100" is not "h200".
  const std::vector<std::string> longer = completions(word, known);
  for (const std::string& name : longer) found += (found.empty() ? "\"" : ", \"") + name + '"';
  if (const std::string name = longer.empty() ? nearest(word, known) : ""; !name.empty()) found = '"' + name + '"';
  if (found.empty()) return "";
  return "; the nearest " + noun + (noun.empty() ? "" : " ") + (longer.size() > 1 ? "are " : "is ") + found;
}

}  // namespace foldwise::config
