#include "planner/report/beyond_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

#include "hwprofiles/load/range.h"

namespace foldwise::planner {
namespace {

using costmodel::Op;

constexpr double kLeastShare = 0.01;

// Ops of one piece of the pipeline stages, and the number of times it occurs.
struct PieceOps {
  std::vector<Op> ops;
  double times = 0.0;
};

std::vector<Op> ops_of(const costmodel::BuildContext& context, const costmodel::StagePiece& piece) {
  std::vector<Op> ops;
  for (const costmodel::Piece part : costmodel::parts_of(piece.piece)) {
    costmodel::OpList list = costmodel::part_ops(context, part, piece);
    std::move(list.forward.begin(), list.forward.end(), std::back_inserter(ops));
    std::move(list.backward.begin(), list.backward.end(), std::back_inserter(ops));
  }
  return ops;
}

}  // namespace

std::vector<std::string> beyond_fit(const costmodel::Step& step, const hwprofiles::Profile& profile) {
  if (profile.fits.empty()) return {};
  std::map<std::string, Seconds> time_by_name;
  Seconds all{};
  const costmodel::PieceOptions options(step.context);
  costmodel::PerPiece<PieceOps> pieces;
  for (const costmodel::StageContent& stage : step.layout.stages)
    costmodel::visit_stage(step.context, step.kinds, stage, costmodel::PieceOrder::kByKind,
                           [&](const costmodel::StagePiece& piece) {
                             pieces.get(piece, [&] { return PieceOps{ops_of(options.of(piece), piece)}; }).times +=
                                 static_cast<double>(piece.times);
                           });
  for (const PieceOps& piece : pieces)
    for (const Op& op : piece.ops) {
      const Seconds time = piece.times * costmodel::op_time(op, step.context.hardware);
      time_by_name[std::string(op.name)] += time;
      all += time;
    }
  std::map<std::string, std::pair<double, std::string>> farthest;  // by curve and property: how far, and the line
  for (const PieceOps& piece : pieces)
    for (const Op& op : piece.ops) {
      if (time_by_name.at(std::string(op.name)) < kLeastShare * all) continue;
      for (const hwprofiles::OutOfRange& outside : hwprofiles::outside_of_fit(op, profile)) {
        const double end = outside.value < outside.low ? outside.low : outside.high;
        const double distance = std::abs(std::log(std::max(outside.value, 1.0) / std::max(end, 1.0)));
        auto& entry = farthest[outside.curve + outside.property];
        if (entry.second.empty() || distance > entry.first)
          entry = {distance, fmt::format("{} ({})", outside.text(), op.name)};
      }
    }
  std::vector<std::string> lines;
  lines.reserve(farthest.size());
  for (auto& entry : farthest) lines.push_back(std::move(entry.second.second));
  return lines;
}

}  // namespace foldwise::planner
