#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include "planner/cli/commands.h"
#include "planner/cli/outputs.h"

// Lack of memory ends the program with a message. Unwinding would allocate, and passes through code that cannot unwind.
namespace foldwise::cli {
namespace {

/// The complete message: there is no memory to format it then.
const char* no_memory = "";

/// std::terminate handler: an exception escaped a thread, or was thrown while another one was handled.
[[noreturn]] void end_by_exception() {
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    end_without_memory();
  } catch (...) {  // NOLINT(bugprone-empty-catch): it ends by abort().
  }
  std::abort();
}

}  // namespace

void end_without_memory() {
  static_cast<void>(::write(STDERR_FILENO, no_memory, std::strlen(no_memory)) < 0);
  remove_left_behind();
  ::_exit(kBadInput);
}

void end_without_memory_as(bool json) {
  no_memory = json ? R"({"errors": [{"file": "system", "line": 0, "field": "", "message": "not enough memory"}]})"
                     "\n"
                   : "system: not enough memory: see ulimit -v, or the limit of the job\n";
  std::set_new_handler(end_without_memory);
  std::set_terminate(end_by_exception);
}

}  // namespace foldwise::cli

#ifdef FW_MIMALLOC
// mimalloc's operator new is C code: it ignores the new handler and aborts without a message. Its free() serves delete.
void* operator new(std::size_t size) {                        // NOLINT(misc-new-delete-overloads)
  void* found = std::malloc(std::max<std::size_t>(1, size));  // NOLINT(cppcoreguidelines-no-malloc): mimalloc's.
  if (found == nullptr) foldwise::cli::end_without_memory();
  return found;
}
void* operator new[](std::size_t size) { return operator new(size); }  // NOLINT(misc-new-delete-overloads)
#endif
