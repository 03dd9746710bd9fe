#include "planner/report/prediction_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "costmodel/ops/mixers/mixers.h"
#include "costmodel/step/rank_memory.h"
#include "planner/report/screen.h"
#include "planner/run/names.h"

namespace foldwise::planner {

using costmodel::Breakdown;
using costmodel::DetailEntry;
using costmodel::Prediction;
using costmodel::StageMemory;
using costmodel::StagePrediction;
using nlohmann::json;

namespace {

constexpr std::size_t kDetailLines = 10;
constexpr std::size_t kMostStageLines = 16;  ///< Deeper pipelines show their first, last and extreme stages.

double seconds_of(Seconds time) { return time.to<double>(); }
std::string gib(Bytes bytes) { return fmt::format("{:.2f}", in_gib(bytes)); }
std::string share_text(Seconds part, Seconds whole) {
  const double total = seconds_of(whole);
  return fmt::format("{:.1f} %", total > 0.0 ? 100.0 * seconds_of(part) / total : 0.0);
}

json breakdown_json(const Breakdown& breakdown) {
  return {{"compute", seconds_of(breakdown.compute)},
          {"exposed_communication", seconds_of(breakdown.exposed_communication)},
          {"exposed_copy", seconds_of(breakdown.exposed_copy)},
          {"bubble", seconds_of(breakdown.bubble)},
          {"host", seconds_of(breakdown.host)}};
}

json pressure_json(const costmodel::MemoryPressure& pressure) {
  json failure = nullptr;
  if (const auto& f = pressure.out_of_memory)
    failure = {{"step", f->step},
               {"wanted", in_gib(f->wanted)},
               {"allocated", in_gib(f->allocated)},
               {"reserved", in_gib(f->reserved)}};
  return {{"unlimited", in_gib(pressure.unlimited)},
          {"retries", pressure.retries},
          {"every_step", pressure.every_step},
          {"out_of_memory", std::move(failure)}};
}

json memory_json(const StageMemory& memory, std::size_t stage) {
  return {{"stage", stage},
          {"parameters", in_gib(memory.parameters)},
          {"gradients", in_gib(memory.gradients)},
          {"optimizer", in_gib(memory.optimizer)},
          {"activations", in_gib(memory.activations)},
          {"buffers", in_gib(memory.buffers)},
          {"overhead", in_gib(memory.overhead())},
          {"overhead_parts",
           {{"cuda_context", in_gib(memory.cuda_context)},
            {"nccl", in_gib(memory.nccl)},
            {"dispatcher_buffers", in_gib(memory.dispatcher_buffers)},
            {"user_buffers", in_gib(memory.user_buffers)},
            {"graph_pools", in_gib(memory.graph_pools)},
            {"fragmentation", in_gib(memory.fragmentation)},
            {"holes", in_gib(memory.holes)}}},
          {"total", in_gib(memory.total())},
          {"allocated", in_gib(memory.allocated())},
          {"reserved", memory.reserved.segments_run_out ? json(nullptr) : json(in_gib(memory.reserved.segments))},
          {"reserved_expandable_segments", in_gib(memory.reserved.expandable)},
          {"pressure", pressure_json(memory.pressure)},
          {"allocated_after_setup", in_gib(memory.allocated_after_setup)},
          {"allocated_between_steps", in_gib(memory.allocated_between_steps)},
          {"host", in_gib(memory.host)},
          {"moment", memory.moment}};
}

json stage_json(const StagePrediction& stage, std::size_t index) {
  json parts = json::object();
  for (std::size_t i = 0; i < costmodel::kActivities; ++i)
    parts[std::string(to_string(static_cast<costmodel::Activity>(i)))] = seconds_of(stage.parts[i]);
  return {{"stage", index},
          {"layers", stage.layers},
          {"compute_s", seconds_of(stage.compute)},
          {"exposed_communication_s", seconds_of(stage.exposed_communication)},
          {"exposed_copy_s", seconds_of(stage.exposed_copy)},
          {"bubble_s", seconds_of(stage.bubble)},
          {"host_s", seconds_of(stage.host)},
          {"forward_s", seconds_of(stage.forward)},
          {"backward_s", seconds_of(stage.backward)},
          {"tasks",
           {{"forward_s", seconds_of(stage.tasks.forward)},
            {"input_gradient_s", seconds_of(stage.tasks.input_gradient)},
            {"weight_gradient_s", seconds_of(stage.tasks.weight_gradient)},
            {"merged_s", seconds_of(stage.tasks.merged)}}},
          {"host_issue_s", seconds_of(stage.host_issue)},
          {"parts", std::move(parts)},
          {"peak_chunks_in_flight", stage.peak_chunks_in_flight}};
}

std::vector<DetailEntry> largest_first(const Prediction& prediction) {
  std::vector<DetailEntry> detail = prediction.detail();
  std::stable_sort(detail.begin(), detail.end(),
                   [](const DetailEntry& a, const DetailEntry& b) { return a.seconds > b.seconds; });
  return detail;
}

std::string breakdown_table(const Prediction& prediction) {
  const Breakdown& b = prediction.breakdown;
  Table table({"<where the step goes", "seconds", "share"});
  const auto add = [&](const char* name, Seconds time) {
    table.add({name, seconds_text(seconds_of(time)), share_text(time, prediction.step_time)});
  };
  add("compute", b.compute);
  add("exposed communication", b.exposed_communication);
  add("exposed copies", b.exposed_copy);
  add("pipeline bubble", b.bubble);
  add("host", b.host);
  add("step", prediction.step_time);
  return table.text();
}

/// All stages of a short pipeline; of a deep one the first, the last, the fullest and the busiest.
std::vector<std::size_t> stages_to_show(const Prediction& prediction) {
  std::vector<std::size_t> result;
  std::size_t fullest = 0;
  for (std::size_t i = 0; i < prediction.memory.size(); ++i)
    if (prediction.memory[i].total() > prediction.memory[fullest].total()) fullest = i;
  const std::size_t count = prediction.memory.size();
  for (std::size_t i = 0; i < count; ++i)
    if (count <= kMostStageLines || i < 4 || i + 4 >= count || i == fullest || i == prediction.critical_stage)
      result.push_back(i);
  return result;
}

std::string memory_table(const Run& run, const Prediction& prediction) {
  Table table({"stage", "params", "grads", "optim", "activ", "buffers", "other", "total", "of capacity", "host",
               "<fullest in"});
  const double capacity = in_gib(run.hardware.hbm_capacity);
  for (const std::size_t i : stages_to_show(prediction)) {
    const StageMemory& m = prediction.memory[i];
    table.add({fmt::format("{}", i), gib(m.parameters), gib(m.gradients), gib(m.optimizer), gib(m.activations),
               gib(m.buffers), gib(m.overhead()), gib(m.total()),
               capacity > 0.0 ? fmt::format("{:.1f} %", 100.0 * in_gib(m.total()) / capacity) : "?", gib(m.host),
               m.moment});
  }
  return table.text();
}

/// Seconds of every rank by activity. Activities that no rank has are left out.
std::string parts_table(const Prediction& prediction) {
  std::vector<std::size_t> shown;
  std::vector<std::string> titles{"stage"};
  for (std::size_t i = 0; i < costmodel::kActivities; ++i) {
    const bool any = std::any_of(prediction.stages.begin(), prediction.stages.end(),
                                 [&](const StagePrediction& s) { return s.parts[i] > 1e-9 * prediction.step_time; });
    if (!any) continue;
    shown.push_back(i);
    titles.emplace_back(to_string(static_cast<costmodel::Activity>(i)));
  }
  Table table(titles);
  for (const std::size_t stage : stages_to_show(prediction)) {
    std::vector<std::string> cells{fmt::format("{}", stage)};
    for (const std::size_t i : shown) cells.push_back(seconds_text(seconds_of(prediction.stages[stage].parts[i])));
    table.add(std::move(cells));
  }
  return table.text();
}

/// Times of the tasks of a schedule that merges or splits them.
std::string tasks_table(const Prediction& prediction) {
  Table table({"stage", "forward", "input gradient", "weight gradient", "merged pairs", "bubble"});
  for (const std::size_t i : stages_to_show(prediction)) {
    const StagePrediction& s = prediction.stages[i];
    const auto text = [](Seconds time) { return seconds_text(seconds_of(time)); };
    table.add({fmt::format("{}", i), text(s.tasks.forward), text(s.tasks.input_gradient), text(s.tasks.weight_gradient),
               text(s.tasks.merged), text(s.bubble)});
  }
  return table.text();
}

std::string step_end_table(const Prediction& prediction) {
  Table table({"<part", "seconds", "exposed"});
  for (const costmodel::StepPart& part : prediction.step_end)
    table.add({std::string(part.name), seconds_text(seconds_of(part.seconds)), seconds_text(seconds_of(part.exposed))});
  return table.text();
}

std::string stage_table(const Prediction& prediction) {
  Table table(
      {"stage", "layers", "compute", "comm", "copy", "bubble", "host", "forward", "backward", "in flight", "<"});
  for (const std::size_t i : stages_to_show(prediction)) {
    if (i >= prediction.stages.size()) continue;
    const StagePrediction& s = prediction.stages[i];
    const auto text = [](Seconds time) { return seconds_text(seconds_of(time)); };
    table.add({fmt::format("{}", i), fmt::format("{}", s.layers), text(s.compute), text(s.exposed_communication),
               text(s.exposed_copy), text(s.bubble), text(s.host), text(s.forward), text(s.backward),
               fmt::format("{}", s.peak_chunks_in_flight), i == prediction.critical_stage ? "busiest" : ""});
  }
  return table.text();
}

std::string detail_table(const Prediction& prediction) {
  Table table({"<cause", "<kind", "<module", "<group", "seconds", "share"});
  const std::vector<DetailEntry> detail = largest_first(prediction);
  for (std::size_t i = 0; i < std::min(detail.size(), kDetailLines); ++i)
    table.add({std::string(to_string(detail[i].cause)), detail[i].kind, detail[i].module, detail[i].group,
               seconds_text(seconds_of(detail[i].seconds)), share_text(detail[i].seconds, prediction.step_time)});
  return table.text();
}

std::string provenance_text(const ProvenanceCounts& provenance) {
  std::int64_t all = 0;
  for (const auto& [kind, count] : provenance) all += count;
  std::string text;
  for (const auto& [kind, count] : provenance) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, kind);
  return fmt::format("{} numbers: {}", all, text);
}

}  // namespace

Bytes peak_allocated(const Prediction& prediction) {
  Bytes peak{};
  for (const StageMemory& memory : prediction.memory) peak = std::max(peak, memory.allocated());
  return peak;
}

std::string pressed_note(const Prediction& prediction, Bytes capacity) {
  for (const StageMemory& memory : prediction.memory)
    if (const auto& failure = memory.pressure.out_of_memory)
      return fmt::format(
          "torch runs out of memory in step {}: it has {} GiB, {} of them allocated, and wants {} in one piece; "
          "context "
          "and NCCL leave it {}",
          failure->step, gib(failure->reserved), gib(failure->allocated), gib(failure->wanted),
          gib(capacity - memory.outside()));
  const Bytes used = prediction.in_use();
  if (!prediction.fits || used <= capacity) return "";
  const bool every_step =
      std::ranges::any_of(prediction.memory, [](const StageMemory& memory) { return memory.pressure.every_step; });
  return fmt::format("expandable segments, context and NCCL would take {} GiB: torch has to give memory back {}",
                     gib(used),
                     every_step ? "in every step; such runs took up to eight times as long, or ran out of memory"
                                : "in the first steps; later ones have room");
}

double unread_keys_pct(const costmodel::ModelSpec& model, const costmodel::LayerOptions& options) {
  const auto s = static_cast<double>(options.seq_len);
  const auto unread = [&](const costmodel::LayerSpec& layer) {
    const costmodel::Mixer* mixer = model.mixer(layer);
    if (mixer == nullptr) return 0.0;
    const auto* mla = std::get_if<costmodel::MlaSpec>(mixer);
    const std::int64_t picked = mla != nullptr && mla->index_heads > 0 ? mla->index_topk : 0;
    const double read = 2.0 * costmodel::causal_pairs(s, costmodel::real(layer.window), costmodel::real(picked));
    const costmodel::FlopsContext context{model, layer, s, s * s};
    return (s * s - read) * std::visit([&](const auto& spec) { return spec.flops(context).per_squared_token; }, *mixer);
  };
  double flops = 0.0;
  for (const costmodel::LayerSpec& layer : model.layers) flops += unread(layer);
  for (const costmodel::LayerSpec& layer : model.mtp_layers)
    flops += static_cast<double>(model.mtp_num_layers) * unread(layer);
  return 100.0 * flops / costmodel::megatron_flops(model, s, s * s, options.tp);
}

std::string unread_keys_note(const costmodel::ModelSpec& model, const costmodel::LayerOptions& options) {
  const double unread = unread_keys_pct(model, options);
  if (unread < 1.0) return "";
  return fmt::format("TFLOPS and MFU are Megatron's count, {:.0f} % of it for keys that attention does not read{}\n",
                     unread, unread >= 50.0 ? ": no share of the peak" : "");
}

std::string study_note(costmodel::Schedule schedule) {
  return fmt::format("schedule {}: for study, Megatron does not run it\n", name_of(schedule));
}

std::string layout_text(const costmodel::Layout& layout) {
  return fmt::format("tp {} x cp {} x dp {} x pp {}{}; etp {} x ep {} x edp {} x pp {}", layout.tp, layout.cp,
                     layout.dp, layout.pp, layout.vpp > 1 ? fmt::format(" (vpp {})", layout.vpp) : "", layout.etp,
                     layout.ep, layout.edp(), layout.pp);
}

json prediction_json(const Run& run, const Prediction& prediction, const std::optional<Interval>& interval) {
  json result = {
      {"id", run.id},
      {"step_time_s", seconds_of(prediction.step_time)},
      {"tokens_per_s_per_gpu", prediction.tokens_per_s_per_gpu},
      {"model_tflops_per_gpu", prediction.model_tflops_per_gpu},
      {"mfu_pct", prediction.mfu_pct},
      {"unread_keys_pct", unread_keys_pct(run.model, run.options.layer)},
      {"peak_memory_gib", in_gib(peak_allocated(prediction))},
      {"peak_device_memory_gib", in_gib(prediction.peak_memory)},
      {"capacity_gib", in_gib(run.hardware.hbm_capacity)},
      {"host_capacity_gib", in_gib(run.hardware.host.memory_per_gpu)},
      {"fits", prediction.fits},
      {"breakdown", breakdown_json(prediction.breakdown)},
      {"critical_stage", prediction.critical_stage},
      {"assumed", run.assumed},
  };
  result["interval"] = {{"step_time_s", interval ? json{interval->low, interval->high} : json(nullptr)},
                        {"step_time_95_s", interval ? json{interval->low_95, interval->high_95} : json(nullptr)},
                        {"unmeasured", interval ? interval->unmeasured : std::vector<std::string>()}};
  json detail = json::array();
  for (const DetailEntry& entry : largest_first(prediction))
    detail.push_back({{"cause", to_string(entry.cause)},
                      {"kind", entry.kind},
                      {"module", entry.module},
                      {"group", entry.group},
                      {"seconds", seconds_of(entry.seconds)}});
  result["breakdown_detail"] = std::move(detail);
  json step_end = json::array();
  for (const costmodel::StepPart& part : prediction.step_end)
    step_end.push_back({{"part", part.name},
                        {"activity", to_string(part.activity)},
                        {"seconds", seconds_of(part.seconds)},
                        {"exposed_s", seconds_of(part.exposed)}});
  result["step_end"] = std::move(step_end);
  json stages = json::array(), memory = json::array();
  for (std::size_t i = 0; i < prediction.stages.size(); ++i) stages.push_back(stage_json(prediction.stages[i], i));
  for (std::size_t i = 0; i < prediction.memory.size(); ++i) memory.push_back(memory_json(prediction.memory[i], i));
  result["stages"] = std::move(stages);
  result["memory"] = std::move(memory);
  return result;
}

std::string memory_text(const Run& run, const Prediction& prediction,
                        const std::optional<costmodel::Imbalance>& imbalance) {
  std::string out = "Memory by pipeline stage, GiB\n" + memory_table(run, prediction);
  const auto line = [&](const std::string& text) { out += "  " + text + '\n'; };
  line(fmt::format("{} GiB of the fullest GPU are allocated: torch.cuda.max_memory_allocated",
                   gib(peak_allocated(prediction))));
  Bytes host{}, reserved{}, expandable{};
  bool runs_out = false;
  for (const StageMemory& memory : prediction.memory) {
    host = std::max(host, memory.host);
    reserved = std::max(reserved, memory.reserved.segments);
    expandable = std::max(expandable, memory.reserved.expandable);
    runs_out |= memory.reserved.segments_run_out;
  }
  if (runs_out)
    line(fmt::format("torch reserves {} GiB with expandable segments; without them it runs out of memory",
                     gib(expandable)));
  else if (reserved > Bytes{})
    line(fmt::format("torch reserves {} GiB, {} with expandable segments", gib(reserved), gib(expandable)));
  if (imbalance)
    line(fmt::format("{} GiB at the 99th percentile of random routing ({:.3f} of the mean rows in all MoE layers): {}",
                     gib(imbalance->p99_memory), imbalance->p99_load,
                     imbalance->p99_memory <= run.hardware.hbm_capacity ? "fits" : "DOES NOT FIT"));
  if (!costmodel::fits_host(host, run.hardware))
    line(fmt::format("{} of {} GiB of host memory a GPU: DOES NOT FIT", gib(host),
                     gib(run.hardware.host.memory_per_gpu)));
  return out;
}

std::string time_text(const Run& run, const Prediction& prediction) {
  std::string out = breakdown_table(prediction) + '\n';
  if (prediction.stages.size() > 1) out += "Seconds by pipeline stage\n" + stage_table(prediction) + '\n';
  out += "What each pipeline stage spends the step on, seconds\n" + parts_table(prediction);
  if (run.options.pipeline.overlaps.ep_a2a || !costmodel::runnable(run.options.pipeline.schedule))
    out += "\nWhat its tasks take, seconds\n" + tasks_table(prediction);
  if (!prediction.step_end.empty()) out += "\nThe end of the step on the busiest stage\n" + step_end_table(prediction);
  if (!prediction.detail().empty()) out += "\nLargest parts of the busiest stage\n" + detail_table(prediction);
  return out;
}

std::string interval_text(const Screen& screen, const std::optional<Interval>& interval) {
  if (!interval) return "";
  std::string out =
      fmt::format("80 % interval: {} to {} s\n95 % interval: {} to {} s\n", seconds_text(interval->low),
                  seconds_text(interval->high), seconds_text(interval->low_95), seconds_text(interval->high_95));
  if (!interval->unmeasured.empty())
    out += wrapped(fmt::format("Never measured: {}", fmt::join(interval->unmeasured, ", ")), screen.width, 2) + '\n';
  return out;
}

std::string assumptions_text(const Screen& screen, const Run& run, const ProvenanceCounts& provenance) {
  std::string out;
  if (!run.assumed.empty()) {
    out += "Assumed, because the run file does not say\n";
    for (const std::string& line : run.assumed) out += "  " + wrapped(line, screen.width - 2, 6) + '\n';
    out += '\n';
  }
  if (!provenance.empty())
    out += "The system's profile rests on\n  " + wrapped(provenance_text(provenance), screen.width - 2, 2) + '\n';
  return out;
}

}  // namespace foldwise::planner
