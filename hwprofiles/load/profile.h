#pragma once
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/config/json.h"
#include "costmodel/hardware/hardware.h"

namespace foldwise::hwprofiles {

/// Origin of a number of a profile.
struct Provenance {
  std::string kind;    ///< "datasheet", "measured", "fitted" or "assumed".
  std::string source;  ///< Document, file or command.
  std::string date;    ///< When it was read or measured; may be empty.
  std::string note;
};

/// How well a curve fits its samples. Errors are medians of |predicted - measured| / measured.
struct CurveFit {
  std::int64_t samples = 0;
  double training_error = 0.0;
  double validated_error = 0.0;  ///< On settings left out of the fit.
  /// Lowest and highest value of each property of the samples: "m", "n", "k", "bytes", "query_rows", ...
  std::map<std::string, std::pair<double, double>> range;
  bool operator==(const CurveFit&) const = default;
};

/// A system and the provenance of each of its numbers, by JSON pointer ("/hbm/bandwidth").
struct Profile {
  costmodel::Hardware hardware;
  std::map<std::string, Provenance> provenance;
  std::map<std::string, CurveFit> fits;  ///< By the pointer of the curve: "/gemm/bf16".
  nlohmann::json json;                   ///< Complete: merged with bases and changes, including derived numbers.
};

/// `name` is a built-in name or the path of a profile: a JSON object that is complete, or that replaces some fields of
/// a built-in one ("base": "h100-sxm-80gb"), or that states the differences with a few short keys (load/cluster.h).
/// Throws config::ConfigError (file, line, field).
[[nodiscard]] Profile load_profile(const std::string& name);
/// As above, with some numbers changed. `changes`: an object of values by key; null or empty for none. A key is a
/// pointer with dots ("hbm.capacity") or a unique end of one ("nic_bandwidth"). A value is a text with a unit ("192
/// GiB"), or a number if the quantity has only one unit. Numbers that the profile derives from them change, too. Throws
/// config::ConfigError for kChanges if a key is not a number of the profile, is out of range, or has no effect.
[[nodiscard]] Profile load_profile(const std::string& name, const nlohmann::json& changes);
inline constexpr const char* kChanges = "system_overrides";  ///< Their name in messages and citations.
/// Parses a profile's text. `name`: its name in messages.
[[nodiscard]] Profile parse_profile(const std::string& text, const std::string& name);

/// Sets the number at `pointer` of a profile, given in base units (s, B/s, FLOP/s), in a Hardware with the attention
/// rows of `profile`. Requires a pointer that such a profile may have.
using QuantitySetter = std::function<void(costmodel::Hardware&, double)>;
[[nodiscard]] QuantitySetter quantity_setter(const nlohmann::json& profile, const std::string& pointer);

/// Names in profiles and in measurement records.
[[nodiscard]] const std::vector<std::pair<std::string, costmodel::MathFormat>>& math_format_names();
[[nodiscard]] const std::vector<std::pair<std::string, costmodel::MemoryOp>>& memory_op_names();
[[nodiscard]] const std::vector<std::pair<std::string, costmodel::SoftwareKernel>>& software_kernel_names();
[[nodiscard]] const std::vector<std::pair<std::string, costmodel::CollectiveKind>>& collective_kind_names();
[[nodiscard]] const std::vector<std::pair<std::string, costmodel::Dispatcher>>& flex_dispatcher_names();

/// The profile's hardware with some quantities, by JSON pointer, multiplied by a factor. Throws std::invalid_argument
/// for a pointer that the profile does not have.
[[nodiscard]] costmodel::Hardware scaled(const Profile& profile, const std::map<std::string, double>& factors);

}  // namespace foldwise::hwprofiles
