// Do splits for the busiest rank and the list of splits that are tried keep their promises? On synthetic costs.
#include "costmodel/step/stage_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace foldwise::costmodel::stage_split_test {
namespace {

/// A model whose pieces take known times, in forward only.
struct Synthetic {
  ModelSpec model;
  ModelKinds kinds;
  ModelCosts costs;
  [[nodiscard]] double layer(std::size_t i) const {
    return costs.covered[static_cast<std::size_t>(kinds.kind[i])].forward.compute.to<double>();
  }
  [[nodiscard]] double embedding() const { return costs.embedding.forward.compute.to<double>(); }
  [[nodiscard]] double head() const { return costs.head.forward.compute.to<double>(); }
  [[nodiscard]] double mtp() const { return costs.mtp.forward.compute.to<double>(); }
};

Synthetic synthetic(const std::vector<MlpKind>& layers, std::int64_t mtp_layers, const std::function<Seconds()>& time) {
  Synthetic s;
  for (const MlpKind mlp : layers) s.model.layers.push_back({.mlp = mlp});
  s.model.mtp_num_layers = mtp_layers;
  if (mtp_layers > 0) s.model.mtp_layers = {s.model.layers.back()};
  s.kinds = model_kinds(s.model);
  for (std::size_t k = 0; k < s.kinds.kinds.size(); ++k) {
    s.costs.covered.emplace_back().forward.compute = time();
    s.costs.saving.emplace_back();
  }
  for (BlockCost* piece : {&s.costs.embedding, &s.costs.head, &s.costs.mtp}) piece->forward.compute = time();
  return s;
}

Seconds any_time() { return Seconds{static_cast<double>(*rc::gen::inRange(1, 1000)) * 1e-6}; }

/// Seconds of each rank.
std::vector<double> work_of(const Synthetic& s, const StageLayout& split, std::int64_t pp) {
  std::vector<double> work(static_cast<std::size_t>(pp), 0.0);
  for (std::size_t i = 0; i < split.stages.size(); ++i) {
    const StageContent& stage = split.stages[i];
    double& rank = work[i % work.size()];
    for (std::int64_t n = 0; n < stage.num_layers; ++n)
      rank += s.layer(static_cast<std::size_t>(stage.first_layer + n));
    rank += (stage.embedding ? s.embedding() : 0.0) + (stage.loss ? s.head() : 0.0) +
            static_cast<double>(stage.mtp_layers) * s.mtp();
  }
  return work;
}

/// Visits every way to divide the layers in order, with MTP in the last stage or the one before.
void every_split(const Synthetic& s, std::size_t stages, bool mtp_before_loss,
                 const std::function<void(const StageLayout&)>& visit) {
  const auto layers = static_cast<std::int64_t>(s.model.layers.size());
  const std::size_t mtp_stage = stages - (s.model.mtp_num_layers > 0 && mtp_before_loss ? 2 : 1);
  StageLayout split;
  const std::function<void(std::int64_t)> cut = [&](std::int64_t first) {
    const std::size_t i = split.stages.size();
    if (i == stages) {
      if (first == layers) visit(split);
      return;
    }
    for (std::int64_t n = 0; n <= (i > mtp_stage ? 0 : layers - first); ++n) {
      split.stages.push_back({.first_layer = first,
                              .num_layers = n,
                              .embedding = i == 0,
                              .mtp_layers = i == mtp_stage ? s.model.mtp_num_layers : 0,
                              .loss = i + 1 == stages});
      cut(first + n);
      split.stages.pop_back();
    }
  };
  cut(0);
}

/// Expects a valid layout string for Megatron: nothing lost, MTP in the last stage of its rank.
void expect_whole(const Synthetic& s, const StageLayout& split, std::int64_t pp, std::int64_t vpp) {
  const std::string text = to_layout_string(split);
  const ParsedLayout parsed =
      parse_layout(text, static_cast<std::int64_t>(s.model.layers.size()), s.model.mtp_num_layers);
  RC_ASSERT(parsed.error.empty());
  RC_ASSERT(*parsed.stages == split);
  RC_ASSERT(static_cast<std::int64_t>(split.stages.size()) == pp * vpp);
  for (std::size_t i = 0; i < split.stages.size(); ++i)
    if (split.stages[i].mtp_layers > 0) RC_ASSERT(static_cast<std::int64_t>(i) >= (vpp - 1) * pp);
}

// Has no split of equal layers a less busy rank?
RC_GTEST_PROP(RankBalancedStages, NoSplitOfEqualLayersHasALessBusyRank, ()) {
  const auto layers = *rc::gen::inRange<std::size_t>(1, 9);
  const std::int64_t pp = *rc::gen::inRange(2, 5), vpp = *rc::gen::inRange(1, 7 - static_cast<int>(pp)),
                     mtp = *rc::gen::inRange(0, 3);
  const bool before_loss = *rc::gen::arbitrary<bool>();
  const Synthetic s = synthetic(std::vector<MlpKind>(layers, MlpKind::kMoe), mtp, any_time);
  const auto busiest = [&](const StageLayout& split) {
    const std::vector<double> work = work_of(s, split, pp);
    return *std::max_element(work.begin(), work.end());
  };
  double least = std::numeric_limits<double>::infinity();
  every_split(s, static_cast<std::size_t>(pp * vpp), before_loss,
              [&](const StageLayout& split) { least = std::min(least, busiest(split)); });
  const StageLayout split = rank_balanced_stages(s.kinds, s.costs, mtp, before_loss, pp, vpp);
  expect_whole(s, split, pp, vpp);
  RC_ASSERT(busiest(split) <= least * (1.0 + 1e-9));
}

// Are the splits that are tried distinct and whole, with the even ones where they exist and the balanced ones?
RC_GTEST_PROP(SplitsToTry, AreDistinctAndWholeAndHoldTheOnesThatMatter, ()) {
  std::vector<MlpKind> layers(*rc::gen::inRange<std::size_t>(1, 16), MlpKind::kMoe);
  std::fill_n(layers.begin(), *rc::gen::inRange<std::size_t>(0, layers.size()), MlpKind::kDense);
  const std::int64_t pp = *rc::gen::inRange(1, 5), vpp = pp == 1 ? 1 : *rc::gen::inRange(1, 4),
                     mtp = *rc::gen::inRange(0, 2), count = static_cast<std::int64_t>(layers.size());
  const Synthetic s = synthetic(layers, mtp, any_time);
  const std::vector<StageLayout> splits = splits_to_try(s.model, s.kinds, s.costs, pp, vpp);
  for (std::size_t i = 0; i < splits.size(); ++i) {
    expect_whole(s, splits[i], pp, vpp);
    RC_ASSERT(std::find(splits.begin(), splits.begin() + static_cast<std::ptrdiff_t>(i), splits[i]) ==
              splits.begin() + static_cast<std::ptrdiff_t>(i));
  }
  const auto has = [&](const StageLayout& split) {
    return std::find(splits.begin(), splits.end(), split) != splits.end();
  };
  if (count % (pp * vpp) == 0) RC_ASSERT(has(even_stages(count, mtp, pp, vpp)));
  if (pp > 1 && (count + 2) % (pp * vpp) == 0) RC_ASSERT(has(even_stages(count, mtp, pp, vpp, true, true)));
  if (pp > 1) {
    RC_ASSERT(has(balanced_stages(s.kinds, s.costs, mtp, pp, vpp)));
    RC_ASSERT(has(rank_balanced_stages(s.kinds, s.costs, mtp, false, pp, vpp)));
    RC_ASSERT(has(rank_balanced_stages(s.kinds, s.costs, mtp, true, pp, vpp)));
  }
}

// Hybrid models take no layout string: has theirs only Megatron's own split, or none?
TEST(SplitsToTry, OfAHybridModelAreEven) {
  Synthetic s = synthetic(std::vector<MlpKind>(12, MlpKind::kMoe), 0, [] { return Seconds{1e-3}; });
  s.model.hybrid = true;
  EXPECT_THAT(splits_to_try(s.model, s.kinds, s.costs, 2, 2), testing::ElementsAre(even_stages(12, 0, 2, 2)));
  EXPECT_THAT(splits_to_try(s.model, s.kinds, s.costs, 5, 1), testing::IsEmpty());
}

}  // namespace
}  // namespace foldwise::costmodel::stage_split_test
