#!/usr/bin/env python3
"""Is the program built so that a mistake with someone's file is harder to use? readelf shows it.

    hardened.py PROGRAM

Position-independent (PIE), tables of functions that nothing writes once it runs (full RELRO), guarded stacks
(-fstack-protector-strong) and checked copies (_FORTIFY_SOURCE). Exit: 0 yes, 1 no, 77 no readelf here."""
import shutil
import subprocess
import sys

if shutil.which('readelf') is None:
    print('no readelf')
    sys.exit(77)


def shown(*options):
    return subprocess.run(['readelf', '--wide', *options, sys.argv[1]], capture_output=True, text=True, check=True).stdout


header, segments, dynamic, symbols = shown('--file-header'), shown('--segments'), shown('--dynamic'), shown('--dyn-syms')
asked = {'position-independent': 'DYN (' in header, 'RELRO': 'GNU_RELRO' in segments, 'bound at the start': 'BIND_NOW' in dynamic,
         'guarded stacks': '__stack_chk_fail' in symbols, 'checked copies': '_chk@' in symbols.replace('__stack_chk_fail', '')}
missing = [what for what, found in asked.items() if not found]
print(f'{sys.argv[1]} lacks: {", ".join(missing)}' if missing else 'hardened')
sys.exit(1 if missing else 0)
