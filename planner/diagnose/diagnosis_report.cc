#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>

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

/// "-17.5 ms waiting for the host", largest first; less than 0.1 ms is left out.
std::vector<std::string> differences_of(const Diagnosis& d) {
  std::vector<std::string> pieces;
  for (const Reason& r : d.reasons)
    if (std::abs(r.seconds) >= 5e-5) pieces.push_back(fmt::format("{:+.1f} ms {}", 1e3 * r.seconds, r.what));
  if (pieces.empty()) pieces.emplace_back("less than 0.1 ms each");
  return pieces;
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

const Explanations& diagnosis_explanations() {
  static const Explanations list = {{"lines", "predicted and measured seconds by cause, kind and module"},
                                    {"kernels", "kernels behind each finding, and how modules of kernels were found"},
                                    {"ranks", "what each rank waits for, and its speed"},
                                    {"links", "bandwidth of the links that collectives used"},
                                    {"memory", "what is allocated at the peak"}};
  return list;
}

namespace {

std::string percent_of(double measured, double predicted) {
  return fmt::format("{:+.1f} %", 100.0 * (measured / predicted - 1.0));
}

std::string step_line(const Screen& screen, const Diagnosis& d) {
  std::vector<std::string> pieces = {fmt::format("{} s measured, {} s predicted: {}", seconds_text(d.measured_s()),
                                                 seconds_text(d.predicted_s()),
                                                 percent_of(d.measured_s(), d.predicted_s()))};
  if (d.unprofiled_s)
    pieces.push_back(fmt::format("{} s without a profiler: {}", seconds_text(*d.unprofiled_s),
                                 percent_of(*d.unprofiled_s, d.predicted_s())));
  return line_of(screen, "Step", pieces);
}

std::string memory_line(const Screen& screen, const Diagnosis& d) {
  if (d.most_allocated < 0) return "";
  const double allocated = gib(d.most_allocated), predicted = in_gib(d.stage_memory().allocated());
  return line_of(screen, "Memory",
                 {fmt::format("{:.1f} GiB allocated, {:.1f} predicted: {}", allocated, predicted,
                              percent_of(allocated, predicted)),
                  fmt::format("{:.1f} reserved", gib(d.most_reserved)),
                  fmt::format("peak predicted in {}", d.stage_memory().moment)});
}

/// The rank for which the others wait longest.
std::string ranks_line(const Screen& screen, const Diagnosis& d) {
  if (d.ranks.ranks.size() < 2) return "";
  const RankReport& slow = *std::ranges::max_element(d.ranks.ranks, {}, &RankReport::waited_for_s);
  std::vector<std::string> pieces = {
      fmt::format("{} traced; the others wait {:.1f} ms for rank {} (last in {} of {} collectives)",
                  d.ranks.ranks.size(), 1e3 * slow.waited_for_s, slow.rank, slow.last, slow.of)};
  if (d.ranks.rows)
    pieces.push_back(
        fmt::format("the busiest rank's experts have {:.2f} times the mean rows", d.ranks.rows->busiest_over_mean));
  return line_of(screen, "Ranks", pieces);
}

std::string findings_text(const Screen& screen, const Diagnosis& d, bool with_kernels) {
  std::string out = "\nLonger than predicted\n";
  const auto below = [&](const std::string& text) {
    return "             " + wrapped(text, screen.width - 13, 13) + '\n';
  };
  for (const Finding& f : d.findings) {
    out += fmt::format("  {:>+7.1f} ms {}\n", 1e3 * f.seconds, wrapped(f.what, screen.width - 13, 13));
    if (with_kernels) out += below(f.evidence);
    if (f.flags) out += below(flags_text(*f.flags));
  }
  return d.findings.empty() ? out + "  nothing by more than 1 % of the step\n" : out;
}

std::string changes_text(const Screen& screen, const Diagnosis& d) {
  std::string out =
      "\n" +
      wrapped(fmt::format("Single changes that fit and are predicted faster, {}", site_text(d)), screen.width, 2) +
      '\n';
  for (const Suggestion& s : d.changes) {
    std::string text = s.change.text();
    if (s.flags) text += fmt::format(": {}", fmt::join(*s.flags, ", "));
    out += fmt::format("  {:.4f} s   {}\n", s.change.step_time.to<double>(), wrapped(text, screen.width - 13, 13));
  }
  return d.changes.empty() ? out + "  none\n" : out;
}

/// How the modules of kernels were found, in percent of the kernels' time.
std::string found_text(const Diagnosis& d) {
  const auto& found = d.measured.found_ns;
  const auto share = [&](std::int64_t ns) {
    return d.measured.kernel_ns == 0 ? 0.0
                                     : 100.0 * static_cast<double>(ns) / static_cast<double>(d.measured.kernel_ns);
  };
  return fmt::format(
      "\n{:.1f} ms of kernels. Module found by function {:.1f} %, by shapes {:.1f} %, by order\n{:.1f} %, not found "
      "{:.1f} %\n",
      static_cast<double>(d.measured.kernel_ns) * 1e-6, share(found[0]), share(found[1]), share(found[2]),
      share(found[3]));
}

}  // namespace

std::string diagnosis_text(const Screen& screen, const Run& run, const Diagnosis& d,
                           const std::vector<std::string>& explain) {
  std::string out =
      wrapped(fmt::format("{} on {}, traced{}: step {} of {} in {}{}", run.id.empty() ? run.model_name : run.id,
                          run.hardware.name, d.device.empty() ? "" : " on " + d.device, d.step + 1, d.steps.size(),
                          d.file, d.rank < 0 ? "" : fmt::format(", rank {}, pipeline stage {}", d.rank, d.stage)),
              screen.width, 1);
  out += '\n';
  if (!is_of_gpu(d.device, run.hardware.gpu))
    out += line_of(screen, "Note",
                   {fmt::format("The trace is of another GPU ({}) than the run ({}).", d.device, run.hardware.gpu)});
  out += step_line(screen, d);
  out += line_of(screen, "Why", differences_of(d));
  out += line_of(screen, "GPU",
                 {fmt::format("GEMMs and attention run at {:.0f} % of the rate expected under the power limit",
                              100.0 / d.speed.products)});
  out += memory_line(screen, d);
  out += ranks_line(screen, d);
  const bool kernels = is_asked(explain, "kernels");
  out += findings_text(screen, d, kernels);
  out += changes_text(screen, d);
  if (kernels) out += found_text(d);
  if (is_asked(explain, "lines")) out += '\n' + waterfall_text(d.waterfall, {"predicted", "measured"}, 20);
  if (is_asked(explain, "ranks")) out += ranks_text(d);
  if (is_asked(explain, "links")) out += links_text(d);
  if (is_asked(explain, "memory") && d.memory) out += memory_text(d);
  if (explain.empty()) {
    std::string more = "--explain lines,kernels";
    if (d.ranks.ranks.size() > 1) more += ",ranks,links";
    if (d.memory) more += ",memory";
    out += '\n' + line_of(screen, "More", {more, "--timeline steps.json: both steps, for ui.perfetto.dev"});
  }
  return out;
}

}  // namespace foldwise::planner
