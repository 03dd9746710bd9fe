#!/usr/bin/env python3
"""Every property that the tests try on random cases, and how many.

    properties.py BUILD [CASES [FILTER]] [--write]    tries CASES of each (100 by default, the tests 40), of those whose
                                                      names match the GoogleTest pattern FILTER; exits with 1 if one
                                                      fails. --write notes the cases in docs/properties.md
    properties.py BUILD [CASES [FILTER]] --seeds N    that N times, each with a new seed, which is printed; the tests
                                                      take seed 1. --seed S: with that one
    properties.py                                     does the page list what the sources and tests/fuzz/effort.json say?
    properties.py --write                             writes that, and keeps the cases

    python3 tests/properties.py build/release 1000 --write"""
import json
import os
import pathlib
import re
import secrets
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parent / 'docs/properties.md'
ROW = re.compile(r'^\| `(\w+\.\w+)` \| .* \| ([0-9,]+) \|$', re.MULTILINE)


def properties():
    """(name, the question above it) of each."""
    for source in sorted(HERE.glob('*_test.cc')):
        for found in re.finditer(r'((?:^// .*\n)*)^RC_GTEST_PROP\((\w+),\s*(\w+)', source.read_text(), re.MULTILINE):
            comment, suite, name = found.groups()
            yield f'{suite}.{name}', ' '.join(line[3:].strip() for line in comment.splitlines())


def page(cases):
    text = PAGE.read_text()
    rows = [f'| `{name}` | {question.replace("|", chr(92) + "|")} | {cases.get(name, 0):,} |'
            for name, question in properties()]
    text = re.sub(r'(\| property .*\n\|.*\n)(\|.*\n)*', lambda m: m.group(1) + '\n'.join(rows) + '\n', text)
    effort = {k: v for k, v in json.loads((HERE / 'fuzz/effort.json').read_text()).items() if not k.startswith('_')}
    effort['together'] = {key: sum(v[key] for v in effort.values()) for key in ('core_s', 'inputs')}
    rows = [f'| {reader} | {v["core_s"] / 3600:.2f} | {v["inputs"]:,} |' for reader, v in effort.items()]
    return re.sub(r'(\| reader .*\n\|.*\n)(\|.*\n)*', lambda m: m.group(1) + '\n'.join(rows) + '\n', text)


def tried(build, count, chosen, seed):
    """The properties that held, and how many did not."""
    held, failed = [], 0
    # RapidCheck fails a property for which it finds fewer cases.
    environment = {**os.environ, 'RC_PARAMS': f'seed={seed} max_success={count} max_discard_ratio=20'}
    programs = {}  # By the names of their cases.
    for program in sorted((build / 'tests').glob('*_tests')):
        listed = subprocess.run([program, '--gtest_list_tests', f'--gtest_filter={chosen}'], capture_output=True,
                                text=True, check=True).stdout
        for suite, cases in re.findall(r'^(\w+)\.\n((?:  .*\n)*)', listed, re.MULTILINE):
            programs.update((f'{suite}.{case}', program) for case in cases.split())
    for name, _ in properties():
        if name not in programs:
            continue
        start = time.monotonic()
        result = subprocess.run([programs[name], f'--gtest_filter={name}'], env=environment, capture_output=True, text=True,
                                check=False)
        if result.returncode == 0:
            held.append(name)
        else:
            failed += 1
            print(result.stdout, flush=True)
        print(f'{name}: {count} cases {"FAIL" if result.returncode else "hold"}, {time.monotonic() - start:.1f} s',
              flush=True)
    print(f'seed {seed}: {len(held) + failed} properties, {failed} failed', flush=True)
    return held, failed


def option(name, otherwise):
    """Takes it, and its value, out of the arguments."""
    if name not in sys.argv:
        return otherwise
    at = sys.argv.index(name)
    value = int(sys.argv[at + 1])
    del sys.argv[at:at + 2]
    return value


def main():
    seeds, seed = option('--seeds', 1), option('--seed', None)
    arguments = [argument for argument in sys.argv[1:] if argument != '--write']
    cases, failed = {name: int(count.replace(',', '')) for name, count in ROW.findall(PAGE.read_text())}, 0
    if arguments:
        count = int(arguments[1]) if len(arguments) > 1 else 100
        for _ in range(seeds):
            held, falsified = tried(pathlib.Path(arguments[0]), count, arguments[2] if len(arguments) > 2 else '*',
                                    secrets.randbits(63) if seed is None else seed)
            cases.update(dict.fromkeys(held, count * seeds))
            failed += falsified + (not held)
    if '--write' in sys.argv:
        PAGE.write_text(page(cases))
    elif not arguments and page(cases) != PAGE.read_text():
        print('docs/properties.md is not what the tests say: python3 tests/properties.py --write')
        return 1
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
