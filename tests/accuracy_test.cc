// Does `validate` say apart which rows set a number, count a problem once, and take readings back; and does the gate
// notice what moves?
#include "benchmarks/accuracy/accuracy.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/accuracy/readings.h"
#include "benchmarks/accuracy/roles.h"
#include "costmodel/config/diagnostics.h"
#include "planner/run/fields.h"

namespace foldwise::accuracy::accuracy_test {
namespace {

using namespace planner;

using nlohmann::json;

std::vector<RunList> measured_runs(const std::string& folder = "runs") {
  std::vector<RunList> lists;
  for (const auto& file : std::filesystem::directory_iterator(std::filesystem::path(FW_ACCURACY_DIR) / folder))
    if (file.path().extension() == ".json") lists.push_back(load_runs(file.path()));
  return lists;
}

using TrainingRun = Run;  // In a test, Run is a member function of GoogleTest.

/// Runs of a small model, from a file of runs.
Validation validated(const std::vector<json>& changes) {
  json runs = json::array();
  for (const json& change : changes) {
    json run = {{"model", "mixtral-8x7b"},
                {"system", "h200"},
                {"num_gpus", 16},
                {"seq_len", 4096},
                {"global_batch", 128},
                {"pp", 2},
                {"ep", 8},
                {"dispatcher", "alltoall"},
                {"recompute", {{"granularity", "none"}}},
                {"measured", {{"step_time_s", 10.0}}}};
    run.merge_patch(change);
    runs.push_back(run);
  }
  // One file per test, because tests run in parallel.
  const std::string path = testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() + ".json";
  std::ofstream(path) << runs;
  return validate({load_runs(path)});
}

Roles roles_of(const std::string& id) {
  Role role;
  role.number = "/host/module of h200";
  role.rows = {id};
  return {.list = {role}, .origins = {}};
}

const Accuracy& group(const std::vector<Accuracy>& groups, const std::string& name) {
  const auto found = std::ranges::find(groups, name, &Accuracy::group);
  if (found == groups.end()) throw std::out_of_range(name);
  return *found;
}

// Does every row that a role names exist, with a measurement that the role can be about, and is every other reading a
// value that its field takes?
TEST(Roles, NameRowsAndReadingsThatThereAre) {
  std::set<std::string> ids;
  for (const char* folder : {"runs", "hosts"})
    for (const RunList& list : measured_runs(folder))
      for (const TrainingRun& run : list.runs) ids.insert(run.id);
  for (const Role& role : built_in_roles().list) {
    for (const std::string& id : role.rows) EXPECT_TRUE(ids.contains(id)) << role.number << ": " << id;
    for (const auto& [key, value] : role.instead) {
      ASSERT_NE(find_field(key), nullptr) << key;
      EXPECT_EQ(mistake_in(*find_field(key), value), "") << key;
    }
  }
}

// Are the rows that set the energy per FLOP of Blackwell those that the command in benchmarks/accuracy/journal.md#power
// takes?
TEST(Roles, PowerIsOfTheRowsThatItsCommandTakes) {
  std::set<std::string> taken;
  for (const RunList& list : measured_runs())
    for (const TrainingRun& run : list.runs)
      if (run.file.ends_with("published_runs.json") && run.model_name.starts_with("llama") &&
          (run.system_name.find("b200") != std::string::npos || run.system_name.find("b300") != std::string::npos) &&
          (run.id.starts_with("simumax") || run.id.starts_with("mbridge-26")) &&
          run.options.layer.precision != costmodel::Precision::kNvfp4)
        taken.insert(run.id);
  const auto role = std::ranges::find_if(built_in_roles().list,
                                         [](const Role& r) { return r.number.starts_with("/power/per_flop"); });
  ASSERT_NE(role, built_in_roles().list.end());
  for (const std::string& id : role->rows) EXPECT_TRUE(taken.contains(id)) << id;
  for (const std::string& id : taken)  // Megatron refuses two of them, so they are not predicted and set nothing.
    EXPECT_TRUE(role->rows.contains(id) || id.find("llama3-70b-sft") != std::string::npos) << id;
}

// Is a mistake in a list of roles one message with its line?
TEST(Roles, MistakesAreNamed) {
  try {
    static_cast<void>(read_roles(R"({"roles": [{"number": "a", "how": "b", "where": "c",)"
                                 "\n"
                                 R"("quantity": "stepp_time", "rows": []}]})",
                                 "roles.json"));
    FAIL() << "two mistakes";
  } catch (const config::ConfigError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("roles.json:2: /roles/0/quantity: expected one of"),
                                             testing::HasSubstr("/roles/0/rows: expected ids of rows, found none")));
  }
}

// Does a problem that three releases measured count as one prediction, with the mean of its rows' errors and without
// letting one's error undo another's?
TEST(Accuracy, AProblemCountsOnce) {
  const Validation validation =
      validated({{{"id", "a"}, {"date_or_release", "1"}},
                 {{"id", "b"}, {"date_or_release", "2"}, {"measured", {{"step_time_s", 20.0}}}},
                 {{"id", "c"}, {"micro_batch", 2}}});
  ASSERT_EQ(validation.rows.size(), 3U);
  const auto error = [&](std::size_t row) { return *validation.rows[row].step_error_pct; };
  const Accuracy all = group(accuracy(validation, {}), "step time, all rows");
  EXPECT_EQ(all.rows, 3);
  EXPECT_EQ(all.predictions, 2);
  EXPECT_NEAR(all.mean, ((std::abs(error(0)) + std::abs(error(1))) / 2 + std::abs(error(2))) / 2, 1e-9);
  EXPECT_NEAR(all.bias, ((error(0) + error(1)) / 2 + error(2)) / 2, 1e-9);
}

// Is a row that set a number kept out of the errors of those that did not, for the quantity of that number only?
TEST(Accuracy, RowsThatSetANumberStandApart) {
  const json memory = {{"peak_memory_gib", 50.0}, {"peak_reserved_gib", 60.0}, {"step_time_s", 10.0}};
  const Validation validation = validated({{{"id", "fitted"}, {"micro_batch", 1}, {"measured", memory}},
                                           {{"id", "new"}, {"micro_batch", 2}, {"measured", memory}}});
  const std::vector<Accuracy> groups = accuracy(validation, roles_of("fitted"));
  EXPECT_EQ(group(groups, "step time, set a number").rows, 1);
  EXPECT_EQ(group(groups, "step time, untouched, stated, hopper moe").rows, 1);
  EXPECT_NEAR(group(groups, "step time, untouched").bias, *validation.rows[1].step_error_pct, 1e-9);
  EXPECT_EQ(group(groups, "allocated memory, untouched, published").rows, 2);
  EXPECT_EQ(group(groups, "reserved memory, untouched, published").rows, 2);
}

// Are rows that another program ran, and rows that leave out what Megatron has no default for or what was recomputed,
// counted apart, whatever their error, and nowhere among the stated ones?
TEST(Accuracy, RowsThatSayLittleOfTheModelStandApart) {
  const std::vector<Accuracy> groups =
      accuracy(validated({{{"id", "stated"}, {"micro_batch", 1}},
                          {{"id", "silent"}, {"measured", {{"step_time_s", 9.0}}}},
                          {{"id", "half silent"}, {"micro_batch", 1}, {"recompute", nullptr}},
                          {{"id", "other"}, {"micro_batch", 1}, {"defaults", "torchtitan"}}}),
               {});
  for (const char* name : {"stated", "micro-batch not stated", "recomputation not stated", "other software",
                           "stated, h200", "stated, hopper moe"})
    EXPECT_EQ(group(groups, std::string("step time, untouched, ") + name).rows, 1) << name;
}

// Is a reading that is taken back what the row would be without it, and is the spread of the errors over readings
// around the error as read?
TEST(Accuracy, ReadingsAreTakenBack) {
  const Validation validation =
      validated({{{"id", "a"}, {"etp", 2}, {"tp", 2}, {"pp", 1}, {"inferred", {{"etp", "its method"}}}},
                 {{"id", "b"}, {"overlaps", {{"dp_grad", false}}}}});
  Roles roles = roles_of("b");
  roles.list.front().instead = {{"overlaps.dp_grad", true}};
  const std::vector<VariedReading> varied = vary_readings(validation, roles);
  ASSERT_EQ(varied.size(), 2U);
  const auto without = std::ranges::find(varied, "etp not inferred", &VariedReading::what);
  ASSERT_NE(without, varied.end());
  EXPECT_EQ(without->rows.at(0).run.options.layer.etp, 1);  // Default of megatron-lm-0.16.
  const auto instead = std::ranges::find(varied, "overlaps.dp_grad true", &VariedReading::what);
  ASSERT_NE(instead, varied.end());
  EXPECT_TRUE(instead->rows.contains(1));
  const Accuracy all = group(accuracy(validation, roles, varied), "step time, all rows");
  EXPECT_LE(*all.least_mean, all.mean);
  EXPECT_GE(*all.most_mean, all.mean);
  EXPECT_LT(*all.least_mean, *all.most_mean);
}

// Is an inferred split of layers replaced by one whose busiest rank is less busy, and does the spread of the row's
// error name it?
TEST(Accuracy, AnInferredSplitIsBalanced) {
  const Validation validation = validated(
      {{{"id", "uneven"}, {"pipeline_layout", "Et*20|t*12L"}, {"inferred", {{"pipeline_layout", "a bad guess"}}}}});
  ASSERT_EQ(validation.rows.size(), 1U);
  const std::vector<VariedReading> varied = vary_readings(validation, {});
  ASSERT_EQ(varied.size(), 1U);
  EXPECT_LT(varied[0].rows.at(0).prediction.step_time.to<double>(),
            validation.rows[0].prediction.step_time.to<double>());
  const std::vector<ReadingSpread> spreads = reading_spreads(validation, varied);
  ASSERT_EQ(spreads.size(), 1U);
  EXPECT_EQ(spreads[0].by, "pipeline_layout balanced");
  EXPECT_DOUBLE_EQ(spreads[0].most, *validation.rows[0].step_error_pct);
  EXPECT_DOUBLE_EQ(spreads[0].moved, spreads[0].most - spreads[0].least);
}

// Does the gate pass what has not moved, and name the group and the statistic that has, rows that came and groups that
// went?
TEST(Accuracy, TheGateNoticesWhatMoves) {
  const std::string path = testing::TempDir() + "bounds.json";
  const std::vector<Accuracy> groups = accuracy(validated({{{"id", "a"}}, {{"id", "b"}, {"micro_batch", 2}}}), {});
  write_accuracy_bounds(groups, path);
  EXPECT_THAT(outside_bounds(groups, path), testing::IsEmpty());
  std::vector<Accuracy> moved = groups;
  moved.front().mean += 0.3;
  EXPECT_THAT(outside_bounds(moved, path),
              testing::ElementsAre(testing::HasSubstr(moved.front().group + ": expected a mean error of")));
  moved = groups;
  moved.front().rows += 1;
  EXPECT_THAT(outside_bounds(moved, path), testing::ElementsAre(testing::HasSubstr("expected 2 rows, 2 predictions")));
  moved = groups;
  moved.pop_back();
  EXPECT_THAT(outside_bounds(moved, path),
              testing::ElementsAre(testing::HasSubstr(groups.back().group + ": no rows of this group")));
}

// Are all mistakes of a file of bounds named, each with its field?
TEST(Accuracy, MistakesInBoundsAreNamed) {
  try {
    static_cast<void>(outside_bounds({}, FW_INVALID_INPUTS_DIR "/accuracy_bounds.json"));
    FAIL() << "three mistakes";
  } catch (const config::ConfigError& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("accuracy_bounds.json:2: /margins/memory: expected margins of"),
                               testing::HasSubstr("accuracy_bounds.json:3: /groups/step time/mean: expected a number"),
                               testing::HasSubstr("/groups/step time/means: unknown key")));
  }
}

/// Starts foldwise-accuracy. Returns its exit code and the output of both streams.
std::pair<int, std::string> started(const std::string& arguments) {
  const std::string out = testing::TempDir() + "accuracy-" + std::to_string(getpid()) + ".out";
  const int status = std::system(fmt::format("{} {} >{} 2>&1", FW_ACCURACY, arguments, out).c_str());
  std::ifstream file(out);
  return {WEXITSTATUS(status), {std::istreambuf_iterator<char>(file), {}}};
}

// Is a fit JSON where that is asked for, and are fields refused that no profile has?
TEST(AccuracyProgram, FitsFieldsOfProfiles) {
  const std::string runs = FW_ACCURACY_DIR "/runs/model_zoo_runs.json";
  const auto [code, text] = started(runs + " --fit /host/module --format json");
  ASSERT_EQ(code, 0) << text;
  EXPECT_EQ(json::parse(text)["groups"][0]["fields"], json::array({"/host/module"}));
  for (const char* field : {"/nope", "''", "name", "/host", "/host/module,/nope"}) {
    const auto [refused, message] = started(runs + " --fit " + field);
    EXPECT_EQ(refused, 2) << message;
    EXPECT_THAT(message, testing::HasSubstr("--fit: expected numbers of the profile"));
  }
}

// Is a table that the product is built with never replaced by an empty one?
TEST(AccuracyProgram, NothingPredictedWritesNothing) {
  const std::string list = testing::TempDir() + "no_runs.json", table = testing::TempDir() + "table.json";
  std::ofstream(list) << json{{"runs", json::array()}};
  std::ofstream(table) << "old";
  for (const char* option : {" --write-residuals ", " --write-bounds "}) {
    EXPECT_EQ(started(list + option + table).first, 2);
    std::string text;
    std::ifstream(table) >> text;
    EXPECT_EQ(text, "old");
  }
}

}  // namespace
}  // namespace foldwise::accuracy::accuracy_test
