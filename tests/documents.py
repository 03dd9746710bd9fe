#!/usr/bin/env python3
"""Does every command of README.md, docs/ and benchmarks/accuracy/ run, and print what stands there?

    documents.py PROGRAM            runs what the tests do; exits with 1 where something differs
    documents.py PROGRAM --slow     the commands that take minutes too
    documents.py PROGRAM --write    puts what is printed now into the documents, and the files that they write into place
    documents.py PROGRAM PAGE...    of these pages alone

A command claims each fenced block:
- "$ command" is followed by what it prints, stderr and all; "..." as the last line is the rest of it;
- a block, or a picture, after a line that begins with `./foldwise ...` is what that prints to stdout;
- a block with title="FILE" is that file, for the commands after it.
Indented "./foldwise ..." has to succeed; "--write... FILE" of it writes the data file that is there, and in blocks after
it that have no command, paragraphs (tables) that begin as one that it prints are that. Of every other
`foldwise COMMAND --option` the command and the option have to exist.

Tutorials and how-tos are followed in an empty folder that has the program and docs/examples, each in its own; the other
pages in a copy of the data. A page of docs/ says first whom it is for. Sentences of README.md and tutorials have at most
40 words."""
import difflib
import filecmp
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import picture

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / 'README.md', *sorted((ROOT / 'docs').rglob('*.md')), *sorted((ROOT / 'benchmarks/accuracy').glob('*.md'))]
FOLLOWED = ('docs/tutorials/', 'docs/howto/')  # By a reader who has nothing but the program.
PLAIN = ('README.md', 'docs/tutorials/')
WORDS = 40
NO_SANDBOX = 'in a sandbox; there is none here'
# How long a search took is another on every machine.
CLOCK = re.compile(r'(searched |explained )[0-9.]+ s')
SETUP = re.compile(r'\./foldwise (test|setup|lint|release|figures|docs)\b')
SLOW = re.compile(r'--vary-readings|--fit|--pin')
WRITTEN = re.compile(r'--write\S* (\S+\.json)')


def run(command, folder, told={}):
    """Exit code and output. What takes minutes is run once, whatever pages show of it."""
    if command in told:
        return told[command]
    done = subprocess.run(['bash', '-ec', command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, text=True, check=False)
    if SLOW.search(command):
        told[command] = done.returncode, done.stdout
    return done.returncode, done.stdout


def printed(text):
    return [line.rstrip() for line in CLOCK.sub(r'\1- s', text).splitlines()]


def paragraphs(lines):
    """By their first line: they, and the empty lines between them."""
    parts = [list(part) for _, part in itertools.groupby(lines, key=bool)]
    return [(' '.join(part[0].split()), part) for part in parts]


def renewed(block, told):
    """The block with the paragraphs that `told` has now, where it has one that begins so, and whether it has any."""
    now = {}
    for head, part in paragraphs([line.rstrip() for line in told.splitlines()]):
        now[head] = None if head in now or not head else part
    parts = paragraphs(block)
    return [line for head, part in parts for line in now.get(head) or part], any(head in now for head, _ in parts if head)


def long_sentences(text):
    """(line, words) of sentences of prose with more than WORDS words: of paragraphs and list items, not of tables and blocks."""
    fence, paragraph = False, []
    for number, line in enumerate([*text.splitlines(), ''], 1):
        fence ^= line.startswith('```')
        prose = not fence and line.strip() and not line.startswith(('```', '    ', '|', '#', '!['))
        if not prose or re.match(r'\s*(-|\d+\.) ', line):
            for sentence in re.split(r'(?<=[.?!])\s+', ' '.join(words for _, words in paragraph)):
                if len(sentence.split()) > WORDS:
                    yield paragraph[0][0], len(sentence.split())
            paragraph = []
        if prose:
            paragraph.append((number, line))


def options_of(program, cache, command):
    if command not in cache:
        done = subprocess.run([program, command, '--help'], capture_output=True, text=True, check=False)
        cache[command] = set(re.findall(r'--[a-z][a-z-]*', done.stdout)) if done.returncode == 0 else None
    return cache[command]


def check(document, folder, program, slow, known, failures):
    """The document's text with what is printed now."""
    lines, out, at, before, told = document.read_text().splitlines(), [], 0, '', ''
    name, pictured = document.relative_to(ROOT), set()
    while at < len(lines):
        line, number = lines[at], at + 1
        out.append(line)
        at += 1
        if line.startswith('```') and not line.startswith('````'):
            block = lines[at:lines.index('```', at)]
            at += len(block) + 1
            above = re.match(r'`(\./foldwise [^`]*)`', before)
            title = re.search(r'title="([^"]+)"', line)
            commands = [i for i, text in enumerate(block) if text.startswith('$ ')]
            parts = []  # (index of the command in the block or -1, command, what stands there)
            if commands:
                for i, end in zip(commands, commands[1:] + [len(block)]):
                    parts.append((block[i][2:], block[i + 1:end], [block[i]]))
            elif title:
                if title[1].endswith('.json'):
                    json.loads('\n'.join(block))
                (folder / title[1]).write_text('\n'.join(block) + '\n')
                out += block
            elif above:
                parts.append((above.group(1) + ' 2>/dev/null', block, []))
            else:
                now, claimed = renewed(block, told or '')
                if not claimed and told is not None:
                    failures.append(f'{name}:{number}: no command claims this block')
                elif difference := '\n'.join(difflib.unified_diff(block, now, 'stands', 'printed', lineterm='')):
                    failures.append(f'{name}:{number}: of what the command above prints\n{difference}')
                out += now
            for command, stands, head in parts:
                code, text = run(command, folder)
                if stands and stands[-1] == '...':  # And so on.
                    text = '\n'.join([*text.splitlines()[:len(stands) - 1], '...'])
                difference = difflib.unified_diff(printed(''.join(line + '\n' for line in stands)), printed(text), 'stands', 'printed', lineterm='')
                if (difference := '\n'.join(difference)) or code not in (0, 3):
                    failures.append(f'{name}:{number}: {command}: exit code {code}\n{difference}')
                # The clock alone changes nothing, and what fails is not written.
                out += head + (text.splitlines() if difference and code in (0, 3) else stands)
            out.append('```')
        elif (match := re.match(r'!\[[^]]*\]\((\S+\.svg)\)', line)) and (above := re.match(r'`(\./foldwise [^`]*)`', before)):
            pictured.add(above[1])
            try:
                code, text = picture.in_terminal(above[1], folder, os.environ)
            except OSError as none:
                print(f'{name}:{number}: {match[1]} is not looked at: {none}')
            else:
                drawn, there = picture.svg(above[1], text), document.parent / match[1]
                if code not in (0, 3) or not there.exists() or CLOCK.sub('', drawn) != CLOCK.sub('', there.read_text()):
                    failures.append(f'{name}:{number}: {match[1]} is no picture of {above[1]}: exit code {code}')
                    if '--write' in sys.argv and code in (0, 3):
                        there.write_text(drawn)
        elif match := re.match(r'    (\./foldwise .*?)(\s+#.*)?$', line):
            command = match.group(1)
            above = len(out) - 1
            while out[above - 1].startswith('    ') and not out[above - 1].lstrip().startswith('./'):
                above -= 1
            if out[above].lstrip().startswith('jq '):  # Makes the command's file.
                command = '\n'.join(out[above:]) if shutil.which('jq') else '...'
            if SETUP.match(command) or command in pictured:  # Minutes, or known to run.
                pass
            elif '...' in command or SLOW.search(command) and not slow:
                told = None  # Not known here.
            else:
                code, text = run(command, folder)
                if code not in (0, 3):
                    failures.append(f'{name}:{number}: {command}: exit code {code}, prints\n{text}')
                told = text
                for written in WRITTEN.findall(command):  # In a copy of the tree.
                    if '--write' in sys.argv:
                        shutil.copyfile(folder / written, ROOT / written)
                    elif not filecmp.cmp(folder / written, ROOT / written, shallow=False):
                        failures.append(f'{name}:{number}: {command}: writes another {written}')
        for command, rest in re.findall(r'\bfoldwise ([a-z]+)((?: [^`#|\n]*)?)', line):
            if command not in known['commands']:
                continue
            for option in re.findall(r'(?<!\S)--[a-z][a-z-]*', rest):
                if option not in options_of(program, known, command) | {'--help'}:
                    failures.append(f'{name}:{number}: {command} has no {option}')
        before = line if line.strip() else before
    return '\n'.join(out) + '\n'


def main():
    program, flags = pathlib.Path(sys.argv[1]).resolve(), {flag for flag in sys.argv[2:] if flag.startswith('--')}
    pages = {pathlib.Path(page).resolve() for page in sys.argv[2:] if not page.startswith('--')}
    if strange := pages - set(DOCUMENTS):
        sys.exit(f'no document: {", ".join(map(str, strange))}')
    overview = subprocess.run([program, '--help'], capture_output=True, text=True, check=True).stdout
    known, failures = {'commands': {'accuracy', *re.findall(r'^  ([a-z]+) ', overview, re.MULTILINE)}}, []
    with tempfile.TemporaryDirectory() as temporary:
        data = pathlib.Path(temporary, 'data')
        for part in ('docs', 'hwprofiles/data', 'tests', 'benchmarks/accuracy'):
            shutil.copytree(ROOT / part, data / part)
        # As ./foldwise does, which builds what a command needs before.
        start = data / 'foldwise'
        start.write_text(f'#!/bin/bash\n[ "$1" != accuracy ] || exec {program.parent.parent}/benchmarks/accuracy/foldwise-accuracy "${{@:2}}"\n'
                         f'exec -a ./foldwise {program} "$@"\n')
        start.chmod(0o755)
        for document in DOCUMENTS:
            if pages and document not in pages:
                continue
            name, its_failures, folder = str(document.relative_to(ROOT)), [], data
            if name.startswith(FOLLOWED):
                folder = pathlib.Path(temporary, document.stem)
                shutil.copytree(ROOT / 'docs/examples', folder / 'docs/examples')
                (folder / 'foldwise').symlink_to(program)
            text = check(document, folder, start, '--slow' in flags, known, its_failures)
            if name.startswith('docs/') and document.stem != 'index' and not re.match(r'# .*\n\nFor ', text):
                its_failures.append(f'{name}:3: does not begin with whom it is for: "For ..."')
            if name.startswith(PLAIN):
                its_failures += [f'{name}:{line}: a sentence of {words} words' for line, words in long_sentences(text)]
            if NO_SANDBOX in '\n'.join(its_failures):  # Of what the import does not write, later commands fail.
                print(f'{name}: not checked, because scripts cannot be evaluated here')
                continue
            failures += its_failures
            if '--write' in flags:
                document.write_text(text)
    if '--write' not in flags:
        print('\n'.join(failures) or f'{len(pages or DOCUMENTS)} documents: as they say')
    return 1 if failures and '--write' not in flags else 0


if __name__ == '__main__':
    sys.exit(main())
