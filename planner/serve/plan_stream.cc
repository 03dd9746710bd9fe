#include "planner/serve/plan_stream.h"

#include <array>
#include <chrono>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "costmodel/step/step.h"
#include "planner/answer/plan_answer.h"
#include "planner/answer/version.h"
#include "planner/foldwise.h"
#include "planner/serve/requests.h"

namespace foldwise::serve {
namespace {

using nlohmann::json;
using planner::Progress;
using planner::Solution;

constexpr std::chrono::milliseconds kBetween{150};  ///< Between two lines.
constexpr std::size_t kMostFound = 40;              ///< New plans in a line: each is predicted, which takes 0.3 ms.

const char* name_of(planner::Work work) {
  switch (work) {
    case planner::Work::kSearch:
      return "search";
    case planner::Work::kAlternatives:
      return "alternatives";
    case planner::Work::kHosts:
      return "hosts";
    case planner::Work::kStates:
      return "optimizer_states";
    case planner::Work::kUnproven:
      return "unproven";
    case planner::Work::kList:
      break;
  }
  return "list";
}

/// A plan as a point of the front.
json point(const planner::PlanProblem& problem, const Solution& found) {
  const costmodel::Step step = costmodel::compose_step(problem.model, found.options, problem.hardware);
  const costmodel::Prediction prediction = costmodel::predict(step, false);
  planner::Plan plan;
  plan.options = found.options;
  return {{"step_time_s", prediction.step_time.to<double>()},
          {"peak_device_memory_gib", in_gib(prediction.peak_memory)},
          {"capacity_gib", in_gib(problem.hardware.hbm_capacity)},
          {"run", planner::write_run(planner::run_of(problem, plan))}};
}

class Stream {
 public:
  explicit Stream(const SendLine& send) : send_(send) {}

  /// Whether the search may go on.
  bool report(const Progress& now) {
    const std::lock_guard lock(mutex_);
    const auto time = std::chrono::steady_clock::now();
    if (started_ && time < last_ + kBetween) return wanted_;
    started_ = true;
    last_ = time;
    const auto seconds = [](Seconds value) { return value > Seconds{} ? json(value.to<double>()) : json(nullptr); };
    json found = json::array();
    if (now.found != nullptr) found = new_points(now);
    send({{"progress",
           {{"share", now.share},
            {"work", name_of(now.work)},
            {"best_s", seconds(now.best)},
            {"least_s", seconds(now.least)},
            {"found", std::move(found)}}}});
    return wanted_;
  }
  void send(const json& line) {
    started_ = true;
    wanted_ = send_(text_of(line) + '\n') && wanted_;
  }
  [[nodiscard]] bool started() const { return started_; }

 private:
  /// The fastest of each layout that is faster than what was sent of it.
  json new_points(const Progress& now) {
    json list = json::array();
    for (const Solution& solution : now.found->sorted()) {
      if (list.size() == kMostFound) break;
      const costmodel::Layout l = solution.options.layout();
      const auto [sent, fresh] = sent_.try_emplace({l.tp, l.cp, l.dp, l.pp, l.vpp, l.ep, l.etp}, solution.time);
      if (!fresh && sent->second <= solution.time) continue;
      sent->second = solution.time;
      list.push_back(point(*now.problem, solution));
    }
    return list;
  }

  using Sizes =
      std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
  const SendLine& send_;
  std::mutex mutex_;
  std::map<Sizes, Seconds> sent_;
  std::chrono::steady_clock::time_point last_;
  bool started_ = false, wanted_ = true;
};

}  // namespace

std::optional<Response> stream_plan(const Request& request, const SendLine& send) {
  Stream stream(send);
  const auto fail = [&](const Response& response) -> std::optional<Response> {
    if (!stream.started()) return response;
    stream.send(json::parse(response.body));
    return std::nullopt;
  };
  try {
    const planner::PlanAsked asked = plan_in(read_body(request.body));
    const planner::PlanAnswer answer =
        planner::plan_answer(asked, {}, [&](const Progress& now) { return stream.report(now); });
    stream.send({{"answer", planner::with_schema(planner::plan_answer_json(answer))}});
    return std::nullopt;
  } catch (...) {
    return fail(failure_of_exception());
  }
}

}  // namespace foldwise::serve
