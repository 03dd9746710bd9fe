#include "planner/launch/script.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <sstream>

#include "planner/launch/import.h"
#include "planner/launch/launch_command.h"
#include "tests/read_script.h"
#include "tests/sandbox.h"

namespace foldwise::planner::script_test {
namespace {

const std::string scripts_folder = std::string(FW_LAUNCHES_DIR) + "/scripts";
// Is what a script starts what bash starts of it? Each was once read wrong: the last arm of a case, a list of &&, a
// function that nobody calls, a loop, a file that is sourced, a line cut inside of a word, an echoed command.
TEST_F(Scripts, StartWhatBashStarts) {
  for (const auto& [file, tp] : std::map<std::string, std::string>{{"and", "2"},
                                                                   {"case", "2"},
                                                                   {"cont", "2"},
                                                                   {"echoed", "2"},
                                                                   {"func", "2"},
                                                                   {"redirect2", "2"},
                                                                   {"source", "8"},
                                                                   {"while", "4"},
                                                                   {"positional", "2"},
                                                                   {"conditions", "(none)"}}) {
    ImportRequest request;
    request.folder = scripts_folder;
    const LaunchCommand command = read(contents(fmt::format("{}/{}.sh", scripts_folder, file)), request);
    EXPECT_EQ(value_of(command, "--tensor-model-parallel-size"), tp) << file;
    EXPECT_EQ(command.num_gpus, 8) << file;
  }
  EXPECT_THAT(message_of(contents(scripts_folder + "/exit.sh")),
              testing::HasSubstr("found nothing that starts training"));
}

// Are conditions of every kind decided as bash decides them?
TEST_F(Scripts, DecideConditions) {
  for (const std::string line :
       {R"(A=1; B=2; if [[ $A == 1 && $B == 2 ]]; then X="--qk-layernorm"; fi)",
        R"(A=1; if [ $A = 2 ] || [ $A = 1 ]; then X="--qk-layernorm"; fi)",
        R"(A=1; if ! [ $A = 2 ]; then X="--qk-layernorm"; fi)",
        R"(A=1; B=1; if [ $A = 1 -a $B = 1 ]; then X="--qk-layernorm"; fi)",
        R"(A=abc; if [[ $A =~ ^a ]]; then X="--qk-layernorm"; fi)",
        R"(TP=2; if (( TP > 1 )); then X="--qk-layernorm"; fi)",
        R"(X=; for t in a b; do [ $t = b ] && X+=--qk-layernorm; done)",
        R"(if [ -d /data ]; then echo hi; fi; X=--qk-layernorm)",
        R"(if [ "$#" -gt 9 ]; then echo usage; exit 1; fi; X=--qk-layernorm)",
        R"(X=$(echo "--qk-layer" | sed s/$/norm/))",
        R"(eval "X=--qk-layernorm")",
        R"(if [ ! -f /data/tokenizer.model ]; then exit 1; fi; X=--qk-layernorm)",
        R"([[ -d /data/x ]] || { echo "no data"; exit 1; }; X=--qk-layernorm)",
        R"([ -n "${BASE:-}" ] || { echo "BASE is not set"; exit 1; }; X=--qk-layernorm)",
        R"(set -e; N=$(pip list | grep megatron); ulimit -n 65535; X=--qk-layernorm)",
        R"(set -e; source /opt/venv/bin/activate; cd /workspace/Megatron-LM; X=--qk-layernorm)",
        R"(if [ $# -lt 2 ]; then echo usage; exit 1; fi; X=--qk-layernorm)",
        R"(if [ $(nvidia-smi -L | wc -l) = 8 ]; then X=--qk-layernorm; fi)",
        R"(if [ $(python3 -c 'print(2 + 2)') = 4 ]; then X=--qk-layernorm; fi)",
        R"(until curl -s http://master:8265; do sleep 5; done; X=--qk-layernorm)"})
    EXPECT_EQ(value_of(read(fmt::format("{}\n{}$X", line, training_start)), "--qk-layernorm"), "") << line;
  EXPECT_EQ(
      value_of(read("T=2; S=$(( T > 1 ? 3 : 0 )); X=\"--num-experts $S\"\n" + training_start + "$X"), "--num-experts"),
      "3");
}

// Is a number that stands for a variable which the script cannot do without never taken for its value, for the
// launcher's words and derived numbers neither?
TEST_F(Scripts, TakeNoFillerForAValue) {
  const std::string text =
      "N=${NODES:?}\ntorchrun --nnodes=$N --nproc_per_node 8 pretrain_gpt.py --num-layers 32 "
      "--micro-batch-size 1 --global-batch-size $((N * 16))";
  const LaunchCommand command = read(text);
  EXPECT_FALSE(command.num_gpus.has_value());
  EXPECT_EQ(value_of(command, "--global-batch-size"), "$NODES");
}

// Is a start found behind the programs that people put before it, with the number of ranks and the environment that
// they say?
TEST_F(Scripts, FindStartsBehindLaunchers) {
  const std::string run = "python -u pretrain_gpt.py --num-layers 7";
  for (const auto& [text, ranks] : std::map<std::string, int>{
           {"#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\nsrun " + run, 32},
           {"#!/bin/bash\n#SBATCH -N 2\n#SBATCH --gres=gpu:h100:4\nsrun -l bash -c \"" + run + "\"", 8},
           {"#!/bin/bash\n#SBATCH -N 2\nsrun torchrun --nnodes $SLURM_NNODES --nproc_per_node=4 x.py --num-layers 7",
            8},
           {"mpirun -np 16 -x NCCL_DEBUG=WARN " + run, 16},
           {"docker run --rm --gpus all -e A=1 nvcr.io/nvidia/pytorch bash -c 'torchrun --nproc-per-node 8 x.py "
            "--num-layers 7'",
            8},
           {"ssh node1 \"cd /x && torchrun --nproc-per-node=gpu x.py --num-layers 7\" &\nwait", 8},
           {"/opt/venv/bin/torchrun --nproc-per-node 2 x.py --num-layers 7 > /logs/out.txt 2>&1", 2},
           {"exec /usr/bin/python3 -m torch.distributed.run --nproc-per-node 2 x.py --num-layers 7", 2},
           {"CMD=\"timeout 10 nohup numactl -N 0 env A=1 torchrun --nproc-per-node 2 x.py --num-layers 7\"\neval $CMD",
            2},
           {"exec > >(tee log.txt) 2>&1\ntorchrun --nproc-per-node 2 x.py --num-layers 7 | tee -a log.txt", 2},
           {"cat >inner.sh <<'X'\ntorchrun --nproc-per-node 2 x.py --num-layers 7\nX\nsbatch --nodes 3 inner.sh", 6},
           {"sbatch --nodes 2 <<X\n#SBATCH --ntasks-per-node=8\nsrun python x.py --num-layers 7\nX", 16},
           {"cat >job.sbatch <<'X'\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\nsrun torchrun --nnodes "
            "$SLURM_NNODES "
            "--nproc-per-node 8 x.py --num-layers $L --data-path $1\nX\nsbatch -p gpu -N 4 --export=ALL,L=7 job.sbatch "
            "/data/x",
            32},
           {"run() { local n=$1; shift; \"$@\" --num-layers 7; }\nrun 1 torchrun --nproc-per-node 2 x.py", 2}}) {
    SCOPED_TRACE(text);
    const LaunchCommand command = read(text);
    EXPECT_EQ(value_of(command, "--num-layers"), "7");
    EXPECT_EQ(command.num_gpus, ranks) << text;
  }
}

// Does a script that stands in a checkout without .git see what lies beside its folder?
TEST_F(Scripts, SeeTheFoldersBesideTheirs) {
  const std::string folder = path("project/scripts/low");
  std::filesystem::create_directories(folder);
  std::filesystem::create_directories(path("project/models"));
  (void)write_text("project/models/small.sh", "MODEL_ARGS=(--num-layers 7)\n");
  ImportRequest request;
  request.folder = folder;
  const std::string text =
      "HERE=$(cd -- \"$(dirname -- \"${BASH_SOURCE[0]}\")\" && pwd)\nsource \"$HERE/../../models/small.sh\"\n"
      "torchrun --nproc-per-node 8 x.py --micro-batch-size 1 ${MODEL_ARGS[@]}\n";
  EXPECT_EQ(value_of(read(text, request), "--num-layers"), "7");
}

// Are the words of a program around Megatron Megatron's arguments: a recipe of Megatron-Bridge, with the worker's
// script that torchrun starts, and verl only where its engine is Megatron's?
TEST_F(Scripts, SpeakAsTheirProgramsDo) {
  const LaunchCommand bridge = read(
      "cat >worker.sh <<'X'\nnumactl --cpunodebind=0 nsys profile -t nvtx,cuda -o /logs/rank nice -10 "
      "python scripts/performance/custom_setup_experiment.py --gpu gb200 --model_recipe_name qwen3_30b_a3b "
      "--gpus_per_node 4 --num_gpus 16 --compute_dtype fp8_mx --seq_length 4096 --micro_batch_size 2 "
      "--virtual_pipeline_model_parallel_size None --expert_model_parallel_size 8 --recompute_modules "
      "moe_act,layernorm --moe_flex_dispatcher_backend hybridep --max_steps 30\nX\n"
      "torchrun --nproc-per-node=\"4\" --nnodes=\"4\" --no-python bash worker.sh");
  EXPECT_EQ(bridge.num_gpus, 16);
  EXPECT_EQ(bridge.model, "qwen3_30b_a3b");
  EXPECT_EQ(bridge.defaults, "megatron-lm-0.16-arguments");  // The recipe says the rest.
  for (const auto& [flag, value] :
       std::map<std::string, std::string>{{"--fp8-recipe", "mxfp8"},
                                          {"--recompute-modules", "moe_act layernorm"},
                                          {"--recompute-granularity", "selective"},
                                          {"--moe-token-dispatcher-type", "flex"},
                                          {"--expert-model-parallel-size", "8"},
                                          {"--micro-batch-size", "2"},
                                          {"--sequence-parallel", "(none)"},  // As in the recipe.
                                          {"--num-virtual-stages-per-pipeline-rank", "(none)"}})
    EXPECT_EQ(value_of(bridge, flag), value) << flag;
  const LaunchCommand overrides = read(
      "torchrun --nproc-per-node 8 scripts/performance/run_recipe.py --recipe llama3_70b_pretrain_config "
      "model.tensor_model_parallel_size=4 train.global_batch_size=64 dataset.sequence_length=8192");
  EXPECT_EQ(overrides.model, "llama3_70b");
  EXPECT_EQ(value_of(overrides, "--tensor-model-parallel-size"), "4");
  EXPECT_EQ(value_of(overrides, "--seq-length"), "8192");
  const std::string verl =
      "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B "
      "trainer.nnodes=1 trainer.n_gpus_per_node=8 actor_rollout_ref.actor.strategy=";
  EXPECT_EQ(read(verl + "megatron").model, "Qwen/Qwen3-8B");
  EXPECT_THAT(message_of(verl + "fsdp"), testing::HasSubstr("found one with verl on an engine that is not Megatron's"));
}

// Is a variable that nobody sets named where an argument hangs on it, at its own name and place, and nowhere else?
TEST_F(Scripts, NameWhatNobodySets) {
  EXPECT_EQ(value_of(read(training_start + "--tensor-model-parallel-size $TP"), "--tensor-model-parallel-size"), "$TP");
  EXPECT_EQ(value_of(read(training_start + "--tensor-model-parallel-size $2"), "--tensor-model-parallel-size"), "$2");
  EXPECT_EQ(value_of(read("T=$(( TP * 2 ))\n" + training_start + "--seq-length $T"), "--seq-length"), "$TP");
  EXPECT_EQ(value_of(read(training_start + "--tensor-model-parallel-size ${TP:-4}"), "--tensor-model-parallel-size"),
            "4");
  EXPECT_EQ(
      value_of(read("T=$TP; if [ -z \"$T\" ]; then T=8; fi\n" + training_start + "--tensor-model-parallel-size $T"),
               "--tensor-model-parallel-size"),
      "8");
  const LaunchCommand path = read(training_start + "--data-path $DATA --bf16 $EXTRA");
  EXPECT_EQ(value_of(path, "--bf16"), "");
  EXPECT_THAT(path.notes, testing::Contains(testing::HasSubstr("line 1: $EXTRA is not set")));
  ImportRequest given;
  given.variables = {{"TP", "4"}};
  given.arguments = {"a", "16"};
  const LaunchCommand command = read(training_start + "--tensor-model-parallel-size $TP --seq-length $2", given);
  EXPECT_EQ(value_of(command, "--tensor-model-parallel-size"), "4");
  EXPECT_EQ(value_of(command, "--seq-length"), "16");
}

// Is the sequence length of Megatron-SWIFT without --max_length its model's, with a note?
TEST_F(Scripts, OfMegatronSwiftHaveTheModelsLength) {
  ImportRequest request;
  request.system = "h100-sxm-80gb";
  request.num_gpus = 8;
  const std::string start = "megatron sft --model Qwen/Qwen3-8B --tensor_model_parallel_size 2 ";
  const Imported longest = import_launch(start, "launch.sh", request);
  EXPECT_EQ(longest.json.at("seq_len"), 40960);
  EXPECT_THAT(longest.notes, testing::Contains(testing::HasSubstr("--max_length bounds them")));
  EXPECT_EQ(import_launch(start + "--max_length 4096", "launch.sh", request).json.at("seq_len"), 4096);
}

// Is a script read that ends where a variable is empty that it leaves to its reader, and does it otherwise stay as it
// is?
TEST_F(Scripts, FillWhatTheyLeaveEmpty) {
  const std::string check =
      "IMAGE=\"\"\nNOTE=\"\"\nif [ -z \"$IMAGE\" ]; then echo \"IMAGE must be set\"; exit 1; fi\n";
  const LaunchCommand filled = read(check + training_start + "--tensor-model-parallel-size ${NOTE:-4} --save $IMAGE");
  EXPECT_EQ(value_of(filled, "--tensor-model-parallel-size"), "4");
  EXPECT_EQ(value_of(filled, "--save"), "IMAGE-to-be-given");
  EXPECT_THAT(filled.notes, testing::Contains("the script leaves IMAGE empty: taken as given"));
  // What a script can do without is not filled.
  EXPECT_EQ(
      value_of(read(check +
                    "if [ -z \"${R+x}\" ]; then R=\"\"; fi\n[ -n \"$T\" ] && X=\"--tensor-model-parallel-size $T\"\n" +
                    training_start + "$X --save $IMAGE $R"),
               "--tensor-model-parallel-size"),
      "(none)");
  EXPECT_THAT(read("IMAGE=\"\"\n[ -z \"$IMAGE\" ] && X=--qk-layernorm\n" + training_start + "$X").notes,
              testing::IsEmpty());
  EXPECT_THAT(message_of("swift sft --model Qwen/Qwen3-8B --bf16 true"),
              testing::HasSubstr("expected a training with Megatron, found one with ms-swift"));
}

// Is a folder in a command that an assignment builds a folder, also where the first run ended before it?
TEST_F(Scripts, BuildTheirCommands) {
  const LaunchCommand command = read(R"(CMD="cd /opt/somewhere && "
CMD="${CMD}python pretrain_gpt.py --num-layers 4"
IMAGE="${IMAGE:-}"
if [ -z "$IMAGE" ]; then
  echo "IMAGE must be set"
  exit 1
fi
srun --container-image=$IMAGE bash -c "$CMD"
)");
  ASSERT_EQ(command.arguments.size(), 1U);
  EXPECT_EQ(command.arguments.front().flag, "--num-layers");
}

// Is each of several starts one run, and the same start on two nodes one?
TEST_F(Scripts, CountStarts) {
  const std::string text =
      "for n in 0 1; do\n torchrun --node_rank $n x.py --num-layers 2 &\ndone\nwait\n" + training_start;
  const LaunchCommand first = read(text);
  EXPECT_EQ(value_of(first, "--num-layers"), "2");
  EXPECT_THAT(first.notes, testing::Contains(testing::HasSubstr("it starts 2 runs")));
  ImportRequest second;
  second.start = 2;
  EXPECT_EQ(value_of(read(text, second), "--num-layers"), "32");
  second.start = 3;
  EXPECT_THAT(message_of(text, second), testing::HasSubstr("--start: expected 1 to 2, found 3"));
}

// Are starts read that a script leaves in the background, all of them every time? Is one that never ends not waited
// for?
TEST_F(Scripts, WaitForStartsInTheBackground) {
  const std::string start = "torchrun --nproc-per-node 8 x.py --num-layers ";
  EXPECT_EQ(value_of(read("nohup " + start + "2 > log 2>&1 &\necho $! > pid\n"), "--num-layers"), "2");
  EXPECT_EQ(value_of(read("nohup bash -c '" + start + "2' &\ntail -f log\n"), "--num-layers"), "2");
  for (int i = 0; i < 3; ++i)
    EXPECT_THAT(read("for n in 1 2 4; do " + start + "$n > log.$n 2>&1 & done\n").notes,
                testing::Contains(testing::HasSubstr("it starts 3 runs")));
}

// Is a number of GPUs that only the site knows asked for, where its name is used for a node's and for all?
TEST_F(Scripts, AskForANumberOfGpusThatNobodySets) {
  ImportRequest request;
  request.system = "h100-sxm-80gb";
  try {
    (void)import_launch("srun -n 8 python x.py --num-layers 2 --global-batch-size $((NUM_GPUS * 2))\n", "launch.sh",
                        request);
    ADD_FAILURE() << "no mistake";
  } catch (const config::ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("does not say what $NUM_GPUS is"));
  }
}

// Are starts that differ in ranks different starts, jobs of an array named, and is what prepares data no start?
TEST_F(Scripts, CountStartsOfRanks) {
  ImportRequest third;
  third.start = 3;
  EXPECT_EQ(
      read("for N in 1 2 4; do torchrun --nproc-per-node 8 --nnodes $N x.py --num-layers 7; done", third).num_gpus, 32);
  const LaunchCommand array = read("#!/bin/bash\n#SBATCH --array=2-8:2%2\nL=(1 2 3)\n" + training_start +
                                   "--seq-length ${L[$SLURM_ARRAY_TASK_ID]}");
  EXPECT_EQ(value_of(array, "--seq-length"), "3");
  EXPECT_THAT(array.notes, testing::Contains(testing::HasSubstr("an array of 4 jobs starts")));
  const LaunchCommand prepared =
      read("python tools/preprocess_data.py --tokenizer-type GPT2BPETokenizer --vocab-file v.json --workers 8\n" +
           training_start);
  EXPECT_EQ(value_of(prepared, "--num-layers"), "32");
  EXPECT_THAT(prepared.notes, testing::IsEmpty());
}

// Is a line whose continuation is broken no part of the start, as in bash, and named?
TEST_F(Scripts, NameLinesThatAreNoCommands) {
  for (const std::string end :
       {"\n  --bf16", " \\\n# --fp16 \\\n  --bf16\n", " \\ \n  --bf16 > log 2>&1\n", "\n  --bf16=a/b\n"}) {
    const LaunchCommand command = read("#!/bin/bash\nexport X=1\n" + training_start + end);
    EXPECT_EQ(value_of(command, "--bf16"), "(none)") << end;
    EXPECT_THAT(command.notes, testing::ElementsAre(testing::HasSubstr("\" is no command (bash: command not found)")));
  }
  EXPECT_THAT(message_of("#!/bin/bash\ntorchrun x.py \\ \n --num-layers 7 --micro-batch-size 1\n"),
              testing::HasSubstr("line 3: \"--num-layers\" is no command"));
}

// Are command lines that need no shell read without starting a process, and is a script then told how to be handed
// over?
TEST(CommandLines, StartNoProcess) {
  ImportRequest none;
  none.sandbox = false;
  for (const std::string text :
       {"--num-layers 7 --bf16\n", "--num-layers 7 \\\n--bf16", "--num-layers\n7\n--moe-layer-freq\n([0]*3+[1]*58)\n",
        "export A=1\nB=2 torchrun --nproc-per-node 8 x.py \\\n  --num-layers 7 # seven\n",
        "python3\n-u\npretrain_gpt.py\n--num-layers\n7\n--pipeline-model-parallel-layout\nEt*3|(tt|)*29,m|L\n",
        "  PID COMMAND\n 12 bash run.sh\n 4711 /usr/bin/python3 -u x.py --num-layers 7 --bf16\n",
        "root 4711 99.0 1.2 ? Rl 12:00 3:00 /opt/bin/python x.py --num-layers 7 --moe-layer-freq ([0]*3+[1]*58)\n"})
    EXPECT_EQ(value_of(read(text, none), "--num-layers"), "7") << text;
  using namespace std::string_literals;
  EXPECT_EQ(value_of(read("python3\0-u\0x.py\0--num-layers\0007\0"s, none), "--num-layers"), "7");
  EXPECT_THAT(message_of("#!/usr/bin/env python3\nimport os\n", none), testing::HasSubstr("is a Python program"));
  EXPECT_EQ(message_of("#!/bin/bash\n" + training_start, none), "");
  EXPECT_THAT(message_of("#!/bin/bash\nset -e\n" + training_start, none), testing::HasSubstr("is a script"));
  EXPECT_THAT(message_of(training_start + "\n  --bf16\n", none), testing::HasSubstr("is a script"));
  EXPECT_THAT(message_of("TP=2\n" + training_start + "--tensor-model-parallel-size $TP", none),
              testing::AllOf(testing::HasSubstr("is a script, which bash evaluates in a sandbox"),
                             testing::HasSubstr("ps -ww -o pid,args")));
}

// Is a script with Windows' line ends read as without, with one note, and an argument list without a note?
TEST_F(Scripts, MayComeFromWindows) {
  ImportRequest request;
  request.system = "h100-sxm-80gb";
  const std::string arguments =
      "--num-layers 4 --hidden-size 1024 --num-attention-heads 8 --seq-length 2048 --max-position-embeddings 2048 "
      "--vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --bf16 --train-iters 1 --lr 1 ";
  const Imported script = import_launch(
      "#!/bin/bash\r\nA=\"" + arguments + "\\\r\n\"\r\ntorchrun --nproc-per-node 8 x.py $A\r\n", "a.sh", request);
  EXPECT_EQ(script.json.at("num_gpus"), 8);
  EXPECT_THAT(script.notes, testing::ElementsAre(testing::HasSubstr("as after dos2unix")));
  request.num_gpus = 8;
  EXPECT_THAT(import_launch(arguments + "\r\n", "a.txt", request).notes, testing::IsEmpty());
}

// ---- Hostile scripts
// -------------------------------------------------------------------------------------------------

/// Path, kind, permissions, time and text of everything below a folder.
std::string state_of(const std::filesystem::path& folder) {
  std::string state;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const auto status = entry.symlink_status();
    state += entry.path().string() + " " + std::to_string(static_cast<int>(status.type())) + " " +
             std::to_string(static_cast<unsigned>(status.permissions())) + " " +
             std::to_string(entry.last_write_time().time_since_epoch().count()) + " " +
             (entry.is_regular_file() ? contents(entry.path()) : "") + "\n";
  }
  return state;
}

/// Number of the machine's processes with `mark` in their command line.
int processes_with(const std::string& mark) {
  int count = 0;
  DIR* folder = opendir("/proc");
  while (const dirent* entry = readdir(folder)) {
    std::ifstream in(std::string("/proc/") + &entry->d_name[0] + "/cmdline");
    std::string words;
    if (std::getline(in, words, '\n') && words.find(mark) != std::string::npos) ++count;
  }
  closedir(folder);
  return count;
}

/// The same once those that are being killed are gone, which takes the kernel a moment on a busy machine.
int processes_left_with(const std::string& mark) {
  for (int i = 0; i < 100 && processes_with(mark) > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return processes_with(mark);
}

/// {name, text} of each "### name" in the file.
std::vector<std::pair<std::string, std::string>> hostile_scripts() {
  std::vector<std::pair<std::string, std::string>> scripts;
  std::istringstream in(contents(std::string(FW_LAUNCHES_DIR) + "/hostile.txt"));
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("### "))
      scripts.emplace_back(line.substr(4), "");
    else
      scripts.back().second += line + "\n";
  }
  return scripts;
}

// Does nothing outside of the sandbox change, is nothing sent, nothing secret read, does no process stay, and does each
// end in time, whatever a script tries?
TEST_F(Scripts, ChangeNothingOutside) {
  const auto mode = std::filesystem::perms::owner_all;
  for (const char* name : {"work", "victim", "home"}) std::filesystem::create_directory(folder_ / name);
  for (const char* name : {"work/sentinel", "victim/sentinel", "home/.secret", "work/.secret", "work/.env"})
    std::filesystem::permissions(write_text(name, "TheSecret"), mode);
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 5), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  setenv("HOSTILE_SECRET", "TheSecret", 1);
  const std::string before = state_of(folder_);

  const auto scripts = hostile_scripts();
  EXPECT_GE(scripts.size(), 35U);
  for (const auto& [name, text] : scripts) {
    SCOPED_TRACE(name);
    SandboxRequest request;
    request.text = text;
    request.script = path("work/launch.sh");
    request.folder = request.tree = path("work");
    request.environment = {
        {"VICTIM", path("victim")}, {"REAL_HOME", path("home")}, {"PORT", std::to_string(ntohs(address.sin_port))}};
    request.time = std::chrono::seconds(2);
    const auto start = std::chrono::steady_clock::now();
    const SandboxResult result = run_in_sandbox(request);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(2));  // Allows for a busy machine.
    EXPECT_EQ(result.unavailable, "");
    EXPECT_EQ(state_of(folder_), before);
    EXPECT_EQ(processes_left_with("hostile-marker"), 0);
    pollfd waits{.fd = listener, .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&waits, 1, 0), 0) << "it connected";
    for (const Started& started : result.starts)
      for (const std::string& word : started.words) EXPECT_EQ(word.find("TheSecret"), std::string::npos) << word;
  }
  close(listener);
}

}  // namespace
}  // namespace foldwise::planner::script_test
