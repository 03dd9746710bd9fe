#include "costmodel/step/ledger.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <variant>

#include "costmodel/check.h"
#include "costmodel/step/data_parallel.h"

namespace foldwise::costmodel {
namespace {

constexpr std::string_view kLaunchKind = "launch", kPipelineModule = "pipeline";

Activity activity_of(Group group) {
  switch (group) {
    case Group::kTp:
      return Activity::kTensor;
    case Group::kCp:
      return Activity::kContext;
    case Group::kEp:
    case Group::kEtp:
    case Group::kEtpEp:
      return Activity::kExpert;
    case Group::kPp:
      return Activity::kPipeline;
    case Group::kNone:
    case Group::kDpCp:
    case Group::kEdp:
    case Group::kDp:
      return Activity::kData;
  }
  FW_CHECK(false, "an unknown group");
  return Activity::kData;
}

bool same_name(const LedgerLine& a, const LedgerLine& b) {
  return a.activity == b.activity && a.cause == b.cause && a.kind == b.kind && a.module == b.module &&
         a.group == b.group;
}

void add_line(const LedgerLine& line, double times, std::vector<LedgerLine>& sum) {
  const auto found = std::find_if(sum.begin(), sum.end(), [&](const LedgerLine& l) { return same_name(l, line); });
  if (found != sum.end()) {
    found->exposed += times * line.exposed;
  } else if (times > 0.0) {
    sum.push_back(line);
    sum.back().exposed *= times;
  }
}

LedgerLine line_of(const Op& op, Seconds time) {
  LedgerLine line{.activity = op.phase == Phase::kRecompute ? Activity::kRecompute : Activity::kCompute,
                  .cause = Cause::kCompute,
                  .kind = kind_name(op),
                  .module = to_string(op.module),
                  .group = group_name(op),
                  .exposed = time};
  if (is_communication(op)) {
    line.cause = Cause::kCommunication;
    line.activity = activity_of(communication_group(op));
  } else if (std::holds_alternative<HostCopyWork>(op.work)) {
    line.cause = Cause::kCopy;
    line.activity = Activity::kOffload;
  } else if (std::holds_alternative<HostSyncWork>(op.work) || std::holds_alternative<HostUpdateWork>(op.work)) {
    line.cause = Cause::kHost;
    line.activity = Activity::kHost;
  }
  return line;
}

LedgerLine tail_line(const Op& op, Seconds time) {
  LedgerLine line = line_of(op, time);
  if (line.activity == Activity::kCompute) line.activity = Activity::kOptimizer;
  return line;
}

// Lines of the ops in one direction of a piece. Overlap inside it is hidden as in block_cost().
std::vector<LedgerLine> lines_of(const BuildContext& context, const std::vector<Op>& ops) {
  const std::array<OverlapShares, kOverlaps> shares = overlap_shares(context, ops);
  std::vector<LedgerLine> lines;
  for (const Op& op : ops) {
    const OverlapShares& share = shares[static_cast<std::size_t>(op.overlap)];
    const LedgerLine line =
        line_of(op, (is_communication(op) ? share.exposed : share.stretch) * op_time(op, context.hardware));
    add_line(line, 1.0, lines);
    if (line.cause != Cause::kCompute) continue;
    add_line({.activity = Activity::kHost,
              .cause = Cause::kHost,
              .kind = kLaunchKind,
              .module = line.module,
              .exposed = issue_time(op, context.hardware)},
             1.0, lines);
  }
  return lines;
}

ChunkLedger piece_ledger(const BuildContext& context, const StagePiece& piece) {
  ChunkLedger ledger;
  for (const Piece part : parts_of(piece.piece)) {
    const OpList list = part_ops(context, part, piece);
    add_lines(lines_of(context, list.forward), 1.0, ledger.forward);
    add_lines(lines_of(context, list.backward), 1.0, ledger.backward);
  }
  return ledger;
}

using Chosen = std::function<bool(const LedgerLine&)>;

Seconds sum_of(const std::vector<LedgerLine>& lines, const Chosen& chosen) {
  Seconds sum{};
  for (const LedgerLine& line : lines) sum += chosen(line) ? line.exposed : Seconds{};
  return sum;
}

void scale(std::vector<LedgerLine>& lines, Seconds target, const Chosen& chosen) {
  const Seconds sum = sum_of(lines, chosen);
  if (sum <= Seconds{}) return;
  const auto share = (target / sum).to<double>();
  for (LedgerLine& line : lines)
    if (chosen(line)) line.exposed *= share;
}

// Subtracts `time` from the lines of the first choice; what they lack is subtracted from the next.
void take(std::vector<LedgerLine>& lines, Seconds time, const std::vector<Chosen>& choices) {
  for (const Chosen& chosen : choices) {
    const Seconds sum = sum_of(lines, chosen), taken = std::min(time, sum);
    if (taken <= Seconds{}) continue;
    scale(lines, sum - taken, chosen);
    time -= taken;
  }
}

// Some values are known only for a whole chunk: hidden copies, idle time of the host, exposed time of Megatron-FSDP,
// and the effect of the power limit. The lines are scaled to them.
void match(const StepContext& context, const DirectionCost& cost, Seconds transfers, Seconds host,
           const std::vector<Op>& fsdp, std::vector<LedgerLine>& lines) {
  const auto cause = [](Cause one) { return [one](const LedgerLine& l) { return l.cause == one; }; };
  const auto beyond = [&lines](Seconds whole, Cause one) {
    for (const LedgerLine& line : lines) whole -= line.cause == one ? line.exposed : Seconds{};
    return std::max(Seconds{}, whole);
  };
  const Seconds alone = communication_of(fsdp, context.hardware).time;
  const double exposed =
      alone > Seconds{} ? (beyond(cost.comm - transfers, Cause::kCommunication) / alone).to<double>() : 0.0;
  for (const Op& op : fsdp)
    add_line(line_of(op, (is_communication(op) ? exposed : 1.0) * op_time(op, context.hardware)), 1.0, lines);
  if (transfers > Seconds{})
    lines.push_back({.activity = Activity::kPipeline,
                     .cause = Cause::kCommunication,
                     .kind = "send_recv",
                     .module = kPipelineModule,
                     .group = "pp",
                     .exposed = transfers});
  if (const Seconds added = beyond(cost.compute, Cause::kCompute); added > 1e-9 * cost.compute)
    lines.push_back({.activity = Activity::kCompute, .cause = Cause::kCompute, .kind = kPowerLimit, .exposed = added});
  scale(lines, cost.compute, cause(Cause::kCompute));
  scale(lines, cost.comm, cause(Cause::kCommunication));
  scale(lines, cost.exposed_copy(), cause(Cause::kCopy));
  scale(lines, host, cause(Cause::kHost));
}

}  // namespace

void add_lines(const std::vector<LedgerLine>& lines, double times, std::vector<LedgerLine>& sum) {
  for (const LedgerLine& line : lines) add_line(line, times, sum);
}

std::vector<LedgerLine> pair_lines(const std::vector<LedgerLine>& forward, const std::vector<LedgerLine>& backward,
                                   Seconds hidden, Seconds elapsed) {
  std::vector<LedgerLine> lines = forward;
  add_lines(backward, 1.0, lines);
  const auto any = [](const LedgerLine&) { return true; };
  take(lines, hidden,
       {[](const LedgerLine& l) { return l.activity == Activity::kExpert; },
        [](const LedgerLine& l) { return l.cause == Cause::kCommunication; }, any});
  const Seconds idle = elapsed - sum_of(lines, any);
  if (idle > Seconds{})
    add_line({.activity = Activity::kHost,
              .cause = Cause::kHost,
              .kind = kLaunchKind,
              .module = kPipelineModule,
              .exposed = idle},
             1.0, lines);
  else
    take(lines, -idle,
         {[](const LedgerLine& l) { return l.cause == Cause::kHost; },
          [](const LedgerLine& l) { return l.cause == Cause::kCopy; }, any});
  return lines;
}

ActivityTimes by_activity(const std::vector<LedgerLine>& lines) {
  ActivityTimes times{};
  for (const LedgerLine& line : lines) times[static_cast<std::size_t>(line.activity)] += line.exposed;
  return times;
}

std::vector<ChunkLedger> chunk_ledgers(const Step& step) {
  const Composition& c = step.composition;
  const PieceOptions options(step.context);
  PerPiece<ChunkLedger> pieces;
  std::vector<ChunkLedger> ledgers;
  for (std::size_t i = 0; i < c.num_stages(); ++i) {
    ChunkLedger& ledger = ledgers.emplace_back();
    for (std::vector<LedgerLine>* lines : {&ledger.forward, &ledger.backward})
      lines->push_back({.activity = Activity::kHost,
                        .cause = Cause::kHost,
                        .kind = kLaunchKind,
                        .module = kPipelineModule,
                        .exposed = step.context.hardware.host.task});
    visit_stage(step.context, step.kinds, step.content(i), PieceOrder::kByKind, [&](const StagePiece& piece) {
      const ChunkLedger& one = pieces.get(piece, [&] { return piece_ledger(options.of(piece), piece); });
      add_lines(one.forward, static_cast<double>(piece.times), ledger.forward);
      add_lines(one.backward, static_cast<double>(piece.times), ledger.backward);
    });
    const StageCost& stage = c.stage(i);
    const OpList fsdp =
        shards_gradients(step.context.options.step.sharding) ? fsdp_ops(step.context, stage.cost.parameters) : OpList{};
    match(step.context, stage.cost.forward, stage.forward_transfers, stage.host.forward, fsdp.forward, ledger.forward);
    match(step.context, stage.cost.backward, stage.backward_transfers, stage.host.backward, fsdp.backward,
          ledger.backward);
  }
  return ledgers;
}

namespace {

// Visits the rank's once-per-step ops in order, with the exposed share of each op's time.
void for_step_ops(const Step& step, std::int64_t rank, const DataParallelCost& cost,
                  const std::function<void(const Op&, double exposed)>& visit) {
  const StepContext& context = step.context;
  const Composition& c = step.composition;
  OpList collectives;
  for (auto i = static_cast<std::size_t>(rank); i < c.num_stages(); i += static_cast<std::size_t>(c.times.shape.pp))
    append(collectives, data_parallel_ops(context, c.stage(i).cost.parameters.trained(context.options.layer)));
  const auto visit_all = [&](const std::vector<Op>& ops, Seconds exposed) {
    Seconds whole{};
    for (const Op& op : ops) whole += op_time(op, context.hardware);
    for (const Op& op : ops) visit(op, whole > Seconds{} ? (exposed / whole).to<double>() : 0.0);
  };
  const auto r = static_cast<std::size_t>(rank);
  visit_all(collectives.backward, cost.reduction);
  const OpList end = step_ops(context, c.parameters[r].trained(context.options.layer));
  visit_all(end.backward, cost.reload);
  const double copies = exposed_copies(end.forward, context.hardware);
  for (const Op& op : end.forward) visit(op, op.overlap == Overlap::kOffload ? copies : 1.0);
  visit_all(collectives.forward, cost.gather + c.tails[r].parameters);
}

}  // namespace

std::vector<StepPart> step_parts(const Step& step, std::int64_t rank, const DataParallelCost& cost) {
  std::vector<StepPart> parts;
  for_step_ops(step, rank, cost, [&](const Op& op, double exposed) {
    const Seconds time = op_time(op, step.context.hardware);
    const Activity activity = tail_line(op, time).activity;
    const auto same = std::find_if(parts.begin(), parts.end(), [&](const StepPart& p) {  // One line per name.
      return p.name == op.name && p.activity == activity;
    });
    StepPart& part = same != parts.end() ? *same : parts.emplace_back(StepPart{.name = op.name, .activity = activity});
    part.seconds += time;
    part.exposed += exposed * time;
  });
  const Seconds host = step.composition.tails[static_cast<std::size_t>(rank)].idle;
  parts.push_back({.name = "host", .activity = Activity::kHost, .seconds = host, .exposed = host});
  std::erase_if(parts, [](const StepPart& part) { return part.seconds <= Seconds{}; });
  return parts;
}

std::vector<LedgerLine> tail_ledger(const Step& step, std::int64_t rank, const DataParallelCost& cost) {
  std::vector<LedgerLine> lines;
  for_step_ops(step, rank, cost, [&](const Op& op, double exposed) {
    add_line(tail_line(op, exposed * op_time(op, step.context.hardware)), 1.0, lines);
  });
  add_line({.activity = Activity::kHost,
            .cause = Cause::kHost,
            .kind = kLaunchKind,
            .module = to_string(Module::kOptimizer),
            .exposed = step.composition.tails[static_cast<std::size_t>(rank)].idle},
           1.0, lines);
  return lines;
}

}  // namespace foldwise::costmodel
