#include "planner/diagnose/traced_step.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "costmodel/config/diagnostics.h"

namespace foldwise::planner {
namespace {

using costmodel::Cause;

constexpr std::int64_t kGap = 1'000'000;  ///< ns without anything of PyTorch that is no mere Python between operators.

Cause cause_of(const KernelOp& op) {
  if (!op.group.empty() || is_communication(op.kind)) return Cause::kCommunication;
  return op.kind == "host_copy" ? Cause::kCopy : Cause::kCompute;
}

bool is_optimizer(const MappedKernels& kernels, std::size_t event) {
  return kernels.ops[static_cast<std::size_t>(kernels.op[event])].module == "optimizer";
}

std::vector<Span> by_profiler(const Trace& trace) {
  std::vector<Span> host;
  for (const HostEvent& e : trace.host)
    if (trace.name(e.name).starts_with("ProfilerStep#")) host.push_back(e.time);
  std::vector<Span> steps;
  std::vector<std::int64_t> ends(host.size(), 0);
  for (const GpuEvent& e : trace.gpu) {
    const auto launch = trace.launches.find(e.correlation);
    if (launch == trace.launches.end()) continue;
    for (std::size_t i = 0; i < host.size(); ++i)
      if (launch->second.time.begin >= host[i].begin && launch->second.time.begin < host[i].end)
        ends[i] = std::max(ends[i], e.time.end);
  }
  for (std::size_t i = 0; i < host.size(); ++i) {
    const std::int64_t begin = i == 0 ? host[0].begin : ends[i - 1];
    if (ends[i] > begin) steps.push_back({begin, ends[i]});
  }
  return steps;
}

std::vector<Span> by_optimizer(const Trace& trace, const MappedKernels& kernels) {
  std::vector<std::int64_t> ends;
  bool in_optimizer = false;
  for (std::size_t i = 0; i < trace.gpu.size(); ++i) {
    const KernelOp& op = kernels.ops[static_cast<std::size_t>(kernels.op[i])];
    if (is_optimizer(kernels, i)) {
      if (!in_optimizer) ends.push_back(0);
      in_optimizer = true;
      ends.back() = std::max(ends.back(), trace.gpu[i].time.end);
    } else if (is_product(op.kind)) {
      in_optimizer = false;
    }
  }
  std::vector<Span> steps;
  for (std::size_t i = 1; i < ends.size(); ++i) steps.push_back({ends[i - 1], ends[i]});
  return steps;
}

using LineKey = std::tuple<Cause, std::string, std::string, std::string, bool>;

class Sum {
 public:
  TracedLine& line(Cause cause, const std::string& kind, const std::string& module, const std::string& group,
                   bool recomputed) {
    return entry(cause, kind, module, group, recomputed).line;
  }
  TracedLine& line(const KernelOp& op) { return entry(op).line; }
  void add_name(const KernelOp& op, const std::string& name, std::int64_t ns) { entry(op).names[name] += ns; }

  std::vector<TracedLine> lines() && {
    std::vector<TracedLine> result;
    for (auto& [key, entry] : entries_) {
      auto& names = entry.line.names;
      names.assign(entry.names.begin(), entry.names.end());
      std::ranges::stable_sort(names, std::ranges::greater{}, &std::pair<std::string, std::int64_t>::second);
      result.push_back(std::move(entry.line));
    }
    std::ranges::stable_sort(result, std::ranges::greater{}, &TracedLine::exposed_ns);
    return result;
  }

 private:
  struct Entry {
    TracedLine line;
    std::map<std::string, std::int64_t> names;
  };
  Entry& entry(Cause cause, const std::string& kind, const std::string& module, const std::string& group,
               bool recomputed) {
    const auto [found, is_new] = entries_.try_emplace({cause, kind, module, group, recomputed});
    if (is_new) found->second.line = {cause, kind, module, group, recomputed, 0, 0, 0, {}};
    return found->second;
  }
  Entry& entry(const KernelOp& op) { return entry(cause_of(op), op.kind, op.module, op.group, op.recomputed); }

  std::map<LineKey, Entry> entries_;
};

/// What the host did while the GPU was idle, by the time at which something of PyTorch ran on any thread.
class HostActivity {
 public:
  explicit HostActivity(const Trace& trace) {
    std::vector<Span> all;
    for (const HostEvent& e : trace.host) {
      const std::string& name = trace.name(e.name);
      if (is_data_loading(name))
        loading_.push_back(e.time);
      else if (!name.starts_with("ProfilerStep#") && name.find("Optimizer.step") == std::string::npos)
        all.push_back(e.time);
    }
    for (const auto& [correlation, launch] : trace.launches) all.push_back(launch.time);
    std::ranges::sort(all, {}, &Span::begin);
    for (const Span& one : all) {
      if (!busy_.empty() && one.begin <= busy_.back().end)
        busy_.back().end = std::max(busy_.back().end, one.end);
      else
        busy_.push_back(one);
    }
  }

  /// Parts of `gap` in which nothing of PyTorch ran for kGap or longer.
  [[nodiscard]] std::vector<Span> outside(const Span& gap) const {
    std::vector<Span> parts;
    auto next = std::ranges::lower_bound(busy_, gap.begin, {}, &Span::end);
    std::int64_t at = gap.begin;
    for (; at < gap.end; ++next) {
      const std::int64_t until = next == busy_.end() ? gap.end : std::min(gap.end, next->begin);
      if (until - at >= kGap) parts.push_back({at, until});
      if (next == busy_.end()) break;
      at = std::max(at, next->end);
    }
    return parts;
  }

  [[nodiscard]] bool loads_data(const Span& part) const {
    return std::ranges::any_of(loading_, [&](const Span& l) { return l.begin < part.end && l.end > part.begin; });
  }

 private:
  std::vector<Span> busy_, loading_;
};

}  // namespace

std::vector<Span> steps_of(const Trace& trace, const MappedKernels& kernels) {
  std::vector<Span> steps = by_profiler(trace);
  if (steps.empty()) steps = by_optimizer(trace, kernels);
  if (steps.empty())
    throw config::ConfigError({{{trace.file, 0, ""},
                                "expected a whole step: ProfilerStep# ranges (profiler.step()), or kernels of two "
                                "optimizer steps"}});
  return steps;
}

TracedStep traced_step(const Trace& trace, const MappedKernels& kernels, const Span& step,
                       const std::vector<std::int64_t>& waits) {
  TracedStep result;
  result.time = step;
  Sum sum;
  struct Edge {
    std::int64_t time;
    bool begins;
    std::size_t event;
    bool waits = false;  ///< Of the part in which a collective waits for another rank.
  };
  const auto op_of = [&](std::size_t event) -> const KernelOp& {
    return kernels.ops[static_cast<std::size_t>(kernels.op[event])];
  };
  const auto line_of = [&](std::size_t event, bool waiting) -> TracedLine& {
    const KernelOp& op = op_of(event);
    return waiting ? sum.line(Cause::kCommunication, std::string(kWaitForRank), "", op.group, false) : sum.line(op);
  };
  std::vector<Edge> edges;
  for (std::size_t i = 0; i < trace.gpu.size(); ++i) {
    const Span time{std::max(step.begin, trace.gpu[i].time.begin), std::min(step.end, trace.gpu[i].time.end)};
    if (time.length() <= 0) continue;
    const std::int64_t works = std::min(time.end, time.begin + (waits.empty() ? 0 : waits[i]));
    const auto add = [&](const Span& part, bool waiting) {
      if (part.length() <= 0) return;
      edges.push_back({part.begin, true, i, waiting});
      edges.push_back({part.end, false, i, waiting});
      TracedLine& line = line_of(i, waiting);
      line.busy_ns += part.length();
      ++line.count;
    };
    add({time.begin, works}, true);
    add({works, time.end}, false);
    sum.add_name(op_of(i), trace.name(trace.gpu[i].name), time.length());
    result.kernel_ns += time.length();
    result.found_ns[static_cast<std::size_t>(op_of(i).found)] += time.length();
  }
  std::ranges::sort(edges, [](const Edge& a, const Edge& b) {
    return std::tie(a.time, a.begins, a.event, a.waits) < std::tie(b.time, b.begins, b.event, b.waits);
  });

  const HostActivity host(trace);
  std::set<std::pair<std::size_t, bool>> running[3];  // By Cause: compute hides communication, and both hide copies.
  const auto divide = [&](std::int64_t length) {
    for (const auto& set : running) {
      if (set.empty()) continue;
      auto left = static_cast<std::int64_t>(set.size());
      for (const auto& [event, waiting] : set) {
        const std::int64_t part = length / left;
        line_of(event, waiting).exposed_ns += part;
        length -= part;
        --left;
      }
      return;
    }
  };
  const auto idle = [&](Span gap, std::optional<std::size_t> ended_by) {
    const auto add = [&](std::string_view kind, const std::string& module, std::int64_t length,
                         bool recomputed = false) {
      if (length <= 0) return;
      TracedLine& line = sum.line(Cause::kHost, std::string(kind), module, "", recomputed);
      line.exposed_ns += length;
      line.busy_ns += length;
      ++line.count;
    };
    for (const Span& part : host.outside(gap)) {
      result.longest_outside_ns = std::max(result.longest_outside_ns, part.length());
      add(host.loads_data(part) ? kDataLoading : kOutside, "", part.length());
      gap.end -= part.length();  // What is left of it is the operators around.
    }
    if (!ended_by) {
      add("launch", "optimizer", gap.length());  // The step's last synchronisation.
      return;
    }
    const KernelOp& op = op_of(*ended_by);
    const auto launch = trace.launches.find(trace.gpu[*ended_by].correlation);
    const bool waited = launch != trace.launches.end() && launch->second.time.end < gap.begin && gap.length() > 10'000;
    add(waited ? "wait" : "launch", cause_of(op) == Cause::kCommunication ? "communication" : op.module, gap.length(),
        op.recomputed && !waited);
  };
  std::int64_t now = step.begin;
  for (const Edge& edge : edges) {
    if (edge.time > now) {
      const bool busy = !running[0].empty() || !running[1].empty() || !running[2].empty();
      busy ? divide(edge.time - now) : idle({now, edge.time}, edge.event);
      now = edge.time;
    }
    auto& set = running[static_cast<std::size_t>(cause_of(op_of(edge.event)))];
    const std::pair part{edge.event, edge.waits};
    edge.begins ? static_cast<void>(set.insert(part)) : static_cast<void>(set.erase(part));
  }
  if (step.end > now) idle({now, step.end}, std::nullopt);

  result.lines = std::move(sum).lines();
  return result;
}

}  // namespace foldwise::planner
