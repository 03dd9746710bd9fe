#include "planner/run/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "costmodel/check.h"
#include "costmodel/ops/dispatcher.h"

namespace foldwise::planner {

using namespace costmodel;  // NOLINT(google-build-using-namespace): this file is a table of its names.

const Names<Precision>& precision_names() {
  static const Names<Precision> names = {{"bf16", Precision::kBf16},
                                         {"fp8-delayed", Precision::kFp8Delayed},
                                         {"fp8-current", Precision::kFp8Current},
                                         {"fp8-blockwise", Precision::kFp8Blockwise},
                                         {"mxfp8", Precision::kMxfp8},
                                         {"nvfp4", Precision::kNvfp4},
                                         {"fp16", Precision::kFp16}};
  return names;
}

const Names<Dispatcher>& dispatcher_names() {
  static const Names<Dispatcher> names = [] {
    Names<Dispatcher> all;
    for (const DispatcherSpec& spec : dispatcher_specs())
      all.emplace_back(spec.name, static_cast<Dispatcher>(all.size()));
    return all;
  }();
  return names;
}

const Names<CpComm>& cp_comm_names() {
  static const Names<CpComm> names = {{"p2p", CpComm::kP2p},
                                      {"all_gather", CpComm::kAllGather},
                                      {"a2a", CpComm::kA2a},
                                      {"a2a+p2p", CpComm::kA2aP2p},
                                      {"allgather", CpComm::kAllGather}};
  return names;
}

const Names<Sharding>& sharding_names() {
  static const Names<Sharding> names = {{"ddp", Sharding::kDdp},
                                        {"ddp-distopt", Sharding::kDdpDistributedOptimizer},
                                        {"fsdp", Sharding::kFsdp},
                                        {"fsdp-optim", Sharding::kFsdpOptim},
                                        {"fsdp-optim-grads", Sharding::kFsdpOptimGrads},
                                        {"zero1", Sharding::kDdpDistributedOptimizer}};
  return names;
}

const Names<Schedule>& schedule_names() {
  static const Names<Schedule> names = {{"1f1b", Schedule::kOneF1B},       {"gpipe", Schedule::kGpipe},
                                        {"zb-h1", Schedule::kZbH1},        {"zb-v", Schedule::kZbV},
                                        {"dualpipe", Schedule::kDualPipe}, {"dualpipe-v", Schedule::kDualPipeV}};
  return names;
}

const Names<RecomputeGranularity>& granularity_names() {
  static const Names<RecomputeGranularity> names = {{"none", RecomputeGranularity::kNone},
                                                    {"selective", RecomputeGranularity::kSelective},
                                                    {"full", RecomputeGranularity::kFull}};
  return names;
}

const Names<RecomputeMethod>& method_names() {
  static const Names<RecomputeMethod> names = {{"uniform", RecomputeMethod::kUniform},
                                               {"block", RecomputeMethod::kBlock}};
  return names;
}

const Names<RecomputeModule>& recompute_module_names() {
  static const Names<RecomputeModule> names = {{"core_attn", RecomputeModule::kCoreAttn},
                                               {"moe_act", RecomputeModule::kMoeAct},
                                               {"layernorm", RecomputeModule::kLayerNorm},
                                               {"mla_up_proj", RecomputeModule::kMlaUpProj},
                                               {"mlp", RecomputeModule::kMlp},
                                               {"moe", RecomputeModule::kMoe},
                                               {"shared_experts", RecomputeModule::kSharedExperts},
                                               {"alternate_matmuls", RecomputeModule::kAlternateMatmuls}};
  return names;
}

const Names<OffloadModule>& offload_module_names() {
  static const Names<OffloadModule> names = {
      {"attn_norm", OffloadModule::kAttnNorm}, {"qkv_linear", OffloadModule::kQkvLinear},
      {"core_attn", OffloadModule::kCoreAttn}, {"attn_proj", OffloadModule::kAttnProj},
      {"mlp_norm", OffloadModule::kMlpNorm},   {"expert_fc1", OffloadModule::kExpertFc1},
      {"moe_act", OffloadModule::kMoeAct},     {"fused_group_mlp", OffloadModule::kFusedGroupMlp}};
  return names;
}

const Names<GraphImpl>& graph_impl_names() {
  static const Names<GraphImpl> names = {{"none", GraphImpl::kNone},
                                         {"local", GraphImpl::kLocal},
                                         {"transformer_engine", GraphImpl::kTransformerEngine},
                                         {"full_iteration", GraphImpl::kFullIteration},
                                         {"local (enable_cuda_graph)", GraphImpl::kLocal}};
  return names;
}

const Names<GraphModule>& graph_module_names() {
  static const Names<GraphModule> names = {{"attn", GraphModule::kAttn},
                                           {"mlp", GraphModule::kMlp},
                                           {"moe", GraphModule::kMoe},
                                           {"moe_router", GraphModule::kMoeRouter},
                                           {"moe_preprocess", GraphModule::kMoePreprocess},
                                           {"mamba", GraphModule::kMamba}};
  return names;
}

const Names<LoraModule>& lora_module_names() {
  static const Names<LoraModule> names = {{"linear_qkv", LoraModule::kLinearQkv},
                                          {"linear_proj", LoraModule::kLinearProj},
                                          {"linear_fc1", LoraModule::kLinearFc1},
                                          {"linear_fc2", LoraModule::kLinearFc2}};
  return names;
}

const Names<OptimizerKind>& optimizer_names() {
  static const Names<OptimizerKind> names = {
      {"adam", OptimizerKind::kAdam}, {"muon", OptimizerKind::kMuon}, {"sgd", OptimizerKind::kSgd}};
  return names;
}

const Names<DataType>& data_type_names() {
  static const Names<DataType> names = {{"fp32", DataType::kFp32},
                                        {"fp16", DataType::kFp16},
                                        {"bf16", DataType::kBf16},
                                        {"fp8", DataType::kFp8},
                                        {"fp32 (precision-aware off)", DataType::kFp32},
                                        {"torch.float32", DataType::kFp32},
                                        {"torch.float16", DataType::kFp16},
                                        {"torch.bfloat16", DataType::kBf16},
                                        {"torch.uint8", DataType::kFp8}};
  return names;
}

std::string name_of(Precision value) { return name_in(precision_names(), value); }
std::string name_of(Dispatcher value) { return name_in(dispatcher_names(), value); }
std::string name_of(CpComm value) { return name_in(cp_comm_names(), value); }
std::string name_of(Sharding value) { return name_in(sharding_names(), value); }
std::string name_of(Schedule value) { return name_in(schedule_names(), value); }
std::string name_of(RecomputeGranularity value) { return name_in(granularity_names(), value); }
std::string name_of(RecomputeMethod value) { return name_in(method_names(), value); }
std::string name_of(GraphImpl value) { return name_in(graph_impl_names(), value); }
std::string name_of(OptimizerKind value) { return name_in(optimizer_names(), value); }
std::string name_of(DataType value) { return name_in(data_type_names(), value); }

std::vector<std::string> names_of(BitSet<RecomputeModule> modules) {
  return names_in(recompute_module_names(), modules);
}
std::vector<std::string> names_of(BitSet<OffloadModule> modules) { return names_in(offload_module_names(), modules); }
std::vector<std::string> names_of(BitSet<GraphModule> modules) { return names_in(graph_module_names(), modules); }
std::vector<std::string> names_of(BitSet<LoraModule> modules) { return names_in(lora_module_names(), modules); }

std::string text_of(const Recompute& recompute) {
  switch (recompute.granularity) {
    case RecomputeGranularity::kNone:
      return "none";
    case RecomputeGranularity::kSelective:
      return fmt::format("{}", fmt::join(names_of(recompute.modules), " "));
    case RecomputeGranularity::kFull:
      return fmt::format("full ({}, {})", name_of(recompute.method), recompute.num_layers);
  }
  FW_CHECK(false, "an unknown granularity");
  return {};
}

}  // namespace foldwise::planner
