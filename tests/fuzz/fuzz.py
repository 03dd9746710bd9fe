#!/usr/bin/env python3
"""Runs libFuzzer's programs: fuzz.py BUILD SECONDS [READER...], each reader for so many seconds, all by default. Inputs
start from corpora.json, the reader's own words (libfuzzer.cc), the texts of its inputs and what earlier runs kept in BUILD/corpus. What a reader dies of stays in BUILD/found; make
it a file of tests/fuzz/found once it is mended. Exits with 1 if there is any. What it took of a core stays in BUILD/spent;
fuzz.py BUILD --record adds that to effort.json.

    cmake --preset fuzz && cmake --build --preset fuzz
    python3 tests/fuzz/fuzz.py build/fuzz 600"""
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def fuzz(build, reader, patterns, seconds):
    """Whether `reader` took everything."""
    program = build / 'tests/fuzz' / f'fuzz_{reader}'
    corpus, found = build / 'corpus' / reader, build / 'found'
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    texts = set()
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            shutil.copy(path, corpus / path.name)
            texts.update(re.findall(rb'"([^"\\\n]{2,64})"', path.read_bytes()))
    words = build / f'{reader}.dict'
    lines = subprocess.run([program, '--words'], capture_output=True, text=True, check=True).stdout.splitlines()
    lines += ['"' + ''.join(f'\\x{byte:02X}' for byte in text) + '"' for text in sorted(texts)[:2000]]
    words.write_text('\n'.join(sorted(set(lines))) + '\n')
    # The time-out is of the clock, not of a core: beside other work milliseconds may last a minute. Try what it finds alone.
    command = [program, corpus, f'-dict={words}', f'-max_total_time={seconds}', '-max_len=65536',
               '-timeout=300', '-rss_limit_mb=2048', f'-artifact_prefix={found}/{reader}-', '-print_final_stats=1',
               '-verbosity=0']
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    # Most of the readers' time is allocations: short stacks and a small quarantine make them cheap.
    environment = os.environ | {'ASAN_OPTIONS': 'malloc_context_size=2:quarantine_size_mb=16'}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, errors='replace', check=False)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    runs = sum(int(line.split()[-1]) for line in result.stderr.splitlines() if 'number_of_executed_units' in line)
    print(f'{reader}: {runs} inputs in {spent:.0f} s of a core, exit code {result.returncode}', flush=True)
    with open(build / 'spent', 'a') as out:  # One write: readers may run side by side.
        out.write(f'{reader} {spent:.0f} {runs}\n')
    if result.returncode != 0:
        print('\n'.join(result.stderr.splitlines()[-60:]), flush=True)
    return result.returncode == 0


def record(build):
    effort = json.loads((HERE / 'effort.json').read_text())
    for line in (build / 'spent').read_text().splitlines():
        reader, seconds, inputs = line.split()
        total = effort.setdefault(reader, {'core_s': 0, 'inputs': 0})
        total['core_s'] += int(seconds)
        total['inputs'] += int(inputs)
    lines = [f'  {json.dumps(key)}: {json.dumps(value)}' for key, value in effort.items()]
    (HERE / 'effort.json').write_text('{\n' + ',\n'.join(lines) + '\n}\n')
    (build / 'spent').unlink()


def main():
    if sys.argv[2] == '--record':
        record(pathlib.Path(sys.argv[1]))
        return 0
    build, seconds = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2])
    corpora = {k: v for k, v in json.loads((HERE / 'corpora.json').read_text()).items() if not k.startswith('_')}
    readers = sys.argv[3:] or list(corpora)
    return 0 if all([fuzz(build, reader, corpora[reader], seconds) for reader in readers]) else 1


if __name__ == '__main__':
    sys.exit(main())
