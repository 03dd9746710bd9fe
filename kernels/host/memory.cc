#include <tbb/parallel_for.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/host/settings.h"

namespace foldwise::kernels {
namespace {

using hwprofiles::Measurement;

/// Operands of an operation on rows x width FP32 elements.
struct Tensors {
  std::int64_t rows = 0, width = 0;
  std::vector<float> x, y;       ///< Inputs. x is twice as wide, for gated activations.
  std::vector<float> out, m, v;  ///< Results and optimizer states.
  std::vector<std::int64_t> order;

  Tensors(std::int64_t row_count, std::int64_t columns) : rows(row_count), width(columns) {
    const auto count = static_cast<std::size_t>(rows * width);
    x.resize(2 * count);
    y.resize(count);
    out.resize(count);
    m.assign(count, 0.25F);
    v.assign(count, 0.5F);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.01F * static_cast<float>(i % 197) - 0.9F;
    for (std::size_t i = 0; i < count; ++i) y[i] = 0.02F * static_cast<float>(i % 89) - 0.8F;
    for (std::size_t i = 0; i < count; ++i) out[i] = 0.001F * static_cast<float>(i % 31);
    // A permutation of the rows with a large odd stride.
    for (std::int64_t row = 0; row < rows; ++row) order.push_back((row * 7919 + 13) % rows);
  }
  [[nodiscard]] std::size_t at(std::int64_t row, std::int64_t column = 0) const {
    return static_cast<std::size_t>(row * width + column);
  }
};

template <typename Real>
Real silu(Real value) {
  return value / (Real{1} + std::exp(-value));
}

/// An operation on one row, and the expected element of `out` in double, from the tensors before the row ran.
struct Operation {
  const char* name;
  double bytes;  ///< Read and written per element.
  void (*run)(Tensors&, std::int64_t row);
  double (*expected)(const Tensors&, std::int64_t row, std::int64_t column);
};

template <typename Real>
Real mean_square(const float* row, std::int64_t width) {
  Real sum = 0;
  for (std::int64_t i = 0; i < width; ++i) sum += static_cast<Real>(row[i]) * static_cast<Real>(row[i]);
  return sum / static_cast<Real>(width);
}

constexpr float kRate = 1e-3F, kBeta1 = 0.9F, kBeta2 = 0.95F;

const std::array<Operation, 11> operations{{
    {"fill", 4.0, [](Tensors& t, std::int64_t r) { std::fill_n(&t.out[t.at(r)], t.width, 0.0F); },
     [](const Tensors&, std::int64_t, std::int64_t) { return 0.0; }},
    {"elementwise", 12.0,  // residual add
     [](Tensors& t, std::int64_t r) {
       const float *x = &t.x[t.at(r)], *y = &t.y[t.at(r)];
       float* out = &t.out[t.at(r)];
       for (std::int64_t i = 0; i < t.width; ++i) out[i] = x[i] + y[i];
     },
     [](const Tensors& t, std::int64_t r, std::int64_t c) {
       return static_cast<double>(t.x[t.at(r, c)]) + static_cast<double>(t.y[t.at(r, c)]);
     }},
    {"reduce", 12.0,  // gradient accumulation
     [](Tensors& t, std::int64_t r) {
       const float* x = &t.x[t.at(r)];
       float* out = &t.out[t.at(r)];
       for (std::int64_t i = 0; i < t.width; ++i) out[i] += x[i];
     },
     [](const Tensors& t, std::int64_t r, std::int64_t c) {
       return static_cast<double>(t.out[t.at(r, c)]) + static_cast<double>(t.x[t.at(r, c)]);
     }},
    {"norm_forward", 8.0,  // RMSNorm
     [](Tensors& t, std::int64_t r) {
       const float* x = &t.x[t.at(r)];
       float* out = &t.out[t.at(r)];
       const float scale = 1.0F / std::sqrt(mean_square<float>(x, t.width) + 1e-6F);
       for (std::int64_t i = 0; i < t.width; ++i) out[i] = x[i] * scale;
     },
     [](const Tensors& t, std::int64_t r, std::int64_t c) {
       return static_cast<double>(t.x[t.at(r, c)]) / std::sqrt(mean_square<double>(&t.x[t.at(r)], t.width) + 1e-6);
     }},
    {"activation_forward", 12.0,  // SwiGLU: gate and value in, one out
     [](Tensors& t, std::int64_t r) {
       const float *gate = &t.x[2 * t.at(r)], *value = gate + t.width;
       float* out = &t.out[t.at(r)];
       for (std::int64_t i = 0; i < t.width; ++i) out[i] = silu(gate[i]) * value[i];
     },
     [](const Tensors& t, std::int64_t r, std::int64_t c) {
       const float* gate = &t.x[2 * t.at(r)];
       return silu(static_cast<double>(gate[c])) * static_cast<double>(gate[t.width + c]);
     }},
    {"rope", 8.0,  // both halves of a row turned by one angle
     [](Tensors& t, std::int64_t r) {
       const float *x = &t.x[t.at(r)], cosine = std::cos(static_cast<float>(r)), sine = std::sin(static_cast<float>(r));
       float* out = &t.out[t.at(r)];
       const std::int64_t half = t.width / 2;
       for (std::int64_t i = 0; i < half; ++i) {
         out[i] = x[i] * cosine - x[half + i] * sine;
         out[half + i] = x[half + i] * cosine + x[i] * sine;
       }
     },
     [](const Tensors& t, std::int64_t r, std::int64_t c) {
       const std::int64_t half = t.width / 2;
       const double cosine = std::cos(static_cast<double>(r)), sine = std::sin(static_cast<double>(r));
       const double other = t.x[t.at(r, c < half ? c + half : c - half)];
       return static_cast<double>(t.x[t.at(r, c)]) * cosine + (c < half ? -other : other) * sine;
     }},
    {"permute", 8.0,  // rows gathered in another order
     [](Tensors& t, std::int64_t r) {
       std::copy_n(&t.x[t.at(t.order[static_cast<std::size_t>(r)])], t.width, &t.out[t.at(r)]);
     },
     [](const Tensors& t, std::int64_t r, std::int64_t c) {
       return static_cast<double>(t.x[t.at(t.order[static_cast<std::size_t>(r)], c)]);
     }},
    {"strided_copy", 8.0,  // a third of each group of three heads of 64, out of an interleaved row
     [](Tensors& t, std::int64_t r) {
       float* out = &t.out[t.at(r)];
       const float* x = &t.x[2 * t.at(r)];
       for (std::int64_t i = 0; i < t.width; i += 64) std::copy_n(x + 2 * i, 64, out + i);
     },
     [](const Tensors& t, std::int64_t r, std::int64_t c) {
       return static_cast<double>(t.x[2 * t.at(r) + static_cast<std::size_t>(2 * (c / 64 * 64) + c % 64)]);
     }},
    {"amax", 4.0,
     [](Tensors& t, std::int64_t r) {
       const float* x = &t.x[t.at(r)];
       float largest = 0.0F;
       for (std::int64_t i = 0; i < t.width; ++i) largest = std::max(largest, std::abs(x[i]));
       t.out[t.at(r)] = largest;
     },
     [](const Tensors& t, std::int64_t r, std::int64_t c) {
       if (c > 0) return static_cast<double>(t.out[t.at(r, c)]);
       double largest = 0.0;
       for (std::int64_t i = 0; i < t.width; ++i)
         largest = std::max(largest, std::abs(static_cast<double>(t.x[t.at(r, i)])));
       return largest;
     }},
    {"cross_entropy", 8.0,  // softmax of a row
     [](Tensors& t, std::int64_t r) {
       const float* x = &t.x[t.at(r)];
       float* out = &t.out[t.at(r)];
       const float largest = *std::max_element(x, x + t.width);
       float sum = 0.0F;
       for (std::int64_t i = 0; i < t.width; ++i) sum += out[i] = std::exp(x[i] - largest);
       for (std::int64_t i = 0; i < t.width; ++i) out[i] /= sum;
     },
     [](const Tensors& t, std::int64_t r, std::int64_t c) {
       double sum = 0.0;
       for (std::int64_t i = 0; i < t.width; ++i) sum += std::exp(static_cast<double>(t.x[t.at(r, i)]));
       return std::exp(static_cast<double>(t.x[t.at(r, c)])) / sum;
     }},
    {"optimizer", 28.0,  // Adam
     [](Tensors& t, std::int64_t r) {
       const float* gradient = &t.x[t.at(r)];
       float *weight = &t.out[t.at(r)], *m = &t.m[t.at(r)], *v = &t.v[t.at(r)];
       for (std::int64_t i = 0; i < t.width; ++i) {
         m[i] = kBeta1 * m[i] + (1.0F - kBeta1) * gradient[i];
         v[i] = kBeta2 * v[i] + (1.0F - kBeta2) * gradient[i] * gradient[i];
         weight[i] -= kRate * m[i] / (std::sqrt(v[i]) + 1e-8F);
       }
     },
     [](const Tensors& t, std::int64_t r, std::int64_t c) {
       const double g = t.x[t.at(r, c)], b1 = kBeta1, b2 = kBeta2;
       const double m = b1 * static_cast<double>(t.m[t.at(r, c)]) + (1.0 - b1) * g;
       const double v = b2 * static_cast<double>(t.v[t.at(r, c)]) + (1.0 - b2) * g * g;
       return static_cast<double>(t.out[t.at(r, c)]) - static_cast<double>(kRate) * m / (std::sqrt(v) + 1e-8);
     }},
}};

void run(const Operation& operation, std::int64_t rows, std::int64_t width, const Effort& effort,
         Measurement& measurement) {
  Tensors tensors(rows, width);
  for (const std::int64_t row : {std::int64_t{0}, rows / 2, rows - 1}) {
    std::vector<double> expected;
    for (std::int64_t c = 0; c < width; c += 61) expected.push_back(operation.expected(tensors, row, c));
    operation.run(tensors, row);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double got = tensors.out[tensors.at(row, static_cast<std::int64_t>(i) * 61)];
      measurement.max_relative_error =
          std::max(measurement.max_relative_error, std::abs(got - expected[i]) / (std::abs(expected[i]) + 1e-3));
    }
  }
  measurement.correct = measurement.max_relative_error <= 1e-3;  // FP32 sums over a row
  if (!measurement.correct) return;
  time(measurement, effort,
       [&] { tbb::parallel_for(std::int64_t{0}, rows, [&](std::int64_t row) { operation.run(tensors, row); }); });
}

}  // namespace

std::vector<Setting> memory_settings(const Effort& effort) {
  // 4 to 16 M elements: larger than caches, like the tensors of a training step.
  constexpr std::array<std::pair<std::int64_t, std::int64_t>, 5> kShapes{
      {{1024, 4096}, {4096, 1536}, {2048, 4096}, {3072, 4096}, {8192, 2048}}};
  std::vector<Setting> settings;
  for (const Operation& operation : operations)
    for (std::size_t i = 0; i < (effort.quick ? 3 : kShapes.size()); ++i) {
      const auto [rows, width] = kShapes[i];
      settings.push_back({.measurement = {.kernel = "memory",
                                          .of = {{"op", operation.name}},
                                          .shape = {{"rows", rows}, {"width", width}},
                                          .bytes = operation.bytes * static_cast<double>(rows * width)},
                          .run = [&operation, shape = kShapes[i], effort](Measurement& measurement) {
                            run(operation, shape.first, shape.second, effort, measurement);
                          }});
    }
  return settings;
}

std::vector<Setting> copy_settings(const Effort& effort) {
  constexpr std::int64_t kBytesPerTask = 1 << 20;
  std::vector<Setting> settings;
  for (std::int64_t bytes = 16 << 20; bytes <= (256 << 20); bytes *= effort.quick ? 4 : 2)
    settings.push_back({.measurement = {.kernel = "copy",
                                        .of = {{"direction", "d2d"}},
                                        .shape = {{"bytes", bytes}},
                                        .bytes = 2.0 * static_cast<double>(bytes)},
                        .run = [bytes, effort](Measurement& measurement) {
                          const std::vector<char> from(static_cast<std::size_t>(bytes), 'a');
                          std::vector<char> to(static_cast<std::size_t>(bytes));
                          time(measurement, effort, [&] {
                            tbb::parallel_for(std::int64_t{0}, bytes / kBytesPerTask, [&](std::int64_t task) {
                              std::memcpy(&to[static_cast<std::size_t>(task * kBytesPerTask)],
                                          &from[static_cast<std::size_t>(task * kBytesPerTask)], kBytesPerTask);
                            });
                          });
                          measurement.correct = to == from;
                        }});
  return settings;
}

std::vector<Setting> launch_settings(const Effort& effort) {
  std::vector<Setting> settings;
  for (const std::int64_t kernels : {1, 16})
    settings.push_back(
        {.measurement = {.kernel = "launch", .of = {{"mode", "thread"}}, .shape = {{"kernels", kernels}}},
         .run = [kernels, effort](Measurement& measurement) {
           std::atomic<std::int64_t> ran{0};
           time(measurement, effort, [&] {
             for (std::int64_t i = 0; i < kernels; ++i)
               tbb::parallel_for(0, 64, [&](int) { ran.fetch_add(1, std::memory_order_relaxed); });
           });
           measurement.correct = ran == 64 * kernels * (effort.warmups + effort.samples);
         }});
  return settings;
}

}  // namespace foldwise::kernels
