#pragma once
#include "costmodel/ops/op.h"

// Compute and communication that run side by side on one GPU and slow each other down. Source:
// docs/formulas.md#overlap.
namespace foldwise::costmodel {

/// Properties of compute that matter to communication beside it. They can be added up.
struct ComputeSum {
  Seconds time{};        ///< Alone.
  Seconds products{};    ///< Part of it in GEMMs and attention; the rest is bound by memory.
  double squares = 0.0;  ///< Sum of the squared times of its kernels, s^2.
  void add(const Op& op, Seconds op_time);
  ComputeSum& operator+=(const ComputeSum& other);
  /// The part of the same mix that takes `length`.
  [[nodiscard]] ComputeSum stretch(Seconds length) const;
};

/// A sequence of communications. They can be added up.
struct CommunicationSum {
  Seconds time{};     ///< Alone.
  Seconds sm_time{};  ///< Time x the SMs that they occupy.
  Seconds copying{};  ///< Time in which the SMs copy: all, except where a link keeps those of a fused exchange waiting.
  void add(const Op& op, Seconds op_time, const Hardware& hardware);
  CommunicationSum& operator+=(const CommunicationSum& other);
  [[nodiscard]] CommunicationSum scaled(double share) const;
};

/// Shares of their rates that both sides keep while both run, and the time that communication waits to start.
struct SharedPace {
  double compute = 1.0, communication = 1.0;
  Seconds wait{};  ///< Of all starts together.
  /// Number of equal parts of the communication, each of which waits; below one: the part that waits, once.
  double starts = 1.0;
};
/// `starts`: number of kernels of the communication that must wait for SMs which other kernels occupy; 0: the products
/// are launched beside it.
[[nodiscard]] SharedPace shared_pace(const ComputeSum& compute, const CommunicationSum& communication, double starts,
                                     const Hardware& hardware);

struct SideBySide {
  Seconds compute{};  ///< Including what it loses while the communication runs.
  Seconds exposed{};  ///< Communication that outlasts the compute.
  [[nodiscard]] Seconds elapsed() const { return compute + exposed; }
};
/// For every start, compute runs alone while the communication waits. Then both run at their paces until one ends, and
/// the other continues alone. If the paces add up to 1 or more, this takes no longer than both in sequence. If both are
/// 1, it takes the longer of the two.
[[nodiscard]] SideBySide side_by_side(Seconds compute, Seconds communication, const SharedPace& pace);
[[nodiscard]] SideBySide side_by_side(const ComputeSum& compute, const CommunicationSum& communication, double starts,
                                      const Hardware& hardware);

}  // namespace foldwise::costmodel
