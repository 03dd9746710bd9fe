#include "planner/report/explanation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "planner/report/prediction_report.h"
#include "planner/report/screen.h"
#include "planner/run/names.h"
#include "planner/run/run_file.h"

namespace foldwise::planner {

using nlohmann::json;

namespace {

double seconds_of(const Plan& plan) { return plan.prediction.step_time.to<double>(); }

double slower_pct(const Plan& plan, const Plan& first) { return 100.0 * (seconds_of(plan) / seconds_of(first) - 1.0); }

Bytes host_of(const costmodel::Prediction& prediction) {
  Bytes host{};
  for (const costmodel::StageMemory& memory : prediction.memory) host = std::max(host, memory.host);
  return host;
}

json short_json(const PlanProblem& problem, const Plan& plan) {
  return {{"step_time_s", seconds_of(plan)},
          {"peak_device_memory_gib", in_gib(plan.prediction.peak_memory)},
          {"host_gib", in_gib(host_of(plan.prediction))},
          {"run", write_run(run_of(problem, plan))}};
}

std::string layout_cell(const Plan& plan) {
  const costmodel::Layout l = plan.options.layout();
  return fmt::format("{}x{}x{}x{}", l.tp, l.cp, l.dp, l.pp);
}

std::string cause_name(Shortage::Cause cause) {
  switch (cause) {
    case Shortage::Cause::kDevice:
      return "device_memory";
    case Shortage::Cause::kHost:
      return "host_memory";
    case Shortage::Cause::kRules:
      break;
  }
  return "rules";
}

double may_use_gib(const PlanProblem& problem) {
  return in_gib((1.0 - problem.headroom) * problem.hardware.hbm_capacity);
}

/// Memory of a near miss's stage by kind, largest first.
std::string parts_text(const costmodel::StageMemory& m) {
  std::vector<std::pair<double, std::string>> parts = {
      {in_gib(m.parameters), "parameters"},   {in_gib(m.gradients), "gradients"}, {in_gib(m.optimizer), "optimizer"},
      {in_gib(m.activations), "activations"}, {in_gib(m.buffers), "buffers"},     {in_gib(m.overhead()), "overhead"}};
  std::ranges::stable_sort(parts, std::ranges::greater{}, [](const auto& part) { return part.first; });
  std::vector<std::string> list;
  for (const auto& [gib, name] : parts)
    if (gib >= 0.05) list.push_back(fmt::format("{} {:.1f}", name, gib));
  return fmt::format("{}", fmt::join(list, ", "));
}

}  // namespace

std::vector<std::pair<std::size_t, std::size_t>> groups_of(const std::vector<Plan>& plans) {
  std::vector<std::pair<std::size_t, std::size_t>> groups;
  // Plans after the first are sorted by time; the first may be slower than they are.
  const auto within = [](const Plan& a, const Plan& b) {
    const auto [less, more] = std::minmax({seconds_of(a), seconds_of(b)});
    return more <= (1.0 + kIndistinguishable) * less;
  };
  for (std::size_t i = 0; i < plans.size(); ++i)
    if (!groups.empty() && within(plans[groups.back().first], plans[i]))
      groups.back().second = i;
    else
      groups.emplace_back(i, i);
  return groups;
}

std::string groups_text(const std::vector<Plan>& plans, const Screen& screen) {
  std::vector<std::string> list;
  for (const auto& [first, last] : groups_of(plans))
    if (first != last) list.push_back(fmt::format("{}-{}", first + 1, last + 1));
  if (list.empty()) return {};
  return wrapped(fmt::format("Within {:g} %, which the model cannot tell apart: {}", 100.0 * kIndistinguishable,
                             fmt::join(list, "; ")),
                 screen.width, 2) +
         '\n';
}

json alternatives_json(const PlanProblem& problem, const PlanResult& result) {
  json list = json::array();
  for (const Alternative& alternative : result.alternatives) {
    json entry = {{"choice", alternative.choice}, {"set", json::object()}, {"plan", nullptr}, {"slower_pct", nullptr}};
    for (const auto& [key, values] : alternative.set) entry["set"][key] = values;
    if (alternative.plan) {
      entry["plan"] = short_json(problem, *alternative.plan);
      entry["slower_pct"] = slower_pct(*alternative.plan, result.plans.front());
    }
    list.push_back(std::move(entry));
  }
  return list;
}

std::string alternatives_text(const PlanProblem& problem, const PlanResult& result, const Screen& screen) {
  if (result.alternatives.empty()) return {};
  Table table({"<choice taken back", "step s", "more", "left", "<TPxCPxDPxPP", "VPP", "<ETPxEP", "mbs"});
  std::vector<std::string> impossible, same;
  for (const Alternative& alternative : result.alternatives) {
    if (!alternative.plan) {
      impossible.push_back(alternative.choice);
      continue;
    }
    const Plan& plan = *alternative.plan;
    const costmodel::Layout l = plan.options.layout();
    const double slower = slower_pct(plan, result.plans.front());
    if (slower <= 100.0 * kIndistinguishable) same.push_back(alternative.choice);
    table.add({alternative.choice, seconds_text(seconds_of(plan)), fmt::format("{:+.1f} %", slower),
               fmt::format("{:.1f}", in_gib(problem.hardware.hbm_capacity - plan.prediction.peak_memory)),
               layout_cell(plan), fmt::format("{}", l.vpp), fmt::format("{}x{}", l.etp, l.ep),
               fmt::format("{}", plan.options.layer.micro_batch)});
  }
  std::string out = "What plan 1's choices earn: the fastest plan that was found without each\n";
  if (!table.empty()) out += table.text();
  const auto list = [&](const std::string& before, const std::vector<std::string>& names) {
    if (!names.empty())
      out += "  " + wrapped(before + fmt::format("{}", fmt::join(names, ", ")), screen.width - 2, 4) + '\n';
  };
  list("nothing found that fits: ", impossible);
  list("too close for the model to tell, so the plainer choice may do: ", same);
  return out;
}

json shortage_json(const PlanProblem& problem, const Shortage& shortage) {
  json nearest = json::array(), ways = json::array();
  for (const NearMiss& miss : shortage.nearest) {
    json entry = short_json(problem, miss.plan);
    entry["over_gib"] = in_gib(miss.over);
    entry["host_over_gib"] = in_gib(miss.host_over);
    entry["stage"] = miss.stage;
    entry["moment"] = miss.plan.prediction.memory[miss.stage].moment;
    nearest.push_back(std::move(entry));
  }
  for (const WayOut& way : shortage.ways) {
    PlanProblem other = problem;
    other.num_gpus = way.num_gpus;
    json entry = short_json(other, way.plan);
    entry["num_gpus"] = way.num_gpus;
    entry["global_batch"] = way.global_batch;
    entry["seq_len"] = way.seq_len;
    ways.push_back(std::move(entry));
  }
  return {{"cause", cause_name(shortage.cause)},
          {"may_use_gib", may_use_gib(problem)},
          {"nearest", std::move(nearest)},
          {"ways", std::move(ways)}};
}

std::string near_miss_text(const PlanProblem& problem, const NearMiss& miss, const Screen& screen) {
  const costmodel::StageMemory& memory = miss.plan.prediction.memory[miss.stage];
  std::string line;
  if (miss.over > Bytes{})
    line += fmt::format(
        "Memory of the GPU decides: the nearest miss needs {:.1f} GiB more than the {:.1f} that a "
        "plan may use, on pipeline stage {} in the {}: {}. ",
        in_gib(miss.over), may_use_gib(problem), miss.stage, memory.moment, parts_text(memory));
  if (miss.host_over > Bytes{})
    line += fmt::format(
        "Memory of the host decides{}: the nearest miss needs {:.1f} GiB a GPU more than the {:.1f} "
        "there are. ",
        miss.over > Bytes{} ? " too" : "", in_gib(miss.host_over), in_gib(problem.hardware.host.memory_per_gpu));
  if (line.empty())
    line = fmt::format("The nearest miss needs {:.1f} GiB at the 99th percentile of routing, and there are {:.1f}. ",
                       in_gib(miss.plan.imbalance.p99_memory), in_gib(problem.hardware.hbm_capacity));
  line.pop_back();
  return wrapped(line, screen.width, 2) + '\n';
}

std::string shortage_text(const PlanProblem& problem, const Shortage& shortage, const Screen& screen) {
  std::string out;
  if (shortage.cause == Shortage::Cause::kRules) out += "With any memory nothing was found either: rules refuse it.\n";
  if (!shortage.nearest.empty()) {
    out += near_miss_text(problem, shortage.nearest.front(), screen) + "\nNearest misses\n";
    Table misses({"<TPxCPxDPxPP", "VPP", "<ETPxEP", "mbs", "GiB", "over", "host over", "stage", "<moment"});
    for (const NearMiss& near : shortage.nearest) {
      const costmodel::Layout l = near.plan.options.layout();
      misses.add({layout_cell(near.plan), fmt::format("{}", l.vpp), fmt::format("{}x{}", l.etp, l.ep),
                  fmt::format("{}", near.plan.options.layer.micro_batch),
                  fmt::format("{:.1f}", in_gib(near.plan.prediction.peak_memory)),
                  fmt::format("{:.1f}", in_gib(near.over)), fmt::format("{:.1f}", in_gib(near.host_over)),
                  fmt::format("{}", near.stage), near.plan.prediction.memory[near.stage].moment});
    }
    out += misses.text();
  }
  out += shortage.ways.empty()
             ? "\nNothing was found to fit with more GPUs, another batch or shorter sequences either\n"
             : "\nThese were found to fit\n";
  Table table({"GPUs", "batch", "sequence", "<TPxCPxDPxPP", "VPP", "<ETPxEP", "mbs", "step s", "GiB"});
  for (const WayOut& way : shortage.ways) {
    const costmodel::Layout l = way.plan.options.layout();
    table.add({fmt::format("{}", way.num_gpus), fmt::format("{}", way.global_batch), fmt::format("{}", way.seq_len),
               layout_cell(way.plan), fmt::format("{}", l.vpp), fmt::format("{}x{}", l.etp, l.ep),
               fmt::format("{}", way.plan.options.layer.micro_batch), seconds_text(seconds_of(way.plan)),
               fmt::format("{:.1f}", in_gib(way.plan.prediction.peak_memory))});
  }
  if (!table.empty()) out += table.text();
  return out;
}

}  // namespace foldwise::planner
