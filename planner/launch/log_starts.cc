#include "planner/launch/log_starts.h"

#include <algorithm>
#include <string_view>

#include "costmodel/config/number.h"
#include "planner/launch/printed.h"
#include "planner/launch/training_log.h"

namespace foldwise::planner {

std::vector<LogStart> starts_in(std::string_view text) {
  std::vector<LogStart> starts;
  std::size_t begin = 0, rest = 0;  // Of the last start's arguments; of what follows its last iteration.
  int number = 0;
  const auto end_start = [&](std::size_t end) {
    if (!starts.empty()) starts.back().text = text.substr(begin, end - begin);
  };
  for (std::size_t at = 0; at < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    const std::string_view line = text.substr(at, end - at);
    if (line.find(kArguments) != std::string_view::npos) {
      end_start(at);
      starts.push_back({.before = text.substr(rest, at - rest), .lines_before = number, .number = starts.size() + 1});
      begin = at;
      rest = end;
    } else if (!starts.empty() && line.find(kEndOfArguments) != std::string_view::npos) {
      starts.back().complete = true;
      rest = end;
    } else if (!starts.empty() && is_iteration(line)) {
      starts.back().iterations = true;
      rest = end;
    }
    at = end;
  }
  end_start(text.size());
  return starts;
}

const LogStart* start_to_read(const std::vector<LogStart>& starts, std::int64_t wanted) {
  if (wanted > 0) {
    const auto index = static_cast<std::size_t>(wanted) - 1;
    return index < starts.size() ? &starts[index] : nullptr;
  }
  const LogStart* best = nullptr;
  const auto rank = [](const LogStart& start) { return start.complete ? 1 + static_cast<int>(start.iterations) : 0; };
  for (const LogStart& start : starts)
    if (best == nullptr || rank(start) >= rank(*best)) best = &start;
  return best;
}

std::string system_in(const LogStart& start, std::string_view log) {
  for (const std::string_view text : {start.text, start.before, log})
    if (std::string system = system_in(text); !system.empty()) return system;
  return "";
}

std::optional<std::int64_t> printed_vocabulary(std::string_view text) {
  constexpr std::string_view kLabel = "> padded vocab (size: ";
  const std::size_t at = text.find(kLabel);
  if (at == std::string::npos) return std::nullopt;
  const std::string_view rest = text.substr(at + kLabel.size());
  const auto size = config::number_in<std::int64_t>(rest.substr(0, rest.find_first_not_of("0123456789")));
  return size && *size > 0 ? size : std::nullopt;
}

}  // namespace foldwise::planner
