#include "planner/uncertainty/error_model.h"

#include <fmt/format.h>

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>
#include <set>
#include <utility>

#include "costmodel/check.h"
#include "costmodel/config/json.h"
#include "costmodel/config/output_file.h"
#include "costmodel/step/step.h"
#include "planner/run/names.h"
#include "planner/uncertainty/reservation.h"

namespace foldwise::planner::data {
const std::string* embedded_file(std::string_view name);  // Generated from the files of planner_data.
}

namespace foldwise::planner {

using costmodel::TrainingOptions;

namespace {

constexpr std::size_t kFactors = std::size(kSiteResources);
static_assert(kFactors == costmodel::SiteKnowledge::kFactors);
constexpr const char* kKnownSite = "site ";
/// Cause of MoE runs: the host's price per expert was fitted to few runs, and MoE runs of ours deviate more in host
/// time than dense ones (docs/accuracy.md#uncertainty).
constexpr const char* kHostOfExperts = "host of experts";

constexpr std::string_view kNotStated = " not stated";

std::string dispatch_text(const Run& run) {
  const costmodel::LayerOptions& o = run.options.layer;
  return fmt::format("{}{}", name_of(o.dispatcher),
                     o.ep * o.etp > run.hardware.network.nvlink_domain ? " across NVLink domains" : "");
}

}  // namespace

bool is_origin(const std::string& cause) {
  return cause == "every run" || cause == kChosen || cause.starts_with("as ") || cause.ends_with(kNotStated);
}

bool is_site(const std::string& cause) {
  return cause.starts_with(kKnownSite) ||
         std::ranges::any_of(kSiteResources, [&](Resource r) { return to_string(r) == cause; });
}

Exposure mechanisms(const Run& run) {
  const TrainingOptions& o = run.options;
  const costmodel::LayerOptions& layer = o.layer;
  Exposure causes = {{"every run", 1.0}, {"as " + run.defaults, 1.0}};
  const auto add = [&](bool has, const std::string& cause) {
    if (has) causes[cause] = 1.0;
  };
  // Only rows of a table may be silent about a setting. The author of a run file knows which defaults it uses.
  const Reservation reason = run.json.contains("source") ? reservation(run) : Reservation::kNone;
  add(is_silent(reason), std::string(name_of(reason)));
  add(run.chosen, kChosen);
  add(run.num_gpus > run.hardware.network.nvlink_domain,
      fmt::format("{} across NVLink domains", run.hardware.traits.generation));
  add(run.model.has_moe() && layer.ep > 1, "experts by " + dispatch_text(run));
  add(run.model.has_moe() && layer.software.experts == costmodel::Experts::kCutlass, "experts in CUTLASS' kernel");
  add(o.pipeline.overlaps.ep_a2a, "EP overlap");
  add(o.pipeline.overlaps.ep_a2a, "EP overlap by " + dispatch_text(run));
  add(costmodel::is_fp8(layer.precision), "fp8");
  add(layer.precision == costmodel::Precision::kNvfp4, "nvfp4");
  add(layer.hidden_dropout > 0.0 || layer.attention_dropout > 0.0, "dropout");
  add(layer.cuda_graph.impl != costmodel::GraphImpl::kNone, "CUDA graphs");
  add(costmodel::is_fsdp(o.step.sharding), "FSDP");
  add(layer.cp > 1, "context parallelism");
  add(layer.overlaps.tp, "TP overlap");
  add(o.pipeline.pp > 1, "pipeline");
  add(layer.recompute.granularity == costmodel::RecomputeGranularity::kFull, "full recomputation");
  add(layer.recompute.granularity == costmodel::RecomputeGranularity::kSelective, "selective recomputation");
  const bool offloads = !layer.offload_modules.empty() || o.pipeline.cpu_offloading_num_layers > 0;
  add(offloads, "offloaded activations");
  // benchmarks/accuracy/journal.md#plans-again: copies of token counts queue behind offloaded activations.
  add(offloads && run.model.has_moe() && layer.ep > 1 &&
          (layer.dispatcher == costmodel::Dispatcher::kAllToAll ||
           layer.dispatcher == costmodel::Dispatcher::kAllGather),
      "offloaded activations beside token counts");
  add(o.step.offload != costmodel::StepOptions::Offload{}, "offloaded optimizer");
  for (const std::string& part : run.model.approximated) add(true, part);
  add(!run.hardware.unmeasured.empty() && !run.json.contains("measured"), run.hardware.unmeasured);
  return causes;
}

double slope(const Run& run, Seconds step_time, Resource resource, double factor) {
  const costmodel::Hardware changed = with_more(run.hardware, resource, factor);
  const Seconds then = costmodel::step_time(costmodel::compose_step(run.model, run.options, changed));
  return std::log((then / step_time).to<double>()) / std::log(factor);
}

Exposure exposure(const Run& run, Seconds step_time) {
  constexpr double kChange = 1.05;  // Small compared with the errors, large compared with the jumps of a schedule.
  Exposure causes = mechanisms(run);
  Eigen::Matrix<double, kFactors, 1> slopes;
  for (std::size_t i = 0; i < kFactors; ++i) {
    slopes[static_cast<Eigen::Index>(i)] = slope(run, step_time, kSiteResources[i], kChange);
  }
  if (!run.hardware.site) {
    for (std::size_t i = 0; i < kFactors; ++i)
      causes[std::string(to_string(kSiteResources[i]))] = slopes[static_cast<Eigen::Index>(i)];
    if (run.model.has_moe()) causes[kHostOfExperts] = causes[std::string(to_string(Resource::kHost))];
    return causes;
  }
  // Independent directions of what is unknown about the site.
  Eigen::Matrix<double, kFactors, kFactors> covariance;
  for (std::size_t i = 0; i < kFactors; ++i)
    for (std::size_t k = 0; k < kFactors; ++k)
      covariance(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(k)) = run.hardware.site->covariance[i][k];
  const Eigen::SelfAdjointEigenSolver<decltype(covariance)> directions(covariance);
  for (Eigen::Index i = 0; i < slopes.size(); ++i)
    causes[fmt::format("{}{}", kKnownSite, i + 1)] =
        std::sqrt(std::max(0.0, directions.eigenvalues()[i])) * directions.eigenvectors().col(i).dot(slopes);
  return causes;
}

std::vector<std::string> peers_of(const Run& run) {
  const char* const models = run.model.has_moe() ? "moe" : "dense";
  return {fmt::format("{} {}", run.system_name, models), fmt::format("{} {}", run.hardware.traits.generation, models)};
}

const Peers* known_peers(const std::map<std::string, Peers>& known, const Run& run) {
  for (const std::string& name : peers_of(run))
    if (const auto it = known.find(name); it != known.end()) return &it->second;
  return nullptr;
}

ErrorModel ErrorModel::of_peers(const Run& run) const {
  ErrorModel result = *this;
  result.peers.clear();
  if (const Peers* const its = known_peers(peers, run); its != nullptr) {
    for (auto& [cause, error] : result.causes)
      if (cause != to_string(Resource::kHost)) error.sd *= its->scale;
    result.layout_sd *= its->scale;
    result.quantile_95 = its->quantile_95;
  }
  return result;
}

double ErrorModel::sd_of(const std::string& cause) const {
  if (cause.starts_with(kKnownSite)) return 1.0;
  if (const auto it = causes.find(cause); it != causes.end()) return it->second.sd;
  double worst = 0.0;
  for (const auto& [name, known] : causes)
    if (!is_site(name) && !is_origin(name) && name != kHostOfExperts) worst = std::max(worst, known.sd);
  return worst;
}

double ErrorModel::deviation(const Exposure& run) const {
  double variance = layout_sd * layout_sd;
  for (const auto& [name, exposed] : run) {
    const double error = exposed * sd_of(name);
    variance += error * error;
  }
  return std::sqrt(variance);
}

double ErrorModel::deviation_between(const Exposure& a, const Exposure& b, bool one_site) const {
  Exposure difference = a, apart;
  for (const auto& [name, exposed] : b) (one_site || !is_site(name) ? difference : apart)[name] -= exposed;
  return std::hypot(deviation(difference), deviation(apart));
}

std::vector<std::string> ErrorModel::unmeasured(const Exposure& run, const std::string& generation) const {
  std::vector<std::string> names;
  for (const auto& [name, exposed] : run) {
    if (is_site(name)) continue;
    const auto it = causes.find(name);
    if (it == causes.end() || (!is_origin(name) && !it->second.rows.contains(generation))) names.push_back(name);
  }
  return names;
}

double more_on_virtual_machine(const Run& run, Seconds step_time) {
  const std::optional<costmodel::HostSpec> host = run.hardware.host.of_virtual_machine();
  if (!host || run.hardware.site) return 0.0;
  costmodel::Hardware hardware = run.hardware;
  hardware.host = *host;
  const Seconds then = costmodel::step_time(costmodel::compose_step(run.model, run.options, hardware));
  return std::max(0.0, std::log((then / step_time).to<double>()));
}

std::optional<Interval> step_time_interval(const ErrorModel& errors, const Run& run, Seconds step_time) {
  if (errors.causes.empty()) return std::nullopt;
  const Exposure causes = exposure(run, step_time);
  const ErrorModel its = errors.of_peers(run);
  const double sd = its.deviation(causes), more = more_on_virtual_machine(run, step_time);
  // Quantile of a mixture of two normals, `more` apart, with the mass below that N(0, 1) has below z.
  const auto seconds = [&](double z) {
    const auto below = [](double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); };
    double low = z * sd, high = low + more;
    for (int halvings = 0; more > 0.0 && halvings < 50; ++halvings) {
      const double middle = 0.5 * (low + high);
      const double share =
          (1.0 - kVirtualMachines) * below(middle / sd) + kVirtualMachines * below((middle - more) / sd);
      (share < below(z) ? low : high) = middle;
    }
    return step_time.to<double>() * std::exp(low);
  };
  return Interval{.low = seconds(-kNormal80),
                  .high = seconds(kNormal80),
                  .low_95 = seconds(-its.quantile_95),
                  .high_95 = seconds(its.quantile_95),
                  .unmeasured = errors.unmeasured(causes, run.hardware.traits.generation)};
}

ErrorModel read_errors(const std::string& text, const std::string& name) {
  constexpr double kMostSd = 10.0;
  constexpr std::int64_t kMostRows = 1'000'000'000;
  const config::Document document = config::Document::parse(text, name);
  config::Diagnostics diagnostics;
  config::ObjectReader root(document, diagnostics);
  ErrorModel result;
  result.layout_sd = root.required_number("layout_sd", 0.0, kMostSd);
  result.quantile_95 = root.required_number("quantile_95", 0.0, kMostSd);
  if (auto causes = root.object("causes")) {
    for (const std::string& key : causes->keys()) {
      auto entry = causes->object(key);
      if (!entry) continue;
      ErrorCause& cause = result.causes[key];
      cause.sd = entry->required_number("sd", 0.0, kMostSd);
      if (auto rows = entry->object("rows"))
        for (const std::string& generation : rows->keys())
          cause.rows[generation] = rows->required_integer(generation, 1, kMostRows);
      entry->finish();
    }
  }
  if (auto peers = root.object("peers"))
    for (const std::string& key : peers->keys())
      if (auto entry = peers->object(key)) {
        result.peers[key] = {.scale = entry->required_number("scale", 0.0, kMostSd),
                             .quantile_95 = entry->required_number("quantile_95", 0.0, kMostSd)};
        entry->finish();
      }
  root.ignore_prefix('_');
  root.finish();
  diagnostics.throw_if_any();
  return result;
}

const ErrorModel& built_in_errors() {
  static const ErrorModel errors = [] {
    const std::string* text = data::embedded_file("residuals");
    FW_CHECK(text != nullptr, "the residuals are not built in");
    return read_errors(*text, "built-in residuals");
  }();
  return errors;
}

void write_errors(const ErrorModel& errors, const std::string& path) {
  nlohmann::json root = {
      {"_about",
       "Standard deviations of ln(measured / predicted) by cause (docs/accuracy.md#uncertainty), and measured "
       "predictions by cause and GPU generation; written by foldwise-accuracy --write-residuals, the source of the "
       "intervals and probabilities that predict and plan print"},
      {"layout_sd", errors.layout_sd},
      {"quantile_95", errors.quantile_95},
      {"causes", nlohmann::json::object()}};
  for (const auto& [name, its] : errors.peers)
    root["peers"][name] = {{"scale", its.scale}, {"quantile_95", its.quantile_95}};
  for (const auto& [name, cause] : errors.causes) root["causes"][name] = {{"sd", cause.sd}, {"rows", cause.rows}};
  config::write_output_file(path, root.dump(2) + '\n');
}

}  // namespace foldwise::planner
