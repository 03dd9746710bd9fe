#!/usr/bin/env python3
"""Does every command of README.md and docs/*.md run, and print what stands there?

    documents.py PROGRAM            runs what the tests do; exits with 1 where something differs
    documents.py PROGRAM --slow     the commands that take minutes too
    documents.py PROGRAM --write    puts what is printed now into the documents, and the files that they write into place

In a fenced block, "$ command" is followed by what it prints, stderr and all; a block after a line that begins with
`./foldwise ...` is what that prints to stdout. Indented "./foldwise ..." has to succeed; "--write... FILE" of it writes the data file that is
there, and in blocks after it that have no command, paragraphs (tables) that begin as one that it prints are that. Of
every other `foldwise COMMAND --option` the command and the option have to exist."""
import difflib
import filecmp
import itertools
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
NO_SANDBOX = 'in a sandbox; there is none here'
# How long a search took is another on every machine.
CLOCK = re.compile(r'(searched |explained )[0-9.]+ s')
SETUP = re.compile(r'\./foldwise (test|setup|lint|release|figures)\b')
SLOW = re.compile(r'--vary-readings|--fit|--pin')
WRITTEN = re.compile(r'--write\S* (\S+\.json)')


def run(command, folder):
    done = subprocess.run(['bash', '-ec', command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, text=True, check=False)
    return done.returncode, done.stdout


def printed(text):
    return [line.rstrip() for line in CLOCK.sub(r'\1- s', text).splitlines()]


def paragraphs(lines):
    """By their first line: they, and the empty lines between them."""
    parts = [list(part) for _, part in itertools.groupby(lines, key=bool)]
    return [(' '.join(part[0].split()), part) for part in parts]


def renewed(block, told):
    """The block with the paragraphs that `told` has now, where it has one that begins so."""
    now = {}
    for head, part in paragraphs([line.rstrip() for line in told.splitlines()]):
        now[head] = None if head in now or not head else part
    return [line for head, part in paragraphs(block) for line in now.get(head) or part]


def options_of(program, cache, command):
    if command not in cache:
        done = subprocess.run([program, command, '--help'], capture_output=True, text=True, check=False)
        cache[command] = set(re.findall(r'--[a-z][a-z-]*', done.stdout)) if done.returncode == 0 else None
    return cache[command]


def check(document, folder, program, slow, known, failures):
    """The document's text with what is printed now."""
    lines, out, at, before, told = document.read_text().splitlines(), [], 0, '', ''
    name = document.relative_to(ROOT)
    while at < len(lines):
        line, number = lines[at], at + 1
        out.append(line)
        at += 1
        if line.startswith('```') and not line.startswith('````'):
            block = lines[at:lines.index('```', at)]
            at += len(block) + 1
            above = re.match(r'`(\./foldwise [^`]*)`', before)
            commands = [i for i, text in enumerate(block) if text.startswith('$ ')]
            parts = []  # (index of the command in the block or -1, command, what stands there)
            if commands:
                for i, end in zip(commands, commands[1:] + [len(block)]):
                    parts.append((block[i][2:], block[i + 1:end], [block[i]]))
            elif above:
                parts.append((above.group(1) + ' 2>/dev/null', block, []))
            else:
                now = renewed(block, told)
                if difference := '\n'.join(difflib.unified_diff(block, now, 'stands', 'printed', lineterm='')):
                    failures.append(f'{name}:{number}: of what the command above prints\n{difference}')
                out += now
            for command, stands, head in parts:
                code, text = run(command, folder)
                if stands and stands[-1] == '...':  # And so on.
                    text = '\n'.join([*text.splitlines()[:len(stands) - 1], '...'])
                difference = difflib.unified_diff(printed('\n'.join(stands)), printed(text), 'stands', 'printed', lineterm='')
                if (difference := '\n'.join(difference)) or code not in (0, 3):
                    failures.append(f'{name}:{number}: {command}: exit code {code}\n{difference}')
                # The clock alone changes nothing, and what fails is not written.
                out += head + (text.splitlines() if difference and code in (0, 3) else stands)
            out.append('```')
        elif match := re.match(r'    (\./foldwise .*?)(\s+#.*)?$', line):
            command = match.group(1)
            above = len(out) - 1
            while out[above - 1].startswith('    ') and not out[above - 1].lstrip().startswith('./'):
                above -= 1
            if out[above].lstrip().startswith('jq '):  # Makes the command's file.
                command = '\n'.join(out[above:]) if shutil.which('jq') else '...'
            if not SETUP.match(command) and (slow or not SLOW.search(command)) and '...' not in command:
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
    program, flags = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    overview = subprocess.run([program, '--help'], capture_output=True, text=True, check=True).stdout
    known, failures = {'commands': set(re.findall(r'^  ([a-z]+) ', overview, re.MULTILINE))}, []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for part in ('docs', 'hwprofiles/data', 'tests'):
            shutil.copytree(ROOT / part, folder / part)
        (folder / 'foldwise').symlink_to(program)
        for document in DOCUMENTS:
            its_failures = []
            text = check(document, folder, program, '--slow' in flags, known, its_failures)
            if NO_SANDBOX in '\n'.join(its_failures):  # Of what the import does not write, later commands fail.
                print(f'{document.name}: not checked, because scripts cannot be evaluated here')
                continue
            failures += its_failures
            if '--write' in flags:
                document.write_text(text)
    if '--write' not in flags:
        print('\n'.join(failures) or f'{len(DOCUMENTS)} documents: as they say')
    return 1 if failures and '--write' not in flags else 0


if __name__ == '__main__':
    sys.exit(main())
