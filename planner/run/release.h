#pragma once
#include <climits>
#include <string>
#include <string_view>
#include <vector>

// Releases of Megatron-Core that a run may name, each with its software stack (planner/run/releases/*.json). An option,
// a value or a rule may hold for a span of releases.
namespace foldwise::planner {

/// A library of a release's stack, in the version that the release's build pins or its container has.
struct Component {
  std::string name;     ///< "Transformer Engine"
  std::string version;  ///< In its maker's spelling: "2.14.0", or a commit.
  std::string source;   ///< File and line at the release's tag.
};

struct Release {
  std::string name;                     ///< "0.19.0"; "main" is the development branch at `commit`.
  std::string tag;                      ///< "core_v0.19.0"; empty: no tag.
  std::string commit;                   ///< Commit of Megatron-LM, 40 hexadecimal digits.
  std::string date;                     ///< Date of that commit: "2026-08-19".
  std::string gpt_entry, hybrid_entry;  ///< Scripts that start a GPT, and a hybrid of Mamba and attention layers.
  std::vector<Component> stack;
  int order = 0;  ///< Index in releases().

  [[nodiscard]] bool numbered() const { return !tag.empty(); }
  /// "0.19.0", "main of 2026-08-22".
  [[nodiscard]] std::string text() const { return numbered() ? name : name + " of " + date; }
};

/// Oldest first; the development branch is the last.
[[nodiscard]] const std::vector<Release>& releases();
/// Their names, as options and messages list them.
[[nodiscard]] const std::vector<std::string>& release_names();
/// Those with a number, newest first: a run that names none is of the first of them that takes it.
[[nodiscard]] const std::vector<const Release*>& numbered_releases();
/// The newest numbered release. Plans use it if no release is named.
[[nodiscard]] const Release& newest_release();
/// Finds a release by its name ("0.19.0", "main"), its tag, or a shorter number that only one release has ("0.19").
/// Null if there is none.
[[nodiscard]] const Release* find_release(std::string_view text);
/// "expected one of 0.16.1, ..., found "0.15""; empty if `text` names a release.
[[nodiscard]] std::string mistake_in_release(std::string_view text);

/// The releases from one to another, both included.
struct ReleaseSpan {
  int first = 0, last = INT_MAX;  ///< Indices in releases().
  bool named = false;             ///< Made by in_releases(), possibly of all: nothing is known of other releases.

  [[nodiscard]] bool has(const Release& release) const { return first <= release.order && release.order <= last; }
  /// "since 0.18.2", "until 0.17.1", "in 0.17.1 to 0.18.2"; empty for all releases.
  [[nodiscard]] std::string text() const;
};
/// A span that was checked in these releases. An empty name is no bound. Throws std::logic_error for an unknown name.
[[nodiscard]] ReleaseSpan in_releases(std::string_view since, std::string_view until = {});

}  // namespace foldwise::planner
