#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "costmodel/step/step.h"

// Who spends a chunk's time: op times summed by what they are, so that every second of every rank has a name.
namespace foldwise::costmodel {

/// Ops of one kind, module and group, of one direction of a chunk. `exposed` lines of a chunk add up to its time.
struct LedgerLine {
  Activity activity = Activity::kCompute;
  Cause cause = Cause::kCompute;
  std::string_view kind{}, module{}, group{};
  Seconds exposed{};
};

/// One micro-batch through one chunk of a rank; the two directions add up to the chunk's StageTime.
struct ChunkLedger {
  std::vector<LedgerLine> forward, backward;
};

/// [pp * vpp], as Composition::index. Read off the same op lists as the composition's costs.
[[nodiscard]] std::vector<ChunkLedger> chunk_ledgers(const Step& step);

/// What a rank does once per step; adds up to its StepTail and `cost`.
[[nodiscard]] std::vector<LedgerLine> tail_ledger(const Step& step, std::int64_t rank, const DataParallelCost& cost);

/// The same by op name, in order: gradient reduction, the end of the step, and the gather for the next step.
[[nodiscard]] std::vector<StepPart> step_parts(const Step& step, std::int64_t rank, const DataParallelCost& cost);

/// A merged (F, B) pair that takes `elapsed`: `hidden` is gone from the EP exchange, or from other communication where
/// that is less, and what else the pair takes less or more is the host's idle time, then copies.
[[nodiscard]] std::vector<LedgerLine> pair_lines(const std::vector<LedgerLine>& forward,
                                                 const std::vector<LedgerLine>& backward, Seconds hidden,
                                                 Seconds elapsed);

/// Adds `times` of each line to the line of `sum` that names the same.
void add_lines(const std::vector<LedgerLine>& lines, double times, std::vector<LedgerLine>& sum);

[[nodiscard]] ActivityTimes by_activity(const std::vector<LedgerLine>& lines);

}  // namespace foldwise::costmodel
