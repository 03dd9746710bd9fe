#pragma once
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/hardware/hardware.h"
#include "costmodel/parallel/options.h"

// Spellings of a run's choices in run files, messages and tables. There is one table per enumeration. The first
// spelling of a value is written; later ones are only read.
namespace foldwise::planner {

template <typename Enum>
using Names = std::vector<std::pair<std::string, Enum>>;

/// The spelling of `value`. Throws std::logic_error if it has none, which is our bug.
template <typename Enum>
[[nodiscard]] std::string name_in(const Names<Enum>& names, Enum value) {
  for (const auto& [name, known] : names)
    if (known == value) return name;
  throw std::logic_error("a value without a name");
}
/// The spellings of `values`, in the order of the table.
template <typename Enum>
[[nodiscard]] std::vector<std::string> names_in(const Names<Enum>& names, costmodel::BitSet<Enum> values) {
  std::vector<std::string> list;
  for (const auto& [name, value] : names)
    if (values.contains(value) && name == name_in(names, value)) list.push_back(name);
  return list;
}

[[nodiscard]] const Names<costmodel::Precision>& precision_names();
[[nodiscard]] const Names<costmodel::Dispatcher>& dispatcher_names();
[[nodiscard]] const Names<costmodel::CpComm>& cp_comm_names();
[[nodiscard]] const Names<costmodel::Sharding>& sharding_names();
[[nodiscard]] const Names<costmodel::Schedule>& schedule_names();
[[nodiscard]] const Names<costmodel::RecomputeGranularity>& granularity_names();
[[nodiscard]] const Names<costmodel::RecomputeMethod>& method_names();
[[nodiscard]] const Names<costmodel::RecomputeModule>& recompute_module_names();
[[nodiscard]] const Names<costmodel::OffloadModule>& offload_module_names();
[[nodiscard]] const Names<costmodel::GraphImpl>& graph_impl_names();
[[nodiscard]] const Names<costmodel::GraphModule>& graph_module_names();
[[nodiscard]] const Names<costmodel::LoraModule>& lora_module_names();
[[nodiscard]] const Names<costmodel::OptimizerKind>& optimizer_names();
[[nodiscard]] const Names<costmodel::DataType>& data_type_names();

[[nodiscard]] std::string name_of(costmodel::Precision value);
[[nodiscard]] std::string name_of(costmodel::Dispatcher value);
[[nodiscard]] std::string name_of(costmodel::CpComm value);
[[nodiscard]] std::string name_of(costmodel::Sharding value);
[[nodiscard]] std::string name_of(costmodel::Schedule value);
[[nodiscard]] std::string name_of(costmodel::RecomputeGranularity value);
[[nodiscard]] std::string name_of(costmodel::RecomputeMethod value);
[[nodiscard]] std::string name_of(costmodel::GraphImpl value);
[[nodiscard]] std::string name_of(costmodel::OptimizerKind value);
[[nodiscard]] std::string name_of(costmodel::DataType value);

[[nodiscard]] std::vector<std::string> names_of(costmodel::BitSet<costmodel::RecomputeModule> modules);
[[nodiscard]] std::vector<std::string> names_of(costmodel::BitSet<costmodel::OffloadModule> modules);
[[nodiscard]] std::vector<std::string> names_of(costmodel::BitSet<costmodel::GraphModule> modules);
[[nodiscard]] std::vector<std::string> names_of(costmodel::BitSet<costmodel::LoraModule> modules);

/// What is recomputed, for a table cell: "none", "full (uniform, 1)", "moe_act mla_up_proj".
[[nodiscard]] std::string text_of(const costmodel::Recompute& recompute);

}  // namespace foldwise::planner
