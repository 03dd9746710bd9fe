#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "costmodel/step/step.h"

// What a chunk's time is spent on: op times summed by kind, so that every second of every rank has a name.
namespace foldwise::costmodel {

/// Ops of one kind, module and group in one direction of a chunk. The `exposed` times of a chunk's lines add up to its
/// time.
struct LedgerLine {
  Activity activity = Activity::kCompute;
  Cause cause = Cause::kCompute;
  std::string_view kind{}, module{}, group{};
  Seconds exposed{};
};

/// One micro-batch through one chunk of a rank. The two directions add up to the chunk's StageTime.
struct ChunkLedger {
  std::vector<LedgerLine> forward, backward;
};

/// [pp * vpp], as Composition::index. The lines come from the same op lists as the composition's costs.
[[nodiscard]] std::vector<ChunkLedger> chunk_ledgers(const Step& step);

/// Once-per-step work of a rank. It adds up to the rank's StepTail and `cost`.
[[nodiscard]] std::vector<LedgerLine> tail_ledger(const Step& step, std::int64_t rank, const DataParallelCost& cost);

/// The same by op name, in order: gradient reduction, end of the step, and gather for the next step.
[[nodiscard]] std::vector<StepPart> step_parts(const Step& step, std::int64_t rank, const DataParallelCost& cost);

/// Lines of a merged (F, B) pair that takes `elapsed`. `hidden` is taken off the EP exchange, or off other
/// communication if that is less. A further difference of the pair is taken off the host's idle time, then off copies.
[[nodiscard]] std::vector<LedgerLine> pair_lines(const std::vector<LedgerLine>& forward,
                                                 const std::vector<LedgerLine>& backward, Seconds hidden,
                                                 Seconds elapsed);

/// Adds `times` of each line to the line of `sum` with the same names.
void add_lines(const std::vector<LedgerLine>& lines, double times, std::vector<LedgerLine>& sum);

[[nodiscard]] ActivityTimes by_activity(const std::vector<LedgerLine>& lines);

}  // namespace foldwise::costmodel
