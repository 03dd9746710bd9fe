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

// One table says everything about an option: its key in a run file, the member it fills, its values, Megatron's default
// and flags, what it means, when a search decides about it, what it saves and how a plan is without it. The reader and
// the writer of run files, defaults, `--pin`, `compare`, the rules' messages, `fields`, docs/run-file.md, the search,
// exports to Megatron-Bridge and the tests' generator all read it. A new option is one row here and the code that uses
// it. tests/field_rows_test.cc compares what rows say with what the code does.
namespace foldwise::planner {

enum class FieldType : std::uint8_t { kInteger, kNumber, kBoolean, kName, kNames, kText, kIntegers, kObject };

/// How a field's value is spelled, and the member of TrainingOptions behind it.
struct FieldValue {
  FieldType type = FieldType::kText;
  double low = 0.0, high = 0.0;      ///< Inclusive, of numbers.
  std::vector<std::string> names{};  ///< kName, kNames: as written.
  std::vector<std::string> also{};   ///< Other and older spellings, which are only read.
  std::string pattern{};             ///< kText: regular expression (ECMAScript's) of the whole text; empty: any text.
  std::string form{};                ///< What the pattern asks for, in words.
  /// JSON value of the member; null where it is unset. Empty for a key that fills no member of its own.
  std::function<nlohmann::json(const costmodel::TrainingOptions&)> get{};
  /// Takes a value that mistake_in() accepts, null too where `get` gives it.
  std::function<void(costmodel::TrainingOptions&, const nlohmann::json&)> set{};
};

/// What the values that `plan` tries depend on.
struct PlanFacts {
  const costmodel::ModelSpec& model;
  const costmodel::Hardware& hardware;
  std::int64_t num_gpus = 1, seq_len = 1, global_batch = 1;
  const Release* release = nullptr;  ///< Null: of any.
};

/// A value of a field that not every release has, or that needs a library in some version.
struct LimitedValue {
  nlohmann::json value;
  ReleaseSpan releases{};    ///< That have it.
  nlohmann::json instead{};  ///< What a default gives way to where the release has not; null: Megatron's own.
  std::string needs{};       ///< "Transformer Engine 2.14"; empty: what every release of `releases` brings.
  std::string source{};      ///< Megatron-LM's file and line, at the first tag that shows it.
};

/// A default that is another one in some releases.
struct DefaultIn {
  ReleaseSpan releases{};
  nlohmann::json value;
  std::string source{};
};

/// When a search decides about a field. Each level needs only those before it for a lower bound of the step time.
enum class Level : std::uint8_t {
  kAttention,  ///< What a layer without experts may read, and all that defaults of other fields may depend on.
  kExperts,    ///< What only experts read (costmodel/parallel/options.h).
  kGraphs,     ///< LayerOptions::cuda_graph.
  kPipeline,   ///< PipelineOptions.
  kStep,       ///< StepOptions.
  kMemory,     ///< Recomputation and offloading of activations: less memory for more time.
};

/// A choice that a plan can take back. Fields with the same `without` are one choice.
struct Plain {
  std::vector<nlohmann::json> values{};  ///< That the field has without it.
  std::string without{};                 ///< "no FSDP": the plan without it. Empty: the field is no such choice.
  /// Choices need a library, the host's memory, or code that fewer runs have. 1: the one to give up first where it
  /// earns nothing; 0: it needs nothing.
  int burden = 0;
};

/// A member of Megatron-Bridge's configuration.
struct BridgeDefault {
  std::string member;  ///< By the name that Megatron-LM's parser has for it.
  std::string value;   ///< In Python.
};

struct Field {
  std::string key{};        ///< In a run file: "recompute.modules" is {"recompute": {"modules": ...}}.
  std::string older_key{};  ///< Where older run files have it; empty: nowhere.
  FieldValue value{};
  Level level = Level::kAttention;
  bool parallel = false;                  ///< A number of ranks over which layers are split.
  bool saves_time = false;                ///< Other values than the first that is tried save time, and no memory.
  nlohmann::json megatron{};              ///< Value where Megatron's flag is not given; null: unset, or no such flag.
  std::vector<DefaultIn> megatron_in{};   ///< Of a run that names its release, instead of `megatron`.
  std::string unit{};                     ///< "sequences"; empty: none.
  std::vector<std::string> flags{};       ///< Megatron's. The first is what messages call the field.
  ReleaseSpan releases{};                 ///< Of Megatron-Core, that have the option.
  std::vector<std::string> name_flags{};  ///< What Megatron is told for each of `names`; empty: the flag and the name.
  /// What a recipe of Megatron-Bridge may have decided otherwise, as Megatron has it where nothing is said.
  std::vector<BridgeDefault> bridge{};
  bool numerics = false;                ///< Another value makes another computation, not only another way to do it.
  std::vector<LimitedValue> limited{};  ///< Its values that not every one of them has, or that need more.
  std::string doc{};                    ///< One line.
  std::string when{};                   ///< Of `applies`, in words.
  bool (*applies)(const costmodel::TrainingOptions&) = nullptr;  ///< Empty: always. Elsewhere the value is ignored.
  /// Whether a report says what was taken for a missing value. Empty: never.
  bool (*matters)(const costmodel::ModelSpec&, const costmodel::TrainingOptions&) = nullptr;
  /// Values that `plan` tries where its user names none, Megatron's own or the plainest first. Empty: it takes the
  /// default's.
  std::vector<nlohmann::json> (*tried)(const PlanFacts&) = nullptr;
  /// Where another value than the first is another run. Empty: where the field applies and matters.
  bool (*differs)(const costmodel::TrainingOptions&) = nullptr;
  /// Keys of the fields that `applies` and `differs` read, but its own. dp follows from tp, cp and pp.
  std::vector<std::string> decided_by{};
  Plain plain{};
  nlohmann::json usual{};  ///< What most runs have, where that is not `megatron`: no choice to speak of.

  /// Whether a run of the release may have the value.
  [[nodiscard]] bool has_value_in(const Release& release, const nlohmann::json& value) const;
  /// "... te is in Megatron-Core until 0.17.1, not in 0.19.0 (...)"; empty: the release has the options' value.
  [[nodiscard]] std::string lacks(const Release& release, const costmodel::TrainingOptions& options) const;
  [[nodiscard]] std::string lacks(const Release& release, const nlohmann::json& value) const;
  /// What a release takes that has not this value.
  [[nodiscard]] const nlohmann::json& instead_of(const nlohmann::json& value) const;
  [[nodiscard]] bool is_option() const { return static_cast<bool>(value.get); }
  [[nodiscard]] bool applies_to(const costmodel::TrainingOptions& o) const { return applies == nullptr || applies(o); }
  /// Whether its value does something.
  [[nodiscard]] bool acts_in(const costmodel::TrainingOptions& o) const {
    return applies_to(o) && (differs == nullptr || differs(o));
  }
  [[nodiscard]] bool always_acts() const { return applies == nullptr && differs == nullptr; }
  /// Whether another value would be another run.
  [[nodiscard]] bool counts_in(const costmodel::ModelSpec& model, const costmodel::TrainingOptions& o) const {
    return acts_in(o) && (matters == nullptr || matters(model, o));
  }
};

/// Every key that means something in a run file, what a field depends on before it.
[[nodiscard]] const std::vector<Field>& fields();
/// nullptr: no such field. Knows older and shorter names of keys ("ep_overlap").
[[nodiscard]] const Field* find_field(std::string_view key);
/// Throws std::logic_error for a key that is none: the keys in our sources are checked by tests.
[[nodiscard]] const Field& field(std::string_view key);

/// Megatron's flag of a field: "--tensor-model-parallel-size" of "tp".
[[nodiscard]] const std::string& flag(std::string_view key);
/// What Megatron is told for this value of a name field: "--fp8-recipe tensorwise".
[[nodiscard]] std::string flag_of_name(std::string_view key, const costmodel::TrainingOptions& options);
/// `text` with every [key] replaced by its flag, [key/1] by its second one: "[tp] {}" is
/// "--tensor-model-parallel-size {}".
[[nodiscard]] std::string with_flags(std::string_view text);
/// The keys that `text` has in brackets.
[[nodiscard]] std::vector<std::string> keys_in(std::string_view text);

/// "expected ..., found ..." where `value` is none of the field; else empty.
[[nodiscard]] std::string mistake_in(const Field& field, const nlohmann::json& value);
/// A value as typed on a command line: "4", "true", "mxfp8"; names of a list joined by "+"; "none" and "null" for null.
/// A text that is no number stays one, for mistake_in to report.
[[nodiscard]] nlohmann::json typed_value(const Field& field, std::string_view text);
/// "4", "true", "mxfp8", "moe_act+layernorm"; "none" for null and for an empty list. typed_value reads it.
[[nodiscard]] std::string value_text(const nlohmann::json& value);

/// Gives every field that does not apply the value that it has in TrainingOptions{}.
void settle(costmodel::TrainingOptions& options);

}  // namespace foldwise::planner
