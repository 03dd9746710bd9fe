#include "kernels/cuda/world.h"

#include <unistd.h>

#include <array>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <utility>

#include "hwprofiles/records/launched.h"

#ifdef FW_HAVE_MPI
#include <mpi.h>
#endif

namespace foldwise::kernels {
namespace {

constexpr std::size_t kHostName = 256;  // bytes: Linux allows 64, domain names 253

std::array<char, kHostName> host_name() {
  std::array<char, kHostName> name{};
  gethostname(name.data(), name.size() - 1);
  return name;
}

std::string first_line(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace

World::World(int rank, int size, std::unique_ptr<Members> members)
    : rank_(rank), size_(size), members_(std::move(members)) {}

#ifdef FW_HAVE_MPI

struct World::Members {
  MPI_Comm comm = MPI_COMM_NULL;
};

World::World() {
  const hwprofiles::Launched asked = hwprofiles::launched();
  if (asked.size == 1) return;
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  members_ = std::make_unique<Members>(Members{MPI_COMM_WORLD});
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  const bool met = size_ == asked.size && provided >= MPI_THREAD_SERIALIZED;
  if (met) return;
  MPI_Finalize();
  throw std::runtime_error("one of " + std::to_string(asked.size) + " processes, of which MPI finds " +
                           std::to_string(size_) +
                           ": start them by the MPI that this program is linked to, or by srun --mpi=pmix");
}

World::~World() {
  if (members_ == nullptr) return;
  const bool fails = std::uncaught_exceptions() > 0;
  if (members_->comm == MPI_COMM_WORLD) {
    if (fails) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
  } else if (!fails) {
    MPI_Comm_free(&members_->comm);
  }
}

std::unique_ptr<World> World::first(int size) const {
  if (members_ == nullptr) return std::unique_ptr<World>(new World(0, 1, nullptr));
  auto some = std::make_unique<Members>();
  MPI_Comm_split(members_->comm, rank_ < size ? 0 : MPI_UNDEFINED, rank_, &some->comm);
  if (rank_ >= size) return nullptr;
  return std::unique_ptr<World>(new World(rank_, size, std::move(some)));
}

void World::barrier() const {
  if (members_ != nullptr) MPI_Barrier(members_->comm);
}

void World::broadcast(void* data, std::size_t bytes) const {
  if (members_ != nullptr) MPI_Bcast(data, static_cast<int>(bytes), MPI_BYTE, 0, members_->comm);
}

void World::take_largest(std::vector<double>& values) const {
  if (members_ != nullptr)
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX, members_->comm);
}

std::vector<std::string> World::hosts() const {
  const std::array<char, kHostName> mine = host_name();
  std::vector<std::array<char, kHostName>> all(static_cast<std::size_t>(size_), mine);
  if (members_ != nullptr)
    MPI_Allgather(mine.data(), kHostName, MPI_CHAR, all.data(), kHostName, MPI_CHAR, members_->comm);
  std::vector<std::string> names;
  names.reserve(all.size());
  for (const std::array<char, kHostName>& name : all) names.emplace_back(name.data());
  return names;
}

#else

struct World::Members {};

World::World() {
  if (hwprofiles::launched().size > 1)
    throw std::runtime_error("one of several processes, and this program was built without MPI and NCCL");
}
World::~World() = default;
std::unique_ptr<World> World::first(int) const { return std::unique_ptr<World>(new World(0, 1, nullptr)); }
void World::barrier() const {}
void World::broadcast(void*, std::size_t) const {}
void World::take_largest(std::vector<double>&) const {}
std::vector<std::string> World::hosts() const { return {host_name().data()}; }

#endif

std::map<std::string, std::string> nics(const std::filesystem::path& adapters) {
  std::map<std::string, std::string> found;
  std::error_code none;
  for (const auto& adapter : std::filesystem::directory_iterator(adapters, none))
    for (const auto& port : std::filesystem::directory_iterator(adapter.path() / "ports", none)) {
      if (!first_line(port.path() / "state").ends_with("ACTIVE")) continue;
      std::string name = adapter.path().filename().string();
      if (const std::string number = port.path().filename().string(); number != "1") name += "/" + number;
      found[name] = first_line(port.path() / "rate") + ", " + first_line(port.path() / "link_layer");
    }
  return found;
}

}  // namespace foldwise::kernels
