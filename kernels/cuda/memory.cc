#include <cuda_fp8.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "kernels/cuda/memory_kernels.h"
#include "kernels/cuda/settings.h"

namespace foldwise::kernels {
namespace {

using hwprofiles::Measurement;

double decode(Bf16 x) { return static_cast<double>(__bfloat162float(x)); }
double decode(float x) { return static_cast<double>(x); }
double decode(__nv_fp8_e4m3 x) { return static_cast<double>(static_cast<float>(x)); }
double decode(std::uint8_t x) { return static_cast<double>(x); }

/// Copies `count` elements of device memory, `stride` elements apart, to float64.
template <typename T>
std::vector<double> read(const T* from, std::int64_t count, std::int64_t stride = 1) {
  std::vector<T> raw(static_cast<std::size_t>(count));
  check(stride == 1 ? cudaMemcpy(raw.data(), from, raw.size() * sizeof(T), cudaMemcpyDeviceToHost)
                    : cudaMemcpy2D(raw.data(), sizeof(T), from, static_cast<std::size_t>(stride) * sizeof(T), sizeof(T),
                                   raw.size(), cudaMemcpyDeviceToHost),
        "result");
  std::vector<double> values;
  values.reserve(raw.size());
  for (const T& x : raw) values.push_back(decode(x));
  return values;
}

/// Accumulates ||out - reference|| / ||reference||.
class RelativeError {
 public:
  void add(double out, double reference) {
    differences_ += (out - reference) * (out - reference);
    references_ += reference * reference;
  }
  [[nodiscard]] double value() const {
    const double error = std::sqrt(differences_ / std::max(references_, 1e-300));
    return std::isfinite(error) ? error : 1e300;
  }

 private:
  double differences_ = 0.0, references_ = 0.0;
};

std::vector<std::int64_t> sampled(std::int64_t count) {
  std::vector<std::int64_t> found;
  for (const std::int64_t i : {std::int64_t{0}, std::int64_t{1}, count / 3, count / 2 + 1, count - 2, count - 1})
    if (i >= 0 && i < count) found.push_back(i);
  return found;
}

Bf16* bf16(Device& device, std::int64_t elements) {
  return static_cast<Bf16*>(device.pool(Type::kBf16).take(bytes_of(Type::kBf16, elements)));
}
float* fp32(Device& device, std::int64_t elements) {
  return static_cast<float*>(device.pool(Type::kFp32).take(bytes_of(Type::kFp32, elements)));
}
/// Memory for a result, filled with NaN.
template <typename T>
T* result(Device& device, std::int64_t elements) {
  const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(T);
  void* data = device.results().take(bytes);
  check(cudaMemsetAsync(data, 0xff, bytes, device.stream()), "poison");
  return static_cast<T*>(data);
}
template <typename T>
T* upload(Device& device, const std::vector<T>& values) {
  T* data = result<T>(device, static_cast<std::int64_t>(values.size()));
  check(cudaMemcpyAsync(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, device.stream()),
        "upload");
  device.synchronize();
  return data;
}

// Rounding of the result: E4M3 has 3 fraction bits (mean error 2.6 %), BF16 7.
constexpr double kLargestError = 0.005, kLargestE4m3Error = 0.035;

/// Makes a setting with several operand sets: `take` allocates one, `launch` runs on it, `error` checks one launch.
template <typename Take, typename Launch, typename Error>
Setting setting_of(Device& device, const char* op, const char* variant,
                   const std::map<std::string, std::int64_t>& shape, double bytes, double largest_error, Take take,
                   Launch launch, Error error) {
  return {.measurement = {.kernel = "memory", .of = {{"op", op}, {"variant", variant}}, .shape = shape, .bytes = bytes},
          .floor_us = 1e6 * bytes / device.facts().memory_rate,
          .run = [=, &device](Measurement& m) {
            const int rotations = device.rotations(bytes);
            std::vector<decltype(take(device))> sets;
            sets.reserve(static_cast<std::size_t>(rotations));
            for (int i = 0; i < rotations; ++i) sets.push_back(take(device));
            device.synchronize();
            const auto run = [&](int i) { launch(sets[static_cast<std::size_t>(i)], device.stream()); };
            m.max_relative_error = error(device, sets[0], [&] { run(0); });
            m.correct = m.max_relative_error <= largest_error;
            if (m.correct) device.time(m, static_cast<int>(sets.size()), run);
          }};
}

struct Shape {
  std::int64_t rows, width;
  [[nodiscard]] std::int64_t elements() const { return rows * width; }
  [[nodiscard]] double bytes(double per_element, double per_row = 0.0) const {
    return per_element * static_cast<double>(elements()) + per_row * static_cast<double>(rows);
  }
  [[nodiscard]] std::map<std::string, std::int64_t> map() const { return {{"rows", rows}, {"width", width}}; }
};

Setting add_setting(Device& device, Shape s) {
  struct Set {
    Bf16 *a, *b, *sum;
  };
  const std::int64_t n = s.elements();
  return setting_of(
      device, "elementwise", "residual_add", s.map(), s.bytes(6), kLargestError,
      [n](Device& d) {
        return Set{bf16(d, n), bf16(d, n), result<Bf16>(d, n)};
      },
      [n](const Set& set, cudaStream_t stream) { add(set.a, set.b, set.sum, n, stream); },
      [s](Device& d, const Set& set, const auto& run) {
        run();
        d.synchronize();
        RelativeError error;
        for (const std::int64_t row : sampled(s.rows)) {
          const auto a = read(set.a + row * s.width, s.width), b = read(set.b + row * s.width, s.width),
                     sum = read(set.sum + row * s.width, s.width);
          for (std::size_t i = 0; i < sum.size(); ++i) error.add(sum[i], a[i] + b[i]);
        }
        return error.value();
      });
}

Setting accumulate_setting(Device& device, Shape s) {
  struct Set {
    Bf16* addend;
    float* gradient;
  };
  const std::int64_t n = s.elements();
  return setting_of(
      device, "reduce", "accumulate_gradient", s.map(), s.bytes(10), 1e-6,
      [n](Device& d) {
        return Set{bf16(d, n), fp32(d, n)};
      },
      [n](const Set& set, cudaStream_t stream) { accumulate(set.addend, set.gradient, n, stream); },
      [s](Device& d, const Set& set, const auto& run) {
        std::vector<std::vector<double>> before;
        for (const std::int64_t row : sampled(s.rows)) before.push_back(read(set.gradient + row * s.width, s.width));
        run();
        d.synchronize();
        RelativeError error;
        std::size_t sample = 0;
        for (const std::int64_t row : sampled(s.rows)) {
          const auto addend = read(set.addend + row * s.width, s.width),
                     after = read(set.gradient + row * s.width, s.width);
          for (std::size_t i = 0; i < after.size(); ++i) error.add(after[i], before[sample][i] + addend[i]);
          ++sample;
        }
        return error.value();
      });
}

Setting fill_setting(Device& device, Shape s) {
  return setting_of(
      device, "fill", "zero", s.map(), s.bytes(4), 0.0, [s](Device& d) { return result<float>(d, s.elements()); },
      [s](float* data, cudaStream_t stream) { fill_zero(data, s.elements(), stream); },
      [s](Device& d, float* data, const auto& run) {
        run();
        d.synchronize();
        double largest = 0.0;
        for (const std::int64_t row : sampled(s.rows))
          for (const double x : read(data + row * s.width, s.width))
            largest = std::isnan(x) ? 1e300 : std::max(largest, std::abs(x));
        return largest;
      });
}

Setting adam_setting(Device& device, Shape s) {
  struct Set {
    float *gradient, *parameter, *first, *second;
  };
  const std::int64_t n = s.elements();
  const Adam options;
  return setting_of(
      device, "optimizer", "adam", s.map(), s.bytes(28), 1e-5,
      [n](Device& d) {
        const Set set{fp32(d, n), fp32(d, n), fp32(d, n), result<float>(d, n)};
        fill(set.second, 0.5F, n, d.stream());
        return set;
      },
      [n, options](const Set& set, cudaStream_t stream) {
        adam(options, set.gradient, set.parameter, set.first, set.second, n, stream);
      },
      [s, options](Device& d, const Set& set, const auto& run) {
        std::vector<std::array<std::vector<double>, 4>> before;
        for (const std::int64_t row : sampled(s.rows)) {
          const std::int64_t at = row * s.width;
          before.push_back({read(set.gradient + at, s.width), read(set.parameter + at, s.width),
                            read(set.first + at, s.width), read(set.second + at, s.width)});
        }
        run();
        d.synchronize();
        RelativeError error;
        const auto beta1 = static_cast<double>(options.beta1), beta2 = static_cast<double>(options.beta2);
        std::size_t sample = 0;
        for (const std::int64_t row : sampled(s.rows)) {
          const std::int64_t at = row * s.width;
          const auto& [g, p, m, v] = before[sample++];
          const auto parameter = read(set.parameter + at, s.width), first = read(set.first + at, s.width),
                     second = read(set.second + at, s.width);
          for (std::size_t i = 0; i < g.size(); ++i) {
            const double moment = beta1 * m[i] + (1.0 - beta1) * g[i],
                         square = beta2 * v[i] + (1.0 - beta2) * g[i] * g[i];
            const double update = moment / static_cast<double>(options.correction1) /
                                      (std::sqrt(square / static_cast<double>(options.correction2)) +
                                       static_cast<double>(options.epsilon)) +
                                  static_cast<double>(options.decay) * p[i];
            // Relative to the parameter itself, a wrong update would be invisible.
            error.add(parameter[i] - p[i], -static_cast<double>(options.rate) * update);
            error.add(1e-3 * first[i], 1e-3 * moment);
            error.add(1e-3 * second[i], 1e-3 * square);
          }
        }
        return error.value();
      });
}

Setting norm_forward_setting(Device& device, Shape s) {
  struct Set {
    Bf16 *x, *gamma, *y;
    float* scale;
  };
  return setting_of(
      device, "norm_forward", "rms_norm", s.map(), s.bytes(4, 4), kLargestError,
      [s](Device& d) {
        return Set{bf16(d, s.elements()), bf16(d, s.width), result<Bf16>(d, s.elements()), result<float>(d, s.rows)};
      },
      [s](const Set& set, cudaStream_t stream) {
        norm_forward(set.x, set.gamma, set.y, set.scale, s.rows, s.width, stream);
      },
      [s](Device& d, const Set& set, const auto& run) {
        run();
        d.synchronize();
        RelativeError error;
        const auto gamma = read(set.gamma, s.width);
        for (const std::int64_t row : sampled(s.rows)) {
          const auto x = read(set.x + row * s.width, s.width), y = read(set.y + row * s.width, s.width);
          const double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
          const double scale =
              1.0 / std::sqrt(squares / static_cast<double>(s.width) + static_cast<double>(kNormEpsilon));
          for (std::size_t i = 0; i < y.size(); ++i) error.add(y[i], x[i] * scale * gamma[i]);
          error.add(read(set.scale + row, 1)[0], scale);
        }
        return error.value();
      });
}

Setting norm_backward_setting(Device& device, Shape s) {
  struct Set {
    Bf16 *x, *gamma, *dy, *dx;
    float *scale, *dgamma, *partial;
  };
  const int sms = device.facts().sms;
  return setting_of(
      device, "norm_backward", "rms_norm", s.map(), s.bytes(6, 4), kLargestError,
      [s, sms](Device& d) {
        const Set set{bf16(d, s.elements()),
                      bf16(d, s.width),
                      bf16(d, s.elements()),
                      result<Bf16>(d, s.elements()),
                      result<float>(d, s.rows),
                      result<float>(d, s.width),
                      result<float>(d, norm_partials(sms) * s.width)};
        norm_forward(set.x, set.gamma, set.dx, set.scale, s.rows, s.width, d.stream());
        return set;
      },
      [s, sms](const Set& set, cudaStream_t stream) {
        norm_backward(set.x, set.gamma, set.scale, set.dy, set.dx, set.dgamma, set.partial, s.rows, s.width, sms,
                      stream);
      },
      [s](Device& d, const Set& set, const auto& run) {
        run();
        d.synchronize();
        RelativeError error, dgamma_error;
        const auto gamma = read(set.gamma, s.width), scale = read(set.scale, s.rows);
        for (const std::int64_t row : sampled(s.rows)) {
          const auto x = read(set.x + row * s.width, s.width), dy = read(set.dy + row * s.width, s.width),
                     dx = read(set.dx + row * s.width, s.width);
          const double factor = scale[static_cast<std::size_t>(row)];
          double dot = 0.0;
          for (std::size_t i = 0; i < x.size(); ++i) dot += dy[i] * gamma[i] * x[i];
          const double mean = dot * factor * factor / static_cast<double>(s.width);
          for (std::size_t i = 0; i < x.size(); ++i) error.add(dx[i], factor * (dy[i] * gamma[i] - x[i] * mean));
        }
        for (const std::int64_t column : sampled(s.width)) {
          const auto x = read(set.x + column, s.rows, s.width), dy = read(set.dy + column, s.rows, s.width);
          double sum = 0.0;
          for (std::size_t i = 0; i < x.size(); ++i) sum += dy[i] * x[i] * scale[i];
          dgamma_error.add(read(set.dgamma + column, 1)[0], sum);
        }
        return std::max(error.value(), dgamma_error.value());
      });
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

Setting swiglu_forward_setting(Device& device, Shape s) {
  struct Set {
    Bf16* x;
    float* probability;
    Bf16* y;
  };
  return setting_of(
      device, "activation_forward", "swiglu_probability", s.map(), s.bytes(6, 4), kLargestError,
      [s](Device& d) {
        return Set{bf16(d, 2 * s.elements()), fp32(d, s.rows), result<Bf16>(d, s.elements())};
      },
      [s](const Set& set, cudaStream_t stream) {
        swiglu_forward(set.x, set.probability, set.y, s.rows, s.width, stream);
      },
      [s](Device& d, const Set& set, const auto& run) {
        run();
        d.synchronize();
        RelativeError error;
        for (const std::int64_t row : sampled(s.rows)) {
          const auto gate = read(set.x + 2 * row * s.width, s.width),
                     up = read(set.x + (2 * row + 1) * s.width, s.width), y = read(set.y + row * s.width, s.width);
          const double p = read(set.probability + row, 1)[0];
          for (std::size_t i = 0; i < y.size(); ++i) error.add(y[i], p * gate[i] * sigmoid(gate[i]) * up[i]);
        }
        return error.value();
      });
}

Setting swiglu_backward_setting(Device& device, Shape s) {
  struct Set {
    Bf16* x;
    float* probability;
    Bf16 *dy, *dx;
    float* dprobability;
  };
  return setting_of(
      device, "activation_backward", "swiglu_probability", s.map(), s.bytes(10, 8), kLargestError,
      [s](Device& d) {
        return Set{bf16(d, 2 * s.elements()), fp32(d, s.rows), bf16(d, s.elements()), result<Bf16>(d, 2 * s.elements()),
                   result<float>(d, s.rows)};
      },
      [s](const Set& set, cudaStream_t stream) {
        swiglu_backward(set.x, set.probability, set.dy, set.dx, set.dprobability, s.rows, s.width, stream);
      },
      [s](Device& d, const Set& set, const auto& run) {
        run();
        d.synchronize();
        RelativeError error, dp_error;
        for (const std::int64_t row : sampled(s.rows)) {
          const std::int64_t at = 2 * row * s.width;
          const auto gate = read(set.x + at, s.width), up = read(set.x + at + s.width, s.width),
                     dy = read(set.dy + row * s.width, s.width), d_gate = read(set.dx + at, s.width),
                     d_up = read(set.dx + at + s.width, s.width);
          const double p = read(set.probability + row, 1)[0];
          double dp = 0.0;
          for (std::size_t i = 0; i < dy.size(); ++i) {
            const double sig = sigmoid(gate[i]), silu = gate[i] * sig;
            dp += dy[i] * silu * up[i];
            error.add(d_gate[i], p * dy[i] * up[i] * (sig + silu * (1.0 - sig)));
            error.add(d_up[i], p * dy[i] * silu);
          }
          dp_error.add(read(set.dprobability + row, 1)[0], dp);
        }
        return std::max(error.value(), dp_error.value());
      });
}

Setting rope_setting(Device& device, std::int64_t tokens, std::int64_t heads, std::int64_t head_dim) {
  struct Set {
    Bf16* x;
    float *cosine, *sine;
    Bf16* y;
  };
  const Shape s{tokens, heads * head_dim};
  std::map<std::string, std::int64_t> shape = s.map();
  shape["head_dim"] = head_dim;
  const std::int64_t half = head_dim / 2;
  return setting_of(
      device, "rope", "halves", shape, s.bytes(4, 8.0 * static_cast<double>(half)), kLargestError,
      [=](Device& d) {
        return Set{bf16(d, s.elements()), fp32(d, tokens * half), fp32(d, tokens * half),
                   result<Bf16>(d, s.elements())};
      },
      [=](const Set& set, cudaStream_t stream) {
        rope(set.x, set.cosine, set.sine, set.y, tokens, heads, head_dim, stream);
      },
      [=](Device& d, const Set& set, const auto& run) {
        run();
        d.synchronize();
        RelativeError error;
        for (const std::int64_t token : sampled(tokens)) {
          const auto x = read(set.x + token * s.width, s.width), y = read(set.y + token * s.width, s.width),
                     cosine = read(set.cosine + token * half, half), sine = read(set.sine + token * half, half);
          for (std::size_t head = 0; head < static_cast<std::size_t>(heads); ++head)
            for (std::size_t i = 0; i < static_cast<std::size_t>(half); ++i) {
              const std::size_t a = head * static_cast<std::size_t>(head_dim) + i,
                                b = a + static_cast<std::size_t>(half);
              error.add(y[a], x[a] * cosine[i] - x[b] * sine[i]);
              error.add(y[b], x[b] * cosine[i] + x[a] * sine[i]);
            }
        }
        return error.value();
      });
}

/// Row in the expert-ordered tensor of each (token, choice). Each token chooses top_k of 64 experts at random.
std::vector<int> row_map(std::int64_t tokens, int top_k) {
  constexpr int kExperts = 64;
  std::mt19937 random(7);
  std::vector<std::vector<std::size_t>> by_expert(kExperts);
  std::array<int, kExperts> experts{};
  std::iota(experts.begin(), experts.end(), 0);
  for (std::size_t token = 0; token < static_cast<std::size_t>(tokens); ++token)
    for (std::size_t k = 0; k < static_cast<std::size_t>(top_k); ++k) {
      std::swap(experts[k], experts[k + random() % (kExperts - k)]);
      by_expert[static_cast<std::size_t>(experts[k])].push_back(token * static_cast<std::size_t>(top_k) + k);
    }
  std::vector<int> map(static_cast<std::size_t>(tokens * top_k));
  int row = 0;
  for (const std::vector<std::size_t>& choices : by_expert)
    for (const std::size_t choice : choices) map[choice] = row++;
  return map;
}

Setting permute_setting(Device& device, Shape s, int top_k, bool back) {
  struct Set {
    Bf16* x;
    int* map;
    float* probability;
    Bf16* y;
  };
  std::map<std::string, std::int64_t> shape = s.map();
  shape["top_k"] = top_k;
  const double bytes = s.bytes(2.0 * (1 + top_k), (back ? 8.0 : 4.0) * top_k);
  return setting_of(
      device, "permute", back ? "unpermute" : "permute", shape, bytes, kLargestError,
      [=](Device& d) {
        int* map = upload(d, row_map(s.rows, top_k));
        return Set{bf16(d, back ? s.elements() * top_k : s.elements()), map, fp32(d, s.rows * top_k),
                   result<Bf16>(d, back ? s.elements() : s.elements() * top_k)};
      },
      [=](const Set& set, cudaStream_t stream) {
        back ? unpermute(set.x, set.map, set.probability, set.y, s.rows, top_k, s.width, stream)
             : permute(set.x, set.map, set.y, s.rows, top_k, s.width, stream);
      },
      [=](Device& d, const Set& set, const auto& run) {
        run();
        d.synchronize();
        const std::vector<int> map = row_map(s.rows, top_k);
        RelativeError error;
        for (const std::int64_t token : sampled(s.rows)) {
          std::vector<double> sum(static_cast<std::size_t>(s.width), 0.0);
          for (int k = 0; k < top_k; ++k) {
            const std::int64_t row = map[static_cast<std::size_t>(token * top_k + k)];
            const auto there = read((back ? set.x : set.y) + row * s.width, s.width);
            const double p = read(set.probability + token * top_k + k, 1)[0];
            if (back) {
              for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += p * there[i];
            } else {
              const auto here = read(set.x + token * s.width, s.width);
              for (std::size_t i = 0; i < sum.size(); ++i) error.add(there[i], here[i]);
            }
          }
          if (!back) continue;
          const auto y = read(set.y + token * s.width, s.width);
          for (std::size_t i = 0; i < sum.size(); ++i) error.add(y[i], sum[i]);
        }
        return error.value();
      });
}

Setting router_setting(Device& device, std::int64_t tokens, std::int64_t experts, int top_k) {
  struct Set {
    float *logits, *probability;
    std::uint8_t* chosen;
  };
  const Shape s{tokens, experts};
  std::map<std::string, std::int64_t> shape = s.map();
  shape["top_k"] = top_k;
  return setting_of(
      device, "router", "top_k", shape, s.bytes(9), 1e-5,
      [s](Device& d) {
        return Set{fp32(d, s.elements()), result<float>(d, s.elements()), result<std::uint8_t>(d, s.elements())};
      },
      [=](const Set& set, cudaStream_t stream) {
        route(set.logits, set.probability, set.chosen, tokens, static_cast<int>(experts), top_k, stream);
      },
      [=](Device& d, const Set& set, const auto& run) {
        // Checks ties, too: all logits of the first token are equal.
        fill(set.logits, 0.5F, experts, d.stream());
        run();
        d.synchronize();
        RelativeError error;
        for (const std::int64_t token : sampled(tokens)) {
          const auto logits = read(set.logits + token * experts, experts),
                     probability = read(set.probability + token * experts, experts),
                     chosen = read(set.chosen + token * experts, experts);
          // The chosen logits must be the top_k largest, and the probabilities their softmax.
          std::vector<double> sorted = logits, found;
          std::sort(sorted.begin(), sorted.end(), std::greater<>());
          double sum = 0.0;
          for (std::size_t i = 0; i < logits.size(); ++i) {
            if (chosen[i] == 1.0) found.push_back(logits[i]);
            if (chosen[i] == 1.0) sum += std::exp(logits[i]);
          }
          std::sort(found.begin(), found.end(), std::greater<>());
          sorted.resize(static_cast<std::size_t>(top_k));
          if (found != sorted) return 1.0;
          for (std::size_t i = 0; i < logits.size(); ++i)
            error.add(probability[i], chosen[i] * std::exp(logits[i]) / sum);
        }
        check(cudaMemcpyAsync(set.logits, set.logits + experts, bytes_of(Type::kFp32, experts),
                              cudaMemcpyDeviceToDevice, d.stream()),
              "logits");
        return error.value();
      });
}

Setting router_backward_setting(Device& device, Shape s) {
  struct Set {
    float *probability, *d_probability, *d_logits;
  };
  return setting_of(
      device, "router", "top_k_backward", s.map(), s.bytes(12), 1e-5,
      [s](Device& d) {
        return Set{fp32(d, s.elements()), fp32(d, s.elements()), result<float>(d, s.elements())};
      },
      [s](const Set& set, cudaStream_t stream) {
        route_backward(set.probability, set.d_probability, set.d_logits, s.rows, static_cast<int>(s.width), stream);
      },
      [s](Device& d, const Set& set, const auto& run) {
        run();
        d.synchronize();
        RelativeError error;
        for (const std::int64_t token : sampled(s.rows)) {
          const auto p = read(set.probability + token * s.width, s.width),
                     dp = read(set.d_probability + token * s.width, s.width),
                     d_logits = read(set.d_logits + token * s.width, s.width);
          const double dot = std::inner_product(p.begin(), p.end(), dp.begin(), 0.0);
          for (std::size_t i = 0; i < p.size(); ++i) error.add(d_logits[i], p[i] * (dp[i] - dot));
        }
        return error.value();
      });
}

Setting amax_setting(Device& device, Shape s) {
  struct Set {
    Bf16* x;
    float* largest;
  };
  const std::int64_t n = s.elements();
  return setting_of(
      device, "amax", "tensor", s.map(), s.bytes(2), 0.0,
      [n](Device& d) {
        const Set set{bf16(d, n), result<float>(d, 1)};
        check(cudaMemsetAsync(set.largest, 0, sizeof(float), d.stream()), "zero");
        return set;
      },
      [n](const Set& set, cudaStream_t stream) { amax(set.x, n, set.largest, stream); },
      [n](Device& d, const Set& set, const auto& run) {
        run();
        d.synchronize();
        double expected = 0.0;
        for (const double x : read(set.x, n)) expected = std::max(expected, std::abs(x));
        return std::abs(read(set.largest, 1)[0] - expected) / expected;
      });
}

const char* name(Recipe recipe) {
  switch (recipe) {
    case Recipe::kTensor:
      return "tensor";
    case Recipe::kBlock:
      return "block_128x128";
    case Recipe::kVector:
      return "block_1x128";
    case Recipe::kMxfp8:
      return "mxfp8";
  }
  throw std::logic_error("recipe");
}

struct QuantizeSet {
  Bf16* x;
  float* scale;
  Quantized out;
};

/// Element (row, column) as restored from the row copy and from the column copy.
struct Restored {
  double by_row, by_column;
};

Restored restored(Recipe recipe, const QuantizeSet& set, Shape s, std::int64_t row, std::int64_t column) {
  const auto fp8 = [](const std::uint8_t* data, std::int64_t at) {
    return read(reinterpret_cast<const __nv_fp8_e4m3*>(data) + at, 1)[0];
  };
  const auto fp32_at = [](const void* data, std::int64_t at) {
    return read(static_cast<const float*>(data) + at, 1)[0];
  };
  const auto power_at = [](const void* data, std::int64_t at) {
    return std::exp2(read(static_cast<const std::uint8_t*>(data) + at, 1)[0] - 127.0);
  };
  const double by_row = fp8(set.out.by_row, row * s.width + column);
  const double by_column =
      fp8(set.out.by_column, recipe == Recipe::kMxfp8 ? row * s.width + column : column * s.rows + row);
  switch (recipe) {
    case Recipe::kTensor: {
      const double scale = fp32_at(set.scale, 0);
      return {by_row / scale, by_column / scale};
    }
    case Recipe::kBlock: {
      const double scale = fp32_at(set.out.row_scale, row / 128 * (s.width / 128) + column / 128);
      return {by_row * scale, by_column * scale};
    }
    case Recipe::kVector:
      return {by_row * fp32_at(set.out.row_scale, column / 128 * s.rows + row),
              by_column * fp32_at(set.out.column_scale, row / 128 * s.width + column)};
    case Recipe::kMxfp8:
      return {by_row * power_at(set.out.row_scale, row * (s.width / 32) + column / 32),
              by_column * power_at(set.out.column_scale, row / 32 * s.width + column)};
  }
  throw std::logic_error("recipe");
}

Setting quantize_setting(Device& device, Recipe recipe, Shape s) {
  // Per element: two FP32 scales per 128, or two bytes per 32.
  const double scales = recipe == Recipe::kVector ? 8.0 / 128 : recipe == Recipe::kMxfp8 ? 2.0 / 32 : 0.0;
  return setting_of(
      device, "quantize", name(recipe), s.map(), s.bytes(4.0 + scales), kLargestE4m3Error,
      [s](Device& d) {
        const QuantizeSet set{bf16(d, s.elements()),
                              result<float>(d, 1),
                              {result<std::uint8_t>(d, s.elements()), result<std::uint8_t>(d, s.elements()),
                               result<float>(d, s.elements() / 32), result<float>(d, s.elements() / 32)}};
        fill(set.scale, 64.0F, 1, d.stream());
        return set;
      },
      [=](const QuantizeSet& set, cudaStream_t stream) {
        quantize(recipe, set.x, set.scale, set.out, s.rows, s.width, stream);
      },
      [=](Device& d, const QuantizeSet& set, const auto& run) {
        run();
        d.synchronize();
        RelativeError row_error, column_error;
        constexpr int kSamples = 400;
        for (std::int64_t i = 0; i < kSamples; ++i) {
          const std::int64_t row = i * 7919 % s.rows, column = i * 104729 % s.width;
          const double x = read(set.x + row * s.width + column, 1)[0];
          const Restored got = restored(recipe, set, s, row, column);
          row_error.add(got.by_row, x);
          column_error.add(got.by_column, x);
        }
        return std::max(row_error.value(), column_error.value());
      });
}

}  // namespace

std::vector<Setting> memory_settings(Device& device, bool quick) {
  std::vector<Setting> settings;
  const std::vector<std::int64_t> tokens =
      quick ? std::vector<std::int64_t>{8192} : std::vector<std::int64_t>{1024, 2048, 4096, 8192, 16384, 32768};
  const auto widths = [quick](std::vector<std::int64_t> all) {
    if (quick) all = {all.front(), all.back()};
    return all;
  };
  for (const std::int64_t rows : tokens) {
    for (const std::int64_t width : widths({2048, 4096, 7168, 16384})) {
      settings.push_back(add_setting(device, {rows, width}));
      settings.push_back(amax_setting(device, {rows, width}));
      for (const Recipe recipe : {Recipe::kTensor, Recipe::kBlock, Recipe::kVector, Recipe::kMxfp8})
        settings.push_back(quantize_setting(device, recipe, {rows, width}));
    }
    for (const std::int64_t width : widths({512, 1536, 2048, 4096, 5120, 7168, 8192, 16384})) {
      settings.push_back(norm_forward_setting(device, {rows, width}));
      settings.push_back(norm_backward_setting(device, {rows, width}));
    }
    for (const std::int64_t heads : {4, 32}) {  // norms of queries and keys by head
      settings.push_back(norm_forward_setting(device, {rows * heads, 128}));
      settings.push_back(norm_backward_setting(device, {rows * heads, 128}));
      for (const std::int64_t head_dim : {64, 128}) settings.push_back(rope_setting(device, rows, heads, head_dim));
    }
    for (const std::int64_t width : widths({768, 1408, 2048, 4096, 14336})) {
      settings.push_back(swiglu_forward_setting(device, {rows, width}));
      settings.push_back(swiglu_backward_setting(device, {rows, width}));
    }
    for (const std::int64_t width : widths({2048, 4096, 7168}))
      for (const int top_k : {2, 8})
        for (const bool back : {false, true}) settings.push_back(permute_setting(device, {rows, width}, top_k, back));
  }
  std::vector<std::int64_t> routed = tokens;
  if (!quick) routed.push_back(131072);  // where bytes count, not the launch
  for (const std::int64_t rows : routed)
    for (const std::int64_t experts : {64, 128, 256}) {
      for (const int top_k : {2, 8}) settings.push_back(router_setting(device, rows, experts, top_k));
      settings.push_back(router_backward_setting(device, {rows, experts}));
    }
  constexpr std::array<std::int64_t, 5> kMillions{4, 16, 25, 64, 256};
  for (const std::int64_t millions : kMillions) {
    if (quick && millions != 64) continue;
    const Shape s{millions * 1024, 1024};
    settings.push_back(adam_setting(device, s));
    settings.push_back(accumulate_setting(device, s));
    settings.push_back(fill_setting(device, s));
  }
  return settings;
}

}  // namespace foldwise::kernels
