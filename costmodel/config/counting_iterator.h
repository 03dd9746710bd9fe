#pragma once
#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>

namespace foldwise::config {

/// What was read so far of a text, shared by all copies of an iterator.
struct Progress {
  int line = 1;
  char last = '\0';                                            ///< The character consumed last.
  std::size_t read = 0;                                        ///< Characters consumed.
  std::size_t most = std::numeric_limits<std::size_t>::max();  ///< After so many the text ends for who reads it.
};

/// Reads the characters of `Base`, which may be those of a stream, once, and counts their lines: for parsers that take
/// iterators and tell nothing of lines.
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
