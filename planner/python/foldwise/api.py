"""The commands as functions."""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from . import _native
from .answers import (Answer, Comparison, Diagnosis, Fields, Imported, Launch, Model, Plan, Prediction, Run, System, Validation)

RunLike = Union[Mapping[str, Any], str, 'os.PathLike[str]']
"""A run file's content, or its path."""

Values = Mapping[str, Any]
"""Values that fields may have: one or a list of them by key. The names that make one value are a tuple."""


def run_text(run: RunLike) -> _native.RunText:
    if isinstance(run, Mapping):
        return _native.RunText(json.dumps(run), 'run', False)
    return _native.RunText(_text_of(run), os.fspath(run), True)


def _text_of(path: Union[str, os.PathLike[str]]) -> str:
    from .errors import ConfigError
    try:
        return Path(path).read_bytes().decode(errors='replace')
    except OSError as error:
        raise ConfigError([(os.fspath(path), 0, '', f'cannot be read: {error.strerror}')]) from None


def value_text(value: Any) -> str:
    """As a command line has it; of models and systems the values are JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return '+'.join(map(str, value)) or 'none'
    return 'none' if value is None else json.dumps(value)


def texts_of(values: Optional[Values]) -> dict[str, list[str]]:
    return {key: [value_text(value) for value in (list_ if isinstance(list_, (list, range)) else [list_])]
            for key, list_ in (values or {}).items()}


def cost_arguments(tokens: Any, price: Any, mtbf: Any, storage: Any, restart: Any) -> dict[str, Any]:
    return {'tokens': tokens if tokens is None or isinstance(tokens, str) else repr(float(tokens)), 'price': price,
            'mtbf': mtbf, 'storage': storage, 'restart': restart}


def load_run(path: Union[str, os.PathLike[str]]) -> Run:
    """A run file as it stands there. Raises ConfigError where it is none."""
    text = _text_of(path)
    _native.check(_native.RunText(text, os.fspath(path), True))
    return Run.read(text)


def load_model(name: Union[str, os.PathLike[str]]) -> Model:
    """A built-in model, or a Hugging Face config.json."""
    return Model.read(_native.model(os.fspath(name)))


def load_system(name: Union[str, os.PathLike[str]]) -> System:
    """A built-in system, or a profile."""
    return System.read(_native.system(os.fspath(name)))


def models() -> list[str]:
    """Names of the built-in models."""
    return _native.models()


def systems() -> list[str]:
    """Names of the built-in systems."""
    return _native.systems()


def fields() -> Fields:
    """Every field of a run file."""
    return Fields.read(_native.fields())


def version() -> str:
    """Version and commit, as `foldwise --version` prints it."""
    return _native.version()


def check(run: RunLike) -> list[dict[str, str]]:
    """What Megatron or the GPU would refuse about a run, [{"rule", "reason"}]; empty: it can be predicted."""
    return json.loads(_native.check(run_text(run)))


def predict(run: RunLike, *, explain: bool = True, tokens: Union[str, float, None] = None,
            price: Optional[float] = None, mtbf: Optional[float] = None, storage: Optional[float] = None,
            restart: Optional[float] = None) -> Prediction:
    """Time and memory of one step.

    `explain=False` leaves out what needs further predictions (what binds the run, what would help) and the reports of
    communication and provenance: many times quicker.
    `tokens` of a whole training ("14.8T") asks for its cost too: docs/sweep.md#cost. `price` is money a GPU-hour,
    `mtbf` hours between failures of one GPU, `storage` GB/s of checkpoints, `restart` seconds."""
    return Prediction.of(
        _native.predict(run_text(run), cost_arguments(tokens, price, mtbf, storage, restart), explain, Answer))


def schedule_svg(run: RunLike, title: str = '') -> str:
    """A drawing of a run's schedule."""
    return _native.schedule_svg(run_text(run), title or _title(run))


def trace(run: RunLike, title: str = '') -> dict[str, Any]:
    """A timeline of a run's step for ui.perfetto.dev, once written as JSON."""
    return json.loads(_native.trace(run_text(run), title or _title(run)))


def _title(run: RunLike) -> str:
    return str(run.get('id', 'run')) if isinstance(run, Mapping) else os.fspath(run)


Progress = Callable[[float, float, float], Optional[bool]]
"""Called with the share of the effort that is spent, the best step time so far and the least that is possible, in
seconds; False ends the search with what it has."""


def _progress_of(progress: Any) -> Optional[Progress]:
    """A callable as it is; of a tqdm bar, what moves it by percent."""
    if progress is None or not hasattr(progress, 'update'):
        return progress
    progress.total, done = 100, 0

    def report(effort: float, best: float, least: float) -> None:
        nonlocal done
        moved, done = int(100 * effort) - done, int(100 * effort)
        progress.update(moved)

    return report


def plan_arguments(*, model: Any, system: Any, release: Optional[str], evidence: str, gpus: int, seq_len: int, global_batch: int, precision: Optional[str],
                   set: Optional[Values], headroom: float, folding: bool, schedule: str, top: int, threads: int,
                   effort: float) -> dict[str, Any]:
    return {'model': os.fspath(model), 'system': os.fspath(system), 'release': release, 'evidence': evidence, 'gpus': gpus, 'seq_len': seq_len,
            'global_batch': global_batch, 'precision': precision, 'set': texts_of(set),
            'headroom_pct': 100.0 * headroom, 'no_folding': not folding, 'schedule': schedule, 'top': top,
            'threads': threads, 'effort': effort}


def plan(model: str = 'deepseek-v3', system: str = 'gb200-nvl72', gpus: int = 256, *, seq_len: int = 4096,
         global_batch: int = 4096, release: Optional[str] = None, evidence: str = 'run', precision: Optional[str] = None,
         set: Optional[Values] = None, headroom: float = 0.05, folding: bool = True, schedule: str = '1f1b', top: int = 10, threads: int = 0,
         effort: float = 1.6, objective: str = 'time', max_step_time: Optional[float] = None,
         slack: Optional[float] = None, why_not: Sequence[Values] = (), from_run: Optional[RunLike] = None,
         suggest: int = 0, suggest_gpus: int = 0, measured: Sequence[RunLike] = (),
         tokens: Union[str, float, None] = None, price: Optional[float] = None, mtbf: Optional[float] = None,
         storage: Optional[float] = None, restart: Optional[float] = None, progress: Any = None) -> Plan:
    """The fastest layouts that fit, as `foldwise plan` finds them; no plans: nothing fits.

    `release` of Megatron-Core: None is the newest one with a number. `evidence` is what of a plan must have been measured:
    "run", "parts" or "any".
    `set` has values that fields may have: {"tp": [2, 4], "optimizer.name": "sgd"}. `headroom` and `slack` are shares.
    `from_run` asks the question of a run instead: its model, system, GPUs, batch and numerics. `why_not` asks of
    layouts why they are no plan: [{"tp": 4, "pp": 8}]. `suggest` is how many runs to name, of up to `suggest_gpus`
    GPUs, that tell most about which plan is the fastest; `measured` are such runs with measured steps. `effort` is in seconds of a core, about.
    `progress` is a `Progress` or a tqdm bar. Ctrl-C ends the search and raises KeyboardInterrupt."""
    arguments = plan_arguments(model=model, system=system, release=release, evidence=evidence, gpus=gpus, seq_len=seq_len, global_batch=global_batch,
                               precision=precision, set=set, headroom=headroom, folding=folding, schedule=schedule,
                               top=top, threads=threads, effort=effort)
    arguments.update(cost_arguments(tokens, price, mtbf, storage, restart), objective=objective,
                     max_step_time=max_step_time, slack_pct=None if slack is None else 100.0 * slack,
                     suggest=suggest, suggest_gpus=suggest_gpus,
                     why_not=[texts_of(question) for question in why_not])
    source = None if from_run is None else run_text(from_run)
    answer = Plan.read(_native.plan(arguments, source, [run_text(run) for run in measured], _progress_of(progress)))
    if hasattr(progress, 'update') and hasattr(progress, 'n'):
        progress.update(100 - progress.n)
    return answer


def compare(*runs: RunLike) -> Comparison:
    """Two runs or more side by side, and what explains the difference from the first."""
    if len(runs) < 2:
        raise TypeError(f'compare() takes two runs or more, found {len(runs)}')
    return Comparison.read(_native.compare([run_text(run) for run in runs]))


def diagnose(run: RunLike, *traces: Union[str, os.PathLike[str]],
             log: Optional[Union[str, os.PathLike[str]]] = None) -> Diagnosis:
    """A step that PyTorch's profiler recorded, or Nsight Systems (`nsys export --type sqlite`), beside the run's prediction;
    more traces are of other ranks. `log`: Megatron's, of what steps take without a profiler."""
    return Diagnosis.read(_native.diagnose(run_text(run), [os.fspath(trace) for trace in traces],
                                           '' if log is None else os.fspath(log)))


def validate(*files: Union[str, os.PathLike[str]]) -> Validation:
    """Lists of measured runs, predicted."""
    return Validation.read(_native.validate([os.fspath(file) for file in files]))


def export(run: RunLike, to: str = 'megatron-lm', *, release: Optional[str] = None) -> Launch:
    """What starts a run: `to` "megatron-lm" (arguments), "torchrun", "slurm" or "megatron-bridge". `release` of
    Megatron-Core: None is the run's own, else the newest one with a number."""
    return Launch.read(_native.export_run(run_text(run), to, release or ''))


def import_log(path: Union[str, os.PathLike[str]], *, system: Optional[str] = None, model: Optional[str] = None,
               gpus: Optional[int] = None, env: Optional[Mapping[str, str]] = None,
               release: Optional[str] = None) -> Imported:
    """A run file from Megatron's log, a launch script, an argument list, or Megatron-Bridge's YAML."""
    return Imported.read(
        _native.import_launch(_text_of(path), os.fspath(path),
                              {'system': system, 'model': model, 'gpus': gpus, 'env': dict(env or {}),
                               'release': release}))
