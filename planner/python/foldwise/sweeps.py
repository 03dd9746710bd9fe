"""Tables over fields of run, model and system, computed by any engine that is a concurrent.futures.Executor."""
from __future__ import annotations

import contextlib
import functools
import inspect
import json
import math
import multiprocessing
import os
from collections import deque
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, Union

from . import _native, api, html
from .answers import Answer

if TYPE_CHECKING:
    import pandas

ExecutorLike = Union[Executor, Callable[[], Executor]]


class Points:
    """Every combination of values of some fields: of one run, or of one question to `plan`. `len()` counts them; the
    last field varies fastest. Cheap to send to workers."""

    def __init__(self, run: Optional[tuple[str, str, bool]], arguments: dict[str, Any],
                 axes: list[tuple[str, list[str]]]):
        self._question = (run, arguments, axes)
        self._sweep = _native_sweep(json.dumps(self._question))

    def __len__(self) -> int:
        return len(self._sweep)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Points) and self._question == other._question

    def __reduce__(self) -> Any:
        return Points, self._question

    def chunk(self, first: int) -> int:
        """Points of a task, if that many are left to do: one plan, or predictions that fill a second or so."""
        if self._question[0] is None:
            return 1
        return max(1, min(64, (len(self) - first) // (4 * (os.cpu_count() or 1))))

    def columns(self) -> list[str]:
        """Of the table, in order."""
        return self._sweep.columns()

    def row(self, point: int) -> Answer:
        """A row of the table, and "run", the run file of the answer. A point that cannot be answered says why."""
        return Answer.read(self._sweep.row(point))


@functools.lru_cache(maxsize=4)
def _native_sweep(question: str) -> _native.Sweep:
    """Of equal questions one, because reading it loads models and systems."""
    run, arguments, axes = json.loads(question)
    return _native.sweep(None if run is None else _native.RunText(*run), arguments,
                         [(key, values) for key, values in axes])


def points(run: Optional[api.RunLike] = None, *, set: api.Values, plan: Optional[dict[str, Any]] = None,
           tokens: Any = None, price: Optional[float] = None, mtbf: Optional[float] = None,
           storage: Optional[float] = None, restart: Optional[float] = None) -> Points:
    """Points of a sweep: of `run` with the fields of `set` changed, or with `plan={"model": ..., "gpus": ...}` the
    first plan of each question. `set` may have "model", "system", "num_gpus", "model_overrides.KEY", "system.KEY"."""
    if (run is None) == (plan is None):
        raise TypeError('points() takes a run or plan=, one of them')
    arguments = {} if plan is None else api.plan_arguments(**{**_PLAN, **plan})
    arguments.update(api.cost_arguments(tokens, price, mtbf, storage, restart))
    question = None
    if run is not None:
        question = (json.dumps(run), 'run', False) if isinstance(run, dict) else (Path(run).read_text(),
                                                                                  os.fspath(run), True)
    return Points(question, arguments, list(api.texts_of(set).items()))


_PLAN = {name: inspect.signature(api.plan).parameters[name].default
         for name in inspect.signature(api.plan_arguments).parameters} | {'threads': 1}
"""What `plan` asks where its caller does not say, on one core: the others have rows of their own."""


class Rows(list):
    """The rows of a sweep in the order of its points, each an `Answer`."""

    def __init__(self, points: Points, rows: Any = ()):
        super().__init__(rows)
        self.points = points

    def __reduce__(self) -> Any:
        return Rows, (self.points, list(self))

    def to_frame(self) -> pandas.DataFrame:
        """The table that `foldwise sweep` prints."""
        import pandas
        return pandas.DataFrame(self, columns=self.points.columns())

    def chart_svg(self, y: str = 'tokens_per_s_per_gpu') -> str:
        """Column `y` over the first field, a line for each combination of the others."""
        return self.points._sweep.svg([json.dumps(row) for row in self], y)

    def _repr_html_(self) -> str:
        shown = [{key: value for key, value in row.items() if key not in ('run', 'sweep')} for row in self[:50]]
        return html.table(shown, f'{len(shown)} of {len(self)} rows')


def sweep(points: Points, executor: Optional[ExecutorLike] = None, *, out: Union[str, os.PathLike[str], None] = None,
          chunk: int = 0, progress: Any = None) -> Rows:
    """Every row of the table. See `iter_sweep`; `progress` is a tqdm bar, or called with (rows done, rows)."""
    rows = Rows(points)
    if hasattr(progress, 'update'):
        progress.total = len(points)
    for row in iter_sweep(points, executor, out=out, chunk=chunk):
        rows.append(row)
        if hasattr(progress, 'update'):
            progress.update(1)
        elif progress is not None:
            progress(len(rows), len(points))
    if out is not None and os.fspath(out).endswith('.parquet'):
        beside = os.fspath(out) + '.part'
        rows.to_frame().to_parquet(beside)
        os.replace(beside, out)
    return rows


def iter_sweep(points: Points, executor: Optional[ExecutorLike] = None, *,
               out: Union[str, os.PathLike[str], None] = None, chunk: int = 0) -> Iterator[Answer]:
    """The rows as they come, in the order of the points.

    `executor`: any concurrent.futures.Executor, which is left open, or a function that makes one; by default a pool of
    processes. A refused point is a row with its reason. Points of a worker that was lost run again where there is a
    function to make another executor; one that breaks it by itself is a row with status "failed".
    `out`: a file of the rows, .csv, .jsonl or .parquet, written as they come. One that an earlier sweep of equal points
    left, of `foldwise sweep` too, is gone on with. `chunk`: points of one task; 0: by their number."""
    if out is None:
        yield from map(Answer.read, _computed(points, 0, executor, chunk))
        return
    with contextlib.closing(_RowFile(out, points)) as file:
        found = file.found()
        yield from map(Answer.read, found)
        for text in _computed(points, len(found), executor, chunk):
            file.append(text)
            yield Answer.read(text)


class _RowFile:
    """A file that grows by rows. Parquet cannot: its rows go to a .jsonl beside it until all are there."""

    def __init__(self, path: Union[str, os.PathLike[str]], points: Points):
        self._path, self._sweep = os.fspath(path), points._sweep
        if self._path.endswith('.parquet'):
            self._path += '.jsonl'
        self._file = _native.RowFile(self._path, self._sweep)

    def found(self) -> list[str]:
        return self._file.found(self._path, self._sweep)

    def append(self, text: str) -> None:
        self._file.append(self._path, text)

    def close(self) -> None:
        del self._file  # Which unlocks it, whoever still has a traceback with this object in it.


class ProcessPool(ProcessPoolExecutor):
    """One process a core, started anew: a fork would lack the threads that the search has."""

    def __init__(self, workers: Optional[int] = None):
        context = multiprocessing.get_context('spawn')
        self._started = context.Event()
        super().__init__(workers, mp_context=context, initializer=self._started.set)

    def check_started(self) -> None:
        if not self._started.is_set():
            raise RuntimeError('no worker started. A script that sweeps needs `if __name__ == "__main__":` around it, '
                               'because workers import it')


def compute_rows(points: Points, first: int, last: int) -> list[str]:
    """What a worker does: the rows from `first` to before `last`, as JSON."""
    return [_row(points, point) for point in range(first, last)]


def _row(points: Points, point: int) -> str:
    try:
        return points._sweep.row(point)
    except Exception as error:  # A bug of ours at one point must not cost the others.
        return _failed(points, point, error)


def _failed(points: Points, point: int, error: BaseException) -> str:
    known = json.loads(points._sweep.known_cells(point))
    reason = f'{type(error).__name__}: {error}'.replace('\n', ' ')
    return json.dumps({**dict.fromkeys(points.columns()), **known, 'status': 'failed', 'reason': reason, 'run': None})


Span = tuple[int, int]


class _Queue:
    """Spans of points that are to be computed. Of an executor that broke, the spans that it had run again; the second
    time point by point, each alone, so that a point that breaks it is known."""

    def __init__(self, first: int, last: int, size: int):
        self._spans = deque((at, min(at + size, last)) for at in range(first, last, size))
        self._alone: deque[Span] = deque()
        self._lost: set[Span] = set()

    def next(self, running: int) -> Optional[Span]:
        """None: nothing is to be started beside what runs."""
        if self._alone:
            return None if running else self._alone[0]
        return self._spans[0] if self._spans else None

    def started(self) -> None:
        (self._alone or self._spans).popleft()

    def lost(self, spans: list[Span]) -> Optional[int]:
        """Takes back what a broken executor had; the point that broke it, where that is known."""
        if len(spans) == 1 and spans[0] in self._lost and spans[0][1] - spans[0][0] == 1:
            return spans[0][0]
        for span in sorted(spans, reverse=True):
            if span in self._lost:
                singles = [(at, at + 1) for at in range(*span)]
                self._alone.extendleft(reversed(singles))
                self._lost.update(singles)
            else:
                self._spans.appendleft(span)
                self._lost.add(span)
        return None


def _computed(points: Points, first: int, executor: Optional[ExecutorLike], chunk: int) -> Iterator[str]:
    """Rows from `first` on, as JSON, in order."""
    make = ProcessPool if executor is None else None if isinstance(executor, Executor) else executor
    engine = make() if make else executor
    queue, done, running = _Queue(first, len(points), chunk or points.chunk(first)), {}, {}
    retried: set[Span] = set()
    try:
        while first < len(points):
            broken = None
            try:
                while len(running) < _most_running(engine) and (span := queue.next(len(running))):
                    running[engine.submit(compute_rows, points, *span)] = span
                    queue.started()
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    span = running[future]
                    rows = _rows_of(future, points, span, last_try=span in retried)
                    del running[future]
                    if rows is None:
                        retried.add(span)
                        running[engine.submit(compute_rows, points, *span)] = span
                    else:
                        done[span[0]] = rows
            except BrokenExecutor as error:
                broken = error
                for future in wait(running).done:  # Every one that it still has is done too, or broken.
                    if future.exception() is None:
                        done[running.pop(future)[0]] = future.result()
            while first in done:
                rows = done.pop(first)
                first += len(rows)
                yield from rows
            if broken is None:
                continue
            if make is None:
                raise broken
            engine = _renewed(engine, make)
            culprit = queue.lost(list(running.values()))
            if culprit is not None:
                done[culprit] = [_failed(points, culprit, broken)]
            running.clear()
    finally:
        for future in running:
            future.cancel()
        if make:
            engine.shutdown(wait=True, cancel_futures=True)


def _renewed(engine: Executor, make: Callable[[], Executor]) -> Executor:
    if isinstance(engine, ProcessPool):
        engine.check_started()
    engine.shutdown(wait=False)
    return make()


def _most_running(engine: Executor) -> float:
    """Tasks in flight: of a pool of this machine few, so that few are lost with a worker."""
    return 2 * engine._max_workers if isinstance(engine, ProcessPoolExecutor) else math.inf


def _rows_of(future: Future, points: Points, span: Span, last_try: bool) -> Optional[list[str]]:
    """None: to be tried again, because the engine lost a worker or an answer; the second time they are failed rows."""
    try:
        return future.result()
    except BrokenExecutor:
        raise
    except Exception as error:
        return [_failed(points, point, error) for point in range(*span)] if last_try else None
