#include "planner/run/derive.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "costmodel/pipeline/schedule.h"
#include "planner/run/fields.h"

namespace foldwise::planner {

using costmodel::TrainingOptions;

namespace {

constexpr std::string_view kFirstLayers = "decoder_first_pipeline_num_layers",
                           kLastLayers = "decoder_last_pipeline_num_layers",
                           kAccountForEmbedding = "account_for_embedding_in_pipeline_split",
                           kAccountForLoss = "account_for_loss_in_pipeline_split";

/// An option's value as text for messages.
std::string text(const Reading& reading, std::string_view key) {
  return value_text(field(key).value.get(reading.run.options));
}

void check_placement(Reading& r) {
  const costmodel::Network& network = r.run.hardware.network;
  if (r.have_system && network.domains > 0 && r.run.num_gpus > network.domains * network.ranks_per_domain)
    r.refuse("num_gpus",
             fmt::format("{} GPUs cannot be placed on {}: /network/domains = {} with /network/ranks_per_domain = {}",
                         r.run.num_gpus, r.run.system_name, network.domains, network.ranks_per_domain));
}

void check_parallelism(Reading& r) {
  const TrainingOptions& o = r.run.options;
  if (o.step.fsdp_group > 0 && !is_fsdp(o.step.sharding))
    r.refuse("fsdp_group", fmt::format("{} contradicts sharding = {}", o.step.fsdp_group, text(r, "sharding")));
  if (const auto& sizes = r.hierarchical_sizes) {
    if (o.layer.cp_comm != costmodel::CpComm::kA2aP2p)
      r.refuse("hierarchical_context_parallel_sizes",
               fmt::format("contradicts cp_comm_type = {}", text(r, "cp_comm_type")));
    else if (sizes->size() != 2 || (*sizes)[0] * (*sizes)[1] != o.layer.cp)
      r.refuse(
          "hierarchical_context_parallel_sizes",
          fmt::format("expected the ranks of the all-to-all and of the ring, whose product is cp = {}", o.layer.cp));
    else
      r.run.options.layer.cp_a2a_size = (*sizes)[0];
  }
}

void derive_batch(Reading& r) {
  TrainingOptions& o = r.run.options;
  if (!r.states("seq_len")) r.refuse("seq_len", "expected a whole number, found nothing");
  if (r.states("global_batch")) return;
  // Megatron's default is a step of one micro-batch. Nobody measures such a step, and the step time depends on the
  // batch.
  o.pipeline.global_batch = o.layer.micro_batch * o.step.dp;
  if (r.states("measured"))
    r.refuse("global_batch", "expected a whole number, found nothing: a measured run needs it");
  else
    r.assume("global_batch", fmt::format("{}", o.pipeline.global_batch),
             "not in the file; Megatron's default: micro_batch x dp");
}

/// Multi-token prediction is part of the model, but runs of one model differ in it.
void derive_mtp(Reading& r) {
  costmodel::ModelSpec& model = r.run.model;
  const std::string& layout = r.run.options.pipeline.layout;
  if (!r.have_model) return;
  if (r.mtp) {
    model.mtp_num_layers = *r.mtp;
  } else if (r.mtp_is_on) {
    model.mtp_num_layers = *r.mtp_is_on ? std::max<std::int64_t>(1, model.mtp_num_layers) : 0;
  } else if (model.mtp_num_layers > 0) {
    if (excludes_mtp(model)) {
      model.mtp_num_layers = 0;
      r.assume("mtp", "0", "not in the file; Megatron's hyper-connections exclude it");
    } else if (!layout.empty() && layout.find('m') == std::string::npos) {
      model.mtp_num_layers = 0;
      r.assume("mtp", "0", "not in the file; pipeline_layout has no m");
    } else {
      r.assume("mtp", fmt::format("{}", model.mtp_num_layers), "not in the file; the model's depth");
    }
  }
  if (r.mtp_use_repeated_layer) model.mtp_use_repeated_layer = *r.mtp_use_repeated_layer;
  set_mtp_depth(model, model.mtp_num_layers);
}

void check_experts(Reading& r) {
  TrainingOptions& o = r.run.options;
  if (!r.run.model.has_moe() && !r.states("etp")) o.layer.etp = 1;
  if (r.have_model && !r.run.model.has_moe() && o.layer.ep > 1)
    r.refuse("ep", fmt::format("{} contradicts model = {}, which has no experts", o.layer.ep, r.run.model_name));
  if (o.layer.capacity_factor && r.states("capacity_factor") && r.token_drop && !*r.token_drop)
    r.refuse("capacity_factor", fmt::format("{} contradicts token_drop = false", *o.layer.capacity_factor));
  if (o.layer.pad_to_capacity && !o.layer.capacity_factor) r.refuse("pad_to_capacity", "true needs a capacity_factor");
}

/// Converts Megatron's other ways to name a split into a layout.
void derive_split(Reading& r) {
  costmodel::PipelineOptions& pipeline = r.run.options.pipeline;
  const bool first = r.first_layers.has_value(), last = r.last_layers.has_value();
  const bool embedding = r.account_for_embedding, loss = r.account_for_loss;
  if (!first && !last && !embedding && !loss) return;
  const std::string_view named = first       ? kFirstLayers
                                 : last      ? kLastLayers
                                 : embedding ? kAccountForEmbedding
                                             : kAccountForLoss;
  if (!pipeline.layout.empty()) return r.refuse(named, "contradicts pipeline_layout");
  if ((first || last) && (embedding || loss))
    return r.refuse(named, fmt::format("contradicts {}", embedding ? kAccountForEmbedding : kAccountForLoss));
  if (!r.have_model) return;
  const std::int64_t layers = r.run.model.num_layers(), mtp = r.run.model.mtp_num_layers;
  const std::int64_t pp = pipeline.pp, vpp = pipeline.vpp, stages = pp * vpp;
  if (!first && !last) {
    const std::int64_t places = layers + (embedding ? 1 : 0) + (loss ? 1 : 0);
    if (places % stages != 0 || stages == 1)
      return r.refuse(named, fmt::format("makes {} places of {} layers, which cannot be divided by pp x vpp = {}, or "
                                         "there is one stage",
                                         places, layers, stages));
    pipeline.layout = costmodel::to_layout_string(costmodel::even_stages(layers, mtp, pp, vpp, embedding, loss));
    return;
  }
  // If one of the two is missing, its rank counts as one between them.
  const std::int64_t between = pp - (first ? 1 : 0) - (last ? 1 : 0);
  const std::int64_t rest = layers - r.first_layers.value_or(0) - r.last_layers.value_or(0);
  if (pp == 1) return r.refuse(named, "needs pp > 1");
  for (const auto& [key, count] : {std::pair{kFirstLayers, r.first_layers}, std::pair{kLastLayers, r.last_layers}})
    if (count && *count % vpp != 0)
      return r.refuse(key, fmt::format("{} layers cannot be divided by vpp = {}", *count, vpp));
  // Megatron requires layers in between if there are ranks in between.
  if (rest < 0 || (rest == 0) != (between == 0) || (between > 0 && rest % (between * vpp) != 0))
    return r.refuse(named, fmt::format("leaves {} of {} layers, which cannot be divided by {} ranks x vpp = {}", rest,
                                       layers, between, vpp));
  const std::int64_t share = between > 0 ? rest / between : 0;
  pipeline.layout = costmodel::to_layout_string(costmodel::first_last_stages(
      layers, mtp, pp, vpp, r.first_layers.value_or(share), r.last_layers.value_or(share)));
}

/// A layout determines the number of stages, and so VPP.
void derive_stages(Reading& r) {
  costmodel::PipelineOptions& pipeline = r.run.options.pipeline;
  if (pipeline.layout.empty() || !r.have_model) return;
  const auto parsed = costmodel::parse_layout(pipeline.layout, r.run.model.num_layers(), r.run.model.mtp_num_layers);
  if (!parsed.stages) return r.refuse("pipeline_layout", parsed.error);
  const auto stages = static_cast<std::int64_t>(parsed.stages->stages.size());
  if (stages % pipeline.pp != 0)
    return r.refuse("pipeline_layout",
                    fmt::format("expected a multiple of pp = {} stages, found {}", pipeline.pp, stages));
  const std::int64_t vpp = stages / pipeline.pp;
  if (!r.vpp_follows && r.states("vpp") && !r.misread.contains("vpp") && pipeline.vpp != vpp)
    return r.refuse("vpp", fmt::format("{} contradicts pipeline_layout: {} stages over pp = {} make vpp = {}",
                                       pipeline.vpp, stages, pipeline.pp, vpp));
  pipeline.vpp = vpp;
  if (r.vpp_follows) r.assume("vpp", fmt::format("{}", vpp), "from pipeline_layout");
}

void check_recompute(Reading& r) {
  using costmodel::RecomputeGranularity;
  TrainingOptions& o = r.run.options;
  if (o.layer.recompute.granularity != RecomputeGranularity::kSelective && r.states("recompute.modules") &&
      !o.layer.recompute.modules.empty())
    r.refuse("recompute.modules",
             fmt::format("a list of modules contradicts granularity = {}", text(r, "recompute.granularity")));
  if (o.layer.recompute.granularity == RecomputeGranularity::kSelective && o.layer.recompute.modules.empty() &&
      !r.misread.contains("recompute.modules")) {
    const Field& modules = field("recompute.modules");
    modules.value.set(o, modules.megatron);
    r.assume(modules.key, value_text(modules.megatron), "an empty list in the file; Megatron's default");
  }
  if (o.layer.recompute.granularity == RecomputeGranularity::kFull && o.pipeline.recompute.num_layers == 0 &&
      o.pipeline.recompute.method == costmodel::RecomputeMethod::kBlock) {
    o.set_recompute({});
    r.assume("recompute.granularity", "none", "the first 0 layers of a chunk are none");
  }
  o.pipeline.recompute.num_layers = std::max<std::int64_t>(1, o.pipeline.recompute.num_layers);
}

void check_offload(Reading& r) {
  TrainingOptions& o = r.run.options;
  if (const auto on = r.read.find("offload.optimizer_cpu_offload"); on != r.read.end() && on->second == false)
    o.step.offload.optimizer_fraction = 0.0;
  const std::int64_t layers = o.pipeline.cpu_offloading_num_layers;
  const bool by_layer = o.layer.offload_modules.contains(costmodel::OffloadModule::kLayer);
  if (by_layer && layers == 0) r.refuse("offload.num_layers", "expected at least 1 with type = layer-cpu-offload");
  if (!by_layer && layers > 0) r.refuse("offload.num_layers", fmt::format("{} needs type = layer-cpu-offload", layers));
  if (!by_layer && r.states("offload.type") && !r.misread.contains("offload.type") && o.layer.offload_modules.empty())
    r.refuse("offload.modules", "expected the modules that type = fine-grained-activation offloads");
  const auto stated_without_type = [&](const char* key) {  // Null: nothing that was read well.
    const nlohmann::json stated = r.run.json.value("offload", nlohmann::json());
    const bool read = stated.is_object() && !stated.contains("type") && stated.contains(key) &&
                      !r.misread.contains(fmt::format("offload.{}", key));
    return read ? stated.at(key) : nlohmann::json();
  };
  if (const nlohmann::json modules = stated_without_type("modules"); modules.is_array() && !modules.empty())
    r.refuse("offload.modules", "needs type = fine-grained-activation");
  if (const nlohmann::json number = stated_without_type("num_layers"); layers == 0 && number.is_number() && number > 0)
    r.refuse("offload.num_layers", fmt::format("{} needs type = layer-cpu-offload", number.dump()));
  if (r.offload_weights.value_or(false)) r.refuse("offload.weights", "offloading of weights is not modelled");
}

void check_lora(Reading& r) {
  if (r.run.options.layer.lora && r.run.options.layer.lora_modules.empty() &&
      !r.misread.contains("lora.target_modules"))
    r.refuse("lora.target_modules", "expected at least one linear");
}

void check_graphs(Reading& r) {
  const costmodel::CudaGraph& graph = r.run.options.layer.cuda_graph;
  if (!graph.modules.empty() && !field("cuda_graph.scope").applies_to(r.run.options) && r.states("cuda_graph.impl"))
    r.refuse("cuda_graph.scope", fmt::format("a list of modules contradicts impl = {}", text(r, "cuda_graph.impl")));
}

void check_optimizer(Reading& r) {
  const costmodel::Optimizer& optimizer = r.run.options.step.optimizer;
  const std::pair<std::string_view, costmodel::DataType> states[] = {
      {"optimizer.exp_avg_dtype", optimizer.exp_avg},
      {"optimizer.exp_avg_sq_dtype", optimizer.exp_avg_sq},
      {"optimizer.main_params_dtype", optimizer.main_params},
      {"optimizer.main_grads_dtype", optimizer.main_grads}};
  for (const auto& [key, type] : states)
    if (type != costmodel::DataType::kFp32 && !optimizer.precision_aware && r.states(key))
      r.refuse(key, fmt::format("{} contradicts precision_aware = false{}", text(r, key),
                                r.states("optimizer.precision_aware") ? "" : " (its default)"));
}

}  // namespace

void Reading::assume(std::string_view key, std::string_view value, std::string_view why) {
  run.assumed.push_back(fmt::format("{} = {} ({})", key, value, why));
}

bool excludes_mtp(const costmodel::ModelSpec& model) {
  const auto* const v4 = model.find<costmodel::CompressedSpec>();
  return v4 != nullptr && v4->residual_streams > 1;
}

void set_mtp_depth(costmodel::ModelSpec& model, std::int64_t depth) {
  model.mtp_num_layers = depth;
  if (depth > 0 && model.mtp_layers.empty() && !model.layers.empty()) model.mtp_layers = {model.layers.back()};
}

void derive_sizes(Reading& r) {
  TrainingOptions& o = r.run.options;
  const std::int64_t model_parallel = o.layer.tp * o.layer.cp * o.pipeline.pp;
  const bool has_dp = r.states("dp");
  const std::string_view sizes[] = {"num_gpus", "tp", "cp", "pp", "dp"};
  const bool readable = r.states("num_gpus") && std::none_of(std::begin(sizes), std::end(sizes),
                                                             [&](auto key) { return r.misread.contains(key); });
  if (readable && has_dp &&
      (o.step.dp > r.run.num_gpus || model_parallel > r.run.num_gpus || model_parallel * o.step.dp != r.run.num_gpus))
    r.refuse("num_gpus", fmt::format("{} GPUs contradict tp x cp x pp x dp = {} x {} x {} x {} = {}", r.run.num_gpus,
                                     o.layer.tp, o.layer.cp, o.pipeline.pp, o.step.dp,
                                     static_cast<double>(model_parallel) * static_cast<double>(o.step.dp)));
  if (readable && !has_dp && r.run.num_gpus % model_parallel != 0)
    r.refuse("num_gpus", fmt::format("{} GPUs cannot be divided by tp x cp x pp = {} x {} x {} = {}", r.run.num_gpus,
                                     o.layer.tp, o.layer.cp, o.pipeline.pp, model_parallel));
  // dp follows from the other sizes, so it is not reported as an assumption.
  if (!has_dp) o.step.dp = std::max<std::int64_t>(1, r.run.num_gpus / model_parallel);
  check_placement(r);

  if (!o.pipeline.layout.empty()) r.vpp_follows = r.stated.insert("vpp").second;
  if (r.token_drop.value_or(false)) {
    if (r.stated.insert("capacity_factor").second) o.layer.capacity_factor = 1.0;
    if (r.stated.insert("pad_to_capacity").second) {
      o.layer.pad_to_capacity = true;
      r.assume("pad_to_capacity", "true", "not in the file; NeMo's and Megatron-Bridge's token_drop pads");
    }
  }
}

void derive_rest(Reading& r) {
  check_parallelism(r);
  derive_batch(r);
  derive_mtp(r);
  check_experts(r);
  derive_split(r);
  derive_stages(r);
  check_recompute(r);
  check_offload(r);
  check_lora(r);
  check_graphs(r);
  check_optimizer(r);
  const TrainingOptions before = r.run.options;
  settle(r.run.options);
  for (const Field& f : fields()) {  // Report a stated value that has no effect here.
    if (!f.value.set || !r.states(f.key)) continue;
    const nlohmann::json now = f.value.get(r.run.options);
    const auto read = r.read.find(f.key);
    if (f.value.get(before) == now && (read == r.read.end() || read->second == now)) continue;
    r.assume(f.key, value_text(now),
             f.when.empty() ? "the file's value has no effect here" : "the file's value needs that " + f.when);
  }
}

}  // namespace foldwise::planner
