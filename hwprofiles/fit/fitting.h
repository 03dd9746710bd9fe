#pragma once
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "costmodel/config/json.h"
#include "hwprofiles/fit/record_fit.h"
#include "hwprofiles/fit/sheet.h"
#include "hwprofiles/load/profile.h"

// Steps of foldwise-fit. The "fit" block of a profile lists its curves with the measurements to fit them to,
//   [{"curves": "gemm", "gpu": "H100-SXM5-80GB"}, {"curves": "collectives", "gpu": "H100-SXM5-80GB"}, ...]
// and the "derive" block the rules for other numbers (hwprofiles/load/derive.h). docs/measuring.md lists the steps.
namespace foldwise::hwprofiles {

/// A profile whose curves are being fitted.
struct ProfileFit {
  std::string name;
  config::Document document;
  Profile profile;               ///< As loaded.
  costmodel::Hardware hardware;  ///< Including the fits of earlier steps.
  Sheet sheet;
};

/// The profiles of a directory, and the measurements for their fits.
class Fitting {
 public:
  Fitting(std::filesystem::path kernels, std::filesystem::path records, std::filesystem::path systems);

  /// Stems of the directory's profiles, sorted.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  /// A profile after all steps of its "fit" block. Throws config::ConfigError: an unknown step, a mistake in a step, a
  /// profile that is missing or whose fit depends on itself.
  ProfileFit& fitted(const std::string& name);
  /// Fits all profiles, then sets the numbers of their "derive" blocks.
  void derive();

  /// A profile of the directory, as on disk.
  [[nodiscard]] Profile profile(const std::string& name) const;
  const nlohmann::ordered_json& measurements(const std::string& file);
  /// The lines of a JSON Lines file of the kernel measurements.
  [[nodiscard]] std::vector<nlohmann::ordered_json> lines(const std::string& file) const;
  /// Our own records of a device: files whose names start with `prefix`.
  [[nodiscard]] std::vector<std::filesystem::path> records(const std::string& prefix) const;

 private:
  std::filesystem::path kernels_, records_, systems_;
  std::vector<std::string> names_;
  std::map<std::string, ProfileFit> fits_;
  std::set<std::string> open_;  ///< Profiles whose steps are in progress.
  std::map<std::string, nlohmann::ordered_json> files_;
};

/// A kind of entry of a "fit" block. `entry` holds its other keys. The step reports unknown ones.
struct FitStep {
  const char* curves;
  void (*run)(Fitting& fitting, ProfileFit& fit, config::ObjectReader& entry);
};

// Steps, by file.
void fit_own_records(Fitting& fitting, ProfileFit& fit, config::ObjectReader& entry);
void fit_gemms(Fitting& fitting, ProfileFit& fit, config::ObjectReader& entry);
void fit_one_kernel_groups(Fitting& fitting, ProfileFit& fit, config::ObjectReader& entry);
void fit_gemm_phases(Fitting& fitting, ProfileFit& fit, config::ObjectReader& entry);
void fit_nccl(Fitting& fitting, ProfileFit& fit, config::ObjectReader& entry);
void fit_linear_backward(Fitting& fitting, ProfileFit& fit, config::ObjectReader& entry);
void fit_exchanges(Fitting& fitting, ProfileFit& fit, config::ObjectReader& entry);
void fit_nic_all_to_all(Fitting& fitting, ProfileFit& fit, config::ObjectReader& entry);
void fit_attention(Fitting& fitting, ProfileFit& fit, config::ObjectReader& entry);
void fit_software(Fitting& fitting, ProfileFit& fit, config::ObjectReader& entry);
void fit_router_products(Fitting& fitting, ProfileFit& fit, config::ObjectReader& entry);
void fit_step_shares(Fitting& fitting, ProfileFit& fit, config::ObjectReader& entry);
void fit_host(Fitting& fitting, ProfileFit& fit, config::ObjectReader& entry);
void fit_attention_window(Fitting& fitting, ProfileFit& fit, config::ObjectReader& entry);

/// Prints the header of foldwise-fit's table, and a row: errors in % and fitted values.
void print_header();
void print_row(const std::string& profile, const std::string& curve, const FitError& training,
               const FitError& validated, const std::string& values);
void print_fit(const std::string& profile, const FittedCurve& curve);
/// "foldwise-fit: 24 samples, median error 7.9 %, left out of the fit 9.3 %"
[[nodiscard]] std::string note(const FitError& training, const FitError& validated);

}  // namespace foldwise::hwprofiles
