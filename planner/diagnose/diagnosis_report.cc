#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "planner/diagnose/diagnosis.h"
#include "planner/report/screen.h"

namespace foldwise::planner {
namespace {

using nlohmann::json;

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }
json speed_json(const GpuSpeed& speed) {
  constexpr const char* kNames[] = {"no", "clock", "shared", "everything"};
  return {{"products", speed.products},
          {"spread", speed.spread},
          {"memory_bound", speed.memory_bound},
          {"interrupted", speed.interrupted},
          {"slow", kNames[static_cast<std::size_t>(speed.slow())]}};
}

/// Bytes by owner: what a rank holds between steps, and what the step adds.
json memory_json(const Diagnosis& d) {
  if (d.most_allocated < 0) return nullptr;
  json owned = json::array();
  if (d.memory)
    for (const OwnedMemory& line : d.memory->owned)
      owned.push_back({{"phase", line.owner.phase},
                       {"module", line.owner.module},
                       {"bytes", line.bytes},
                       {"tensors", line.tensors}});
  const costmodel::StageMemory& predicted = d.stage_memory();
  const auto whole = [](Bytes bytes) { return static_cast<std::int64_t>(bytes.to<double>()); };
  return {{"allocated_gib", gib(d.most_allocated)},
          {"reserved_gib", gib(d.most_reserved)},
          {"predicted_allocated_gib", in_gib(predicted.allocated())},
          {"moment", predicted.moment},
          {"allocated_bytes", d.memory ? d.memory->allocated : d.most_allocated},
          {"before_bytes", d.memory ? json(d.memory->before) : json()},
          {"owned", std::move(owned)},
          {"predicted_bytes",
           {{"between_steps", whole(predicted.allocated_between_steps)},
            {"parameters", whole(predicted.parameters)},
            {"gradients", whole(predicted.gradients)},
            {"optimizer", whole(predicted.optimizer)},
            {"activations", whole(predicted.activations)},
            {"buffers", whole(predicted.buffers)}}}};
}

std::string memory_text(const Diagnosis& d) {
  const costmodel::StageMemory& predicted = d.stage_memory();
  Table table({"<phase", "<module", "tensors", "bytes", "GiB", "predicted GiB"});
  const auto add = [&](const std::string& phase, const std::string& module, const std::string& tensors,
                       std::int64_t bytes, const std::string& gib_predicted) {
    table.add({phase, module, tensors, std::to_string(bytes), fmt::format("{:.3f}", gib(bytes)), gib_predicted});
  };
  const auto in_text = [](Bytes bytes) { return fmt::format("{:.3f}", in_gib(bytes)); };
  add("before the trace", "", "", d.memory->before, in_text(predicted.allocated_between_steps));
  for (const OwnedMemory& line : d.memory->owned)
    add(line.owner.phase, line.owner.module, std::to_string(line.tensors), line.bytes, "");
  add("allocated", "", "", d.memory->allocated, in_text(predicted.allocated()));
  return fmt::format(
      "\nWhat is allocated at the peak\n{}  predicted of the latter: parameters {}, gradients {}, optimizer {}, "
      "activations {}, buffers {}\n",
      table.text(), in_text(predicted.parameters), in_text(predicted.gradients), in_text(predicted.optimizer),
      in_text(predicted.activations), in_text(predicted.buffers));
}

std::string reasons_text(const Diagnosis& d) {
  std::vector<double> parts;
  for (const Reason& r : d.reasons) parts.push_back(r.seconds);
  const std::vector<std::int64_t> microseconds = whole_microseconds(parts, d.measured_s() - d.predicted_s());
  std::string out = "\nThe difference by reason\n";
  for (std::size_t i = 0; i < d.reasons.size(); ++i)
    if (microseconds[i] != 0)
      out += fmt::format("  {:+.6f} s  {}\n", static_cast<double>(microseconds[i]) * 1e-6, d.reasons[i].what);
  return out + fmt::format("  GEMMs and attention run at {:.0f} % of the rate that is expected under the power limit\n",
                           100.0 / d.speed.products);
}

std::string ranks_text(const Diagnosis& d) {
  if (d.ranks.ranks.size() < 2) return "";
  const bool has_rows = std::ranges::any_of(d.ranks.ranks, [](const RankReport& r) { return r.rows > 0.0; });
  std::vector<std::string> titles = {"rank",       "node",           "waits for others s", "is waited for s",
                                     "comes last", "of collectives", "products %",         "memory-bound %"};
  if (has_rows) titles.insert(titles.end(), {"expert rows", "busiest"});
  Table table(titles);
  for (const RankReport& r : d.ranks.ranks) {
    std::vector<std::string> cells = {std::to_string(r.rank),
                                      std::to_string(r.node),
                                      fmt::format("{:.6f}", r.waited_s),
                                      fmt::format("{:.6f}", r.waited_for_s),
                                      std::to_string(r.last),
                                      std::to_string(r.of),
                                      fmt::format("{:.1f}", 100.0 * r.speed.products),
                                      fmt::format("{:.1f}", 100.0 * r.speed.memory_bound)};
    if (has_rows) cells.insert(cells.end(), {fmt::format("{:.0f}", r.rows), std::to_string(r.busiest)});
    table.add(std::move(cells));
  }
  table.note("Products and memory-bound kernels: their time, of that of the same on the other ranks.");
  if (d.ranks.rows)
    table.note(fmt::format("Experts: the busiest rank of a pass has {:.2f} times the mean of the ranks' rows.",
                           d.ranks.rows->busiest_over_mean));
  return "\nRanks\n" + table.text();
}

std::string links_text(const Diagnosis& d) {
  if (d.ranks.links.empty()) return "";
  constexpr std::size_t kMost = 8;
  Table table({"<kind", "<group", "<ranks", "calls", "GB", "GB/s", "of others GB/s", "lost s"});
  for (std::size_t i = 0; i < std::min(kMost, d.ranks.links.size()); ++i) {
    const LinkReport& l = d.ranks.links[i];
    table.add({l.kind, l.group, shortened(fmt::format("{}", fmt::join(l.ranks, " ")), 24), std::to_string(l.calls),
               fmt::format("{:.3f}", 1e-9 * l.bytes), fmt::format("{:.1f}", 1e-9 * l.bandwidth),
               l.of_others ? fmt::format("{:.1f}", 1e-9 * *l.of_others) : "", fmt::format("{:.6f}", l.lost_s)});
  }
  return "\nLinks, at the best of their large calls\n" + table.text();
}

json flags_json(const Finding& f) {
  if (!f.flags) return nullptr;
  json flags = json::array();
  for (const FlagBehind& behind : *f.flags)
    flags.push_back({{"flag", behind.flag}, {"field", behind.field}, {"value", behind.value}});
  return flags;
}

std::string flags_text(const std::vector<FlagBehind>& flags) {
  std::string text;
  for (const FlagBehind& behind : flags) {
    text += (text.empty() ? "check " : ", ") + behind.flag;
    if (!behind.field.empty()) text += fmt::format(" ({} in the run)", behind.value);
  }
  return text.empty() ? "no flag mends this" : text;
}

json site_json(const Diagnosis& d) {
  if (!d.site) return {};
  json factors = json::object();
  for (const SiteParameter& p : d.site->parameters) factors[std::string(to_string(p.resource))] = p.factor;
  return {{"factors", std::move(factors)}, {"step_time_s", d.site_step_s}};
}

std::string site_text(const Diagnosis& d) {
  std::string told;
  if (d.site)
    for (const SiteParameter& p : d.site->parameters)
      if (p.told) told += fmt::format("{}{} {:.3f}", told.empty() ? "" : ", ", to_string(p.resource), p.factor);
  if (told.empty()) return fmt::format("of {:.4f} s", d.site_step_s);
  return fmt::format("of {:.4f} s at a site of {} times the profile's", d.site_step_s, told);
}

}  // namespace

json diagnosis_json(const Run& run, const Diagnosis& d) {
  json findings = json::array(), reasons = json::array(), ranks = json::array(), links = json::array(),
       changes = json::array(), lines = json::array();
  for (const Finding& f : d.findings)
    findings.push_back({{"what", f.what}, {"seconds", f.seconds}, {"evidence", f.evidence}, {"flags", flags_json(f)}});
  for (const Reason& r : d.reasons) reasons.push_back({{"what", r.what}, {"seconds", r.seconds}});
  if (d.ranks.ranks.size() > 1)
    for (const RankReport& r : d.ranks.ranks)
      ranks.push_back({{"rank", r.rank},
                       {"node", r.node},
                       {"waited_s", r.waited_s},
                       {"waited_for_s", r.waited_for_s},
                       {"came_last", r.last},
                       {"collectives", r.of},
                       {"speed", speed_json(r.speed)},
                       {"expert_rows", r.rows > 0.0 ? json(r.rows) : json()},
                       {"busiest_passes", r.busiest}});
  for (const LinkReport& l : d.ranks.links)
    links.push_back({{"kind", l.kind},
                     {"group", l.group},
                     {"ranks", l.ranks},
                     {"calls", l.calls},
                     {"bytes", l.bytes},
                     {"bandwidth_bytes_per_s", l.bandwidth},
                     {"of_others_bytes_per_s", l.of_others ? json(*l.of_others) : json()},
                     {"lost_s", l.lost_s}});
  for (const Suggestion& s : d.changes)
    changes.push_back({{"change", s.change.text()},
                       {"flags", s.flags ? json(*s.flags) : json()},
                       {"step_time_s", s.change.step_time.to<double>()}});
  for (const TracedLine& line : d.measured.lines) {
    json names = json::array();
    for (std::size_t i = 0; i < std::min<std::size_t>(10, line.names.size()); ++i)
      names.push_back({{"name", line.names[i].first}, {"seconds", seconds(line.names[i].second)}});
    lines.push_back({{"cause", to_string(line.cause)},
                     {"kind", line.kind},
                     {"module", line.module},
                     {"group", line.group},
                     {"recomputed", line.recomputed},
                     {"exposed_s", seconds(line.exposed_ns)},
                     {"busy_s", seconds(line.busy_ns)},
                     {"count", line.count},
                     {"kernels", std::move(names)}});
  }
  const auto& found = d.measured.found_ns;
  json rows;
  if (d.ranks.rows)
    rows = {{"passes", d.ranks.rows->passes},
            {"predicted", d.ranks.rows->predicted},
            {"mean", d.ranks.rows->mean},
            {"busiest_over_mean", d.ranks.rows->busiest_over_mean}};
  return {{"id", run.id},
          {"trace", {{"file", d.file}, {"rank", d.rank}, {"device", d.device}, {"steps_s", d.steps}, {"step", d.step}}},
          {"stage", d.stage},
          {"predicted_s", d.predicted_s()},
          {"measured_s", d.measured_s()},
          {"unprofiled_s", d.unprofiled_s ? json(*d.unprofiled_s) : json()},
          {"memory", memory_json(d)},
          {"speed", speed_json(d.speed)},
          {"kernel_time_s", seconds(d.measured.kernel_ns)},
          {"found_by_s",
           {{"function", seconds(found[0])},
            {"shape", seconds(found[1])},
            {"order", seconds(found[2])},
            {"nothing", seconds(found[3])}}},
          {"waterfall", waterfall_json(d.waterfall)},
          {"reasons", std::move(reasons)},
          {"measured", std::move(lines)},
          {"findings", std::move(findings)},
          {"expert_rows", std::move(rows)},
          {"ranks", std::move(ranks)},
          {"links", std::move(links)},
          {"site", site_json(d)},
          {"changes", std::move(changes)}};
}

namespace {

/// "H100" of "H100-SXM-80GB" is a word of "NVIDIA H100 80GB HBM3". True if the trace names no device.
bool is_of_gpu(const std::string& device, const std::string& gpu) {
  const std::string name = gpu.substr(0, gpu.find('-'));
  const auto is_word = [&](std::size_t at) {
    const auto letter = [&](std::size_t i) {
      return i < device.size() && std::isalnum(static_cast<unsigned char>(device[i])) != 0;
    };
    return (at == 0 || !letter(at - 1)) && !letter(at + name.size());
  };
  for (std::size_t at = device.find(name); at != std::string::npos; at = device.find(name, at + 1))
    if (is_word(at)) return true;
  return device.empty();
}

}  // namespace

std::string diagnosis_text(const Run& run, const Diagnosis& d) {
  const double measured = d.measured_s();
  std::string out = fmt::format(
      "{}{}: step {} of {} in {}{}\n", run.id.empty() ? run.model_name : run.id,
      fmt::format(" on {}{}", run.hardware.name, d.device.empty() ? "" : ", traced on " + d.device), d.step + 1,
      d.steps.size(), d.file, d.rank < 0 ? "" : fmt::format(", rank {}, pipeline stage {}", d.rank, d.stage));
  if (!is_of_gpu(d.device, run.hardware.gpu))
    out += fmt::format("  The trace is of another GPU ({}) than the run ({}): what follows compares the two.\n",
                       d.device, run.hardware.gpu);
  out += fmt::format("  measured {:.6f} s, predicted {:.6f} s: {:+.1f} %\n", measured, d.predicted_s(),
                     100.0 * (measured / d.predicted_s() - 1.0));
  if (d.unprofiled_s)
    out += fmt::format("  without a profiler {:.6f} s, says the run: {:+.1f} %\n", *d.unprofiled_s,
                       100.0 * (*d.unprofiled_s / d.predicted_s() - 1.0));
  if (d.most_allocated >= 0)
    out += fmt::format("  allocated at most {:.2f} GiB (reserved {:.2f}), predicted {:.2f} GiB in {}: {:+.1f} %\n",
                       gib(d.most_allocated), gib(d.most_reserved), in_gib(d.stage_memory().allocated()),
                       d.stage_memory().moment,
                       100.0 * (gib(d.most_allocated) / in_gib(d.stage_memory().allocated()) - 1.0));
  const auto& found = d.measured.found_ns;
  const auto share = [&](std::int64_t ns) {
    return d.measured.kernel_ns == 0 ? 0.0
                                     : 100.0 * static_cast<double>(ns) / static_cast<double>(d.measured.kernel_ns);
  };
  out += fmt::format(
      "  {:.1f} ms of kernels: module known by function {:.1f} %, by shapes {:.1f} %, by order {:.1f} %, unknown "
      "{:.1f} "
      "%\n\n",
      static_cast<double>(d.measured.kernel_ns) * 1e-6, share(found[0]), share(found[1]), share(found[2]),
      share(found[3]));
  out += waterfall_text(d.waterfall, {"predicted", "measured"}, 20);
  out += reasons_text(d);
  out += "\nWhat makes it longer than predicted\n";
  for (const Finding& f : d.findings) {
    out += fmt::format("  {:+.6f} s  {}\n               {}\n", f.seconds, f.what, wrapped(f.evidence, 84, 15));
    if (f.flags) out += fmt::format("               {}\n", wrapped(flags_text(*f.flags), 84, 15));
  }
  if (d.findings.empty()) out += "  nothing by more than 1 % of the step\n";
  out += ranks_text(d);
  out += links_text(d);
  if (d.memory) out += memory_text(d);
  out +=
      fmt::format("\nSingle changes of the run that fit and that the model predicts to be faster, {}\n", site_text(d));
  for (const Suggestion& s : d.changes) {
    out += fmt::format("  {:.4f} s  {}\n", s.change.step_time.to<double>(), wrapped(s.change.text(), 84, 12));
    if (s.flags) out += fmt::format("            {}\n", wrapped(fmt::format("{}", fmt::join(*s.flags, ", ")), 84, 12));
  }
  if (d.changes.empty()) out += "  none\n";
  return out;
}

}  // namespace foldwise::planner
