#include "hwprofiles/records/import.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "costmodel/config/input_file.h"
#include "costmodel/config/json.h"
#include "costmodel/config/number.h"
#include "hwprofiles/load/fields.h"

namespace foldwise::hwprofiles {
namespace {

using nlohmann::json;

[[noreturn]] void fail(const std::string& file, int line, std::string message) {
  throw config::ConfigError({{{file, line, ""}, std::move(message)}});
}

constexpr double kMostMicroseconds = 1e12, kMostBytes = 1e15;  // Per sample: weeks, and more bytes than a node has.
constexpr std::int64_t kMostRows = 1'000'000'000'000;          // Per matrix.

/// Lenient, for other programs' files, like text_of: a value that is not an object has no children.
const json& child(const json& node, const char* key) {
  static const json nothing;
  const auto found = node.is_object() ? node.find(key) : node.end();
  return found != node.end() ? *found : nothing;
}
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

// --- nccl-tests ---------------------------------------------------------------------------------------------------

/// Name of the program -> name of the collective. nccl-tests prints the size that collective_time calls bytes. For
/// send/receive both are the message size.
std::optional<std::string> collective_of(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kNames{{{"all_reduce", "all_reduce"},
                                                                                 {"all_gather", "all_gather"},
                                                                                 {"reduce_scatter", "reduce_scatter"},
                                                                                 {"alltoall", "all_to_all"},
                                                                                 {"sendrecv", "send_recv"}}};
  for (const auto& [program, collective] : kNames)
    if (text.find(program) != std::string_view::npos || text == collective) return std::string(collective);
  return std::nullopt;
}

Measurement collective(const std::string& kind, std::int64_t ranks, double bytes, double microseconds) {
  Measurement measurement;
  measurement.kernel = "collective";
  measurement.of = {{"collective", kind}, {"distribution", "even"}};
  measurement.shape = {{"ranks", ranks}, {"bytes", static_cast<std::int64_t>(bytes)}};
  measurement.bytes = bytes;
  measurement.samples_us = {microseconds};
  measurement.correct = true;
  return measurement;
}

/// Parses a word as a number from 0 to `most`.
double number_up_to(const std::string& word, double most, const char* what, const config::Location& where) {
  const auto number = config::number_in<double>(word);
  if (!number || !(*number >= 0.0 && *number <= most))
    throw config::ConfigError({{where, fmt::format("expected {}, at most {:g}, found \"{}\"", what, most, word)}});
  return *number;
}

/// Data that both output formats of nccl-tests have.
struct NcclRun {
  std::string program, device, version;
  std::int64_t ranks = 0;
  std::vector<std::pair<double, double>> rows;  ///< Bytes and microseconds, out of place.
  double bus = 0.0, algorithm = 0.0;            ///< GB/s of the row with the highest, as printed with two decimals.
};

/// Number of ranks from the ratio of bus and algorithm bandwidth (doc/PERFORMANCE.md of nccl-tests): 2 (n - 1) / n for
/// all-reduce, (n - 1) / n for the others, 1 for send and receive.
std::int64_t ranks_by_bandwidths(const NcclRun& run, const std::string& kind, const std::string& name) {
  constexpr double kRounding = 0.005;  // GB/s: half a unit of the last digit.
  const double most = kind == "all_reduce" ? 2.0 : 1.0;
  const auto ranks = [&](double bus, double algorithm) {
    const double share = bus / algorithm / most;  // (n - 1) / n
    return share < 1.0 ? 1.0 / (1.0 - share) : std::numeric_limits<double>::infinity();
  };
  const auto fails = [&](const std::string& found) {
    fail(name, 0, fmt::format("nccl-tests output without a device list: {}; give --ranks", found));
  };
  if (kind == "send_recv" || !(run.algorithm > 0.0)) fails("the bandwidths do not tell the number of ranks");
  const double low = ranks(run.bus - kRounding, run.algorithm + kRounding),
               high = ranks(run.bus + kRounding, run.algorithm - kRounding);
  const double least = std::ceil(std::max(2.0, low)), largest = std::floor(high);
  if (!(least <= largest)) fails(fmt::format("no number of ranks has busbw {} and algbw {}", run.bus, run.algorithm));
  if (!(largest < least + 1.0))
    fails(fmt::format("busbw {} and algbw {} are those of {:.0f} to {:.0f} ranks", run.bus, run.algorithm, least,
                      largest));
  return static_cast<std::int64_t>(least);
}

/// The line without labels of `srun -l` ("0: "), `mpirun --tag-output` ("[1,0]<stdout>:") or others ("[0]"), which also
/// stand before text that a program flushed in the middle of a line.
std::string without_labels(std::string line) {
  static const std::regex label(R"(^\s*(\[\d+\](?!\d)|\[\d+,\d+\](?:<std\w+>)?:?|\d+:(?=\s|#|$)))");
  constexpr std::size_t kLongest = 64;
  const std::string start = line.substr(0, kLongest);
  std::smatch found;
  if (!std::regex_search(start, found, label)) return line;
  const std::string text = found[1];
  line.erase(0, static_cast<std::size_t>(found.length()));
  if (text.front() == '[')
    for (std::size_t at = line.find(text); at != std::string::npos; at = line.find(text, at))
      line.replace(at, text.size(), " ");
  return line;
}

Records records_of(const NcclRun& run, const std::string& name, const ImportOptions& options) {
  const std::optional<std::string> kind = collective_of(options.collective.empty() ? run.program : options.collective);
  const std::string device = options.device.empty() ? run.device : options.device;
  if (!kind)
    fail(name, 0,
         "nccl-tests output that does not name its collective: give --collective all_reduce, all_gather, "
         "reduce_scatter, "
         "all_to_all or send_recv");
  if (device.empty()) fail(name, 0, "nccl-tests output without a device list: give --device-name \"NVIDIA H200\"");
  const std::int64_t ranks = options.ranks > 0 ? options.ranks
                             : run.ranks > 0   ? run.ranks
                                               : ranks_by_bandwidths(run, *kind, name);
  if (ranks < 2) fail(name, 0, fmt::format("expected 2 ranks or more, found {}", ranks));
  if (run.ranks > 0 && ranks != run.ranks)
    fail(name, 0, fmt::format("--ranks is {}, but the device list has {}", ranks, run.ranks));
  Records records{.file = name};
  records.sessions.push_back({.id = name,
                              .program = "nccl-tests",
                              .started = "",
                              .device = device,
                              .devices = static_cast<int>(ranks),
                              .libraries = {{"nccl", run.version}}});
  for (const auto& [bytes, time] : run.rows) {
    if (!(bytes > 0.0 && bytes <= kMostBytes && time > 0.0 && time <= kMostMicroseconds)) continue;
    records.measurements.push_back(collective(*kind, ranks, bytes, time));
    records.measurements.back().session = name;
  }
  if (records.measurements.empty()) fail(name, 0, "nccl-tests output without a row of results");
  return records;
}

/// Columns: size count type [redop] [root] | time algbw busbw #wrong out of place | the same in place. The number of
/// columns before the times depends on the collective, so columns are counted from the end.
NcclRun read_nccl_text(const std::string& text, const std::string& name) {
  NcclRun run;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line = without_labels(std::move(line));
    std::istringstream words(line);
    std::vector<std::string> word{std::istream_iterator<std::string>(words), {}};
    if (word.empty()) continue;
    if (word.front().front() == '#') {
      if (word.front() != "#") continue;
      if (word.size() > 2 && word[1] == "Rank") {
        ++run.ranks;  // "#  Rank  0 Group  0 Pid 811 on host device  0 [0000:19:00] NVIDIA H200"
        if (const std::size_t bus = line.find("] "); bus != std::string::npos) run.device = line.substr(bus + 2);
      } else if (const std::size_t starting = line.find("starting: "); starting != std::string::npos) {
        run.program = line.substr(starting + 10);
      } else if (const std::size_t library = line.find("nccl-library="); library != std::string::npos) {
        run.version = line.substr(library + 13);
      }
      continue;
    }
    if (word.front().find_first_not_of("0123456789") != std::string::npos) continue;
    if (word.size() < 11)
      fail(name, number,
           fmt::format("expected a row of nccl-tests (size, count, type, ..., and twice time, algbw, busbw, #wrong), "
                       "found {} words",
                       word.size()));
    run.rows.emplace_back(
        number_up_to(word.front(), kMostBytes, "a size in bytes", {name, number, "size"}),
        number_up_to(word[word.size() - 8], kMostMicroseconds, "a time in microseconds", {name, number, "time"}));
    constexpr double kMostBandwidth = 1e6;  // GB/s
    const double algorithm =
        number_up_to(word[word.size() - 7], kMostBandwidth, "a bandwidth in GB/s", {name, number, "algbw"});
    if (algorithm > run.algorithm) {
      run.algorithm = algorithm;
      run.bus = number_up_to(word[word.size() - 6], kMostBandwidth, "a bandwidth in GB/s", {name, number, "busbw"});
    }
  }
  return run;
}

/// nccl-tests --json (2.17 and later).
NcclRun read_nccl_json(const json& root, const std::string& text, const std::string& name) {
  NcclRun run;
  for (const json& argument : child(root, "args"))
    if (argument.is_string() && run.program.empty() && collective_of(argument.get<std::string>()))
      run.program = argument.get<std::string>();
  run.version = text_of(root, "nccl_version");
  const json& configured = child(child(root, "config"), "devices");
  const json& devices = configured.is_array() ? configured : child(root, "devices");
  run.ranks = devices.is_array() ? static_cast<std::int64_t>(devices.size()) : 0;
  if (run.ranks > 0) run.device = text_of(devices.front(), "device_name");
  const json& rows = root.at("results");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool placed = child(rows[i], "out_of_place").is_object();
    const auto number = [&](const json& row, const char* key, double most, const char* what, const char* below) {
      const json& value = child(row, key);
      if (value.is_number() && value.get<double>() >= 0.0 && value.get<double>() <= most) return value.get<double>();
      const std::string field = fmt::format("/results/{}{}/{}", i, below, key);
      const config::Document document = config::Document::parse(text, name);
      throw config::ConfigError({{{name, document.line(field), field},
                                  fmt::format("expected {}, at most {:g}, found {}", what, most,
                                              value.is_null() ? "nothing" : value.dump())}});
    };
    run.rows.emplace_back(number(rows[i], "size", kMostBytes, "a size in bytes", ""),
                          number(placed ? rows[i].at("out_of_place") : rows[i], "time", kMostMicroseconds,
                                 "a time in microseconds", placed ? "/out_of_place" : ""));
  }
  return run;
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
    fail(name, 0, "a PyTorch trace without matrix products of known shape: record it with record_shapes=True");
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
    fail(name, 0, fmt::format("tables of several GPUs: give --device-name, one of {}", known));
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
    return records_of(read_nccl_json(root, text, name), name, options);
  if (root.is_object() && root.contains("gemm") && root.contains("nccl")) {
    try {
      return read_aiconfigurator(nlohmann::ordered_json::parse(text), name, options);
    } catch (const json::exception& error) {  // Our own tables: docs/measuring.md describes how they are made.
      fail(name, 0, fmt::format("not the reduced tables of aiconfigurator: {}", error.what()));
    } catch (const std::logic_error& error) {  // std::stoll
      fail(name, 0, fmt::format("not the reduced tables of aiconfigurator: expected a number ({})", error.what()));
    }
  }
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (root.is_discarded() && first != std::string::npos && text[first] == '{')
    static_cast<void>(config::Document::parse(text, name));  // Reports where it is not JSON.
  if (root.is_discarded() && text.find("algbw") != std::string::npos)
    return records_of(read_nccl_text(text, name), name, options);
  fail(name, 0,
       "expected the output of nccl-tests (text or JSON), a PyTorch profiler trace (an object with traceEvents) or the "
       "reduced "
       "tables of aiconfigurator");
}

Records import_records(const std::string& path, const ImportOptions& options) {
  return import_text(config::read_input_file(path), path, options);
}

}  // namespace foldwise::hwprofiles
