import pathlib
import re
import subprocess
import sys

import pytest
from conftest import ROOT

EXAMPLES = sorted((pathlib.Path(__file__).resolve().parents[1] / 'examples').glob('*.ipynb'))


# The same questions, of less effort: what a search finds is other tests'.
def of_less_effort(code):
    return re.sub(r'(plan\(.*global_batch=\d+)\)', r'\1, effort=0.2)', re.sub(r'\beffort=1\b', 'effort=0.2', code))


# Do the notebooks run from top to bottom?
@pytest.mark.parametrize('path', EXAMPLES, ids=lambda path: path.stem)
def test_notebook_runs(path):
    nbclient, nbformat = pytest.importorskip('nbclient'), pytest.importorskip('nbformat')
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = of_less_effort(cell.source)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name='python3',
                            resources={'metadata': {'path': str(path.parent)}}).execute()


# Do the lines that a page shows run, one after the other, but for those that need a cluster?
@pytest.mark.parametrize('page', ['docs/python.md', 'docs/howto/python.md'])
def test_documentation_runs(tmp_path, page):
    pytest.importorskip('pandas')
    shown = [block for block in (ROOT / page).read_text().split('\n\n') if block.startswith('    ')]
    code = [block for block in shown if 'foldwise' in block and 'pool' not in block and 'pip install' not in block]
    lines = [of_less_effort(line) for block in code for line in block.splitlines()]
    assert any('effort=' in line for line in lines)
    script = tmp_path / 'shown.py'
    script.write_text('\n'.join(["if __name__ == '__main__':", *lines]))
    done = subprocess.run([sys.executable, script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    assert len(code) == 3 and '#SBATCH' in done.stdout and (tmp_path / 'rows.csv').exists()
