#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "kernels/cuda/blas.h"
#include "kernels/cuda/memory_kernels.h"
#include "kernels/cuda/ranks.h"
#include "kernels/cuda/settings.h"

namespace foldwise::kernels {
namespace {

using hwprofiles::Measurement;

constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;

/// A collective of a group on `count` FP32 elements, as collective_time of costmodel counts bytes.
struct Collective : Group {
  std::string kind;
  bool uneven = false;
  std::int64_t count = 0;

  /// Elements that a rank sends to `to` in an all-to-all. An uneven one sends rank 0 twice as many.
  [[nodiscard]] std::int64_t to(int destination) const {
    if (!uneven) return count / ranks;
    constexpr std::int64_t kAligned = 32;  // elements: NCCL is slower on addresses that are not multiples of 16 B
    return count / (ranks + 1) / kAligned * kAligned * (destination == 0 ? 2 : 1);
  }
  [[nodiscard]] std::int64_t offset(int destination) const {
    std::int64_t sum = 0;
    for (int d = 0; d < destination; ++d) sum += to(d);
    return sum;
  }
};

void launch(const Collective& c, Rank& rank, cudaStream_t stream) {
  const auto count = static_cast<std::size_t>(c.count);
  const std::size_t part = count / static_cast<std::size_t>(c.ranks);
  auto *send = rank.send.as<float>(), *receive = rank.receive.as<float>();
  if (c.kind == "all_reduce") {
    check(ncclAllReduce(send, receive, count, ncclFloat, ncclSum, rank.comm, stream), "all-reduce");
  } else if (c.kind == "all_gather") {
    check(ncclAllGather(send, receive, part, ncclFloat, rank.comm, stream), "all-gather");
  } else if (c.kind == "reduce_scatter") {
    check(ncclReduceScatter(send, receive, part, ncclFloat, ncclSum, rank.comm, stream), "reduce-scatter");
  } else if (c.kind == "send_recv") {
    check(ncclGroupStart(), "group");
    check(ncclSend(send, count, ncclFloat, (rank.rank + 1) % c.ranks, rank.comm, stream), "send");
    check(ncclRecv(receive, count, ncclFloat, (rank.rank + c.ranks - 1) % c.ranks, rank.comm, stream), "receive");
    check(ncclGroupEnd(), "send and receive");
  } else {  // all_to_all, as PyTorch issues it
    const std::int64_t mine = c.to(rank.rank);
    check(ncclGroupStart(), "group");
    for (int peer = 0; peer < c.ranks; ++peer) {
      check(ncclSend(send + c.offset(peer), static_cast<std::size_t>(c.to(peer)), ncclFloat, peer, rank.comm, stream),
            "send");
      check(ncclRecv(receive + peer * mine, static_cast<std::size_t>(mine), ncclFloat, peer, rank.comm, stream),
            "receive");
    }
    check(ncclGroupEnd(), "all-to-all");
  }
}

/// Share of received elements that are wrong. Rank r sends (r + 1) * ramp.
double wrong_share(const Collective& c, Ranks& ranks) {
  std::atomic<std::int64_t> wrong{0};
  ranks.each([&](Rank& rank) {
    cudaStream_t stream = rank.communication;
    const std::int64_t part = c.count / c.ranks;
    fill_ramp(rank.send.as<float>(), static_cast<float>(rank.rank + 1), 0, c.count, stream);
    check(cudaMemsetAsync(rank.receive.data(), 0xff, rank.receive.size(), stream), "poison");
    launch(c, rank, stream);
    const float* received = rank.receive.as<float>();
    const int all_ranks = c.ranks * (c.ranks + 1) / 2;
    const auto sum = static_cast<float>(all_ranks);
    if (c.kind == "all_reduce") {
      wrong += ramp_errors(received, sum, 0, c.count, stream);
    } else if (c.kind == "reduce_scatter") {
      wrong += ramp_errors(received, sum, rank.rank * part, part, stream);
    } else if (c.kind == "send_recv") {
      wrong += ramp_errors(received, static_cast<float>((rank.rank + c.ranks - 1) % c.ranks + 1), 0, c.count, stream);
    } else {
      const bool gather = c.kind == "all_gather";
      const std::int64_t size = gather ? part : c.to(rank.rank), first = gather ? 0 : c.offset(rank.rank);
      for (int peer = 0; peer < c.ranks; ++peer)
        wrong += ramp_errors(received + peer * size, static_cast<float>(peer + 1), first, size, stream);
    }
  });
  return ranks.largest(static_cast<double>(wrong) / static_cast<double>(c.count * c.ranks));
}

/// The larger of the bytes that a rank sends and receives over the links.
double wire_bytes(const Collective& c) {
  const double full = 4.0 * static_cast<double>(c.count), others = static_cast<double>(c.ranks - 1);
  if (c.kind == "all_reduce") return 2.0 * full * others / c.ranks;
  if (c.kind == "send_recv") return full;
  if (c.uneven) return 4.0 * static_cast<double>(c.to(0)) * others;
  return full * others / c.ranks;
}

// Keeps the communicators of one group: creating one takes longer than most settings, and the buffers of all would not
// fit.
class Communicators {
 public:
  Ranks& of(const Collective& c, int most_ctas = 0) {
    if (group_ != std::pair(c.ranks, c.world)) made_.clear();
    group_ = {c.ranks, c.world};
    std::unique_ptr<Ranks>& found = made_[most_ctas];
    const int devices = c.world == nullptr ? c.ranks : c.ranks / c.world->size();
    if (!found) found = std::make_unique<Ranks>(c.world, devices, kMostBytes, most_ctas);
    return *found;
  }

 private:
  std::pair<int, const World*> group_;
  std::map<int, std::unique_ptr<Ranks>> made_;  ///< By number of thread blocks that NCCL may use.
};

// NVLink 4, NVIDIA H100 architecture white paper: 450 GB/s each way.
constexpr double kLinkBytesPerUs = 450e3;

Setting collective_setting(const std::shared_ptr<Communicators>& communicators, const Effort& effort,
                           const Collective& c) {
  Setting setting{.measurement = {.kernel = "collective",
                                  .of = {{"collective", c.kind}, {"distribution", c.uneven ? "uneven" : "even"}},
                                  .shape = {{"ranks", c.ranks}, {"bytes", 4 * c.count}},
                                  .bytes = wire_bytes(c)},
                  .floor_us = c.of_domain < c.ranks ? 0.0 : wire_bytes(c) / kLinkBytesPerUs,
                  .world = c.world,
                  .run = [=](Measurement& m) {
                    Ranks& ranks = communicators->of(c);
                    m.max_relative_error = wrong_share(c, ranks);
                    m.correct = m.max_relative_error == 0.0;
                    if (!m.correct) return;
                    m.warmups = 10;
                    m.samples_us =
                        ranks.time(effort, true, [c](Rank& rank, cudaStream_t stream) { launch(c, rank, stream); });
                  }};
  if (c.uneven) setting.measurement.shape["max_bytes"] = 4 * c.to(0) * c.ranks;
  if (c.of_domain < c.ranks) setting.measurement.shape["ranks_per_domain"] = c.of_domain;
  return setting;
}

Collective of(const Group& group, const char* kind, bool uneven, std::int64_t bytes) {
  return {group, kind, uneven, bytes / 4 / group.ranks * group.ranks};
}

}  // namespace

std::vector<Setting> collective_settings(const Topology& topology, const Effort& effort, bool quick) {
  const auto communicators = std::make_shared<Communicators>();
  std::vector<Setting> settings;
  for (const Group& group : topology.groups())
    for (const char* kind : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"})
      for (std::int64_t bytes = 1 << 10; bytes <= kMostBytes; bytes *= quick ? 32 : 2)
        for (const bool uneven : {false, true})
          if (!uneven || (std::string(kind) == "all_to_all" && bytes >= 1 << 14))
            settings.push_back(collective_setting(communicators, effort, of(group, kind, uneven, bytes)));
  return settings;
}

namespace {

/// Compute kernels that run beside a collective on every rank.
class Compute {
 public:
  virtual ~Compute() = default;
  virtual void launch(Rank& rank, cudaStream_t stream) = 0;
  /// Relative error of the last launch.
  virtual double error(Rank& rank) = 0;
};

Product square(std::int64_t tokens) { return {"bf16", Phase::kForward, tokens, tokens, 4096}; }

class ProductCompute : public Compute {
 public:
  ProductCompute(const Product& product, const Rank& rank)
      : product_(product),
        plan_(blas_, product, rank.compute),
        a_(bytes_of(Type::kBf16, product.n * product.k)),
        b_(bytes_of(Type::kBf16, product.m * product.k)),
        d_(bytes_of(Type::kBf16, product.m * product.n)) {
    fill_normal(a_.data(), Type::kBf16, product_.n * product_.k, 1, rank.compute);
    fill_normal(b_.data(), Type::kBf16, product_.m * product_.k, 2, rank.compute);
  }
  void launch(Rank&, cudaStream_t stream) override {
    plan_.run(a_.data(), b_.data(), d_.data(), workspace_.data(), stream);
  }
  double error(Rank& rank) override { return plan_.error(a_.data(), b_.data(), d_.data(), 0.0, rank.compute); }

 private:
  Product product_;
  Blas blas_;
  ProductPlan plan_;
  Buffer a_, b_, d_, workspace_{Blas::kWorkspaceBytes};
};

class CopyCompute : public Compute {
 public:
  CopyCompute(std::int64_t bytes, const Rank& rank)
      : bytes_(bytes), from_(static_cast<std::size_t>(bytes)), to_(static_cast<std::size_t>(bytes)) {
    fill_ramp(from_.as<float>(), 3.0F, 0, bytes_ / 4, rank.compute);
  }
  void launch(Rank&, cudaStream_t stream) override { copy(from_.data(), to_.data(), bytes_, stream); }
  double error(Rank& rank) override {
    return static_cast<double>(ramp_errors(to_.as<float>(), 3.0F, 0, bytes_ / 4, rank.compute));
  }

 private:
  std::int64_t bytes_;
  Buffer from_, to_;
};

struct Overlap {
  std::int64_t gemm_tokens = 0, copied = 0;  // the compute kernel: square(gemm_tokens), or a copy of that many bytes
  bool time_compute = true;                  // else the collective is timed
  bool beside = true;                        // else it runs alone
  Collective collective;
  int most_ctas = 0;  // of the collective; 0: NCCL decides
};

void run_overlap(Communicators& communicators, const Effort& effort, const Overlap& overlap, Measurement& m) {
  constexpr double kLargestError = 0.01;
  Ranks& ranks = communicators.of(overlap.collective, overlap.most_ctas);
  std::vector<std::unique_ptr<Compute>> compute(static_cast<std::size_t>(ranks.size()));
  ranks.each([&](Rank& rank) {
    std::unique_ptr<Compute>& mine = compute[static_cast<std::size_t>(rank.local)];
    if (overlap.gemm_tokens > 0)
      mine = std::make_unique<ProductCompute>(square(overlap.gemm_tokens), rank);
    else
      mine = std::make_unique<CopyCompute>(overlap.copied, rank);
  });
  const Work computing = [&](Rank& rank, cudaStream_t stream) {
    compute[static_cast<std::size_t>(rank.local)]->launch(rank, stream);
  };
  const Work communicating = [&](Rank& rank, cudaStream_t stream) { launch(overlap.collective, rank, stream); };
  const Work &timed = overlap.time_compute ? computing : communicating,
             &background = overlap.time_compute ? communicating : computing;
  m.max_relative_error = wrong_share(overlap.collective, ranks);
  m.warmups = 10;
  m.samples_us = ranks.time(effort, !overlap.time_compute, timed, overlap.beside ? background : Work{});
  // When a collective runs alone there is no computed result to check.
  std::vector<double> errors(compute.size(), 0.0);
  ranks.each([&](Rank& rank) {
    if (overlap.time_compute || overlap.beside)
      errors[static_cast<std::size_t>(rank.local)] = compute[static_cast<std::size_t>(rank.local)]->error(rank);
    compute[static_cast<std::size_t>(rank.local)].reset();
  });
  for (const double error : errors) m.max_relative_error = std::max(m.max_relative_error, error);
  m.max_relative_error = ranks.largest(m.max_relative_error);
  m.correct = m.max_relative_error <= kLargestError;
}

Setting overlap_setting(const std::shared_ptr<Communicators>& communicators, const Effort& effort,
                        const Overlap& overlap) {
  const Collective& collective = overlap.collective;
  Setting setting{.measurement = {.kernel = "overlap",
                                  .of = {{"compute", overlap.gemm_tokens > 0 ? "gemm" : "memory"},
                                         {"collective", collective.kind},
                                         {"measured", overlap.time_compute ? "compute" : "collective"},
                                         {"beside", overlap.beside ? "yes" : "no"}},
                                  .shape = {{"ranks", collective.ranks}, {"bytes", 4 * collective.count}}},
                  .world = collective.world,
                  .run = [=](Measurement& m) { run_overlap(*communicators, effort, overlap, m); }};
  Measurement& m = setting.measurement;
  const Product product = square(overlap.gemm_tokens);
  if (overlap.gemm_tokens > 0)
    m.shape.insert({{"m", product.m}, {"n", product.n}, {"k", product.k}});
  else
    m.shape["copied"] = overlap.copied;
  if (overlap.most_ctas > 0) m.shape["ctas"] = overlap.most_ctas;
  if (collective.of_domain < collective.ranks) m.shape["ranks_per_domain"] = collective.of_domain;
  return setting;
}

}  // namespace

std::vector<Setting> overlap_settings(const Topology& topology, const Effort& effort, bool quick) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  const auto communicators = std::make_shared<Communicators>();
  std::vector<Setting> settings;
  // Times the compute kernel and the collective, each beside the other and alone.
  const auto add = [&](const Collective& collective, int most_ctas) {
    for (const auto& [gemm_tokens, copied] :
         {std::pair{8192, std::int64_t{0}}, {4096, 0}, {0, 256 * kMiB}, {0, 64 * kMiB}})
      for (const bool time_compute : {true, false})
        for (const bool beside : {false, true})
          settings.push_back(overlap_setting(communicators, effort,
                                             {gemm_tokens, copied, time_compute, beside, collective, most_ctas}));
  };
  const std::vector<Group> all = topology.groups();
  for (const Group& group : all) {
    for (const char* kind : {"all_to_all", "all_gather", "reduce_scatter", "all_reduce", "send_recv"})
      for (const std::int64_t bytes : {16 * kMiB, 128 * kMiB, 1024 * kMiB})
        if (!quick || (bytes == 128 * kMiB && group.ranks == all.back().ranks)) add(of(group, kind, false, bytes), 0);
    for (const int most_ctas : {4, 8})
      for (const char* kind : {"all_gather", "reduce_scatter"})
        if (!quick) add(of(group, kind, false, 128 * kMiB), most_ctas);
  }
  return settings;
}

}  // namespace foldwise::kernels
