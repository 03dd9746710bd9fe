// Collectives from nccl-tests, and published fused exchanges and all-to-alls.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/ops/contention.h"
#include "hwprofiles/fit/collective_fit.h"
#include "hwprofiles/fit/fitting.h"
#include "hwprofiles/fit/nelder_mead.h"
#include "hwprofiles/fit/published_exchanges.h"
#include "hwprofiles/load/derive_rules.h"
#include "hwprofiles/records/record_ops.h"

namespace foldwise::hwprofiles {
namespace {

using config::ObjectReader;
using costmodel::CollectiveKind;

double us(Seconds time) { return time.to<double>() * 1e6; }
double gb_per_second(Bandwidth bandwidth) { return bandwidth.to<double>() / 1e9; }

void put_protocol(Sheet& sheet, const std::string& at, const costmodel::ProtocolCurve& curve, const Origin& origin) {
  sheet.put(at + "/base", us(curve.base), "us", origin);
  sheet.put(at + "/per_rank", us(curve.per_rank), "us", origin);
  sheet.put(at + "/bandwidth", gb_per_second(curve.bandwidth), "GB/s", origin);
}

std::string values_of(const costmodel::ProtocolCurve& curve) {
  return fmt::format("{:.4g} us + {:.3g} us/rank, {:.4g} GB/s", rounded(us(curve.base)), rounded(us(curve.per_rank)),
                     rounded(gb_per_second(curve.bandwidth)));
}

double relative_error(Seconds predicted, Seconds measured) {
  return std::abs(predicted.to<double>() - measured.to<double>()) / measured.to<double>();
}

/// Prints the errors of every published table that a network's fit is compared with.
void print_tables(const ProfileFit& fit, const costmodel::Network& network,
                  const std::vector<PublishedExchange>& exchanges) {
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> errors;  // First fitted, then held out.
  for (const PublishedExchange& exchange : exchanges) {
    auto& [training, held_out] = errors[exchange.table];
    (exchange.sample.held_out ? held_out : training)
        .push_back(relative_error(exchange_prediction(network, exchange.sample), exchange.sample.time));
  }
  for (const auto& [table, lists] : errors)
    print_row(fit.name, table, error_of(lists.first), error_of(lists.second), "");
}

}  // namespace

/// Collectives inside an NVLink domain, from aiconfigurator's nccl-tests. The profile states from how many GPUs on the
/// switch reduces. {"curves": "collectives", "gpu": as in aiconfigurator_kernels.json}
void fit_nccl(Fitting& fitting, ProfileFit& fit, ObjectReader& entry) {
  const auto& data =
      fitting.measurements("aiconfigurator_kernels.json").at("nccl").at("data").at(entry.required_string("gpu"));
  struct Kind {
    std::string name, key;
    CollectiveKind kind;
  };
  for (const Kind& collective : {Kind{"all_reduce", "all_reduce", CollectiveKind::kAllReduce},
                                 Kind{"all_gather", "all_gather", CollectiveKind::kAllGather},
                                 Kind{"reduce_scatter", "reduce_scatter", CollectiveKind::kReduceScatter},
                                 Kind{"all_to_all", "alltoall", CollectiveKind::kAllToAll}}) {
    std::vector<CollectiveSample> samples;
    std::int64_t largest = 0;
    for (const auto& item : data.at(collective.key).items()) {
      const std::int64_t ranks = std::stoll(item.key());
      largest = std::max(largest, ranks);
      for (const auto& row : item.value())
        samples.push_back({ranks, Bytes{row[0].get<double>()}, Seconds{row[1].get<double>() * 1e-6}});
    }
    const std::int64_t in_switch =
        fit.profile.hardware.network.nvlink.at(static_cast<std::size_t>(collective.kind)).in_switch_ranks;
    const CollectiveFit fitted = fit_collective(collective.kind, samples, in_switch);
    const Origin origin{
        "fitted", "AIC",
        note(fitted.training, fitted.validated) +
            fmt::format(" from 1 MiB on, {:.1f} and {:.1f} % below; nccl-tests of 2 to {} GPUs",
                        100 * fitted.training_small.median, 100 * fitted.validated_small.median, largest)};
    const std::string at = "/network/nvlink/" + collective.name;
    put_protocol(fit.sheet, at, fitted.curve.bulk, origin);
    put_protocol(fit.sheet, at + "/low_latency", fitted.curve.low_latency, origin);
    fit.sheet.put(at + "/own_share", gb_per_second(fitted.curve.own_share), "GB/s", origin);
    std::string values =
        fmt::format("bulk {}; low latency {}; own share {:.4g} GB/s", values_of(fitted.curve.bulk),
                    values_of(fitted.curve.low_latency), rounded(gb_per_second(fitted.curve.own_share)));
    if (in_switch > 0) {
      put_protocol(fit.sheet, at + "/in_switch", fitted.curve.in_switch, origin);
      values += "; in switch " + values_of(fitted.curve.in_switch);
    }
    print_row(fit.name, collective.name, fitted.training, fitted.validated, values);
    print_row(fit.name, collective.name + " < 1 MiB", fitted.training_small, fitted.validated_small, "");
  }
}

/// Products that are launched beside a collective: backward of column-parallel linears
/// (kernels/torch/linear_backward.py), whose collectives precede the product beside each in one hardware queue.
/// {"curves": "linear_backward", "kernels": file}
void fit_linear_backward(Fitting& fitting, ProfileFit& fit, ObjectReader& entry) {
  struct Setting {
    Measurement beside;
    std::map<std::string, Seconds> time;  ///< By way.
  };
  std::map<std::string, Setting> settings;
  for (const auto& line : fitting.lines(entry.required_string("kernels"))) {
    if (line.at("connections") != "1") continue;
    Measurement one;
    one.kernel = "linear_backward";
    for (const char* key : {"tp", "rows", "k", "n"}) one.shape[key] = line.at(key);
    one.samples_us = line.at("us").get<std::vector<double>>();
    Setting& setting = settings[setting_of(one)];
    setting.time[line.at("way")] = measured_time(one);
    if (line.at("way") == "beside") setting.beside = one;
  }
  CurveSamples curve{.name = "linear backward",
                     .pointer = "",
                     .parameters = {{"/contention/launched_rate", "1", 0.7, 0.01, 1.0}},
                     .samples = {}};
  for (const auto& [name, setting] : settings) {
    // What the parts take in sequence, of the sum of each alone, is no matter of contention.
    const auto& time = setting.time;
    const Seconds alone = time.at("all_gather") + time.at("dgrad") + time.at("reduce_scatter") + time.at("wgrad");
    const auto sequence = (time.at("sequence") / alone).to<double>();
    const Bytes bytes{2.0 * static_cast<double>(setting.beside.shape.at("rows") * setting.beside.shape.at("k"))};
    const auto beside = [tp = setting.beside.shape.at("tp"), bytes](const costmodel::Hardware& hw, CollectiveKind kind,
                                                                    Seconds collective, Seconds product) {
      costmodel::Op op;
      op.work = costmodel::CollectiveWork{
          kind, costmodel::Group::kTp, bytes, {.ranks = tp, .ranks_per_domain = hw.network.ranks_per_domain}};
      costmodel::CommunicationSum communication;
      communication.add(op, collective, hw);
      return costmodel::side_by_side({.time = product, .products = product}, communication, 0.0, hw).elapsed();
    };
    curve.samples.push_back(setting.beside);
    curve.predictors.emplace_back([=, times = time](const costmodel::Hardware& hw) {
      return sequence * (beside(hw, CollectiveKind::kAllGather, times.at("all_gather"), times.at("dgrad")) +
                         beside(hw, CollectiveKind::kReduceScatter, times.at("reduce_scatter"), times.at("wgrad")));
    });
  }
  const FittedCurve fitted = fit_curve(fit.hardware, fit.profile.json, curve, kFitSeed);
  print_fit(fit.name, fitted);
  fit.sheet.put(fitted.parameters.front().pointer, fitted.values.front(), "1",
                {"fitted", "linear-backward", note(fitted.training, fitted.validated), "2026-11"});
}

/// Fused dispatch and combine, from the published tables of some systems.
/// {"curves": "exchange", "systems": {name in published_kernels.json: profile}, "kernels": profile}
/// With "kernels", takes that profile's fitted exchange kernels and fits the rate of the NICs; else fits the kernels.
void fit_exchanges(Fitting& fitting, ProfileFit& fit, ObjectReader& entry) {
  const auto nvlink = [](const Profile& profile) {
    const auto& quantity = profile.json.at("network").at("nvlink_bandwidth");
    return Quantity{.value = quantity.at("value").get<double>(),
                    .unit = quantity.at("unit").get<std::string>(),
                    .kind = {},
                    .source = {},
                    .date = {},
                    .note = {}};
  };
  std::map<std::string, double> shares;  // NVLink rate relative to this profile's, by the names in the tables.
  std::string where;
  if (auto systems = entry.object("systems")) {
    for (const std::string& name : systems->keys()) {
      const std::string system = systems->required_string(name);
      shares[name] = system == fit.name ? 1.0 : ratio(nvlink(fitting.profile(system)), nvlink(fit.profile));
      where += (where.empty() ? "" : ", ") + name;
    }
    systems->finish();
  }
  const auto kernels = entry.string("kernels");
  std::vector<PublishedExchange> exchanges;
  std::vector<ExchangeSample> samples;
  for (PublishedExchange exchange : published_exchanges(fitting.measurements("published_kernels.json"))) {
    const auto share = shares.find(exchange.system);
    if (share == shares.end()) continue;
    exchange.sample.nvlink_share = share->second;
    samples.push_back(exchange.sample);
    exchanges.push_back(std::move(exchange));
  }
  costmodel::Network network = fit.profile.hardware.network;
  if (kernels) {
    const costmodel::Network& given = fitting.fitted(*kernels).hardware.network;
    network.exchange = given.exchange;
  }
  const ExchangeFit fitted = fit_exchange(network, samples, kernels.has_value());
  fit.hardware.network = fitted.network;
  print_tables(fit, fitted.network, exchanges);
  const Origin origin{
      "fitted", "HEP",
      note(fitted.training, fitted.held_out) + " (held out), DeepEP, HybridEP and Megatron Core's report on " + where};
  for (const auto& [name, kind] :
       {std::pair{"dispatch", CollectiveKind::kDispatch}, std::pair{"combine", CollectiveKind::kCombine}}) {
    const costmodel::ProtocolCurve& curve = fitted.network.nvlink.at(static_cast<std::size_t>(kind)).bulk;
    put_protocol(fit.sheet, std::string("/network/nvlink/") + name, curve, origin);
    print_row(fit.name, name, fitted.training, fitted.held_out, values_of(curve));
  }
  if (kernels) {
    const double nic = fitted.network.nic_exchange_efficiency;
    fit.sheet.put("/network/nic_exchange_efficiency", nic, "1", origin);
    print_row(fit.name, "NIC exchange", fitted.training, fitted.held_out, fmt::format("{:.3g} of the line rate", nic));
    return;
  }
  for (const auto& [name, dispatcher] : flex_dispatcher_names()) {
    const costmodel::ExchangeKernel& kernel = fitted.network.exchange.at(static_cast<std::size_t>(dispatcher));
    const std::string at = "/network/exchange/" + name;
    fit.sheet.put(at + "/rate_per_sm", gb_per_second(kernel.rate_per_sm), "GB/s", origin);
    fit.sheet.put(at + "/row_overhead", us(kernel.row_overhead), "us", origin);
    print_row(fit.name, name, fitted.training, fitted.held_out,
              fmt::format("{:.4g} GB/s and {:.3g} us a row on each SM", gb_per_second(kernel.rate_per_sm),
                          us(kernel.row_overhead)));
  }
}

/// All-to-all between nodes, from Megatron Core's report: fitted to its dispatch rows, with its combine rows held out.
/// {"curves": "nic_all_to_all", "system": as in published_kernels.json}
void fit_nic_all_to_all(Fitting& fitting, ProfileFit& fit, ObjectReader& entry) {
  costmodel::Network network = fit.profile.hardware.network;
  const std::string system = entry.required_string("system");
  const std::int64_t domain = network.ranks_per_domain;
  std::vector<PublishedAllToAll> rows;
  for (const PublishedAllToAll& row : published_all_to_alls(fitting.measurements("published_kernels.json")))
    if (row.system == system && row.ranks > domain) rows.push_back(row);
  const auto errors = [&](bool combine) {
    std::vector<double> list;
    for (const PublishedAllToAll& row : rows)
      if (row.combine == combine)
        list.push_back(std::abs(collective_time(network, CollectiveKind::kAllToAll, row.bytes,
                                                {.ranks = row.ranks, .ranks_per_domain = domain})
                                        .to<double>() /
                                    row.time.to<double>() -
                                1.0));
    return list;
  };
  const auto cost = [&](const std::vector<double>& logs) {
    network.nic_all_to_all_efficiency = std::min(1.0, std::exp(logs.front()));
    return error_of(errors(false)).mean;
  };
  network.nic_all_to_all_efficiency = std::exp(minimise(cost, {std::log(0.85)}, 0.05, 60).front());
  fit.sheet.put("/network/nic_all_to_all_efficiency", network.nic_all_to_all_efficiency, "1",
                {"fitted", "MCR", "foldwise-fit: dispatch latencies of EP16 to EP64 on " + system});
  print_row(fit.name, "NIC all_to_all", error_of(errors(false)), error_of(errors(true)),
            fmt::format("{:.3g} of the line rate", network.nic_all_to_all_efficiency));
}

}  // namespace foldwise::hwprofiles
