#include "planner/run/run_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "costmodel/pipeline/schedule.h"
#include "hwprofiles/load/profile.h"
#include "planner/models/models.h"
#include "planner/run/names.h"

// Two kinds of mistakes are kept apart. One of form (a key that nobody knows, a text where a number is due) is a typing
// mistake: it is always an error. One of content (a model that is not built in, sizes that contradict each other) makes
// one run unusable: an error in a file of one run, a row that is listed with its reason in a file of many.
namespace foldwise::planner {
namespace {

using config::Diagnostic;
using config::Diagnostics;
using config::Document;
using config::ObjectReader;
using costmodel::BitSet;
using costmodel::TrainingOptions;
using nlohmann::json;

// Bounds that only a typing mistake exceeds; small enough that products of three sizes fit 64 bits.
constexpr std::int64_t kMostGpus = 1'000'000;
constexpr std::int64_t kMostSequences = 16'777'216;
constexpr std::int64_t kLongestSequence = 16'777'216;
constexpr std::string_view kFirstLayers = "decoder_first_pipeline_num_layers",
                           kLastLayers = "decoder_last_pipeline_num_layers",
                           kAccountForEmbedding = "account_for_embedding_in_pipeline_split",
                           kAccountForLoss = "account_for_loss_in_pipeline_split";
constexpr double kLeastMeasured = 1e-9, kMostMeasured = 1e12;

/// Models and systems already read: a file of runs names the same few over and over.
struct Catalog {
  std::map<std::string, costmodel::ModelSpec> models;
  std::map<std::string, costmodel::Hardware> systems;
};

/// Facts of a measurement and of software come from many sources, so keys that we do not use are welcome there; a key
/// that is almost one of `known` is a typing mistake all the same.
void finish_open(ObjectReader& in, const std::vector<std::string>& known) {
  for (const std::string& key : in.keys()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string suggestion = config::nearest(key, known);
    if (!suggestion.empty() && !in.has(suggestion))
      in.error(key, fmt::format("unknown key; the nearest known key is \"{}\"", suggestion));
  }
}

constexpr const char* kTorchLoss = "torch, fp32 logits";

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }
bool starts_with(const std::string& text, std::string_view part) { return text.rfind(part, 0) == 0; }
const char* text_of(bool value) { return value ? "true" : "false"; }

class RunReader {
 public:
  /// Mistakes of form go where `in` reports to, those of content to `content`, which may be the same.
  RunReader(ObjectReader& in, Diagnostics& content, Catalog& catalog) : in_(in), content_(content), catalog_(catalog) {}

  Run read();

 private:
  void read_identity();
  void read_model();
  void read_system();
  void read_extras();
  void read_mtp();
  void read_sizes();
  void read_experts();
  void read_pipeline();
  void read_split();
  void assume_uneven_split();
  void read_batch();
  void read_precision();
  void read_recompute();
  void read_lora();
  void read_offload();
  void read_overlaps();
  void read_cuda_graph();
  void read_optimizer();
  void read_software();
  void read_measured();
  void ignore_documentation();

  void assume(std::string_view field, std::string_view value, std::string_view why) {
    run_.assumed.push_back(fmt::format("{} = {} ({})", field, value, why));
  }
  void refuse(ObjectReader& in, std::string_view key, std::string message) {
    content_.error(in.location(key), std::move(message));
  }

  /// The value that `text` spells, or a mistake of content: another program's choice, perhaps, but none of ours.
  template <typename Enum>
  std::optional<Enum> value_of(ObjectReader& in, std::string_view key, const std::string& text,
                               const Names<Enum>& names) {
    std::vector<std::string> known;
    for (const auto& [name, value] : names) {
      if (name == text) return value;
      known.push_back(name);
    }
    std::string list;
    for (const std::string& name : known) list += (list.empty() ? "\"" : ", \"") + name + "\"";
    const std::string suggestion = config::nearest(text, known);
    refuse(in, key,
           fmt::format("expected one of {}, found \"{}\"{}", list, text,
                       suggestion.empty() ? "" : fmt::format("; the nearest is \"{}\"", suggestion)));
    return std::nullopt;
  }
  template <typename Enum>
  std::optional<Enum> choice(ObjectReader& in, std::string_view key, const Names<Enum>& names) {
    const auto text = in.string(key);
    return text ? value_of(in, key, *text, names) : std::nullopt;
  }
  template <typename Enum>
  BitSet<Enum> modules(ObjectReader& in, std::string_view key, const Names<Enum>& names) {
    BitSet<Enum> result;
    for (const std::string& text : in.strings(key).value_or(std::vector<std::string>{}))
      if (const auto module = value_of(in, key, text, names))
        result.bits = static_cast<std::uint16_t>(result.bits | static_cast<std::uint16_t>(*module));
    return result;
  }

  ObjectReader& in_;
  Diagnostics& content_;
  Catalog& catalog_;

  Run run_;
  bool published_ = false;  ///< Has a source: a measurement that somebody published.
  bool titan_ = false;      ///< ... of TorchTitan.
  bool bridge_ = false;     ///< ... of Megatron-Bridge, whose recipes have defaults of their own.
  bool recipes_ = false;    ///< ... of Megatron-Bridge or NeMo, not of Megatron's own command line.
  bool have_model_ = false, have_system_ = false;
  struct Extras {
    std::optional<std::int64_t> mtp_num_layers;
    std::optional<bool> mtp_repeated, router_fusion, permute_fusion, fused_grouped_mlp, fp8_attention;
    std::optional<double> capacity_factor;
    std::optional<costmodel::CpComm> cp_comm;
  } extras_;
};

Run RunReader::read() {
  run_.json = in_.json();
  read_identity();
  read_model();
  read_system();
  read_extras();
  read_sizes();
  read_batch();
  read_measured();
  read_mtp();
  read_experts();
  read_pipeline();
  read_precision();
  read_recompute();
  read_offload();
  read_overlaps();
  read_cuda_graph();
  read_optimizer();
  read_software();
  ignore_documentation();
  in_.finish();
  return std::move(run_);
}

void RunReader::read_identity() {
  run_.file = in_.location().file;
  run_.line = in_.location().line;
  run_.id = in_.string("id").value_or("");
  run_.release = in_.string("date_or_release").value_or("");
  if (auto source = in_.object("source")) {
    const std::string title = source->string("title").value_or("");
    published_ = !title.empty();
    bridge_ = contains(title, "Megatron-Bridge");
    recipes_ = bridge_ || contains(title, "NeMo");
    titan_ = contains(title, "TorchTitan");
    source->ignore({"where", "table"});
    finish_open(*source, {"title", "where", "table"});
  }
  const Names<int> tasks = {{"pretrain", 0}, {"sft", 1}, {"lora", 2}};
  if (const auto text = in_.string("task"); text && value_of(in_, "task", *text, tasks)) run_.task = *text;
  read_lora();
  run_.out_of_memory = in_.boolean_or("oom", false);
}

void RunReader::read_lora() {
  TrainingOptions& options = run_.options;
  options.layer.lora = run_.task == "lora";
  auto in = in_.object("lora");
  if (in && !options.layer.lora) refuse(in_, "lora", fmt::format("contradicts task = {}", run_.task));
  if (!in) {
    if (options.layer.lora)
      assume("lora", "dim 32, all four target_modules", "not in the file; Megatron-Bridge's default");
    return;
  }
  options.layer.lora_dim = in->integer_or("dim", options.layer.lora_dim, 1, 1 << 16);
  if (in->has("target_modules")) options.layer.lora_modules = modules(*in, "target_modules", lora_module_names());
  if (options.layer.lora_modules.empty()) refuse(*in, "target_modules", "expected at least one linear");
  in->finish();
}

void RunReader::read_model() {
  run_.model_name = in_.required_string("model");
  const json* overrides = in_.raw("model_overrides");
  if (overrides != nullptr && !overrides->is_object()) {
    in_.error("model_overrides", "expected an object that replaces keys of the model's config.json");
    return;
  }
  if (run_.model_name.empty()) return;
  const std::string key = run_.model_name + '\n' + (overrides == nullptr ? "" : overrides->dump());
  if (!catalog_.models.contains(key)) {
    try {
      catalog_.models.emplace(key, load_model(run_.model_name, overrides));
    } catch (const config::ConfigError& error) {
      for (const Diagnostic& diagnostic : error.diagnostics()) {
        if (diagnostic.where.file == run_.model_name && diagnostic.where.line == 0)
          refuse(in_, "model", fmt::format("\"{}\": {}", run_.model_name, diagnostic.message));
        else if (diagnostic.where.file == "model overrides")
          refuse(in_, "model_overrides", fmt::format("{}: {}", diagnostic.where.field, diagnostic.message));
        else
          content_.error(diagnostic.where, diagnostic.message);
      }
      return;
    }
  }
  run_.model = catalog_.models.at(key);
  have_model_ = true;
}

void RunReader::read_system() {
  run_.system_name = in_.required_string("system");
  if (run_.system_name.empty()) return;
  if (!catalog_.systems.contains(run_.system_name)) {
    try {
      catalog_.systems.emplace(run_.system_name, hwprofiles::load_profile(run_.system_name).hardware);
    } catch (const config::ConfigError& error) {
      for (const Diagnostic& diagnostic : error.diagnostics()) {
        if (diagnostic.where.file == "system")  // What its loader calls a name that is none.
          refuse(in_, "system", diagnostic.message);
        else if (diagnostic.where.file == run_.system_name && diagnostic.where.line == 0)
          refuse(in_, "system", fmt::format("\"{}\": {}", run_.system_name, diagnostic.message));
        else
          content_.error(diagnostic.where, diagnostic.message);
      }
      return;
    }
  }
  run_.hardware = catalog_.systems.at(run_.system_name);
  have_system_ = true;
}

/// What a published recipe sets beyond the fields of a run.
void RunReader::read_extras() {
  auto recipe = in_.object("recipe");
  if (!recipe) return;
  if (auto numerics = recipe->object("numerics"))
    extras_.fp8_attention = numerics->boolean("fp8_dot_product_attention");
  if (auto extra = recipe->object("extra")) {
    extras_.mtp_num_layers = extra->integer("mtp_num_layers", 0, 16);
    extras_.mtp_repeated = extra->boolean("mtp_use_repeated_layer");
    extras_.router_fusion = extra->boolean("moe_router_fusion");
    extras_.permute_fusion = extra->boolean("moe_permute_fusion");
    extras_.fused_grouped_mlp = extra->boolean("use_transformer_engine_op_fuser");
    extras_.capacity_factor = extra->number("moe_expert_capacity_factor", 0.01, 1000.0);
    if (const auto text = extra->string("cp_comm_type"))
      extras_.cp_comm = value_of(*extra, "cp_comm_type", *text, cp_comm_names());
  }
  finish_open(*recipe, {"tag", "commit", "name", "match", "numerics", "extra"});
}

void RunReader::read_sizes() {
  const auto num_gpus = in_.integer("num_gpus", 1, kMostGpus);
  if (!in_.has("num_gpus")) in_.error("num_gpus", "expected a whole number, found nothing");
  run_.num_gpus = num_gpus.value_or(1);
  bool readable = num_gpus.has_value();  // A size that was reported already is no reason for a second report.
  const auto size = [&](std::string_view key) {
    const auto value = in_.integer(key, 1, 65536);
    if (!in_.has(key)) assume(key, "1", "not in the file; Megatron's default");
    readable = readable && (value || !in_.has(key));
    return value.value_or(1);
  };
  run_.options.layer.tp = size("tp");
  run_.options.layer.cp = size("cp");
  run_.options.pipeline.pp = size("pp");
  const std::int64_t model_parallel = run_.options.layer.tp * run_.options.layer.cp * run_.options.pipeline.pp;
  const auto dp = in_.integer("dp", 1, kMostGpus);
  readable = readable && (dp || !in_.has("dp"));
  const bool is_contradiction =
      dp ? *dp > run_.num_gpus || model_parallel > run_.num_gpus || model_parallel * *dp != run_.num_gpus
         : run_.num_gpus % model_parallel != 0;
  if (readable && is_contradiction && dp)
    refuse(in_, "num_gpus",
           fmt::format("{} GPUs contradict tp x cp x pp x dp = {} x {} x {} x {} = {}", run_.num_gpus,
                       run_.options.layer.tp, run_.options.layer.cp, run_.options.pipeline.pp, *dp,
                       static_cast<double>(model_parallel) * static_cast<double>(*dp)));
  else if (readable && is_contradiction)
    refuse(in_, "num_gpus",
           fmt::format("{} GPUs cannot be divided by tp x cp x pp = {} x {} x {} = {}", run_.num_gpus,
                       run_.options.layer.tp, run_.options.layer.cp, run_.options.pipeline.pp, model_parallel));
  const costmodel::Network& network = run_.hardware.network;
  if (have_system_ && network.domains > 0 && run_.num_gpus > network.domains * network.ranks_per_domain)
    refuse(in_, "num_gpus",
           fmt::format("{} GPUs cannot be placed on {}: /network/domains = {} with /network/ranks_per_domain = {}",
                       run_.num_gpus, run_.system_name, network.domains, network.ranks_per_domain));
  run_.options.step.dp = dp.value_or(std::max<std::int64_t>(1, run_.num_gpus / model_parallel));
  // Follows from the other sizes, so it is no assumption and needs no line.

  if (const auto sequence_parallel = in_.boolean("sequence_parallel");
      sequence_parallel && *sequence_parallel != (run_.options.layer.tp > 1))
    refuse(in_, "sequence_parallel",
           fmt::format("{} with tp = {}: only runs with sequence parallelism exactly where tp > 1 are modelled",
                       text_of(*sequence_parallel), run_.options.layer.tp));

  if (const auto sharding = choice(in_, "sharding", sharding_names()))
    run_.options.step.sharding = *sharding;
  else if (!in_.has("sharding"))
    assume("sharding", name_of(run_.options.step.sharding), "not in the file; every published recipe has it");
  if (titan_ && run_.options.step.sharding == costmodel::Sharding::kFsdp && run_.options.pipeline.pp > 1) {
    run_.options.step.sharding = costmodel::Sharding::kFsdpOptim;
    assume("sharding", name_of(run_.options.step.sharding),
           "TorchTitan keeps weights gathered and sums whole gradients under a pipeline");
  }
  run_.options.step.fsdp_outer_optim = in_.boolean_or("fsdp_outer_optim", false);
  run_.options.step.fsdp_group = in_.integer_or("fsdp_group", 0, 0, kMostGpus);
  if (run_.options.step.fsdp_group > 0 && !is_fsdp(run_.options.step.sharding))
    refuse(
        in_, "fsdp_group",
        fmt::format("{} contradicts sharding = {}", run_.options.step.fsdp_group, name_of(run_.options.step.sharding)));

  const auto cp_comm = choice(in_, "cp_comm_type", cp_comm_names());
  run_.options.layer.cp_comm = cp_comm.value_or(extras_.cp_comm.value_or(costmodel::CpComm::kP2p));
  if (run_.options.layer.cp > 1 && !cp_comm && !extras_.cp_comm)
    assume("cp_comm_type", "p2p", "not in the file; Megatron's default");
  if (const auto sizes = in_.integers("hierarchical_context_parallel_sizes", 1, kMostGpus)) {
    if (run_.options.layer.cp_comm != costmodel::CpComm::kA2aP2p)
      refuse(in_, "hierarchical_context_parallel_sizes",
             fmt::format("contradicts cp_comm_type = {}", name_of(run_.options.layer.cp_comm)));
    else if (sizes->size() != 2 || (*sizes)[0] * (*sizes)[1] != run_.options.layer.cp)
      refuse(in_, "hierarchical_context_parallel_sizes",
             fmt::format("expected the ranks of the all-to-all and of the ring, whose product is cp = {}",
                         run_.options.layer.cp));
    else
      run_.options.layer.cp_a2a_size = (*sizes)[0];
  }
  run_.options.step.optimizer_instances = in_.integer_or("num_distributed_optimizer_instances", 1, 1, kMostGpus);
  run_.options.step.pad_buckets_for_high_nccl_busbw = in_.boolean_or("ddp_pad_buckets_for_high_nccl_busbw", false);
}

void RunReader::read_batch() {
  TrainingOptions& options = run_.options;
  options.layer.seq_len = in_.integer_or("seq_len", 1, 1, kLongestSequence);
  if (!in_.has("seq_len")) refuse(in_, "seq_len", "expected a whole number, found nothing");
  const auto micro_batch = in_.integer("micro_batch", 1, 65536);
  options.layer.micro_batch = micro_batch.value_or(1);
  const auto global_batch = in_.integer("global_batch", 1, kMostSequences);
  if (titan_ && global_batch && !micro_batch) {
    const std::int64_t local = *global_batch / options.step.dp;
    options.layer.micro_batch = std::max<std::int64_t>(1, local / options.pipeline.pp);
    assume("micro_batch", fmt::format("{}", options.layer.micro_batch),
           "TorchTitan's default: as many as pipeline ranks");
  } else if (!in_.has("micro_batch")) {
    assume("micro_batch", "1", "not in the file; the smallest");
  }
  options.pipeline.global_batch = global_batch.value_or(options.layer.micro_batch * options.step.dp);
  if (in_.has("global_batch")) return;
  // Megatron's default is a step of one micro-batch. Nobody measures that, and seconds per step depend on it.
  if (in_.has("measured"))
    refuse(in_, "global_batch", "expected a whole number, found nothing: a measured run needs it");
  else
    assume("global_batch", fmt::format("{}", options.pipeline.global_batch),
           "not in the file; Megatron's default: micro_batch x dp");
}

void RunReader::read_measured() {
  auto measured = in_.object("measured");
  if (!measured) return;
  Measured& m = run_.measured;
  const auto number = [&](std::string_view key) { return measured->number(key, kLeastMeasured, kMostMeasured); };
  m.step_time_s = number("step_time_s");
  m.tokens_per_s_per_gpu = number("tokens_per_s_per_gpu");
  m.tflops_per_gpu = number("tflops_per_gpu");
  m.mfu_pct = number("mfu_pct");
  m.peak_memory_gib = number("peak_memory_gib");
  m.peak_reserved_gib = number("peak_reserved_gib");
  if (titan_) m.peak_reserved_gib = std::exchange(m.peak_memory_gib, std::nullopt);  // What TorchTitan prints.
  if (const auto other = number("peak_reserved_memory_gib"); other && !m.peak_reserved_gib) m.peak_reserved_gib = other;
  const auto per_rank = [&](std::string_view key) {
    std::vector<double> list;
    if (const json* ranks = measured->raw(key); ranks != nullptr && ranks->is_array())
      for (const json& rank : *ranks)
        if (rank.is_number()) list.push_back(rank.get<double>());
    return list;
  };
  m.peak_memory_gib_per_rank = per_rank("peak_memory_gib_per_rank");
  m.peak_reserved_gib_per_rank = per_rank("peak_reserved_gib_per_rank");
  for (const double gib : m.peak_reserved_gib_per_rank)
    m.peak_reserved_gib = std::max(m.peak_reserved_gib.value_or(0.0), gib);
  m.allocated_after_setup_gib = number("allocated_after_setup_gib");
  m.allocated_between_steps_gib = number("allocated_between_steps_gib");
  finish_open(*measured,
              {"allocated_after_setup_gib", "allocated_between_steps_gib", "step_time_s", "tokens_per_s_per_gpu",
               "tflops_per_gpu", "mfu_pct", "peak_memory_gib", "peak_reserved_gib", "peak_reserved_memory_gib",
               "step_times_s", "peak_memory_gib_per_rank", "peak_reserved_gib_per_rank"});
}

/// Multi-token prediction is part of the model, but runs differ in it: what the run says, else its layout, else the
/// FLOPs that its source counted, else the source's habit.
void RunReader::read_mtp() {
  costmodel::ModelSpec& model = run_.model;
  const json* mtp = in_.raw("mtp");
  std::optional<std::int64_t> depth;
  if (mtp != nullptr && mtp->is_boolean()) {
    if (!mtp->get<bool>()) depth = 0;
  } else if (mtp != nullptr) {
    depth = in_.integer("mtp", 0, 16);
  }
  if (!depth && extras_.mtp_num_layers) depth = extras_.mtp_num_layers;
  if (!depth && mtp != nullptr && mtp->is_boolean()) depth = std::max<std::int64_t>(1, model.mtp_num_layers);
  const auto layout = in_.string("pipeline_layout");
  if (have_model_ && !depth && model.mtp_num_layers > 0) {
    const std::string with = fmt::format("{}", model.mtp_num_layers);
    const Measured& m = run_.measured;
    const double tokens =
        static_cast<double>(run_.options.pipeline.global_batch) * static_cast<double>(run_.options.layer.seq_len);
    const double step_tokens_per_gpu = tokens / static_cast<double>(run_.num_gpus);
    double tokens_rate = m.tokens_per_s_per_gpu.value_or(0.0);
    if (m.step_time_s && tokens_rate == 0.0) tokens_rate = step_tokens_per_gpu / *m.step_time_s;
    if (const auto* v4 = model.find<costmodel::CompressedSpec>(); v4 != nullptr && v4->residual_streams > 1) {
      depth = 0;
      assume("mtp", "0", "Megatron's hyper-connections exclude it");
    } else if (layout && !layout->empty() && !contains(*layout, "m")) {
      depth = 0;
      assume("mtp", "0", "pipeline_layout has no m");
    } else if (layout && !layout->empty()) {
      assume("mtp", with, "pipeline_layout has an m; the depth is the model's");
    } else if (m.tflops_per_gpu && tokens_rate > 0.0) {
      const double measured_flops = *m.tflops_per_gpu * 1e12 / tokens_rate * tokens;
      const double squared = tokens * static_cast<double>(run_.options.layer.seq_len);
      costmodel::ModelSpec without = model;
      without.mtp_num_layers = 0;
      const double full = costmodel::megatron_flops(model, tokens, squared, run_.options.layer.tp);
      const double bare = costmodel::megatron_flops(without, tokens, squared, run_.options.layer.tp);
      if (std::abs(measured_flops - bare) < std::abs(measured_flops - full)) depth = 0;
      assume("mtp", depth ? "0" : with, "from the FLOPs per token of the source");
    } else if (published_ && !bridge_) {
      depth = 0;
      assume("mtp", "0", "not in the file; Megatron's default");
    } else {
      assume("mtp", with, "not in the file; the model's depth");
    }
  }
  if (depth) model.mtp_num_layers = *depth;
  if (extras_.mtp_repeated) model.mtp_use_repeated_layer = *extras_.mtp_repeated;
  if (model.mtp_num_layers > 0 && model.mtp_layers.empty() && !model.layers.empty())
    model.mtp_layers = {model.layers.back()};
}

void RunReader::read_experts() {
  TrainingOptions& options = run_.options;
  const bool moe = run_.model.has_moe();
  const auto ep = in_.integer("ep", 1, 65536);
  const auto etp = in_.integer("etp", 1, 65536);
  options.layer.ep = ep.value_or(1);
  // A method named without folding maps experts as Megatron did before it had folding.
  const std::string method = in_.string("method").value_or("");
  const bool follows_tp = !method.empty() && !contains(method, "olding");
  options.layer.etp = etp.value_or(moe && follows_tp ? options.layer.tp : 1);
  if (have_model_ && !moe && (options.layer.ep > 1 || options.layer.etp > 1))
    refuse(in_, options.layer.ep > 1 ? "ep" : "etp",
           fmt::format("{} contradicts model = {}, which has no experts", std::max(options.layer.ep, options.layer.etp),
                       run_.model_name));
  if (moe && !in_.has("ep")) assume("ep", "1", "not in the file; Megatron's default");
  if (moe && !in_.has("etp"))
    assume("etp", fmt::format("{}", options.layer.etp),
           follows_tp ? "not in the file; tp, as without folding"
                      : "not in the file; recipes set it, Megatron's own default is tp");

  const auto dispatcher = choice(in_, "dispatcher", dispatcher_names());
  if (dispatcher) {
    options.layer.dispatcher = *dispatcher;
  } else if (moe && !in_.has("dispatcher")) {
    options.layer.dispatcher = published_ ? costmodel::Dispatcher::kAllToAll : costmodel::Dispatcher::kAllGather;
    assume("dispatcher", name_of(options.layer.dispatcher),
           published_ ? "not in the file; what published recipes set when they name none"
                      : "not in the file; Megatron's default");
  }

  const auto token_drop = in_.boolean("token_drop");
  const auto factor = in_.number("capacity_factor", 0.01, 1000.0);
  if (factor && token_drop && !*token_drop)
    refuse(in_, "capacity_factor", fmt::format("{} contradicts token_drop = false", *factor));
  if (factor)
    options.layer.capacity_factor = factor;
  else if (extras_.capacity_factor)
    options.layer.capacity_factor = extras_.capacity_factor;
  else if (token_drop.value_or(false))
    options.layer.capacity_factor = 1.0;
  options.layer.pad_to_capacity = in_.boolean_or("pad_to_capacity", token_drop.value_or(false));
  if (options.layer.pad_to_capacity && !in_.has("pad_to_capacity"))
    assume("pad_to_capacity", "true", "not in the file; NeMo's and Megatron-Bridge's token drop pads");
  if (options.layer.pad_to_capacity && !options.layer.capacity_factor)
    refuse(in_, "pad_to_capacity", "true needs a capacity_factor");
  options.layer.expert_load = in_.number("expert_load", 0.01, 1000.0).value_or(1.0);
}

void RunReader::read_pipeline() {
  const auto vpp = in_.integer("vpp", 1, 1000);
  run_.options.pipeline.vpp = vpp.value_or(1);
  run_.options.pipeline.schedule = choice(in_, "schedule", schedule_names()).value_or(costmodel::Schedule::kOneF1B);
  run_.options.pipeline.layout = in_.string("pipeline_layout").value_or("");
  run_.options.pipeline.microbatch_group_size = in_.integer_or("microbatch_group_size", 0, 0, 65536);
  read_split();
  const std::string& text = run_.options.pipeline.layout;
  if (text.empty()) {
    if (!in_.has("vpp") && run_.options.pipeline.pp > 1) assume("vpp", "1", "not in the file; Megatron's default");
    if (published_ && have_model_) assume_uneven_split();
    return;
  }
  if (!have_model_) return;
  const auto parsed = costmodel::parse_layout(text, run_.model.num_layers(), run_.model.mtp_num_layers);
  if (!parsed.stages) {
    refuse(in_, "pipeline_layout", parsed.error);
    return;
  }
  const auto stages = static_cast<std::int64_t>(parsed.stages->stages.size());
  if (stages % run_.options.pipeline.pp != 0) {
    refuse(in_, "pipeline_layout",
           fmt::format("{} stages cannot be divided by pp = {}", stages, run_.options.pipeline.pp));
  } else if (vpp && *vpp != stages / run_.options.pipeline.pp) {
    refuse(in_, "vpp",
           fmt::format("{} contradicts pipeline_layout: {} stages over pp = {} make vpp = {}", *vpp, stages,
                       run_.options.pipeline.pp, stages / run_.options.pipeline.pp));
  } else {
    run_.options.pipeline.vpp = stages / run_.options.pipeline.pp;
    if (!in_.has("vpp")) assume("vpp", fmt::format("{}", run_.options.pipeline.vpp), "from pipeline_layout");
  }
}

/// Megatron's other ways to name a split, as the layout that they come to.
void RunReader::read_split() {
  const auto first = in_.integer(kFirstLayers, 1, 100'000), last = in_.integer(kLastLayers, 1, 100'000);
  const bool embedding = in_.boolean(kAccountForEmbedding).value_or(false),
             loss = in_.boolean(kAccountForLoss).value_or(false);
  if (!first && !last && !embedding && !loss) return;
  const std::string_view named = first       ? kFirstLayers
                                 : last      ? kLastLayers
                                 : embedding ? kAccountForEmbedding
                                             : kAccountForLoss;
  if (!run_.options.pipeline.layout.empty()) return refuse(in_, named, "contradicts pipeline_layout");
  if ((first || last) && (embedding || loss))
    return refuse(in_, named, fmt::format("contradicts {}", embedding ? kAccountForEmbedding : kAccountForLoss));
  if (!have_model_) return;
  const std::int64_t layers = run_.model.num_layers(), mtp = run_.model.mtp_num_layers,
                     stages = run_.options.pipeline.pp * run_.options.pipeline.vpp;
  if (!first && !last) {
    const std::int64_t places = layers + (embedding ? 1 : 0) + (loss ? 1 : 0);
    if (places % stages != 0 || stages == 1)
      return refuse(in_, named,
                    fmt::format("makes {} places of {} layers, which cannot be divided by pp x vpp = {}, or "
                                "there is one stage",
                                places, layers, stages));
    run_.options.pipeline.layout = costmodel::to_layout_string(
        costmodel::even_stages(layers, mtp, run_.options.pipeline.pp, run_.options.pipeline.vpp, embedding, loss));
    return;
  }
  // Without one of the two, its rank is one of those between.
  const std::int64_t between = run_.options.pipeline.pp - (first ? 1 : 0) - (last ? 1 : 0);
  const std::int64_t rest = layers - first.value_or(0) - last.value_or(0);
  if (run_.options.pipeline.pp == 1) return refuse(in_, named, "needs pp > 1");
  for (const auto& [key, count] : {std::pair{kFirstLayers, first}, std::pair{kLastLayers, last}})
    if (count && *count % run_.options.pipeline.vpp != 0)
      return refuse(in_, key,
                    fmt::format("{} layers cannot be divided by vpp = {}", *count, run_.options.pipeline.vpp));
  if (rest < 0 || (between == 0 ? rest != 0 : rest % (between * run_.options.pipeline.vpp) != 0))
    return refuse(in_, named,
                  fmt::format("leaves {} of {} layers, which cannot be divided by {} ranks x vpp = {}", rest, layers,
                              between, run_.options.pipeline.vpp));
  const std::int64_t share = between > 0 ? rest / between : 0;
  run_.options.pipeline.layout = costmodel::to_layout_string(costmodel::first_last_stages(
      layers, mtp, run_.options.pipeline.pp, run_.options.pipeline.vpp, first.value_or(share), last.value_or(share)));
}

/// A published run whose layers do not divide evenly had an uneven split, stated or not. Recipes either count embedding
/// and loss as layers (--account-for-embedding-in-pipeline-split and -loss-: Llama 3.1 405B, Qwen3-235B) or fill every
/// stage but the last (DeepSeek-V3). A run of the user's own gets no such guess: the rules tell what is missing.
void RunReader::assume_uneven_split() {
  const std::int64_t layers = run_.model.num_layers(), stages = run_.options.pipeline.pp * run_.options.pipeline.vpp;
  if (stages == 1 || layers % stages == 0 || stages > layers + 2 || run_.model.hybrid) return;
  const bool counts_ends = (layers + 2) % stages == 0;
  const std::int64_t share = counts_ends ? (layers + 2) / stages : (layers + stages - 1) / stages;
  costmodel::StageLayout split;
  std::int64_t next = 0;
  for (std::int64_t i = 0; i < stages; ++i) {
    const bool first = i == 0, last = i == stages - 1;
    const std::int64_t room = share - (counts_ends && (first || last) ? 1 : 0);
    costmodel::StageContent stage{.first_layer = next, .num_layers = std::min(room, layers - next), .embedding = first};
    stage.mtp_layers = last ? run_.model.mtp_num_layers : 0;
    stage.loss = last;
    next += stage.num_layers;
    split.stages.push_back(stage);
  }
  if (next != layers) return;
  run_.options.pipeline.layout = costmodel::to_layout_string(split);
  assume("pipeline_layout", run_.options.pipeline.layout,
         counts_ends ? "not in the file; the layers do not divide, with embedding and loss they do"
                     : "not in the file; the layers do not divide, so the last stages have fewer");
}

void RunReader::read_precision() {
  using costmodel::Precision;
  TrainingOptions& options = run_.options;
  const auto text = in_.string("precision");
  if (!in_.has("precision")) {
    assume("precision", "bf16", "not in the file");
  } else if (text == "fp8-unspecified") {
    options.layer.precision = run_.hardware.recipe.fp8;
    assume("precision", name_of(options.layer.precision), "the file says only FP8; the usual recipe of the GPU");
  } else if (text == "fp8-rowwise") {
    options.layer.precision = Precision::kFp8Current;
    assume("precision", "fp8-current", "fp8-rowwise is not modelled; the nearest recipe");
  } else if (text) {
    if (const auto precision = value_of(in_, "precision", *text, precision_names()))
      options.layer.precision = *precision;
  }
  const auto fp8_attention = in_.boolean("fp8_attention");
  options.layer.fp8_attention = fp8_attention.value_or(extras_.fp8_attention.value_or(false));
}

void RunReader::read_recompute() {
  using costmodel::RecomputeGranularity;
  auto in = in_.object("recompute");
  if (!in) {
    if (!in_.has("recompute")) assume("recompute", "none", "not in the file; Megatron's default");
    return;
  }
  costmodel::Recompute recompute;
  recompute.granularity = choice(*in, "granularity", granularity_names()).value_or(RecomputeGranularity::kNone);
  const json* listed = in->raw("modules");
  if (listed != nullptr && listed->is_string()) {
    const bool per_op = titan_ && listed->get<std::string>() == "per-op SAC";
    recompute.modules = {per_op ? costmodel::RecomputeModule::kAlternateMatmuls
                                : costmodel::RecomputeModule::kCoreAttn};
    if (!per_op)
      assume("recompute.modules", "core_attn",
             fmt::format("\"{}\" is not modelled; the nearest policy", listed->get<std::string>()));
  } else {
    recompute.modules = modules(*in, "modules", recompute_module_names());
  }
  const auto method = choice(*in, "method", method_names());
  const auto num_layers = in->integer("num_layers", 0, 10000);
  switch (recompute.granularity) {
    case RecomputeGranularity::kNone:
      if (!recompute.modules.empty()) refuse(*in, "modules", "a list of modules contradicts granularity = none");
      recompute = {};
      break;
    case RecomputeGranularity::kSelective:
      if (recompute.modules.empty()) {
        recompute.modules = {costmodel::RecomputeModule::kCoreAttn};
        assume("recompute.modules", "core_attn", "not in the file; Megatron's default");
      }
      break;
    case RecomputeGranularity::kFull:
      if (!recompute.modules.empty()) refuse(*in, "modules", "a list of modules contradicts granularity = full");
      recompute.modules = {};
      recompute.method = method.value_or(costmodel::RecomputeMethod::kUniform);
      recompute.num_layers = std::max<std::int64_t>(1, num_layers.value_or(1));
      if (!in->has("method")) assume("recompute.method", "uniform", "not in the file");
      if (!in->has("num_layers")) assume("recompute.num_layers", "1", "not in the file; Megatron's default");
      break;
  }
  run_.options.set_recompute(recompute);
  in->finish();
}

void RunReader::read_offload() {
  auto in = in_.object("offload");
  if (!in) {
    if (!in_.has("offload")) assume("offload", "none", "not in the file; Megatron's default");
    return;
  }
  TrainingOptions& options = run_.options;
  costmodel::BitSet<costmodel::OffloadModule>& moved = options.layer.offload_modules;
  std::int64_t& num_layers = options.pipeline.cpu_offloading_num_layers;
  const Names<int> types = {{"fine-grained-activation", 0}, {"layer-cpu-offload", 1}};
  const auto type = choice(*in, "type", types);
  moved = modules(*in, "modules", offload_module_names());
  num_layers = in->integer_or("num_layers", 0, 0, 10000);
  if (type == 1) {
    if (num_layers == 0) refuse(*in, "num_layers", "expected at least 1 with type = layer-cpu-offload");
    moved = moved | costmodel::OffloadModule::kLayer;
  } else if (num_layers > 0) {
    refuse(*in, "num_layers", fmt::format("{} needs type = layer-cpu-offload", num_layers));
  }
  if (type == 0 && moved.empty())
    refuse(*in, "modules", "expected the modules that type = fine-grained-activation offloads");
  if (const auto weights = in->boolean("weights"); weights.value_or(false))
    refuse(*in, "weights", "offloading of weights is not modelled");

  const auto optimizer = in->boolean("optimizer_cpu_offload");
  const auto fraction = in->number("fraction", 0.0, 1.0);
  const auto overlap = in->boolean("overlap_d2h_h2d");
  if (optimizer.value_or(false)) {
    options.step.offload.optimizer_fraction = fraction.value_or(1.0);
    options.step.offload.overlap_optimizer_copies = overlap.value_or(false);
    if (!in->has("fraction")) assume("offload.fraction", "1", "not in the file; Megatron's default");
  } else if (fraction.value_or(0.0) > 0.0) {
    refuse(*in, "fraction", fmt::format("{} contradicts optimizer_cpu_offload = false", *fraction));
  }
  in->finish();
}

void RunReader::read_overlaps() {
  costmodel::LayerOptions::Overlaps& layer = run_.options.layer.overlaps;
  costmodel::PipelineOptions::Overlaps& pipeline = run_.options.pipeline.overlaps;
  costmodel::StepOptions::Overlaps& step = run_.options.step.overlaps;
  auto in = in_.object("overlaps");
  if (!in && in_.has("overlaps")) return;  // Mistyped and reported.
  const auto read = [&](std::string_view key, bool& value, std::string_view why, bool say) {
    const auto given = in ? in->boolean(key) : std::nullopt;
    if (given) value = *given;
    if (!given && say && !(in && in->has(key))) assume(fmt::format("overlaps.{}", key), text_of(value), why);
  };
  const bool moe = run_.model.has_moe();
  layer.tp = !moe && run_.options.layer.sequence_parallel();
  read("tp", layer.tp, moe ? "not in the file; Megatron's default" : "not in the file; on in recipes of dense models",
       run_.options.layer.tp > 1);
  if (layer.tp && run_.options.layer.tp == 1) {
    layer.tp = false;
    assume("overlaps.tp", "false", "there is nothing to overlap at tp = 1");
  }
  read("dp_grad", step.dp_grad, "not in the file; on in recipes with data parallelism", run_.options.step.dp > 1);
  step.dp_param = step.dp_grad;  // Megatron refuses the gather's overlap without the reduction's.
  read("dp_param", step.dp_param, "not in the file; on in recipes with data parallelism", run_.options.step.dp > 1);
  read("ep_a2a", pipeline.ep_a2a, "not in the file; Megatron's default", moe && run_.options.layer.ep > 1);
  read("delay_wgrad", pipeline.delay_wgrad, "", false);
  read("shared_expert", layer.shared_expert, "not in the file; Megatron's default",
       moe && run_.model.moe.shared_ffn_hidden_size > 0);
  read("param_gather_with_optimizer_step", step.param_gather_with_optimizer_step, "", false);
  if (!in) return;
  in->ignore({"pp_p2p"});  // Follows from vpp in Megatron.
  in->finish();
}

void RunReader::read_cuda_graph() {
  using costmodel::GraphImpl;
  auto in = in_.object("cuda_graph");
  if (!in) {
    if (!in_.has("cuda_graph")) assume("cuda_graph", "none", "not in the file; Megatron's default");
    return;
  }
  costmodel::CudaGraph& graph = run_.options.layer.cuda_graph;
  const auto impl = choice(*in, "impl", graph_impl_names());
  graph.impl = impl.value_or(GraphImpl::kNone);
  std::vector<std::string> scope = in->strings("scope").value_or(std::vector<std::string>{});
  // Older releases spell the whole iteration and the whole layer as scopes.
  const auto taken = [&](const char* word) { return std::erase(scope, word) > 0; };
  if (taken("full_iteration") && graph.impl != GraphImpl::kNone) graph.impl = GraphImpl::kFullIteration;
  taken("full");
  for (const std::string& text : scope)
    if (const auto module = value_of(*in, "scope", text, graph_module_names()))
      graph.modules.bits = static_cast<std::uint16_t>(graph.modules.bits | static_cast<std::uint16_t>(*module));
  if (!graph.modules.empty() && (graph.impl == GraphImpl::kNone || graph.impl == GraphImpl::kFullIteration)) {
    if (impl) refuse(*in, "scope", fmt::format("a list of modules contradicts impl = {}", name_of(graph.impl)));
    graph.modules = {};
  }
  in->finish();
}

void RunReader::read_optimizer() {
  using costmodel::DataType;
  costmodel::Optimizer& optimizer = run_.options.step.optimizer;
  auto in = in_.object("optimizer");
  const auto top_level_gather = in_.boolean("fp8_param_gather");
  std::optional<bool> gather = top_level_gather, reduce_fp32;
  if (in) {
    if (const auto kind = choice(*in, "name", optimizer_names())) optimizer.kind = *kind;
    optimizer.precision_aware = in->boolean_or("precision_aware", false);
    optimizer.reuse_grad_buffer = in->boolean_or("reuse_grad_buffer", true);
    const auto state = [&](std::string_view key, DataType& value) {
      const auto type = choice(*in, key, data_type_names());
      if (!type) return;
      value = *type;
      if (value != DataType::kFp32 && !optimizer.precision_aware)
        refuse(*in, key,
               fmt::format("{} contradicts precision_aware = {}", name_of(value),
                           in->has("precision_aware") ? "false" : "false (its default)"));
    };
    state("exp_avg_dtype", optimizer.exp_avg);
    state("exp_avg_sq_dtype", optimizer.exp_avg_sq);
    state("main_params_dtype", optimizer.main_params);
    state("main_grads_dtype", optimizer.main_grads);
    reduce_fp32 = in->boolean("grad_reduce_in_fp32");
    const auto fp8 = in->boolean("fp8_param_gather");
    const auto fp4 = in->boolean("fp4_param_gather");
    if (fp8 || fp4) gather = fp8.value_or(false) || fp4.value_or(false);
    in->finish();
  } else if (in_.has("optimizer")) {
    return;  // Mistyped and reported.
  } else {
    assume("optimizer", "adam, states in fp32", "not in the file; Megatron's default");
  }
  const bool quantized = run_.options.layer.precision != costmodel::Precision::kBf16;
  // Every published Bridge recipe of the per-tensor and MXFP8 precisions gathers quantized parameters.
  const bool bridge_gathers = bridge_ && (run_.options.layer.precision == costmodel::Precision::kFp8Current ||
                                          run_.options.layer.precision == costmodel::Precision::kFp8Delayed ||
                                          run_.options.layer.precision == costmodel::Precision::kMxfp8);
  optimizer.low_precision_param_gather = gather.value_or(bridge_gathers);
  if (!gather && quantized)
    assume("optimizer.fp8_param_gather", text_of(optimizer.low_precision_param_gather),
           bridge_ ? "not in the file; Megatron-Bridge's recipes of this precision"
                   : "not in the file; Megatron's default");
  run_.options.layer.grad_reduce_in_fp32 = reduce_fp32.value_or(!bridge_);
  if (!reduce_fp32)
    assume("optimizer.grad_reduce_in_fp32", text_of(run_.options.layer.grad_reduce_in_fp32),
           bridge_ ? "not in the file; Megatron-Bridge's performance recipes" : "not in the file; Megatron's default");
}

void RunReader::read_software() {
  costmodel::Software& software = run_.options.layer.software;
  const bool moe = run_.model.has_moe();
  auto in = in_.object("software");
  const auto text = [&](std::string_view key) { return in ? in->string(key) : std::nullopt; };
  const auto flag = [&](std::string_view key) { return in ? in->boolean(key) : std::nullopt; };
  if (in) {
    const Names<bool> impls = {{"transformer_engine", true}, {"local", false}};
    software.transformer_engine = choice(*in, "transformer_impl", impls).value_or(true);
  } else if (!in_.has("software")) {
    assume("software", "Transformer Engine layers, fused attention, grouped GEMM", "not in the file");
  }
  if (const auto attention = text("attention")) software.fused_attention = !starts_with(*attention, "unfused");
  if (const auto experts = text("experts")) {
    software.grouped_gemm = !starts_with(*experts, "sequential");
    software.fused_grouped_mlp = starts_with(*experts, "fused");
  } else {
    software.fused_grouped_mlp = extras_.fused_grouped_mlp.value_or(false);
  }
  if (const auto permute = text("permute"))
    software.fused_permute = !starts_with(*permute, "unfused");
  else if (extras_.permute_fusion)
    software.fused_permute = *extras_.permute_fusion;
  else if (moe && !(in && in->has("permute"))) {
    software.fused_permute = recipes_;
    assume("software.permute", software.fused_permute ? "fused" : "unfused",
           software.fused_permute ? "not in the file; recipes fuse it" : "not in the file; Megatron's default");
  }
  software.fused_router = flag("router_fusion").value_or(extras_.router_fusion.value_or(false));
  if (const auto loss = text("cross_entropy")) {
    software.cross_entropy = starts_with(*loss, "TE")        ? costmodel::CrossEntropy::kTransformerEngine
                             : starts_with(*loss, "unfused") ? costmodel::CrossEntropy::kUnfused
                             : *loss == kTorchLoss           ? costmodel::CrossEntropy::kTorch
                                                             : costmodel::CrossEntropy::kNative;
  } else if (titan_) {
    software.cross_entropy = costmodel::CrossEntropy::kTorch;
    assume("software.cross_entropy", kTorchLoss, "TorchTitan's loss casts the logits to fp32");
  } else if (!(in && in->has("cross_entropy"))) {  // Otherwise mistyped, and reported.
    if (contains(in_.string("notes").value_or(""), "fused CE")) {
      assume("software.cross_entropy", "TE", "fused, say the notes; Transformer Engine's as in recipes");
    } else if (recipes_) {
      assume("software.cross_entropy", "TE", "not in the file; recipes set it");
    } else {
      software.cross_entropy = costmodel::CrossEntropy::kUnfused;
      assume("software.cross_entropy", "unfused", "not in the file; Megatron's default");
    }
  }
  software.gradient_accumulation_fusion = flag("wgrad_accumulation_fusion").value_or(software.transformer_engine);
  if (const auto dtype = text("router_dtype")) software.router_fp32 = *dtype == "fp32" || *dtype == "fp64";
  // core_v0.16 casts the operands of an fp32 router where it finds no get_workspace in Transformer Engine, which has
  // had none since 2.10 (te_general_gemm in megatron/core/extensions/transformer_engine.py).
  if (const auto framework = text("framework"))
    software.router_fp32_operands = software.router_fp32 && framework->find("core_v0.16") != std::string::npos;
  if (const auto operands = text("router_operands")) software.router_fp32_operands = *operands == "fp32";
  if (in)
    finish_open(*in, {"framework",
                      "transformer_impl",
                      "transformer_engine",
                      "torch",
                      "nccl",
                      "cudnn",
                      "attention",
                      "experts",
                      "norm",
                      "rope",
                      "permute",
                      "router_fusion",
                      "swiglu",
                      "bias_dropout_add",
                      "cross_entropy",
                      "wgrad_accumulation_fusion",
                      "router_dtype",
                      "router_operands",
                      "optimizer_kernel",
                      "nan_check",
                      "cuda_device_max_connections"});
}

/// Keys that say something to people, and nothing that the cost model needs.
void RunReader::ignore_documentation() {
  in_.ignore({"notes", "quality", "derived", "flops_convention", "host", "num_layers_truncated",
              "force_balanced_routing", "router_padding_for_fp8"});
  in_.ignore_prefix('_');
}

}  // namespace

Run read_run(ObjectReader& reader, Diagnostics& diagnostics) {
  Catalog catalog;
  return RunReader(reader, diagnostics, catalog).read();
}

Run load_run(const std::string& path) {
  const Document document = Document::load(path);
  Diagnostics diagnostics;
  if (document.root().is_array()) {
    diagnostics.error({path, 1, ""}, fmt::format("expected one run object, found a list of {}; validate reads lists",
                                                 document.root().size()));
    diagnostics.throw_if_any();
  }
  ObjectReader reader(document, diagnostics);
  Run run;
  if (diagnostics.ok()) run = read_run(reader, diagnostics);
  diagnostics.throw_if_any();
  return run;
}

RunList load_runs(const std::string& path) {
  const Document document = Document::load(path);
  Diagnostics form;
  Catalog catalog;
  RunList list;
  const auto add = [&](const json& row, const std::string& pointer) {
    ObjectReader reader(document, row, pointer, form);
    if (!row.is_object()) return;
    Diagnostics content;
    Run run = RunReader(reader, content, catalog).read();
    if (content.ok()) {
      list.runs.push_back(std::move(run));
      return;
    }
    std::string reason;
    for (const Diagnostic& diagnostic : content.list()) {
      if (!reason.empty()) reason += "; ";
      Diagnostic here = diagnostic;  // Its file is the one that the user named; its line is enough.
      if (here.where.file == path) here.where.file.clear();
      reason += here.text();
    }
    list.unreadable.push_back({run.id.empty() ? fmt::format("{}:{}", path, run.line) : run.id, reason});
  };
  const json& root = document.root();
  if (root.is_array())
    for (std::size_t i = 0; i < root.size(); ++i) add(root[i], fmt::format("/{}", i));
  else
    add(root, "");
  form.throw_if_any();
  return list;
}

json write_run(const std::string& model, const std::string& system, std::int64_t num_gpus,
               const TrainingOptions& options) {
  using costmodel::RecomputeGranularity;
  const costmodel::Layout layout = options.layout();
  json run = {
      {"model", model},
      {"task", options.layer.lora ? "lora" : "pretrain"},
      {"system", system},
      {"num_gpus", num_gpus},
      {"precision", name_of(options.layer.precision)},
      {"fp8_attention", options.layer.fp8_attention},
      {"global_batch", options.pipeline.global_batch},
      {"micro_batch", options.layer.micro_batch},
      {"seq_len", options.layer.seq_len},
      {"tp", layout.tp},
      {"cp", layout.cp},
      {"dp", layout.dp},
      {"pp", layout.pp},
      {"vpp", layout.vpp},
      {"ep", layout.ep},
      {"etp", layout.etp},
      {"sharding", name_of(options.step.sharding)},
      {"fsdp_group", options.step.fsdp_group},
      {"fsdp_outer_optim", options.step.fsdp_outer_optim},
      {"num_distributed_optimizer_instances", options.step.optimizer_instances},
      {"ddp_pad_buckets_for_high_nccl_busbw", options.step.pad_buckets_for_high_nccl_busbw},
      {"cp_comm_type", name_of(options.layer.cp_comm)},
      {"hierarchical_context_parallel_sizes",
       options.layer.cp_a2a_size > 0 ? json{options.layer.cp_a2a_size, layout.cp / options.layer.cp_a2a_size}
                                     : json(nullptr)},
      {"dispatcher", name_of(options.layer.dispatcher)},
      {"schedule", name_of(options.pipeline.schedule)},
      {"microbatch_group_size", options.pipeline.microbatch_group_size},
      {"capacity_factor", options.layer.capacity_factor ? json(*options.layer.capacity_factor) : json(nullptr)},
      {"pad_to_capacity", options.layer.pad_to_capacity},
      {"expert_load", options.layer.expert_load},
      {"pipeline_layout", options.pipeline.layout.empty() ? json(nullptr) : json(options.pipeline.layout)},
  };

  json recompute = {{"granularity", name_of(options.layer.recompute.granularity)}};
  if (options.layer.recompute.granularity == RecomputeGranularity::kSelective)
    recompute["modules"] = names_of(options.layer.recompute.modules);
  if (options.layer.recompute.granularity == RecomputeGranularity::kFull) {
    recompute["method"] = name_of(options.pipeline.recompute.method);
    recompute["num_layers"] = options.pipeline.recompute.num_layers;
  }
  run["recompute"] = std::move(recompute);

  json offload = json::object();
  if (!options.layer.offload_modules.empty()) {
    const bool layers = options.layer.offload_modules.contains(costmodel::OffloadModule::kLayer);
    offload["type"] = layers ? "layer-cpu-offload" : "fine-grained-activation";
    offload["modules"] = names_of(options.layer.offload_modules);
    if (layers) offload["num_layers"] = options.pipeline.cpu_offloading_num_layers;
  }
  if (options.step.offload.optimizer_fraction > 0.0) {
    offload["optimizer_cpu_offload"] = true;
    offload["fraction"] = options.step.offload.optimizer_fraction;
    offload["overlap_d2h_h2d"] = options.step.offload.overlap_optimizer_copies;
  }
  run["offload"] = std::move(offload);
  if (options.layer.lora)
    run["lora"] = {{"dim", options.layer.lora_dim}, {"target_modules", names_of(options.layer.lora_modules)}};

  run["overlaps"] = {{"tp", options.layer.overlaps.tp},
                     {"dp_grad", options.step.overlaps.dp_grad},
                     {"dp_param", options.step.overlaps.dp_param},
                     {"ep_a2a", options.pipeline.overlaps.ep_a2a},
                     {"delay_wgrad", options.pipeline.overlaps.delay_wgrad},
                     {"shared_expert", options.layer.overlaps.shared_expert},
                     {"param_gather_with_optimizer_step", options.step.overlaps.param_gather_with_optimizer_step}};
  run["cuda_graph"] = {{"impl", name_of(options.layer.cuda_graph.impl)},
                       {"scope", names_of(options.layer.cuda_graph.modules)}};
  const costmodel::Optimizer& optimizer = options.step.optimizer;
  run["optimizer"] = {{"name", name_of(optimizer.kind)},
                      {"precision_aware", optimizer.precision_aware},
                      {"exp_avg_dtype", name_of(optimizer.exp_avg)},
                      {"exp_avg_sq_dtype", name_of(optimizer.exp_avg_sq)},
                      {"main_params_dtype", name_of(optimizer.main_params)},
                      {"main_grads_dtype", name_of(optimizer.main_grads)},
                      {"grad_reduce_in_fp32", options.layer.grad_reduce_in_fp32},
                      {"fp8_param_gather", optimizer.low_precision_param_gather},
                      {"reuse_grad_buffer", optimizer.reuse_grad_buffer}};
  const costmodel::Software& software = options.layer.software;
  run["software"] = {{"transformer_impl", software.transformer_engine ? "transformer_engine" : "local"},
                     {"attention", software.fused_attention ? "fused" : "unfused"},
                     {"experts", !software.grouped_gemm       ? "sequential MLP per expert"
                                 : software.fused_grouped_mlp ? "fused grouped MLP"
                                                              : "grouped GEMM"},
                     {"permute", software.fused_permute ? "fused" : "unfused"},
                     {"router_fusion", software.fused_router},
                     {"cross_entropy", software.cross_entropy == costmodel::CrossEntropy::kTransformerEngine ? "TE"
                                       : software.cross_entropy == costmodel::CrossEntropy::kUnfused         ? "unfused"
                                       : software.cross_entropy == costmodel::CrossEntropy::kTorch ? kTorchLoss
                                                                                                   : "native"},
                     {"wgrad_accumulation_fusion", software.gradient_accumulation_fusion},
                     {"router_dtype", software.router_fp32 ? "fp32" : "bf16"},
                     {"router_operands", software.router_fp32_operands ? "fp32" : "bf16"}};
  return run;
}

json write_run(const Run& run) {
  json result = write_run(run.model_name, run.system_name, run.num_gpus, run.options);
  if (!run.id.empty()) result["id"] = run.id;
  result["task"] = run.task;
  result["mtp"] = run.model.mtp_num_layers;
  const auto overrides = run.json.find("model_overrides");
  if (overrides != run.json.end() && overrides->is_object() && !overrides->empty())
    result["model_overrides"] = *overrides;
  return result;
}

}  // namespace foldwise::planner
