"""What a notebook shows of answers: tables, bars of memory and time, the schedule. Text never becomes markup."""
from __future__ import annotations

import html
from typing import Any, Iterable, Mapping, Sequence

COLOURS = ('#4e79a7', '#f28e2b', '#59a14f', '#e15759', '#b07aa1', '#9c755f', '#bab0ac')
"""Tableau 10, of which these stay apart for the colour-blind in this order."""
MEMORY = ('parameters', 'gradients', 'optimizer', 'activations', 'buffers', 'overhead')
LAYOUT = ('tp', 'cp', 'dp', 'pp', 'vpp', 'ep', 'etp', 'micro_batch', 'precision')


def leaves(value: Any, path: str = '') -> list[tuple[str, Any]]:
    """[("optimizer.name", "adam")]"""
    if isinstance(value, dict) and value:
        return [leaf for key, child in value.items() for leaf in leaves(child, f'{path}.{key}' if path else key)]
    return [(path, value)]


def number(value: Any) -> str:
    if isinstance(value, float):
        return f'{value:.4g}' if abs(value) < 1e4 else f'{value:.0f}'
    return '' if value is None else str(value)


def table(rows: Sequence[Mapping[str, Any]], caption: str = '') -> str:
    if not rows:
        return ''
    head = ''.join(f'<th scope="col">{html.escape(key)}</th>' for key in rows[0])
    body = ''.join('<tr>' + ''.join(f'<td>{html.escape(number(value))}</td>' for value in row.values()) + '</tr>'
                   for row in rows)
    title = f'<caption>{html.escape(caption)}</caption>' if caption else ''
    return f'<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def bars(rows: Iterable[tuple[str, Mapping[str, float]]], full: float, unit: str, caption: str) -> str:
    """A bar per row, of coloured parts; its whole width is `full`."""
    rows = list(rows)
    names = list(dict.fromkeys(name for _, parts in rows for name in parts))
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    lines = []
    for title, parts in rows:
        spans = ''.join(
            f'<span title="{html.escape(name)}: {value:.4g} {unit}" style="display:inline-block;height:1em;'
            f'width:{100 * max(0.0, value) / full:.2f}%;background:{colour[name]}"></span>'
            for name, value in parts.items())
        lines.append(f'<div style="display:flex;gap:.5em"><span style="width:8em">{html.escape(title)}</span>'
                     f'<span style="flex:1;border:1px solid #888;white-space:nowrap;overflow:hidden;font-size:1em;'
                     f'line-height:0">{spans}</span><span style="width:7em">{sum(parts.values()):.4g} {unit}</span>'
                     '</div>')
    legend = ' '.join(f'<span style="color:{colour[name]}">&#9632;</span> {html.escape(name)}' for name in names)
    return f'<figure><figcaption>{html.escape(caption)}</figcaption>{"".join(lines)}<div>{legend}</div></figure>'


def memory_bars(prediction: Mapping[str, Any]) -> str:
    stages = prediction['memory']
    full = max([prediction['capacity_gib']] + [stage['total'] for stage in stages])
    return bars(((f'stage {stage["stage"]}', {name: stage[name] for name in MEMORY}) for stage in stages), full, 'GiB',
                f'Memory per pipeline stage, of {prediction["capacity_gib"]:.4g} GiB')


def step_bars(rows: Sequence[tuple[str, Mapping[str, float]]], caption: str) -> str:
    return bars(rows, max(sum(parts.values()) for _, parts in rows) or 1.0, 's', caption)


def headline(prediction: Mapping[str, Any]) -> dict[str, Any]:
    return {key: prediction[key] for key in ('step_time_s', 'tokens_per_s_per_gpu', 'model_tflops_per_gpu', 'mfu_pct',
                                             'peak_device_memory_gib', 'capacity_gib', 'fits')}


def prediction(answer: Any) -> str:
    schedule = f'<details><summary>Schedule</summary>{answer.schedule_svg()}</details>' if 'run' in answer else ''
    return (table([headline(answer)], answer['id']) + step_bars([('step', answer['breakdown'])], 'Where the step goes') +
            memory_bars(answer) + schedule)


def plan_rows(answer: Any) -> list[dict[str, Any]]:
    return [{**{key: plan['run'].get(key) for key in LAYOUT}, **headline(plan['prediction']),
             'limited_by': '; '.join(plan['why'])} for plan in answer['plans']]


def plan(answer: Any) -> str:
    problem = answer['problem']
    title = f'{problem["model"]} on {problem["num_gpus"]} x {problem["system"]}'
    if not answer['plans']:
        return f'<p>{html.escape(title)}: nothing fits</p>'
    first, why = answer['plans'][0]['prediction'], answer['plans'][0]['why']
    rows = [{key: value for key, value in row.items() if key != 'limited_by'} for row in plan_rows(answer)]
    return (table(rows, title) + f'<p>The first one: {html.escape("; ".join(why))}</p>' +
            step_bars([('first plan', first['breakdown'])], 'Where its step goes') + memory_bars(first))


def letter(i: int) -> str:
    return chr(ord('A') + i) if i < 26 else f'R{i + 1}'


def run_names(answer: Any) -> list[str]:
    """Of a comparison: unique, by the letters of its text where they are not."""
    names = [run['run'].get('id') or run.get('file') or letter(i) for i, run in enumerate(answer['runs'])]
    return names if len(set(names)) == len(names) else [f'{letter(i)} {name}' for i, name in enumerate(names)]


def comparison(answer: Any) -> str:
    names = run_names(answer)
    steps = [(name, {key: values[i] for key, values in answer['seconds'].items() if key != 'step'})
             for i, name in enumerate(names)]
    waterfall = [{'cause': line['cause'], 'kind': line['kind'], 'module': line['module'], 'group': line['group'],
                  **dict(zip(names, line['seconds']))} for line in answer['explanation'][:12]]
    runs = [{'run': name, **headline(run['prediction'])} for name, run in zip(names, answer['runs'])]
    changes = [{'field': change['field'], **dict(zip(names, change['values']))} for change in answer['differences']]
    return (table(runs) + table(changes, 'Differences') + step_bars(steps, 'Where the steps go') +
            table(waterfall, 'Waterfall, seconds'))
