#!/usr/bin/env python3
"""State in a file of published runs what their sources leave to be inferred.

    python3 state_inferences.py IN > OUT

IN is a list of rows as published (docs/run-file.md: `source`, `recipe`, `software`, `measured` and the options; null
where the source is silent). OUT holds the same rows; each has in addition

- `defaults`: the set of defaults (planner/run/defaults) of the program that ran it;
- options that its title, method, notes, release, FLOPs or resolved recipe imply, as ordinary keys;
- `inferred`: {key: reason}, one entry for every key that this script wrote.

Foldwise itself reads numbers from keys alone, never from prose, so this script is the one place where prose is read,
and what it read can be seen, counted (`foldwise validate`) and changed. A key that a row states is never replaced,
but for a text or `true` that the key only describes. Running it on its own output changes nothing.

Only the standard library is needed. Geometry of models is read from planner/models/data; a row of a model that is not
there keeps its silence where the geometry matters.
"""

import json
import os
import sys

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "planner", "models", "data")

# Model GFLOP per token at sequences of 4096 and 8192 (linear in between and beyond), without and with multi-token
# prediction: Megatron's count (num_floating_point_operations), as `foldwise predict` prints it.
GFLOP_PER_TOKEN = {
    "deepseek-v3": ((249.812, 280.514), (259.993, 291.199)),
    "deepseek-v3.2": ((249.812, 280.514), (259.993, 291.199)),
    "glm-4.5": ((224.470, 252.253), (231.834, 259.919)),
    "glm-4.5-air": ((90.564, 104.455), (96.380, 110.574)),
    "glm-5": ((271.306, 302.713), (280.900, 312.709)),
    "ling-1t": ((313.742, 329.848), (326.099, 342.406)),
    "ling-mini-2.0": ((7.613, 8.619), (9.878, 10.935)),
    "minimax-m2": ((71.560, 80.922), (76.455, 85.968)),
    "mini-deepseek-12l": ((8.089, 8.844), (9.967, 10.785)),
    "nemotron-3-super-120b-a12b": ((74.566, 75.372), (79.143, 80.049)),
    "nemotron-3-ultra-550b-a55b": ((333.196, 335.611), (344.646, 347.263)),
    "qwen3-next-80b-a3b": ((22.740, 23.948), (25.129, 26.438)),
    "qwen3.5-35b-a3b": ((18.935, 19.942), (22.471, 23.578)),
    "qwen3.5-397b-a17b": ((101.384, 104.404), (109.349, 112.571)),
}

# Releases whose tables round tokens/s to a whole number of global samples a second, while their TFLOPS have three or
# four digits (docs/run-file.md#measured).
ROUNDED_TOKENS = ("nemo-26.04.01", "nemo-26.06.01", "nemo-26.08")


class Row:
    """A row and what is inferred about it."""

    def __init__(self, row):
        self.row = row
        self.reasons = dict(row.get("inferred") or {})
        self.title = (row.get("source") or {}).get("title") or ""
        self.model = model_facts(row)

    def get(self, key):
        """Value at a dotted key; None where the row is silent."""
        value = self.row
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def state(self, key, value, reason, replace=False):
        if not replace and self.get(key) is not None:
            return
        parts = key.split(".")
        target = self.row
        for part in parts[:-1]:
            if not isinstance(target.get(part), dict):
                target[part] = {}
            target = target[part]
        target[parts[-1]] = value
        self.reasons[key] = reason

    def size(self, key):
        return self.get(key) or 1

    def dp(self):
        return self.get("dp") or max(1, self.size("num_gpus") // (self.size("tp") * self.size("cp") * self.size("pp")))


def model_facts(row):
    """layers, moe, hybrid, mtp (depth), streams (residual streams); None where the model is not built in."""
    path = os.path.join(MODELS, f"{row.get('model')}.json")
    if not os.path.exists(path):
        return None
    with open(path) as file:
        config = json.load(file)
    config = {**config, **(config.get("text_config") or {}), **(row.get("model_overrides") or {})}

    def first(*keys):
        return next((config[key] for key in keys if config.get(key) is not None), 0)

    layers = first("num_hidden_layers", "n_layers")
    experts = first("n_routed_experts", "num_experts", "num_local_experts")
    experts = experts or (config.get("ffn_config") or {}).get("moe_num_experts") or 0
    pattern = config.get("hybrid_override_pattern")
    mtp = max(config.get(key) or 0 for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"))
    return {
        "layers": layers,
        "moe": "E" in pattern if pattern else experts > 0 and first("first_k_dense_replace") < layers,
        "hybrid": pattern is not None,
        "mtp": mtp if config.get("use_mtp", True) else 0,
        "streams": first("hc_mult") or 1,
    }


def state_defaults(r):
    """Which program ran it, and so which set: by the title, and for Megatron-Bridge by its container or recipe."""
    if "Megatron-Bridge" in r.title:
        release = r.get("date_or_release") or ""
        if release.startswith("nemo-"):
            new, why = release >= "nemo-26.04", f"date_or_release is {release}"
        else:
            new, why = bool(r.get("recipe")), "a recipe of 2026 was resolved" if r.get("recipe") else "no recipe is named"
        name = "megatron-bridge-26.04" if new else "megatron-bridge-25.09"
        r.state("defaults", name, f"source.title names Megatron-Bridge; {why}")
    elif "NeMo AutoModel" in r.title:
        r.state("defaults", "nemo-automodel", "source.title names NeMo AutoModel")
    elif "NeMo" in r.title:
        r.state("defaults", "nemo-25.04", "source.title names NeMo")
    elif "TorchTitan" in r.title:
        r.state("defaults", "torchtitan", "source.title names TorchTitan")
    elif r.title:
        r.state("defaults", "megatron-lm-0.16", "source.title names none of Megatron-Bridge, NeMo and TorchTitan")


def state_recipe(r):
    """What the resolved recipe sets beyond the fields of a published row."""
    def take(path, key, meaning=lambda value: value):
        value = r.get(f"recipe.{path}")
        if value is not None and meaning(value) is not None:
            r.state(key, meaning(value), f"recipe.{path}")

    take("extra.cp_comm_type", "cp_comm_type")
    if r.get("token_drop") is not False:
        take("extra.moe_expert_capacity_factor", "capacity_factor")
    take("extra.moe_router_fusion", "software.router_fusion")
    take("extra.moe_permute_fusion", "software.permute", lambda on: "fused" if on else "unfused")
    take("extra.use_transformer_engine_op_fuser", "software.experts", lambda on: "fused" if on else None)
    take("numerics.fp8_dot_product_attention", "fp8_attention")
    if r.get("mtp") is True and r.get("recipe.extra.mtp_num_layers") is not None:
        r.row["mtp"] = None
    take("extra.mtp_num_layers", "mtp")
    take("extra.mtp_use_repeated_layer", "mtp_use_repeated_layer")


def state_spelling(r):
    """Keys that a source's collectors spell in another way than run files do (docs/run-file.md)."""
    states = r.get("offload.optimizer_state_offload")
    if states is not None:
        del r.row["offload"]["optimizer_state_offload"]
        r.state("offload.optimizer_states", states, "the source's optimizer_state_offload")


def state_mtp(r):
    """Depth of multi-token prediction: the layout's, else whichever FLOPs are nearer to the source's, else its habit."""
    if r.get("mtp") is not None or not r.model or r.model["mtp"] == 0:
        return
    depth, layout, measured = r.model["mtp"], r.get("pipeline_layout"), r.get("measured") or {}
    tokens, rate = r.size("global_batch") * r.size("seq_len"), measured.get("tokens_per_s_per_gpu")
    if not rate and measured.get("step_time_s"):
        rate = tokens / r.size("num_gpus") / measured["step_time_s"]
    if r.model["streams"] > 1:
        r.state("mtp", 0, "Megatron's hyper-connections exclude it")
    elif layout and "m" not in layout:
        r.state("mtp", 0, "pipeline_layout has no m")
    elif layout:
        r.state("mtp", depth, "pipeline_layout has an m; the depth is the model's")
    elif measured.get("tflops_per_gpu") and rate and r.row["model"] in GFLOP_PER_TOKEN \
            and not set(r.get("model_overrides") or {}) - {"num_nextn_predict_layers"}:
        gflop = measured["tflops_per_gpu"] * 1e3 / rate
        bare, full = (at4k + (at8k - at4k) * (r.size("seq_len") / 4096 - 1) for at4k, at8k in GFLOP_PER_TOKEN[r.row["model"]])
        r.state("mtp", 0 if abs(gflop - bare) < abs(gflop - full) else depth,
                f"the source counts {gflop:.1f} GFLOP a token; Megatron {bare:.1f} without and {full:.1f} with")
    elif "Megatron-Bridge" in r.title:
        r.state("mtp", depth, "Megatron-Bridge's recipes train the model's depth")
    elif r.title:
        r.state("mtp", 0, "Megatron's default")


def state_experts(r):
    if not r.model or not r.model["moe"]:
        return
    # A method named without folding maps experts as Megatron did before it had folding.
    method = r.get("method")
    if method and "olding" not in method:
        r.state("etp", r.size("tp"), "method is not folding: expert TP was TP")
    if r.title and r.row.get("defaults") in ("megatron-lm-0.16", "torchtitan"):
        r.state("dispatcher", "alltoall", "what published MoE runs set when they name none")


def layout_text(groups):
    """Megatron's layout string of stages given as texts: repetitions as (x|)*n, as planner and rules write them."""
    def letters(stage):
        count = stage.count("t")
        return stage.replace("t" * count, f"t*{count}") if count > 3 else stage

    stages, out, i = [letters(g) for g in groups], "", 0
    while i < len(stages):
        n = 1
        while i + n < len(stages) and stages[i + n] == stages[i]:
            n += 1
        last = i + n == len(stages)
        run = n - 1 if last else n
        out += f"({stages[i]}|)*{run}" if run > 1 else f"{stages[i]}|" * run
        out += stages[i] if last else ""
        i += n
    return out


def state_split(r):
    """Layers that do not divide had an uneven split that the source does not state. Recipes either count embedding and
    loss as layers (--account-for-embedding-in-pipeline-split and -loss-: Llama 3.1 405B, Qwen3-235B) or fill every
    stage but the last (DeepSeek-V3)."""
    if not r.title or not r.model or r.model["hybrid"] or r.get("pipeline_layout"):
        return
    if any(r.get(key) for key in ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
                                  "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")):
        return
    layers, stages = r.model["layers"], r.size("pp") * r.size("vpp")
    if stages == 1 or layers % stages == 0 or stages > layers + 2:
        return
    ends = (layers + 2) % stages == 0
    share = (layers + 2) // stages if ends else -(-layers // stages)
    mtp = r.get("mtp")
    depth = r.model["mtp"] if mtp in (None, True) else int(mtp)
    groups, left = [], layers
    for i in range(stages):
        first, last = i == 0, i == stages - 1
        count = min(share - (1 if ends and (first or last) else 0), left)
        left -= count
        groups.append(("E" if first else "") + "t" * count + ("m" * depth + "L" if last else ""))
    if left == 0:
        r.state("pipeline_layout", layout_text(groups),
                "the layers do not divide, with embedding and loss they do" if ends
                else "the layers do not divide, so the last stages have fewer")


def state_torchtitan(r):
    if r.row.get("defaults") != "torchtitan":
        return
    if r.get("recompute.modules") == "per-op SAC":
        r.state("recompute.modules", ["alternate_matmuls"], "per-op SAC is TorchTitan's policy by operator", replace=True)
    if r.get("sharding") == "fsdp" and r.size("pp") > 1:
        r.state("sharding", "fsdp-optim", "TorchTitan keeps weights gathered and sums whole gradients under a pipeline",
                replace=True)
    if r.get("global_batch"):
        r.state("micro_batch", max(1, r.get("global_batch") // r.dp() // r.size("pp")),
                "TorchTitan's default: as many micro-batches as pipeline ranks")
    measured = r.get("measured") or {}
    if measured.get("peak_memory_gib") is not None:
        r.state("measured.peak_reserved_gib", measured["peak_memory_gib"], "TorchTitan prints reserved memory")
        measured["peak_memory_gib"] = None


def state_nemo(r):
    """NeMo's recipe of Nemotron-H has its overlaps of TP and of parameters in performance_mode alone, which is off."""
    if r.row.get("model") != "nemotronh-56b" or r.row.get("defaults") != "nemo-25.04":
        return
    where = "nemo_toolkit 2.3.0, collections/llm/recipes/nemotronh_56b.py: "
    r.state("precision", "fp8-current", where + "its precision is tensorwise", replace=r.get("precision") == "fp8-unspecified")
    r.state("optimizer.fp8_param_gather", True, where + "its precision sets it")
    r.state("overlaps.dp_grad", True, where + "overlap_grad_reduce=True")
    r.state("overlaps.dp_param", False, where + "overlap_param_gather=False")
    r.state("overlaps.tp", False, where + "tp_comm_overlap is of performance_mode")


def state_software(r):
    notes, framework = r.get("notes") or "", r.get("software.framework") or ""
    if "fused CE" in notes and "is off" not in notes:
        r.state("software.cross_entropy", "te", "notes: fused CE; Transformer Engine's, as in recipes")
    # core_v0.16 casts the operands of an fp32 router where it finds no get_workspace in Transformer Engine, which has
    # had none since 2.10 (te_general_gemm in megatron/core/extensions/transformer_engine.py).
    if "core_v0.16" in framework and (r.get("software.router_dtype") or "fp32") in ("fp32", "fp64"):
        r.state("software.router_operands", "fp32", "software.framework is core_v0.16, which casts the router's operands")


def state_checks(r):
    """Whether the host checked losses and gradients for NaN. Sets of defaults say it of Megatron-Bridge's runs."""
    key = "check_for_nan_in_loss_and_grad"
    if "kernels/torch/megatron_steps.py" in r.title:  # It has its micro-batches on the GPU.
        r.row.setdefault("system_overrides", {}).setdefault("host.micro_batch", "0 us")
    checked = (r.get("software") or {}).get("nan_check")
    if checked is not None:
        r.row.setdefault(key, checked)
    elif any(name in r.title for name in ("MoE Parallel Folding", "Guide to reproduce DeepSeek-V3", "Megatron Core (tech report)",
                                          "Megatron MoE model zoo")):
        r.state(key, False, "configurations of its authors set --no-check-for-nan-in-loss-and-grad (Megatron-MoE-ModelZoo, DeepSeek-V3)")


def state_measured(r):
    measured = r.get("measured") or {}
    if r.get("date_or_release") in ROUNDED_TOKENS and r.get("task") in (None, "pretrain") \
            and measured.get("tokens_per_s_per_gpu") and measured.get("tflops_per_gpu"):
        r.state("measured.tokens_are_rounded", True, "date_or_release rounds tokens/s to whole global samples a second")


def state(row):
    r = Row(row)
    for step in (state_defaults, state_recipe, state_spelling, state_mtp, state_experts, state_torchtitan, state_split, state_nemo,
                 state_software, state_checks, state_measured):
        step(r)
    if r.reasons:
        row["inferred"] = r.reasons
    return row


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        text = file.read()
    rows = json.loads(text)
    rows = [state(row) for row in (rows if isinstance(rows, list) else [rows])]
    if text.startswith("[\n {\n"):  # Rows over several lines.
        print(json.dumps(rows, indent=1))
    else:
        print("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]")


if __name__ == "__main__":
    main()
