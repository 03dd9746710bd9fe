#pragma once
#include <map>
#include <string>
#include <vector>

#include "costmodel/ops/op.h"
#include "hwprofiles/load/profile.h"

namespace foldwise::hwprofiles {

/// Curve of a profile that determines the op's time ("/gemm/bf16", "/attention/128"); "" for ops without a curve.
[[nodiscard]] std::string curve_of(const costmodel::Op& op, const costmodel::Hardware& hw);
/// Properties that the op's time depends on: {"m", "n", "k", "groups" if several}, {"bytes"}, ...
[[nodiscard]] std::map<std::string, double> properties_of(const costmodel::Op& op);

/// A property of an op that is outside the range that its curve was fitted on.
struct OutOfRange {
  std::string curve, property;
  double value = 0.0, low = 0.0, high = 0.0;
  [[nodiscard]] std::string text() const;  ///< "/gemm/bf16: k 65536, fitted to 512 to 36864"
};
/// Empty for curves without a stated fit.
[[nodiscard]] std::vector<OutOfRange> outside_of_fit(const costmodel::Op& op, const Profile& profile);

}  // namespace foldwise::hwprofiles
