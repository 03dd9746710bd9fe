#include "planner/launch/layer_lists.h"

#include <fmt/format.h>

#include <cctype>

namespace foldwise::planner {

namespace {

/// Writes [0, 0, 0, 1, 1] as "[0]*3+[1]*2".
std::string runs_of(const std::vector<bool>& layers) {
  std::string text;
  for (std::size_t at = 0; at < layers.size();) {
    std::size_t end = at;
    while (end < layers.size() && layers[end] == layers[at]) ++end;
    text += fmt::format("{}[{}]*{}", at == 0 ? "" : "+", layers[at] ? 1 : 0, end - at);
    at = end;
  }
  return text;
}

/// Parses sums and products of lists of whole numbers; nothing if the text is none.
class ListExpression {
 public:
  explicit ListExpression(std::string_view text) : text_(text) {}
  std::optional<std::vector<std::int64_t>> value() {
    std::vector<std::int64_t> list = sum();
    skip();
    return failed_ || at_ != text_.size() ? std::nullopt : std::optional(std::move(list));
  }

 private:
  void skip() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::int64_t number() {
    skip();
    std::int64_t n = 0;
    const std::size_t start = at_;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0 && at_ - start < 9)
      n = 10 * n + (text_[at_++] - '0');
    failed_ |= at_ == start;
    return n;
  }
  std::vector<std::int64_t> sum() {
    std::vector<std::int64_t> list = product();
    while (!failed_ && take('+')) {
      const std::vector<std::int64_t> more = product();
      list.insert(list.end(), more.begin(), more.end());
    }
    return list;
  }
  std::vector<std::int64_t> product() {
    std::vector<std::int64_t> list = atom();
    while (!failed_ && take('*')) {
      const std::int64_t times = number();
      failed_ |= static_cast<std::size_t>(times) * list.size() > kMostLayers;
      const std::vector<std::int64_t> once = list;
      list.clear();
      for (std::int64_t i = 0; !failed_ && i < times; ++i) list.insert(list.end(), once.begin(), once.end());
    }
    return list;
  }
  std::vector<std::int64_t> atom() {
    if (take('(')) {
      std::vector<std::int64_t> list = sum();
      failed_ |= !take(')');
      return list;
    }
    std::vector<std::int64_t> list;
    if (!take('[')) {
      failed_ = true;
      return list;
    }
    if (take(']')) return list;
    do {
      list.push_back(number());
    } while (!failed_ && take(','));
    failed_ |= !take(']');
    return list;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  bool failed_ = false;
};

}  // namespace

std::string list_text(const std::vector<bool>& layers) {
  for (std::size_t period = 1; period <= layers.size(); ++period) {
    bool repeats = layers.size() % period == 0;
    for (std::size_t i = period; repeats && i < layers.size(); ++i) repeats = layers[i] == layers[i - period];
    if (!repeats) continue;
    const std::string text = runs_of({layers.begin(), layers.begin() + static_cast<std::ptrdiff_t>(period)});
    return period == layers.size() ? fmt::format("({})", text) : fmt::format("({})*{}", text, layers.size() / period);
  }
  return "";
}

std::optional<std::vector<std::int64_t>> list_values(std::string_view text) { return ListExpression(text).value(); }

}  // namespace foldwise::planner
