#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

// How measured rows were used before they were predicted (benchmarks/accuracy/roles.json, edited by hand). The error of
// a row that set a number measures the fit of that number. Only the errors of other rows measure prediction.
namespace foldwise::accuracy {

/// Measured quantity, which limits the numbers that a row can set.
enum class Quantity { kStepTime, kMemory };
[[nodiscard]] const std::string& name_of(Quantity quantity);  ///< "step_time", "memory"

/// A number of the model, or a reading of silent rows, that was chosen by looking at measured rows.
struct Role {
  std::string number;  ///< "/host/task of h200".
  std::string how;     ///< "fitted", "by hand", "read after looking", ...
  std::string where;   ///< Document that states this.
  Quantity quantity = Quantity::kStepTime;
  /// The alternative reading, by key of a run file; empty for a number.
  std::map<std::string, nlohmann::json> instead;
  std::set<std::string> rows;  ///< Ids.

  /// Whether the rows only showed that something was missing, without setting a number or reading. The missing part was
  /// then measured or read elsewhere.
  [[nodiscard]] bool only_showed() const { return how == "added after looking"; }
};

/// Who measured a set of rows.
struct Origin {
  std::string name = "published";
  std::string ids{};  ///< Prefix of the ids of its rows.
  bool own = false;   ///< This project, on a few machines of each kind.
};

struct Roles {
  std::vector<Role> list;
  std::vector<Origin> origins;

  /// Roles of the row for predictions of `quantity`. A row without any is untouched.
  [[nodiscard]] std::vector<const Role*> of(const std::string& id, Quantity quantity) const;
  /// Origin of a row: one of `origins`, else `Origin{}`.
  [[nodiscard]] Origin origin(const std::string& id) const;
};

/// Throws ConfigError. `name`: name of the text in its messages.
[[nodiscard]] Roles read_roles(const std::string& text, const std::string& name);

/// benchmarks/accuracy/roles.json as built into the program.
[[nodiscard]] const Roles& built_in_roles();

/// The roles of a row in the form of its JSON key `set`: a list of {number, how, where, for}.
[[nodiscard]] nlohmann::json numbers_set_by(const std::string& id);

}  // namespace foldwise::accuracy
