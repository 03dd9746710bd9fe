#pragma once
#include <cstdint>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

// Measurement records: JSON Lines, one object a line. A session line says what the measurements after it ran on; each
// measurement names its session. Needs the standard library and nlohmann-json only, because the programs that measure
// are built on bare machines. The fields of every kernel: docs/measuring.md#records.
namespace foldwise::hwprofiles {

inline constexpr int kRecordSchema = 1;

/// One run of a measuring program, of one process or of several hosts'.
struct Session {
  std::string id{};       ///< Unique: what measurements refer to.
  std::string program{};  ///< "foldwise-kernels-cuda"
  std::string started{};  ///< "2026-11-21T15:00:00Z"
  std::string device{};   ///< As the device names itself: "NVIDIA H200".
  int devices = 1;        ///< Used by this run.
  std::string driver{};
  std::map<std::string, std::string> libraries{};  ///< Version by name: "cublasLt", "nccl", "eigen".
  std::string build{};                             ///< Compiler, flags and commit of the program.
  std::map<std::string, double> clocks{};          ///< MHz and W at the start: "sm_mhz", "memory_mhz", "power_limit_w".
  // What lies between its devices; not of a CPU.
  std::vector<std::string> hosts{};           ///< Names; as many devices on each.
  int nvlink_domain = 0;                      ///< Devices that share NVLink, of one host or of several in a row.
  std::map<std::string, std::string> nics{};  ///< Of the first host: {"mlx5_0": "400 Gb/sec (4X NDR), InfiniBand"}.
  bool operator==(const Session&) const = default;
};

/// One kernel setting with every sample.
struct Measurement {
  std::string session{};                        ///< Id of its session line.
  std::string kernel{};                         ///< "gemm", "attention", "memory", ...
  std::map<std::string, std::string> of{};      ///< What kind: {"format": "bf16", "phase": "wgrad"}.
  std::map<std::string, std::int64_t> shape{};  ///< {"m": 4096, "n": 4096, "k": 4096}
  double flops = 0.0, bytes = 0.0;              ///< Executed, and moved to and from memory, by one call.
  int warmups = 0;
  std::vector<double> samples_us{};  ///< All of them, in order.
  bool correct = false;              ///< Result checked against a float64 reference.
  double max_relative_error = 0.0;   ///< Of that check.
  bool operator==(const Measurement&) const = default;
};

/// One line without the newline.
[[nodiscard]] std::string to_json_line(const Session& session);
[[nodiscard]] std::string to_json_line(const Measurement& measurement);

/// The setting alone, as text: equal for equal kernel, kind and shape.
[[nodiscard]] std::string setting_of(const Measurement& measurement);

/// A record file that grows as measurements are made, so that an interrupted run loses nothing: opened again, it knows
/// which settings the same device with the same driver and libraries has measured already.
class RecordFile {
 public:
  /// Opens `path` for appending; writes the session line before the first measurement. An incomplete last line, left by
  /// an interruption, is cut off. Throws std::runtime_error: cannot be opened or written, or holds other devices'
  /// records.
  RecordFile(std::string path, Session session);

  /// Measured before, correctly.
  [[nodiscard]] bool has(const Measurement& setting) const { return measured_.contains(setting_of(setting)); }
  /// Sets `measurement.session`, writes the line and flushes.
  void append(Measurement measurement);

 private:
  void write(const std::string& line);

  std::string path_;
  Session session_;
  bool session_written_ = false;
  std::set<std::string> measured_;
  std::ofstream out_;
};

}  // namespace foldwise::hwprofiles
