#pragma once
#include <functional>
#include <vector>

#include "hwprofiles/records/record.h"

// Settings to measure on a CPU: one function per kernel kind. Every kernel uses all threads (oneTBB).
namespace foldwise::kernels {

struct Effort {
  int warmups = 1;
  int samples = 5;     ///< Per round. There are two rounds, one if quick.
  bool quick = false;  ///< Only a few settings of each kind.
};

/// A setting. `run` adds samples and the result of the check.
struct Setting {
  hwprofiles::Measurement measurement;
  std::function<void(hwprofiles::Measurement&)> run;
};

/// Times `kernel` after warm-ups, and adds the samples.
void time(hwprofiles::Measurement& measurement, const Effort& effort, const std::function<void()>& kernel);

/// Eigen products for the three phases of a linear layer in FP32, and for forward in FP64.
[[nodiscard]] std::vector<Setting> gemm_settings(const Effort& effort);
/// Memory-bound operations of a training step in FP32.
[[nodiscard]] std::vector<Setting> memory_settings(const Effort& effort);
/// memcpy, split over the threads.
[[nodiscard]] std::vector<Setting> copy_settings(const Effort& effort);
/// Cost of starting work on all threads.
[[nodiscard]] std::vector<Setting> launch_settings(const Effort& effort);

}  // namespace foldwise::kernels
