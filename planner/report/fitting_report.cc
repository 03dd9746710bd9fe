#include "planner/report/fitting_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "planner/report/screen.h"

namespace foldwise::planner {
namespace {

std::string change_text(const FittingChange& change) { return fmt::format("{}", fmt::join(change.steps, ", ")); }

std::string signed_seconds(Seconds time) {
  const auto seconds = time.to<double>();
  return fmt::format("{}{}", seconds < 0.0 ? '-' : '+', seconds_text(std::abs(seconds)));
}

}  // namespace

nlohmann::json fitting_json(const Run& run, const Fitting& fitting) {
  nlohmann::json changes = nlohmann::json::array();
  for (const FittingChange& change : fitting.changes) {
    Run changed = run;
    changed.options = change.options;
    changes.push_back({{"change", change_text(change)},
                       {"steps", change.steps},
                       {"fits", change.fits},
                       {"step_time_s", change.step_time.to<double>()},
                       {"cost_s", change.cost.to<double>()},
                       {"peak_memory_gib", in_gib(change.peak_allocated)},
                       {"peak_device_memory_gib", in_gib(change.peak_memory)},
                       {"saved_gib", in_gib(change.saved)},
                       {"host_gib", in_gib(change.host)},
                       {"run", write_run(changed)}});
  }
  return {{"stage", fitting.stage},
          {"over_gib", in_gib(fitting.over)},
          {"host_over_gib", in_gib(fitting.host_over)},
          {"changes", std::move(changes)}};
}

std::string fitting_text(const Fitting& fitting, const Screen& screen) {
  std::string out;
  if (fitting.over > Bytes{})
    out += fmt::format("Stage {} is {:.2f} GiB over. ", fitting.stage, in_gib(fitting.over));
  else if (fitting.host_over <= Bytes{})
    out += "Torch's allocator runs out of memory. ";
  if (fitting.host_over > Bytes{})
    out += fmt::format("Offloading needs {:.2f} GiB more host memory a GPU than there is. ", in_gib(fitting.host_over));
  if (fitting.changes.empty()) return out + "No one or two changes that Foldwise knows make it smaller.\n";
  const bool fits = std::any_of(fitting.changes.begin(), fitting.changes.end(),
                                [](const FittingChange& change) { return change.fits; });
  out += fits ? "It fits with one of these, fastest first\n" : "No one or two changes make it fit; these save most\n";
  Table table({"step s", "cost s", "GiB", "saves GiB", "host GiB", "<change"});
  for (const FittingChange& change : fitting.changes)
    table.add({seconds_text(change.step_time.to<double>()), signed_seconds(change.cost),
               fmt::format("{:.1f}", in_gib(change.peak_memory)), fmt::format("{:.1f}", in_gib(change.saved)),
               fmt::format("{:.1f}", in_gib(change.host)), change_text(change)});
  return out + table.text(2, screen.width);
}

}  // namespace foldwise::planner
