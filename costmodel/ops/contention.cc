#include "costmodel/ops/contention.h"

#include <algorithm>
#include <cmath>
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
  time += op_time;
  if (const auto* exchange = std::get_if<ExchangeWork>(&op.work)) {  // The kernel occupies a fixed number of SMs.
    const ExchangeKernel& kernel = exchange_kernel(hardware.network, exchange->dispatcher);
    sm_time += kernel.sms * op_time;
    copying += std::min(op_time, exchange_sm_time(kernel, exchange->volume));
  } else {  // NCCL opens as many channels as it needs for the bandwidth, one SM each.
    const LinkBytes bytes = link_bytes(op);
    sm_time += (bytes.nvlink + bytes.nic) / hardware.network.channel_bandwidth;
    copying += op_time;
  }
}

CommunicationSum& CommunicationSum::operator+=(const CommunicationSum& other) {
  time += other.time;
  sm_time += other.sm_time;
  copying += other.copying;
  return *this;
}

CommunicationSum CommunicationSum::scaled(double share) const {
  return {.time = share * time, .sm_time = share * sm_time, .copying = share * copying};
}

SharedPace shared_pace(const ComputeSum& compute, const CommunicationSum& communication, double starts,
                       const Hardware& hardware) {
  if (compute.time <= Seconds{} || communication.time <= Seconds{}) return {};
  const Contention& rates = hardware.contention;
  const auto of_time = [&](Seconds part) { return (part / communication.time).to<double>(); };
  // A product loses more than the occupied share of SMs, because its last tiles wait for each other, up to the measured
  // loss; from there on it loses the share. At least one SM is left.
  const auto all = static_cast<double>(hardware.sms);
  const double sms = std::min(all - 1.0, of_time(communication.sm_time)), copying = of_time(communication.copying);
  const double price = std::min(1.0, sms / hardware.network.collective_sms);
  const double product_keeps = starts > 0.0 ? rates.gemm.compute : rates.launched;
  const double beside_product = 1.0 - std::max(sms / all, price * (1.0 - product_keeps));
  const double beside_memory = 1.0 - price * copying * (1.0 - rates.memory.compute);
  // Seconds that one second of this compute takes beside the communication, by what limits the compute.
  const auto products = (compute.products / compute.time).to<double>();
  const double in_products = products / beside_product, in_memory = (1.0 - products) / beside_memory;
  const double both = in_products + in_memory;
  // The SMs copy more slowly. That costs nothing as long as a link keeps them waiting.
  const auto kept = [copying](double rate) { return copying > rate ? rate / copying : 1.0; };
  return {
      .compute = 1.0 / both,
      .communication = (in_products * kept(rates.gemm.collective) + in_memory * kept(rates.memory.collective)) / both,
      .wait = starts * rates.start_wait * Seconds{compute.squares} / compute.time.to<double>(),
      .starts = starts};
}

SideBySide side_by_side(Seconds compute, Seconds communication, const SharedPace& pace) {
  const Seconds whole = communication / pace.communication;  // If the compute lasts long enough.
  Seconds shared = whole;
  if (const Seconds needed = pace.wait + pace.compute * whole; compute < needed) {
    // Parts that end before the compute does, and the compute left for the next part.
    const double parts = std::max(1.0, pace.starts), done = std::floor((parts * (compute / needed)).to<double>());
    const Seconds rest = std::max(Seconds{}, compute - (done * needed + pace.wait) / parts);
    shared = std::min(whole, done / parts * whole + std::min(whole / parts, rest / pace.compute));
  }
  return {.compute = compute + (1.0 - pace.compute) * shared,
          .exposed = std::max(Seconds{}, communication - pace.communication * shared)};
}

SideBySide side_by_side(const ComputeSum& compute, const CommunicationSum& communication, double starts,
                        const Hardware& hardware) {
  return side_by_side(compute.time, communication.time, shared_pace(compute, communication, starts, hardware));
}

}  // namespace foldwise::costmodel
