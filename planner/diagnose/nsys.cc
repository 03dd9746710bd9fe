#include "planner/diagnose/nsys.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "planner/diagnose/numbered.h"

namespace foldwise::planner {
namespace {

using nlohmann::json;

constexpr std::string_view kMagic("SQLite format 3\0", 16);
constexpr std::int64_t kLatest = 9'000'000'000'000'000'000;  ///< ns, about 285 years.
constexpr std::int64_t kProcess = std::int64_t{1} << 24;     ///< globalTid and globalPid hold the thread below this.

class Database {
 public:
  explicit Database(const std::string& path) : path_(path) {
    sqlite3* opened = nullptr;
    // Immutable: SQLite takes no lock, and neither creates nor reads files beside it.
    std::error_code error;
    if (std::filesystem::file_size(path + "-wal", error) > 0 && !error)
      reject(path, fmt::format("is still written: {}-wal holds a part of it", path));
    const int code = sqlite3_open_v2(immutable(path).c_str(), &opened, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, nullptr);
    database_.reset(opened);
    if (code != SQLITE_OK) reject(path, "cannot be read");
    sqlite3_limit(opened, SQLITE_LIMIT_LENGTH, kLongestValue);
    sqlite3_db_config(opened, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
    sqlite3_db_config(opened, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
    sqlite3_progress_handler(
        opened, kStepsAtOnce,
        [](void* database) { return ++static_cast<Database*>(database)->steps_ > kMostSteps ? 1 : 0; }, this);
  }
  Database(const Database&) = delete;  // SQLite keeps its address.
  Database& operator=(const Database&) = delete;
  ~Database() = default;

  /// Columns of a table; empty if there is no such table. Views and virtual tables do not count.
  std::set<std::string> columns(const char* table) {
    std::set<std::string> names;
    bool is_table = false;
    visit(fmt::format("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{}' AND rootpage > 0", table),
          [&](sqlite3_stmt* /*row*/) { is_table = true; });
    if (!is_table) return names;
    visit(fmt::format("SELECT name FROM pragma_table_info('{}')", table),
          [&](sqlite3_stmt* row) { names.insert(text(row, 0)); });
    return names;
  }

  /// Throws if the table lacks one of these columns.
  void expect(const char* table, std::initializer_list<const char*> names) {
    const std::set<std::string> found = columns(table);
    if (found.empty())
      reject(path_, fmt::format("expected what `nsys export --type sqlite` writes, found no table {}", table));
    for (const char* name : names)
      if (!found.contains(name))
        reject(path_, fmt::format("expected a column {} of the table {}, found none", name, table));
  }

  template <typename Visit>
  void visit(const std::string& query, const Visit& visit_row) {
    sqlite3_stmt* prepared = nullptr;
    const int code = sqlite3_prepare_v2(database_.get(), query.c_str(), -1, &prepared, nullptr);
    const std::unique_ptr<sqlite3_stmt, decltype(&sqlite3_finalize)> statement(prepared, &sqlite3_finalize);
    int step = code;
    if (code == SQLITE_OK)
      while ((step = sqlite3_step(statement.get())) == SQLITE_ROW) {
        if (++rows_ > kMostEvents) reject(path_, fmt::format("more than {} rows: record fewer steps", kMostEvents));
        visit_row(statement.get());
      }
    if (step != SQLITE_DONE)
      reject(path_, fmt::format("cannot be read as SQLite: {}", sqlite3_errmsg(database_.get())));
  }

  std::string text(sqlite3_stmt* row, int column) {
    if (sqlite3_column_type(row, column) == SQLITE_BLOB) return "";
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(row, column));  // NOLINT: SQLite's bytes.
    if (bytes == nullptr) return "";
    const auto size = static_cast<std::size_t>(sqlite3_column_bytes(row, column));
    text_bytes_ += size;
    if (text_bytes_ > kMostText)
      reject(path_, fmt::format("texts of more than {} MiB: record fewer steps", kMostText >> 20U));
    return {bytes, size};
  }

 private:
  /// The file as a URI. Its path may contain any character.
  static std::string immutable(const std::string& path) {
    std::string uri = "file:";
    for (const char c : std::filesystem::absolute(path).string()) {
      const auto byte = static_cast<unsigned char>(c);
      uri += std::isalnum(byte) != 0 || c == '/' ? std::string(1, c) : fmt::format("%{:02X}", byte);
    }
    return uri + "?immutable=1";
  }

  static constexpr int kLongestValue = 1 << 20;  // Bytes. The longest kernel names have a few thousand.
  static constexpr std::size_t kMostText = std::size_t{2} << 30U;  // Sum over all names and ranges.
  // SQLite takes about 20 instructions per row. A damaged file may repeat a page forever.
  static constexpr int kStepsAtOnce = 1'000'000;
  static constexpr std::int64_t kMostSteps = 100 * static_cast<std::int64_t>(kMostEvents) / kStepsAtOnce;

  std::string path_;
  std::size_t rows_ = 0, text_bytes_ = 0;
  std::int64_t steps_ = 0;
  std::unique_ptr<sqlite3, decltype(&sqlite3_close)> database_{nullptr, &sqlite3_close};
};

/// Operator as emit_nvtx encodes it: "aten::linear, seq = 12, op_id = 7, sizes = [[2, 3], []], input_op_ids = [...]".
struct Operator {
  std::string name;
  std::int64_t sequence = -1;
  std::vector<Shape> shapes;
};

Operator operator_of(const std::string& text) {
  constexpr std::string_view kSequence = ", seq = ", kSizes = ", sizes = ", kNumber = ", op_id = ";
  const auto after = [&](std::string_view mark) {
    const std::size_t at = text.find(mark);
    return at == std::string::npos ? at : at + mark.size();
  };
  Operator op;
  op.name = text.substr(0, std::min({text.find(kSequence), text.find(kSizes), text.find(kNumber)}));
  if (const std::size_t at = after(kSequence); at != std::string::npos) {
    const json number = json::parse(text.substr(at, text.find(',', at) - at), nullptr, false);
    if (number.is_number_integer()) op.sequence = number.get<std::int64_t>();
  }
  if (const std::size_t at = after(kSizes); at != std::string::npos) {
    const json sizes = json::parse(text.substr(at, text.find(", input_op_ids", at) - at), nullptr, false);
    if (!sizes.is_array()) return op;
    for (const json& size : sizes) {
      Shape shape;
      if (size.is_array())
        for (const json& number : size)
          if (number.is_number_integer()) shape.push_back(number.get<std::int64_t>());
      op.shapes.push_back(std::move(shape));
    }
  }
  return op;
}

/// Reads the traces of all processes, and resolves the ids in their events.
class ProfileReader {
 public:
  explicit ProfileReader(const std::string& path) : path_(path), database_(path) {}

  std::vector<Trace> traces() {
    database_.expect("StringIds", {"id", "value"});
    database_.visit("SELECT id, value FROM StringIds",
                    [&](sqlite3_stmt* row) { texts_.emplace(sqlite3_column_int64(row, 0), database_.text(row, 1)); });
    read_gpu("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName");
    if (processes_.empty()) reject(path_, "expected kernels (nsys profile --trace=cuda,nvtx), found none");
    read_gpu("CUPTI_ACTIVITY_KIND_MEMCPY", "copyKind");
    read_gpu("CUPTI_ACTIVITY_KIND_MEMSET", "");
    read_launches();
    read_ranges();
    std::map<std::int64_t, std::string> gpus;
    if (!database_.columns("TARGET_INFO_GPU").empty()) {
      database_.expect("TARGET_INFO_GPU", {"id", "name"});
      database_.visit("SELECT id, name FROM TARGET_INFO_GPU",
                      [&](sqlite3_stmt* row) { gpus.emplace(sqlite3_column_int64(row, 0), database_.text(row, 1)); });
    }
    std::vector<Process*> by_gpu;
    for (auto& [id, process] : processes_) by_gpu.push_back(&process);
    std::ranges::stable_sort(by_gpu, {}, &Process::gpu);
    std::vector<Trace> traces;
    for (Process* process : by_gpu) {
      Trace& trace = process->trace;
      trace.file = path_;
      trace.device = gpus[process->gpu];
      if (by_gpu.size() > 1) trace.rank = process->gpu;
      trace.sort();
      traces.push_back(std::move(trace));
    }
    return traces;
  }

 private:
  struct Process {
    Trace trace;
    std::int64_t gpu = 0;
    Numbered<std::string> name{trace.names};
    Numbered<std::vector<Shape>> shapes_of{trace.shapes};
    std::unordered_map<std::int64_t, std::int32_t> threads;

    Process() = default;
    Process(const Process&) = delete;  // Holds ids of its own trace.
    Process& operator=(const Process&) = delete;
    ~Process() = default;

    std::int32_t thread(std::int64_t id) {
      return threads.emplace(id, static_cast<std::int32_t>(threads.size())).first->second;
    }
  };

  Span span(sqlite3_stmt* row, const char* table) const {
    const Span time{sqlite3_column_int64(row, 0), sqlite3_column_int64(row, 1)};
    if (time.begin < 0 || time.end < time.begin || time.end > kLatest)
      reject(path_,
             fmt::format("{}: expected start and end in nanoseconds, found {} and {}", table, time.begin, time.end));
    return time;
  }

  /// ENUM_CUDA_MEMCPY_OPER with the names of PyTorch's profiler.
  static std::string copy_name(std::int64_t kind) {
    constexpr std::array<const char*, 11> kNames = {"",     "HtoD", "DtoH", "HtoA", "AtoH", "AtoA",
                                                    "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"};
    return fmt::format("Memcpy {}", kind > 0 && kind < 11 ? kNames[static_cast<std::size_t>(kind)] : "?");
  }

  /// `name_column`: column with the id of a kernel's name or of the kind of a copy; "": the events are fills.
  void read_gpu(const char* table, const std::string& name_column) {
    const bool is_kernel = name_column == "demangledName";
    if (!is_kernel && database_.columns(table).empty()) return;
    database_.expect(table, {"start", "end", "deviceId", "streamId", "correlationId", "globalPid"});
    if (!name_column.empty()) database_.expect(table, {name_column.c_str()});
    database_.visit(fmt::format("SELECT start, end, deviceId, streamId, correlationId, globalPid, {} FROM {}",
                                name_column.empty() ? "0" : name_column, table),
                    [&](sqlite3_stmt* row) {
                      const std::int64_t id = sqlite3_column_int64(row, 5) / kProcess,
                                         number = sqlite3_column_int64(row, 6);
                      if (!is_kernel && !processes_.contains(id)) return;
                      Process& process = processes_[id];
                      if (is_kernel && process.trace.gpu.empty()) process.gpu = sqlite3_column_int64(row, 2);
                      const auto text = texts_.find(number);
                      const std::string name = !is_kernel ? (name_column.empty() ? "Memset" : copy_name(number))
                                               : text == texts_.end() ? ""
                                                                      : text->second;
                      process.trace.gpu.push_back({.time = span(row, table),
                                                   .name = process.name(name),
                                                   .stream = sqlite3_column_int(row, 3),
                                                   .correlation = sqlite3_column_int64(row, 4)});
                    });
  }

  void read_launches() {
    constexpr const char* kTable = "CUPTI_ACTIVITY_KIND_RUNTIME";
    database_.expect(kTable, {"start", "end", "globalTid", "correlationId"});
    database_.visit(fmt::format("SELECT start, end, globalTid, correlationId FROM {}", kTable), [&](sqlite3_stmt* row) {
      const std::int64_t thread = sqlite3_column_int64(row, 2);
      const auto process = processes_.find(thread / kProcess);
      if (process == processes_.end()) return;
      process->second.trace.launches.insert_or_assign(sqlite3_column_int64(row, 3),
                                                      LaunchCall{span(row, kTable), process->second.thread(thread)});
    });
  }

  void read_ranges() {
    constexpr const char* kTable = "NVTX_EVENTS";
    constexpr int kPushPop = 59, kStartEnd = 60;  // ENUM_NSYS_EVENT_TYPE. Other event types have no end.
    if (database_.columns(kTable).empty()) return;
    database_.expect(kTable, {"start", "end", "eventType", "text", "textId", "globalTid"});
    database_.visit(
        fmt::format(
            "SELECT start, end, globalTid, text, textId FROM {} WHERE end IS NOT NULL AND eventType IN ({}, {})",
            kTable, kPushPop, kStartEnd),
        [&](sqlite3_stmt* row) {
          const std::int64_t thread = sqlite3_column_int64(row, 2);
          const auto process = processes_.find(thread / kProcess);
          if (process == processes_.end()) return;
          std::string text = database_.text(row, 3);
          if (text.empty())
            if (const auto registered = texts_.find(sqlite3_column_int64(row, 4)); registered != texts_.end())
              text = registered->second;
          const Operator op = operator_of(text);
          process->second.trace.host.push_back(
              {.time = span(row, kTable),
               .name = process->second.name(op.name),
               .thread = process->second.thread(thread),
               .sequence = op.sequence,
               .shapes = op.shapes.empty() ? -1 : process->second.shapes_of(op.shapes)});
        });
  }

  std::string path_;
  Database database_;
  std::unordered_map<std::int64_t, std::string> texts_;
  std::map<std::int64_t, Process> processes_;
};

}  // namespace

bool is_sqlite(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string begin(kMagic.size(), '\0');
  return file.read(begin.data(), static_cast<std::streamsize>(begin.size())) && begin == kMagic;
}

std::vector<Trace> read_nsys(const std::string& path) { return ProfileReader(path).traces(); }

}  // namespace foldwise::planner
