#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "kernels/cuda/blas.h"
#include "kernels/cuda/settings.h"

namespace foldwise::kernels {
namespace {

using hwprofiles::Measurement;

constexpr std::array kPhases{Phase::kForward, Phase::kDgrad, Phase::kWgrad};
// BF16 rounds to 2^-9. FP8 products accumulated in the tensor core keep about 14 bits of each partial sum.
constexpr double kLargestError = 0.01;

struct Linear {
  std::int64_t out, in;
};

// Weights of linear layers of Llama 3, Mixtral, Qwen 2 and 3, DeepSeek V2 and V3 and GPT-3, complete and split by
// tensor parallelism, and some widths that are not multiples of a tile.
constexpr std::array kLinears{
    Linear{4096, 4096},   Linear{6144, 4096},  Linear{28672, 4096}, Linear{4096, 14336},  Linear{10240, 8192},
    Linear{8192, 8192},   Linear{57344, 8192}, Linear{8192, 28672}, Linear{1536, 7168},   Linear{24576, 1536},
    Linear{32768, 512},   Linear{7168, 16384}, Linear{4096, 7168},  Linear{7168, 2048},   Linear{36864, 7168},
    Linear{7168, 18432},  Linear{2048, 2048},  Linear{3072, 2048},  Linear{1536, 2048},   Linear{2048, 768},
    Linear{2816, 2048},   Linear{2048, 1408},  Linear{5120, 2048},  Linear{22016, 4096},  Linear{4096, 11008},
    Linear{3584, 3584},   Linear{37888, 3584}, Linear{3584, 18944}, Linear{12288, 12288}, Linear{36864, 12288},
    Linear{16384, 16384}, Linear{32064, 4096}, Linear{37984, 2048}, Linear{7168, 4096},   Linear{4096, 3584},
    Linear{1280, 8192},   Linear{8192, 1024},  Linear{14336, 8192}, Linear{640, 7168},    Linear{2304, 5120}};

Product product_of(const std::string& format, Phase phase, Linear linear, std::int64_t tokens) {
  switch (phase) {
    case Phase::kForward:
      return {format, phase, tokens, linear.out, linear.in};
    case Phase::kDgrad:
      return {format, phase, tokens, linear.in, linear.out};
    case Phase::kWgrad:
      return {format, phase, linear.out, linear.in, tokens};
  }
  throw std::logic_error("phase");
}

double flops_of(const Product& p) {
  return 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
}

double floor_us(const DeviceFacts& facts, const std::string& format, double flops, double bytes) {
  return 1e6 * std::max(flops / facts.peak(format), bytes / facts.memory_rate);
}

// Memory of one product.
struct Operands {
  const void *a, *b;
  void* d;
};

Operands take(Device& device, const Product& p) {
  const ProductTypes types = types_of(p);
  return {device.pool(types.a).take(bytes_of(types.a, p.n * p.k)),
          device.pool(types.b).take(bytes_of(types.b, p.m * p.k)), device.results().take(bytes_of(types.d, p.m * p.n))};
}

// Initialises the result: the sum that wgrad adds to; for other phases NaN.
double prepare(void* d, const Product& p, cudaStream_t stream) {
  constexpr float kBefore = 0.5F;
  if (p.phase == Phase::kWgrad) {
    fill(static_cast<float*>(d), kBefore, p.m * p.n, stream);
    return kBefore;
  }
  check(cudaMemsetAsync(d, 0xff, bytes_of(types_of(p).d, p.m * p.n), stream), "poison");
  return 0.0;
}

void note_error(Measurement& measurement, double error) {
  measurement.max_relative_error = std::max(measurement.max_relative_error, error);
  measurement.correct = measurement.max_relative_error <= kLargestError;
}

struct Handles {
  Blas blas;
  Buffer workspace{Blas::kWorkspaceBytes};
};

void run_gemm(Device& device, Handles& handles, const Product& product, bool sustained, Measurement& measurement) {
  const ProductPlan plan(handles.blas, product, device.stream());
  const int rotations = device.rotations(bytes_of(product));
  std::vector<Operands> sets;
  sets.reserve(static_cast<std::size_t>(rotations));
  for (int i = 0; i < rotations; ++i) sets.push_back(take(device, product));
  const auto launch = [&](int i) {
    const Operands& set = sets[static_cast<std::size_t>(i)];
    plan.run(set.a, set.b, set.d, handles.workspace.data(), device.stream());
  };
  const double before = prepare(sets[0].d, product, device.stream());
  launch(0);
  note_error(measurement, plan.error(sets[0].a, sets[0].b, sets[0].d, before, device.stream()));
  if (!measurement.correct) return;
  sustained ? device.time_sustained(measurement, rotations, launch) : device.time(measurement, rotations, launch);
}

Setting gemm_setting(Device& device, const std::shared_ptr<Handles>& handles, const Product& p, bool sustained) {
  Setting setting{
      .measurement = {.kernel = "gemm",
                      .of = {{"format", p.format}, {"phase", name(p.phase)}},
                      .shape = {{"m", p.m}, {"n", p.n}, {"k", p.k}},
                      .flops = flops_of(p),
                      .bytes = bytes_of(p)},
      .run = [&device, handles, p, sustained](Measurement& m) { run_gemm(device, *handles, p, sustained, m); }};
  if (sustained) setting.measurement.of["load"] = "sustained";
  setting.floor_us = floor_us(device.facts(), p.format, setting.measurement.flops, setting.measurement.bytes);
  return setting;
}

std::vector<std::string> formats(const DeviceFacts& facts, bool grouped) {
  std::vector<std::string> found;
  for (const char* format : {"bf16", "fp8", "fp8_block", "mxfp8", "nvfp4"})
    if (facts.peak(format) > 0.0 && !(grouped && std::string(format) == "fp8_block")) found.emplace_back(format);
  return found;
}

}  // namespace

std::vector<Setting> gemm_settings(Device& device, bool quick) {
  constexpr std::array<std::int64_t, 6> kTokens{1024, 2048, 4096, 8192, 16384, 32768};
  constexpr double kLargestFlops = 2e13;
  const auto handles = std::make_shared<Handles>();
  std::vector<Setting> settings;
  for (const std::string& format : formats(device.facts(), false))
    for (std::size_t i = 0; i < kLinears.size(); i += quick ? 13 : 1)
      for (const Phase phase : kPhases) {
        // Two of the token counts, which vary with weight and phase. Every fifth weight has uneven counts.
        const std::size_t first = (i + static_cast<std::size_t>(phase)) % 3;
        for (const std::size_t t : {first, first + 3}) {
          const std::int64_t tokens = kTokens[t] - (i % 5 == 4 ? 208 : 0);
          const Product product = product_of(format, phase, kLinears[i], tokens);
          if (flops_of(product) <= kLargestFlops) settings.push_back(gemm_setting(device, handles, product, false));
        }
      }
  // Few rows for large weights, as for experts: bound by the memory bandwidth for weights and gradients.
  constexpr std::array kLarge{Linear{4096, 14336}, Linear{28672, 8192}, Linear{6144, 16384},
                              Linear{65536, 6144}, Linear{6144, 32768}, Linear{3072, 4096}};
  constexpr std::array<std::int64_t, 6> kFewTokens{64, 128, 256, 384, 512, 768};
  for (const std::string& format : formats(device.facts(), true))
    for (std::size_t i = 0; i < (quick ? 0 : kLarge.size()); ++i)
      for (const Phase phase : kPhases)
        for (const std::int64_t tokens : kFewTokens)
          settings.push_back(gemm_setting(device, handles, product_of(format, phase, kLarge[i], tokens), false));
  constexpr std::array kSustained{Linear{28672, 4096}, Linear{8192, 8192}};
  for (const std::string& format : formats(device.facts(), false))
    for (const Phase phase : kPhases)
      for (std::size_t i = 0; i < (quick ? 1 : kSustained.size()); ++i)
        if (!quick || phase == Phase::kForward)
          settings.push_back(gemm_setting(device, handles, product_of(format, phase, kSustained[i], 8192), true));
  return settings;
}

namespace {

constexpr int kStreams = 4;  // TransformerEngine, pytorch/module/grouped_linear.py

struct GroupedHandles {
  Blas blas;
  std::vector<Stream> streams = std::vector<Stream>(kStreams);
  std::vector<Buffer> workspaces;
  Event fork{cudaEventDisableTiming};
  std::vector<Event> joins;
  GroupedHandles() {
    for (int i = 0; i < kStreams; ++i) {
      workspaces.emplace_back(Blas::kWorkspaceBytes);
      joins.emplace_back(cudaEventDisableTiming);
    }
  }
};

// Rows by group, `mean` on average, in multiples of 32 (padding of FP8 experts). Skewed: proportional to 1 / (1 + i),
// so that the fullest of 8 experts has 2.9 times the mean.
std::vector<std::int64_t> rows_by_group(std::int64_t groups, std::int64_t mean, bool skewed) {
  constexpr std::int64_t kMultiple = 32;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(groups), mean);
  if (!skewed) return rows;
  double weights = 0.0;
  for (std::int64_t i = 0; i < groups; ++i) weights += 1.0 / static_cast<double>(1 + i);
  std::int64_t left = mean * groups;
  for (std::int64_t i = groups - 1; i > 0; --i) {
    const double share = static_cast<double>(mean * groups) / static_cast<double>(1 + i) / weights;
    rows[static_cast<std::size_t>(i)] =
        std::max(kMultiple, static_cast<std::int64_t>(std::lround(share / kMultiple)) * kMultiple);
    left -= rows[static_cast<std::size_t>(i)];
  }
  rows[0] = std::max(kMultiple, left);
  return rows;
}

struct Grouped {
  std::string format;
  Phase phase = Phase::kForward;
  Linear linear{};
  std::vector<std::int64_t> rows;  // by group
  [[nodiscard]] Product product(std::size_t group) const { return product_of(format, phase, linear, rows[group]); }
};

void run_grouped(Device& device, GroupedHandles& handles, const Grouped& grouped, Measurement& measurement) {
  std::vector<ProductPlan> plans;
  for (std::size_t g = 0; g < grouped.rows.size(); ++g)
    plans.emplace_back(handles.blas, grouped.product(g), device.stream());
  std::vector<std::vector<Operands>> sets(static_cast<std::size_t>(device.rotations(measurement.bytes)));
  for (std::vector<Operands>& set : sets)
    for (std::size_t g = 0; g < plans.size(); ++g) set.push_back(take(device, grouped.product(g)));
  const auto launch = [&](int i) {
    check(cudaEventRecord(handles.fork, device.stream()), "fork");
    for (const Stream& stream : handles.streams) check(cudaStreamWaitEvent(stream, handles.fork, 0), "fork");
    for (std::size_t g = 0; g < plans.size(); ++g) {
      const Operands& set = sets[static_cast<std::size_t>(i)][g];
      plans[g].run(set.a, set.b, set.d, handles.workspaces[g % kStreams].data(), handles.streams[g % kStreams]);
    }
    for (std::size_t s = 0; s < kStreams; ++s) {
      check(cudaEventRecord(handles.joins[s], handles.streams[s]), "join");
      check(cudaStreamWaitEvent(device.stream(), handles.joins[s], 0), "join");
    }
  };
  double before = 0.0;
  for (std::size_t g = 0; g < plans.size(); ++g) before = prepare(sets[0][g].d, grouped.product(g), device.stream());
  launch(0);
  for (const std::size_t g : {std::size_t{0}, plans.size() - 1}) {
    const Operands& set = sets[0][g];
    note_error(measurement, plans[g].error(set.a, set.b, set.d, before, device.stream()));
  }
  if (measurement.correct) device.time(measurement, static_cast<int>(sets.size()), launch);
}

Setting grouped_setting(Device& device, const std::shared_ptr<GroupedHandles>& handles, const Grouped& grouped,
                        bool skewed) {
  const std::int64_t rows = std::accumulate(grouped.rows.begin(), grouped.rows.end(), std::int64_t{0});
  const Product product = product_of(grouped.format, grouped.phase, grouped.linear, rows);
  Setting setting{.measurement = {.kernel = "grouped_gemm",
                                  .of = {{"format", grouped.format},
                                         {"phase", name(grouped.phase)},
                                         {"distribution", skewed ? "skewed" : "balanced"}},
                                  .shape = {{"groups", static_cast<std::int64_t>(grouped.rows.size())},
                                            {"rows", rows},
                                            {"max_rows", *std::max_element(grouped.rows.begin(), grouped.rows.end())}},
                                  .flops = flops_of(product)},
                  .run = [&device, handles, grouped](Measurement& m) { run_grouped(device, *handles, grouped, m); }};
  // Each weight is n x k and its tokens have k columns. In wgrad each output is k x n.
  Measurement& m = setting.measurement;
  m.shape["n"] = product.n;
  m.shape["k"] = grouped.phase == Phase::kWgrad ? product.m : product.k;
  for (std::size_t g = 0; g < grouped.rows.size(); ++g) m.bytes += bytes_of(grouped.product(g));
  setting.floor_us = floor_us(device.facts(), grouped.format, m.flops, m.bytes);
  return setting;
}

}  // namespace

std::vector<Setting> grouped_gemm_settings(Device& device, bool quick) {
  // Experts of Mixtral, DeepSeek V2 Lite, Qwen 3 30B and DeepSeek V3.
  constexpr std::array kExperts{Linear{28672, 4096}, Linear{4096, 14336}, Linear{2816, 2048}, Linear{2048, 1408},
                                Linear{1536, 2048},  Linear{2048, 768},   Linear{4096, 7168}, Linear{7168, 2048}};
  constexpr std::array<std::int64_t, 6> kGroups{2, 4, 8, 16, 32, 64};
  constexpr std::array<std::int64_t, 8> kRows{64, 128, 256, 512, 1024, 2048, 4096, 8192};
  constexpr std::int64_t kMostRows = 131072;
  constexpr double kMostWeights = 2.2e9;  // elements of all experts: 8.8 GB of FP32 gradients
  const auto handles = std::make_shared<GroupedHandles>();
  std::vector<Setting> settings;
  for (const std::string& format : formats(device.facts(), true))
    for (std::size_t e = 0; e < kExperts.size(); e += quick ? 5 : 1)
      for (std::size_t g = 0; g < kGroups.size(); ++g)
        for (std::size_t r = 0; r < kRows.size(); ++r) {
          const Linear& linear = kExperts[e];
          // One in eight combinations: each expert meets each number of groups once, with different rows each time.
          if ((r + 3 * g + e) % 8 != 0) continue;
          if (kGroups[g] * kRows[r] > kMostRows ||
              static_cast<double>(linear.out * linear.in * kGroups[g]) > kMostWeights)
            continue;
          for (const Phase phase : kPhases)
            for (const bool skewed : {false, true})
              settings.push_back(grouped_setting(
                  device, handles, {format, phase, linear, rows_by_group(kGroups[g], kRows[r], skewed)}, skewed));
        }
  // As in training: the experts of a rank share its rows. Experts of Qwen 3 235B, GPT-OSS 120B, DeepSeek V3 and Qwen 3
  // 30B; every second combination.
  constexpr std::array kSmall{Linear{3072, 4096}, Linear{4096, 1536}, Linear{5760, 2880}, Linear{2880, 2880},
                              Linear{4096, 7168}, Linear{7168, 2048}, Linear{1536, 2048}, Linear{2048, 768}};
  constexpr std::array<std::int64_t, 5> kExpertsOfRank{4, 8, 16, 32, 64};
  constexpr std::array<std::int64_t, 3> kRowsOfRank{16384, 32768, 65536};
  for (const std::string& format : formats(device.facts(), true))
    for (std::size_t e = 0; e < kSmall.size(); e += quick ? 3 : 1)
      for (std::size_t g = 0; g < kExpertsOfRank.size(); ++g)
        for (std::size_t r = 0; r < kRowsOfRank.size(); ++r) {
          if ((r + g + e / 2) % 2 != 0) continue;
          for (const Phase phase : kPhases)
            settings.push_back(grouped_setting(
                device, handles,
                {format, phase, kSmall[e], rows_by_group(kExpertsOfRank[g], kRowsOfRank[r] / kExpertsOfRank[g], false)},
                false));
        }
  // Few rows for the largest experts, Mixtral 8x22B and Llama 3 8x70B: bound by weights and gradients.
  constexpr std::array kLarge{Linear{32768, 6144}, Linear{6144, 16384}, Linear{57344, 8192}, Linear{8192, 28672}};
  constexpr std::array<std::int64_t, 3> kFewGroups{2, 4, 8};
  constexpr std::array<std::int64_t, 5> kFewRows{256, 512, 1024, 2048, 4096};
  for (const std::string& format : formats(device.facts(), true))
    for (std::size_t e = 0; e < kLarge.size(); e += quick ? 3 : 1)
      for (std::size_t g = 0; g < kFewGroups.size(); ++g)
        for (std::size_t r = 0; r < kFewRows.size(); ++r) {
          if ((r + g + e) % 2 != 0) continue;
          if (static_cast<double>(kLarge[e].out * kLarge[e].in * kFewGroups[g]) > kMostWeights) continue;
          for (const Phase phase : kPhases)
            settings.push_back(grouped_setting(
                device, handles, {format, phase, kLarge[e], rows_by_group(kFewGroups[g], kFewRows[r], false)}, false));
        }
  return settings;
}

}  // namespace foldwise::kernels
