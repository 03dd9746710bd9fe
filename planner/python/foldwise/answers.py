"""What the functions return: dicts as in the JSON of the command line, whose keys are attributes too."""
from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Optional, get_args, get_origin, get_type_hints

from . import html

if TYPE_CHECKING:
    import pandas


def _frame(rows: Any, **options: Any) -> pandas.DataFrame:
    import pandas
    return pandas.DataFrame(rows, **options)


def _waterfall_frame(lines: Any, names: Any) -> pandas.DataFrame:
    """A row per line, a column of seconds for each of `names`."""
    return _frame([{**{key: line[key] for key in ('cause', 'kind', 'module', 'group')},
                    **dict(zip(names, line['seconds']))} for line in lines])


@functools.lru_cache(maxsize=None)
def _typed_keys(kind: type) -> list[tuple[str, Any]]:
    """The annotations that name a kind of answer of its own."""
    def named(hint: Any) -> bool:
        if get_origin(hint) is list:
            return named(get_args(hint)[0])
        return isinstance(hint, type) and issubclass(hint, Answer) and hint is not Answer

    return [(key, hint) for key, hint in get_type_hints(kind).items() if named(hint)]


def _typed(hint: Any, value: Any) -> Any:
    """`value` as the annotation says, where that names a kind of answer."""
    if isinstance(value, dict) and isinstance(hint, type) and issubclass(hint, Answer):
        return hint.of(value)
    if isinstance(value, list) and get_origin(hint) is list:
        return [_typed(get_args(hint)[0], member) for member in value]
    return value


class Answer(dict):
    """A dict with the keys of the JSON, which are attributes too: `answer.step_time_s` is `answer['step_time_s']`.
    A key with the name of a method of dicts ("values") has the method as its attribute."""

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f'{type(self).__name__} has no {key!r}, only {", ".join(self)}') from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]

    @classmethod
    def of(cls, value: dict) -> Any:
        answer = cls(value)
        for key, hint in _typed_keys(cls):
            if key in answer:
                answer[key] = _typed(hint, answer[key])
        return answer

    @classmethod
    def read(cls, text: str) -> Any:
        return cls.of(json.loads(text, object_hook=Answer))


class Run(Answer):
    """A run file: model, system, number of GPUs and options (docs/run-file.md; `foldwise.fields()`)."""
    model: Any
    """Name of a built-in model, path of a config.json, or such an object itself."""
    system: str
    """Name of a built-in system or path of a profile."""
    num_gpus: int

    def to_frame(self) -> pandas.DataFrame:
        """A row per option: key and value."""
        return _frame(html.leaves(self), columns=['field', 'value'])


class Prediction(Answer):
    """One step of a run: docs/output.md#predict says what each key means. The keys from `fitting` on are those of
    `predict(run)`; `predict(run, explain=False)` and the predictions inside other answers lack them."""
    id: str
    step_time_s: float
    interval: Optional[Answer]
    """{"step_time_s": [low, high], "step_time_95_s": ...}: docs/output.md#predict; null with explain=False."""
    tokens_per_s_per_gpu: float
    model_tflops_per_gpu: float
    mfu_pct: Optional[float]
    unread_keys_pct: float
    breakdown: Answer
    """Seconds of the busiest stage: compute, exposed_communication, exposed_copy, bubble, host."""
    breakdown_detail: list[Answer]
    """The same by cause, kind of kernel, module and process group."""
    stages: list[Answer]
    critical_stage: int
    step_end: list[Answer]
    memory: list[Answer]
    """GiB by pipeline stage and cause."""
    peak_memory_gib: float
    """Of torch's allocator."""
    peak_device_memory_gib: float
    """What the device must have: with overhead."""
    capacity_gib: float
    host_capacity_gib: float
    fits: bool
    assumed: list[str]
    imbalance: Optional[Answer]
    fitting: Optional[Answer]
    """What would make a run fit that does not."""
    explain: Answer
    communication: Answer
    run: Run
    """The complete run file."""
    provenance: Answer
    beyond_fit: list[str]
    training: Answer

    def to_frame(self) -> pandas.DataFrame:
        """A row per line of `breakdown_detail`: where the seconds of the step go."""
        return _frame(self['breakdown_detail'])

    def memory_frame(self) -> pandas.DataFrame:
        """A row per pipeline stage, in GiB."""
        return _frame(self['memory']).drop(columns='overhead_parts').set_index('stage')

    def schedule_svg(self) -> str:
        """A drawing of the schedule. Needs `run`."""
        from .api import schedule_svg
        return schedule_svg(self['run'])

    def _repr_html_(self) -> str:
        return html.prediction(self)


class PlannedRun(Answer):
    """A plan: its run file, its prediction, and what limits it."""
    run: Run
    prediction: Prediction
    imbalance: Answer
    why: list[str]


class Plan(Answer):
    """What a search found: docs/output.md#plan. Plans are the fastest of their layouts, fastest first."""
    problem: Answer
    search: Answer
    plans: list[PlannedRun]
    pareto: list[PlannedRun]
    groups: list[Any]
    """First and last plan of those that the model cannot tell apart."""
    alternatives: list[Answer]
    """What the first plan's choices earn."""
    other_states: Optional[Answer]
    """What optimizer states of the other type give."""
    shortage: Optional[Answer]
    """Why nothing fits."""
    decision: Optional[Answer]
    """How sure it is that the first plan is the fastest, and the plan of least expected loss."""
    explain: Optional[Answer]
    why_not: list[Answer]

    def comparison(self) -> Optional[Comparison]:
        """The run of `from_run` beside the first plan; None: it was not asked for, or there is no plan."""
        return Comparison.of(self['from']) if 'from' in self else None

    def to_frame(self) -> pandas.DataFrame:
        """A row per plan."""
        return _frame(html.plan_rows(self))

    def _repr_html_(self) -> str:
        return html.plan(self)


class Comparison(Answer):
    """Runs side by side: docs/output.md#compare."""
    runs: list[PlannedRun]
    differences: list[Answer]
    seconds: Answer
    memory_gib: Answer
    explanation: list[Answer]
    """The waterfall: seconds of each run by cause, kind, module and group, the largest difference first."""
    fastest: int

    def to_frame(self) -> pandas.DataFrame:
        """The waterfall: a row per line, a column of seconds per run."""
        return _waterfall_frame(self['explanation'], html.run_names(self))

    def _repr_html_(self) -> str:
        return html.comparison(self)


class Diagnosis(Answer):
    """A measured step beside its prediction: docs/output.md#diagnose."""
    predicted_s: float
    measured_s: float
    unprofiled_s: Optional[float]
    waterfall: Answer
    measured: list[Answer]
    findings: list[Answer]
    """What makes the step longer than predicted, the largest first: what, seconds, evidence, flags."""
    reasons: list[Answer]
    """What the difference is made of; they add up to it: what, seconds."""
    speed: Answer
    """How fast the GPU was, beside the prediction: products, spread, memory_bound, interrupted, slow."""
    memory: Optional[Answer]
    expert_rows: Optional[Answer]
    ranks: list[Answer]
    links: list[Answer]
    changes: list[Answer]
    """Of the run, predicted to be faster: change, step_time_s, and flags, what Megatron is started with otherwise."""

    def to_frame(self) -> pandas.DataFrame:
        """The waterfall: a row per line, predicted and measured seconds."""
        return _waterfall_frame(self['waterfall']['lines'], ('predicted_s', 'measured_s'))


class Validation(Answer):
    """Predictions beside measurements: docs/output.md#validate."""
    rows: list[Answer]
    skipped: list[Answer]
    out_of_memory: list[Answer]
    summary: Answer

    def to_frame(self) -> pandas.DataFrame:
        """A row per measured run."""
        return _frame([{'id': row['id'], 'file': row['file'], 'measured_s': row['measured']['step_time_s'],
                        'predicted_s': row['predicted']['step_time_s'], 'error_pct': row['error_pct'],
                        'memory_error_pct': row['memory_error_pct']} for row in self['rows']])


class Model(Answer):
    """A model as Megatron builds it, and the config.json of a built-in one."""
    name: str
    num_layers: int
    hidden_size: int
    layers: list[Answer]
    parameters: Answer
    config: Optional[Answer]

    def to_frame(self) -> pandas.DataFrame:
        """A row per fact."""
        return _frame(html.leaves({key: value for key, value in self.items() if key != 'config'}),
                      columns=['field', 'value'])


class System(Answer):
    """A system: every number of its profile, with its source."""
    name: str
    gpu: str
    facts: list[Answer]
    profile: Answer

    def to_frame(self) -> pandas.DataFrame:
        """A row per number: field, value, kind, source, date, note."""
        return _frame(self['facts'])


class Fields(Answer):
    """Every field of a run file, and the sets of defaults."""
    fields: list[Answer]
    defaults: list[Answer]

    def to_frame(self) -> pandas.DataFrame:
        """A row per field."""
        return _frame(self['fields']).set_index('key')


class Launch(Answer):
    """What starts a run: arguments, environment, and as `text` the script or job. `str()` is the text."""
    release: str
    num_gpus: int
    environment: list[Answer]
    arguments: list[Answer]
    text: str

    def __str__(self) -> str:
        return self['text']


class Imported(Answer):
    """A run file read from a log or a launch script, and what of that it does not show."""
    run: Run
    notes: list[str]
    """What a script asked for and did not find, and that it starts several runs."""
    left_out: list[str]
    steady_iterations: int
    unknown: list[Answer]
    unused: list[Answer]
    refused: list[Answer]
