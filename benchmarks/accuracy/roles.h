#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

// What measured rows were used for before they were predicted (benchmarks/accuracy/roles.json, a list that people
// keep). The error of a row that set a number says how well that number fits; only the others say how well the model
// predicts.
namespace foldwise::accuracy {

/// What a measurement is of, and so which numbers it can set.
enum class Quantity { kStepTime, kMemory };
[[nodiscard]] const std::string& name_of(Quantity quantity);  ///< "step_time", "memory"

/// A number of the model, or a reading of silent rows, that was chosen by looking at rows.
struct Role {
  std::string number;  ///< "/host/task of h200".
  std::string how;     ///< "fitted", "by hand", "read after looking", ...
  std::string where;   ///< Where that is stated.
  Quantity quantity = Quantity::kStepTime;
  /// The other reading, by key of a run file; empty for a number.
  std::map<std::string, nlohmann::json> instead;
  std::set<std::string> rows;  ///< Ids.

  /// Whether the rows decided no number and no reading, but showed that something was missing, which was measured or
  /// read elsewhere.
  [[nodiscard]] bool only_showed() const { return how == "added after looking"; }
};

/// Who measured rows.
struct Origin {
  std::string name = "published";
  std::string ids{};  ///< How ids of its rows begin.
  bool own = false;   ///< This project, on machines of which few are of one kind.
};

struct Roles {
  std::vector<Role> list;
  std::vector<Origin> origins;

  /// Roles that the row has for predictions of `quantity`; a row without any is untouched.
  [[nodiscard]] std::vector<const Role*> of(const std::string& id, Quantity quantity) const;
  /// Who measured a row: one of `origins`, else an `Origin{}`.
  [[nodiscard]] Origin origin(const std::string& id) const;
};

/// Throws ConfigError; `name` is what its messages call the text.
[[nodiscard]] Roles read_roles(const std::string& text, const std::string& name);

/// benchmarks/accuracy/roles.json as built into the program.
[[nodiscard]] const Roles& built_in_roles();

/// Of those of a row, as `set` of its JSON: a list of {number, how, where, for}.
[[nodiscard]] nlohmann::json numbers_set_by(const std::string& id);

}  // namespace foldwise::accuracy
