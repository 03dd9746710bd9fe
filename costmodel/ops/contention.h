#pragma once
#include "costmodel/ops/op.h"

// Compute and communication side by side on one GPU: both are slower than alone. Source: docs/formulas.md#overlap.
namespace foldwise::costmodel {

/// Compute, as far as it matters to what runs beside it. Sums add up.
struct ComputeSum {
  Seconds time{};        ///< Alone.
  Seconds products{};    ///< Part of it in GEMMs and attention; the rest is bound by memory.
  double squares = 0.0;  ///< Sum of the squared times of its kernels, s^2.
  void add(const Op& op, Seconds op_time);
  ComputeSum& operator+=(const ComputeSum& other);
  /// A stretch of `length` of the same mix.
  [[nodiscard]] ComputeSum stretch(Seconds length) const;
};

/// Communications that follow each other. Sums add up.
struct CommunicationSum {
  Seconds time{};     ///< Alone.
  Seconds sm_time{};  ///< Time x the SMs that they occupy.
  Seconds copying{};  ///< Part in which the SMs copy: all, unless a link keeps those of a fused exchange waiting.
  void add(const Op& op, Seconds op_time, const Hardware& hardware);
  CommunicationSum& operator+=(const CommunicationSum& other);
  [[nodiscard]] CommunicationSum scaled(double share) const;
};

/// What both sides keep of their rates while both run, and the compute that passes before the communication starts.
struct SharedPace {
  double compute = 1.0, communication = 1.0;
  Seconds wait{};       ///< Of all starts together.
  double starts = 1.0;  ///< Equal parts of the communication, each of which waits; less than one: of a part, once.
};
/// `starts`: kernels of the communication that find others running and wait for their SMs.
[[nodiscard]] SharedPace shared_pace(const ComputeSum& compute, const CommunicationSum& communication, double starts,
                                     const Hardware& hardware);

struct SideBySide {
  Seconds compute{};  ///< With what it loses while the communication runs.
  Seconds exposed{};  ///< Communication that outlasts the compute.
  [[nodiscard]] Seconds elapsed() const { return compute + exposed; }
};
/// Two fluids: for every start compute alone while the communication waits, then both at their paces until the part or
/// the compute ends; what is left of the other alone. No longer than one after the other while the paces add up to 1 or
/// more; as short as the longer of the two if both are 1.
[[nodiscard]] SideBySide side_by_side(Seconds compute, Seconds communication, const SharedPace& pace);
[[nodiscard]] SideBySide side_by_side(const ComputeSum& compute, const CommunicationSum& communication, double starts,
                                      const Hardware& hardware);

}  // namespace foldwise::costmodel
