import ast
import copy
import json
import pickle
import random

import pytest
from conftest import EXAMPLES, QUESTION, ROOT, SMALL

import foldwise


# Does Python say what the command line says, of every example?
@pytest.mark.parametrize('path', EXAMPLES, ids=lambda path: path.stem)
def test_predictions_are_the_command_lines(program, path):
    assert foldwise.predict(path) == program('predict', path, '--format', 'json')
    assert foldwise.predict(path, tokens='1T', price=2)['training'] == program(
        'predict', path, '--format', 'json', '--tokens', '1T', '--price', 2)['training']


# And of 100 runs at random, of six models and four systems, whole predictions side by side, in one process each way? Does
# Python refuse what it refuses?
def test_random_runs_are_the_command_lines(program, tmp_path, small):
    values = {'tp': [1, 2, 4], 'ep': [1, 2, 3, 8], 'pp': [1, 2], 'micro_batch': [1, 2], 'num_gpus': [16, 32, 64],
              'precision': ['bf16', 'fp8-current'], 'optimizer.name': ['adam', 'sgd'], 'seq_len': [2048, 4096]}
    models = ['qwen3-30b-a3b', 'deepseek-v2-lite', 'gpt-oss-20b', 'nemotron-3-nano-30b-a3b', 'mixtral-8x7b', 'llama3-8b']
    systems = ['h100-sxm-80gb', 'h200', 'gb200-nvl72', 'b300']
    dice, rows = random.Random(0), []
    for model in models:
        where = {'model': model, 'system': dice.choice(systems)}
        (tmp_path / 'run.json').write_text(json.dumps({**small, **where}))
        some = {key: dice.sample(list, min(2, len(list))) for key, list in values.items()}
        texts = [word for key, list in some.items() for word in ('--set', f'{key}={",".join(map(str, list))}')]
        lines = program('sweep', tmp_path / 'run.json', *texts, '--format', 'jsonl').splitlines()
        rows += [{**where, **json.loads(line)} for line in lines]
    dice.shuffle(rows)
    rows, refused = [row for row in rows if row['run']][:100], [row for row in rows if row['status'] == 'refused'][:50]
    paths = [tmp_path / f'{i}.json' for i in range(len(rows))]
    for path, row in zip(paths, rows):
        path.write_text(json.dumps(row['run']))
    assert len(rows) == 100 and {row['model'] for row in rows} == set(models)
    assert foldwise.compare(*paths) == program('compare', *paths, '--format', 'json')
    for row in rows:
        assert foldwise.predict(row['run'], explain=False).step_time_s == row['step_time_s']
    assert len(refused) == 50
    for row in refused:
        asked = {**small, 'optimizer': {'name': row['optimizer.name']}}
        asked.update((key, row[key]) for key in ('model', 'system', *values) if key != 'optimizer.name')
        with pytest.raises(foldwise.ConfigError):
            foldwise.predict(asked, explain=False)


# Does a plan have the same plans and the same words, with every argument under its name?
def test_plans_are_the_command_lines(program):
    asked = foldwise.plan(**QUESTION, headroom=0.1, set={'tp': [1, 2], 'optimizer.name': 'adam'},
                          why_not=[{'tp': 8}], tokens='1T')
    told = program('plan', '--model', 'olmoe-1b-7b', '--system', 'h100', '--gpus', 8, '--precision', 'bf16',
                   '--global-batch', 64, '--effort', 0.3, '--headroom', 10, '--set', 'tp=1,2', '--set',
                   'optimizer.name=adam', '--why-not', 'tp=8', '--tokens', '1T', '--format', 'json')
    for answer in (asked, told):
        for key in ('seconds', 'explained_seconds'):
            del answer['search'][key]
    assert asked == told
    assert foldwise.plan(**QUESTION, objective='memory', slack=0.2).problem.objective == 'memory'


# Do the runs that a plan suggests leave less to lose, and does it take them back once they are measured?
def test_suggested_runs_are_taken_back():
    decision = foldwise.plan(**QUESTION, suggest=2).decision
    first = decision.suggestions[0]
    assert decision.suggestions[-1].expected_loss_pct < min(c.expected_loss_pct for c in decision.choices)
    measured = {**first.run, 'measured': {'step_time_s': 2 * first.step_time_s}}
    assert len(foldwise.plan(**QUESTION, measured=[measured]).decision.measured) == 1
    with pytest.raises(foldwise.ConfigError, match='measured step time'):
        foldwise.plan(**QUESTION, measured=[first.run])


# The other commands?
def test_other_answers_are_the_command_lines(program, tmp_path):
    first, second = EXAMPLES[:2]
    runs = [foldwise.load_run(first), foldwise.load_run(second)]
    assert foldwise.compare(*runs).explanation == program('compare', first, second, '--format', 'json')['explanation']
    assert foldwise.load_model('deepseek-v3') == program('models', 'deepseek-v3', '--format', 'json')
    assert foldwise.load_system('h100') == program('systems', 'h100', '--format', 'json')
    assert foldwise.fields() == program('fields', '--format', 'json')
    assert foldwise.models() == program('models', '--format', 'json')['models']
    assert foldwise.systems() == program('systems', '--format', 'json')['systems']
    # The last release with Transformer Engine's loss, which the example names.
    launch = foldwise.export(first, 'torchrun', release='0.17')
    assert launch == program('export', first, '--to', 'torchrun', '--release', '0.17', '--format', 'json')
    script = tmp_path / 'launch.txt'  # A list, which needs no sandbox.
    script.write_text(str(foldwise.export(first, 'megatron-lm', release='0.17')))
    imported = foldwise.import_log(script, system='gb200-nvl72', release='0.17')
    assert imported == program('import', script, '--system', 'gb200-nvl72', '--release', '0.17', '--format', 'json')
    assert foldwise.predict(imported.run, explain=False).step_time_s > 0
    measured = ROOT / 'benchmarks/accuracy/runs/h200x4_runs.json'
    assert foldwise.validate(measured).summary == program('validate', measured, '--format', 'json')['summary']


# Is every key of the schema documented as an attribute, and is every documented one in the schema or an answer?
def test_attributes_are_the_schemas():
    schema = json.loads((ROOT / 'docs/schema.json').read_text())['$defs']
    answer = foldwise.predict(EXAMPLES[0], tokens='1T')
    documented = set(foldwise.Prediction.__annotations__)
    assert documented == set(answer) - {'schema'}
    assert documented >= set(schema['prediction']['properties'])
    for name, kind in {'plan': foldwise.Plan, 'compare': foldwise.Comparison}.items():
        assert set(kind.__annotations__) >= set(schema[name]['properties']) - {'schema', 'tried', 'from'}


# Do answers survive pickling and copying, with their types, and do equal ones compare equal?
def test_answers_pickle_and_compare(small):
    answer = foldwise.predict(small)
    for other in (pickle.loads(pickle.dumps(answer)), copy.deepcopy(answer), foldwise.predict(dict(small))):
        assert other == answer and type(other) is foldwise.Prediction and type(other.run) is foldwise.Run
    assert foldwise.predict({**small, 'micro_batch': 2}) != answer
    assert answer.breakdown.compute == answer['breakdown']['compute']
    with pytest.raises(AttributeError, match='step_time_s'):
        answer.step_tme_s


# Do frames have a row for each thing, and is what notebooks show without markup from names?
def test_frames_and_html(small):
    pandas = pytest.importorskip('pandas')
    plan = foldwise.plan(**QUESTION)
    assert list(plan.to_frame()['step_time_s']) == [one.prediction.step_time_s for one in plan.plans]
    prediction = foldwise.predict({**small, 'id': '<script>alert(1)</script>'})
    busiest = prediction.to_frame()
    assert busiest['seconds'].sum() == pytest.approx(prediction.step_time_s, rel=0.2)
    assert len(prediction.memory_frame()) == 1
    for answer in (plan, prediction, foldwise.compare(small, {**small, 'tp': 2})):
        assert '<table>' in answer._repr_html_() and '<script' not in answer._repr_html_()
    assert '<svg' in prediction._repr_html_()
    assert isinstance(foldwise.fields().to_frame(), pandas.DataFrame)
    assert 'kind' in foldwise.load_system('h100').to_frame()


# Are all mistakes raised at once, with file, line and field, under the names of Python's arguments?
def test_mistakes_have_places(tmp_path, small):
    file = tmp_path / 'run.json'
    file.write_text(json.dumps({**small, 'tp': -3, 'no_such': 1}, indent=1))
    with pytest.raises(foldwise.ConfigError) as raised:
        foldwise.predict(file)
    assert raised.value.file == [str(file)] * 2
    assert sorted(raised.value.field) == ['/no_such', '/tp']
    lines = file.read_text().splitlines()
    for mistake in raised.value.mistakes:
        assert mistake.field[1:] in lines[mistake.line - 1]
    assert f'{file}:' in str(raised.value)
    with pytest.raises(foldwise.ConfigError) as raised:
        foldwise.predict({**small, 'tp': -3})
    assert (raised.value.file, raised.value.line, raised.value.field) == (['run'], [0], ['/tp'])
    with pytest.raises(foldwise.ConfigError) as raised:
        foldwise.plan(gpus=-1, model='no-such', max_step_time=1.0)
    assert set(raised.value.field) == {'gpus', 'max_step_time', ''}
    for wrong in ({'gpus': 'many'}, {'objective': 'money'}, {'schedule': 'x'}, {'set': {'tpp': 1}}, {'headroom': 2}):
        with pytest.raises(foldwise.ConfigError) as raised:
            foldwise.plan(**wrong)
        assert raised.value.file == ['arguments'] and next(iter(wrong)) in raised.value.field[0]
    with pytest.raises(foldwise.ConfigError, match='steps of at most'):
        foldwise.predict({**small, 'seq_len': 1 << 24, 'global_batch': 1 << 20})
    with pytest.raises(foldwise.ConfigError) as raised:
        foldwise.predict(tmp_path / 'missing.json')
    assert pickle.loads(pickle.dumps(raised.value)).mistakes == raised.value.mistakes


# Is a diagnosis the command line's, and do its rows add up to the step? Are the mistakes of all traces raised at once?
def test_diagnoses_are_the_command_lines(program, tmp_path):
    traces = [ROOT / f'tests/traces/x2-llama-no-overlap.rank{rank}.json.gz' for rank in (0, 1)]
    run = ROOT / 'tests/traces/x2-llama-no-overlap.json'
    answer = foldwise.diagnose(run, *traces)
    assert answer == program('diagnose', run, '--trace', traces[0], '--trace', traces[1], '--format', 'json')
    assert answer.to_frame().measured_s.sum() == pytest.approx(answer.measured_s)
    assert sum(reason.seconds for reason in answer.reasons) == pytest.approx(answer.measured_s - answer.predicted_s)
    assert [rank.speed.slow for rank in answer.ranks] == ['no', 'no'] and answer.memory is None
    traced = foldwise.diagnose(ROOT / 'tests/traces/h100-llama-memory.json', ROOT / 'tests/traces/h100-llama-memory.rank0.json.gz')
    assert traced.memory.before_bytes + sum(line.bytes for line in traced.memory.owned) == traced.memory.allocated_bytes
    log = tmp_path / 'train.log'
    log.write_text(''.join(f' iteration {i}/ 9 | elapsed time per iteration (ms): {840 + i}.0 |\n' for i in range(1, 5)))
    logged = foldwise.diagnose(run, *traces, log=log)
    assert logged == program('diagnose', run, '--trace', traces[0], '--trace', traces[1], '--log', log, '--format', 'json')
    assert logged.unprofiled_s == 0.843 and all(change.flags for change in logged.changes)
    with pytest.raises(foldwise.ConfigError) as raised:
        foldwise.diagnose(run, tmp_path / 'a', tmp_path / 'b')
    assert raised.value.file == [str(tmp_path / 'a'), str(tmp_path / 'b')]


# Does the stub have every function of the extension, and no other?
def test_stub_is_complete():
    from foldwise import _native
    stub = ast.parse((ROOT / 'planner/python/foldwise/_native.pyi').read_text())
    stated = {node.name for node in stub.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert stated == {name for name in dir(_native) if not name.startswith('__')}
