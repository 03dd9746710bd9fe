"""Does state_inferences.py state what published rows leave to be inferred, and leave alone what it has stated?

    python3 state_inferences_test.py ROOT    (the root of this repository)
"""

import glob
import json
import os
import subprocess
import sys
import tempfile

SCRIPT = os.path.join(sys.argv[1], "benchmarks", "accuracy", "state_inferences.py")


def state(path):
    return subprocess.run([sys.executable, SCRIPT, path], check=True, capture_output=True, text=True).stdout


def stated(**fields):
    row = {"model": "llama3.1-405b", "system": "h100-sxm-80gb", "num_gpus": 64, "seq_len": 8192, "global_batch": 64, **fields}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([row], file)
        file.flush()
        return json.loads(state(file.name))[0]


def expect(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: expected {wanted}, got {got}")


# The rows of this repository are its own output.
for runs in glob.glob(os.path.join(os.path.dirname(SCRIPT), "runs", "*.json")):
    with open(runs) as committed:
        if state(runs) != committed.read():
            sys.exit(f"{runs}: python3 {SCRIPT} would write it differently")

# 126 layers, with embedding and loss 128 = 8 x 16; 61 are filled from the front. Without a source nobody guesses.
bridge = {"title": "Megatron-Bridge performance summary, NeMo 26.06 container"}
row = stated(source=bridge, date_or_release="nemo-26.06", pp=8)
expect("split", row["pipeline_layout"], "Et*15|(t*16|)*6t*15L")
expect("set", row["defaults"], "megatron-bridge-26.04")
expect("reasons", sorted(row["inferred"]), ["defaults", "pipeline_layout"])
expect("no source", stated(pp=8), {**stated(), "pp": 8})
row = stated(source=bridge, model="deepseek-v3", pp=4, num_gpus=256, mtp=True)
expect("last stages have fewer", row["pipeline_layout"], "E(t*16|)*3t*13mL".replace("E(t*16|)*3", "Et*16|(t*16|)*2"))

# What a resolved recipe sets becomes ordinary keys; what a row states stays.
recipe = {"extra": {"mtp_num_layers": 2, "moe_router_fusion": False, "moe_permute_fusion": True},
          "numerics": {"fp8_dot_product_attention": True}}
row = stated(source=bridge, model="deepseek-v3", mtp=True, recipe=recipe, software={"permute": "unfused"})
expect("recipe", (row["mtp"], row["software"], row["fp8_attention"]), (2, {"permute": "unfused", "router_fusion": False}, True))

# FLOPs per token: 260 GFLOP are DeepSeek-V3 with multi-token prediction, 250 without.
for gflop, depth in ((250, 0), (260, 1)):
    measured = {"tokens_per_s_per_gpu": 1000, "tflops_per_gpu": gflop}
    expect("mtp", stated(source=bridge, model="deepseek-v3", seq_len=4096, measured=measured)["mtp"], depth)

# Experts before folding, SimuMax's loss, TorchTitan's memory and micro-batches.
paper = {"title": "MoE Parallel Folding"}
row = stated(source=paper, model="mixtral-8x22b", method="FSDP", tp=8)
expect("experts", (row["etp"], row["dispatcher"]), (8, "alltoall"))
expect("loss", stated(source=paper, notes="fused CE")["software"]["cross_entropy"], "te")
expect("no loss", "software" in stated(source=paper, notes="fused CE is off"), False)
row = stated(source={"title": "TorchTitan"}, sharding="fsdp", pp=8, dp=8, measured={"peak_memory_gib": 70.0})
expect("TorchTitan", (row["sharding"], row["micro_batch"], row["measured"]),
       ("fsdp-optim", 1, {"peak_memory_gib": None, "peak_reserved_gib": 70.0}))
