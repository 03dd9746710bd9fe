#include "hwprofiles/records/import.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "costmodel/config/input_file.h"
#include "costmodel/config/json.h"
#include "costmodel/config/plain_text.h"
#include "hwprofiles/load/fields.h"
#include "hwprofiles/records/foreign.h"
#include "hwprofiles/records/nccl_tests.h"

namespace foldwise::hwprofiles {
namespace {

using nlohmann::json;

constexpr std::int64_t kMostRows = 1'000'000'000'000;  // Per matrix.

/// The number if in (0, most], else 0.
double positive(const json& node, double most) {
  const double value = node.is_number() ? node.get<double>() : 0.0;
  return value > 0.0 && value <= most ? value : 0.0;
}

/// A number from 1 to `most` in one of our own tables. Throws std::out_of_range.
double from_one(double value, double most) {
  if (!(value >= 1.0 && value <= most)) throw std::out_of_range(fmt::format("{:g}", value));
  return value;
}
std::int64_t row_count(double value) {
  return static_cast<std::int64_t>(from_one(value, static_cast<double>(kMostRows)));
}

Measurement gemm(const std::string& format, const std::string& phase, std::int64_t m, std::int64_t n, std::int64_t k) {
  Measurement measurement;
  measurement.kernel = "gemm";
  measurement.of = {{"format", format}, {"phase", phase}};
  measurement.shape = {{"m", m}, {"n", n}, {"k", k}};
  measurement.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  measurement.correct = true;
  return measurement;
}

// --- PyTorch profiler ---------------------------------------------------------------------------------------------

using Sizes = std::vector<std::int64_t>;

std::optional<std::vector<Sizes>> input_sizes(const json& arguments) {
  const json& list = child(arguments, "Input Dims");
  if (!list.is_array()) return std::nullopt;
  std::vector<Sizes> result;
  for (const json& dims : list) {
    Sizes sizes;
    if (dims.is_array())
      for (const json& dim : dims)
        if (const double size = positive(dim, static_cast<double>(kMostRows)); size >= 1.0)
          sizes.push_back(static_cast<std::int64_t>(size));
    result.push_back(std::move(sizes));
  }
  return result;
}

std::optional<std::string> format_of(const json& arguments) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kFormats{
      {{"c10::BFloat16", "bf16"}, {"float", "fp32"}, {"double", "fp64"}, {"c10::Float8_e4m3fn", "fp8"}}};
  for (const json& type : child(arguments, "Input type"))
    for (const auto& [name, format] : kFormats)
      if (type.is_string() && type.get<std::string>() == name) return std::string(format);
  return std::nullopt;
}

bool is_product(const json& event) {
  const std::string op = text_of(event, "name");
  return text_of(event, "cat") == "cpu_op" && (op == "aten::mm" || op == "aten::addmm" || op == "aten::bmm");
}

/// The GEMM of a matrix-multiply op; nullopt if its shapes are unknown. A batched product counts as a grouped GEMM.
std::optional<Measurement> product(const json& event) {
  const std::string op = text_of(event, "name");
  const json& arguments = child(event, "args");
  const std::size_t first = op == "aten::addmm" ? 1 : 0;
  const auto sizes = input_sizes(arguments);
  const auto format = format_of(arguments);
  if (!sizes || !format || sizes->size() < first + 2) return std::nullopt;
  const Sizes &a = (*sizes)[first], &b = (*sizes)[first + 1];
  if (op != "aten::bmm") {
    if (a.size() != 2 || b.size() != 2) return std::nullopt;
    return gemm(*format, "forward", a[0], b[1], a[1]);
  }
  if (a.size() != 3 || b.size() != 3 || a[0] > kMostRows / a[1]) return std::nullopt;
  Measurement measurement = gemm(*format, "forward", a[1], b[2], a[2]);
  if (a[0] == 1) return measurement;
  measurement.kernel = "grouped_gemm";
  measurement.of["distribution"] = "balanced";
  measurement.shape = {{"groups", a[0]}, {"rows", a[0] * a[1]}, {"n", b[2]}, {"k", a[2]}, {"max_rows", a[1]}};
  measurement.flops *= static_cast<double>(a[0]);
  return measurement;
}

/// Kernels carry the "External id" of the op that launched them. On a CPU the op itself does the work.
Records read_trace(const json& root, const std::string& name, const ImportOptions& options) {
  Records records{.file = name};
  std::map<std::int64_t, double> kernel_time;  // by external id
  const auto external = [](const json& event) -> std::int64_t {
    for (const char* key : {"External id", "external id"})
      if (const json& id = child(child(event, "args"), key); id.is_number_integer()) return id.get<std::int64_t>();
    return -1;
  };
  const json& events = root.at("traceEvents");
  for (const json& event : events)
    if (text_of(event, "cat") == "kernel" && external(event) >= 0)
      kernel_time[external(event)] += positive(child(event, "dur"), kMostMicroseconds);
  const bool on_device = !kernel_time.empty();

  std::string device = options.device;
  if (const json& devices = child(root, "deviceProperties"); device.empty() && devices.is_array() && !devices.empty())
    device = text_of(devices.front(), "name");
  if (device.empty()) device = on_device ? "unknown GPU" : "CPU";
  records.sessions.push_back({.id = name, .program = "PyTorch profiler", .started = "", .device = device});

  std::map<std::string, Measurement> by_setting;
  std::size_t products = 0, without_shapes = 0, without_times = 0;
  for (const json& event : events) {
    if (!is_product(event)) continue;
    ++products;
    std::optional<Measurement> measurement = product(event);
    if (!measurement) {
      ++without_shapes;
      continue;
    }
    const auto ran = kernel_time.find(external(event));
    const double time = !on_device                 ? positive(child(event, "dur"), kMostMicroseconds)
                        : ran == kernel_time.end() ? 0.0
                                                   : ran->second;
    if (!(time > 0.0 && time <= kMostMicroseconds)) {
      ++without_times;
      continue;
    }
    measurement->session = name;
    by_setting.try_emplace(setting_of(*measurement), *measurement).first->second.samples_us.push_back(time);
  }
  for (auto& entry : by_setting) records.measurements.push_back(std::move(entry.second));
  if (records.measurements.empty())
    refuse_import(name, 0, "a PyTorch trace without matrix products of known shape: record it with record_shapes=True");
  const auto left_out = [&](std::size_t count, const char* why) {
    if (count > 0)
      records.warnings.push_back(
          {{name, 0, ""}, fmt::format("{} of {} matrix products are left out: {}", count, products, why)});
  };
  left_out(without_shapes, "their shapes or formats cannot be read");
  left_out(without_times, "no kernel ran for them, or their times cannot be read");
  return records;
}

}  // namespace

std::vector<Measurement> import_linear_layers(const nlohmann::ordered_json& kernels, const std::string& gpu) {
  const auto& sweep = kernels.at("gemm");
  const auto& table = sweep.at("tflops_by_NxK").at(gpu);
  std::vector<Measurement> measurements;
  for (const auto& format : table.items()) {
    if (!format.value().is_object()) continue;  // the name of the table's file
    const std::string name = format.key() == "bfloat16" ? "bf16" : format.key();
    for (const auto& weight : format.value().items()) {
      const std::size_t times = weight.key().find('x');
      const std::int64_t n = row_count(std::stod(weight.key().substr(0, times))),
                         k = row_count(std::stod(weight.key().substr(times + 1)));
      for (std::size_t i = 0; i < sweep.at("M").size(); ++i) {
        const auto& tflops = weight.value().at(i);
        if (tflops.is_null()) continue;
        Measurement measurement = gemm(name, "forward", row_count(sweep.at("M").at(i).get<double>()), n, k);
        if (name != "bf16") measurement.of["includes"] = "quantize";
        measurement.samples_us = {measurement.flops / (tflops.get<double>() * 1e12) * 1e6};
        measurements.push_back(std::move(measurement));
      }
    }
  }
  return measurements;
}

namespace {

/// All data of one GPU: linear layers and collectives.
Records read_aiconfigurator(const nlohmann::ordered_json& kernels, const std::string& name,
                            const ImportOptions& options) {
  const auto& gemms = kernels.at("gemm").at("tflops_by_NxK");
  if (!gemms.contains(options.device)) {
    std::string known;
    for (const auto& gpu : gemms.items()) known += (known.empty() ? "" : ", ") + gpu.key();
    refuse_import(name, 0, fmt::format("tables of several GPUs: give --device-name, one of {}", known));
  }
  Records records{.file = name};
  records.sessions.push_back({.id = name, .program = "aiconfigurator", .started = "", .device = options.device});
  records.measurements = import_linear_layers(kernels, options.device);
  for (const auto& tests : kernels.at("nccl").at("data").at(options.device).items()) {
    const std::optional<std::string> kind = collective_of(tests.key());
    if (!kind) continue;
    for (const auto& ranks : tests.value().items())
      for (const auto& row : ranks.value())
        records.measurements.push_back(collective(*kind, row_count(std::stod(ranks.key())),
                                                  from_one(row.at(0).get<double>(), kMostBytes),
                                                  from_one(row.at(1).get<double>(), kMostMicroseconds)));
  }
  for (Measurement& measurement : records.measurements) measurement.session = name;
  return records;
}

}  // namespace

std::string to_json_lines(const Records& records) {
  std::string text;
  for (const Session& session : records.sessions) text += to_json_line(session) + '\n';
  for (const Measurement& measurement : records.measurements) text += to_json_line(measurement) + '\n';
  return text;
}

Records import_text(const std::string& text, const std::string& name, const ImportOptions& options) {
  const json root = json::parse(text, nullptr, false);
  if (root.is_object() && root.contains("traceEvents") && root.at("traceEvents").is_array())
    return read_trace(root, name, options);
  if (root.is_object() && root.contains("results") && root.at("results").is_array())
    return read_nccl_json(root, text, name, options);
  if (root.is_object() && root.contains("gemm") && root.contains("nccl")) {
    try {
      return read_aiconfigurator(nlohmann::ordered_json::parse(text), name, options);
    } catch (const json::exception& error) {  // Our own tables: docs/measuring.md describes how they are made.
      refuse_import(name, 0, fmt::format("not the reduced tables of aiconfigurator: {}", error.what()));
    } catch (const std::logic_error& error) {  // std::stoll
      refuse_import(name, 0,
                    fmt::format("not the reduced tables of aiconfigurator: expected a number ({})", error.what()));
    }
  }
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (root.is_discarded() && first != std::string::npos && text[first] == '{')
    static_cast<void>(config::Document::parse(text, name));  // Reports where it is not JSON.
  if (root.is_discarded() && text.find("algbw") != std::string::npos) return read_nccl_text(text, name, options);
  refuse_import(
      name, 0,
      "expected the output of nccl-tests (text or JSON), a PyTorch profiler trace (an object with traceEvents) or the "
      "reduced tables of aiconfigurator");
}

Records import_records(const std::string& path, const ImportOptions& options) {
  return import_text(config::plain_text(config::read_input_file(path)), path, options);
}

}  // namespace foldwise::hwprofiles
