#pragma once
#include <functional>
#include <vector>

#include "hwprofiles/records/record.h"

// What is measured on a CPU: one function a kernel kind. Every kernel runs on all threads (oneTBB).
namespace foldwise::kernels {

/// How much is measured.
struct Effort {
  int warmups = 1;
  int samples = 5;     ///< A round; there are two, one if quick.
  bool quick = false;  ///< A few settings of each kind.
};

/// One setting: `run` adds samples and fills the check.
struct Setting {
  hwprofiles::Measurement measurement;
  std::function<void(hwprofiles::Measurement&)> run;
};

/// Times `kernel` after warm-ups; adds its samples.
void time(hwprofiles::Measurement& measurement, const Effort& effort, const std::function<void()>& kernel);

/// Eigen products of a linear layer in its three phases, FP32; forward in FP64.
[[nodiscard]] std::vector<Setting> gemm_settings(const Effort& effort);
/// FP32 forms of the memory-bound operations of a training step.
[[nodiscard]] std::vector<Setting> memory_settings(const Effort& effort);
/// memcpy, split over the threads.
[[nodiscard]] std::vector<Setting> copy_settings(const Effort& effort);
/// What starting work on all threads costs.
[[nodiscard]] std::vector<Setting> launch_settings(const Effort& effort);

}  // namespace foldwise::kernels
