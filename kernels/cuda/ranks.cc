#include "kernels/cuda/ranks.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <thread>

namespace foldwise::kernels {

void check(ncclResult_t status, const char* what) {
  if (status != ncclSuccess) throw std::runtime_error(std::string(what) + ": " + ncclGetErrorString(status));
}

Ranks::Ranks(const World* world, int devices, std::size_t bytes, int most_ctas) : world_(world) {
  std::vector<ncclComm_t> comms(static_cast<std::size_t>(devices));
  ncclUniqueId id;
  const int first = world_ == nullptr ? 0 : world_->rank() * devices;
  const int ranks = world_ == nullptr ? devices : world_->size() * devices;
  if (first == 0) check(ncclGetUniqueId(&id), "communicator");
  if (world_ != nullptr) world_->broadcast(&id, sizeof id);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (most_ctas > 0) {
    config.minCTAs = 1;
    config.maxCTAs = most_ctas;
  }
  check(ncclGroupStart(), "communicator");
  for (int r = 0; r < devices; ++r) {
    check(cudaSetDevice(r), "device");
    check(ncclCommInitRankConfig(&comms[static_cast<std::size_t>(r)], ranks, id, first + r, &config), "communicator");
  }
  check(ncclGroupEnd(), "communicator");
  for (int r = 0; r < devices; ++r) {
    check(cudaSetDevice(r), "device");
    ranks_.push_back(std::make_unique<Rank>());
    Rank& rank = *ranks_.back();
    rank.rank = first + r;
    rank.local = r;
    rank.comm = comms[static_cast<std::size_t>(r)];
    rank.send = Buffer(bytes);
    rank.receive = Buffer(2 * bytes);
  }
  check(cudaSetDevice(0), "device");
}

Ranks::~Ranks() {
  for (const std::unique_ptr<Rank>& rank : ranks_) ncclCommDestroy(rank->comm);
}

double Ranks::largest(double value) const {
  std::vector<double> values = {value};
  if (world_ != nullptr) world_->take_largest(values);
  return values.front();
}

void Ranks::each(const std::function<void(Rank&)>& body) {
  std::vector<std::exception_ptr> failures(ranks_.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      threads.emplace_back([&, r] {
        try {
          check(cudaSetDevice(static_cast<int>(r)), "device");
          body(*ranks_[r]);
        } catch (...) {
          failures[r] = std::current_exception();
        }
      });
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

std::vector<double> Ranks::time_units(bool communicates, const Work& work, int samples, int units,
                                      const Work& background, int background_units, bool& covered) {
  std::vector<std::vector<double>> by_rank(ranks_.size());
  std::atomic<bool> all_covered{true};
  std::barrier together(static_cast<std::ptrdiff_t>(ranks_.size()), [this]() noexcept {
    if (world_ != nullptr) world_->barrier();
  });
  each([&](Rank& rank) {
    cudaStream_t stream = communicates ? rank.communication : rank.compute;
    cudaStream_t other = communicates ? rank.compute : rank.communication;
    std::vector<Event> marks(static_cast<std::size_t>(samples) + 1);
    const Event busy, background_end;
    together.arrive_and_wait();
    if (background) {
      for (int i = 0; i < background_units; ++i) {
        background(rank, other);
        if (i == 0) check(cudaEventRecord(busy, other), "event");
      }
      check(cudaEventRecord(background_end, other), "event");
      check(cudaStreamWaitEvent(stream, busy, 0), "wait");
    }
    check(cudaEventRecord(marks[0], stream), "event");
    for (int s = 1; s <= samples; ++s) {
      for (int i = 0; i < units; ++i) work(rank, stream);
      check(cudaEventRecord(marks[static_cast<std::size_t>(s)], stream), "event");
    }
    check(cudaStreamSynchronize(stream), "work");
    check(cudaStreamSynchronize(other), "background");
    if (background && microseconds(marks.back(), background_end) < 0.0) all_covered = false;
    for (std::size_t s = 1; s < marks.size(); ++s)
      by_rank[static_cast<std::size_t>(rank.local)].push_back(microseconds(marks[s - 1], marks[s]) / units);
  });
  covered = largest(all_covered ? 0.0 : 1.0) == 0.0;
  std::vector<double> slowest = by_rank[0];
  for (const std::vector<double>& rank : by_rank)
    for (std::size_t s = 0; s < slowest.size(); ++s) slowest[s] = std::max(slowest[s], rank[s]);
  if (world_ != nullptr) world_->take_largest(slowest);
  return slowest;
}

std::vector<double> Ranks::time(const Effort& effort, bool communicates, const Work& work, const Work& background) {
  constexpr int kWarmups = 5, kMostUnits = 100;
  constexpr double kMostSampleUs = 4e3;  // upper bound for each of ten samples of the largest collective
  bool covered = true;
  const auto once = [&](bool on_communication, const Work& unit) {
    return time_units(on_communication, unit, 2, kWarmups, {}, 0, covered).back();
  };
  const double unit_us = once(communicates, work);
  const int units = std::clamp(static_cast<int>(std::ceil(kMostSampleUs / 2.0 / unit_us)), 1, kMostUnits);
  if (!background) return time_units(communicates, work, effort.samples, units, {}, 0, covered);
  const double background_us = once(!communicates, background);
  // Kernels behind a collective are launched as graphs: a stream takes a thousand launches before the host must wait,
  // and a slow collective covers more short kernels than that.
  constexpr double kGraphUs = 1e3;
  const int in_graph = communicates ? static_cast<int>(std::ceil(kGraphUs / background_us)) : 1;
  std::vector<std::unique_ptr<Graph>> graphs(ranks_.size());
  Work behind = background;
  if (communicates) {
    each([&](Rank& rank) {
      graphs[static_cast<std::size_t>(rank.local)] = std::make_unique<Graph>(rank.compute, [&] {
        for (int i = 0; i < in_graph; ++i) background(rank, rank.compute);
      });
    });
    behind = [&graphs](Rank& rank, cudaStream_t stream) {
      graphs[static_cast<std::size_t>(rank.local)]->launch(stream);
    };
  }
  // The background slows the work. Starts with twice the background to cover it, and doubles until it does.
  double cover = 2.0 * unit_us * units * effort.samples / (background_us * in_graph);
  for (;; cover *= 2.0) {
    std::vector<double> samples =
        time_units(communicates, work, effort.samples, units, behind, static_cast<int>(std::ceil(cover)) + 1, covered);
    if (covered) return samples;
    constexpr double kMostCover = 1e5;
    if (cover > kMostCover) throw Unsupported("the work never ends before its background");
  }
}

}  // namespace foldwise::kernels
