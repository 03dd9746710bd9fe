#!/usr/bin/env python3
"""Makes megatron_arguments.json: which arguments Megatron-LM's command line takes in each release, asked of Megatron's own parser.

    python3 planner/launch/arguments_of_megatron.py TREE=RELEASE... > planner/launch/megatron_arguments.json

TREE is a checkout of Megatron-LM and RELEASE its name, the oldest first and the development branch last:

    git worktree add /tmp/mlm-0.16.1 core_v0.16.1; ...; git worktree add /tmp/mlm-main main
    python3 planner/launch/arguments_of_megatron.py /tmp/mlm-0.16.1=0.16.1 ... /tmp/mlm-main=main

The commit and its date are the checkout's. A tree that is none (git archive, a chroot without git) has them named:
TREE=RELEASE@COMMIT@YYYY-MM-DD. Any Python from 3.11 on with torch, numpy, packaging, pydantic, pyyaml, regex and six will do; nothing is
computed and no GPU is needed. Transformer Engine and Triton are stand-ins in any case, so that what is installed makes no difference. Each
tree is imported in a process of its own.

A row is a flag, in the order of the newest parser; --no-x of a flag of type "either" is none. Without "since" the oldest release has it, without "until"
the newest. "dest", "type", "nargs" and "default" are those of the first release that has the flag; "dest_since", "type_since",
"nargs_since" and "default_since" tell of the releases that changed them. "choices" are those of all releases ("choices_since", "choices_until": not
in every one); a release without any takes every value of the type. "default" is what the Namespace has where no flag is given; it is
missing where that comes from the environment."""
import argparse
import enum
import importlib.abc
import importlib.machinery
import json
import os
import subprocess
import sys
import types

SOURCE = ("Arguments of Megatron-LM, made by planner/launch/arguments_of_megatron.py, whose head tells what the keys mean, "
          "from Megatron-LM's own parser at these commits.")
FROM_ENVIRONMENT = "-7"  # No default of Megatron's.
ENVIRONMENT = {"WORLD_SIZE": FROM_ENVIRONMENT, "LOCAL_RANK": FROM_ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
               "CUDA_VISIBLE_DEVICES": ""}
KEPT = ["PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "LC_ALL"]
CHANGING = ["dest", "type", "nargs", "default"]


# ---- In the process of one tree

class StandIn(types.ModuleType):
    """A module of which any name imports: classes by their capital, else decorators, which leave a function as it is."""

    __version__ = "2.18.0"

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        if name.lstrip("_")[:1].isupper():
            value = type(name, (), {"__init__": lambda self, *args, **kwargs: None, "apply": None, "__module__": self.__name__})
        else:
            value = StandIn(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) else self


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    ROOTS = ["transformer_engine", "transformer_engine_torch", "triton"]

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self.ROOTS else None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


class Either(argparse.BooleanOptionalAction):
    """Without parameters that Megatron gives and Python 3.14 no longer takes; they did nothing."""

    def __init__(self, *args, type=None, choices=None, metavar=None, **kwargs):
        super().__init__(*args, **kwargs)


def parser_of(tree: str) -> argparse.ArgumentParser:
    import torch
    torch.compile = lambda model=None, **kwargs: model if model is not None else lambda function: function
    sys.meta_path.insert(0, StandIns())
    sys.path[0] = tree
    argparse.BooleanOptionalAction = Either
    from megatron.post_training.arguments import add_modelopt_args  # pretrain_gpt.py takes them where ModelOpt is installed.
    from megatron.training import arguments
    if not os.path.samefile(arguments.__file__, f"{tree}/megatron/training/arguments.py"):
        sys.exit(f"{tree}: this Python takes {arguments.__file__} instead")
    return add_modelopt_args(arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False)))


def type_of(action: argparse.Action) -> str:
    for kind, name in [(argparse.BooleanOptionalAction, "either"), (argparse._StoreTrueAction, "true"), (argparse._StoreFalseAction, "false")]:
        if isinstance(action, kind):
            return name
    if type(action) is not argparse._StoreAction:
        sys.exit(f"{action.option_strings}: what does a {type(action).__name__} take?")
    return action.type.__name__ if action.type in (int, float, bool) else "str"  # Functions read lists, patterns and members.


def words_read_by(function) -> list[str]:
    """The words that a function reads as members of an enumeration that it names, and what else it knows by name."""
    named = [function.__globals__.get(name) for name in function.__code__.co_names]
    members = [word for value in named if isinstance(value, enum.EnumMeta) for word in value.__members__]
    constants = [word for value in function.__code__.co_consts for word in (value if isinstance(value, frozenset) else [value])]
    words = members + sorted(word for word in constants if isinstance(word, str) and word.isidentifier()) if members else []
    return [word for word in words if reads(function, word)]


def reads(function, word: str) -> bool:
    try:
        function(word)
    except (KeyError, ValueError):
        return False
    return True


def choices_of(action: argparse.Action) -> list[str]:
    if action.choices is None:
        return words_read_by(action.type) if isinstance(action.type, types.FunctionType) else []
    choices = list(action.choices)
    if isinstance(choices[0], enum.Enum):
        return [word for word, member in type(choices[0]).__members__.items() if member in choices]
    return [str(choice) for choice in choices]


def plain(value):
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value  # What is no JSON fails there.


def arguments_of(tree: str) -> dict[str, dict]:
    """The parser's flags in its order."""
    parser = parser_of(tree)
    defaults = vars(parser.parse_args([]))
    rows = {}
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        row = {"dest": action.dest, "type": type_of(action)}
        if action.nargs:
            row["nargs"] = action.nargs
        if choices := choices_of(action):
            row["choices"] = choices
        default = plain(defaults[action.dest])
        if str(default) != FROM_ENVIRONMENT:
            row["default"] = default
        for flag in action.option_strings:
            if row["type"] != "either" or not flag.startswith("--no-"):
                rows[flag] = row
    return rows


# ---- All releases together

def commit_of(tree: str) -> list[str]:
    """And its date."""
    return subprocess.run(["git", "-C", tree, "log", "-1", "--format=%H %cs"], check=True, text=True, stdout=subprocess.PIPE).stdout.split()


def read_release(text: str) -> tuple[dict, dict]:
    """A release and its flags."""
    tree, _, described = text.rpartition("=")
    name, *commit = described.split("@")
    commit, date = commit or commit_of(tree)
    environment = {key: os.environ[key] for key in KEPT if key in os.environ} | ENVIRONMENT
    process = subprocess.run([sys.executable, "-W", "ignore", __file__, "--tree", os.path.abspath(tree)], env=environment, text=True,
                             stdout=subprocess.PIPE)
    if process.returncode != 0:
        sys.exit(f"{tree}: no parser, as told above")
    return {"name": name, "commit": commit, "date": date}, json.loads(process.stdout)


def in_order(lists: list[list[str]]) -> list[str]:
    """What stands in any of the lists, the newest of which is the last: that one's order, with what only older ones have behind what it follows there."""
    merged = []
    for names in reversed(lists):
        at = 0
        for name in names:
            if name not in merged:
                merged.insert(at, name)
            at = merged.index(name) + 1
    return merged


def span(has: list[bool], releases: list[str], what: str) -> tuple[str | None, str | None]:
    """The release since which and until which there is something; None: all before it, after it."""
    first, last = has.index(True), len(has) - 1 - has[::-1].index(True)
    if not all(has[first:last + 1]):
        sys.exit(f"{what}: it was taken away and came back, which the format cannot tell")
    return releases[first] if first > 0 else None, releases[last] if last + 1 < len(has) else None


def merged_row(flag: str, rows: list[dict | None], releases: list[str]) -> dict:
    since, until = span([row is not None for row in rows], releases, flag)
    mine = [(release, row) for release, row in zip(releases, rows) if row is not None]
    first = mine[0][1]
    result = {key: first[key] for key in ["dest", "type", "nargs"] if key in first}
    choices = in_order([row.get("choices", []) for _, row in mine])
    spans = {choice: span([choice in row.get("choices", []) for _, row in mine], [release for release, _ in mine], f"{flag} {choice}")
             for choice in choices}
    if choices:
        result["choices"] = choices
    if "default" in first:
        result["default"] = first["default"]
    result |= {key: value for key, value in [("since", since), ("until", until)] if value}
    for key in CHANGING:
        changes = {release: row.get(key) for (_, before), (release, row) in zip(mine, mine[1:])
                   if (row.get(key), type(row.get(key))) != (before.get(key), type(before.get(key)))}
        if changes:
            result[f"{key}_since"] = changes
    for at, key in enumerate(["choices_since", "choices_until"]):
        if some := {choice: both[at] for choice, both in spans.items() if both[at]}:
            result[key] = some
    return result


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] == "--tree":
        output = os.dup(1)
        os.dup2(2, 1)  # Megatron prints while it makes the parser.
        with open(output, "w") as file:
            json.dump(arguments_of(sys.argv[2]), file, allow_nan=False)
        return
    if len(sys.argv) < 2 or not all("=" in text for text in sys.argv[1:]):
        sys.exit(__doc__)
    releases, flags = zip(*map(read_release, sys.argv[1:]))
    names = [release["name"] for release in releases]
    rows = {flag: merged_row(flag, [of_release.get(flag) for of_release in flags], names) for flag in in_order([list(each) for each in flags])}
    print('{\n  "_source": ' + json.dumps(SOURCE) + ',\n  "releases": [')
    print(",\n".join("    " + json.dumps(release) for release in releases))
    print('  ],\n  "arguments": {')
    print(",\n".join(f"    {json.dumps(flag)}: {json.dumps(row, allow_nan=False)}" for flag, row in rows.items()))
    print("  }\n}")


if __name__ == "__main__":
    main()
