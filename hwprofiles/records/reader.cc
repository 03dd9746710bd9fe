#include "hwprofiles/records/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "costmodel/config/input_file.h"
#include "costmodel/config/json.h"
#include "hwprofiles/load/profile.h"

namespace foldwise::hwprofiles {
namespace {

using config::Diagnostics;
using config::Document;
using config::ObjectReader;
using nlohmann::json;

/// Accepted and required entries of `of` and `shape` for one kernel.
struct KernelFields {
  struct Kind {
    std::vector<std::string> values;  ///< Empty: any text.
    bool required = true;
  };
  std::map<std::string, Kind> of;
  std::vector<std::string> shape;
  bool more_shape = false;  ///< Other sizes are accepted, too.
};

template <typename Enum>
std::vector<std::string> names_of(const std::vector<std::pair<std::string, Enum>>& names) {
  std::vector<std::string> result;
  result.reserve(names.size());
  for (const auto& entry : names) result.push_back(entry.first);
  return result;
}

const std::map<std::string, KernelFields>& kernels() {
  static const std::map<std::string, KernelFields> table = [] {
    std::vector<std::string> formats = names_of(math_format_names());
    formats.emplace_back("fp64");
    const std::vector<std::string> phases{"forward", "dgrad", "wgrad"};
    return std::map<std::string, KernelFields>{
        {"gemm",
         {.of = {{"format", {formats}},
                 {"phase", {phases}},
                 {"load", {{"short", "sustained"}, false}},
                 {"includes", {{"quantize"}, false}}},
          .shape = {"m", "n", "k"}}},
        {"grouped_gemm",
         {.of = {{"format", {formats}},
                 {"phase", {phases}},
                 {"distribution", {{"balanced", "skewed"}}},
                 {"load", {{"short", "sustained"}, false}}},
          .shape = {"groups", "rows", "n", "k", "max_rows"}}},
        {"attention",
         {.of = {{"format", {formats}}, {"phase", {{"forward", "backward"}}}, {"mask", {{"causal", "none"}}}},
          .shape = {"batch", "heads", "kv_heads", "seq", "head_dim", "head_dim_v"}}},
        {"memory",
         {.of = {{"op", {names_of(memory_op_names())}}, {"variant", {{}, false}}},
          .shape = {"rows", "width"},
          .more_shape = true}},
        {"copy",
         {.of = {{"direction", {{"h2d", "d2h", "both", "d2d"}}}, {"by", {{"kernel", "driver"}, false}}},
          .shape = {"bytes"}}},
        {"launch", {.of = {{"mode", {{"stream", "graph", "thread"}}}}, .shape = {"kernels"}}},
        {"collective",
         {.of = {{"collective", {names_of(collective_kind_names())}}, {"distribution", {{"even", "uneven"}}}},
          .shape = {"ranks", "bytes"},
          .more_shape = true}},
        {"overlap",
         {.of = {{"compute", {{}}},
                 {"collective", {{}}},
                 {"measured", {{"compute", "collective"}, false}},
                 {"beside", {{}, false}}},
          .shape = {},
          .more_shape = true}},
    };
  }();
  return table;
}

constexpr std::int64_t kLargest = std::int64_t{1} << 52;

std::map<std::string, std::string> texts(ObjectReader& parent, const char* key) {
  std::map<std::string, std::string> result;
  auto reader = parent.object(key);
  if (!reader) return result;
  for (const std::string& name : reader->keys()) result[name] = reader->required_string(name);
  return result;
}

Session read_session(ObjectReader& reader) {
  Session session;
  session.id = reader.required_string("session");
  session.program = reader.required_string("program");
  session.started = reader.required_string("started");
  session.device = reader.required_string("device");
  session.devices = static_cast<int>(reader.required_integer("devices", 1, 1'000'000));
  session.driver = reader.string("driver").value_or("");
  session.libraries = texts(reader, "libraries");
  session.build = reader.string("build").value_or("");
  if (auto clocks = reader.object("clocks"))
    for (const std::string& name : clocks->keys()) session.clocks[name] = clocks->required_number(name, 0.0, 1e9);
  if (auto topology = reader.object("topology")) {
    session.hosts = topology->strings("hosts").value_or(std::vector<std::string>{});
    if (session.hosts.empty()) topology->error("hosts", "expected the names of one host or more");
    session.nvlink_domain = static_cast<int>(topology->required_integer("nvlink_domain", 1, 1'000'000));
    session.nics = texts(*topology, "nics");
    topology->finish();
  }
  reader.finish();
  return session;
}

void read_kind(ObjectReader& reader, const KernelFields& fields, Measurement& measurement) {
  if (!reader.has("of")) reader.error("of", "expected an object, found nothing");
  if (auto of = reader.object("of")) {
    for (const auto& [name, kind] : fields.of) {
      if (!of->has(name) && !kind.required) continue;
      const std::string value = of->required_string(name);
      if (!of->has(name) || !of->json().at(name).is_string()) continue;
      if (!kind.values.empty() && std::find(kind.values.begin(), kind.values.end(), value) == kind.values.end())
        of->error(name, fmt::format("expected one of {}, found \"{}\"", fmt::join(kind.values, ", "), value));
      measurement.of[name] = value;
    }
    of->finish();
  }
  if (!reader.has("shape")) reader.error("shape", "expected an object, found nothing");
  if (auto shape = reader.object("shape")) {
    std::vector<std::string> names = fields.shape;
    if (fields.more_shape) {
      names = shape->keys();
      for (const std::string& name : fields.shape)
        if (!shape->has(name)) names.push_back(name);
    }
    for (const std::string& name : names) measurement.shape[name] = shape->required_integer(name, 1, kLargest);
    shape->finish();
  }
}

Measurement read_measurement(ObjectReader& reader) {
  Measurement measurement;
  measurement.session = reader.required_string("session");
  measurement.kernel = reader.required_string("kernel");
  const auto known = kernels().find(measurement.kernel);
  if (known != kernels().end()) {
    read_kind(reader, known->second, measurement);
  } else {
    std::vector<std::string> names;
    for (const auto& entry : kernels()) names.push_back(entry.first);
    if (!measurement.kernel.empty())
      reader.error("kernel",
                   fmt::format("expected one of {}, found \"{}\"", fmt::join(names, ", "), measurement.kernel));
    reader.ignore({"of", "shape"});
  }
  measurement.flops = reader.required_number("flops", 0.0, 1e30);
  measurement.bytes = reader.required_number("bytes", 0.0, 1e30);
  measurement.warmups = static_cast<int>(reader.required_integer("warmups", 0, 1'000'000));
  const json* samples = reader.raw("samples_us");
  if (samples == nullptr || !samples->is_array() || samples->empty()) {
    reader.error("samples_us", "expected a list of times, not empty");
  } else {
    for (const json& sample : *samples) {
      if (sample.is_number() && sample.get<double>() > 0.0 && sample.get<double>() < 1e12) {
        measurement.samples_us.push_back(sample.get<double>());
      } else {
        reader.error("samples_us", "expected times in microseconds above 0, found " + sample.dump());
        break;
      }
    }
  }
  if (!reader.has("correct")) reader.error("correct", "expected true or false, found nothing");
  measurement.correct = reader.boolean_or("correct", false);
  measurement.max_relative_error = reader.number_or("max_relative_error", 0.0, 0.0, 1e30);
  reader.finish();
  return measurement;
}

class Parser {
 public:
  explicit Parser(std::string name) { records_.file = std::move(name); }

  void line(const std::string& text, int number) {
    number_ = number;
    const std::size_t before = diagnostics_.list().size();
    bool is_session = true;  // Until the line is parsed.
    try {
      const Document document = Document::parse(text, records_.file, number);
      ObjectReader reader(document, diagnostics_);
      is_session = reader.has("program") || reader.has("device");
      if (document.root().is_object()) object(reader, is_session);
    } catch (const config::ConfigError& error) {
      diagnostics_.add(error);
    }
    if (is_session && diagnostics_.list().size() > before) session_is_lost_ = true;
  }

  [[nodiscard]] bool full() const { return diagnostics_.full(); }

  void incomplete(int number) {
    records_.warnings.push_back({{records_.file, number, ""}, "the last line is incomplete and was left out"});
  }

  Records finish() {
    if (diagnostics_.ok() && records_.sessions.empty())
      diagnostics_.error({records_.file, 0, ""}, "expected a session line, found no records");
    diagnostics_.throw_if_any();
    return std::move(records_);
  }

 private:
  void object(ObjectReader& reader, bool is_session) {
    const std::int64_t schema = reader.required_integer("schema", 1, 1'000'000);
    if (reader.has("schema") && schema != kRecordSchema) {
      reader.error("schema", fmt::format("expected {}, found {}: written by another version", kRecordSchema, schema));
      return;
    }
    if (is_session)
      session(reader);
    else
      measurement(reader);
  }

  void session(ObjectReader& reader) {
    Session session = read_session(reader);
    if (!records_.sessions.empty() && session.device != records_.sessions.front().device)
      reader.error("device",
                   fmt::format(R"(expected "{}" as in the first session, found "{}": one file holds one device)",
                               records_.sessions.front().device, session.device));
    session_ids_.insert(session.id);
    records_.sessions.push_back(std::move(session));
  }

  void measurement(ObjectReader& reader) {
    Measurement measurement = read_measurement(reader);
    if (!measurement.session.empty() && !session_is_lost_ && !session_ids_.contains(measurement.session))
      reader.error("session",
                   fmt::format("expected the id of a session line above, found \"{}\"", measurement.session));
    if (!measurement.correct) {
      records_.warnings.push_back({{records_.file, number_, ""}, "the result was wrong; the measurement is left out"});
      return;
    }
    const auto [place, added] = position_.try_emplace(setting_of(measurement), records_.measurements.size());
    if (added)
      records_.measurements.push_back(std::move(measurement));
    else
      records_.measurements[place->second] = std::move(measurement);
  }

  Records records_;
  Diagnostics diagnostics_;
  std::map<std::string, std::size_t> position_;
  std::set<std::string> session_ids_;
  int number_ = 0;
  bool session_is_lost_ = false;  ///< A line that may have been a session was reported.
};

}  // namespace

Records parse_records(const std::string& text, const std::string& name) {
  Parser parser(name);
  int number = 0;
  for (std::size_t at = 0; at < text.size() && !parser.full();) {
    const std::size_t end = text.find('\n', at);
    ++number;
    if (end == std::string::npos && !json::accept(text.substr(at))) {
      parser.incomplete(number);
      break;
    }
    const std::string line = text.substr(at, end - at);
    if (!line.empty()) parser.line(line, number);
    at = end == std::string::npos ? text.size() : end + 1;
  }
  return parser.finish();
}

Records read_records(const std::string& path) { return parse_records(config::read_input_file(path), path); }

}  // namespace foldwise::hwprofiles
