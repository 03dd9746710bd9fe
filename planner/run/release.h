#pragma once
#include <climits>
#include <string>
#include <string_view>
#include <vector>

// Releases of Megatron-Core that a run may name, each with the software that it is run with
// (planner/run/releases/*.json). An option, a value of it and a rule each hold for a span of releases.
namespace foldwise::planner {

/// A library of a release's stack, in the version that the release's own build pins or its container has.
struct Component {
  std::string name;     ///< "Transformer Engine"
  std::string version;  ///< As its maker writes it: "2.14.0", or a commit.
  std::string source;   ///< File and line at the release's tag.
};

struct Release {
  std::string name;                     ///< "0.19.0"; "main" is the development branch at `commit`.
  std::string tag;                      ///< "core_v0.19.0"; empty: no tag.
  std::string commit;                   ///< Of Megatron-LM, 40 hexadecimal digits.
  std::string date;                     ///< Of that commit: "2026-08-19".
  std::string gpt_entry, hybrid_entry;  ///< Script that starts a GPT, and a hybrid of Mamba and attention layers.
  std::vector<Component> stack;
  int order = 0;  ///< Its place in releases().

  [[nodiscard]] bool numbered() const { return !tag.empty(); }
  /// "0.19.0", "main of 2026-08-22".
  [[nodiscard]] std::string text() const { return numbered() ? name : name + " of " + date; }
};

/// Oldest first; the development branch is the last.
[[nodiscard]] const std::vector<Release>& releases();
/// Their names, as options and messages list them.
[[nodiscard]] const std::vector<std::string>& release_names();
/// The newest that has a number: what a plan takes where none is named.
[[nodiscard]] const Release& newest_release();
/// Its name ("0.19.0", "main"), its tag, or a shorter number that only one of them has ("0.19"); null: none.
[[nodiscard]] const Release* find_release(std::string_view text);
/// "expected one of 0.16.1, ..., found "0.15""; empty: `text` is the name of one.
[[nodiscard]] std::string mistake_in_release(std::string_view text);

/// The releases from one to another, both included.
struct ReleaseSpan {
  int first = 0, last = INT_MAX;  ///< Places in releases().
  bool named = false;             ///< Made by in_releases(), of all of them perhaps: known of these releases alone.

  [[nodiscard]] bool has(const Release& release) const { return first <= release.order && release.order <= last; }
  /// "since 0.18.2", "until 0.17.1", "in 0.17.1 to 0.18.2"; empty: in all.
  [[nodiscard]] std::string text() const;
};
/// What was seen in these releases. Empty names: no bound. Throws std::logic_error for a name that is none.
[[nodiscard]] ReleaseSpan in_releases(std::string_view since, std::string_view until = {});

}  // namespace foldwise::planner
