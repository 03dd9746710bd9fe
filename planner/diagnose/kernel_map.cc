#include "planner/diagnose/kernel_map.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>

#include "costmodel/parallel/process_groups.h"
#include "costmodel/step/stage_pieces.h"

namespace foldwise::planner {

namespace diagnose_data {
[[nodiscard]] const std::string* embedded_file(std::string_view name);  // Made by hwprofiles/embed.cmake.
}

namespace {

using costmodel::GemmWork;
using nlohmann::json;

constexpr std::string_view kBackward = "autograd::engine::evaluate_function: ";
constexpr std::string_view kByWeight = "by weight", kByWidth = "by width", kBesideExperts = "dispatch beside experts",
                           kUnknown = "unknown";

/// A list of {pattern, result}: the first pattern found in a text decides.
class Rules {
 public:
  Rules(const json& list, const char* pattern, const char* result) {
    for (const json& rule : list)
      rules_.emplace_back(std::regex(rule.at(pattern).get<std::string>(), std::regex::optimize), rule.at(result));
  }
  [[nodiscard]] std::optional<std::string> of(const std::string& text) const {
    for (const auto& [pattern, result] : rules_)
      if (std::regex_search(text, pattern)) return result;
    return std::nullopt;
  }

 private:
  std::vector<std::pair<std::regex, std::string>> rules_;
};

/// planner/diagnose/kernel_rules.json
struct RuleFile {
  Rules kinds, kernel_modules, modules, collectives, groups, host_waits, cures;
  std::regex grouped_product, step;
};

const RuleFile& rule_file() {
  static const RuleFile rules = [] {
    const json file = json::parse(*diagnose_data::embedded_file("kernel_rules"));
    return RuleFile{.kinds = {file.at("kinds"), "kernel", "kind"},
                    .kernel_modules = {file.at("kernel_modules"), "kernel", "module"},
                    .modules = {file.at("modules"), "op", "module"},
                    .collectives = {file.at("collectives"), "name", "kind"},
                    .groups = {file.at("groups"), "group", "name"},
                    .host_waits = {file.at("host_waits"), "range", "kind"},
                    .cures = {file.at("cures"), "finding", "flags"},
                    .grouped_product = std::regex(file.at("grouped_product").get<std::string>(), std::regex::optimize),
                    .step = std::regex(file.at("step").get<std::string>(), std::regex::optimize)};
  }();
  return rules;
}

/// What the op list says of modules.
struct Modules {
  std::vector<LinearProduct> linear;
  /// Index into `linear` by (outputs, inputs) of their weights; of sizes that several modules have, none.
  std::map<std::pair<std::int64_t, std::int64_t>, std::int32_t> by_weight;
  /// Of a module without products, the one whose product comes next in forward.
  std::map<std::string, std::string> next_with_gemm;
};

Modules modules_of(const costmodel::Step& step) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::map<std::string, LinearProduct>> all;
  std::set<std::string> with_gemm;
  Modules modules;
  const costmodel::PieceOptions options(step.context);
  for (std::size_t i = 0; i < step.composition.num_stages(); ++i)
    costmodel::visit_stage(
        step.context, step.kinds, step.content(i), costmodel::PieceOrder::kByKind,
        [&](const costmodel::StagePiece& piece) {
          std::vector<std::string> before;
          for (const costmodel::Piece part : costmodel::parts_of(piece.piece))
            for (const costmodel::Op& op : costmodel::part_ops(options.of(piece), part, piece).forward) {
              const std::string module(to_string(op.module));
              before.push_back(module);
              const auto* gemm = std::get_if<GemmWork>(&op.work);
              if (gemm == nullptr) continue;
              if (gemm->groups == 1)
                all[{gemm->n, gemm->k}].try_emplace(
                    module, LinearProduct{.module = module,
                                          .m = gemm->m,
                                          .n = gemm->n,
                                          .k = gemm->k,
                                          .time = costmodel::op_time(op, step.context.hardware)});
              with_gemm.insert(module);
              for (const std::string& earlier : before) modules.next_with_gemm.emplace(earlier, module);
              before.clear();
            }
        });
  for (const std::string& module : with_gemm) modules.next_with_gemm.erase(module);
  for (const auto& [size, named] : all) {
    if (named.size() != 1) continue;
    modules.by_weight.emplace(size, static_cast<std::int32_t>(modules.linear.size()));
    modules.linear.push_back(named.begin()->second);
  }
  return modules;
}

/// Names of a trace, each looked up once.
class NameCache {
 public:
  NameCache(const Trace& trace, const Rules& rules) : trace_(trace), rules_(rules), known_(trace.names.size()) {}
  const std::optional<std::string>& of(std::int32_t name) {
    auto& entry = known_[static_cast<std::size_t>(name)];
    if (!entry) entry = rules_.of(trace_.name(name));
    return *entry;
  }

 private:
  const Trace& trace_;
  const Rules& rules_;
  std::vector<std::optional<std::optional<std::string>>> known_;
};

struct Found {
  std::string module;
  FoundBy by = FoundBy::kNothing;
  std::int32_t product = -1;  ///< Index into Modules::linear.
};

class Mapper {
 public:
  Mapper(const Trace& trace, const costmodel::Step& step)
      : trace_(trace),
        model_(step.context.model),
        options_(step.context.options),
        modules_(modules_of(step)),
        kind_of_(trace, rule_file().kinds),
        kernel_module_of_(trace, rule_file().kernel_modules),
        module_of_(trace, rule_file().modules),
        collective_of_(trace, rule_file().collectives),
        group_of_(trace, rule_file().groups) {
    std::int32_t threads = 0;
    for (const HostEvent& e : trace.host) threads = std::max(threads, e.thread + 1);
    host_.resize(static_cast<std::size_t>(threads));
    for (std::size_t i = 0; i < trace.host.size(); ++i)
      host_[static_cast<std::size_t>(trace.host[i].thread)].push_back(static_cast<std::int32_t>(i));
  }

  MappedKernels mapped() {
    find_forward_functions();
    MappedKernels result;
    result.op.resize(trace_.gpu.size(), -1);
    result.product.resize(trace_.gpu.size(), -1);
    result.linear = modules_.linear;
    result.owner.resize(trace_.allocations.size(), -1);
    for (const Asked& asked : by_host()) {
      if (asked.is_memory) {
        if (trace_.allocations[asked.event].bytes > 0)
          result.owner[asked.event] = index_of(owner_of(trace_.allocations[asked.event]), result.owners);
      } else {
        result.op[asked.event] = index_of(op_of(trace_.gpu[asked.event], result.product[asked.event]), result.ops);
      }
    }
    return result;
  }

 private:
  /// Work on the GPU, or memory of it, that a thread of the host asks for.
  struct Asked {
    std::int64_t thread, time;
    bool is_memory;
    std::size_t event;
  };

  /// In the order in which threads asked for it, thread by thread; what has no launch comes last.
  std::vector<Asked> by_host() const {
    std::vector<Asked> all;
    all.reserve(trace_.gpu.size() + trace_.allocations.size());
    for (std::size_t i = 0; i < trace_.gpu.size(); ++i) {
      const auto launch = trace_.launches.find(trace_.gpu[i].correlation);
      const bool known = launch != trace_.launches.end();
      all.push_back({known ? launch->second.thread : std::int64_t{1} << 40,
                     known ? launch->second.time.begin : trace_.gpu[i].time.begin, false, i});
    }
    for (std::size_t i = 0; i < trace_.allocations.size(); ++i)
      all.push_back({trace_.allocations[i].thread, trace_.allocations[i].time, true, i});
    std::ranges::sort(all, {}, [](const Asked& a) { return std::tuple(a.thread, a.time, a.is_memory, a.event); });
    return all;
  }

  template <typename Value>
  static std::int32_t index_of(const Value& value, std::vector<Value>& values) {
    const auto known = std::find(values.begin(), values.end(), value);
    const auto index = static_cast<std::int32_t>(known - values.begin());
    if (known == values.end()) values.push_back(value);
    return index;
  }

  /// Operators of the thread that are open at `time`, outermost first. Times must not fall, thread by thread.
  const std::vector<std::int32_t>& open_at(std::int32_t thread, std::int64_t time) {
    if (thread != at_.thread) at_ = {.thread = thread};
    if (static_cast<std::size_t>(thread) >= host_.size()) return at_.open;
    const std::vector<std::int32_t>& events = host_[static_cast<std::size_t>(thread)];
    for (; at_.next < events.size() && event(events[at_.next]).time.begin <= time; ++at_.next) {
      close(event(events[at_.next]).time.begin);
      at_.open.push_back(events[at_.next]);
    }
    close(time);
    return at_.open;
  }
  void close(std::int64_t time) {
    std::erase_if(at_.open, [&](std::int32_t i) { return event(i).time.end < time; });
  }
  const HostEvent& event(std::int32_t i) const { return trace_.host[static_cast<std::size_t>(i)]; }

  bool is_backward(const HostEvent& e) const { return trace_.name(e.name).starts_with(kBackward); }

  Found by_weight(const HostEvent& e) const {
    if (e.shapes < 0) return {};
    for (const Shape& shape : trace_.shapes[static_cast<std::size_t>(e.shapes)])
      if (shape.size() == 2)
        if (const auto found = modules_.by_weight.find({shape[0], shape[1]}); found != modules_.by_weight.end())
          return {modules_.linear[static_cast<std::size_t>(found->second)].module, FoundBy::kShape, found->second};
    return {};
  }

  /// Norms of the hidden width stand before what follows; narrower ones are attention's own.
  std::optional<std::string> by_width(const HostEvent& e) const {
    if (e.shapes < 0) return std::nullopt;
    for (const Shape& shape : trace_.shapes[static_cast<std::size_t>(e.shapes)])
      if (!shape.empty()) return shape.back() == model_.hidden_size ? "mlp" : "attention";
    return std::nullopt;
  }

  Found found_by(const HostEvent& e) {
    const std::optional<std::string>& module = module_of_.of(e.name);
    if (!module || *module == kBesideExperts) return {};
    if (*module != kByWeight && *module != kByWidth) return {*module, FoundBy::kFunction};
    if (*module == kByWeight) return by_weight(e);
    const std::optional<std::string> sized = by_width(e);
    return sized ? Found{*sized, FoundBy::kShape} : Found{};
  }

  /// Forward functions first: their nodes of autograd have no sizes of their own.
  void find_forward_functions() {
    for (const std::vector<std::int32_t>& thread : host_) {
      Found last;
      for (const std::int32_t i : thread) {
        const HostEvent& e = event(i);
        if (is_backward(e)) {
          if (const Found* forward = forward_of(e)) last = *forward;
          continue;
        }
        Found found = found_by(e);
        if (found.by == FoundBy::kNothing && e.sequence >= 0 && last.by != FoundBy::kNothing)
          found = {is_beside_experts(e, last.module) ? "dispatch" : last.module, FoundBy::kOrder};
        if (found.by != FoundBy::kNothing) last = found;
        if (e.sequence >= 0 && found.by != FoundBy::kNothing) forward_[e.sequence].emplace_back(e.time.begin, found);
      }
    }
    for (auto& [sequence, functions] : forward_)
      std::ranges::stable_sort(functions, {}, &std::pair<std::int64_t, Found>::first);
  }

  /// What a node of autograd is the backward of. An operator records the number that the next node will get, so of
  /// those with the node's number the last one before it made it; each thread counts for itself.
  const Found* forward_of(const HostEvent& node) const {
    const auto functions = forward_.find(node.sequence);
    if (functions == forward_.end()) return nullptr;
    const Found* last = nullptr;
    for (const auto& [begin, found] : functions->second)
      if (begin < node.time.begin) last = &found;
    return last;
  }

  /// Sets `product`, of a GEMM forward.
  KernelOp op_of(const GpuEvent& gpu, std::int32_t& product) {
    const std::string& name = trace_.name(gpu.name);
    KernelOp op;
    op.kind = *kind_of_.of(gpu.name);
    if (gpu.collective >= 0 || name.starts_with("nccl")) {
      const std::int32_t collective = gpu.collective >= 0 ? gpu.collective : gpu.name;
      op.kind = collective_of_.of(collective).value_or("send_recv");
      op.group = gpu.group < 0 ? group_by_members(gpu.message, op.kind) : group_of_.of(gpu.group).value_or("");
      op.found = FoundBy::kFunction;
      return op;
    }
    if (is_host_copy(name)) op.kind = "host_copy";
    const auto launch = trace_.launches.find(gpu.correlation);
    Found found;
    if (launch != trace_.launches.end()) {
      const std::int32_t thread = launch->second.thread;
      const std::vector<std::int32_t>& open = open_at(thread, launch->second.time.begin);
      const Place place = place_of(open);
      found = place.found;
      op.recomputed = place.recomputed;
      if (!place.in_backward && op.kind == "gemm" && name.find("splitK") == std::string::npos) product = found.product;
      if (const auto& fixed = kernel_module_of_.of(gpu.name)) found = {*fixed, FoundBy::kFunction};
      Found& last = last_[thread];
      if (found.by == FoundBy::kNothing && last.by != FoundBy::kNothing)
        found = {is_beside_experts(open, last.module) ? "dispatch" : module_by_order(op.kind, last.module),
                 FoundBy::kOrder};
      if (found.by != FoundBy::kNothing) last = found;
    } else if (const auto& fixed = kernel_module_of_.of(gpu.name)) {
      found = {*fixed, FoundBy::kFunction};
    }
    op.module = found.module;
    op.found = found.by;
    if (op.kind == "gemm" && op.module == "experts") op.kind = "grouped_gemm";
    return op;
  }

  /// Of a collective whose group the trace does not name: the only one of the job's that runs this kind, between the
  /// ranks of its message where the trace says them; empty: several may.
  const std::string& group_by_members(std::int32_t message, const std::string& kind) {
    const auto [known, is_new] = groups_by_members_.try_emplace({kind, message});
    if (!is_new) return known->second;
    using enum costmodel::Group;
    const costmodel::Layout layout = options_.layout();
    std::vector<costmodel::Group> groups = {kTp, kDpCp};
    if (kind == "send_recv") {
      groups = {layout.pp > 1 ? kPp : kCp};
    } else if (kind == "all_to_all" || kind == "exchange") {
      groups = {kEp, kCp};
    } else if (model_.has_moe()) {
      if (layout.edp() != layout.dp_cp()) groups.push_back(kEdp);
      if (kind == "all_gather" || options_.layer.dispatcher == costmodel::Dispatcher::kAllGather)
        groups.push_back(kEtpEp);
    }
    std::vector<std::int64_t> ranks;
    if (message >= 0) ranks = trace_.messages[static_cast<std::size_t>(message)].ranks;
    std::ranges::sort(ranks);
    std::set<std::string> names;
    for (const costmodel::Group group : groups)
      for (const costmodel::RankGroup& members : costmodel::process_groups(layout, to_string(group)))
        if (members.size() > 1 && (ranks.empty() || members == ranks)) names.emplace(to_string(group));
    if (names.size() == 1) known->second = *names.begin();
    return known->second;
  }

  /// Chunks of tokens that are sorted without a fused kernel, before experts and after: split and cat, as attention has
  /// them too.
  bool is_beside_experts(const HostEvent& e, const std::string& last) {
    return module_of_.of(e.name) == kBesideExperts && (last == "experts" || last == "dispatch");
  }
  bool is_beside_experts(const std::vector<std::int32_t>& open, const std::string& last) {
    return std::ranges::any_of(open, [&](std::int32_t i) { return is_beside_experts(event(i), last); });
  }

  /// Functions that a checkpoint runs forward record no operator of their own.
  std::string module_by_order(const std::string& kind, const std::string& last) const {
    const auto next = modules_.next_with_gemm.find(last);
    return kind == "gemm" && next != modules_.next_with_gemm.end() ? next->second : last;
  }

  MemoryOwner owner_of(const Allocation& allocation) {
    const Place place = place_of(open_at(allocation.thread, allocation.time));
    const auto last = last_.find(allocation.thread);
    const Found& found = place.found.by == FoundBy::kNothing && last != last_.end() ? last->second : place.found;
    const char* phase = place.recomputed ? "recomputed" : place.in_backward ? "backward" : "forward";
    return {found.module == "optimizer" ? "optimizer step" : phase, found.module};
  }

  struct Place {
    Found found;
    bool in_backward = false, recomputed = false;
  };

  /// The outermost operator that a rule knows; in backward, what the innermost node of autograd is the backward of. A
  /// checkpoint's node runs forward again, whose operators record a number as forward's do, and then nodes of its own.
  Place place_of(const std::vector<std::int32_t>& open) {
    Place place;
    for (const std::int32_t i : open) {
      const HostEvent& e = event(i);
      if (is_backward(e)) {
        place.in_backward = true;
        place.recomputed = false;
        const Found* forward = forward_of(e);
        place.found = forward != nullptr ? *forward : found_by(e);
        continue;
      }
      if (place.in_backward && !place.recomputed && e.sequence >= 0 && !is_node(e)) {
        place.recomputed = true;
        place.found = {};
      }
      if (place.found.by == FoundBy::kNothing) place.found = found_by(e);
    }
    return place;
  }

  /// A node of autograd inside its engine's call: "_LinearBackward", "MulBackward0".
  bool is_node(const HostEvent& e) const { return trace_.name(e.name).find("Backward") != std::string::npos; }

  struct At {
    std::int32_t thread = -1;
    std::size_t next = 0;
    std::vector<std::int32_t> open{};
  };

  const Trace& trace_;
  const costmodel::ModelSpec& model_;
  const costmodel::TrainingOptions& options_;
  std::map<std::pair<std::string, std::int32_t>, std::string> groups_by_members_;  ///< By kind and message.
  Modules modules_;
  NameCache kind_of_, kernel_module_of_, module_of_, collective_of_, group_of_;
  std::vector<std::vector<std::int32_t>> host_;  ///< [threads] indices into Trace::host.
  std::unordered_map<std::int64_t, std::vector<std::pair<std::int64_t, Found>>>
      forward_;                                   ///< By sequence number: begin, function.
  std::unordered_map<std::int32_t, Found> last_;  ///< By thread.
  At at_;
};

}  // namespace

MappedKernels map_kernels(const Trace& trace, const costmodel::Step& step) { return Mapper(trace, step).mapped(); }

std::string kernel_kind(const std::string& name) {
  return name.starts_with("nccl") ? rule_file().collectives.of(name).value_or(std::string(kUnknown))
                                  : *rule_file().kinds.of(name);
}

bool is_communication(const std::string& kind) {
  return kind == "all_reduce" || kind == "all_gather" || kind == "reduce_scatter" || kind == "all_to_all" ||
         kind == "send_recv" || kind == "exchange";
}

bool is_product(std::string_view kind) { return kind == "gemm" || kind == "grouped_gemm" || kind == "attention"; }

bool is_host_copy(const std::string& name) {
  return name.starts_with("Memcpy") && name.find("DtoD") == std::string::npos;
}

bool is_grouped_product(const std::string& name) { return std::regex_search(name, rule_file().grouped_product); }

std::optional<std::string> host_wait(const std::string& name) {
  return rule_file().host_waits.of(name.substr(name.rfind('/') + 1));  // Folders may be called anything.
}

bool is_step(const std::string& name) { return std::regex_search(name, rule_file().step); }

std::optional<std::vector<std::string>> flags_behind(const std::string& finding) {
  const std::optional<std::string> flags = rule_file().cures.of(finding);
  if (!flags) return std::nullopt;
  std::istringstream words(*flags);
  return std::vector<std::string>{std::istream_iterator<std::string>(words), {}};
}

}  // namespace foldwise::planner
