import concurrent.futures
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor

import pytest
from conftest import QUESTION, ROOT, SMALL

import foldwise
from foldwise import sweeps

VALUES = {'num_gpus': [8, 16, 32], 'ep': [2, 3, 8], 'micro_batch': [1, 2]}


@pytest.fixture
def points(small):
    return foldwise.points(small, set=VALUES)


@pytest.fixture
def table(points):
    return [points.row(i) for i in range(len(points))]


class Breaking(ThreadPoolExecutor):
    """Breaks as a pool does whose worker is killed, when it is asked for a point for which `breaks` says so."""

    def __init__(self, breaks):
        super().__init__(2)
        self._breaks, self._broken = breaks, False

    def submit(self, work, points, first, last):
        if self._broken:
            raise BrokenExecutor('gone')
        if any([self._breaks(point) for point in range(first, last)]):
            self._broken = True
            future = Future()
            future.set_exception(BrokenExecutor('gone'))
            return future
        return super().submit(work, points, first, last)


# Is the table that of the command line, byte by byte, a refused point among its rows?
@pytest.mark.parametrize('suffix', ['csv', 'jsonl'])
def test_table_is_the_command_lines(program, tmp_path, small, suffix):
    run, ours, theirs = tmp_path / 'run.json', tmp_path / f'ours.{suffix}', tmp_path / f'theirs.{suffix}'
    run.write_text(json.dumps(small))
    sets = [word for key, values in VALUES.items() for word in ('--set', f'{key}={",".join(map(str, values))}')]
    program('sweep', run, *sets, '--out', theirs, '--format', suffix)
    rows = foldwise.sweep(foldwise.points(run, set=VALUES), out=ours)
    assert ours.read_text() == theirs.read_text()
    refused = [row for row in rows if row.status == 'refused']
    assert refused and all(row.reason and row.run is None for row in refused)


# Plans too?
def test_planned_points_are_the_command_lines(program, tmp_path):
    ours, theirs = tmp_path / 'ours.csv', tmp_path / 'theirs.csv'
    program('sweep', '--plan', '--model', 'olmoe-1b-7b', '--system', 'h100-sxm-80gb', '--precision', 'bf16',
            '--global-batch', 64, '--effort', 0.3, '--set', 'num_gpus=4,8', '--out', theirs)
    question = {**QUESTION, 'system': 'h100-sxm-80gb'}
    del question['gpus']
    with ThreadPoolExecutor(2) as pool:
        foldwise.sweep(foldwise.points(plan=question, set={'num_gpus': [4, 8]}), pool, out=ours)
    assert ours.read_text() == theirs.read_text()


# Do rows keep their order whatever order they are done in, and does the caller's executor stay open?
def test_order_is_kept(points, table):
    class Reversed(ThreadPoolExecutor):
        """Does nothing before it has everything, and then the last first."""
        held = []

        def submit(self, *call):
            self.held.append((Future(), call))
            if len(self.held) == len(points):
                for future, (work, *arguments) in reversed(self.held):
                    future.set_result(work(*arguments))
            return self.held[-1][0]

    assert foldwise.sweep(points, Reversed(1), chunk=1) == table
    with ThreadPoolExecutor(2) as pool:
        assert foldwise.sweep(points, pool) == table
        assert pool.submit(int).result() == 0


# Is a point at which the library itself fails a row with its error, and are the others computed?
def test_a_failing_point_is_a_row(points, table, monkeypatch):
    class Failing:
        def __getattr__(self, name):
            return getattr(points_sweep, name)

        def __len__(self):
            return len(points_sweep)

        def row(self, point):
            if point == 3:
                raise ZeroDivisionError('a bug')
            return points_sweep.row(point)

    points_sweep = points._sweep
    monkeypatch.setattr(points, '_sweep', Failing())
    with ThreadPoolExecutor(2) as pool:
        rows = foldwise.sweep(points, pool)
    assert (rows[3].status, rows[3].reason) == ('failed', 'ZeroDivisionError: a bug')
    assert rows[3].num_gpus == table[3].num_gpus and list(rows[3]) == list(table[3])
    assert rows[:3] + rows[4:] == table[:3] + table[4:]


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


class Mortal(sweeps.ProcessPool):
    """Loses the worker, really killed, that is about to do the eighth task."""
    submitted = 0

    def submit(self, work, *arguments):
        self.submitted += 1
        return super().submit(die if self.submitted == 8 else work, *arguments)


# Is a worker that is killed made up for?
def test_points_of_a_killed_worker_run_again(points, table):
    pools = []

    def make():
        pools.append(sweeps.ProcessPool(2) if pools else Mortal(2))
        return pools[-1]

    assert foldwise.sweep(points, make, chunk=1) == table
    assert len(pools) == 2


# Does a point that breaks whatever runs it become a row, while all others are computed?
@pytest.mark.parametrize('chunk', [1, 4])
def test_a_point_that_kills_its_workers_is_a_row(points, table, chunk):
    rows = foldwise.sweep(points, lambda: Breaking(lambda point: point == 7), chunk=chunk)
    assert (rows[7].status, rows[7].reason) == ('failed', 'BrokenExecutor: gone')
    assert rows[:7] + rows[8:] == table[:7] + table[8:]


# Does a broken executor that is the caller's end the sweep, with what was computed kept, and is that gone on with?
def test_a_file_is_gone_on_with(points, table, tmp_path):
    for suffix in ('csv', 'jsonl', 'parquet'):
        if suffix == 'parquet':
            pytest.importorskip('pyarrow')
        out, asked = tmp_path / f'rows.{suffix}', []
        with pytest.raises(BrokenExecutor):
            foldwise.sweep(points, Breaking(lambda point: point == 9), out=out, chunk=1)
        rows = foldwise.sweep(points, lambda: Breaking(lambda point: asked.append(point)), out=out, chunk=1)
        assert [row.step_time_s for row in rows] == [row.step_time_s for row in table]
        assert 9 in asked and 0 not in asked
        other = foldwise.points(dict(pickle.loads(pickle.dumps(json.loads(points._question[0][0]))), seq_len=8192),
                                set=VALUES)
        with pytest.raises(foldwise.ConfigError):
            foldwise.sweep(other, ThreadPoolExecutor(1), out=out)
    frame = pytest.importorskip('pandas').read_parquet(tmp_path / 'rows.parquet')
    assert list(frame.columns) == points.columns() and len(frame) == len(table)


# Are points whose answer an engine lost tried again, and rows with its error the second time?
@pytest.mark.parametrize('times', [1, 2])
def test_a_lost_answer_is_tried_again(points, table, times):
    class Forgetful(ThreadPoolExecutor):
        lost = 0

        def submit(self, work, points, first, last):
            if first <= 7 < last and self.lost < times:
                self.lost += 1
                future = Future()
                future.set_exception(OSError('lost'))
                return future
            return super().submit(work, points, first, last)

    with Forgetful(2) as pool:
        rows = foldwise.sweep(points, pool, chunk=1)
    if times == 1:
        assert rows == table
    else:
        assert (rows[7].status, rows[7].reason) == ('failed', 'OSError: lost')
        assert rows[:7] + rows[8:] == table[:7] + table[8:]


# Are points small to send, and equal after it?
def test_points_pickle(points, table):
    text = pickle.dumps(points)
    assert len(text) < 2000
    assert pickle.loads(text) == points and pickle.loads(text).row(3) == table[3]


# Are mistakes in the axes raised before anything is computed?
def test_mistakes_are_raised_at_once(small):
    with pytest.raises(foldwise.ConfigError) as raised:
        foldwise.points(small, set={'tp': [1, 'x'], 'system.no_such': [1]})
    assert 'set tp' in raised.value.field


# 100 points, some of them refused: is a table the same whatever computes it?
@pytest.fixture(scope='module')
def many():
    axes = {'num_gpus': [8, 16, 32, 64, 128], 'ep': [1, 2, 3, 4, 8], 'micro_batch': [1, 2], 'pp': [1, 3]}
    points = foldwise.points(SMALL, set=axes)
    assert len(points) == 100
    return points


@pytest.fixture(scope='module')
def pooled(many):
    rows = foldwise.sweep(many)
    assert {row.status for row in rows} >= {'fits', 'refused'}
    return rows


# Do Dask's workers give the table of a process pool, one of them killed in the middle?
def test_dask(many, pooled):
    distributed = pytest.importorskip('distributed', reason='Dask is not installed')
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, \
            distributed.Client(cluster) as client:
        rows = []
        for row in foldwise.iter_sweep(many, client.get_executor(), chunk=4):
            rows.append(row)
            if len(rows) == 8:
                os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)
    assert rows == pooled


# Do Ray's tasks, through the wrapper of docs/python.md?
def test_ray(many, pooled):
    ray = pytest.importorskip('ray', reason='Ray is not installed')
    shown = (ROOT / 'docs/python.md').read_text()
    names = {}
    exec(textwrap.dedent(shown[shown.index('    class RayExecutor'):].split('\n\n')[0]),
         {'ray': ray, 'concurrent': concurrent}, names)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        assert foldwise.sweep(many, names['RayExecutor']()) == pooled
    finally:
        ray.shutdown()


# Do MPI's ranks?
def test_mpi(many, pooled, tmp_path):
    pytest.importorskip('mpi4py', reason='mpi4py is not installed')
    mpirun = shutil.which('mpirun', path=os.pathsep.join([os.path.dirname(sys.executable), os.environ['PATH']]))
    if mpirun is None:
        pytest.skip('mpirun is not installed')
    (tmp_path / 'points').write_bytes(pickle.dumps(many))
    (tmp_path / 'study.py').write_text(MPI_STUDY)
    environment = {**os.environ, 'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1',
                   'PRTE_MCA_rmaps_default_mapping_policy': ':oversubscribe', 'TMPDIR': str(tmp_path)}
    done = subprocess.run([mpirun, '-n', '3', sys.executable, '-m', 'mpi4py.futures', 'study.py'], cwd=tmp_path,
                          env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert pickle.loads((tmp_path / 'rows').read_bytes()) == pooled


MPI_STUDY = '''
import pathlib, pickle
import foldwise
from mpi4py.futures import MPIPoolExecutor

if __name__ == '__main__':
    points = pickle.loads(pathlib.Path('points').read_bytes())
    with MPIPoolExecutor() as pool:
        rows = foldwise.sweep(points, pool)
    pathlib.Path('rows').write_bytes(pickle.dumps(rows))
'''
