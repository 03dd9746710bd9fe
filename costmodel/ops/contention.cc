#include "costmodel/ops/contention.h"

#include <algorithm>
#include <variant>

namespace foldwise::costmodel {

void ComputeSum::add(const Op& op, Seconds op_time) {
  time += op_time;
  const auto* gemm = std::get_if<GemmWork>(&op.work);
  if (gemm != nullptr || std::holds_alternative<AttentionWork>(op.work)) products += op_time;
  const double kernels = gemm != nullptr ? static_cast<double>(gemm->groups) : std::max(1.0, double(op.launches));
  squares += op_time.to<double>() * op_time.to<double>() / kernels;
}

ComputeSum& ComputeSum::operator+=(const ComputeSum& other) {
  time += other.time;
  products += other.products;
  squares += other.squares;
  return *this;
}

ComputeSum ComputeSum::stretch(Seconds length) const {
  if (time <= Seconds{}) return {.time = length, .products = length};
  const auto share = (length / time).to<double>();
  return {.time = length, .products = share * products, .squares = share * squares};
}

void CommunicationSum::add(const Op& op, Seconds op_time, const Hardware& hardware) {
  if (op_time <= Seconds{}) return;
  const LinkBytes bytes = link_bytes(op);
  const CollectiveCurve& gather = hardware.network.nvlink[static_cast<std::size_t>(CollectiveKind::kAllGather)];
  const Seconds full = std::min(op_time, (bytes.nvlink + bytes.nic) / gather.bulk.bandwidth);
  time += op_time;
  full_rate += full;
  // NCCL takes channels, and with them SMs, as it needs bandwidth; a fused exchange takes those it is given.
  const double sms = exchange_sms(op, hardware.network);
  sm_time +=
      sms > 0.0 ? sms / static_cast<double>(hardware.sms) * op_time : (1.0 - hardware.contention.gemm.compute) * full;
}

CommunicationSum& CommunicationSum::operator+=(const CommunicationSum& other) {
  time += other.time;
  full_rate += other.full_rate;
  sm_time += other.sm_time;
  return *this;
}

CommunicationSum CommunicationSum::scaled(double share) const {
  return {.time = share * time, .full_rate = share * full_rate, .sm_time = share * sm_time};
}

SharedPace shared_pace(const ComputeSum& compute, const CommunicationSum& communication, double starts,
                       const Hardware& hardware) {
  if (compute.time <= Seconds{} || communication.time <= Seconds{}) return {};
  const Contention& rates = hardware.contention;
  const auto share = [](Seconds part, Seconds whole) { return (part / whole).to<double>(); };
  const double bytes = share(communication.full_rate, communication.time);
  const double products = share(compute.products, compute.time);
  // Seconds that a second of this compute takes beside the communication, by what limits it.
  const double in_products = products / (1.0 - share(communication.sm_time, communication.time)),
               in_memory = (1.0 - products) / (1.0 - bytes * (1.0 - rates.memory.compute));
  // What slows a transfer down caps its bytes per second: a transfer that its NIC limits anyway stays below the cap.
  const auto kept = [bytes](double at_full_rate) { return bytes > at_full_rate ? at_full_rate / bytes : 1.0; };
  const double both = in_products + in_memory;
  return {
      .compute = 1.0 / both,
      .communication = (in_products * kept(rates.gemm.collective) + in_memory * kept(rates.memory.collective)) / both,
      .wait = starts * rates.start_wait * Seconds{compute.squares} / compute.time.to<double>()};
}

SideBySide side_by_side(Seconds compute, Seconds communication, const SharedPace& pace) {
  const Seconds beside = std::max(Seconds{}, compute - pace.wait);
  const Seconds shared = std::min(communication / pace.communication, beside / pace.compute);
  return {.compute = compute + (1.0 - pace.compute) * shared, .exposed = communication - pace.communication * shared};
}

SideBySide side_by_side(const ComputeSum& compute, const CommunicationSum& communication, double starts,
                        const Hardware& hardware) {
  return side_by_side(compute.time, communication.time, shared_pace(compute, communication, starts, hardware));
}

}  // namespace foldwise::costmodel
