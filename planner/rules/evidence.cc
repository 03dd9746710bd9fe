#include "planner/rules/evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "costmodel/check.h"
#include "costmodel/config/json.h"
#include "planner/run/names.h"

namespace foldwise::planner::evidence_data {
[[nodiscard]] const std::string* embedded_file(std::string_view name);  // Made by hwprofiles/embed.cmake.
}

namespace foldwise::planner {

using costmodel::ModelSpec;
using costmodel::OffloadModule;
using costmodel::Precision;
using costmodel::TrainingOptions;
using nlohmann::json;

namespace {

enum class PrecisionClass : std::uint8_t { kBf16, kFp8, kMxfp8, kNvfp4, kFp16 };
enum class PipelineKind : std::uint8_t { kNone, kOneF1B, kInterleaved };
/// Bits of kOffload.
constexpr unsigned kActivations = 1, kLayers = 2, kOptimizer = 4, kStates = 8;
const std::vector<std::pair<unsigned, std::string>> offload_names = {
    {kActivations, "activations"}, {kLayers, "layers"}, {kOptimizer, "optimizer"}, {kStates, "states"}};

const std::array<std::string_view, kChoiceParts> part_names = {
    "precision", "context", "experts", "dispatcher", "graphs", "pipeline", "EP overlap", "sharding", "offload"};
const std::vector<std::string> precision_classes = {"bf16", "fp8", "mxfp8", "nvfp4", "fp16"};
const std::vector<std::string> pipelines = {"none", "1f1b", "interleaved"};
const std::vector<std::string> no_or_yes = {"no", "yes"};
const std::vector<std::string> expert_kernels = {"dense", "sequential", "grouped", "cutlass", "fused"};

PrecisionClass class_of(Precision precision) {
  switch (precision) {
    case Precision::kBf16:
      return PrecisionClass::kBf16;
    case Precision::kFp8Delayed:
    case Precision::kFp8Current:
    case Precision::kFp8Blockwise:
      return PrecisionClass::kFp8;
    case Precision::kMxfp8:
      return PrecisionClass::kMxfp8;
    case Precision::kNvfp4:
      return PrecisionClass::kNvfp4;
    case Precision::kFp16:
      return PrecisionClass::kFp16;
  }
  return PrecisionClass::kBf16;
}

unsigned offload_of(const TrainingOptions& o) {
  constexpr auto kWhole = static_cast<unsigned>(OffloadModule::kLayer);
  unsigned bits = 0;
  if ((o.layer.offload_modules.bits & ~kWhole) != 0) bits |= kActivations;
  if ((o.layer.offload_modules.bits & kWhole) != 0) bits |= kLayers;
  if (o.step.offload.optimizer_fraction > 0.0) bits |= kOptimizer;
  if (o.step.offload.optimizer_states) bits |= kStates;
  return bits;
}

std::string offload_text(unsigned bits) {
  std::string text;
  for (const auto& [bit, name] : offload_names)
    if ((bits & bit) != 0) text += (text.empty() ? "" : "+") + name;
  return text.empty() ? "none" : text;
}

/// Names of a part's values by their numbers.
std::vector<std::string> names_of_part(ChoicePart part) {
  const auto enumerated = [](const auto& names) {
    std::vector<std::string> list;
    for (const auto& [name, value] : names) {
      const auto at = static_cast<std::size_t>(value);
      if (list.size() <= at) list.resize(at + 1);
      if (list[at].empty()) list[at] = name;
    }
    return list;
  };
  const auto with_none = [](std::vector<std::string> list) {
    list.insert(list.begin(), "none");
    return list;
  };
  switch (part) {
    case ChoicePart::kPrecision:
      return precision_classes;
    case ChoicePart::kContext:
      return with_none(enumerated(cp_comm_names()));
    case ChoicePart::kExperts:
      return expert_kernels;
    case ChoicePart::kDispatcher:
      return with_none(enumerated(dispatcher_names()));
    case ChoicePart::kGraphs:
      return enumerated(graph_impl_names());
    case ChoicePart::kPipeline:
      return pipelines;
    case ChoicePart::kEpOverlap:
      return no_or_yes;
    case ChoicePart::kSharding:
      return enumerated(sharding_names());
    case ChoicePart::kOffload: {
      std::vector<std::string> list;
      for (unsigned bits = 0; bits < 16; ++bits) list.push_back(offload_text(bits));
      return list;
    }
  }
  return {};
}

std::uint8_t value_named(ChoicePart part, const std::string& name) {
  const std::vector<std::string> names = names_of_part(part);
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) throw std::logic_error(fmt::format("evidence: no {} \"{}\"", name_of(part), name));
  return static_cast<std::uint8_t>(found - names.begin());
}

/// The first `parts` as one number: no part has more values than kOffload, 16.
std::uint64_t packed(const JointChoice& choice, std::size_t parts) {
  constexpr std::size_t kBits = 4;
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < parts; ++i) number |= static_cast<std::uint64_t>(choice[i]) << (kBits * i);
  return number;
}

ChoicePart part_at(std::size_t i) { return static_cast<ChoicePart>(i); }

std::vector<MeasuredChoice> load_runs() {
  const std::string* text = evidence_data::embedded_file("evidence");
  FW_CHECK(text != nullptr, "hwprofiles/data/evidence.json is not embedded");
  std::vector<MeasuredChoice> runs;
  const json file = json::parse(*text);
  for (const json& row : file.at("runs")) {
    MeasuredChoice run{.id = row.at("id"),
                       .generation = row.at("generation"),
                       .model = row.at("model"),
                       .num_gpus = row.at("num_gpus"),
                       .choice = {}};
    for (std::size_t i = 0; i < kChoiceParts; ++i)
      run.choice[i] = value_named(part_at(i), row.at("choice").at(std::string(part_names[i])).get<std::string>());
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace

const std::vector<std::pair<std::string, Evidence>>& evidence_names() {
  static const std::vector<std::pair<std::string, Evidence>> names = {
      {"run", Evidence::kRun}, {"parts", Evidence::kParts}, {"any", Evidence::kAny}};
  return names;
}

std::string_view name_of(Evidence evidence) {
  return std::ranges::find(evidence_names(), evidence, &std::pair<std::string, Evidence>::second)->first;
}

std::string_view name_of(ChoicePart part) { return part_names.at(static_cast<std::size_t>(part)); }

JointChoice joint_choice(const ModelSpec& model, const TrainingOptions& o) {
  const auto number = [](auto value) { return static_cast<std::uint8_t>(value); };
  const bool moe = model.has_moe(), exchanges = moe && o.layer.ep * o.layer.etp > 1;
  const PipelineKind pipeline = o.pipeline.pp == 1    ? PipelineKind::kNone
                                : o.pipeline.vpp == 1 ? PipelineKind::kOneF1B
                                                      : PipelineKind::kInterleaved;
  return {number(class_of(o.layer.precision)),
          o.layer.cp > 1 ? number(number(o.layer.cp_comm) + 1) : number(0),
          moe ? number(number(o.layer.software.experts) + 1) : number(0),
          exchanges || (moe && is_flex(o.layer.dispatcher)) ? number(number(o.layer.dispatcher) + 1) : number(0),
          number(o.layer.cuda_graph.impl),
          number(pipeline),
          number(o.pipeline.overlaps.ep_a2a && moe),
          number(o.step.sharding),
          number(offload_of(o))};
}

std::string text_of(ChoicePart part, std::uint8_t value) { return names_of_part(part).at(value); }

MeasuredChoices::MeasuredChoices(std::vector<MeasuredChoice> runs) : runs_(std::move(runs)) {
  for (const MeasuredChoice& run : runs_) {
    auto generation = std::ranges::find(generations_, run.generation, &Generation::name);
    if (generation == generations_.end())
      generation = generations_.insert(generation, {.name = run.generation, .joint = {}, .alone = {}});
    for (std::size_t parts = 0; parts <= kChoiceParts; ++parts)
      generation->joint[parts].push_back(packed(run.choice, parts));
    for (std::size_t i = 0; i < kChoiceParts; ++i) generation->alone[i] |= std::uint64_t{1} << run.choice[i];
  }
  for (Generation& generation : generations_)
    for (std::vector<std::uint64_t>& joint : generation.joint) {
      std::ranges::sort(joint);
      joint.erase(std::unique(joint.begin(), joint.end()), joint.end());
    }
}

const MeasuredChoices& MeasuredChoices::built_in() {
  static const MeasuredChoices choices(load_runs());
  return choices;
}

const MeasuredChoices::Generation* MeasuredChoices::find(const std::string& generation) const {
  const auto found = std::ranges::find(generations_, generation, &Generation::name);
  return found == generations_.end() ? nullptr : &*found;
}

bool MeasuredChoices::has_generation(const std::string& generation) const { return find(generation) != nullptr; }

bool MeasuredChoices::has(Evidence level, const std::string& generation, const JointChoice& choice,
                          std::size_t parts) const {
  if (level == Evidence::kAny) return true;
  const Generation* known = find(generation);
  if (known == nullptr) return false;
  if (level == Evidence::kRun) return std::ranges::binary_search(known->joint[parts], packed(choice, parts));
  for (std::size_t i = 0; i < parts; ++i)
    if ((known->alone[i] >> choice[i] & 1U) == 0) return false;
  return true;
}

Evidence MeasuredChoices::level_of(const std::string& generation, const JointChoice& choice) const {
  for (const Evidence level : {Evidence::kRun, Evidence::kParts})
    if (has(level, generation, choice)) return level;
  return Evidence::kAny;
}

const MeasuredChoice* MeasuredChoices::nearest(const std::string& generation, const JointChoice& choice,
                                               const std::string& model, std::int64_t num_gpus) const {
  const MeasuredChoice* best = nullptr;
  std::tuple<std::size_t, bool, double> least;
  for (const MeasuredChoice& run : runs_) {
    if (run.generation != generation) continue;
    std::size_t differs = 0;
    for (std::size_t i = 0; i < kChoiceParts; ++i) differs += run.choice[i] != choice[i] ? 1 : 0;
    const std::tuple<std::size_t, bool, double> distance = {
        differs, run.model != model,
        std::abs(std::log(static_cast<double>(run.num_gpus) / static_cast<double>(num_gpus)))};
    if (best != nullptr && !(distance < least)) continue;
    best = &run;
    least = distance;
  }
  return best;
}

RunEvidence evidence_of(const Run& run, const MeasuredChoices& measured) {
  const JointChoice choice = joint_choice(run.model, run.options);
  const std::string& generation = run.hardware.traits.generation;
  RunEvidence result{.level = measured.level_of(generation, choice), .nearest = {}, .lacks = {}};
  const MeasuredChoice* nearest = measured.nearest(generation, choice, run.model_name, run.num_gpus);
  if (nearest == nullptr) return result;
  result.nearest = nearest->id;
  for (std::size_t i = 0; i < kChoiceParts; ++i)
    if (choice[i] != nearest->choice[i])
      result.lacks.push_back(fmt::format("{} {} (nearest run: {})", part_names[i], text_of(part_at(i), choice[i]),
                                         text_of(part_at(i), nearest->choice[i])));
  return result;
}

json evidence_json(const RunEvidence& evidence) {
  return {{"level", name_of(evidence.level)},
          {"nearest", evidence.nearest.empty() ? json(nullptr) : json(evidence.nearest)},
          {"lacks", evidence.lacks}};
}

MeasuredChoice measured_choice(const Run& run) {
  return {.id = run_name(run),
          .generation = run.hardware.traits.generation,
          .model = run.model_name,
          .num_gpus = run.num_gpus,
          .choice = joint_choice(run.model, run.options)};
}

json measured_choices_json(const std::vector<MeasuredChoice>& runs) {
  json list = json::array();
  for (const MeasuredChoice& run : runs) {
    json choice = json::object();
    for (std::size_t i = 0; i < kChoiceParts; ++i)
      choice[std::string(part_names[i])] = text_of(part_at(i), run.choice[i]);
    list.push_back({{"id", run.id},
                    {"generation", run.generation},
                    {"model", run.model},
                    {"num_gpus", run.num_gpus},
                    {"choice", std::move(choice)}});
  }
  return list;
}

}  // namespace foldwise::planner
