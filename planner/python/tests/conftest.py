import json
import pathlib
import subprocess

import pytest

import foldwise

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / 'docs/examples').glob('*.json'))
SMALL = {'model': 'qwen3-30b-a3b', 'system': 'h100-sxm-80gb', 'num_gpus': 16, 'precision': 'bf16', 'tp': 1, 'pp': 1,
         'ep': 8, 'micro_batch': 1, 'global_batch': 64, 'seq_len': 4096}
QUESTION = {'model': 'olmoe-1b-7b', 'system': 'h100', 'gpus': 8, 'precision': 'bf16', 'global_batch': 64,
            'effort': 0.3}


def pytest_addoption(parser):
    parser.addoption('--program', help='The command line that the package is compared with')


@pytest.fixture
def program(request):
    """Runs the command line and returns what it prints; with --format json as JSON."""
    path = request.config.getoption('--program') or 'foldwise'

    def run(*arguments):
        done = subprocess.run([path, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode in (0, 3), done.stderr
        return json.loads(done.stdout) if 'json' in arguments else done.stdout

    return run


@pytest.fixture
def small():
    return foldwise.Run(SMALL)
