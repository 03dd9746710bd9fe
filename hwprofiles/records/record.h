#pragma once
#include <cstdint>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

// Measurement records in JSON Lines, one object per line. A session line describes the machine of the measurements
// after it; each measurement names its session. Depends on the standard library and nlohmann-json only, because the
// measuring programs are built on bare machines. Fields of every kernel: docs/measuring.md#records.
namespace foldwise::hwprofiles {

inline constexpr int kRecordSchema = 1;

/// One run of a measuring program, in one process or in one per host.
struct Session {
  std::string id{};       ///< Unique. Measurements refer to it.
  std::string program{};  ///< "foldwise-kernels-cuda"
  std::string started{};  ///< "2026-11-21T15:00:00Z"
  std::string device{};   ///< The device's own name: "NVIDIA H200".
  int devices = 1;        ///< Used by this run.
  std::string driver{};
  std::map<std::string, std::string> libraries{};  ///< Version by name: "cublasLt", "nccl", "eigen".
  std::string build{};                             ///< Compiler, flags and commit of the program.
  std::map<std::string, double> clocks{};          ///< MHz and W at the start: "sm_mhz", "memory_mhz", "power_limit_w".
  // Network between its devices; not set for a CPU.
  std::vector<std::string> hosts{};           ///< Names. All have equally many devices.
  int nvlink_domain = 0;                      ///< Devices that share NVLink, on one host or on consecutive hosts.
  std::map<std::string, std::string> nics{};  ///< On the first host: {"mlx5_0": "400 Gb/sec (4X NDR), InfiniBand"}.
  bool operator==(const Session&) const = default;
};

/// One kernel setting with all of its samples.
struct Measurement {
  std::string session{};                        ///< Id of its session line.
  std::string kernel{};                         ///< "gemm", "attention", "memory", ...
  std::map<std::string, std::string> of{};      ///< Kind: {"format": "bf16", "phase": "wgrad"}.
  std::map<std::string, std::int64_t> shape{};  ///< {"m": 4096, "n": 4096, "k": 4096}
  double flops = 0.0, bytes = 0.0;  ///< Per call: executed FLOPs, and bytes read from and written to memory.
  int warmups = 0;
  std::vector<double> samples_us{};  ///< In order.
  bool correct = false;              ///< Result checked against a float64 reference.
  double max_relative_error = 0.0;   ///< Error found by that check.
  bool operator==(const Measurement&) const = default;
};

/// One line without the newline.
[[nodiscard]] std::string to_json_line(const Session& session);
[[nodiscard]] std::string to_json_line(const Measurement& measurement);

/// The setting without its results, as text. Equal for equal kernel, kind and shape.
[[nodiscard]] std::string setting_of(const Measurement& measurement);

/// A record file that grows with each measurement, so that an interrupted run loses nothing. When opened again, it
/// knows the settings that the same device with the same driver and libraries has already measured.
class RecordFile {
 public:
  /// Opens `path` for appending. The session line is written before the first measurement. Removes an incomplete last
  /// line, as an interruption leaves it. Throws std::runtime_error: cannot be opened or written, or has records of
  /// other devices.
  RecordFile(std::string path, Session session);

  /// Whether the setting was already measured with a correct result.
  [[nodiscard]] bool has(const Measurement& setting) const { return measured_.contains(setting_of(setting)); }
  /// Sets `measurement.session`, appends the line and flushes.
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
