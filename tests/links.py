#!/usr/bin/env python3
"""Does every mention of a page lead to one, and to a heading of it? Prints each that does not as `file:line: ...`, exits with 1.

A mention is a Markdown link between pages, or "docs/NAME.md#heading" anywhere in the tree: in sources, in the notes of the
profiles, in pages. Needs nothing but Python. Run by CTest and by `./foldwise lint`."""
import pathlib
import re
import subprocess
import sys
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAMED = re.compile(r'(?<![\w./:@-])((?:docs|benchmarks)/[a-z/-]+\.md|CONTRIBUTING\.md|README\.md)(?:#([\w-]+))?')
LINK = re.compile(r'\]\(([^)#\s]*)(?:#([^)\s]*))?\)')
OTHERS = ('tests/golden/', 'planner/models/data/', 'planner/run/releases/', 'benchmarks/accuracy/runs/', 'hwprofiles/data/kernels/',
          'hwprofiles/data/records/', 'benchmarks/accuracy/starts/')  # Their sources are pages of other projects.


def lines_without_code(text):
    """Numbered lines of a page; those of code blocks and code spans are empty."""
    fence = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith('```'):
            fence = not fence
        yield number, '' if fence or line.startswith(('```', '    ')) else line


def anchors_of(page):
    """Of its headings, as MkDocs and forges make them."""
    result = set()
    for _, line in lines_without_code(page.read_text()):
        if match := re.match(r'#+ (.*)', line):
            text = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', match[1])
            text = unicodedata.normalize('NFKD', text).encode('ascii', 'ignore').decode()
            result.add(re.sub(r'[-\s]+', '-', re.sub(r'[^\w\s-]', '', text).strip().lower()))
    return result


def main():
    names = subprocess.run(['git', 'ls-files', '--cached', '--others', '--exclude-standard'], cwd=ROOT, capture_output=True,
                           text=True, check=True).stdout.split()
    anchors, dead, mentions = {}, [], 0

    def ask(where, page, anchor):
        nonlocal mentions
        mentions += 1
        if not page.exists():
            dead.append(f'{where}: there is no {page.relative_to(ROOT)}')
        elif anchor and page.suffix == '.md':
            if page not in anchors:
                anchors[page] = anchors_of(page)
            if anchor not in anchors[page]:
                dead.append(f'{where}: {page.relative_to(ROOT)} has no heading #{anchor}')

    for name in names:
        path = ROOT / name
        if name.startswith(OTHERS) or not path.is_file():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for match in NAMED.finditer(line):
                ask(f'{name}:{number}', ROOT / match[1], match[2])
        if path.suffix != '.md':
            continue
        for number, line in lines_without_code(text):
            for target, anchor in LINK.findall(re.sub(r'`[^`]*`', '', line)):
                if not re.match(r'[a-z]+:', target):
                    ask(f'{name}:{number}', (path.parent / target).resolve() if target else path, anchor)
    print('\n'.join(dead) or f'{mentions} links: all lead somewhere')
    return 1 if dead else 0


if __name__ == '__main__':
    sys.exit(main())
