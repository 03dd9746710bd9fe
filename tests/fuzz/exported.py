#!/usr/bin/env python3
"""Are the arguments of an exported script the texts that they should be, and is nothing else run?

    exported.py                        one JSON object a line: {target, text, arguments, environment} as `export --format
                                       json` prints them; answers each with a line: "" or what is wrong (fuzz/export.cc)
    exported.py FOLDWISE RUN [N [SEED]]  exports RUN with N random texts (default 40) in every field that takes a text,
                                       the model's and the system's path among them; exits with 1 if one is wrong

A shell's script must pass `bash -n`. Under bubblewrap it is then run, without network and with nothing but programs that
stand in for torchrun, srun, scontrol and hostname: they note the words that they get, and their environment. Python's must
be what `ast` reads, with literals alone and no call but the two of the configuration."""
import ast
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STAND_IN = '''#!/bin/bash
{ printf '%s\\0' "$@"; printf '\\1\\0'; env -0; } >/seen/"${0##*/}"
[ "${0##*/}" = scontrol ] && echo node1
exit 0
'''
PROGRAMS = ('torchrun', 'srun', 'scontrol', 'megatron')
TRAPS = ('touch', 'id', 'curl', 'rm', 'PWNED')  # What the texts below would run.


def sandbox(folder):
    system = [word for path in ('/usr', '/bin', '/lib', '/lib64') if os.path.exists(path) for word in ('--ro-bind', path, path)]
    return ['bwrap', '--unshare-all', '--die-with-parent', *system, '--dev', '/dev', '--ro-bind', str(folder / 'bin'), '/stand-ins',
            '--bind', str(folder / 'seen'), '/seen', '--ro-bind', str(folder / 'script'), '/script', '--chdir', '/seen', '--clearenv',
            '--setenv', 'PATH', '/stand-ins:/usr/bin:/bin', '--setenv', 'SLURM_JOB_NODELIST', 'node1', 'bash', '/script']


def works(command):
    return shutil.which('bwrap') is not None and subprocess.run(command, capture_output=True, check=False).returncode == 0


class Checker:
    def __init__(self, folder):
        self.folder = folder
        for name in ('bin', 'seen'):
            (folder / name).mkdir()
        for name in PROGRAMS + TRAPS:
            (folder / 'bin' / name).write_text(STAND_IN)
            (folder / 'bin' / name).chmod(0o755)
        (folder / 'script').write_text('exit 0\n')
        self.sandboxed = works(sandbox(folder))

    def wrong(self, case):
        try:
            return self.python(case) if case['target'] == 'megatron-bridge' else self.shell(case)
        except (SyntaxError, ValueError) as error:
            return f'{type(error).__name__}: {error}'

    def shell(self, case):
        text = case['text']
        if case['target'] == 'megatron-lm':  # Arguments alone: they need a command.
            before, flags = text.split('\n--', 1)
            text = f'{before}\nmegatron --{flags}'
        script = self.folder / 'script'
        script.write_text(text)
        result = subprocess.run(['bash', '-n', script], capture_output=True, text=True, errors='replace', check=False)
        if result.returncode != 0:
            return f'bash -n: {result.stderr}'
        if not self.sandboxed:
            return ''
        result = subprocess.run(sandbox(self.folder), capture_output=True, text=True, errors='replace', check=False)
        seen = {path.name: path.read_bytes() for path in (self.folder / 'seen').iterdir()}
        for name in seen:
            (self.folder / 'seen' / name).unlink()
        launch = {'megatron-lm': 'megatron', 'torchrun': 'torchrun', 'slurm': 'srun'}[case['target']]
        allowed = {launch, 'scontrol'} if launch == 'srun' else {launch}
        if result.returncode != 0 or not {launch} <= set(seen) <= allowed:
            return f'exit code {result.returncode}, {sorted(seen)} were run: {result.stderr}'
        words, environment = seen[launch].decode(errors='surrogateescape').split('\0\1\0')
        expected = [word for argument in case['arguments'] for word in (argument['flag'], *argument['values'])]
        found = words.split('\0')
        if sorted(found[len(found) - len(expected):]) != sorted(expected):
            return f'arguments: expected {expected}, found {found}'
        variables = dict(entry.split('=', 1) for entry in environment.split('\0') if entry)
        for variable in case['environment']:
            if variables.get(variable['name']) != variable['value']:
                return f"{variable['name']}: expected {variable['value']!r}, found {variables.get(variable['name'])!r}"
        return ''

    @staticmethod
    def python(case):
        tree = ast.parse(case['text'])
        for node in tree.body:
            if not isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef)):
                return f'line {node.lineno}: neither an import nor the function'
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) not in ('get_mixed_precision_config', 'CommOverlapConfig'):
                return f'calls {ast.unparse(node)}'
            if isinstance(node, ast.Assign):
                place, value = ast.unparse(node.targets[0]), node.value
                if place == 'cfg.model.pipeline_model_parallel_layout' and ast.literal_eval(value) != case.get('layout'):
                    return f'{place}: expected {case.get("layout")!r}, found {ast.unparse(value)}'
        return ''


PIECES = ('$(touch X)', '`id`', '; curl evil', '\n', '\r', "'", '"', '"""', '\\', '\\\n', '${PATH}', '$IFS', '#', '&', '|', '>f', '~', '*', '!',
          '\t', ' ', 'é', '\u2028', '\x7f', '\x01', '--flag', '=', '{a,b}', 'expandable_segments:True', 'max_split_size_mb:512', ',', '%', 'PWNED')


def random_text(chosen):
    return ''.join(chosen.choice(PIECES) for _ in range(chosen.randint(1, 5)))


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        checker = Checker(folder)
        if len(sys.argv) < 3:
            for line in sys.stdin:
                print(json.dumps(checker.wrong(json.loads(line))), flush=True)
            return 0
        program, base = sys.argv[1], json.loads(pathlib.Path(sys.argv[2]).read_text())
        count, seed = (int(text) for text in (sys.argv[3:] + ['40', '1'][len(sys.argv[3:]):]))
        said = subprocess.run([program, 'fields', '--format', 'json'], capture_output=True, text=True, check=True).stdout
        fields = [field['key'] for field in json.loads(said)['fields'] if field['type'] == 'text'] + ['id']
        described = subprocess.run([program, 'models', base['model'], '--format', 'json'], capture_output=True, text=True, check=True).stdout
        files = {'model': json.dumps(json.loads(described)['config']),
                 'system': (ROOT / 'hwprofiles/data/systems' / f"{base['system']}.json").read_text()}
        chosen, written, refused = random.Random(seed), {}, {}
        for i in range(count):
            key, text, run = fields[i % len(fields)], random_text(chosen), json.loads(json.dumps(base))
            at = run
            *groups, last = key.split('.')
            for group in groups:
                at = at.setdefault(group, {})
            if key in files:  # A file of that name.
                path = folder / 'files' / f"{text.replace('/', '')}.json"
                path.parent.mkdir(exist_ok=True)
                path.write_text(files[key])
                text = str(path)
            at[last] = text
            (folder / 'run.json').write_text(json.dumps(run))
            for target in ('megatron-lm', 'torchrun', 'slurm', 'megatron-bridge'):
                result = subprocess.run([program, 'export', folder / 'run.json', '--to', target, '--format', 'json'], capture_output=True,
                                        text=True, errors='replace', check=False)
                if result.returncode == 2:
                    refused[key] = refused.get(key, 0) + 1
                    continue
                if result.returncode != 0:
                    print(f'{key} = {text!r}: exit code {result.returncode}: {result.stderr}')
                    return 1
                case = json.loads(result.stdout) | {'target': target, 'layout': run.get('pipeline_layout')}
                if wrong := checker.wrong(case):
                    print(f'{key} = {text!r}, {target}: {wrong}')
                    return 1
                written[key] = written.get(key, 0) + 1
        print(f'{sum(written.values())} scripts as they should be: {written}; refused: {refused}; in a sandbox: {checker.sandboxed}')
        return 0 if written else 1


if __name__ == '__main__':
    sys.exit(main())
