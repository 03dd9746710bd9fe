#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/check.h"
#include "costmodel/pipeline/schedule.h"

// The text of a layout: E embedding, t decoder layer, m MTP layer, L loss, '|' between stages. Repetition is textual
// substitution, first of groups, then of single characters: "(t*4|)*2" becomes "t*4|t*4|".
namespace foldwise::costmodel {
namespace {

/// Far above any real layout. Prevents "t*999999999" from filling memory.
constexpr std::size_t kMaxExpanded = 1 << 16;

/// Reads the digits at `at` and moves past them; nothing if there are none. Saturates above kMaxExpanded.
std::optional<std::size_t> read_count(std::string_view text, std::size_t& at) {
  const std::size_t begin = at;
  std::size_t count = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    count = std::min(count * 10 + static_cast<std::size_t>(text[at] - '0'), kMaxExpanded + 1);
  }
  if (at == begin) return std::nullopt;
  return count;
}

/// Appends `piece` `count` times; false if the text becomes too long.
bool append_repeated(std::string& out, std::string_view piece, std::size_t count) {
  if (!piece.empty() && count > (kMaxExpanded - std::min(kMaxExpanded, out.size())) / piece.size()) return false;
  for (std::size_t i = 0; i < count; ++i) out += piece;
  return true;
}

/// Megatron's re.sub(r"\\(([^)]+)\\)\\*(\\d+)"). Text that does not match stays.
bool expand_groups(std::string_view text, std::string& out) {
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '(') {
      const std::size_t close = text.find(')', at);
      if (close != std::string_view::npos && close > at + 1 && close + 1 < text.size() && text[close + 1] == '*') {
        std::size_t next = close + 2;
        if (const auto count = read_count(text, next)) {
          if (!append_repeated(out, text.substr(at + 1, close - at - 1), *count)) return false;
          at = next;
          continue;
        }
      }
    }
    if (!append_repeated(out, text.substr(at++, 1), 1)) return false;
  }
  return true;
}

/// Megatron's re.sub(r"(.)\\*(\\d+)").
bool expand_characters(std::string_view text, std::string& out) {
  for (std::size_t at = 0; at < text.size();) {
    std::size_t next = at + 2;
    std::optional<std::size_t> count;
    if (at + 1 < text.size() && text[at + 1] == '*') count = read_count(text, next);
    if (!append_repeated(out, text.substr(at, 1), count.value_or(1))) return false;
    at = count ? next : at + 1;
  }
  return true;
}

ParsedLayout failure(std::string error) { return {.stages = std::nullopt, .error = std::move(error)}; }

std::string count_of(std::int64_t count, std::string_view what) {
  return std::to_string(count) + " " + std::string(what);
}

std::string expanded_text(const StageLayout& layout) {
  std::string text;
  for (const StageContent& stage : layout.stages) {
    if (!text.empty() || &stage != layout.stages.data()) text += '|';
    if (stage.embedding) text += 'E';
    text.append(static_cast<std::size_t>(stage.num_layers), 't');
    text.append(static_cast<std::size_t>(stage.mtp_layers), 'm');
    if (stage.loss) text += 'L';
  }
  return text;
}

std::size_t digits(std::size_t count) { return std::to_string(count).size(); }

/// Length of a run of one character: written out, or as "c*n".
std::size_t run_cost(std::size_t length) { return std::min(length, 2 + digits(length)); }

void append_run(std::string& out, char c, std::size_t length) {
  if (length <= run_cost(length)) {
    out.append(length, c);
  } else {
    out += c;
    out += '*';
    out += std::to_string(length);
  }
}

void append_runs(std::string& out, std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_not_of(text[at], at), text.size());
    append_run(out, text[at], end - at);
    at = end;
  }
}

// Stages with these numbers of layers. The embedding comes first, MTP and loss come last.
StageLayout stages_of(const std::vector<std::int64_t>& layers, std::int64_t mtp_layers) {
  StageLayout layout;
  std::int64_t next = 0;
  for (const std::int64_t count : layers) {
    layout.stages.push_back({.first_layer = next, .num_layers = count});
    next += count;
  }
  layout.stages.front().embedding = true;
  layout.stages.back().mtp_layers = mtp_layers;
  layout.stages.back().loss = true;
  return layout;
}

}  // namespace

StageLayout even_stages(std::int64_t num_layers, std::int64_t mtp_layers, std::int64_t pp, std::int64_t vpp,
                        bool account_for_embedding, bool account_for_loss) {
  const std::int64_t taken = (account_for_embedding ? 1 : 0) + (account_for_loss ? 1 : 0);
  const std::int64_t stages = pp * vpp, places = num_layers + taken;
  FW_CHECK(
      pp >= 1 && vpp >= 1 && places % stages == 0 && places / stages >= (stages == 1 ? taken : (taken > 0 ? 1 : 0)),
      std::to_string(places) + " layers over " + std::to_string(pp) + " x " + std::to_string(vpp) + " stages");
  std::vector<std::int64_t> layers(static_cast<std::size_t>(stages), places / stages);
  if (account_for_embedding) --layers.front();
  if (account_for_loss) --layers.back();
  return stages_of(layers, mtp_layers);
}

StageLayout first_last_stages(std::int64_t num_layers, std::int64_t mtp_layers, std::int64_t pp, std::int64_t vpp,
                              std::int64_t first, std::int64_t last) {
  const std::int64_t middle = pp > 2 ? (num_layers - first - last) / (pp - 2) : 0;
  FW_CHECK(
      pp > 1 && first % vpp == 0 && last % vpp == 0 && middle % vpp == 0 && middle >= 0 &&
          first + last + (pp - 2) * middle == num_layers,
      std::to_string(num_layers) + " layers, " + std::to_string(first) + " first, " + std::to_string(last) + " last");
  std::vector<std::int64_t> layers;
  for (std::int64_t stage = 0; stage < pp * vpp; ++stage) {
    const std::int64_t rank = stage % pp;
    layers.push_back((rank == 0 ? first : rank == pp - 1 ? last : middle) / vpp);
  }
  return stages_of(layers, mtp_layers);
}

ParsedLayout parse_layout(std::string_view text, std::int64_t num_layers, std::int64_t mtp_layers) {
  std::string plain, groups, expanded;
  std::copy_if(text.begin(), text.end(), std::back_inserter(plain), [](char c) { return c != ','; });
  if (!expand_groups(plain, groups) || !expand_characters(groups, expanded)) {
    return failure("expected a layout of at most " + std::to_string(kMaxExpanded) + " characters, found a longer one");
  }

  StageLayout layout;
  layout.stages.emplace_back();
  std::int64_t embeddings = 0, layers = 0, mtp = 0, losses = 0, mtp_stages = 0;
  for (const char c : expanded) {
    StageContent& stage = layout.stages.back();
    switch (c) {
      case '|': {
        layout.stages.push_back({.first_layer = layers});
        break;
      }
      case 'E': {
        ++embeddings;
        stage.embedding = true;
        break;
      }
      case 't': {
        if (mtp > 0)
          return failure("expected every decoder layer t before the first MTP layer m, found a t after an m");
        ++layers;
        ++stage.num_layers;
        break;
      }
      case 'm': {
        if (stage.mtp_layers == 0) ++mtp_stages;
        ++mtp;
        ++stage.mtp_layers;
        break;
      }
      case 'L': {
        ++losses;
        stage.loss = true;
        break;
      }
      default:
        return failure(std::string("expected one of E t m L | , or a repetition (...)*n or c*n, found '") + c + "'");
    }
  }
  const std::string_view content = expanded;
  if (embeddings != 1 || content.front() != 'E') {
    return failure("expected exactly one E (embedding), as the first element, found " + count_of(embeddings, "E") +
                   (embeddings == 1 ? " behind another element" : ""));
  }
  if (losses != 1 || content.back() != 'L') {
    return failure("expected exactly one L (loss), as the last element, found " + count_of(losses, "L") +
                   (losses == 1 ? " before another element" : ""));
  }
  if (layers != num_layers) {
    return failure("expected " + count_of(num_layers, "t") + ", one per decoder layer, found " + count_of(layers, "t"));
  }
  if (mtp != mtp_layers) {
    return failure("expected " + count_of(mtp_layers, "m") + ", one per MTP layer, found " + count_of(mtp, "m"));
  }
  if (mtp_stages > 1) {
    return failure("expected every m in one virtual stage, found m in " + std::to_string(mtp_stages) + " stages");
  }
  return {.stages = std::move(layout), .error = {}};
}

std::string to_layout_string(const StageLayout& stages) {
  const std::string text = expanded_text(stages);
  const std::size_t n = text.size();
  // Shortest encoding of each suffix, from the end. A piece is a run "c" or "c*n", or a group "(...|)*n" of runs.
  // Groups do not nest and consist of whole stages. Among equals the piece found first is kept: runs before groups,
  // short periods before long ones.
  struct Best {
    std::size_t cost = 0;
    std::size_t period = 0, repeats = 0;  ///< period 1: a run of `repeats` characters. Otherwise a group.
  };
  std::vector<Best> best(n + 1);
  std::vector<std::size_t> same(n + 1,
                                0);  // [period] number of characters from i on that equal those one period later.
  for (std::size_t i = n; i-- > 0;) {
    Best& here = best[i];
    here.cost = std::numeric_limits<std::size_t>::max();
    const auto offer = [&](std::size_t cost, std::size_t period, std::size_t repeats) {
      if (cost < here.cost) here = {cost, period, repeats};
    };
    const std::size_t run_end = std::min(text.find_first_not_of(text[i], i), n);
    for (std::size_t length = run_end - i; length >= 1; --length) {
      offer(run_cost(length) + best[i + length].cost, 1, length);
    }
    std::size_t inner = 0, run = 0;  // Cost of text[i, i + period) as runs; length of its last run.
    for (std::size_t period = 1; i + period < n; ++period) {
      const std::size_t end = i + period;
      same[period] = text[i] == text[end] ? same[period] + 1 : 0;
      if (end + period > n) continue;
      if (run > 0 && text[end - 1] == text[end - 2]) {
        inner -= run_cost(run);
        ++run;
      } else {
        run = 1;
      }
      inner += run_cost(run);
      if (period == 1 || text[end - 1] != '|') continue;
      for (std::size_t repeats = 2; repeats <= same[period] / period + 1; ++repeats)
        offer(3 + digits(repeats) + inner + best[i + period * repeats].cost, period, repeats);
    }
  }
  std::string out;
  for (std::size_t i = 0; i < n; i += best[i].period * best[i].repeats) {
    const Best& piece = best[i];
    if (piece.period == 1) {
      append_run(out, text[i], piece.repeats);
    } else {
      out += '(';
      append_runs(out, std::string_view(text).substr(i, piece.period));
      out += ")*" + std::to_string(piece.repeats);
    }
  }
  return out;
}

}  // namespace foldwise::costmodel
