#include "planner/sweep/row_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace foldwise::planner {
namespace {

/// Quotes a value that contains a comma, a quote or a line end.
std::string csv_cell(const SweepRow& value) {
  if (value.is_null()) return "";
  std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

std::vector<std::string> csv_cells(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      cells.back() += line[++i];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

/// Start of the line of a row with these first cells.
std::string start_of_line(RowFormat format, const SweepRow& first) {
  std::string text = row_text(format, first);
  text.pop_back();                                         // Without the line end,
  if (format == RowFormat::kJsonLines) text.back() = ',';  // and without the object's end: more cells follow.
  return format == RowFormat::kCsv ? text + ',' : text;
}

}  // namespace

std::string row_text(RowFormat format, const SweepRow& row) {
  if (format == RowFormat::kJsonLines) return row.dump() + '\n';
  std::string line;
  bool first = true;
  for (const auto& [key, value] : row.items()) {
    if (key == "run") continue;
    line += (std::exchange(first, false) ? "" : ",") + csv_cell(value);
  }
  return line + '\n';
}

std::string header_text(RowFormat format, const std::vector<std::string>& columns) {
  if (format == RowFormat::kJsonLines) return "";
  SweepRow row;
  for (const std::string& column : columns) row[column] = column;
  return row_text(format, row);
}

SweepRow read_row(RowFormat format, const std::vector<std::string>& columns, const std::string& line) {
  if (format == RowFormat::kJsonLines) return SweepRow::parse(line);
  const std::vector<std::string> cells = csv_cells(line);
  SweepRow row;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const std::string cell = i < cells.size() ? cells[i] : "";
    SweepRow value = SweepRow::parse(cell, nullptr, false);
    row[columns[i]] = cell.empty() ? SweepRow() : value.is_discarded() ? SweepRow(cell) : std::move(value);
  }
  return row;
}

RowFile::RowFile(std::string path, RowFormat format, const Sweep& sweep) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_APPEND, 0666);
  if (descriptor_ < 0) fail(0, fmt::format("cannot be written: {}", std::strerror(errno)));
  try {
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) fail(0, "another sweep writes it");
    struct stat found {};
    const bool grows =
        ::fstat(descriptor_, &found) == 0 && S_ISREG(found.st_mode);  // A FIFO has no rows to resume from.
    std::string text;
    std::array<char, 1U << 16> buffer{};
    ssize_t count = 0;
    while (grows && (count = ::read(descriptor_, buffer.data(), buffer.size())) > 0)
      text.append(buffer.data(), static_cast<std::size_t>(count));
    if (count < 0) fail(0, fmt::format("cannot be read: {}", std::strerror(errno)));
    check(text, format, sweep);
    remember();
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

RowFile::~RowFile() { ::close(descriptor_); }

void RowFile::fail(int line, const std::string& message) const {
  throw config::ConfigError({{{path_, line, ""}, message}});
}

void RowFile::check(const std::string& text, RowFormat format, const Sweep& sweep) {
  const std::string header = header_text(format, sweep.columns());
  const char* otherwise = "; give another file, or remove it";
  std::size_t at = 0;
  if (text.size() < header.size()) {
    if (header.compare(0, text.size(), text) != 0) fail(1, fmt::format("no rows of this sweep{}", otherwise));
    if (::ftruncate(descriptor_, 0) != 0) fail(0, fmt::format("cannot be cut: {}", std::strerror(errno)));
    return append(header);
  }
  if (text.compare(0, header.size(), header) != 0) fail(1, fmt::format("other columns than this sweep's{}", otherwise));
  at = header.size();
  const int first_line = header.empty() ? 1 : 2;
  for (std::size_t end = 0; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const int line = first_line + static_cast<int>(found_.size());
    if (found_.size() == sweep.size()) fail(line, fmt::format("more rows than this sweep has{}", otherwise));
    const std::string start = start_of_line(format, sweep.known_cells(found_.size()));
    if (text.compare(at, start.size(), start) != 0)
      fail(line, fmt::format("a row of another sweep: expected one that starts with {}{}", start, otherwise));
    found_.push_back(text.substr(at, end - at));
    if (format == RowFormat::kJsonLines && !SweepRow::accept(found_.back()))
      fail(line, fmt::format("a damaged row{}", otherwise));
  }
  // A killed sweep left a partial line. It may only be removed if it starts our next row.
  if (at == text.size()) return;
  const auto line = static_cast<int>(found_.size()) + first_line;
  if (found_.size() == sweep.size()) fail(line, fmt::format("more rows than this sweep has{}", otherwise));
  const std::string start = start_of_line(format, sweep.known_cells(found_.size()));
  const std::size_t common = std::min(start.size(), text.size() - at);
  if (text.compare(at, common, start, 0, common) != 0) fail(line, fmt::format("a row of another sweep{}", otherwise));
  if (::ftruncate(descriptor_, static_cast<off_t>(at)) != 0)
    fail(0, fmt::format("cannot be cut: {}", std::strerror(errno)));
}

void RowFile::remember() {
  struct stat now {};
  left_ = ::fstat(descriptor_, &now) == 0 && S_ISREG(now.st_mode) ? std::optional(now) : std::nullopt;
}

void RowFile::expect_unchanged() const {
  if (!left_) return;
  struct stat now {
  }, named{};
  const auto time = [](const struct stat& file) { return std::pair(file.st_mtim.tv_sec, file.st_mtim.tv_nsec); };
  if (::fstat(descriptor_, &now) != 0 || now.st_size != left_->st_size || time(now) != time(*left_))
    fail(0, fmt::format("has {} bytes, {} when this sweep last wrote it: another program has changed it", now.st_size,
                        left_->st_size));
  if (::stat(path_.c_str(), &named) != 0 || named.st_dev != now.st_dev || named.st_ino != now.st_ino)
    fail(0, "is gone or another file, which this sweep does not write to");
}

void RowFile::append(const std::string& text) {
  expect_unchanged();
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t count = ::write(descriptor_, text.data() + at, text.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(0, fmt::format("cannot be written: {}", std::strerror(errno)));
    at += static_cast<std::size_t>(count);
  }
  remember();
}

}  // namespace foldwise::planner
