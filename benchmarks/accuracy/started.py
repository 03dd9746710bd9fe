#!/usr/bin/env python3
"""What was started: exported trials in unmodified Megatron-LM, as benchmarks/accuracy/starts/*.jsonl has them.

  python3 benchmarks/accuracy/started.py                  the table of benchmarks/accuracy/started.md
  python3 benchmarks/accuracy/started.py --rows > benchmarks/accuracy/hosts/h200_started.json
  python3 benchmarks/accuracy/started.py --outside        what starts hold beside torch's memory, and what explains it
  python3 benchmarks/accuracy/started.py --add RUNS.jsonl PLANS RELEASE GPU > benchmarks/accuracy/starts/NAME.jsonl

A row is a start: the plan's run file, what was predicted before it ran, and what the run's log says. A run counts as
trained where its losses are finite and fall and no gradient norm is NaN. Its time counts where its timed steps are
less than a quarter apart: else another guest of the machine took the host's cores. --add makes rows of a harness' records: PLANS has
the folders of `plan --out` by question, and QUESTION.json, what plan printed. --rows makes run files of those that
trained, with what was measured: `validate` reads them, and evidence and intervals are learnt from them."""
import json
import math
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
GIB = 2 ** 30


def largest(values):
    return round(max(v for v in values if v) / GIB, 2) if any(values or []) else None


def retries(record):
    """How often torch gave memory back and tried again: before the timed steps, and at most in one of them, of any rank."""
    first = record['warm']
    before = max((r[first - 1] for r in record['alloc_retries'] if len(r) >= first), default=0)
    steps = [b - a for r in record['alloc_retries'] for a, b in zip(r[first - 1:], r[first:])]
    return before, max(steps, default=0)


def outside(record):
    """Most GiB of a rank's device that torch had not reserved when the run ended."""
    used = zip(record['device_used_end_bytes'], record['steady_reserved_bytes'])
    return max((round((all_of_it - torch) / GIB, 2) for all_of_it, torch in used if all_of_it and torch), default=None)


def row_of(record, plans, release, gpu):
    question, _, plan = record['name'].partition('-')
    answer = json.loads((plans / f'{question}.json').read_text())
    predicted = answer['plans'][int(plan.removeprefix('plan-')) - 1]['prediction']
    versions = record['versions']
    before, each = retries(record)
    return {
        'question': question, 'plan': plan, 'release': release, 'gpu': gpu,
        'transformer_engine': versions.get('transformer-engine'), 'pytorch': versions.get('torch'),
        'driver': (versions.get('driver') or [''])[0].split(',')[0],
        'run': json.loads((plans / question / f'{plan}.json').read_text()),
        'balanced': '--num-experts' not in record['script'] or '--moe-router-force-load-balancing' in record['script'],
        'predicted': {'step_time_s': round(predicted['step_time_s'], 4),
                      'interval_s': [round(x, 4) for x in predicted['interval']['step_time_s']],
                      'peak_memory_gib': round(predicted['peak_memory_gib'], 2)},
        'status': record['status'],
        'error': next((e.strip() for e in (record.get('errors') or []) if re.match(r'(\[rank\d+\]: )?[\w.]*Error: ', e.strip())), None),
        'step_times_s': [round(t / 1e3, 4) for t in record['step_ms_timed']],
        'peak_allocated_gib': largest(record['peak_alloc_bytes']), 'peak_reserved_gib': largest(record['peak_reserved_bytes']),
        'outside_torch_gib': outside(record),
        'alloc_retries': {'before': before, 'a_step': each}, 'loss': record['loss'], 'grad_norm': record['grad_norm']}


def trained(row):
    losses, norms = row['loss'], row['grad_norm']
    return 'wrong' not in row and bool(row['step_times_s']) and len(losses) > 1 and all(map(math.isfinite, losses + norms)) and losses[-1] < losses[0]


def sets():
    by_number = lambda path: (int(path.stem.split('-')[1]), path.stem)
    for path in sorted((ROOT / 'benchmarks/accuracy/starts').glob('*.jsonl'), key=by_number):
        yield path, [json.loads(line) for line in path.read_text().splitlines()]


def even_loads(row):
    """Whether ranks have equal loads, as predictions assume: an untrained router of a trial without --balanced gives one EP rank more than another."""
    return row.get('balanced', True) or row['run'].get('ep', 1) == 1


def spread_pct(row):
    """How far apart the timed steps are."""
    return 100 * (max(row['step_times_s']) / min(row['step_times_s']) - 1)


def measured_step(row):
    """Seconds of a run that counts; None for another. `wrong` says by hand why one does not that looks as if it did."""
    return statistics.median(row['step_times_s']) if trained(row) and even_loads(row) and spread_pct(row) < 25 else None


def ran(row):
    """The run file of what ran: a plan for a newer Transformer Engine has the optimizer of the one on the machine."""
    version = tuple(map(int, row['transformer_engine'].split('.')[:2]))
    if not row['run']['software'].get('adam_reads_bf16') or version >= (2, 13):
        return row['run']
    return row['run'] | {'software': row['run']['software'] | {'adam_reads_bf16': False}}


def error_pct(row):
    return 100 * (row['predicted']['step_time_s'] / measured_step(row) - 1)


def held(row):
    low, high = row['predicted']['interval_s']
    return low <= measured_step(row) <= high


def sum_up(rows):
    errors = [error_pct(row) for row in rows]
    return f'{statistics.mean(map(abs, errors)):.1f} % in the mean, bias {statistics.mean(errors):+.1f} %', sum(map(held, rows))


def run_rows():
    """Run files of the starts on H200 that trained."""
    for path, rows in sets():
        for row in rows:
            if not trained(row) or not even_loads(row):
                continue
            step = measured_step(row)
            again = '-again' if 'again' in path.stem else ''
            retried = row.get('alloc_retries') or {'before': 0, 'a_step': 0}
            reserved = {} if retried['before'] else {'peak_reserved_gib': row['peak_reserved_gib']}  # Else what was left.
            if retried['a_step']:
                reserved['num_alloc_retries'] = retried['a_step']
            gpus = row['run']['num_gpus']
            yield {'check_for_nan_in_loss_and_grad': True} | ran(row) | {  # Megatron's default, before run files said it.
                'id': f"h200x{gpus}-started-{row['question']}{again}", 'system': row['gpu'].lower(), 'date_or_release': re.search(r'\d{4}-\d\d-\d\d', path.stem)[0],
                'source': {'title': f"Megatron-LM core_v{row['release']} with Transformer Engine {row['transformer_engine']}, pretrain_gpt.py "
                                    'unmodified, started as foldwise export --trial --balanced writes it',
                           'where': f"{gpus}x {row['gpu']} SXM, driver {row['driver']}", 'table': path.name},
                'host': path.stem, 'chosen': True,
                'measured': {**({'step_time_s': step, 'step_times_s': row['step_times_s']} if step else {}),
                             'peak_memory_gib': row['peak_allocated_gib'], **reserved}}


def text_of(run):
    model = run['model'] if isinstance(run['model'], str) else run['model']['_name_or_path']
    parts = [f"{model}, {run['num_gpus']} GPU", run['precision']]
    parts += [f'{k.upper()}{run[k]}' for k in ('tp', 'cp', 'pp', 'vpp', 'ep') if run.get(k, 1) > 1]
    if run.get('dispatcher') and run.get('ep', 1) > 1:
        parts.append(run['dispatcher'])
    if run['sharding'] != 'ddp-distopt':
        parts.append(run['sharding'])
    return ' '.join(parts)


def result_of(row):
    if 'wrong' in row:
        return f"starts: {row['wrong']}"
    if not trained(row):
        return 'stopped: ' + re.sub(r'^\[rank\d+\]: ', '', row['error'] or row['status'])[:90]
    if not even_loads(row):
        return f"trains; {statistics.median(row['step_times_s']):.3f} s with an untrained router, not counted"
    if measured_step(row) is None:
        return f'trains; steps {spread_pct(row):.0f} % apart, not counted'
    return 'trains, memory given back in every step' if (row.get('alloc_retries') or {}).get('a_step') else 'trains'


def table():
    print('| question | plan | Megatron-Core, GPU | result | step s, predicted [80 %] | measured | error % | allocated GiB, predicted / measured | reserved GiB |')
    print('| --- | --- | --- | --- | --- | --- | --- | --- | --- |')
    every = [row for _, rows in sets() for row in rows]
    for row in every:
        p, measured = row['predicted'], measured_step(row)
        print(f"| {row['question']} | {text_of(row['run'])} | {row['release']}, {row['gpu']} | {result_of(row)} | "
              f"{p['step_time_s']:.3f} [{p['interval_s'][0]:.3f}, {p['interval_s'][1]:.3f}] | "
              f"{f'{measured:.3f}' if measured else '-'} | {f'{error_pct(row):+.1f}' if measured else '-'} | "
              f"{p['peak_memory_gib']:.1f} / {row['peak_allocated_gib'] or '-'} | {row['peak_reserved_gib'] or '-'} |")
    counted = [row for row in every if measured_step(row)]
    text, inside = sum_up(counted)
    print(f'\n{len(counted)} runs: {text}, 80 % intervals hold {inside}.\n')
    for path, rows in sets():
        print(summary(path.stem, rows))


def summary(name, rows):
    """Of a set: first plans, and what is lost against an engineer's layout (its question with an x behind)."""
    steps = {row['question']: measured_step(row) for row in rows if measured_step(row)}
    first = [row for row in rows if row['question'] in steps and not row['question'].endswith('x')]
    text, inside = sum_up(first)
    lost = [100 * (step / steps[q + 'x'] - 1) for q, step in steps.items() if q + 'x' in steps]
    regret = f', of {len(lost)} the slowest beside an engineer\'s {max(lost):+.1f} %' if lost else ''
    return f'- {name}: {len(first)} first plans, {text}, intervals hold {inside}{regret}'


def outside_terms(run):
    """What rank_memory.cc multiplies with the profile's overheads: context, moe_kernels, communicator, peer."""
    size = {name: run.get(name, 1) for name in ('tp', 'cp', 'pp', 'ep')}
    many = {name: int(n > 1) for name, n in size.items()}
    return [1, int(run['moe']), int(run['num_gpus'] > 1) + many['tp'] + many['cp'] + many['pp'] + 2 * many['ep'],
            min(size['cp'] - 1, 7) + many['pp'] + min(size['ep'] - 1, 7)]


def is_moe(run):
    """Whether the run's model, built in or an object, has experts, by the many names of their number."""
    model = run['model']
    text = json.dumps(model) if isinstance(model, dict) else (ROOT / f'planner/models/data/{model}.json').read_text()
    return re.search(r'"(moe_)?(num|n)_(local_|routed_)?experts": ([2-9]|1\d)', text) is not None


def outside_rows():
    """User buffers of TP overlap are known (docs/memory.md#beside-torch), and left out."""
    for _, rows in sets():
        yield from ((row['question'], row['run'], row['outside_torch_gib']) for row in rows
                    if row.get('outside_torch_gib') and measured_step(row) and not row['run']['overlaps'].get('tp'))
    for run in json.loads((ROOT / 'benchmarks/accuracy/runs/h200x4_te_runs.json').read_text()):
        ranks = zip(run['measured']['device_used_gib_per_rank'], run['measured']['peak_reserved_gib_per_rank'])
        yield run['id'], run, statistics.median(used - torch for used, torch in ranks)


def fit_outside():
    import numpy  # Only here.
    rows = list(outside_rows())
    terms = numpy.array([outside_terms(run | {'moe': is_moe(run)}) for _, run, _ in rows], float)
    held = numpy.array([gib for _, _, gib in rows])
    sizes, *_ = numpy.linalg.lstsq(terms, held, rcond=None)
    left = terms @ sizes - held
    for name, size in zip(('context', 'moe_kernels', 'communicator', 'peer'), sizes):
        print(f'/overheads/{name} = {size:.2f} GiB')
    worst = max(range(len(rows)), key=lambda i: abs(left[i]))
    print(f'{len(rows)} runs, {math.sqrt((left ** 2).mean()):.2f} GiB off (rms), at most {left[worst]:+.2f} ({rows[worst][0]})')


def main():
    if sys.argv[1:2] == ['--outside']:
        fit_outside()
        return
    if sys.argv[1:2] == ['--add']:
        records, plans, release, gpu = sys.argv[2:6]
        for line in open(records):
            record = json.loads(line)
            if record['status'] == 'timeout' and not record['step_ms_timed']:
                continue  # Nobody knows.
            print(json.dumps(row_of(record, pathlib.Path(plans), release, gpu)))
        return
    if sys.argv[1:2] == ['--rows']:
        print(json.dumps(list(run_rows()), indent=1))
        return
    table()


if __name__ == '__main__':
    main()
