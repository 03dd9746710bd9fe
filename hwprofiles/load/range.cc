#include "hwprofiles/load/range.h"

#include <fmt/core.h>

#include <cstdlib>
#include <variant>

namespace foldwise::hwprofiles {

using costmodel::AttentionWork;
using costmodel::CollectiveWork;
using costmodel::GemmWork;
using costmodel::Hardware;
using costmodel::HostCopyWork;
using costmodel::MemoryWork;
using costmodel::Op;
using costmodel::SoftwareWork;

std::string curve_of(const Op& op, const Hardware& hw) {
  if (const auto* gemm = std::get_if<GemmWork>(&op.work)) {
    for (const auto& [name, format] : math_format_names())
      if (format == gemm->format) return "/gemm/" + name;
  } else if (const auto* attention = std::get_if<AttentionWork>(&op.work)) {
    std::int64_t nearest = 0;
    for (const costmodel::AttentionCurve& row : hw.attention)
      if (nearest == 0 || std::abs(row.head_dim - attention->head_dim) < std::abs(nearest - attention->head_dim))
        nearest = row.head_dim;
    return "/attention/" + std::to_string(nearest);
  } else if (const auto* memory = std::get_if<MemoryWork>(&op.work)) {
    for (const auto& [name, kind] : memory_op_names())
      if (kind == memory->op) return "/memory/" + name;
  } else if (const auto* software = std::get_if<SoftwareWork>(&op.work)) {
    for (const auto& [name, kernel] : software_kernel_names())
      if (kernel == software->kernel) return "/software/" + name;
  } else if (const auto* collective = std::get_if<CollectiveWork>(&op.work)) {
    for (const auto& [name, kind] : collective_kind_names())
      if (kind == collective->kind) return "/network/nvlink/" + name;
  }
  return "";
}

std::map<std::string, double> properties_of(const Op& op) {
  if (const auto* gemm = std::get_if<GemmWork>(&op.work)) {
    std::map<std::string, double> properties{
        {"m", gemm->m}, {"n", static_cast<double>(gemm->n)}, {"k", static_cast<double>(gemm->k)}};
    if (gemm->groups > 1) properties["groups"] = static_cast<double>(gemm->groups);
    return properties;
  }
  if (const auto* attention = std::get_if<AttentionWork>(&op.work))
    return {{"flops", attention->flops.to<double>()}, {"query_rows", attention->query_rows}};
  if (const auto* memory = std::get_if<MemoryWork>(&op.work)) return {{"bytes", memory->bytes.to<double>()}};
  if (const auto* software = std::get_if<SoftwareWork>(&op.work)) return {{"elements", software->elements}};
  if (const auto* copy = std::get_if<HostCopyWork>(&op.work)) return {{"bytes", copy->bytes.to<double>()}};
  if (const auto* collective = std::get_if<CollectiveWork>(&op.work))
    return {{"bytes", collective->bytes.to<double>()}, {"ranks", static_cast<double>(collective->shape.ranks)}};
  return {};
}

std::string OutOfRange::text() const {
  return fmt::format("{}: {} {:.4g}, fitted to {:.4g} to {:.4g}", curve, property, value, low, high);
}

std::vector<OutOfRange> outside_of_fit(const Op& op, const Profile& profile) {
  const auto fit = profile.fits.find(curve_of(op, profile.hardware));
  if (fit == profile.fits.end()) return {};
  std::vector<OutOfRange> outside;
  for (const auto& [property, value] : properties_of(op)) {
    const auto ends = fit->second.range.find(property);
    if (ends == fit->second.range.end() || (value >= ends->second.first && value <= ends->second.second)) continue;
    outside.push_back({fit->first, property, value, ends->second.first, ends->second.second});
  }
  return outside;
}

}  // namespace foldwise::hwprofiles
