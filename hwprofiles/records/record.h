#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace foldwise::hwprofiles {

/// One measured kernel setting: every sample and what it was measured on. One JSON object a line in a .jsonl file.
struct Record {
  std::string kernel;                         ///< "gemm_fp64_host", "copy_host", ...
  std::map<std::string, std::int64_t> shape;  ///< "m", "n", "k", "bytes", ...
  double bytes = 0, flops = 0;                ///< Moved and executed by one call.
  std::string device{};                       ///< As the device names itself.
  std::string libraries{};                    ///< Versions of what the kernel called.
  int warmups = 0;
  std::vector<double> samples_ns{};  ///< All of them, in order.
  bool correct = false;              ///< Result checked against a float64 reference.
};

[[nodiscard]] std::string to_json_line(const Record& record);

}  // namespace foldwise::hwprofiles
