#include "hwprofiles/records/nccl_tests.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "costmodel/config/json.h"
#include "costmodel/config/number.h"
#include "hwprofiles/load/fields.h"
#include "hwprofiles/load/profile.h"
#include "hwprofiles/load/systems.h"
#include "hwprofiles/records/foreign.h"

namespace foldwise::hwprofiles {
namespace {

using nlohmann::json;

constexpr std::string_view kCollectives = "all_reduce, all_gather, reduce_scatter, all_to_all or send_recv";

/// One row of a table: out of place.
struct NcclRow {
  double bytes = 0.0, microseconds = 0.0;
  bool wrong = false;  ///< In or out of place.
};

/// Ranks with one communicator.
struct RankGroup {
  std::set<int> ranks{};                               ///< Processes without MPI are all rank 0.
  std::vector<std::pair<std::string, int>> of_host{};  ///< Number of ranks by host, in order.

  void add(int rank, const std::string& host) {
    if (!ranks.insert(rank).second) return;
    const auto known = std::ranges::find(of_host, host, &std::pair<std::string, int>::first);
    if (known != of_host.end())
      ++known->second;
    else
      of_host.emplace_back(host, 1);
  }
};

/// Columns of a row from the first time on: twice time, algbw, busbw, #wrong; with --per_iter_timing four more each.
/// They are counted from the end, because older versions print fewer columns before them than their head names.
struct Columns {
  std::size_t count = 8, in_place = 4;  ///< The second time's place.
  bool counts_wrong = true;             ///< False: the column "error" of older versions, the largest difference.

  /// Of the line "#  size  count  type  redop  root  time  algbw ...".
  static Columns of(const std::vector<std::string>& head) {
    Columns columns{.counts_wrong = std::ranges::find(head, "error") == head.end()};
    const auto is_time = [](const std::string& word) { return word == "time" || word == "cputime"; };
    const auto first = std::ranges::find_if(head, is_time), end = head.end();
    if (first == end) return columns;
    columns.in_place = static_cast<std::size_t>(std::find_if(first + 1, end, is_time) - first);
    columns.count = static_cast<std::size_t>(end - first);
    if (head.back() == "timestamp") ++columns.count;  // A date and a time.
    return columns;
  }
};

/// One table of results with its head.
struct NcclTable {
  int line = 0;  ///< Of its first line; 0: JSON.
  std::string program{}, device{}, version{};
  bool begun = false;                         ///< "Using devices" was read.
  std::map<std::string, RankGroup> groups{};  ///< By name (NCCL_TESTS_SPLIT).
  std::string group{};                        ///< Of the first rank: the times are its.
  Columns columns{};
  std::vector<NcclRow> rows{};
  double bus = 0.0, algorithm = 0.0;  ///< GB/s of the row with the highest, as printed with two decimals.

  /// The group of the first rank: the times are its.
  [[nodiscard]] const RankGroup& timed() const {
    static const RankGroup none;
    const auto found = groups.find(group);
    return found == groups.end() ? none : found->second;
  }
  [[nodiscard]] std::int64_t rank_count() const { return static_cast<std::int64_t>(timed().ranks.size()); }
  /// By its list, or by its bandwidths: one rank sends nothing over the bus.
  [[nodiscard]] bool of_one_rank() const {
    constexpr double kPrinted = 0.1;  // GB/s: half of it is not printed as 0.00.
    return rank_count() == 1 || (rank_count() == 0 && bus <= 0.0 && algorithm >= kPrinted);
  }
};

/// Parses a word as a number from 0 to `most`.
double number_up_to(const std::string& word, double most, const char* what, const config::Location& where) {
  const auto number = config::number_in<double>(word);
  if (!number || !(*number >= 0.0 && *number <= most))
    throw config::ConfigError({{where, fmt::format("expected {}, at most {:g}, found \"{}\"", what, most, word)}});
  return *number;
}

/// Number of ranks from the ratio of bus and algorithm bandwidth (doc/PERFORMANCE.md of nccl-tests): 2 (n - 1) / n for
/// all-reduce, (n - 1) / n for the others, 1 for send and receive.
std::int64_t ranks_by_bandwidths(const NcclTable& table, const std::string& kind, const std::string& name) {
  constexpr double kRounding = 0.005;  // GB/s: half a unit of the last digit.
  const double most = kind == "all_reduce" ? 2.0 : 1.0;
  const auto ranks = [&](double bus, double algorithm) {
    const double share = bus / algorithm / most;  // (n - 1) / n
    return share < 1.0 ? 1.0 / (1.0 - share) : std::numeric_limits<double>::infinity();
  };
  const auto fails = [&](const std::string& found) {
    refuse_import(name, table.line, fmt::format("nccl-tests output without a device list: {}; give --ranks", found));
  };
  if (kind == "send_recv" || !(table.algorithm > 0.0)) fails("the bandwidths do not tell the number of ranks");
  const double low = ranks(table.bus - kRounding, table.algorithm + kRounding),
               high = ranks(table.bus + kRounding, table.algorithm - kRounding);
  const double least = std::ceil(std::max(2.0, low)), largest = std::floor(high);
  if (!(least <= largest))
    fails(fmt::format("no number of ranks has busbw {} and algbw {}", table.bus, table.algorithm));
  if (!(largest < least + 1.0))
    fails(fmt::format("busbw {} and algbw {} are those of {:.0f} to {:.0f} ranks", table.bus, table.algorithm, least,
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

/// The tables of a text in order.
class TableReader {
 public:
  explicit TableReader(const std::string& name) : name_(name) {}

  std::vector<NcclTable> read(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      ++number_;
      line = without_labels(std::move(line));
      std::istringstream words(line);
      const std::vector<std::string> word{std::istream_iterator<std::string>(words), {}};
      if (word.empty()) continue;
      if (word.front() == "#")
        take_head(line, word);
      else if (word.front().find_first_not_of("0123456789") == std::string::npos)
        take_row(word);
    }
    std::erase_if(tables_, [](const NcclTable& table) { return table.rows.empty(); });
    return std::move(tables_);
  }

 private:
  /// The table that a line of a head belongs to: the next one after rows, or if the last one `has` such a line.
  NcclTable& headed(bool has = false) {
    if (tables_.empty() || has || !tables_.back().rows.empty()) tables_.push_back({.line = number_});
    return tables_.back();
  }
  [[nodiscard]] bool last_has(bool (*part)(const NcclTable&)) const { return !tables_.empty() && part(tables_.back()); }

  void take_head(const std::string& line, const std::vector<std::string>& word) {
    const auto behind = [&](std::string_view label) -> std::optional<std::string> {
      const std::size_t at = line.find(label);
      return at == std::string::npos ? std::nullopt : std::optional(line.substr(at + label.size()));
    };
    if (word.size() > 2 && word[1] == "Rank") {
      // "#  Rank  0 Group  0 Pid 811 on host device  0 [0000:19:00] NVIDIA H200"
      NcclTable& table = headed();
      const std::string group = word.size() > 4 && word[3] == "Group" ? word[4] : "";
      if (table.groups.empty()) table.group = group;
      const auto on = std::ranges::find(word, "on");
      const std::string host = on == word.end() || on + 1 == word.end() ? "" : *(on + 1);
      if (const auto rank = config::number_in<int>(word[2])) table.groups[group].add(*rank, host);
      if (const auto device = behind("] ")) table.device = *device;
    } else if (const auto program = behind("starting: ")) {
      headed(last_has([](const NcclTable& table) { return !table.program.empty(); })).program = *program;
    } else if (line.find("Using devices") != std::string::npos) {
      headed(last_has([](const NcclTable& table) { return table.begun; })).begun = true;
    } else if (const auto version = behind("nccl-library=")) {
      headed().version = *version;
    } else if (word.size() > 1 && word[1] == "size") {
      headed().columns = Columns::of(word);
    }
  }

  /// Columns: size count type [redop] [root] | time algbw busbw #wrong out of place | the same in place.
  void take_row(const std::vector<std::string>& word) {
    if (tables_.empty()) tables_.push_back({.line = number_});
    NcclTable& table = tables_.back();
    const Columns& columns = table.columns;
    constexpr std::size_t kFewestBefore = 3;
    if (word.size() < kFewestBefore + columns.count)
      refuse_import(name_, number_,
                    fmt::format("expected a row of nccl-tests (size, count, type, ..., and twice time, algbw, busbw, "
                                "#wrong), found {} words",
                                word.size()));
    const auto number = [&](std::size_t column, double most, const char* what, const char* field) {
      return number_up_to(word[word.size() - columns.count + column], most, what, {name_, number_, field});
    };
    NcclRow row{.bytes = number_up_to(word.front(), kMostBytes, "a size in bytes", {name_, number_, "size"}),
                .microseconds = number(0, kMostMicroseconds, "a time in microseconds", "time")};
    for (const std::size_t column : {std::size_t{3}, columns.in_place + 3}) {
      if (!columns.counts_wrong || column >= columns.count) continue;
      if (word[word.size() - columns.count + column] == "N/A") continue;  // Not checked.
      row.wrong |= number(column, kMostBytes, "a number of wrong elements or N/A", "#wrong") > 0.0;
    }
    table.rows.push_back(row);
    constexpr double kMostBandwidth = 1e6;  // GB/s
    const double algorithm = number(1, kMostBandwidth, "a bandwidth in GB/s", "algbw");
    if (algorithm <= table.algorithm) return;
    table.algorithm = algorithm;
    table.bus = number(2, kMostBandwidth, "a bandwidth in GB/s", "busbw");
  }

  const std::string& name_;
  int number_ = 0;
  std::vector<NcclTable> tables_;
};

/// Makes records of tables.
class TableRecords {
 public:
  TableRecords(const std::string& name, const ImportOptions& options)
      : name_(name), options_(options), records_{.file = name} {}

  void add(const NcclTable& table) {
    const std::string kind = collective_in(table);
    if (kind.empty())
      return leave_out(table, fmt::format("{} is not modelled: expected a table of {}", table.program, kCollectives));
    if (table.of_one_rank())
      return leave_out(table,
                       "a table of one rank measures no communication (bus bandwidth 0): where several were started, "
                       "nccl-tests is built without MPI, and each tests its own GPU: build it with MPI=1, or start one "
                       "process with -g GPUS");
    const std::string device = options_.device.empty() ? table.device : options_.device;
    if (device.empty())
      refuse_import(name_, table.line, "nccl-tests output without a device list: give --device-name \"NVIDIA H200\"");
    if (!records_.sessions.empty() && device != records_.sessions.front().device)
      refuse_import(
          name_, table.line,
          fmt::format("expected tables of one device, found {} after {}", device, records_.sessions.front().device));
    const std::int64_t ranks = ranks_in(table, kind);
    const std::optional<std::int64_t> domain = domain_of(table.timed(), device, ranks);
    if (!domain) return leave_out(table, "its hosts have different numbers of ranks: expected equally many on each");
    const std::string id = records_.sessions.empty() ? name_ : fmt::format("{}:{}", name_, table.line);
    std::vector<double> wrong;
    bool any = false;
    for (const NcclRow& row : table.rows) {
      if (row.wrong) {
        wrong.push_back(row.bytes);
      } else if (row.bytes > 0.0 && row.microseconds > 0.0) {
        records_.measurements.push_back(collective(kind, ranks, row.bytes, row.microseconds));
        records_.measurements.back().session = id;
        if (*domain < ranks) records_.measurements.back().shape["ranks_per_domain"] = *domain;
        any = true;
      }
    }
    if (!any)
      return leave_out(table, wrong.empty() ? "nccl-tests output without a row of results"
                                            : fmt::format("a table of {} with wrong results only: #wrong is above 0 in "
                                                          "{} rows",
                                                          kind, wrong.size()));
    if (!wrong.empty()) warn_of_wrong(table, kind, wrong);
    records_.sessions.push_back({.id = id,
                                 .program = "nccl-tests",
                                 .started = "",
                                 .device = device,
                                 .devices = static_cast<int>(ranks),
                                 .libraries = {{"nccl", table.version}}});
    if (table.timed().of_host.size() < 2) return;
    for (const auto& [host, count] : table.timed().of_host) records_.sessions.back().hosts.push_back(host);
    records_.sessions.back().nvlink_domain = static_cast<int>(*domain);
  }

  /// Throws if no table could be used.
  Records take() {
    const bool none = records_.measurements.empty();
    std::vector<config::Diagnostic> told;
    for (const auto& [why, lines] : left_out_) {
      const std::string tables = lines.size() == 1 ? "" : fmt::format("{} tables: ", lines.size());
      told.push_back({{name_, lines.front(), ""}, fmt::format("{}{}{}", tables, why, none ? "" : "; left out")});
    }
    if (none && told.empty()) refuse_import(name_, 0, "nccl-tests output without a row of results");
    if (none) throw config::ConfigError(std::move(told));
    records_.warnings.insert(records_.warnings.begin(), told.begin(), told.end());
    return std::move(records_);
  }

 private:
  /// The table's collective; empty: it is none that is modelled.
  [[nodiscard]] std::string collective_in(const NcclTable& table) const {
    const std::optional<std::string> named = collective_of(table.program);
    if (!table.program.empty() && !named) return "";
    const std::optional<std::string> given = collective_of(options_.collective);
    if (!named && !given)
      refuse_import(
          name_, table.line,
          fmt::format("nccl-tests output that does not name its collective: give --collective {}", kCollectives));
    if (named && given && *named != *given)
      refuse_import(name_, table.line, fmt::format("--collective is {}, but the table is of {}", *given, *named));
    return named ? *named : *given;
  }

  [[nodiscard]] std::int64_t ranks_in(const NcclTable& table, const std::string& kind) const {
    const std::int64_t listed = table.rank_count();
    const std::int64_t ranks = options_.ranks > 0 ? options_.ranks
                               : listed > 0       ? listed
                                                  : ranks_by_bandwidths(table, kind, name_);
    if (ranks < 2) refuse_import(name_, table.line, fmt::format("expected 2 ranks or more, found {}", ranks));
    if (listed > 0 && ranks != listed)
      refuse_import(name_, table.line, fmt::format("--ranks is {}, but the device list has {}", ranks, listed));
    return ranks;
  }

  /// Number of the ranks that share NVLink: those of a host, in rack systems those of a rack. Nothing: hosts have
  /// different numbers of ranks.
  [[nodiscard]] static std::optional<std::int64_t> domain_of(const RankGroup& group, const std::string& device,
                                                             std::int64_t ranks) {
    if (group.of_host.size() < 2) return ranks;
    const std::int64_t per_host = group.of_host.front().second;
    if (std::ranges::any_of(group.of_host, [&](const auto& host) { return host.second != per_host; }))
      return std::nullopt;
    constexpr std::int64_t kMostOfHost = 8;  // A larger domain spans hosts.
    const std::string system = system_of_device(device);
    const std::int64_t domain = system.empty() ? 0 : load_profile(system).hardware.network.ranks_per_domain;
    return std::min(ranks, domain > kMostOfHost ? domain : per_host);
  }

  void leave_out(const NcclTable& table, const std::string& why) {
    const auto known = std::ranges::find(left_out_, why, [](const auto& entry) { return entry.first; });
    if (known != left_out_.end()) return known->second.push_back(table.line);
    left_out_.emplace_back(why, std::vector<int>{table.line});
  }

  void warn_of_wrong(const NcclTable& table, const std::string& kind, const std::vector<double>& wrong) {
    constexpr std::size_t kNamed = 3;
    std::vector<std::string> sizes;
    for (std::size_t i = 0; i < std::min(kNamed, wrong.size()); ++i) sizes.push_back(fmt::format("{:.0f}", wrong[i]));
    if (wrong.size() > kNamed) sizes.emplace_back("...");
    records_.warnings.push_back(
        {{name_, table.line, ""},
         fmt::format("{} of {} rows of {} are left out, whose results are wrong (#wrong above 0): {} bytes",
                     wrong.size(), table.rows.size(), kind, fmt::join(sizes, ", "))});
  }

  const std::string& name_;
  const ImportOptions& options_;
  Records records_;
  std::vector<std::pair<std::string, std::vector<int>>> left_out_;  ///< Why, and the lines of the tables.
};

/// A whole number of an object, or what it is without.
int whole(const json& node, const char* key, int otherwise) {
  constexpr int kMost = 1'000'000;
  const json& value = child(node, key);
  return value.is_number_integer() && value >= 0 && value <= kMost ? value.get<int>() : otherwise;
}

/// The list has one entry for each process, which is that of its first rank.
void add_devices(const json& root, NcclTable& table) {
  const json& config = child(root, "config");
  const json& configured = child(config, "devices");
  const json& devices = configured.is_array() ? configured : child(root, "devices");
  if (!devices.is_array() || devices.empty()) return;
  table.device = text_of(devices.front(), "device_info");
  if (table.device.empty()) table.device = text_of(devices.front(), "device_name");
  table.group = child(devices.front(), "group").dump();
  constexpr std::int64_t kMostOfProcess = 128;  // Beyond any node.
  auto of_process = static_cast<int>(std::clamp<std::int64_t>(
      std::int64_t{whole(config, "nthreads", 1)} * whole(config, "ngpus", 1), 1, kMostOfProcess));
  const auto rank_of = [&](std::size_t at) { return whole(devices[at], "rank", static_cast<int>(at)); };
  if (devices.size() > 1 && rank_of(1) - rank_of(0) < of_process) of_process = 1;  // Every rank has an entry.
  for (std::size_t i = 0; i < devices.size(); ++i)
    for (int rank = rank_of(i), end = rank + of_process; rank < end; ++rank)
      table.groups[child(devices[i], "group").dump()].add(rank, text_of(devices[i], "hostname"));
}

NcclTable table_in(const json& root, const std::string& text, const std::string& name) {
  NcclTable table;
  const json& arguments = child(root, "args");
  for (const json& argument : arguments)
    if (argument.is_string() && table.program.empty() && collective_of(argument.get<std::string>()))
      table.program = argument.get<std::string>();
  if (table.program.empty() && arguments.is_array() && !arguments.empty() && arguments.front().is_string())
    if (const auto program = arguments.front().get<std::string>(); program.ends_with("_perf")) table.program = program;
  table.version = text_of(root, "nccl_version");
  add_devices(root, table);
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
    const auto wrong = [](const json& part) {
      const json& count = child(part, "nwrong");
      return count.is_number() && count.get<double>() > 0.0;
    };
    table.rows.push_back(
        {.bytes = number(rows[i], "size", kMostBytes, "a size in bytes", ""),
         .microseconds = number(placed ? rows[i].at("out_of_place") : rows[i], "time", kMostMicroseconds,
                                "a time in microseconds", placed ? "/out_of_place" : ""),
         .wrong = wrong(rows[i]) || wrong(child(rows[i], "out_of_place")) || wrong(child(rows[i], "in_place"))});
  }
  return table;
}

}  // namespace

/// nccl-tests prints the size that collective_time calls bytes. For send/receive both are the message size.
std::optional<std::string> collective_of(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kNames{{{"all_reduce", "all_reduce"},
                                                                                 {"all_gather", "all_gather"},
                                                                                 {"reduce_scatter", "reduce_scatter"},
                                                                                 {"alltoall", "all_to_all"},
                                                                                 {"sendrecv", "send_recv"}}};
  for (const auto& [program, collective] : kNames) {
    const std::size_t at = text.find(program), end = at + program.size();
    const bool found = at != std::string_view::npos &&
                       (end == text.size() || std::isalnum(static_cast<unsigned char>(text[end])) == 0);  // alltoallv
    if (found || text == collective) return std::string(collective);
  }
  return std::nullopt;
}

Records read_nccl_text(const std::string& text, const std::string& name, const ImportOptions& options) {
  TableRecords records(name, options);
  for (const NcclTable& table : TableReader(name).read(text)) records.add(table);
  return records.take();
}

Records read_nccl_json(const json& root, const std::string& text, const std::string& name,
                       const ImportOptions& options) {
  TableRecords records(name, options);
  records.add(table_in(root, text, name));
  return records.take();
}

}  // namespace foldwise::hwprofiles
