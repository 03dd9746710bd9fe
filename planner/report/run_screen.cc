#include "planner/report/run_screen.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "costmodel/ops/block_ops.h"
#include "planner/report/prediction_report.h"
#include "planner/run/fields.h"
#include "planner/run/names.h"

namespace foldwise::planner {

using costmodel::Prediction;
using costmodel::StageMemory;
using costmodel::TrainingOptions;
using nlohmann::json;

namespace {

constexpr std::size_t kLeastBar = 24;  ///< Columns. A shorter bar gets a line of its own.

std::string billions(std::int64_t parameters) {
  const double number = static_cast<double>(parameters) * 1e-9;
  if (number >= 1000.0) return fmt::format("{:.2f}T", number * 1e-3);
  return fmt::format("{:.{}f}B", number, number >= 100.0 ? 0 : number >= 10.0 ? 1 : 2);
}

/// "671B (37B active)"
std::string parameters_text(const costmodel::ModelSpec& model) {
  const costmodel::ParameterTotals totals = costmodel::parameter_totals(model);
  std::string text = billions(totals.main_total);
  if (model.has_moe()) text += fmt::format(" ({} active)", billions(totals.main_active));
  return text;
}

/// A text with a bar: on one line if there is room, else on two. Without bars: the lead and the legend.
std::string with_bar(const Screen& screen, const std::string& name, const std::string& lead,
                     const std::vector<BarPart>& parts, const std::vector<std::string>& legends, double whole) {
  const std::vector<std::string> coloured = legend(screen, legends);
  if (!screen.colour) {
    std::vector<std::string> pieces = coloured;
    if (!lead.empty()) pieces.insert(pieces.begin(), lead + ':');
    return line_of(screen, name, pieces);
  }
  std::size_t of_legend = 0;
  for (const std::string& text : legends) of_legend += text.size() + 2;
  const std::size_t of_lead = lead.empty() ? 0 : columns_of(lead) + 2;
  const std::size_t room = screen.width - kLabel - of_lead;
  const bool together = room >= of_legend + kLeastBar;
  const std::string drawn = bar(screen, parts, whole, together ? room - of_legend : room);
  const std::string first = lead.empty() ? drawn : lead + "  " + drawn;
  const std::string legend_text = fmt::format("{}", fmt::join(coloured, "  "));
  if (together) return line_of(screen, name, {first + "  " + legend_text});
  return line_of(screen, name, {first}) + one_line_of(screen, "", coloured, "  ");
}

struct MemoryParts {
  std::vector<BarPart> parts;  ///< In GiB, in the order of the bar.
  std::vector<std::string> legends;
};

MemoryParts parts_of(const StageMemory& m) {
  MemoryParts result;
  for (const auto& [name, bytes] :
       std::initializer_list<std::pair<const char*, Bytes>>{{"param", m.parameters},
                                                            {"grad", m.gradients},
                                                            {"optim", m.optimizer},
                                                            {"activ", m.activations},
                                                            {"other", m.buffers + m.overhead()}}) {
    result.parts.push_back({name, in_gib(bytes)});
    result.legends.push_back(fmt::format("{} {:.1f}", name, in_gib(bytes)));
  }
  return result;
}

std::size_t fullest_of(const Prediction& prediction) {
  return static_cast<std::size_t>(
      std::ranges::max_element(prediction.memory, {}, [](const StageMemory& m) { return m.total().to<double>(); }) -
      prediction.memory.begin());
}

std::string value_of(const Field& field, const TrainingOptions& options) {
  return value_text(field.value.get(options));
}

/// Text for a switch of the table of fields that is on. The text for off is "no " before it.
const std::map<std::string, std::string, std::less<>> switches = {
    {"overlaps.tp", "TP overlap"},
    {"overlaps.dp_grad", "overlap of gradient reduction"},
    {"overlaps.dp_param", "overlap of parameter gather"},
    {"overlaps.param_gather_with_optimizer_step", "parameter gather beside the optimizer"},
    {"overlaps.ep_a2a", "EP overlap"},
    {"overlaps.delay_wgrad", "delayed weight gradients"},
    {"overlaps.shared_expert", "shared-expert overlap"},
    {"use_tp_pp_dp_mapping", "tp-pp-dp mapping"},
    {"software.router_fusion", "fused router"},
    {"paged_stash", "paged stash"}};

/// Fields that the layout or another choice's text already covers.
bool is_apart(std::string_view key) {
  static const std::set<std::string_view> keys = {"micro_batch",
                                                  "tp",
                                                  "cp",
                                                  "pp",
                                                  "vpp",
                                                  "ep",
                                                  "etp",
                                                  "dispatcher",
                                                  "sharding",
                                                  "cuda_graph.impl",
                                                  "cuda_graph.scope",
                                                  "software.experts"};
  return keys.contains(key) || key.starts_with("recompute.") || key.starts_with("offload.");
}

void add_memory_choices(const TrainingOptions& o, std::vector<RunChoice>& list) {
  if (o.recompute().granularity != costmodel::RecomputeGranularity::kNone)
    list.push_back({"recompute", "recompute " + text_of(o.recompute()), "no recomputation"});
  std::vector<std::string> offloaded;
  if (o.pipeline.cpu_offloading_num_layers > 0)
    offloaded.push_back(fmt::format("{} layers", o.pipeline.cpu_offloading_num_layers));
  else if (!o.layer.offload_modules.empty())
    offloaded.push_back(fmt::format("{}", fmt::join(names_of(o.layer.offload_modules), " ")));
  if (o.step.offload.optimizer_fraction > 0.0)
    offloaded.push_back(fmt::format("{:.0f} % of the optimizer", 100.0 * o.step.offload.optimizer_fraction));
  if (!offloaded.empty())
    list.push_back({"offload", fmt::format("offload {}", fmt::join(offloaded, " and ")), "no offloading"});
}

}  // namespace

std::string headline(const Screen& screen, const Run& run, const std::string& precision,
                     const std::vector<std::string>& besides) {
  const TrainingOptions& o = run.options;
  const std::string what =
      fmt::format("{} {} on {} x {}", run.model_name, parameters_text(run.model), run.num_gpus, run.system_name);
  std::vector<std::string> pieces = {fmt::format("seq {}", o.layer.seq_len),
                                     fmt::format("batch {}", o.pipeline.global_batch), precision};
  pieces.insert(pieces.end(), besides.begin(), besides.end());
  if (run.release != nullptr) pieces.push_back("Megatron-Core " + run.release->text());
  const std::string rest = fmt::format("{}", fmt::join(pieces, "   "));
  const std::string bold = screen.in(fmt::emphasis::bold, what);
  if (what.size() + 3 + rest.size() <= screen.width) return bold + "   " + rest + '\n';
  return wrapped(bold, screen.width, 1) + "\n " + wrapped(rest, screen.width - 1, 1) + '\n';
}

std::string step_lines(const Screen& screen, const std::string& name, const Prediction& prediction,
                       const std::optional<Interval>& interval) {
  const std::string step = seconds_text(prediction.step_time.to<double>()) + " s a step";
  const std::string range =
      interval ? fmt::format(" (80 %: {} to {})", seconds_text(interval->low), seconds_text(interval->high)) : "";
  return line_of(
      screen, name,
      {screen.in(fmt::emphasis::bold, step) + range, grouped_digits(prediction.tokens_per_s_per_gpu) + " tokens/s/GPU",
       grouped_digits(prediction.model_tflops_per_gpu) + " TFLOPS/GPU",
       fmt::format("MFU {:.1f} %", prediction.mfu_pct)});
}

std::string layout_lines(const Screen& screen, const costmodel::ModelSpec& model, const TrainingOptions& options) {
  const costmodel::Layout l = options.layout();
  std::string text = fmt::format("TP {}  CP {}  PP {}", l.tp, l.cp, l.pp);
  if (l.vpp > 1) text += fmt::format("  VPP {}", l.vpp);
  text += fmt::format("  DP {}", l.dp);
  if (model.has_moe()) text += fmt::format(" | EP {}  ETP {}", l.ep, l.etp);
  text += fmt::format(" | micro-batch {} x {}", options.layer.micro_batch, options.num_microbatches());
  return line_of(screen, "Layout", {text});
}

namespace {

/// "129.6 of 185.0 GiB, DOES NOT FIT"
std::string memory_lead(const Screen& screen, const Run& run, const Prediction& prediction,
                        const std::optional<costmodel::Imbalance>& p99) {
  std::string lead =
      fmt::format("{:.1f} of {:.1f} GiB", in_gib(prediction.peak_memory), in_gib(run.hardware.hbm_capacity));
  if (!prediction.fits) lead += ", " + screen.in(fmt::fg(fmt::terminal_color::red), "DOES NOT FIT");
  if (prediction.fits && p99 && p99->p99_memory > run.hardware.hbm_capacity)
    lead += fmt::format(", {:.1f} at p99 of routing", in_gib(p99->p99_memory));
  return lead;
}

}  // namespace

std::string memory_lines(const Screen& screen, const Run& run, const Prediction& prediction,
                         const std::optional<costmodel::Imbalance>& p99) {
  const double capacity = in_gib(run.hardware.hbm_capacity), peak = in_gib(prediction.peak_memory);
  const MemoryParts parts = parts_of(prediction.memory[fullest_of(prediction)]);
  return with_bar(screen, "Memory", memory_lead(screen, run, prediction, p99), parts.parts, parts.legends,
                  std::max(capacity, peak));
}

std::string time_lines(const Screen& screen, const Prediction& prediction) {
  const costmodel::Breakdown& b = prediction.breakdown;
  std::vector<BarPart> parts;
  std::vector<std::string> legends;
  for (const auto& [name, seconds] :
       std::initializer_list<std::pair<const char*, Seconds>>{{"compute", b.compute},
                                                              {"communication", b.exposed_communication},
                                                              {"copies", b.exposed_copy},
                                                              {"bubble", b.bubble},
                                                              {"host", b.host}}) {
    const auto share = (seconds / prediction.step_time).to<double>();
    if (share < 0.0005 && seconds < b.compute) continue;
    parts.push_back({name, share});
    legends.push_back(fmt::format("{} {:.1f} %", name, 100.0 * share));
  }
  return with_bar(screen, "Time", "", parts, legends, 1.0);
}

std::string numerics_line(const Screen& screen, const TrainingOptions& options, const std::string& otherwise) {
  const Field& states = field("optimizer.exp_avg_dtype");
  std::vector<std::string> pieces = {
      fmt::format("optimizer states {}", states.applies_to(options) ? value_of(states, options) : "fp32") + otherwise};
  if (const Field& main = field("optimizer.main_grads_dtype"); main.applies_to(options))
    pieces.push_back("main gradients " + value_of(main, options));
  pieces.emplace_back(options.layer.grad_reduce_in_fp32 ? "gradients reduced in fp32" : "gradients reduced in bf16");
  return one_line_of(screen, "Numerics", pieces);
}

std::vector<RunChoice> run_choices(const costmodel::ModelSpec& model, const TrainingOptions& o) {
  static const TrainingOptions plain;
  std::vector<RunChoice> list;
  if (model.has_moe() && (o.layer.ep * o.layer.etp > 1 || costmodel::is_flex(o.layer.dispatcher)))
    list.push_back({"dispatcher", name_of(o.layer.dispatcher), ""});
  if (o.pipeline.overlaps.ep_a2a) list.push_back({"overlaps.ep_a2a", "EP overlap", "no EP overlap"});
  if (model.has_moe() && o.layer.software.experts != costmodel::Experts::kGrouped)
    list.push_back({"software.experts", "experts " + value_of(field("software.experts"), o), "experts grouped"});
  if (const Field& graphs = field("cuda_graph.impl"); value_of(graphs, o) != "none") {
    std::string text = "CUDA graphs " + value_of(graphs, o);
    if (const Field& scope = field("cuda_graph.scope"); scope.applies_to(o))
      text += value_of(scope, o) == "none" ? " of whole layers" : ' ' + value_of(scope, o);
    list.push_back({"cuda_graph", text, "no CUDA graphs"});
  }
  if (costmodel::is_fsdp(o.step.sharding)) list.push_back({"sharding", name_of(o.step.sharding), "no FSDP"});
  add_memory_choices(o, list);
  for (const Field& f : fields()) {
    if (f.tried == nullptr || !f.is_option() || is_apart(f.key) || f.key == "overlaps.ep_a2a" || !f.counts_in(model, o))
      continue;
    const json usual = f.usual.is_null() ? f.value.get(plain) : f.usual;
    if (f.value.get(o) == usual) continue;
    const auto known = switches.find(f.key);
    if (known == switches.end())
      list.push_back(
          {f.key, fmt::format("{} {}", f.key, value_of(f, o)), fmt::format("{} {}", f.key, value_text(usual))});
    else
      list.push_back({f.key, (f.value.get(o) == json(true) ? "" : "no ") + known->second,
                      (usual == json(true) ? "" : "no ") + known->second});
  }
  return list;
}

std::string differing_choices(const std::vector<RunChoice>& run, const std::vector<RunChoice>& other) {
  std::vector<std::string> list;
  const auto find = [](const std::vector<RunChoice>& among, const RunChoice& choice) {
    return std::ranges::find(among, choice.key, &RunChoice::key);
  };
  for (const RunChoice& choice : run)
    if (const auto same = find(other, choice); same == other.end() || same->text != choice.text)
      list.push_back(choice.text);
  for (const RunChoice& choice : other)
    if (find(run, choice) == run.end() && !choice.without.empty()) list.push_back(choice.without);
  return fmt::format("{}", fmt::join(list, ", "));
}

namespace {

/// The fullest, the busiest and the last rank of a deep pipeline.
std::vector<std::size_t> ranks_to_draw(const Prediction& prediction) {
  constexpr std::size_t kMost = 3;
  const std::size_t count = prediction.memory.size();
  std::set<std::size_t> ranks = {fullest_of(prediction), prediction.critical_stage, count - 1};
  for (std::size_t i = 0; ranks.size() < std::min(kMost, count); ++i) ranks.insert(i);
  return {ranks.begin(), ranks.end()};
}

/// Memory of the pipeline ranks: one bar each, or a table.
std::string stages_text(const Screen& screen, const Run& run, const Prediction& prediction,
                        const std::optional<costmodel::Imbalance>& p99) {
  const std::string lead = memory_lead(screen, run, prediction, p99);
  if (!screen.colour) {
    Table table({"<stage", "GiB", "param", "grad", "optim", "activ", "other"});
    for (const std::size_t i : ranks_to_draw(prediction)) {
      const StageMemory& m = prediction.memory[i];
      const auto gib = [](Bytes bytes) { return fmt::format("{:.1f}", in_gib(bytes)); };
      table.add({fmt::format("stage {}", i), gib(m.total()), gib(m.parameters), gib(m.gradients), gib(m.optimizer),
                 gib(m.activations), gib(m.buffers + m.overhead())});
    }
    return line_of(screen, "Memory", {lead}) + table.text(kLabel);
  }
  const double capacity = in_gib(run.hardware.hbm_capacity);
  std::string out;
  std::vector<std::string> legends;
  for (const std::size_t i : ranks_to_draw(prediction)) {
    const StageMemory& m = prediction.memory[i];
    const MemoryParts parts = parts_of(m);
    legends.clear();
    for (const BarPart& part : parts.parts) legends.push_back(part.name);
    const std::string stage = fmt::format("stage {:>2}  {:6.1f} GiB", i, in_gib(m.total()));
    out += line_of(
        screen, out.empty() ? "Memory" : "",
        {stage + "  " +
         bar(screen, parts.parts, std::max(capacity, in_gib(m.total())), screen.width - kLabel - stage.size() - 2)});
  }
  std::vector<std::string> last = legend(screen, legends);
  last.insert(last.begin(), lead + ':');
  return out + one_line_of(screen, "", last, "  ");
}

std::string largest_ops(const Screen& screen, const Prediction& prediction) {
  constexpr std::size_t kLargest = 5;
  std::vector<costmodel::DetailEntry> detail = prediction.detail();
  std::ranges::stable_sort(detail, std::ranges::greater{},
                           [](const costmodel::DetailEntry& entry) { return entry.seconds.to<double>(); });
  std::string out;
  for (std::size_t i = 0; i < std::min(kLargest, detail.size()); ++i) {
    const costmodel::DetailEntry& entry = detail[i];
    std::string what = entry.module.empty() ? entry.kind : entry.module + ' ' + entry.kind;
    if (!entry.group.empty()) what += " over " + entry.group;
    if (entry.cause != costmodel::Cause::kCompute) what += fmt::format(" ({})", to_string(entry.cause));
    out += line_of(screen, i == 0 ? "Largest" : "",
                   {fmt::format("{:5.1f} %  {:>7} s  {}", 100.0 * (entry.seconds / prediction.step_time).to<double>(),
                                seconds_text(entry.seconds.to<double>()), what)});
  }
  return out;
}

std::string change_line(const Screen& screen, const Prediction& prediction, const Insight& insight) {
  if (!insight.best) return one_line_of(screen, "Change", {"no single change that fits is faster"});
  const double gain = 100.0 * (insight.best->step_time / prediction.step_time).to<double>() - 100.0;
  return one_line_of(
      screen, "Change",
      {fmt::format("{:+.1f} %: {} ({} s, {:.1f} GiB)", gain, insight.best->text(),
                   seconds_text(insight.best->step_time.to<double>()), in_gib(insight.best->peak_memory))});
}

}  // namespace

std::string run_screen(const Screen& screen, const Run& run, const Prediction& prediction,
                       const std::optional<Interval>& interval, const std::optional<costmodel::Imbalance>& p99,
                       const Insight& insight) {
  const TrainingOptions& o = run.options;
  std::string out = headline(screen, run, name_of(o.layer.precision), {});
  if (!costmodel::runnable(o.pipeline.schedule)) out += study_note(o.pipeline.schedule);
  out += step_lines(screen, "Step", prediction, interval);
  out += layout_lines(screen, run.model, o);
  std::vector<std::string> options;
  for (const RunChoice& choice : run_choices(run.model, o)) options.push_back(choice.text);
  if (!options.empty()) out += line_of(screen, "Options", {fmt::format("{}", fmt::join(options, ", "))});
  out += prediction.memory.size() > 1 ? stages_text(screen, run, prediction, p99)
                                      : memory_lines(screen, run, prediction, p99);
  out += time_lines(screen, prediction);
  if (const std::string note = unread_keys_note(run.model, o.layer); !note.empty())
    out += line_of(screen, "MFU", {note.substr(0, note.size() - 1)});
  if (const std::string note = pressed_note(prediction, run.hardware.hbm_capacity);
      !note.empty() && (prediction.fits || prediction.peak_memory <= run.hardware.hbm_capacity))
    out += line_of(screen, "Allocator", {note});
  if (prediction.fits) out += largest_ops(screen, prediction) + change_line(screen, prediction, insight);
  return out;
}

}  // namespace foldwise::planner
