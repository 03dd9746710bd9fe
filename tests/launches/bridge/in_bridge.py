#!/usr/bin/env python3
"""Megatron-Bridge itself beside import and export, on a machine without a GPU.

    pip install torch omegaconf==2.3.1 hydra-core==1.3.2 'transformers<5' 'datasets<4.5' nvidia-resiliency-ext==0.4.1 qwen-vl-utils mlflow wandb tensorboard
    pip install --no-deps megatron-core==0.16.1 megatron-bridge==0.3.1
    in_bridge.py FOLDWISE dump FOLDER          the recipes of RECIPES, as Bridge writes them
    in_bridge.py FOLDWISE check RUN.json...    what each run's export comes to in Bridge, beside the run

A recipe is made, given what the start of a run gives it (runtime_config_update), and written by to_yaml; "-recipe" files are written before that. What
needs a GPU or its compiler is replaced by nothing (Transformer Engine, Mamba's and energon's packages), the device by its capability, and
Hugging Face's files of a model by the built-in ones. What Bridge computes of a configuration is its own."""
import importlib
import importlib.abc
import importlib.machinery
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import warnings

ABSENT = ("transformer_engine", "transformer_engine_torch", "mamba_ssm", "causal_conv1d", "fla", "timm", "open_clip", "megatron.energon")
RECIPES = {  # Built-in model: recipe, GPUs.
    "deepseek-v3": ("deepseek.deepseek_v3", "deepseek_v3_pretrain_config", 2048),
    "glm-4.5": ("glm.glm45", "glm45_355b_pretrain_config", 256),
    "gpt-oss-120b": ("gpt_oss.gpt_oss", "gpt_oss_120b_pretrain_config", 64),
    "llama3-70b": ("llama.llama3", "llama3_70b_pretrain_config", 64),
    "llama3.1-405b": ("llama.llama3", "llama31_405b_pretrain_config", 512),
    "moonlight-16b-a3b": ("moonlight.moonlight_16b", "moonlight_16b_pretrain_config", 64),
    "olmoe-1b-7b": ("olmoe.olmoe_7b", "olmoe_7b_pretrain_config", 64),
    "qwen3-235b-a22b": ("qwen.qwen3_moe", "qwen3_235b_a22b_pretrain_config", 256),
    "qwen3-30b-a3b": ("qwen.qwen3_moe", "qwen3_30b_a3b_pretrain_config", 32),
}


class AbsentType(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent

    def __getitem__(cls, key):
        return cls


class Absent(metaclass=AbsentType):
    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return Absent


class AbsentModule(types.ModuleType):
    __path__ = []
    __version__ = "2.12.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "FusedAdam":  # Megatron looks at its parameters.
            class FusedAdam:
                def __init__(self, params, store_param_remainders=True, master_weight_dtype=None, exp_avg_dtype=None, exp_avg_sq_dtype=None,
                             use_decoupled_grad=False):
                    pass
            return FusedAdam
        if name in ("LayerNormLinear", "Linear", "LayerNormMLP", "DotProductAttention", "TransformerLayer", "LayerNorm", "RMSNorm", "GroupedLinear"):
            return type(name, (importlib.import_module("torch").nn.Module,), {})
        return type(name, (Absent,), {})


class AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if any(name == absent or name.startswith(absent + ".") for absent in ABSENT):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return AbsentModule(spec.name)

    def exec_module(self, module):
        pass


def recipe(foldwise: str, model: str):
    """The recipe's configuration."""
    import transformers
    from megatron.bridge import AutoBridge

    def from_built_in(cls, path, **kwargs):
        config = json.loads(subprocess.run([foldwise, "models", model, "--format", "json"], stdout=subprocess.PIPE, check=True).stdout)["config"]
        made = transformers.CONFIG_MAPPING[config["model_type"]].from_dict({"torch_dtype": "bfloat16"} | config)
        made.architectures = config["architectures"]
        return AutoBridge.from_hf_config(made)

    AutoBridge.from_hf_pretrained = classmethod(from_built_in)
    module, name, _ = RECIPES[model]
    return getattr(importlib.import_module("megatron.bridge.recipes." + module), name)()


def device(capability: int, gpus: int) -> None:
    import torch
    name = {9: "NVIDIA H100 80GB HBM3", 10: "NVIDIA GB200"}[capability]
    torch.cuda.get_device_capability = lambda *_: (capability, 0)
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(major=capability, minor=0, name=name)
    os.environ.update(WORLD_SIZE=str(gpus), RANK="0", CUDA_DEVICE_MAX_CONNECTIONS="1")


def dump(foldwise: str, folder: str) -> None:
    from megatron.bridge.training.config import runtime_config_update
    for model, (_, _, gpus) in RECIPES.items():
        device(9, gpus)
        cfg = recipe(foldwise, model)
        if model == "deepseek-v3":
            cfg.to_yaml(str(pathlib.Path(folder) / f"{model}-recipe.yaml"))
        runtime_config_update(cfg)
        cfg.to_yaml(str(pathlib.Path(folder) / f"{model}.yaml"))


def check(foldwise: str, runs: list[str]) -> None:
    from megatron.bridge.training.config import runtime_config_update
    with tempfile.TemporaryDirectory() as folder:
        written, read = pathlib.Path(folder, "plan.yaml"), pathlib.Path(folder, "plan.json")
        for path in runs:
            run = json.loads(pathlib.Path(path).read_text())
            exported = subprocess.run([foldwise, "export", path, "--to", "megatron-bridge"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            if exported.returncode:
                print(f"{path}: not exported: {exported.stderr.strip()}")
                continue
            device(9 if run["system"].startswith("h") else 10, run["num_gpus"])
            for line in exported.stdout.splitlines():
                if line.startswith("# export "):
                    name, value = line[len("# export "):].split(":")[0].split("=", 1)
                    os.environ[name] = value
            plan: dict = {}
            exec(exported.stdout, plan)
            cfg = recipe(foldwise, run["model"])
            try:
                plan["apply_plan"](cfg)
                layout = cfg.model.pipeline_model_parallel_layout
                runtime_config_update(cfg)
            except (AssertionError, ValueError) as error:
                print(f"{path}: refused by Bridge: {error}")
                continue
            cfg.model.pipeline_model_parallel_layout = layout  # Of the object that it becomes, to_yaml writes no stages.
            cfg.to_yaml(str(written))
            arguments = ["import", str(written), "--system", run["system"], "--gpus", str(run["num_gpus"])]
            read.write_bytes(subprocess.run([foldwise, *arguments], stdout=subprocess.PIPE, check=True).stdout)
            compared = json.loads(subprocess.run([foldwise, "compare", path, str(read), "--format", "json"], stdout=subprocess.PIPE, check=True).stdout)
            print(f"{path}: step {compared['seconds']['step']}", *(f"{row['field']} {row['values']}" for row in compared["differences"]), sep="; ")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.meta_path.insert(0, AbsentFinder())
    program, what, *rest = sys.argv[1:]
    dump(program, rest[0]) if what == "dump" else check(program, rest)
