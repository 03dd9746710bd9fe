#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "planner/run/release.h"
#include "tests/read_script.h"

// What the programs around a training, and its machine, say of it.
namespace foldwise::planner::launchers_test {
namespace {

using script_test::read;
using script_test::value_of;

class Launchers : public script_test::Scripts {};

// Have the steps of a job, Open MPI's and Hydra's options, wrappers and variables the number of ranks that they start,
// each with its own meaning of -n and -N?
TEST_F(Launchers, CountRanksAsLaunchersDo) {
  const std::string run = " python x.py --num-layers 7\n";
  const auto job = [&](const char* launcher) {
    return fmt::format("#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n{}{}", launcher, run);
  };
  for (const auto& [text, ranks] : std::map<std::string, int>{
           {job("mpirun -np 32 -N 8"), 32},
           {job("mpirun -np 16"), 16},
           {job("srun -N2 -n16"), 16},
           {job("srun -N 2"), 16},
           {job("srun numactl -N 1 -m 1"), 32},
           {job("srun") + "#SBATCH --nodes=16\n", 32},
           {"#!/bin/bash\n#SBATCH -N4\n#SBATCH --gres=gpu:8,tmpdisk:100\nsrun torchrun --nnodes $SLURM_NNODES "
            "--nproc-per-node $SLURM_GPUS_ON_NODE x.py --num-layers 7",
            32},
           {"srun -n32" + run, 32},
           {"jsrun -n 4 -a 8 -g 8" + run, 32},
           {"export WORLD_SIZE=32\nsrun --ntasks=4 --ntasks-per-node=1 bash -c 'for r in 0 1; do LOCAL_RANK=$r python "
            "x.py --num-layers 7 & done; wait'",
            32},
           {"deepspeed --num_nodes 2 --num_gpus 8 x.py --num-layers 7", 16},
           {"export PET_NNODES=2 PET_NPROC_PER_NODE=8\ntorchrun x.py --num-layers 7", 16},
           {"kubectl exec w-0 -- torchrun --nproc-per-node 8 --nnodes 2 x.py --num-layers 7", 16},
           {"docker exec megatron bash -c 'torchrun --nproc-per-node 4 x.py --num-layers 7'", 4},
           {"tmux new-session -d -s t 'torchrun --nproc-per-node 4 x.py --num-layers 7'", 4},
           {"tmux send-keys -t t 'torchrun --nproc-per-node 4 x.py --num-layers 7' Enter", 4},
           {"screen -dmS t bash -c 'torchrun --nproc-per-node 4 x.py --num-layers 7'", 4},
           {"pdsh -w n[1-2] 'torchrun --nproc-per-node 8 --nnodes 2 x.py --num-layers 7'", 16}}) {
    const LaunchCommand command = read(text);
    EXPECT_EQ(value_of(command, "--num-layers"), "7") << text;
    EXPECT_EQ(command.num_gpus, ranks) << text;
  }
}

// Have torchrun and probes the GPUs that the job, the container or the variable shows, and is the variable asked for
// where nobody sets it?
TEST_F(Launchers, CountVisibleGpus) {
  const auto ranks = [](const std::string& options, const std::string& before) {
    return read(before + "torchrun --nproc-per-node " + options + " x.py --num-layers 7").num_gpus;
  };
  const std::string visible = "export CUDA_VISIBLE_DEVICES=0,1,2,3\n",
                    container = "docker run --gpus '\"device=0,1\"' img ";
  EXPECT_EQ(ranks("gpu", visible), 4);
  EXPECT_EQ(ranks("$(python3 -c 'import torch; print(torch.cuda.device_count())')", visible), 4);
  EXPECT_EQ(ranks("auto", container), 2);
  EXPECT_EQ(ranks("gpu", "#!/bin/bash\n#SBATCH --gres=gpu:4\n"), 4);
  EXPECT_EQ(ranks("$(nvidia-smi -L | wc -l)", ""), 8);
  const std::string count = "GPUS=$(echo $CUDA_VISIBLE_DEVICES | tr ',' '\\n' | wc -l)\n";
  EXPECT_EQ(ranks("$GPUS", visible + count), 4);
  const LaunchCommand unset = read(count + "torchrun --nproc-per-node $GPUS x.py --num-layers 7");
  EXPECT_FALSE(unset.num_gpus.has_value());
  EXPECT_EQ(unset.ranks_of, "$CUDA_VISIBLE_DEVICES");
  EXPECT_THAT(unset.notes, testing::IsEmpty());
  EXPECT_EQ(ranks("${GPUS:-4}", ""), 4);
}

// Do probes of the cluster's machine see the asked system and release?
TEST_F(Launchers, SeeTheMachineOfTheSystem) {
  const auto layers = [](const std::string& value, const std::string& system) {
    ImportRequest request;
    request.system = system;
    request.release = find_release("0.19.0");
    return value_of(
        read("V=" + value + "\ntorchrun --nproc-per-node 8 x.py --micro-batch-size 1 --num-layers $V", request),
        "--num-layers");
  };
  EXPECT_EQ(layers("$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -1)", "h200"), "143771");
  EXPECT_EQ(layers("$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader -i 0)", "b200"), "10.0");
  EXPECT_EQ(layers("$(nvidia-smi --query-gpu=name --format=csv | tail -n +2 | wc -l)", "h100"), "8");
  EXPECT_EQ(layers("$(python3 -c 'import torch; print(torch.cuda.get_device_capability()[0])')", "a100"), "8");
  EXPECT_EQ(layers("$(pip show transformer-engine | awk '/Version/{print $2}')", "h100"), "2.17.1");
  EXPECT_EQ(layers("$(python3 -c 'import apex, transformer_engine as te; print(te.__version__)')", "h100"), "2.17.1");
  EXPECT_EQ(layers("$(python3 -c 'import no_such' 2>/dev/null || echo none)", "h100"), "none");
}

// Has a start the variables that its launcher gives it?
TEST_F(Launchers, GiveTheVariablesOfTheirLauncher) {
  const std::string run = " python x.py --num-layers 7";
  for (const std::string& text :
       std::vector<std::string>{"srun --export=ALL,A=1" + run, "#!/bin/bash\n#SBATCH -N 2 --export=ALL,A=1\nsrun" + run,
                                "mpirun -genv A 1 -n 32 -ppn 8" + run, "mpirun -np 4 -x A=1" + run,
                                "docker run -e A=1 img" + run, "docker run -eA=1 img" + run})
    EXPECT_EQ(read(text).environment["A"], "1") << text;
}

}  // namespace
}  // namespace foldwise::planner::launchers_test
