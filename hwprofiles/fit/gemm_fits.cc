// GEMMs from aiconfigurator's sweep, TransformerEngine's profile and our records, and grouped GEMMs in one kernel.
#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "hwprofiles/fit/fitting.h"
#include "hwprofiles/records/import.h"
#include "hwprofiles/records/reader.h"

namespace foldwise::hwprofiles {
namespace {

using config::ObjectReader;
using Json = nlohmann::ordered_json;

/// Smaller GEMMs are those of inference; training steps have thousands of rows.
constexpr std::int64_t kFewestRows = 512;

/// Unrounded value of a quantity in the sheet.
double exact(const Sheet& sheet, const std::string& pointer) {
  return sheet.exact().at(Json::json_pointer(pointer + "/value")).get<double>();
}

}  // namespace

/// Fits every curve that our records measure. {"curves": "records", "files": prefix of their names}
void fit_own_records(Fitting& fitting, ProfileFit& fit, ObjectReader& entry) {
  const std::string prefix = entry.required_string("files");
  const auto paths = fitting.records(prefix);
  if (paths.empty()) {
    entry.error("files", fmt::format("there are no records {}*.jsonl", prefix));
    return;
  }
  std::vector<Measurement> measurements;
  std::string citation, date;
  for (const std::filesystem::path& path : paths) {
    const Records records = read_records(path.string());
    // The profile's collectives come from nccl-tests on up to eight GPUs. Our own records only check them
    // (profiles_test).
    for (const Measurement& measurement : records.measurements)
      if (measurement.kernel != "collective") measurements.push_back(measurement);
    const Session& session = records.sessions.back();
    citation += fmt::format("{}hwprofiles/data/records/{} ({}, driver {})", citation.empty() ? "" : ", ",
                            path.filename().string(), session.device, session.driver);
    date = session.started.substr(0, 7);
  }
  const std::string source = prefix + "records";
  fit.sheet.cite(source, citation);
  costmodel::Hardware hardware = fit.profile.hardware;
  for (const FittedCurve& curve : fit_records(hardware, fit.profile.json, measurements, kFitSeed)) {
    print_fit(fit.name, curve);
    fit.sheet.put(curve, {"fitted", source, "foldwise-fit", date});
  }
}

/// Forward GEMMs in every format of aiconfigurator's sweep. {"curves": "gemm", "gpu": as in its file}
void fit_gemms(Fitting& fitting, ProfileFit& fit, ObjectReader& entry) {
  const std::vector<Measurement> sweep =
      import_linear_layers(fitting.measurements("aiconfigurator_kernels.json"), entry.required_string("gpu"));
  double launch = 0.0;
  for (const auto& format : math_format_names()) {
    const std::string& name = format.first;
    std::vector<Measurement> samples;
    for (const Measurement& sample : sweep)
      if (sample.of.at("format") == name && sample.shape.at("m") >= kFewestRows) samples.push_back(sample);
    if (samples.empty()) continue;
    std::vector<Parameter> parameters = gemm_parameters(name, samples);
    if (name != "bf16") {  // The launch times of quantisation and GEMM cannot be separated.
      std::erase_if(parameters, [](const Parameter& p) { return p.pointer.ends_with("/launch"); });
      quantity_setter(fit.profile.json, "/gemm/" + name + "/launch")(fit.hardware, launch * 1e-6);
      fit.sheet.put("/gemm/" + name + "/launch", launch, "us", {"fitted", "AIC", "as bf16"});
      parameters.push_back({"/memory/quantize/share", "1", 0.5, 0.01, 1.0, false});
      parameters.push_back({"/memory/quantize/launch", "us", 3.0, 0.01, 100.0, false});
    }
    const FittedCurve curve =
        fit_curve(fit.hardware, fit.profile.json, {"gemm " + name, "/gemm/" + name, parameters, samples}, kFitSeed);
    print_fit(fit.name, curve);
    fit.sheet.put(curve, {"fitted", "AIC", "foldwise-fit"});
    if (name == "bf16") launch = curve.values.at(1);
  }
}

/// Numbers that a sweep of forwards lacks, from rates that TransformerEngine measured on this GPU with operands ready:
/// dgrad and wgrad relative to forward, and forward of missing formats relative to another format.
/// {"curves": "gemm_phases", "table": of te_linear.json, "rows": {format: row}, "over": {format: swept format}}
void fit_gemm_phases(Fitting& fitting, ProfileFit& fit, ObjectReader& entry) {
  const Json& table = fitting.measurements("te_linear.json").at(entry.required_string("table"));
  const auto texts = [&](const char* key) {
    std::vector<std::pair<std::string, std::string>> list;
    if (auto reader = entry.object(key)) {
      for (const std::string& format : reader->keys()) list.emplace_back(format, reader->required_string(format));
      reader->finish();
    }
    return list;
  };
  const auto rows = texts("rows"), over = texts("over");
  const auto rates = [&](const std::string& format) -> const Json& {
    for (const auto& [name, row] : rows)
      if (name == format) return table.at(row);
    throw std::runtime_error(fit.name + ": /fit: no row of " + format);
  };
  const auto sustained = [](const std::string& format) { return "/gemm/" + format + "/sustained/"; };
  for (const auto& [format, swept] : over) {
    const double ratio = rates(format)[0].get<double>() / rates(swept)[0].get<double>();
    fit.sheet.put(sustained(format) + "forward", exact(fit.sheet, sustained(swept) + "forward") * ratio, "1",
                  {"assumed", "TE",
                   fmt::format("{}'s x {:.3f}, the ratio of rates that TransformerEngine measured with operands ready",
                               swept, ratio)});
  }
  for (const auto& [format, row] : rows)
    for (std::size_t phase = 1; phase < 3; ++phase) {
      const Json& rate = table.at(row);
      const double forward = exact(fit.sheet, sustained(format) + "forward");
      fit.sheet.put(sustained(format) + (phase == 1 ? "dgrad" : "wgrad"),
                    std::min(1.0, forward * (rate[phase].get<double>() / rate[0].get<double>())), "1",
                    {"assumed", "TE", "forward's x the ratio that TransformerEngine measured"});
    }
}

/// BF16 grouped GEMMs in one kernel, forward and dgrad, with equal rows per expert.
/// {"curves": "one_kernel_groups", "kernels": a file of grouped_mm.py}
void fit_one_kernel_groups(Fitting& fitting, ProfileFit& fit, ObjectReader& entry) {
  std::vector<Measurement> samples;
  for (const Json& line : fitting.lines(entry.required_string("kernels"))) {
    const bool forward = line.at("phase") == "forward";
    if (line.at("format") != "bf16" || line.at("distribution") != "balanced" || line.at("groups") == 1 ||
        (!forward && line.at("phase") != "dgrad"))
      continue;
    Measurement sample;
    sample.kernel = "grouped_gemm";
    sample.of = {{"format", "bf16"}, {"phase", line.at("phase")}, {"kernels", "one"}};
    for (const char* key : {"groups", "rows"}) sample.shape[key] = line.at(key).get<std::int64_t>();
    sample.shape["n"] = line.at(forward ? "n" : "k").get<std::int64_t>();
    sample.shape["k"] = line.at(forward ? "k" : "n").get<std::int64_t>();
    for (const Json& us : line.at("us")) sample.samples_us.push_back(us.get<double>());
    samples.push_back(std::move(sample));
  }
  const FittedCurve curve = fit_curve(fit.hardware, fit.profile.json,
                                      {.name = "one kernel bf16",
                                       .pointer = "",
                                       .parameters = {{"/gemm/bf16/one_kernel_per_group", "us", 1.0, 0.001, 1000.0},
                                                      {"/gemm/bf16/one_kernel_memory_share", "1", 0.8, 0.05, 1.0}},
                                       .samples = std::move(samples)},
                                      kFitSeed);
  print_fit(fit.name, curve);
  fit.sheet.put(curve, {"fitted", "grouped_mm", "foldwise-fit", "2026-11"});
}

}  // namespace foldwise::hwprofiles
