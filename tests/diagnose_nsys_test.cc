#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "planner/diagnose/diagnosis.h"
#include "planner/diagnose/nsys.h"
#include "tests/program_test.h"

namespace foldwise::planner::diagnose_nsys_test {
namespace {

using nlohmann::json;

std::string traced(const std::string& suffix) { return std::string(FW_TRACES_DIR) + "/llama-recompute" + suffix; }

class Nsys : public ProgramTest {
 protected:
  /// A copy of the export, changed by some SQL.
  std::string changed(const std::string& sql) {
    std::string path = write_text("changed.sqlite", contents(FW_NSYS_EXPORT));
    sqlite3* opened = nullptr;
    EXPECT_EQ(sqlite3_open(path.c_str(), &opened), SQLITE_OK);
    const std::unique_ptr<sqlite3, decltype(&sqlite3_close)> database(opened, &sqlite3_close);
    EXPECT_EQ(sqlite3_exec(database.get(), sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK) << sql;
    return path;
  }
};

// Does an export of Nsight Systems say the same of a step as the trace of PyTorch's profiler that it is made of, to the
// nanosecond (tests/traces/to_nsys.py)? Copies and fills have other names there.
TEST_F(Nsys, SaysTheSameAsPyTorchsTrace) {
  const auto run = load_run(traced(".json"));
  const std::vector<Trace> traces = read_trace(FW_NSYS_EXPORT);
  ASSERT_EQ(traces.size(), 1U);
  EXPECT_EQ(traces[0].device, "NVIDIA H200");
  EXPECT_EQ(traces[0].rank, -1);
  json exported = diagnosis_json(run, diagnose(run, traces));
  json profiled = diagnosis_json(run, diagnose(run, read_trace(traced(".rank0.json.gz"))));
  for (json* answer : {&exported, &profiled}) {
    answer->erase("trace");
    for (json& line : (*answer)["measured"]) line.erase("kernels");
  }
  EXPECT_EQ(exported, profiled);
}

// Is each process of a node a rank of its own? The export with all its events once more, of another process on GPU 1.
TEST_F(Nsys, EachProcessIsARank) {
  std::string sql;
  const auto copy = [&](const char* table, const char* change) {
    sql.append("CREATE TEMP TABLE other AS SELECT * FROM ").append(table).append("; UPDATE other SET ").append(change);
    sql.append("; INSERT INTO ").append(table).append(" SELECT * FROM other; DROP TABLE other;");
  };
  for (const char* table : {"CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"})
    copy(table, "deviceId = 1, globalPid = globalPid + (1 << 24)");
  for (const char* table : {"CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"})
    copy(table, "globalTid = globalTid + (1 << 24)");
  const std::vector<Trace> traces = read_nsys(changed(sql));
  ASSERT_EQ(traces.size(), 2U);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(traces[rank].rank, static_cast<std::int64_t>(rank));
    EXPECT_EQ(traces[rank].gpu.size(), traces[0].gpu.size());
    EXPECT_EQ(traces[rank].host.size(), traces[0].host.size());
    EXPECT_EQ(traces[rank].launches.size(), traces[0].launches.size());
  }
}

// Are steps known without ranges of NVTX, and kernels by their names and order?
TEST_F(Nsys, RangesMayBeMissing) {
  const std::string path = changed("DROP TABLE NVTX_EVENTS; DROP TABLE TARGET_INFO_GPU;");
  const std::vector<Trace> traces = read_nsys(path);
  EXPECT_TRUE(traces.at(0).host.empty());
  EXPECT_EQ(traces[0].gpu.size(), read_trace(FW_NSYS_EXPORT).at(0).gpu.size());
  const Outcome done = foldwise("diagnose " + traced(".json") + " --trace " + path);
  EXPECT_EQ(done.code, 2);  // The extract has one step, which only its range marks.
  EXPECT_THAT(done.err, testing::HasSubstr("expected a whole step"));
}

// Is each bad export one clear message, and exit code 2?
TEST_F(Nsys, BadExportsAreClearErrors) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"DROP TABLE StringIds", "found no table StringIds"},
      {"DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", "found no table CUPTI_ACTIVITY_KIND_KERNEL"},
      {"DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME", "found no table CUPTI_ACTIVITY_KIND_RUNTIME"},
      {"DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL", "expected kernels (nsys profile --trace=cuda,nvtx), found none"},
      {"ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN demangledName",
       "expected a column demangledName of the table CUPTI_ACTIVITY_KIND_KERNEL"},
      {"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1", "expected start and end in nanoseconds"}};
  for (const auto& [sql, message] : cases) {
    const std::string path = changed(sql);
    const Outcome done = foldwise("diagnose " + traced(".json") + " --trace " + path);
    EXPECT_EQ(done.code, 2) << message;
    EXPECT_THAT(done.err, testing::HasSubstr(message));
    EXPECT_THAT(done.err, testing::HasSubstr("changed.sqlite"));
    EXPECT_EQ(done.out, "");
  }
}

// Are only tables read, and no value of a size that no export has? A view or a virtual table may go on without end.
TEST_F(Nsys, WhatIsNoTableIsNotRead) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"DROP TABLE StringIds; CREATE VIEW StringIds AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM "
       "n) "
       "SELECT id, 'x' AS value FROM n",
       "found no table StringIds"},
      {"DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME; CREATE VIEW CUPTI_ACTIVITY_KIND_RUNTIME AS WITH RECURSIVE n(start) AS "
       "(SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start, start AS end, 1 AS globalTid, 1 AS correlationId "
       "FROM n",
       "found no table CUPTI_ACTIVITY_KIND_RUNTIME"},
      {"UPDATE StringIds SET value = zeroblob(50000000) WHERE id = (SELECT min(id) FROM StringIds)", "too big"}};
  for (const auto& [sql, message] : cases) {
    const Outcome done = foldwise("diagnose " + traced(".json") + " --trace " + changed(sql));
    EXPECT_EQ(done.code, 2) << message;
    EXPECT_THAT(done.err, testing::HasSubstr(message));
  }
}

// Is the database left alone: no file beside it is made, though its journal would ask for some, and one whose log still
// holds a part of it is refused?
TEST_F(Nsys, NothingIsMadeBesideTheDatabase) {
  const std::string path = changed("PRAGMA journal_mode = wal; CREATE TABLE more (x)");
  for (const char* end : {"-wal", "-shm"}) std::filesystem::remove(path + end);
  EXPECT_FALSE(read_nsys(path).empty());
  for (const char* end : {"-wal", "-shm", "-journal"}) EXPECT_FALSE(std::filesystem::exists(path + end)) << end;
  static_cast<void>(write_text("changed.sqlite-wal", "not empty"));
  EXPECT_THAT(foldwise("diagnose " + traced(".json") + " --trace " + path).err, testing::HasSubstr("is still written"));
}

// Are files that are cut short, or only begin as SQLite's do, an error too?
TEST_F(Nsys, DamagedFilesAreClearErrors) {
  const std::string whole = contents(FW_NSYS_EXPORT);
  for (const std::string& text : {whole.substr(0, 16), whole.substr(0, 5000), whole.substr(0, whole.size() / 2),
                                  whole.substr(0, 16) + std::string(8192, 'x')}) {
    const Outcome done = foldwise("diagnose " + traced(".json") + " --trace " + write_text("bad.sqlite", text));
    EXPECT_EQ(done.code, 2) << text.size();
    EXPECT_THAT(done.err, testing::HasSubstr("bad.sqlite"));
  }
}

}  // namespace
}  // namespace foldwise::planner::diagnose_nsys_test
