#!/usr/bin/env python3
"""Every property that the tests try on random cases, and how many: properties.py BUILD [CASES [FILTER]], CASES of each
(100 by default, as the tests), of those whose names match the GoogleTest pattern FILTER. Exits with 1 if one fails.

    python3 tests/properties.py build/release 1000"""
import os
import pathlib
import re
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent


def main():
    build, cases = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 100
    chosen, failed, count = sys.argv[3] if len(sys.argv) > 3 else '*', 0, 0
    # RapidCheck fails a property for which it finds fewer cases.
    environment = {**os.environ, 'RC_PARAMS': f'max_success={cases} max_discard_ratio=20'}
    for source in sorted(HERE.glob('*_test.cc')):
        for suite, name in re.findall(r'^RC_GTEST_PROP\((\w+),\s*(\w+)', source.read_text(), re.MULTILINE):
            program = build / 'tests' / source.stem
            listed = subprocess.run([program, '--gtest_list_tests', f'--gtest_filter={chosen}'], capture_output=True,
                                    text=True, check=True).stdout
            if not re.search(rf'^{suite}\.\n(  .*\n)*  {name}\n', listed, re.MULTILINE):
                continue
            start = time.monotonic()
            result = subprocess.run([program, f'--gtest_filter={suite}.{name}'], env=environment, capture_output=True,
                                    text=True, check=False)
            count += 1
            failed += result.returncode != 0
            verdict = 'hold' if result.returncode == 0 else 'FAIL'
            print(f'{suite}.{name}: {cases} cases {verdict}, {time.monotonic() - start:.1f} s', flush=True)
            if result.returncode != 0:
                print(result.stdout, flush=True)
    print(f'{count} properties, {failed} failed')
    return 1 if failed or count == 0 else 0


if __name__ == '__main__':
    sys.exit(main())
