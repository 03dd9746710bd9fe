#include "hwprofiles/fit/fitting.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <stdexcept>
#include <utility>

#include "hwprofiles/load/derive.h"

namespace foldwise::hwprofiles {
namespace {

using config::Diagnostics;
using config::Document;
using config::ObjectReader;
using Json = nlohmann::ordered_json;

constexpr std::array<FitStep, 14> kSteps{{{"records", fit_own_records},
                                          {"gemm", fit_gemms},
                                          {"gemm_phases", fit_gemm_phases},
                                          {"collectives", fit_nccl},
                                          {"linear_backward", fit_linear_backward},
                                          {"exchange", fit_exchanges},
                                          {"nic_all_to_all", fit_nic_all_to_all},
                                          {"attention", fit_attention},
                                          {"attention_window", fit_attention_window},
                                          {"software", fit_software},
                                          {"one_kernel_groups", fit_one_kernel_groups},
                                          {"step_shares", fit_step_shares},
                                          {"router_products", fit_router_products},
                                          {"host", fit_host}}};

Json read_json(const std::filesystem::path& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error(path.string() + ": cannot be read");
  return Json::parse(in);
}

std::string errors(const FitError& training, const FitError& validated) {
  if (training.samples + validated.samples == 0)
    return fmt::format("{:>5} {:>6} {:>6} {:>8} {:>6}", "-", "-", "-", "-", "-");
  return fmt::format("{:5} {:6.1f} {:6.1f} {:8.1f} {:6.1f}", training.samples, 100 * training.median,
                     100 * training.mean, 100 * validated.median, 100 * validated.mean);
}

}  // namespace

void print_header() {
  fmt::print("errors in % of the measured time; training: all samples, validated: samples left out of the fit\n\n");
  fmt::print("{:14} {:22} {:>5} {:>6} {:>6} {:>8} {:>6}\n", "", "", "", "train", "", "valid", "");
  fmt::print("{:14} {:22} {:>5} {:>6} {:>6} {:>8} {:>6}   fitted\n", "profile", "curve", "count", "median", "mean",
             "median", "mean");
}

void print_row(const std::string& profile, const std::string& curve, const FitError& training,
               const FitError& validated, const std::string& values) {
  fmt::print("{:14} {:22} {}   {}\n", profile, curve, errors(training, validated), values);
}

void print_fit(const std::string& profile, const FittedCurve& curve) {
  std::string values;
  for (std::size_t i = 0; i < curve.values.size(); ++i) {
    const Parameter& parameter = curve.parameters[i];
    const bool inside = !curve.pointer.empty() && parameter.pointer.starts_with(curve.pointer + "/");
    const std::string name = parameter.pointer.substr(inside ? curve.pointer.size() + 1 : 0);
    values += fmt::format("{}{} {:.4g}{}", values.empty() ? "" : ", ", name, rounded(curve.values[i]),
                          parameter.unit == "1" ? "" : " " + parameter.unit);
  }
  print_row(profile, curve.name, curve.training, curve.validated, values);
}

std::string note(const FitError& training, const FitError& validated) {
  return "foldwise-fit: " + errors_text(training, validated);
}

Fitting::Fitting(std::filesystem::path kernels, std::filesystem::path records, std::filesystem::path systems)
    : kernels_(std::move(kernels)), records_(std::move(records)), systems_(std::move(systems)) {
  for (const auto& file : std::filesystem::directory_iterator(systems_))
    if (file.path().extension() == ".json") names_.push_back(file.path().stem().string());
  std::sort(names_.begin(), names_.end());
}

Profile Fitting::profile(const std::string& name) const { return load_profile((systems_ / (name + ".json")).string()); }

const Json& Fitting::measurements(const std::string& file) {
  auto found = files_.find(file);
  if (found == files_.end()) found = files_.emplace(file, read_json(kernels_ / file)).first;
  return found->second;
}

std::vector<Json> Fitting::lines(const std::string& file) const {
  std::ifstream in(kernels_ / file);
  if (!in) throw std::runtime_error((kernels_ / file).string() + ": cannot be read");
  std::vector<Json> list;
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) list.push_back(Json::parse(line));
  return list;
}

std::vector<std::filesystem::path> Fitting::records(const std::string& prefix) const {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(records_)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(".jsonl")) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

ProfileFit& Fitting::fitted(const std::string& name) {
  if (const auto found = fits_.find(name); found != fits_.end()) {
    if (open_.contains(name)) throw std::runtime_error(name + ": its fit needs itself");
    return found->second;
  }
  const std::filesystem::path path = systems_ / (name + ".json");
  Document document = Document::load(path.string());
  Profile profile = this->profile(name);
  costmodel::Hardware hardware = profile.hardware;
  ProfileFit& fit = fits_
                        .try_emplace(name, ProfileFit{.name = name,
                                                      .document = std::move(document),
                                                      .profile = std::move(profile),
                                                      .hardware = std::move(hardware),
                                                      .sheet = Sheet(read_json(path))})
                        .first->second;
  open_.insert(name);
  Diagnostics diagnostics;
  ObjectReader top(fit.document, diagnostics);
  std::vector<std::pair<std::string, const FitStep*>> steps;
  steps.reserve(std::size(kSteps));
  for (const FitStep& step : kSteps) steps.emplace_back(step.curves, &step);
  for (ObjectReader& entry : top.objects("fit")) {
    if (!entry.has("curves")) entry.error("curves", "expected what is fitted; missing");
    const auto step = entry.choice("curves", steps);
    if (!step) diagnostics.throw_if_any();
    (*step)->run(*this, fit, entry);
    entry.finish();
    diagnostics.throw_if_any();
  }
  open_.erase(name);
  return fit;
}

void Fitting::derive() {
  Diagnostics diagnostics;
  std::map<std::string, std::vector<Derivation>> derivations;
  for (const std::string& name : names_) {
    const ProfileFit& fit = fitted(name);
    derivations[name] = read_derivations(fit.document, fit.profile.json, names_, diagnostics);
  }
  diagnostics.throw_if_any();
  Deriver deriver([&](const std::string& name) {
    PartialProfile partial;
    nlohmann::json tree = fitted(name).profile.json;  // Includes the numbers of its base.
    tree.merge_patch(nlohmann::json::parse(fitted(name).sheet.exact().dump()));
    for (const Derivation& derivation : derivations[name]) {
      const nlohmann::json::json_pointer pointer(derivation.field);
      if (tree.contains(pointer)) tree.at(pointer.parent_pointer()).erase(pointer.back());
      partial.derivations.emplace(derivation.field, derivation);
    }
    partial.tree = std::move(tree);
    return partial;
  });
  for (const std::string& name : names_) {
    Sheet& sheet = fitted(name).sheet;
    for (const Derivation& derivation : derivations[name]) {
      const Quantity quantity = deriver.at(name, derivation.field);
      sheet.put(derivation.field, quantity.value, quantity.unit,
                {quantity.kind, quantity.source, quantity.note, quantity.date});
      // A source key has the same meaning in every profile.
      const std::string& cited = derivation.source.empty() && !derivation.from.empty() ? derivation.from : name;
      if (const std::string citation = deriver.citation(cited, quantity.source); !citation.empty())
        sheet.cite(quantity.source, citation);
    }
  }
}

}  // namespace foldwise::hwprofiles
