"""What a Megatron-LM says of a launch's arguments, without a GPU: foldwise export --check runs this in the user's Python.

  python3 check_arguments.py REQUEST.json ANSWER.json

REQUEST: {"megatron": folder of Megatron-LM, "arguments": [words], "world_size", "capability": [9, 0], "environment": {}}.
ANSWER: {"accepted", "stage": "import" | "parse" | "validate" | "config" | null, "error", "at": "file:line", "versions": {},
"notes": []}. Runs Megatron's own parse_args, validate_args and core_transformer_config_from_args. The GPU's capability is the
plan's; Transformer Engine is a stand-in where it cannot be imported, which a note says."""
import importlib.abc
import importlib.machinery
import importlib.metadata
import io
import json
import os
import sys
import traceback
import types


class StandIn(types.ModuleType):
    """A module of which any name can be imported."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (object,), {}) if name.lstrip("_")[:1].isupper() else (lambda *a, **k: None)
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, package, version):
        self.package, self.version = package, version

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0].startswith(self.package):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        module.__path__ = []
        module.__version__ = self.version


def installed(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions(torch):
    found = {"PyTorch": torch.__version__, "Transformer Engine": installed("transformer_engine"), "DeepEP": installed("deep_ep"),
             "cuDNN frontend": installed("nvidia-cudnn-frontend")}
    return {name: version for name, version in found.items() if version}


def add_transformer_engine(answer):
    try:
        import transformer_engine.pytorch  # noqa: F401
    except Exception as error:  # Of any kind: its libraries want a driver.
        version = installed("transformer_engine")
        answer["notes"].append("Transformer Engine " + ("cannot be imported here" if version else "is not installed") +
                               f" ({error}): what Megatron asks of it is not checked")
        for name in [n for n in sys.modules if n.startswith("transformer_engine")]:
            del sys.modules[name]
        sys.meta_path.insert(0, Finder("transformer_engine", version or "99.0"))


def place(error, root):
    at = None
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(root):
            at = f"{os.path.relpath(frame.filename, root)}:{frame.lineno}"
    return at


def check(request, answer):
    root = os.path.realpath(request["megatron"])
    os.environ.update({name: str(value) for name, value in request["environment"].items()})
    os.environ.update(WORLD_SIZE=str(request["world_size"]), RANK="0", LOCAL_RANK="0")
    sys.path.insert(0, root)
    answer["stage"] = "import"
    import torch
    capability = tuple(request["capability"])
    torch.cuda.get_device_capability = lambda *a, **k: capability
    torch.cuda.get_device_properties = lambda *a, **k: types.SimpleNamespace(
        major=capability[0], minor=capability[1], name="GPU", multi_processor_count=1, total_memory=0)
    answer["versions"] = versions(torch)
    add_transformer_engine(answer)
    try:
        from megatron.training import arguments as megatron
        sys.argv = ["pretrain"] + request["arguments"]
        answer["stage"] = "parse"
        args = megatron.parse_args()
        answer["stage"] = "validate"
        megatron.validate_args(args)
        answer["stage"] = "config"
        megatron.core_transformer_config_from_args(args)
        answer["stage"] = None
        answer["accepted"] = True
    except Exception as error:
        answer["error"], answer["at"] = f"{type(error).__name__}: {error}".strip(), place(error, root)


def main():
    with open(sys.argv[1]) as file:
        request = json.load(file)
    path = sys.argv[2]
    answer = {"accepted": False, "stage": None, "error": None, "at": None, "versions": {}, "notes": []}
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    try:
        check(request, answer)
    except SystemExit:  # argparse, which has printed why.
        answer["error"] = (sys.stderr.getvalue().strip().splitlines() or ["argparse refused the arguments"])[-1]
    except Exception as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    sys.stdout, sys.stderr = out, err
    with open(path, "w") as file:
        json.dump(answer, file)


main()
