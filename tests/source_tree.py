#!/usr/bin/env python3
"""Does the source tree keep to the layers of docs/design.md? Prints every breach as `file:line: ...` and exits with 1:

- an #include against the arrows of LAYERS;
- a header of a library that its CMakeLists.txt does not list, so that it is not installed, or that nothing compiles
  alone: one of HEADERS is the first include of the source of its name, others belong to HEADERS_ALONE;
- a file above LINES lines that is no table.

Needs nothing but Python. Run by CTest and, before anything is built, by .ci/lint."""
import pathlib
import re
import sys

# A folder may include itself, EVERYWHERE, and what stands beside it, directly or through what that may include.
# Tests and benchmarks may include everything; nothing includes them.
LAYERS = {
    'costmodel/units': '',
    'costmodel/config': '',  # Reads JSON: a target of its own, on which no formula may lean.
    'costmodel/model': '',
    'costmodel/network': 'costmodel/units',
    'costmodel/parallel': 'costmodel/network',
    'costmodel/hardware': 'costmodel/parallel',
    'costmodel/memory': 'costmodel/parallel',
    'costmodel/pipeline': 'costmodel/parallel',
    'costmodel/ops': 'costmodel/hardware costmodel/memory costmodel/model',
    'costmodel/step': 'costmodel/ops costmodel/pipeline',
    'hwprofiles/load': 'costmodel/config costmodel/ops',
    'hwprofiles/records': 'hwprofiles/load',
    'hwprofiles/fit': 'hwprofiles/records',
    'kernels/host': 'hwprofiles/records',
    'kernels/cuda': 'hwprofiles/records',
    'planner/models': 'costmodel/config costmodel/model',
    'planner/run': 'planner/models hwprofiles/load costmodel/pipeline',
    'planner/rules': 'planner/run',
    'planner/launch': 'planner/rules',
    'planner/search': 'planner/rules costmodel/step',
    'planner/uncertainty': 'planner/search',
    'planner/report': 'planner/uncertainty hwprofiles/records',
    'planner/calibrate': 'planner/report hwprofiles/fit',
    'planner': 'planner/search',  # The facade.
    'planner/sweep': 'planner planner/report',
    'planner/diagnose': 'planner planner/calibrate',
    'planner/answer': 'planner planner/report planner/sweep planner/launch planner/diagnose',
    'planner/serve': 'planner/answer',
    'planner/cli': 'planner/serve',
    'planner/python': 'planner/answer',
}
# Variants in files of their own: parts of a folder, with its rights.
PARTS = {'costmodel/ops/dispatchers': 'costmodel/ops', 'costmodel/ops/mixers': 'costmodel/ops',
         'planner/search/strategies': 'planner/search'}
EVERYWHERE = {'costmodel/check.h', 'costmodel/enums.h'}
# Against the arrows today: files that may include one that they may not.
AGAINST = set()
# Libraries of others that a part of the tree does without.
WITHOUT = [(re.compile('nlohmann/'), lambda folder: folder.startswith('costmodel/') and folder != 'costmodel/config')]

LINES = 500
TABLES = {'hwprofiles/load/fields.cc', 'planner/launch/checks.cc', 'planner/launch/forms.cc', 'planner/rules/rules.cc', 'planner/run/fields.cc'}
# Longer today; to be parted.
LONGER = {}
LONG_FOLDERS = ('kernels/', 'tests/')  # A kernel or a test stands by itself.

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOP = ('benchmarks', 'costmodel', 'hwprofiles', 'kernels', 'planner', 'tests')
PROGRAMS = ('planner/cli', 'planner/python')  # Their headers belong to no library.


def reachable(folder):
    """Folders that `folder` may include."""
    result, pending = {folder}, LAYERS[folder].split()
    while pending:
        below = pending.pop()
        if below not in LAYERS:
            sys.exit(f'tests/source_tree.py: {folder} may include {below}, which LAYERS does not have')
        if below == folder:
            sys.exit(f'tests/source_tree.py: LAYERS goes round in a circle through {folder}')
        if below not in result:
            result.add(below)
            pending += LAYERS[below].split()
    return result


def folder_of(path):
    folder = '/'.join(path.split('/')[:-1])
    return PARTS.get(folder, folder)


def listed_headers(keyword):
    """Files that fw_library calls list after `keyword`."""
    result = set()
    for path in (path for top in TOP for path in (ROOT / top).rglob('CMakeLists.txt')):
        folder, under = path.parent.relative_to(ROOT), None
        for word in re.sub(r'#.*|[()]', ' ', path.read_text()).split():
            under = word if word.isupper() else under
            if under == keyword and word.endswith('.h'):
                result.add(f'{folder}/{word}')
    return result


def first_include(path):
    found = re.search(r'^#include ["<](.+)[">]', path.read_text(), re.MULTILINE) if path.exists() else None
    return found and found.group(1)


def main():
    files = sorted(str(path.relative_to(ROOT)) for top in TOP for suffix in ('h', 'cc', 'cuh', 'cu')
                   for path in (ROOT / top).rglob(f'*.{suffix}'))
    allowed = {folder: reachable(folder) for folder in LAYERS}
    headers, alone = listed_headers('HEADERS'), listed_headers('HEADERS_ALONE')
    breaches, against = [], set(AGAINST)
    for path in files:
        text = (ROOT / path).read_text()
        folder = folder_of(path)
        free = path.split('/')[0] in ('tests', 'benchmarks') or path in EVERYWHERE
        if folder not in LAYERS and not free:
            breaches.append(f'{path}: LAYERS of tests/source_tree.py says nothing of {folder}/')
            continue
        for number, line in enumerate(text.splitlines(), 1):
            found = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
            if not found or free:
                continue
            kind, target = found.groups()
            for header, banned in WITHOUT:
                if header.match(target) and banned(folder):
                    breaches.append(f'{path}:{number}: {folder} does without <{target}>')
            if (path, target) in AGAINST:
                against.discard((path, target))
            elif kind == '"' and target not in EVERYWHERE and folder_of(target) not in allowed[folder]:
                breaches.append(f'{path}:{number}: {folder} may not include {target}, only '
                                f'{", ".join(sorted(allowed[folder]))}')
        if path.endswith('.h') and not path.startswith(('benchmarks/', 'tests/', 'kernels/', *PROGRAMS)):
            if path not in headers | alone:
                breaches.append(f'{path}: not among the headers of its CMakeLists.txt')
            elif path in headers and first_include((ROOT / path).with_suffix('.cc')) != path:
                breaches.append(f'{path}: not the first include of a source of its name: list it under HEADERS_ALONE')
        lines = text.count('\n')
        if path in TABLES or path.startswith(LONG_FOLDERS):
            continue
        if lines > LONGER.get(str(path), LINES):
            breaches.append(f'{path}: {lines} lines, of at most {LONGER.get(str(path), LINES)}')
    for path, target in against:
        breaches.append(f'{path}: no longer includes {target}: take it off AGAINST in tests/source_tree.py')
    for path in TABLES - set(files):
        breaches.append(f'{path}: named in tests/source_tree.py, but there is no such file')
    print('\n'.join(breaches) or f'{len(files)} files: in order')
    return 1 if breaches else 0


if __name__ == '__main__':
    sys.exit(main())
