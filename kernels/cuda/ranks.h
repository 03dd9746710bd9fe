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

// Devices as ranks with a thread each: some devices of one host, or equally many of every process.
namespace foldwise::kernels {

void check(ncclResult_t status, const char* what);

/// Resources of a rank. Only its thread uses them, with its device current.
struct Rank {
  int rank = 0;   ///< In the communicator.
  int local = 0;  ///< Device number.
  ncclComm_t comm = nullptr;
  Stream compute, communication;
  Buffer send, receive;
};

/// Queues one unit of a rank's work on a stream.
using Work = std::function<void(Rank&, cudaStream_t)>;

class Ranks {
 public:
  /// The first `devices` of this process and, unless `world` is null, of all its other processes, which must then
  /// construct and call it alike. Each rank gets `bytes` of send memory and twice that of receive memory. `most_ctas`:
  /// thread blocks, one per SM, that NCCL may use for a collective; 0: NCCL decides.
  Ranks(const World* world, int devices, std::size_t bytes, int most_ctas = 0);
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  ~Ranks();

  /// Ranks of this process.
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  /// Maximum over the processes.
  [[nodiscard]] double largest(double value) const;
  /// Runs `body` on the thread of each rank of this process and waits. Rethrows the first exception.
  void each(const std::function<void(Rank&)>& body);
  /// Microseconds per unit of `work` on the slowest rank, by sample. A sample is many consecutive units, as in
  /// nccl-tests. `work` runs on `communication` if `communicates`, else on `compute`. `background` keeps the other
  /// stream busy from before the first sample until after the last.
  [[nodiscard]] std::vector<double> time(const Effort& effort, bool communicates, const Work& work,
                                         const Work& background = {});

 private:
  [[nodiscard]] std::vector<double> time_units(bool communicates, const Work& work, int samples, int units,
                                               const Work& background, int background_units, bool& covered);
  const World* world_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace foldwise::kernels
