// Is what the rows of the table of fields say of an option what the code does? Each property of a row is compared with
// random options that differ in one field.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "costmodel/ops/block_cache.h"
#include "costmodel/step/step.h"
#include "hwprofiles/load/profile.h"
#include "planner/models/models.h"
#include "planner/rules/rules.h"
#include "planner/run/defaults.h"
#include "planner/run/fields.h"
#include "tests/random_options.h"
#include "tests/random_run.h"

namespace foldwise::planner::field_rows_test {
namespace {

using costmodel::BuildContext;
using costmodel::Hardware;
using costmodel::LayerOptions;
using costmodel::LayerSpec;
using costmodel::MlpKind;
using costmodel::ModelSpec;
using costmodel::Op;
using costmodel::OpList;
using costmodel::Piece;
using costmodel::TrainingOptions;
using nlohmann::json;

/// The ops as numbers: all that a cost is made of.
std::vector<double> numbers_of(const OpList& list, const Hardware& hardware) {
  std::vector<double> numbers;
  for (const auto* ops : {&list.forward, &list.backward}) {
    numbers.push_back(static_cast<double>(ops->size()));
    for (const Op& op : *ops) {
      const costmodel::LinkBytes links = link_bytes(op);
      for (const double number :
           {static_cast<double>(op.launches), static_cast<double>(op.modules), static_cast<double>(op.quantised),
            static_cast<double>(op.checkpoints), static_cast<double>(op.phase), static_cast<double>(op.overlap),
            static_cast<double>(op.work.index()), static_cast<double>(op.captured_by.bits),
            static_cast<double>(op.replayed_by.bits), op_flops(op).to<double>(), op_time(op, hardware).to<double>(),
            issue_time(op, hardware).to<double>(), links.nvlink.to<double>(), links.nic.to<double>(),
            op.cache.to<double>(), op.setup_cache.to<double>(), op.holds.to<double>(), op.releases.to<double>(),
            static_cast<double>(op.dummy_gradient)})
        numbers.push_back(number);
      for (const Bytes& bytes : op.transient) numbers.push_back(bytes.to<double>());
      for (const costmodel::Tensor& tensor : op.keeps)
        for (const double number : {tensor.bytes.to<double>(), static_cast<double>(tensor.freed_by.bits),
                                    static_cast<double>(tensor.offloaded_by.bits), tensor.rests.to<double>()})
          numbers.push_back(number);
      for (const costmodel::Weight& weight : op.weights)
        for (const double number : {static_cast<double>(weight.count), static_cast<double>(weight.tensors),
                                    static_cast<double>(weight.quantised), static_cast<double>(weight.adapter)})
          numbers.push_back(number);
    }
  }
  return numbers;
}

/// And what becomes of them: recomputation, offloading and graphs are applied to the list.
std::vector<double> numbers_of(const BuildContext& context, Piece piece, const LayerSpec& layer) {
  std::vector<double> numbers = numbers_of(piece_ops(context, piece, layer), context.hardware);
  const costmodel::BlockCost cost = block_cost(context, piece_ops(context, piece, layer));
  for (const auto* direction : {&cost.forward, &cost.backward})
    for (const Seconds time :
         {direction->compute, direction->comm, direction->copy, direction->products, direction->clock.issue()})
      numbers.push_back(time.to<double>());
  for (const Bytes bytes : {cost.memory.kept, cost.memory.forward_high, cost.memory.backward_high, cost.rematerialised,
                            cost.captured, cost.host_bytes, cost.offloaded, cost.weight_gradients})
    numbers.push_back(bytes.to<double>());
  return numbers;
}

struct Place {
  Piece piece;
  LayerSpec layer;
  bool experts = false;  ///< Experts read it.
};

std::vector<Place> places_of(const ModelSpec& model) {
  std::vector<Place> places = {{Piece::kEmbedding, {}}, {Piece::kHead, {}}};
  if (model.mtp_num_layers > 0) places.push_back({Piece::kMtp, {}});
  std::vector<LayerSpec> seen;
  for (const LayerSpec& layer : model.layers) {
    if (std::ranges::count(seen, layer) > 0) continue;
    seen.push_back(layer);
    places.push_back({Piece::kMixer, layer});
    places.push_back({Piece::kMlp, layer, layer.mlp == MlpKind::kMoe});
  }
  return places;
}

/// Sizes that divide what the model has: other ones no rule accepts.
bool buildable(const ModelSpec& model, const Hardware& hardware, std::int64_t num_gpus, const TrainingOptions& o) {
  const Problem problem{.model = model, .hardware = hardware, .num_gpus = num_gpus};
  for (const Rule& rule : rules()) {
    const bool sizes = std::ranges::all_of(rule.keys, [](const std::string& key) {
      const Field& f = field(key);
      return f.parallel || f.value.type == FieldType::kInteger;
    });
    if (sizes && rule.broken(problem, o)) return false;
  }
  return o.layer.seq_len % (2 * o.layer.cp * o.layer.tp) == 0;
}

struct Pairs {
  std::vector<ModelSpec> models;
  std::vector<Hardware> systems;
};

const Pairs& pairs() {
  static const Pairs all = [] {
    Pairs made;
    for (const char* name : {"mini-mixtral-8l", "mini-deepseek-12l", "deepseek-v3", "mini-llama-16l", "gpt-oss-20b"})
      made.models.push_back(load_model(name));
    for (const char* name : {"h200", "gb200-nvl72"}) made.systems.push_back(hwprofiles::load_profile(name).hardware);
    return made;
  }();
  return all;
}

constexpr int kStarts = 200;
constexpr std::int64_t kGpus = 64;

/// dp follows from the other sizes.
void settle_data_parallel(TrainingOptions& o) {
  o.step.dp = std::max<std::int64_t>(1, kGpus / (o.layer.tp * o.layer.cp * o.pipeline.pp));
}

/// Calls `visit` with options whose sizes divide the model, and the same with what another value of one field sets.
template <typename Visitor>
void for_pairs(int starts, const Visitor& visit) {
  const std::vector<const Field*> all = settable_fields();
  RandomOptions random(1);
  for (int start = 0; start < starts; ++start) {
    const ModelSpec& model = pairs().models[random.below(pairs().models.size())];
    const Hardware& hardware = pairs().systems[random.below(pairs().systems.size())];
    const auto give = [&](const Field& f, TrainingOptions& o) {
      TrainingOptions other = o;
      random.give(f, other);
      if (f.key == "seq_len") other.layer.seq_len = o.layer.seq_len == 4096 ? 8192 : 4096;
      if (f.key == "global_batch") other.pipeline.global_batch = o.pipeline.global_batch == 4096 ? 2048 : 4096;
      TrainingOptions settled = other;
      settle_data_parallel(settled);
      if (hardware.supports(other.layer.precision) && buildable(model, hardware, kGpus, settled)) o = other;
    };
    TrainingOptions before;
    before.pipeline.global_batch = 4096;
    const std::size_t rarity = 1 + random.below(6);
    for (const Field* f : all)
      if (random.below(rarity) == 0) give(*f, before);
    settle_data_parallel(before);
    for (const Field* f : all) {
      TrainingOptions after = before;
      give(*f, after);
      if (after != before) visit(model, hardware, *f, before, after);
    }
  }
}

// Does each option change the op lists of the pieces that read it, by its member's row (each_option), and no others?
// Costs of layers are remembered as if so.
TEST(FieldRows, OpListsReadWhatTheyAreSaidToRead) {
  std::set<std::string> wrong;
  for_pairs(kStarts, [&](const ModelSpec& model, const Hardware& hardware, const Field& f, const TrainingOptions&,
                         const TrainingOptions& after) {
    for (const Place& place : places_of(model)) {
      const LayerOptions only = relevant(after.layer, place.piece, place.layer);
      LayerOptions given = after.layer;
      given.recompute = only.recompute;  // Modules have lists of their own (recomputable(), offloadable()).
      given.offload_modules = only.offload_modules;
      const BuildContext all{model, given, hardware, kGpus}, less{model, only, hardware, kGpus};
      if (numbers_of(all, place.piece, place.layer) != numbers_of(less, place.piece, place.layer) &&
          wrong.insert(f.key).second)
        ADD_FAILURE() << "with another " << f.key << ", piece " << static_cast<int>(place.piece) << " of "
                      << model.name;
    }
  });
}

/// Where two options differ: the deepest level of what does. Nothing: nowhere that can be seen.
std::optional<Level> level_of_difference(const ModelSpec& model, const Hardware& hardware, const TrainingOptions& a,
                                         const TrainingOptions& b) {
  if (a.layer.recompute != b.layer.recompute || a.layer.offload_modules != b.layer.offload_modules ||
      a.pipeline.recompute != b.pipeline.recompute ||
      a.pipeline.cpu_offloading_num_layers != b.pipeline.cpu_offloading_num_layers)
    return Level::kMemory;
  if (a.step != b.step) return Level::kStep;
  if (a.pipeline != b.pipeline) return Level::kPipeline;
  if (a.layer.cuda_graph != b.layer.cuda_graph) return Level::kGraphs;
  std::optional<Level> level;
  const BuildContext first{model, a.layer, hardware, kGpus}, second{model, b.layer, hardware, kGpus};
  for (const Place& place : places_of(model))
    if (numbers_of(first, place.piece, place.layer) != numbers_of(second, place.piece, place.layer)) {
      if (!place.experts) return Level::kAttention;
      level = Level::kExperts;
    }
  return level;
}

/// Kernels that only experts read are decided with attention all the same: two nodes for each size where both may be
/// had. Decided later, a search of 0.1 s for Qwen3 30B on 16 H100 with Megatron-Core 0.16.1 found plans 8 % slower.
const std::set<std::string> early = {"software.permute", "software.router_fusion", "software.router_operands"};

// Is each field decided at the level of its row: as late as a value of it is first needed, and no later?
TEST(FieldRows, SayTheLevelAtWhichAFieldIsNeeded) {
  std::map<std::string, std::set<Level>> seen;
  for_pairs(kStarts, [&](const ModelSpec& model, const Hardware& hardware, const Field& f,
                         const TrainingOptions& before, const TrainingOptions& after) {
    if (f.numerics) return;
    if (const auto level = level_of_difference(model, hardware, before, after)) seen[f.key].insert(*level);
  });
  std::vector<std::string> unseen;
  for (const Field* f : settable_fields()) {
    if (f->numerics) {
      EXPECT_EQ(f->level, Level::kAttention) << f->key << ": defaults of other fields may depend on it";
      continue;
    }
    const auto levels = seen.find(f->key);
    if (levels == seen.end()) {
      unseen.push_back(f->key);
      continue;
    }
    // Of layers without experts, if any of them reads it; else the deepest.
    const bool attention = early.contains(f->key) ||
                           (levels->second.contains(Level::kAttention) && *levels->second.rbegin() <= Level::kExperts);
    EXPECT_EQ(static_cast<int>(f->level), static_cast<int>(attention ? Level::kAttention : *levels->second.rbegin()))
        << f->key;
  }
  // Are the pairs good enough to notice a wrong row?
  EXPECT_LE(unseen.size(), 5U) << fmt::format("{}", fmt::join(unseen, ", "));
}

// Does a row name all fields that decide whether its own does anything, and no others?
TEST(FieldRows, NameTheFieldsThatDecideWhetherTheyAct) {
  const std::vector<const Field*> all = settable_fields();
  std::set<std::pair<std::string, std::string>> seen;
  RandomOptions random(2);
  for (int start = 0; start < 5'000; ++start) {
    TrainingOptions before;
    const std::size_t rarity = 1 + random.below(4);
    for (const Field* f : all)
      if (f->key != "dp" && random.below(rarity) == 0) random.give(*f, before);
    settle_data_parallel(before);
    for (const Field* f : all) {
      if (f->key == "dp") continue;
      TrainingOptions after = before;
      random.give(*f, after);
      settle_data_parallel(after);
      for (const Field* other : all)
        if (other != f && other->acts_in(before) != other->acts_in(after)) seen.insert({other->key, f->key});
    }
  }
  for (const auto& [key, by] : seen) EXPECT_THAT(field(key).decided_by, testing::Contains(by)) << "of " << key;
  for (const Field& f : fields())
    for (const std::string& by : f.decided_by) EXPECT_TRUE(seen.contains({f.key, by})) << f.key << " by " << by;
}

// Are the options that nobody has filled Megatron's defaults?
TEST(FieldRows, UntouchedOptionsAreMegatronsDefaults) {
  const TrainingOptions untouched;
  for (const Field& f : fields()) {
    if (!f.is_option() || f.megatron.is_null() || !f.applies_to(untouched)) continue;
    const bool as_another = f.megatron.is_string() && f.value.type == FieldType::kInteger;  // "tp", of etp.
    EXPECT_EQ(f.value.get(untouched),
              as_another ? field(f.megatron.get<std::string>()).value.get(untouched) : f.megatron)
        << f.key;
  }
}

// Can a plan be without each choice, and is what most runs have what the recipes' defaults give?
TEST(FieldRows, PlainAndUsualValuesAreTheFieldsOwn) {
  std::map<std::string, int> burdens;
  std::map<int, std::string> choices;
  for (const Field& f : fields()) {
    EXPECT_EQ(f.plain.values.empty(), f.plain.without.empty()) << f.key;
    for (const json& value : f.plain.values) EXPECT_EQ(mistake_in(f, value), "") << f.key;
    if (!f.plain.without.empty()) {
      EXPECT_TRUE(f.tried != nullptr) << f.key;
      const auto [known, fresh] = burdens.try_emplace(f.plain.without, f.plain.burden);
      EXPECT_EQ(known->second, f.plain.burden) << f.key;
      const bool own = !fresh || f.plain.burden == 0 || choices.try_emplace(f.plain.burden, f.plain.without).second;
      EXPECT_TRUE(own) << f.plain.without;
    }
    if (f.usual.is_null()) continue;
    EXPECT_EQ(mistake_in(f, f.usual), "") << f.key;
    EXPECT_NE(f.usual, f.megatron) << f.key;
    bool given = false;
    for (const Defaults* set = &load_defaults(newest_defaults("megatron-bridge")); set != nullptr && !given;
         set = set->extends.empty() ? nullptr : &load_defaults(set->extends))
      if (const std::vector<DefaultValue>* values = set->find(f.key))
        given = std::ranges::any_of(*values, [&](const DefaultValue& v) { return v.value == f.usual; });
    EXPECT_TRUE(given) << f.key;
  }
}

// Do fields that save time alone save no memory? Of runs that rules accept, with another value than the first that is
// tried; in some runs they do: a graph holds what is freed without it, and DeepEP keeps fewer copies than all-to-all.
TEST(FieldRows, SavesTimeMeansNoMemory) {
  std::map<std::string, std::pair<int, int>> saved;  // Runs, and those that need less.
  Random random(5);
  for (int i = 0; i < 400; ++i) {
    const std::optional<planner::Run> run =
        random_run(i % 2 == 0 ? "mini-mixtral-8l" : "mini-llama-16l", i % 3 == 0 ? "gb200-nvl72" : "h200", random);
    if (!run) continue;
    const PlanFacts facts{.model = run->model,
                          .hardware = run->hardware,
                          .num_gpus = run->num_gpus,
                          .seq_len = run->options.layer.seq_len,
                          .global_batch = run->options.pipeline.global_batch};
    const auto memory = [&](const TrainingOptions& o) -> std::optional<Bytes> {
      if (first_violated({run->model, run->hardware, run->num_gpus}, o)) return std::nullopt;
      return costmodel::predict(costmodel::compose_step(run->model, o, run->hardware), false).peak_memory;
    };
    for (const Field& f : fields()) {
      if (f.tried == nullptr || !f.counts_in(run->model, run->options)) continue;
      const std::vector<json> values = f.tried(facts);
      if (values.size() < 2) continue;
      TrainingOptions first = run->options, other = run->options;
      f.value.set(first, values.front());
      f.value.set(other, values[1 + random.below(values.size() - 1)]);
      settle(first);
      settle(other);
      const auto a = memory(first), b = memory(other);
      if (!a || !b) continue;
      auto& [runs, less] = saved[f.key];
      ++runs;
      if (*b < 0.999 * *a) ++less;
    }
  }
  for (const Field& f : fields())
    if (f.saves_time && saved.contains(f.key)) {
      const auto& [runs, less] = saved[f.key];
      EXPECT_LE(less, (f.key == "dispatcher" ? 0.3 : 0.1) * runs) << f.key << ": " << less << " of " << runs;
    }
}

}  // namespace
}  // namespace foldwise::planner::field_rows_test
