#!/usr/bin/env python3
"""Runs libFuzzer's programs, which the dev preset builds.

    fuzz.py BUILD SECONDS [READER...]    each reader for so many seconds, all by default
    fuzz.py BUILD --test [READER...]     so many INPUTS, from one seed: a test
    fuzz.py BUILD --record               adds what such runs took of a core to effort.json

Inputs start from corpora.json, the reader's own words (libfuzzer.cc), the texts of its inputs and what earlier runs kept
in BUILD/corpus. What a reader dies of stays in BUILD/found; make it a file of tests/fuzz/found once it is mended. Exits
with 1 if there is any."""
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Of a test: some 10 s of a core each. What longer runs found is tests/fuzz/found, effort.json says how long they were.
INPUTS = {'run_file': 2500, 'model': 3000, 'profile': 600, 'records': 2500, 'layout': 6000, 'launch': 300, 'export': 15,
          'measured': 3000, 'trace': 3500, 'nsys': 6000}


def fuzz(build, reader, corpus, limits):
    """Whether `reader` took everything, starting from and adding to the folder `corpus`."""
    program = build / 'tests/fuzz' / f'fuzz_{reader}'
    found = build / 'found'
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    patterns = json.loads((HERE / 'corpora.json').read_text())[reader]
    texts = set()
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            shutil.copy(path, corpus / path.name)
            texts.update(re.findall(rb'"([^"\\\n]{2,64})"', path.read_bytes()))
    words = corpus.with_suffix('.dict')
    lines = subprocess.run([program, '--words'], capture_output=True, text=True, check=True).stdout.splitlines()
    lines += ['"' + ''.join(f'\\x{byte:02X}' for byte in text) + '"' for text in sorted(texts)[:2000]]
    words.write_text('\n'.join(sorted(set(lines))) + '\n')
    # The time-out is of the clock, not of a core: beside other work milliseconds may last a minute. Try what it finds alone.
    command = [program, corpus, f'-dict={words}', *limits, '-max_len=65536',
               '-timeout=300', '-rss_limit_mb=2048', f'-artifact_prefix={found}/{reader}-', '-print_final_stats=1',
               '-verbosity=0']
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    # Most of the readers' time is allocations: short stacks and a small quarantine make them cheap.
    options = 'malloc_context_size=2:quarantine_size_mb=16:external_symbolizer_path=/usr/bin/addr2line'
    environment = os.environ | {'ASAN_OPTIONS': options}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, errors='replace', check=False)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    runs = sum(int(line.split()[-1]) for line in result.stderr.splitlines() if 'number_of_executed_units' in line)
    print(f'{reader}: {runs} inputs in {spent:.0f} s of a core, exit code {result.returncode}', flush=True)
    with open(corpus.parent / 'spent', 'a') as out:  # One write: readers may run side by side.
        out.write(f'{reader} {spent:.0f} {runs}\n')
    if result.returncode != 0:
        print('\n'.join(result.stderr.splitlines()[-60:]), flush=True)
    return result.returncode == 0


def record(build):
    effort = json.loads((HERE / 'effort.json').read_text())
    spent = build / 'corpus/spent'
    for line in spent.read_text().splitlines():
        reader, seconds, inputs = line.split()
        total = effort.setdefault(reader, {'core_s': 0, 'inputs': 0})
        total['core_s'] += int(seconds)
        total['inputs'] += int(inputs)
    lines = [f'  {json.dumps(key)}: {json.dumps(value)}' for key, value in effort.items()]
    (HERE / 'effort.json').write_text('{\n' + ',\n'.join(lines) + '\n}\n')
    spent.unlink()


def main():
    build, readers = pathlib.Path(sys.argv[1]).resolve(), sys.argv[3:] or list(INPUTS)
    if sys.argv[2] == '--record':
        record(build)
        return 0
    if sys.argv[2] == '--test':
        with tempfile.TemporaryDirectory() as folder:
            taken = [fuzz(build, reader, pathlib.Path(folder) / reader, [f'-runs={INPUTS[reader]}', '-seed=1'])
                     for reader in readers]
    else:
        taken = [fuzz(build, reader, build / 'corpus' / reader, [f'-max_total_time={sys.argv[2]}'])
                 for reader in readers]
    return 0 if all(taken) else 1


if __name__ == '__main__':
    sys.exit(main())
