#pragma once
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/config/json.h"
#include "costmodel/hardware/hardware.h"

namespace foldwise::hwprofiles {

/// Where a number of a profile comes from.
struct Provenance {
  std::string kind;    ///< "datasheet", "measured", "fitted" or "assumed".
  std::string source;  ///< Document, file or command.
  std::string date;    ///< When it was read or measured; may be empty.
  std::string note;
};

/// How well a fitted curve explains what it was fitted to. Errors are medians of |predicted - measured| / measured.
struct CurveFit {
  std::int64_t samples = 0;
  double training_error = 0.0;
  double validated_error = 0.0;  ///< Of settings left out of the fit.
  /// Lowest and highest value of each property of the samples: "m", "n", "k", "bytes", "query_rows", ...
  std::map<std::string, std::pair<double, double>> range;
  bool operator==(const CurveFit&) const = default;
};

/// A system with the origin of each of its numbers, by JSON pointer ("/hbm/bandwidth").
struct Profile {
  costmodel::Hardware hardware;
  std::map<std::string, Provenance> provenance;
  std::map<std::string, CurveFit> fits;  ///< By the pointer of the curve: "/gemm/bf16".
  nlohmann::json json;                   ///< Complete: base and changes merged, derived numbers among them.
};

/// Names of the built-in systems, sorted: the stems of hwprofiles/data/systems/*.json.
[[nodiscard]] std::vector<std::string> built_in_systems();

/// The built-in system that the built-in system `name` changes a few numbers of; empty: none.
[[nodiscard]] std::string base_of(const std::string& name);

/// A part of the name that the driver gives the GPUs of the built-in system `name`; empty: it says none.
[[nodiscard]] std::string device_of(const std::string& name);
/// Built-in profile of a device by the name that it gives itself ("NVIDIA H200" -> "h200"); "" if none is known.
[[nodiscard]] std::string system_of_device(const std::string& device);

/// The profile that `name` means in a file `beside` ("": at the prompt): a built-in name, whatever its case and
/// punctuation, or words that only it has ("H100 80GB"); a relative path from that file's folder, where there is such a
/// file; else the name as it is.
[[nodiscard]] std::string find_system(const std::string& name, const std::string& beside);

/// `name` is a built-in name or the path of a profile: a JSON object that is complete, or starts from a built-in one
/// ("base": "h100-sxm-80gb") and replaces some of its fields, or says in a few short keys what differs
/// (load/cluster.h). Throws config::ConfigError (file, line, field).
[[nodiscard]] Profile load_profile(const std::string& name);
/// The same with some of its numbers changed: `changes` is an object of values by key, null or empty for none. A key is
/// a pointer with dots ("hbm.capacity"), or the end of one that no other has ("nic_bandwidth"); a value is a text with
/// its unit ("192 GiB"), or a number of what has but one unit. Numbers that the profile derives from them follow.
/// Throws config::ConfigError of kChanges where one is no number of the profile, out of range, or changes nothing.
[[nodiscard]] Profile load_profile(const std::string& name, const nlohmann::json& changes);
inline constexpr const char* kChanges = "system_overrides";  ///< What messages and citations call them.
/// The same of a text; `name` is what messages call it.
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

/// The profile's hardware with some quantities, by JSON pointer, multiplied. Throws std::invalid_argument for a pointer
/// that the profile does not have.
[[nodiscard]] costmodel::Hardware scaled(const Profile& profile, const std::map<std::string, double>& factors);

}  // namespace foldwise::hwprofiles
