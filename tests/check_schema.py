#!/usr/bin/env python3
"""Do the JSON answers keep to docs/schema.json, and would the schema notice if a key were missing?

check_schema.py FOLDWISE SCHEMA RUN [plan]: runs the commands; 77 where the package jsonschema is missing. `plan`: plans
too."""
import copy
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import jsonschema
except ImportError:
    print('skipped: no Python package jsonschema')
    sys.exit(77)


def megatron(folder):
    """A folder that accepts whatever it is asked, with a torch of its own."""
    training = pathlib.Path(folder) / 'Megatron-LM' / 'megatron' / 'training'
    training.mkdir(parents=True)
    accepts = 'def {}(args=None):\n    return args\n'
    steps = ['parse_args', 'validate_args', 'core_transformer_config_from_args']
    (training / 'arguments.py').write_text(''.join(accepts.format(step) for step in steps))
    (training.parent.parent / 'torch.py').write_text(
        "import types\n__version__ = '2.9.0'\ncuda = types.SimpleNamespace()\n")
    return str(training.parent.parent)


def main(program, schema_file, run, *besides):
    document = json.loads(pathlib.Path(schema_file).read_text())
    jsonschema.Draft202012Validator.check_schema(document)

    def validator(name):
        return jsonschema.Draft202012Validator({'$ref': f'#/$defs/{name}', '$defs': document['$defs']})

    def required(schema):
        if '$ref' in schema:
            return required(document['$defs'][schema['$ref'].split('/')[-1]])
        return set(schema.get('required', [])).union(*[required(part) for part in schema.get('allOf', [])])

    def answer(arguments, code=0):
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == code, (arguments, done)
        return done.stdout if code == 0 else done.stderr

    def check(name, text):
        value, found = json.loads(text), validator(name)
        for error in found.iter_errors(value):
            sys.exit(f'{name}: {error.json_path}: {error.message[:200]}')
        keys = required(document['$defs'][name])
        assert keys, name
        for key in keys:
            less = copy.deepcopy(value)
            del less[key]
            if found.is_valid(less):
                sys.exit(f'{name}: the schema does not miss {key}')
        print(f'{name}: in order, {len(keys)} keys required')

    as_json = ['--format', 'json']
    training = ['--tokens', '1T', '--price', '2', '--mtbf', '50000', '--storage', '100', '--restart', '600']
    with tempfile.TemporaryDirectory() as folder:
        def changed(name, **fields):
            path = pathlib.Path(folder) / name
            path.write_text(json.dumps(json.loads(pathlib.Path(run).read_text()) | fields))
            return str(path)
        fits, too_large = changed('fits.json'), changed('large.json', ep=8)
        measured = changed('measured.json', id='x', measured={'step_time_s': 14.0})
        check('predict', answer(['predict', fits, *training, *as_json]))
        check('predict', answer(['predict', too_large, *as_json]))
        check('compare', answer(['compare', fits, too_large, *as_json]))
        traced = pathlib.Path(__file__).parent / 'traces'
        for name, ranks in (('mixtral-sleep', 1), ('h100-llama-memory', 1), ('ep2-skew', 2)):
            of_ranks = [str(traced / f'{name}.rank{rank}.json.gz') for rank in range(ranks)]
            check('diagnose', answer(['diagnose', str(traced / f'{name}.json'), '--trace', *of_ranks, *as_json]))
        check('diagnose_profiles', answer(['diagnose', '--profiles', str(traced.parent.parent / 'benchmarks/accuracy/runs/h200x4_te_runs.json'), *as_json]))
        check('validate', answer(['validate', measured, *as_json]))
        rows = answer(['sweep', fits, '--set', 'ep=3,8,64', '--format', 'jsonl', *training])
        assert [json.loads(row)['status'] for row in rows.splitlines()] == ['refused', 'does not fit', 'fits']
        for row in rows.splitlines():
            check('sweep_row', row)
        # Transformer Engine's loss, which the file has, is refused since 0.18.
        fits = changed('native.json', software={'permute': 'fused', 'cross_entropy': 'native'})
        launch = answer(['export', fits, '--to', 'megatron-lm', '--release', 'main'])  # A list, which needs no sandbox.
        script = pathlib.Path(folder) / 'launch.txt'
        script.write_text(launch)
        check('export', answer(['export', fits, '--to', 'torchrun', '--release', 'main', *as_json]))
        check('export', answer(['export', fits, '--to', 'torchrun', '--trial', *as_json]))
        check('export_check', answer(['export', fits, '--check', megatron(folder), '--python', sys.executable, *as_json]))
        check('import', answer(['import', str(script), '--system', 'gb200', '--release', 'main', *as_json]))
        check('errors', answer(['predict', changed('wrong.json', tp=-1), *as_json], code=2))
    for name, arguments in {'fields': ['fields'], 'rules': ['rules'], 'models': ['models'], 'systems': ['systems'],
                            'model': ['models', 'deepseek-v3'], 'system': ['systems', 'h200']}.items():
        check(name, answer([*arguments, *as_json]))
    if 'plan' in besides:
        question = ['plan', '--model', 'mixtral-8x7b', '--system', 'h200', '--gpus', '8', '--global-batch', '64',
                    '--effort', '0.3', '--pin', 'tp=1,cp=1,pp=1', *as_json]
        check('plan', answer([*question, *training, '--why-not', 'ep=1']))
        check('plan', answer([*question, '--objective', 'memory']))


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
