#include "planner/diagnose/traced_step.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "costmodel/config/diagnostics.h"

namespace foldwise::planner {
namespace {

using costmodel::Cause;

Cause cause_of(const KernelOp& op) {
  if (!op.group.empty() || is_communication(op.kind)) return Cause::kCommunication;
  return op.kind == "host_copy" ? Cause::kCopy : Cause::kCompute;
}

bool is_optimizer(const MappedKernels& kernels, std::size_t event) {
  return kernels.ops[static_cast<std::size_t>(kernels.op[event])].module == "optimizer";
}

/// Spans from each end to the next later end.
std::vector<Span> between(std::int64_t begin, std::span<const std::int64_t> ends) {
  std::vector<Span> steps;
  for (const std::int64_t end : ends)
    if (end > begin) {
      steps.push_back({begin, end});
      begin = end;
    }
  return steps;
}

std::vector<Span> by_range(const Trace& trace) {
  std::vector<Span> host, profiler;
  for (const HostEvent& e : trace.host) {
    const std::string& name = trace.name(e.name);
    if (is_step(name)) (name.starts_with("ProfilerStep#") ? profiler : host).push_back(e.time);
  }
  if (!profiler.empty()) host = std::move(profiler);
  if (host.empty()) return {};
  std::vector<std::int64_t> ends(host.size(), 0);
  for (const GpuEvent& e : trace.gpu) {
    const auto launch = trace.launches.find(e.correlation);
    if (launch == trace.launches.end()) continue;
    for (std::size_t i = 0; i < host.size(); ++i)
      if (launch->second.time.begin >= host[i].begin && launch->second.time.begin < host[i].end)
        ends[i] = std::max(ends[i], e.time.end);
  }
  return between(host[0].begin, ends);
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
  return ends.empty() ? std::vector<Span>{} : between(ends.front(), ends);
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
  /// A wait for the host. `in`: the range or call that it was in; "": not known.
  void add_gap(std::string_view kind, const std::string& module, bool recomputed, std::int64_t ns,
               const std::string& in) {
    if (ns <= 0) return;
    Entry& of = entry(Cause::kHost, std::string(kind), module, "", recomputed);
    of.line.exposed_ns += ns;
    of.line.busy_ns += ns;
    of.line.longest_ns = std::max(of.line.longest_ns, ns);
    ++of.line.count;
    if (!in.empty()) of.names[in] += ns;
  }

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
    if (is_new)
      found->second.line = {.cause = cause, .kind = kind, .module = module, .group = group, .recomputed = recomputed};
    return found->second;
  }
  Entry& entry(const KernelOp& op) { return entry(cause_of(op), op.kind, op.module, op.group, op.recomputed); }

  std::map<LineKey, Entry> entries_;
};

/// Activity of the host while the GPU was idle, from the times at which PyTorch ran on any thread.
class HostActivity {
 public:
  explicit HostActivity(const Trace& trace) {
    std::set<std::int32_t> threads;  // Threads that use the GPU. Nothing waits for the others.
    for (const GpuEvent& e : trace.gpu)
      if (const auto launch = trace.launches.find(e.correlation); launch != trace.launches.end())
        threads.insert(launch->second.thread);
    std::vector<std::optional<std::optional<std::string>>> kinds(trace.names.size());
    const auto kind_of = [&](const HostEvent& e) {
      auto& kind = kinds[static_cast<std::size_t>(e.name)];
      if (!kind) kind = host_wait(trace.name(e.name));
      return kind->value_or("");
    };
    const auto add_range = [&](const HostEvent& e) {
      if (threads.contains(e.thread)) ranges_.push_back({e.time, kind_of(e), &trace.name(e.name)});
    };
    std::vector<Span> all;
    for (const HostEvent& e : trace.host) {
      const std::string& name = trace.name(e.name);
      if (!kind_of(e).empty())
        add_range(e);
      else if (!is_step(name))
        all.push_back(e.time);
    }
    for (const HostEvent& e : trace.frames) add_range(e);
    std::ranges::stable_sort(ranges_, {}, [](const Range& r) { return r.time.begin; });
    for (const auto& [correlation, launch] : trace.launches) all.push_back(launch.time);
    std::ranges::sort(all, {}, &Span::begin);
    for (const Span& one : all) {
      if (!busy_.empty() && one.begin <= busy_.back().end)
        busy_.back().end = std::max(busy_.back().end, one.end);
      else
        busy_.push_back(one);
    }
  }

  /// Part of a gap, with the kind of range that the host was in.
  struct Part {
    std::int64_t length = 0;
    std::string kind;  ///< Empty: operators, or pauses between them shorter than kPause.
    std::string in;    ///< The innermost range or Python call; empty: not known.
  };

  /// Parts in order of time. Successive calls must be in order of time, too. Operators of a data loader count as
  /// launches, those of a checkpoint as the checkpoint.
  [[nodiscard]] std::vector<Part> parts(const Span& gap) {
    const std::vector<Span> outside = this->outside(gap);
    for (; next_ < ranges_.size() && ranges_[next_].time.begin < gap.end; ++next_) open_.push_back(&ranges_[next_]);
    std::erase_if(open_, [&](const Range* range) { return range->time.end <= gap.begin; });
    std::vector<std::int64_t> cuts = {gap.begin, gap.end};
    const auto cut = [&](const Span& at) {
      for (const std::int64_t time : {at.begin, at.end})
        if (time > gap.begin && time < gap.end) cuts.push_back(time);
    };
    for (const Span& part : outside) cut(part);
    for (const Range* range : open_) cut(range->time);
    std::ranges::sort(cuts);
    std::vector<Part> parts;
    for (std::size_t i = 1; i < cuts.size(); ++i) {
      const Span piece{cuts[i - 1], cuts[i]};
      if (piece.length() == 0) continue;
      const auto covers = [&](const Span& span) { return span.begin <= piece.begin && span.end >= piece.end; };
      Part part{.length = piece.length(), .kind = {}, .in = {}};
      std::string ranged;
      for (const Range* range : open_)
        if (covers(range->time)) {
          part.in = *range->name;
          if (!range->kind.empty()) ranged = range->kind;
        }
      if (std::ranges::any_of(outside, covers))
        part.kind = ranged.empty() ? kOutside : ranged;
      else if (ranged != kDataLoading)
        part.kind = ranged;
      if (!parts.empty() && parts.back().kind == part.kind && parts.back().in == part.in)
        parts.back().length += part.length;
      else
        parts.push_back(std::move(part));
    }
    return parts;
  }

 private:
  /// Parts of `gap` in which PyTorch ran nothing for at least kPause.
  [[nodiscard]] std::vector<Span> outside(const Span& gap) const {
    std::vector<Span> parts;
    auto next = std::ranges::lower_bound(busy_, gap.begin, {}, &Span::end);
    std::int64_t at = gap.begin;
    for (; at < gap.end; ++next) {
      const std::int64_t until = next == busy_.end() ? gap.end : std::min(gap.end, next->begin);
      if (until - at >= kPause) parts.push_back({at, until});
      if (next == busy_.end()) break;
      at = std::max(at, next->end);
    }
    return parts;
  }

  struct Range {
    Span time;
    std::string kind;  ///< As host_wait(); empty: none.
    const std::string* name;
  };

  std::vector<Span> busy_;
  std::vector<Range> ranges_;       ///< By begin.
  std::size_t next_ = 0;            ///< Index into ranges_ of the first one that has not begun.
  std::vector<const Range*> open_;  ///< Ranges that have begun and not ended.
};

}  // namespace

std::vector<Span> steps_of(const Trace& trace, const MappedKernels& kernels) {
  std::vector<Span> steps = by_range(trace);
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
    bool waits = false;  ///< The part in which a collective waits for another rank.
  };
  const auto op_of = [&](std::size_t event) -> const KernelOp& {
    return kernels.ops[static_cast<std::size_t>(kernels.op[event])];
  };
  const auto line_of = [&](std::size_t event, bool waiting) -> TracedLine& {
    const KernelOp& op = op_of(event);
    return waiting ? sum.line(Cause::kCommunication, std::string(kWaitForRank), "", op.group, false) : sum.line(op);
  };
  std::vector<Edge> edges;
  std::vector<std::vector<std::int64_t>> linear(kernels.linear.size());
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
    if (kernels.product[i] >= 0) linear[static_cast<std::size_t>(kernels.product[i])].push_back(time.length());
    result.kernel_ns += time.length();
    result.found_ns[static_cast<std::size_t>(op_of(i).found)] += time.length();
  }
  for (std::vector<std::int64_t>& times : linear) {
    std::ranges::sort(times);
    result.linear_ns.push_back(times.empty() ? 0 : times[(times.size() - 1) / 2]);
  }
  std::ranges::sort(edges, [](const Edge& a, const Edge& b) {
    return std::tie(a.time, a.begins, a.event, a.waits) < std::tie(b.time, b.begins, b.event, b.waits);
  });

  HostActivity host(trace);
  std::set<std::pair<std::size_t, bool>> running[3];  // By Cause. Compute hides communication, and both hide copies.
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
  const auto idle = [&](const Span& gap, std::optional<std::size_t> ended_by) {
    std::int64_t launching = 0;  // Gaps too short to classify count for the operators around them.
    for (const HostActivity::Part& part : host.parts(gap)) {
      if (part.kind.empty())
        launching += part.length;
      else
        sum.add_gap(part.kind, "", false, part.length, part.in);
    }
    if (!ended_by) {
      sum.add_gap("launch", "optimizer", false, launching, "");  // Final synchronisation of the step.
      return;
    }
    const KernelOp& op = op_of(*ended_by);
    const auto launch = trace.launches.find(trace.gpu[*ended_by].correlation);
    const bool waited = launch != trace.launches.end() && launch->second.time.end < gap.begin && launching > 10'000;
    sum.add_gap(waited ? "wait" : "launch", cause_of(op) == Cause::kCommunication ? "communication" : op.module,
                op.recomputed && !waited, launching, "");
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
