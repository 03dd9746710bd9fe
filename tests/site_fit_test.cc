#include "planner/calibrate/site_fit.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "costmodel/config/output_file.h"
#include "costmodel/step/step.h"
#include "hwprofiles/load/profile.h"
#include "planner/foldwise.h"
#include "planner/report/validation.h"

namespace foldwise::planner::site_fit_test {
namespace {

using ::testing::SizeIs;

double predicted(const Run& run, const costmodel::Hardware& hardware) {
  return costmodel::predict(costmodel::compose_step(run.model, run.options, hardware), false).step_time.to<double>();
}

std::vector<Run> h200_runs() { return load_runs(FW_ACCURACY_DIR "/runs/h200x2_runs.json").runs; }

/// The first `count` runs, as measured on a site with these factors.
std::vector<Run> measured_on(const std::vector<double>& factors, std::size_t count) {
  std::vector<Run> runs = h200_runs();
  runs.resize(count);
  for (Run& run : runs) {
    run.measured = {};
    run.measured.step_time_s = predicted(run, site_hardware(profile_of(run), factors));
  }
  return runs;
}

// Is a factor on the numbers of a profile what more of the resource is elsewhere?
TEST(SiteFit, FactorsAreMoreOfAResource) {
  const planner::Run run = h200_runs().back();
  const hwprofiles::Profile profile = profile_of(run);
  for (std::size_t i = 0; i < std::size(kSiteResources); ++i) {
    std::vector<double> factors(std::size(kSiteResources), 1.0);
    factors[i] = 1.02;
    EXPECT_NEAR(predicted(run, site_hardware(profile, factors)),
                predicted(run, with_more(run.hardware, kSiteResources[i], 1.02)), 1e-3)
        << to_string(kSiteResources[i]);
  }
}

// Is a slow host found from three steps, and nothing else blamed?
TEST(SiteFit, FindsASlowHost) {
  const SiteFit fit = fit_site(measured_on({0.6, 1.0, 1.0, 1.0}, 3), "mine", built_in_errors());
  EXPECT_TRUE(fit.parameters[0].told);
  EXPECT_NEAR(std::log(fit.parameters[0].factor), std::log(0.6), 2.0 * fit.parameters[0].sd);
  for (std::size_t i = 1; i < fit.parameters.size(); ++i) EXPECT_EQ(fit.parameters[i].factor, 1.0);
  for (std::size_t i = 0; i < fit.runs.size(); ++i)
    EXPECT_LT(std::abs(std::log(fit.after[i] / fit.measured[i])), std::abs(std::log(fit.before[i] / fit.measured[i])));
}

// Do runs that are as predicted leave a site as it is?
TEST(SiteFit, LeavesWhatIsAsPredicted) {
  const SiteFit fit = fit_site(measured_on({1.0, 1.0, 1.0, 1.0}, 4), "mine", built_in_errors());
  for (const SiteParameter& p : fit.parameters) EXPECT_FALSE(p.told) << to_string(p.resource);
  EXPECT_EQ(fit.before, fit.after);
}

// Does the profile that is written predict what the fit says, beside what the runs say themselves, with what is left
// unknown, so that intervals narrow?
TEST(SiteFit, ItsProfileIsASystem) {
  const std::vector<planner::Run> runs = measured_on({0.5, 1.0, 1.0, 1.0}, 3);
  const SiteFit fit = fit_site(runs, "mine", built_in_errors());
  const hwprofiles::Profile profile = hwprofiles::parse_profile(fit.profile, "mine.json");
  EXPECT_EQ(profile.provenance.at("/host/module").kind, "fitted");
  ASSERT_TRUE(profile.hardware.site.has_value());
  EXPECT_NEAR(std::sqrt(profile.hardware.site->covariance[0][0]), fit.parameters[0].sd, 1e-12);
  const std::string path = ::testing::TempDir() + "foldwise_site_fit.json";
  config::write_output_file(path, fit.profile);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    planner::Run there = runs[i];
    there.system_name = path;
    EXPECT_NEAR(predicted(there, profile_of(there).hardware), fit.after[i], 1e-9 * fit.after[i]);
  }
  planner::Run known = runs.front(), unknown = runs.front();
  known.hardware = profile.hardware;
  unknown.hardware = profile.hardware;
  unknown.hardware.site.reset();
  const Seconds step_time{predicted(known, known.hardware)};
  const auto narrow = step_time_interval(built_in_errors(), known, step_time),
             wide = step_time_interval(built_in_errors(), unknown, step_time);
  EXPECT_LT(narrow->high - narrow->low, 0.5 * (wide->high - wide->low));
}

// Do three runs of a host help to predict its others, or at least not harm, and are they near where the profile is of
// such hosts? On every host of our own runs that has five of them, with every third, every 31st of many, choice of
// three.
TEST(SiteFit, ThreeRunsOfAHostTellOfTheOthers) {
  constexpr const char* kOfTheRun = "host.step";  // Rows otherwise state prices of another system's host.
  struct HostRun {
    planner::Run run;
    hwprofiles::Profile profile;
    double seconds = 0.0;
    [[nodiscard]] double error(const costmodel::Hardware& hardware) const {
      return 100.0 * std::abs(predicted(run, hardware) / seconds - 1.0);
    }
  };
  std::map<std::string, std::vector<HostRun>> hosts;
  for (const char* file : {"h200x4_te_runs.json", "h200x2_runs.json", "h100_runs.json", "h100x2_runs.json"})
    for (planner::Run& run : load_runs(std::string(FW_ACCURACY_DIR "/runs/") + file).runs)
      if (const auto step = measured_step(run); step && foldwise::check(run).empty()) {
        nlohmann::json stated = nlohmann::json::object();
        if (const nlohmann::json said = run.json.value(hwprofiles::kChanges, stated); said.contains(kOfTheRun))
          stated[kOfTheRun] = said[kOfTheRun];
        run.json[hwprofiles::kChanges] = stated;
        hwprofiles::Profile profile = profile_of(run);
        run.hardware = profile.hardware;
        std::vector<HostRun>& of_host = hosts[run.json.value("host", "")];
        of_host.push_back({std::move(run), std::move(profile), step->seconds});
      }
  const auto mean = [](const std::vector<double>& list) {
    return std::accumulate(list.begin(), list.end(), 0.0) / static_cast<double>(list.size());
  };
  std::string told;
  std::vector<double> all_before, all_after, h200_after;
  for (const auto& [host, runs] : hosts) {
    if (runs.size() < 5) continue;
    std::vector<double> before, after;
    std::size_t choice = 0;
    for (std::size_t a = 0; a < runs.size(); ++a)
      for (std::size_t b = a + 1; b < runs.size(); ++b)
        for (std::size_t c = b + 1; c < runs.size(); ++c) {
          if (choice++ % (runs.size() > 10 ? 31 : 3) != 0) continue;
          const SiteFit fit = fit_site({runs[a].run, runs[b].run, runs[c].run}, "host", built_in_errors());
          for (std::size_t i = 0; i < runs.size(); ++i) {
            if (i == a || i == b || i == c) continue;
            before.push_back(runs[i].error(runs[i].profile.hardware));
            after.push_back(runs[i].error(site_hardware(runs[i].profile, fit.factors())));
          }
        }
    told += fmt::format("{}: {} runs, {:.1f} -> {:.1f} %; ", host, runs.size(), mean(before), mean(after));
    EXPECT_LE(mean(after), mean(before) + 1.5) << host;
    all_before.insert(all_before.end(), before.begin(), before.end());
    all_after.insert(all_after.end(), after.begin(), after.end());
    if (runs.front().run.system_name == "h200") h200_after.insert(h200_after.end(), after.begin(), after.end());
  }
  RecordProperty("hosts", told + fmt::format("all {:.1f} -> {:.1f} %, of H200 {:.1f} %", mean(all_before),
                                             mean(all_after), mean(h200_after)));
  EXPECT_LT(mean(all_after), mean(all_before));
  EXPECT_LE(mean(h200_after), 6.0);
}

TEST(SiteFit, WantsMeasuredSteps) {
  std::vector<planner::Run> runs = h200_runs();
  for (planner::Run& run : runs) run.measured = {};
  EXPECT_THROW(static_cast<void>(fit_site(runs, "mine", built_in_errors())), config::ConfigError);
}

}  // namespace
}  // namespace foldwise::planner::site_fit_test
