#include "hwprofiles/fit/host_fits.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string_view>
#include <variant>

#include "costmodel/ops/block_ops.h"
#include "hwprofiles/fit/fitting.h"
#include "hwprofiles/fit/step_models.h"

namespace foldwise::hwprofiles {
namespace {

using config::ObjectReader;
using costmodel::BuildContext;
using costmodel::Dispatcher;
using costmodel::Hardware;
using costmodel::LayerOptions;
using costmodel::ModelSpec;
using costmodel::Op;
using costmodel::OpList;
using Json = nlohmann::ordered_json;

LayerOptions options_of(const Json& run) {
  LayerOptions options;
  options.tp = run.value("tp", 1);
  options.ep = run.value("ep", 1);
  options.micro_batch = run.value("mbs", 1);
  options.seq_len = run.at("seq").get<std::int64_t>();
  options.dispatcher = run.value("dispatcher", "alltoall") == "flex" ? Dispatcher::kDeepEp : Dispatcher::kAllToAll;
  options.software.experts = costmodel::Experts::kGrouped;
  options.software.fused_permute = options.software.router_fp32 = true;
  options.software.router_fp32_operands = true;  // Megatron-Core 0.16.1
  return options;
}

/// Whether an op is an all-to-all of tokens and probabilities, or a fused dispatch or combine. Excludes the gather of
/// counts.
bool is_exchange(const Op& op) {
  const auto* collective = std::get_if<costmodel::CollectiveWork>(&op.work);
  return op.module == costmodel::Module::kDispatch &&
         (std::holds_alternative<costmodel::ExchangeWork>(op.work) ||
          (collective != nullptr && collective->kind == costmodel::CollectiveKind::kAllToAll));
}

Seconds price(const std::vector<Op>& ops, const Hardware& hardware) {
  Seconds sum{};
  for (const Op& op : ops)
    if (!is_exchange(op)) sum += issue_time(op, hardware);
  return sum;
}

HostLayer priced(const Json& run, Hardware hardware) {
  hardware.host.backward_share = 1.0;
  const ModelSpec model = step_model(run);
  const LayerOptions options = options_of(run);
  const BuildContext context{model, options, hardware, std::max(options.tp, options.ep)};
  HostLayer layer{.run = run.at("id").get<std::string>()};
  for (const OpList& list : {mixer_ops(context, model.layers.front()), mlp_ops(context, model.layers.front())}) {
    layer.priced_forward += price(list.forward, hardware);
    layer.priced_backward += price(list.backward, hardware);
  }
  return layer;
}

/// Total seconds of the calls that `chosen` accepts by name and count.
double seconds_of(const Json& calls, const std::function<bool(std::string_view, std::int64_t)>& chosen) {
  double seconds = 0.0;
  for (const auto& [name, call] : calls.items())
    if (chosen(name, call.at("count").get<std::int64_t>())) seconds += call.at("seconds").get<double>();
  return seconds;
}

double share_of(const HostLayer& layer) {
  return (layer.backward / layer.priced_backward).to<double>() / (layer.forward / layer.priced_forward).to<double>();
}

double median_share(const std::vector<HostLayer>& layers) {
  std::vector<double> shares(layers.size());
  std::transform(layers.begin(), layers.end(), shares.begin(), share_of);
  return median(std::move(shares));
}

}  // namespace

std::vector<HostLayer> host_layers(const std::vector<Json>& records, const Hardware& hardware) {
  std::vector<HostLayer> layers;
  for (const Json& record : records) {
    const Json& run = record.at("run");
    const Json& calls = record.at("calls");
    const auto micro_batches = run.at("mb").get<std::int64_t>(), depth = run.at("layers").get<std::int64_t>();
    const auto id = run.at("id").get<std::string>();
    if (depth < 2) throw std::runtime_error(id + ": expected two layers or more");
    auto layer = std::find_if(layers.begin(), layers.end(), [&](const HostLayer& l) { return l.run == id; });
    if (layer == layers.end()) layer = layers.insert(layer, priced(run, hardware));  // All its ranks cost the same.
    // In the exchange a rank waits for slower ones.
    const double exchange = seconds_of(calls, [](std::string_view name, std::int64_t) {
      return name.ends_with(".token_dispatch") || name.ends_with(".token_combine");
    });
    // A function that runs once per micro-batch belongs to the embedding, the output layer or the loss.
    const double not_the_layer = seconds_of(calls, [&](std::string_view name, std::int64_t count) {
      return name == "_AllToAll.backward" || name == "FusedDispatch.backward" || name == "FusedCombine.backward" ||
             (name.ends_with(".backward") && count == micro_batches);
    });
    const auto each = static_cast<double>(micro_batches * depth);
    const auto seconds = [&](const char* name) { return calls.at(name).at("seconds").get<double>(); };
    layer->forward = std::max(layer->forward, Seconds{(seconds("TransformerLayer.forward") - exchange) / each});
    layer->backward = std::max(layer->backward, Seconds{(seconds("backward") - not_the_layer) / each});
  }
  return layers;
}

BackwardShare fit_backward_share(const std::vector<HostLayer>& layers) {
  std::vector<double> speeds(layers.size());
  std::transform(layers.begin(), layers.end(), speeds.begin(),
                 [](const HostLayer& layer) { return (layer.forward / layer.priced_forward).to<double>(); });
  const LeftOutErrors errors = leave_one_out(layers, median_share, [](double share, const HostLayer& layer) {
    return std::abs(share / share_of(layer) - 1.0);
  });
  return {.value = median_share(layers),
          .speed = median(std::move(speeds)),
          .training = errors.training,
          .validated = errors.validated};
}

/// {"curves": "host", "calls": a file of megatron_steps.py --calls}
void fit_host(Fitting& fitting, ProfileFit& profile, ObjectReader& entry) {
  const BackwardShare fit =
      fit_backward_share(host_layers(fitting.lines(entry.required_string("calls")), profile.hardware));
  profile.sheet.put("/host/backward_share", fit.value, "1",
                    {"fitted", "host_calls", note(fit.training, fit.validated), "2026-11"});
  print_row(profile.name, "host backward", fit.training, fit.validated,
            fmt::format("backward_share {:.4g}; this host takes {:.3g} of the prices", fit.value, fit.speed));
}

}  // namespace foldwise::hwprofiles
