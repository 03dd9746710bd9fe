#pragma once
#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>

namespace foldwise::config {

/// How far a text was read. All copies of an iterator share it.
struct Progress {
  int line = 1;
  char last = '\0';                                            ///< The character consumed last.
  std::size_t read = 0;                                        ///< Characters consumed.
  std::size_t most = std::numeric_limits<std::size_t>::max();  ///< After this many characters the reader sees the end.
};

/// Reads the characters of `Base` once and counts lines. It is for parsers that take iterators and do not report lines.
/// `Base` may be the iterator of a stream.
template <typename Base>
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  CountingIterator(Base at, Progress& progress) : at_(std::move(at)), progress_(&progress) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    progress_->last = *at_;
    if (progress_->last == '\n') ++progress_->line;
    ++progress_->read;
    ++at_;
    return *this;
  }
  bool operator==(const CountingIterator& other) const {
    return at_ == other.at_ || progress_->read >= progress_->most;
  }
  bool operator!=(const CountingIterator& other) const { return !(*this == other); }

 private:
  Base at_;
  Progress* progress_;
};

}  // namespace foldwise::config
