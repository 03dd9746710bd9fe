#pragma once
#include <nccl.h>

#include <atomic>
#include <barrier>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/world.h"

// Devices as ranks, a thread each: some of one host, or as many of every process's.
namespace foldwise::kernels {

void check(ncclResult_t status, const char* what);

/// One rank's resources; used by its thread alone, with its device current.
struct Rank {
  int rank = 0;   ///< In the communicator.
  int local = 0;  ///< Its device.
  ncclComm_t comm = nullptr;
  Stream compute, communication;
  Buffer send, receive;
};

/// Work of one rank: queues one unit on a stream.
using Work = std::function<void(Rank&, cudaStream_t)>;

class Ranks {
 public:
  /// The first `devices` of this process, and of all others in `world` unless that is null. `bytes` of send and twice
  /// that of receive memory a rank. `most_ctas`: thread blocks, one an SM, that NCCL may use for a collective; 0: its
  /// own choice. All processes then make it and call it alike.
  Ranks(const World* world, int devices, std::size_t bytes, int most_ctas = 0);
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  ~Ranks();

  /// Of this process.
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  /// The largest that a process has.
  [[nodiscard]] double largest(double value) const;
  /// Runs `body` on every rank's thread of this process and waits; rethrows the first exception.
  void each(const std::function<void(Rank&)>& body);
  /// Microseconds of one unit of `work` on the slowest rank, one value a sample; a sample is many units in a row, as
  /// nccl-tests times. `work` runs on `communication` if `communicates`, else on `compute`. With `background`, the
  /// other stream is busy with it from before the first sample to after the last.
  [[nodiscard]] std::vector<double> time(const Effort& effort, bool communicates, const Work& work,
                                         const Work& background = {});

 private:
  [[nodiscard]] std::vector<double> time_units(bool communicates, const Work& work, int samples, int units,
                                               const Work& background, int background_units, bool& covered);
  const World* world_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace foldwise::kernels
