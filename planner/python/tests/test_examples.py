import pathlib

import pytest

EXAMPLES = sorted((pathlib.Path(__file__).resolve().parents[1] / 'examples').glob('*.ipynb'))


# Do the notebooks run from top to bottom?
@pytest.mark.parametrize('path', EXAMPLES, ids=lambda path: path.stem)
def test_notebook_runs(path):
    nbclient, nbformat = pytest.importorskip('nbclient'), pytest.importorskip('nbformat')
    nbclient.NotebookClient(nbformat.read(path, as_version=4), timeout=300, kernel_name='python3',
                            resources={'metadata': {'path': str(path.parent)}}).execute()
