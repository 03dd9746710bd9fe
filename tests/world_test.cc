// Do processes of several hosts measure as one? Three that mpirun starts here, with times of a network that is known
// (stand_in_kernels.cc); what NCCL moves needs a device each.
#include "kernels/cuda/world.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "hwprofiles/load/profile.h"
#include "hwprofiles/records/launched.h"
#include "hwprofiles/records/reader.h"
#include "tests/program_test.h"

namespace foldwise {
namespace {

using testing::HasSubstr;

class World : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    std::filesystem::create_symlink(FW_STAND_IN, folder_ / "foldwise-kernels-cuda");
  }
  /// Runs a copy of the program that has the stand-in beside it.
  [[nodiscard]] Outcome calibrate(int processes, const std::string& arguments) const {
    const std::string program = path("foldwise");
    std::filesystem::copy_file(FW_FOLDWISE, program, std::filesystem::copy_options::skip_existing);
    const int code =
        shell("env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " FW_MPIEXEC " --oversubscribe -n " +
              std::to_string(processes) + " " + program + " calibrate " + arguments + " >" + path("out") + " 2>" +
              path("err") + " </dev/null");
    return {code, contents(path("out")), contents(path("err"))};
  }
};

// Is there one file of records that says what was measured together, one answer, and one profile with every tier?
TEST_F(World, ThreeProcessesMakeOneProfile) {
  const std::string out = path("mine"), command = "--device cuda --nvlink-domain 8 --format json --out " + out;
  const Outcome outcome = calibrate(3, command);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const nlohmann::json answer = nlohmann::json::parse(outcome.out);  // from the first process alone
  const hwprofiles::Records records = hwprofiles::read_records(out + "/records.jsonl");
  ASSERT_EQ(records.sessions.size(), 1U);
  EXPECT_EQ(records.sessions[0].hosts, (std::vector<std::string>{"host0", "host1", "host2"}));
  EXPECT_EQ(records.sessions[0].devices, 12);
  EXPECT_EQ(records.sessions[0].nvlink_domain, 8);
  // 2 and 4 devices of a host; 1, 2 and 4 of each of two and three hosts; the first two share NVLink.
  std::map<std::pair<std::int64_t, std::int64_t>, int> groups;
  for (const hwprofiles::Measurement& m : records.measurements)
    ++groups[{m.shape.at("ranks"), m.shape.contains("ranks_per_domain") ? m.shape.at("ranks_per_domain") : 0}];
  std::vector<std::pair<std::int64_t, std::int64_t>> names;
  names.reserve(groups.size());
  for (const auto& [group, settings] : groups) names.push_back(group);
  EXPECT_EQ(names,
            (std::vector<std::pair<std::int64_t, std::int64_t>>{{2, 0}, {3, 2}, {4, 0}, {6, 4}, {8, 0}, {12, 8}}));

  const hwprofiles::Profile profile = hwprofiles::load_profile(answer["profile"]);
  const costmodel::Network& network = profile.hardware.network;
  EXPECT_NEAR(network.nic_efficiency, 0.71, 0.01);
  EXPECT_NEAR(network.nic_all_to_all_efficiency, 0.55, 0.01);
  EXPECT_NEAR(network.nic_latency.to<double>(), 23e-6, 1e-6);
  EXPECT_NEAR(network.nic_low_latency.to<double>(), 8e-6, 1e-6);
  EXPECT_EQ(profile.provenance.at("/network/nvlink/all_gather/bandwidth").kind, "fitted");
  EXPECT_THAT(profile.json["sources"]["records"].get<std::string>(),
              HasSubstr("on host0, host1, host2, NVLink domains of 8, NICs mlx5_0 400 Gb/sec (4X NDR), InfiniBand"));

  const std::string before = contents(out + "/records.jsonl");
  EXPECT_EQ(calibrate(3, command).code, 0);
  EXPECT_EQ(contents(out + "/records.jsonl"), before);  // nothing is measured twice
}

// Commands that measure one machine, or nothing, refuse several processes.
TEST_F(World, OnlyGpusAreMeasuredTogether) {
  const Outcome outcome = calibrate(2, "--device cpu --out " + path("mine"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("one of 2 processes: only --device cuda measures with several"));
  EXPECT_FALSE(std::filesystem::exists(path("mine")));
}

/// Sets an environment variable for a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

// Are processes that a launcher started told from the shell of a job, and from what cannot be?
TEST(Launched, IsReadFromTheEnvironment) {
  const auto expect = [](int rank, int size) {
    EXPECT_EQ(hwprofiles::launched().rank, rank);
    EXPECT_EQ(hwprofiles::launched().size, size);
  };
  expect(0, 1);
  const Variable of_job("SLURM_PROCID", "1");
  expect(0, 1);
  const Variable of_step("SLURM_STEP_NUM_TASKS", "4");
  expect(1, 4);
  const Variable of_mpich("PMI_RANK", "5"), absurd("PMI_SIZE", "2");
  expect(1, 4);
  const Variable of_mpirun("OMPI_COMM_WORLD_RANK", "6"), by_mpirun("OMPI_COMM_WORLD_SIZE", "7");
  expect(6, 7);
}

// Are a host's active ports named, those of two-port adapters too, and none where there is no adapter?
TEST_F(World, NamesTheHostsNics) {
  const auto port = [&](const std::string& name, const char* state, const char* rate, const char* layer) {
    std::filesystem::create_directories(folder_ / "ib" / name);
    for (const auto& [file, text] : {std::pair{"state", state}, {"rate", rate}, {"link_layer", layer}})
      (void)write_text("ib/" + name + "/" + file, std::string(text) + '\n');
  };
  port("mlx5_0/ports/1", "4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand");
  port("mlx5_1/ports/1", "1: DOWN", "10 Gb/sec (4X SDR)", "InfiniBand");
  port("mlx5_2/ports/2", "4: ACTIVE", "200 Gb/sec (4X HDR)", "Ethernet");
  EXPECT_EQ(kernels::nics(folder_ / "ib"),
            (std::map<std::string, std::string>{{"mlx5_0", "400 Gb/sec (4X NDR), InfiniBand"},
                                                {"mlx5_2/2", "200 Gb/sec (4X HDR), Ethernet"}}));
  EXPECT_TRUE(kernels::nics(folder_ / "none").empty());
}

}  // namespace
}  // namespace foldwise
