// Measures this machine's CPU: memory copy and double-precision GEMM. Prints one record a line (hwprofiles/records).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <Eigen/Core>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "hwprofiles/records/record.h"

namespace {

using Record = foldwise::hwprofiles::Measurement;
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line))
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown CPU";
}

// Calls `kernel` a few times unmeasured, then `samples` times; the caller rotates its buffers.
void measure(Record& record, int samples, const std::function<void(int)>& kernel) {
  record.warmups = 3;
  for (int i = 0; i < record.warmups; ++i) kernel(i);
  for (int i = 0; i < samples; ++i) {
    const auto start = std::chrono::steady_clock::now();
    kernel(i);
    record.samples_us.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
}

Record copy(std::int64_t bytes, int samples) {
  Record record{.kernel = "copy",
                .of = {{"direction", "d2d"}},
                .shape = {{"bytes", bytes}},
                .bytes = 2.0 * static_cast<double>(bytes)};
  const auto size = static_cast<std::size_t>(bytes);
  std::vector<std::vector<char>> from(3, std::vector<char>(size)), to(3, std::vector<char>(size));
  for (std::size_t i = 0; i < from.size(); ++i) std::fill(from[i].begin(), from[i].end(), static_cast<char>('a' + i));
  measure(record, samples, [&](int i) {
    std::memcpy(to[static_cast<std::size_t>(i % 3)].data(), from[static_cast<std::size_t>(i % 3)].data(), size);
  });
  record.correct = to == from;
  return record;
}

Record gemm(std::int64_t m, std::int64_t n, std::int64_t k, int samples) {
  Record record{.kernel = "gemm",
                .of = {{"format", "fp64"}, {"phase", "forward"}},
                .shape = {{"m", m}, {"n", n}, {"k", k}},
                .flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k),
                .bytes = 8.0 * static_cast<double>(m * k + k * n + m * n)};
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  const Matrix a = Matrix::NullaryExpr(m, k, [&] { return uniform(random); }),
               b = Matrix::NullaryExpr(k, n, [&] { return uniform(random); });
  Matrix c = Matrix::Zero(m, n);
  measure(record, samples, [&](int) { c.noalias() = a * b; });
  // Rows of the product by plain sums.
  record.correct = true;
  for (const std::int64_t row : {std::int64_t{0}, m / 2, m - 1}) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < k; ++i) sum += a(row, i) * b(i, n - 1);
    record.correct = record.correct && std::abs(sum - c(row, n - 1)) <= 1e-10 * static_cast<double>(k);
  }
  return record;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measure this machine's CPU; one JSON record a line on stdout");
  int samples = 15;
  app.add_option("--samples", samples, "Timed calls per setting")->check(CLI::Range(1, 10000));
  CLI11_PARSE(app, argc, argv);
  std::vector<Record> records;
  for (std::int64_t bytes = 1 << 20; bytes <= (64 << 20); bytes *= 8) records.push_back(copy(bytes, samples));
  for (const std::int64_t size : {128, 256, 512}) records.push_back(gemm(size, size, size, samples));
  const foldwise::hwprofiles::Session session{
      .id = "host",
      .program = "foldwise-kernels",
      .started = "",
      .device = cpu_name(),
      .libraries = {{"eigen", fmt::format("{}.{}.{}", EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION)}}};
  fmt::print("{}\n", foldwise::hwprofiles::to_json_line(session));
  for (Record& record : records) {
    record.session = session.id;
    fmt::print("{}\n", foldwise::hwprofiles::to_json_line(record));
    if (!record.correct) return 1;
  }
  return 0;
}
