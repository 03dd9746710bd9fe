#include "hwprofiles/fit/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>

#include "hwprofiles/fit/sheet.h"
#include "hwprofiles/load/profile.h"
#include "hwprofiles/load/systems.h"
#include "hwprofiles/records/record_ops.h"

namespace foldwise::hwprofiles {
namespace {

using costmodel::Hardware;
using Json = nlohmann::ordered_json;

constexpr const char* kSource = "records";

/// Marks every number of `tree` as assumed.
void assume_all(Json& tree, const std::string& base) {
  for (auto& item : tree.items()) {
    Json& node = item.value();
    if (!node.is_object()) continue;
    if (node.contains("value")) {
      node["kind"] = "assumed";
      node["note"] = "as " + base + ": not measured on this device";
    } else if (item.key() != "sources") {
      node.erase("fit");
      node.erase("step_share");  // that of the base device; here the measured share counts
      assume_all(node, base);
    }
  }
}

std::string topology_of(const Session& session) {
  if (session.hosts.empty()) return "";
  std::string text =
      fmt::format(", on {}, NVLink domains of {}", fmt::join(session.hosts, ", "), session.nvlink_domain);
  if (session.nics.empty()) return text;
  std::vector<std::string> nics;
  for (const auto& [name, port] : session.nics) nics.push_back(fmt::format("{} {}", name, port));
  return text + fmt::format(", NICs {}", fmt::join(nics, "; "));
}

double best_rate(const std::vector<Measurement>& measurements, double Measurement::*amount,
                 const std::function<bool(const Measurement&)>& counts) {
  double best = 0.0;
  for (const Measurement& measurement : measurements)
    if (counts(measurement)) best = std::max(best, measurement.*amount / measured_time(measurement).to<double>());
  return best;
}

/// Completes the profile of a CPU: its threads are the processors, its best FP32 GEMM rate is the peak of every format,
/// and its fastest memory-bound kernel sets the memory bandwidth. Removes what only GPUs have.
void describe_cpu(const Records& records, const Origin& measured, Sheet& sheet) {
  const double peak = best_rate(records.measurements, &Measurement::flops,
                                [](const Measurement& m) { return m.kernel == "gemm" && m.of.at("format") == "fp32"; });
  const double bandwidth = best_rate(records.measurements, &Measurement::bytes,
                                     [](const Measurement& m) { return m.kernel == "memory" || m.kernel == "copy"; });
  Json& json = sheet.json();
  for (const char* format : {"fp8", "fp8_block", "mxfp8", "nvfp4"}) {
    json["peak"].erase(format);
    json["gemm"].erase(format);
  }
  sheet.put("/sms", records.sessions.back().devices, "SM", measured);
  if (bandwidth > 0.0) sheet.put("/hbm/bandwidth", bandwidth / 1e9, "GB/s", measured);
  if (peak <= 0.0) return;
  sheet.put("/peak/fp32", peak / 1e12, "TFLOPS", measured);
  sheet.put("/peak/bf16", peak / 1e12, "TFLOPS", {"assumed", measured.source, "as fp32", measured.date});
}

}  // namespace

Calibration calibrate(const Records& records, const std::string& name, const std::string& base, std::uint64_t seed) {
  const Session& session = records.sessions.back();
  const bool same_device = system_of_device(session.device) == base;
  const bool is_cpu = session.program == "foldwise-kernels";
  const Origin measured{"measured", kSource, "", session.started.substr(0, 10)};

  Json start;
  if (same_device) {
    start = {{"name", name}, {"base", base}, {"sources", Json::object()}};
  } else {
    start = Json::parse(load_profile(base).json.dump());
    assume_all(start, base);
    start.erase("device");
    start["name"] = name;
    start["gpu"] = session.device;
  }
  Sheet sheet(std::move(start));
  std::string versions;
  for (const auto& [library, version] : session.libraries) versions += fmt::format(", {} {}", library, version);
  const std::string file_name = std::filesystem::path(records.file).filename().string();  // Folders may name users.
  sheet.cite(kSource,
             fmt::format("{}: {} on {} x {}{}{}{}", file_name, session.program, session.devices, session.device,
                         session.driver.empty() ? "" : ", driver " + session.driver, versions, topology_of(session)));
  if (is_cpu) describe_cpu(records, measured, sheet);

  // The fit starts from the profile written so far.
  const Profile profile = parse_profile(sheet.text(), name);
  Hardware hw = profile.hardware;
  Calibration result{fit_records(hw, profile.json, records.measurements, seed), base, ""};
  if (result.curves.empty())
    throw config::ConfigError(
        {{{records.file, 0, ""},
          "expected more settings of a kernel than its curve has parameters: of a collective messages of two sizes "
          "from 1 MiB on, or of three where one is of 16 MiB or less"}});
  for (const FittedCurve& curve : result.curves) {
    sheet.put(curve, {"fitted", kSource, "", measured.date});
    if (is_cpu && curve.name == "gemm fp32") {
      for (std::size_t i = 0; i < curve.parameters.size(); ++i) {
        std::string pointer = curve.parameters[i].pointer;
        pointer.replace(pointer.find("fp32"), 4, "bf16");
        sheet.put(pointer, curve.values[i], curve.parameters[i].unit, {"assumed", kSource, "as fp32", measured.date});
      }
    }
  }
  result.profile = sheet.text();
  return result;
}

}  // namespace foldwise::hwprofiles
