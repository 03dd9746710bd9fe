#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/hardware/hardware.h"
#include "costmodel/model/model.h"
#include "costmodel/parallel/options.h"
#include "planner/run/release.h"

// One table describes every option: its key in a run file, the member that it fills, its values, Megatron's default and
// flags, its meaning, when a search decides it, what it saves, and its plain value. Many parts read the table: the
// reader and writer of run files, defaults, `--pin`, `compare`, the messages of rules, `fields`, docs/run-file.md, the
// search, exports to Megatron-Bridge and the tests' generator. A new option is one row here and the code that uses it.
// tests/field_rows_test.cc compares the rows with the code.
namespace foldwise::planner {

enum class FieldType : std::uint8_t { kInteger, kNumber, kBoolean, kName, kNames, kText, kIntegers, kObject };

/// Spelling of a field's value, and the member of TrainingOptions that it fills.
struct FieldValue {
  FieldType type = FieldType::kText;
  double low = 0.0, high = 0.0;      ///< Bounds of a number, inclusive.
  std::vector<std::string> names{};  ///< kName, kNames: accepted names.
  std::vector<std::string> also{};   ///< Other and older spellings. They are read, but not written.
  std::string pattern{};             ///< kText: ECMAScript regular expression for the whole text; empty: any text.
  std::string form{};                ///< The pattern in words.
  /// JSON value of the member; null if it is unset. Empty if the key fills no member of its own.
  std::function<nlohmann::json(const costmodel::TrainingOptions&)> get{};
  /// Sets the member. The value must be one that mistake_in() accepts; null if `get` returns null.
  std::function<void(costmodel::TrainingOptions&, const nlohmann::json&)> set{};
};

/// Facts on which the values that `plan` tries may depend.
struct PlanFacts {
  const costmodel::ModelSpec& model;
  const costmodel::Hardware& hardware;
  std::int64_t num_gpus = 1, seq_len = 1, global_batch = 1;
  const Release* release = nullptr;  ///< Null: any release.
};

/// A value that some releases lack, or that needs a version of a library.
struct LimitedValue {
  nlohmann::json value;
  ReleaseSpan releases{};    ///< Releases that have it.
  nlohmann::json instead{};  ///< Replaces a default in releases without the value; null: Megatron's own default.
  std::string needs{};       ///< "Transformer Engine 2.14"; empty: nothing beyond what the releases bring.
  std::string source{};      ///< File and line of Megatron-LM at the first tag that shows it.
};

/// A default that differs in some releases.
struct DefaultIn {
  ReleaseSpan releases{};
  nlohmann::json value;
  std::string source{};
};

/// The level at which a search decides a field. A lower bound of the step time needs only a level and those before it.
enum class Level : std::uint8_t {
  kAttention,  ///< Everything that layers without experts or defaults of other fields may read.
  kExperts,    ///< Read by experts alone (costmodel/parallel/options.h).
  kGraphs,     ///< LayerOptions::cuda_graph.
  kPipeline,   ///< PipelineOptions.
  kStep,       ///< StepOptions.
  kMemory,     ///< Recomputation and offloading of activations: less memory for more time.
};

/// A choice that a plan can take back. Fields with the same `without` belong to one choice.
struct Plain {
  std::vector<nlohmann::json> values{};  ///< Values of the field without the choice.
  std::string without{};  ///< Name of the plan without it: "no FSDP". Empty: the field is no such choice.
  /// Order in which choices are given up if they gain nothing, 1 first. Such choices need a library, host memory or
  /// code that fewer runs have. 0: the choice needs nothing.
  int burden = 0;
};

/// A member of Megatron-Bridge's configuration and its default.
struct BridgeDefault {
  std::string member;  ///< Its name in Megatron-LM's parser.
  std::string value;   ///< As Python text.
};

struct Field {
  std::string key{};        ///< Key in a run file: "recompute.modules" is {"recompute": {"modules": ...}}.
  std::string older_key{};  ///< Its place in older run files; empty: none.
  FieldValue value{};
  Level level = Level::kAttention;
  bool parallel = false;      ///< Number of ranks over which layers are split.
  bool saves_time = false;    ///< Values after the first that is tried save time, but no memory.
  nlohmann::json megatron{};  ///< Value if Megatron's flag is not given; null: unset, or there is no such flag.
  std::vector<DefaultIn> megatron_in{};   ///< Replace `megatron` for runs that name a release.
  std::string unit{};                     ///< "sequences"; empty: none.
  std::vector<std::string> flags{};       ///< Megatron's flags. Messages call the field by the first one.
  ReleaseSpan releases{};                 ///< Releases of Megatron-Core that have the option.
  std::vector<std::string> name_flags{};  ///< What Megatron is told for each of `names`; empty: the flag and the name.
  /// Members that recipes of Megatron-Bridge may set to other values, with Megatron's own defaults.
  std::vector<BridgeDefault> bridge{};
  bool numerics = false;                ///< Other values change what is computed, not only how.
  std::vector<LimitedValue> limited{};  ///< Values that some of these releases lack, or that need more than a release.
  std::string doc{};                    ///< One line.
  std::string when{};                   ///< `applies` in words.
  /// nullptr: always. Where it does not apply, the value is ignored.
  bool (*applies)(const costmodel::TrainingOptions&) = nullptr;
  /// Whether a report mentions the value that was used for a missing one. nullptr: never.
  bool (*matters)(const costmodel::ModelSpec&, const costmodel::TrainingOptions&) = nullptr;
  /// Values that `plan` tries if the user names none. Megatron's own or the plainest comes first. nullptr: only the
  /// default.
  std::vector<nlohmann::json> (*tried)(const PlanFacts&) = nullptr;
  /// Where a value other than the first makes another run. nullptr: wherever the field applies and matters.
  bool (*differs)(const costmodel::TrainingOptions&) = nullptr;
  /// Keys of the other fields that `applies` and `differs` read. dp follows from tp, cp and pp.
  std::vector<std::string> decided_by{};
  Plain plain{};
  nlohmann::json usual{};  ///< Value of most runs, if it is not `megatron`. It does not count as a choice.

  /// Whether runs of the release may have the value.
  [[nodiscard]] bool has_value_in(const Release& release, const nlohmann::json& value) const;
  /// Why the release lacks the options' value: "... te is in Megatron-Core until 0.17.1, not in 0.19.0 (...)". Empty if
  /// it has the value.
  [[nodiscard]] std::string lacks(const Release& release, const costmodel::TrainingOptions& options) const;
  [[nodiscard]] std::string lacks(const Release& release, const nlohmann::json& value) const;
  /// The value that replaces this one in a release that lacks it.
  [[nodiscard]] const nlohmann::json& instead_of(const nlohmann::json& value) const;
  [[nodiscard]] bool is_option() const { return static_cast<bool>(value.get); }
  [[nodiscard]] bool applies_to(const costmodel::TrainingOptions& o) const { return applies == nullptr || applies(o); }
  /// Whether the value has an effect.
  [[nodiscard]] bool acts_in(const costmodel::TrainingOptions& o) const {
    return applies_to(o) && (differs == nullptr || differs(o));
  }
  [[nodiscard]] bool always_acts() const { return applies == nullptr && differs == nullptr; }
  /// Whether another value would make another run.
  [[nodiscard]] bool counts_in(const costmodel::ModelSpec& model, const costmodel::TrainingOptions& o) const {
    return acts_in(o) && (matters == nullptr || matters(model, o));
  }
};

/// All fields that mean something in a run file. A field comes after those that it depends on.
[[nodiscard]] const std::vector<Field>& fields();
/// nullptr if there is no such field. Also knows older and shorter names ("ep_overlap").
[[nodiscard]] const Field* find_field(std::string_view key);
/// Throws std::logic_error for an unknown key. Tests check the keys in our sources.
[[nodiscard]] const Field& field(std::string_view key);

/// Megatron's flag of a field: "--tensor-model-parallel-size" of "tp".
[[nodiscard]] const std::string& flag(std::string_view key);
/// Megatron's arguments for the options' value of a name field: "--fp8-recipe tensorwise".
[[nodiscard]] std::string flag_of_name(std::string_view key, const costmodel::TrainingOptions& options);
/// `text` with every [key] replaced by its flag, [key/1] by its second one: "[tp] {}" is
/// "--tensor-model-parallel-size {}".
[[nodiscard]] std::string with_flags(std::string_view text);
/// The keys that `text` has in brackets.
[[nodiscard]] std::vector<std::string> keys_in(std::string_view text);

/// "expected ..., found ..." if the field does not accept `value`; else empty.
[[nodiscard]] std::string mistake_in(const Field& field, const nlohmann::json& value);
/// Parses a value as typed on a command line: "4", "true", "mxfp8"; names of a list joined by "+"; "none" or "null" for
/// null. Text that is no number stays text, and mistake_in() reports it.
[[nodiscard]] nlohmann::json typed_value(const Field& field, std::string_view text);
/// What keys of the model's config.json or of the system's profile begin with where fields are set one by one
/// ("system.memory"), and the object of a run file that has them.
struct Override {
  std::string_view prefix, object;
  [[nodiscard]] bool of_system() const { return object == "system_overrides"; }
};
/// The one that `key` begins with; nullptr: none, so that it is a field's.
[[nodiscard]] const Override* override_of(std::string_view key);
/// A value of such a key as typed: JSON, or else the text itself.
[[nodiscard]] nlohmann::json override_value(const std::string& text);
/// Text of a value: "4", "true", "mxfp8", "moe_act+layernorm"; "none" for null and for an empty list. typed_value()
/// reads it.
[[nodiscard]] std::string value_text(const nlohmann::json& value);

/// Resets every field that does not apply to its value in TrainingOptions{}.
void settle(costmodel::TrainingOptions& options);

}  // namespace foldwise::planner
