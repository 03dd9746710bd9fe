#include "planner/diagnose/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/iostreams/filter/gzip.hpp>
#include <boost/iostreams/filtering_stream.hpp>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "costmodel/config/counting_iterator.h"
#include "costmodel/config/diagnostics.h"
#include "costmodel/config/input_file.h"
#include "planner/diagnose/nsys.h"
#include "planner/diagnose/numbered.h"

namespace foldwise::planner {
namespace {

using nlohmann::json;

constexpr double kLatestUs = 9e15;      ///< About 285 years, so that nanoseconds fit in 64 bits.
constexpr double kLongestUs = 86400e6;  ///< A day.

constexpr std::size_t kMaxDepth = 100;  ///< Kineto nests seven levels deep. Each level costs memory.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 42;  ///< 4 TiB, so that sums over a trace fit in 64 bits.

/// The fields that we use of one element of "traceEvents".
struct Event {
  std::string phase, category, name, group, collective;
  std::string element, ranks;  ///< "BFloat16", "[0, 1]".
  std::optional<double> begin_us, duration_us;
  std::int64_t thread = -1, correlation = -1, sequence = -1;
  std::int64_t allocated = -1, reserved = -1, device_type = -1, bytes = 0, address = 0;
  std::int64_t sent = -1, received = -1, source = -1, target = -1;  ///< Elements; ranks.
  std::vector<Shape> shapes;
  bool has_shapes = false;
};

/// Bytes of a c10::ScalarType, by name.
std::int64_t bytes_of(const std::string& element) {
  static const std::map<std::string, std::int64_t> sizes = {
      {"Double", 8}, {"Long", 8}, {"UInt64", 8},   {"Float", 4}, {"Int", 4},
      {"UInt32", 4}, {"Half", 2}, {"BFloat16", 2}, {"Short", 2}, {"UInt16", 2}};
  const auto found = sizes.find(element);
  return found == sizes.end() ? 1 : found->second;
}

/// Numbers of "[0, 1]"; empty if it is truncated ("[0, 1, ...]") or not a list.
std::vector<std::int64_t> numbers_of(const std::string& text) {
  const json list = json::parse(text, nullptr, false);
  std::vector<std::int64_t> numbers;
  if (list.is_array() && std::ranges::all_of(list, [](const json& one) { return one.is_number_integer(); }))
    numbers = list.get<std::vector<std::int64_t>>();
  return numbers;
}

/// SAX handler of nlohmann-json: calls `add` for each complete event, and stores the data outside of events.
class Reader final : public nlohmann::json_sax<json> {
 public:
  Reader(Trace& trace, config::Progress& progress)
      : trace_(trace), progress_(progress), name_(trace.names), shapes_(trace.shapes), message_(trace.messages) {
    expect_value();
  }

  bool has_events() const { return has_events_; }
  /// The error that stopped reading. Its line is the last one that was read.
  const config::Diagnostic& error() const { return error_; }

  bool key(string_t& text) override {
    keys_.back() = text;
    expect_value();
    return true;
  }
  bool start_object(std::size_t /*elements*/) override {
    if (!enter()) return false;
    if (depth() == kEvent && in_events()) {
      event_ = {};
      event_begin_ = progress_.read;
      expect_value();
    }
    return true;
  }
  bool end_object() override {
    if (depth() == kEvent && in_events()) {
      const std::size_t known = distinct();
      if (!add(event_)) return false;
      if (distinct() > known) distinct_bytes_ += progress_.read - event_begin_;
      if (distinct_bytes_ > kMostDistinctBytes) {
        error_.message = fmt::format(
            "events with other names or shapes than those before take more than {} MiB: "
            "record fewer steps",
            kMostDistinctBytes >> 20U);
        return false;
      }
      if (++events_ > kMostEvents) {
        error_.message = fmt::format("more than {} events: record fewer steps", kMostEvents);
        return false;
      }
    }
    if (depth() == 4 && in_groups()) {
      if (!group_.empty()) trace_.groups.emplace(group_, ranks_);
      group_.clear();
      ranks_.clear();
    }
    keys_.pop_back();
    return true;
  }
  bool start_array(std::size_t /*elements*/) override {
    if (!enter()) return false;
    if (depth() == 2 && keys_.front() == "traceEvents") has_events_ = true;
    if (in_shapes() && depth() == kEvent + 2) event_.has_shapes = true;
    if (in_shapes() && depth() == kEvent + 3) event_.shapes.emplace_back();
    return true;
  }
  bool end_array() override {
    keys_.pop_back();
    return true;
  }
  bool string(string_t& text) override {
    if (depth() == kEvent && in_events()) {
      const std::string& key = keys_.back();
      if (key == "ph")
        event_.phase = text;
      else if (key == "cat")
        event_.category = text;
      else if (key == "name")
        event_.name = text;
    } else if (in_arguments()) {
      if (keys_.back() == "Process Group Description")
        event_.group = text;
      else if (keys_.back() == "Collective name")
        event_.collective = text;
      else if (keys_.back() == "dtype")
        event_.element = text;
      else if (keys_.back() == "Process Group Ranks")
        event_.ranks = text;
    } else if (in_groups() && keys_.back() == "pg_desc") {
      group_ = text;
    } else if (depth() > 0 && keys_.front() == "deviceProperties" && keys_.back() == "name" && trace_.device.empty()) {
      trace_.device = text;
    }
    return true;
  }
  bool number_integer(number_integer_t value) override { return number(static_cast<double>(value), value); }
  bool number_unsigned(number_unsigned_t value) override {
    return number(static_cast<double>(value), static_cast<std::int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    return number(value, std::abs(value) < 9e18 ? static_cast<std::int64_t>(value) : -1);
  }
  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool parse_error(std::size_t position, const std::string& /*token*/, const json::exception& /*error*/) override {
    error_.message =
        progress_.read >= progress_.most
            ? fmt::format("a value longer than {} MiB", kLongestValue >> 20U)
            : fmt::format("not JSON from byte {} on: cut short, or no trace of PyTorch's profiler", position);
    return false;
  }

 private:
  /// Keys of "args".
  inline static const std::unordered_map<std::string, std::int64_t Event::*> argument_of_key = {
      {"correlation", &Event::correlation},
      {"Sequence number", &Event::sequence},
      {"Total Allocated", &Event::allocated},
      {"Total Reserved", &Event::reserved},
      {"Device Type", &Event::device_type},
      {"Bytes", &Event::bytes},
      {"Addr", &Event::address},
      {"In msg nelems", &Event::sent},
      {"Out msg nelems", &Event::received},
      {"Src Rank", &Event::source},
      {"Dst Rank", &Event::target}};
  static constexpr std::int64_t kCuda = 1;  ///< Value of c10::DeviceType.
  static constexpr std::size_t kEvent = 3;  ///< Depth of an event: root, "traceEvents", event.

  /// Limits against decompression bombs: length of one value, and bytes of all distinct values.
  static constexpr std::size_t kLongestValue = std::size_t{1} << 20, kMostDistinctBytes = std::size_t{256} << 20;
  void expect_value() { progress_.most = progress_.read + kLongestValue; }
  std::size_t distinct() const { return trace_.names.size() + trace_.shapes.size() + trace_.messages.size(); }

  bool enter() {
    keys_.emplace_back();
    if (depth() > kMaxDepth) error_.message = fmt::format("nested more than {} levels deep", kMaxDepth);
    return depth() <= kMaxDepth;
  }
  std::size_t depth() const { return keys_.size(); }
  bool in_events() const { return depth() >= kEvent && keys_.front() == "traceEvents"; }
  bool in_arguments() const { return depth() == kEvent + 1 && in_events() && keys_[2] == "args"; }
  bool in_shapes() const {
    return depth() > kEvent + 1 && in_events() && keys_[2] == "args" && keys_[3] == "Input Dims";
  }
  bool in_groups() const { return depth() >= 4 && keys_.front() == "distributedInfo" && keys_[1] == "pg_config"; }

  bool number(double value, std::int64_t whole) {
    if (depth() == kEvent && in_events()) {
      const std::string& key = keys_.back();
      if (key == "ts")
        event_.begin_us = value;
      else if (key == "dur")
        event_.duration_us = value;
      else if (key == "tid")
        event_.thread = whole;
    } else if (in_arguments()) {
      if (const auto argument = argument_of_key.find(keys_.back()); argument != argument_of_key.end())
        event_.*argument->second = whole;
    } else if (in_shapes() && depth() == kEvent + 3 && !event_.shapes.empty()) {  // Empty: of an object.
      event_.shapes.back().push_back(whole);
    } else if (in_groups() && keys_[3] == "ranks") {
      ranks_.push_back(whole);
    } else if (depth() == 2 && keys_.front() == "distributedInfo") {
      if (keys_.back() == "rank") trace_.rank = whole;
      if (keys_.back() == "world_size") trace_.world_size = whole;
    }
    return true;
  }

  std::int32_t thread(std::int64_t id) {
    return threads_.emplace(id, static_cast<std::int32_t>(threads_.size())).first->second;
  }

  /// Whether the time is in range. Sets the error if not.
  bool is_time(const std::optional<double>& us, const char* key, double most) {
    if (us && *us >= 0.0 && *us <= most) return true;
    error_.where.field = fmt::format("/traceEvents/{}/{}", events_, key);
    error_.message = fmt::format("expected microseconds from 0 to {:g}, found {}", most,
                                 us ? fmt::format("{:g}", *us) : "no number");
    return false;
  }

  static std::int64_t nanoseconds(double us) { return static_cast<std::int64_t>(std::llround(us * 1e3)); }

  std::int32_t message_of(const Event& e) {
    if (e.sent < 0 && e.received < 0) return -1;
    const std::int64_t bytes = bytes_of(e.element);
    const auto clamped = [&](std::int64_t elements) {
      return std::clamp<std::int64_t>(elements, 0, kMostBytes) * bytes;
    };
    const std::vector<std::int64_t> ranks = numbers_of(e.ranks);
    const auto rank_of = [&](std::int64_t in_group) {  // c10d numbers ranks within the group.
      return in_group >= 0 && in_group < static_cast<std::int64_t>(ranks.size())
                 ? ranks[static_cast<std::size_t>(in_group)]
                 : in_group;
    };
    return message_({clamped(e.sent), clamped(e.received), ranks, rank_of(e.source), rank_of(e.target)});
  }

  /// False for a kernel without a time: its step could not be analysed.
  bool add(const Event& e) {
    if (e.name == "[memory]" && e.device_type == kCuda) {
      trace_.most_allocated = std::max(trace_.most_allocated, e.allocated);
      trace_.most_reserved = std::max(trace_.most_reserved, e.reserved);
      if (e.allocated >= 0 && e.begin_us && *e.begin_us >= 0.0 && *e.begin_us <= kLatestUs)
        trace_.allocations.push_back({nanoseconds(*e.begin_us), std::clamp(e.bytes, -kMostBytes, kMostBytes), e.address,
                                      std::min(e.allocated, kMostBytes), thread(e.thread)});
    }
    if (e.phase != "X") return true;
    const bool on_gpu = e.category == "kernel" || e.category == "gpu_memcpy" || e.category == "gpu_memset";
    if (on_gpu && !(is_time(e.begin_us, "ts", kLatestUs) && is_time(e.duration_us, "dur", kLongestUs))) return false;
    const double begin_us = e.begin_us.value_or(-1.0), duration_us = e.duration_us.value_or(0.0);
    if (!(begin_us >= 0.0 && begin_us <= kLatestUs && duration_us >= 0.0 && duration_us <= kLongestUs)) return true;
    const Span time{nanoseconds(begin_us), nanoseconds(begin_us + duration_us)};
    if (on_gpu) {
      trace_.gpu.push_back({.time = time,
                            .name = name_(e.name),
                            .group = e.group.empty() ? -1 : name_(e.group),
                            .collective = e.collective.empty() ? -1 : name_(e.collective),
                            .message = message_of(e),
                            .stream = static_cast<std::int32_t>(e.thread),
                            .correlation = e.correlation});
    } else if (e.category == "cuda_runtime" || e.category == "cuda_driver") {
      if (e.correlation >= 0) trace_.launches.insert_or_assign(e.correlation, LaunchCall{time, thread(e.thread)});
    } else if (e.category == "cpu_op" || e.category == "user_annotation") {
      if (e.source >= 0 || e.target >= 0) trace_.transfers.push_back({time.begin, thread(e.thread), message_of(e)});
      trace_.host.push_back({.time = time,
                             .name = name_(e.name),
                             .thread = thread(e.thread),
                             .sequence = e.sequence,
                             .shapes = e.has_shapes ? shapes_(e.shapes) : -1});
    } else if (e.category == "python_function" && time.length() >= kPause) {
      trace_.frames.push_back({.time = time, .name = name_(e.name), .thread = thread(e.thread)});
    }
    return true;
  }

  Trace& trace_;
  config::Progress& progress_;
  std::size_t event_begin_ = 0, distinct_bytes_ = 0;
  Numbered<std::string> name_;
  Numbered<std::vector<Shape>> shapes_;
  Numbered<Message> message_;
  std::unordered_map<std::int64_t, std::int32_t> threads_;
  std::vector<std::string> keys_;  ///< For each open object or array its current key; "" in an array.
  Event event_;
  std::size_t events_ = 0;
  std::string group_;
  config::Diagnostic error_;
  std::vector<std::int64_t> ranks_;
  bool has_events_ = false;
};

}  // namespace

void reject(const std::string& file, std::string message) {
  throw config::ConfigError({{{file, 0, ""}, std::move(message)}});
}

void Trace::sort() {
  std::ranges::stable_sort(gpu, {}, [](const GpuEvent& e) { return e.time.begin; });
  std::ranges::stable_sort(transfers, {}, &Transfer::time);
  std::ranges::stable_sort(allocations, {}, &Allocation::time);
  for (std::vector<HostEvent>* events : {&host, &frames})
    std::ranges::stable_sort(*events, {}, [](const HostEvent& e) { return std::pair(e.time.begin, -e.time.end); });
}

Trace parse_trace(std::istream& text, const std::string& name) {
  Trace trace;
  trace.file = name;
  config::Progress progress;
  Reader reader(trace, progress);
  using Stream = std::istreambuf_iterator<char>;
  if (!json::sax_parse(config::CountingIterator(Stream(text), progress), config::CountingIterator(Stream(), progress),
                       &reader)) {
    config::Diagnostic error = reader.error();
    error.where.file = name;
    error.where.line = progress.line;
    throw config::ConfigError({error});
  }
  if (!reader.has_events()) reject(name, "expected a trace of PyTorch's profiler, found JSON without \"traceEvents\"");
  if (trace.gpu.empty()) reject(name, "expected kernels (ProfilerActivity.CUDA), found none");
  trace.sort();
  return trace;
}

std::vector<Trace> read_trace(const std::string& path) {
  std::ifstream file = config::open_input_file(path);
  if (is_sqlite(path)) return read_nsys(path);
  const bool is_gzip = file.get() == 0x1f && file.get() == 0x8b;
  file.clear();
  file.seekg(0);
  boost::iostreams::filtering_istream text;
  if (is_gzip) text.push(boost::iostreams::gzip_decompressor());
  text.push(file);
  try {
    std::vector<Trace> one;
    one.push_back(parse_trace(text, path));
    return one;
  } catch (const boost::iostreams::gzip_error&) {
    reject(path, "its gzip is damaged or cut short");
  } catch (const std::ios_base::failure&) {
    reject(path, "cannot be read to its end");
  }
}

std::vector<Trace> read_traces(const std::vector<std::string>& paths) {
  std::vector<Trace> traces;
  config::Diagnostics diagnostics;
  for (const std::string& path : paths) {
    try {
      for (Trace& trace : read_trace(path)) traces.push_back(std::move(trace));
    } catch (const config::ConfigError& error) {
      diagnostics.add(error);
    }
  }
  diagnostics.throw_if_any();
  return traces;
}

}  // namespace foldwise::planner
