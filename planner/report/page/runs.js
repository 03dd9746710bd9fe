'use strict';
// The pages of `predict`, `compare`, `diagnose` and `sweep`.

function predict() {
  const {run, fitting, explain, communication, imbalance} = data.answer;
  heading(
      `${run.model} on ${run.num_gpus} ${run.system}${run.id ? `: ${run.id}` : ''}`,
      `${layout(run)}; ${run.precision}, sequences of ${run.seq_len} tokens, global batch ${run.global_batch}.`);
  const fullest = imbalance ?
      [['At p99 of rows', `${gib(imbalance.p99_memory_gib)} GiB`, 'if all MoE layers get so many, random routing']] :
      [];
  figures([...predictionFigures(data.answer), ...fullest, ...trainingFigures(data.answer.training)]);
  section('run', 'Prediction', predictionParts(data.answer), folded('The run file', json(run)));
  if (fitting)
    section('fitting', 'What would make it fit', dataTable({
              label: 'Changes that make it fit',
              rows: fitting.changes,
              columns: [
                {title: 'change', value: (row) => row.change, long: true},
                {title: 'step s', value: (row) => row.step_time_s}, {title: 'cost s', value: (row) => row.cost_s},
                {title: 'GiB', value: (row) => row.peak_device_memory_gib, text: gib},
                {title: 'fits', value: (row) => yesOrNo(row.fits)}
              ]
            }));
  section('explain', 'What would help', ...explained(explain, 'This run'));
  if (communication.entries.length)
    section('communication', 'Communication', paragraph('Of the busiest stage, in a step.', 'quiet'), dataTable({
              label: 'Communication',
              rows: communication.entries,
              columns: [
                ...['kind', 'group', 'tier'].map((key) => ({title: key, value: (row) => spoken(row[key])})),
                {title: 'GB sent', value: (row) => row.bytes / 1e9, hint: '10^9 bytes by one GPU'},
                {title: 'exposed s', value: (row) => row.exposed_s}, {title: 'hidden s', value: (row) => row.hidden_s}
              ]
            }));
  schedules();
  assumptions([{name: 'The run file', prediction: data.answer}]);
}

const MOST_RUNS = 8;  // With charts of their own.
const runName = (i) => (i < 26 ? String.fromCharCode(65 + i) : `R${i + 1}`);

const stepTokens = ({run}) => run.global_batch * run.seq_len;

function distanceText({slower_pct: slower, error_pct: error, exceeds_error: exceeds}, name, sameWork) {
  return `${sameWork ? '' : 'Steps hold different work, so time per token is compared. '}${name} is ${
      Math.abs(slower).toFixed(2)} % ${slower < 0 ? 'faster' : 'slower'} than A: ${
      exceeds ? 'more than the' :
                'inside of the'} ${+ error.toPrecision(3)} % within which the model cannot tell such runs apart.`;
}

function compare() {
  const {runs, differences, explanation, seconds: {step: steps}, stage, distances} = data.answer;
  const names = runs.map((_, i) => runName(i));
  const titles = runs.map(({run, file}, i) => `${names[i]}: ${run.id || file}`);
  heading(
      runs.length <= 4 ? titles.join(' – ') : `${runs.length} runs`,
      `Side by side.${runs.length > MOST_RUNS ? ` Charts are of the first ${MOST_RUNS}.` : ''}`);
  section(
      'runs', 'Runs', dataTable({
        label: 'Runs',
        rows: runs.map((entry, i) => ({...entry, name: names[i]})),
        columns: [
          {title: 'run', value: (row) => row.name}, {title: 'file', value: (row) => row.run.id || row.file, long: true},
          ...planColumns([]).slice(1).filter(({title}) => title !== 'group'),
          {title: 'fits', value: (row) => yesOrNo(row.prediction.fits)}
        ]
      }),
      list(distances.map(
          (distance, i) => distanceText(distance, names[i + 1], stepTokens(runs[0]) === stepTokens(runs[i + 1])))));
  section('differences', 'What differs', dataTable({
            label: 'What differs',
            rows: differences,
            columns: [
              {title: 'field', value: (row) => row.field},
              ...names.map((name, i) => ({title: name, value: (row) => row.values[i], long: true}))
            ]
          }));
  section(
      'waterfall', 'Where the difference goes',
      ...names.slice(1, MOST_RUNS)
          .map((name, i) => linesChart(`From A to ${name}`, explanation, [0, i + 1], names, steps, stageNote(stage))),
      folded('Every line', dataTable({
               label: 'Every line',
               rows: explanation,
               tall: true,
               columns: [
                 ...['cause', 'kind', 'module', 'group'].map(
                     (key) => ({title: key, value: (row) => spoken(row[key] || '')})),
                 ...names.map((name, i) => ({title: `${name} s`, value: (row) => row.seconds[i]})),
                 ...names.slice(1).map((name, i) => ({
                                         title: `${name} − A`,
                                         value: (row) => row.seconds[i + 1] - row.seconds[0],
                                         text: (value) => signed(value, 4)
                                       }))
               ]
             })));
  distances.forEach(({single_changes: changes}, i) => {
    if (changes && changes.length)
      section(
          `changes-${names[i + 1]}`, `A with one field of ${names[i + 1]}`, dataTable({
            label: 'Single changes',
            rows: changes,
            columns: [
              {title: 'field', value: (row) => row.field}, {title: 'step s', value: (row) => row.step_time_s}, {
                title: 'change s',
                value: (row) => row.change_s,
                text: (value) => (value === null ? '' : signed(value, 4))
              },
              {title: 'of the way %', value: (row) => (row.share === null ? null : 100 * row.share), text: fixed(0)},
              {title: 'fits', value: (row) => yesOrNo(row.fits)},
              {title: 'refused', value: (row) => row.refused.map(({reason}) => reason).join(' '), long: true}
            ]
          }));
  });
  section(
      'memory', 'Memory',
      ...runs.slice(0, MOST_RUNS)
          .map(
              ({prediction: {memory, capacity_gib: capacity}}, i) => memoryChart(
                  memory.map((at) => `stage ${at.stage}`), memory, capacity, `${names[i]}: by stage and cause`)));
  schedules(names);
  assumptions(runs.map(({prediction}, i) => ({name: names[i], prediction})));
}

function diagnose() {
  const {trace, stage, waterfall, reasons, findings, measured, memory, ranks, links, changes} = data.answer;
  const {predicted_s: predicted, measured_s: traced, unprofiled_s: alone, kernel_time_s: kernels} = data.answer;
  heading(data.answer.id || trace.file, `Step ${trace.step + 1} of ${trace.steps_s.length} in ${trace.file}.`);
  figures([
    ['Measured', `${number(traced)} s`, `${signed(100 * (traced / predicted - 1))} % against the prediction`],
    ['Predicted', `${number(predicted)} s`],
    ...(alone === null ? [] : [['Without a profiler', `${number(alone)} s`, 'says the run']]),
    ['Kernels', `${number(kernels)} s`, `${percent(data.answer.found_by_s.nothing / kernels)} of them unknown`]
  ]);
  section(
      'findings', 'What makes it longer than predicted',
      findings.length ? dataTable(
                            {
                              label: 'Findings',
                              rows: findings,
                              columns: [
                                {title: 'seconds', value: (row) => row.seconds, text: (value) => signed(value, 4)},
                                {title: 'what', value: (row) => row.what, long: true},
                                {title: 'evidence', value: (row) => row.evidence, long: true}, {
                                  title: 'check',
                                  value: ({flags}) =>
                                      (flags === null    ? '' :
                                           !flags.length ? 'no flag mends this' :
                                                           flags
                                                               .map(
                                                                   ({flag, field, value}) =>
                                                                       (field ? `${flag} (${value} in the run)` : flag))
                                                               .join(', ')),
                                  long: true
                                }
                              ]
                            }) :
                        paragraph('Nothing by more than 1 % of the step.'));
  section('reasons', 'The difference by reason', dataTable({
            label: 'The difference by reason',
            rows: reasons,
            columns: [
              {title: 'seconds', value: (row) => row.seconds, text: (value) => signed(value, 4)},
              {title: 'reason', value: (row) => row.what, long: true}
            ]
          }));
  section(
      'waterfall', 'Where the difference goes',
      linesChart(
          'From predicted to measured', waterfall.lines, [0, 1], ['predicted', 'measured'], [predicted, traced],
          `On pipeline stage ${stage}, which the trace is of.`),
      folded(
          'Every line', dataTable({
            label: 'Every line',
            rows: waterfall.lines,
            tall: true,
            columns: [
              ...['cause', 'kind', 'module', 'group'].map(
                  (key) => ({title: key, value: (row) => spoken(row[key] || '')})),
              {title: 'predicted s', value: (row) => row.seconds[0]},
              {title: 'measured s', value: (row) => row.seconds[1]},
              {title: 'difference', value: (row) => row.seconds[1] - row.seconds[0], text: (value) => signed(value, 4)}
            ]
          })),
      folded('Kernels', dataTable({
               label: 'Kernels',
               rows: measured.flatMap(
                   ({kind, module, group, kernels: longest}) =>
                       longest.map(({name, seconds}) => ({kind, module, group, name, seconds}))),
               tall: true,
               columns: [
                 {title: 'seconds', value: (row) => row.seconds}, {title: 'kind', value: (row) => spoken(row.kind)},
                 {title: 'module', value: (row) => spoken(row.module || row.group)},
                 {title: 'kernel', value: (row) => row.name, long: true}
               ]
             })));
  if (ranks.length)
    section('ranks', 'Ranks', dataTable({
              label: 'Ranks',
              rows: ranks,
              columns: [
                {title: 'rank', value: (row) => row.rank}, {title: 'node', value: (row) => row.node},
                {title: 'waits for others s', value: (row) => row.waited_s},
                {title: 'is waited for s', value: (row) => row.waited_for_s},
                {title: 'comes last', value: (row) => row.came_last},
                {title: 'of collectives', value: (row) => row.collectives},
                {title: 'products %', value: (row) => 100 * row.speed.products, text: fixed(1)},
                {title: 'memory-bound %', value: (row) => 100 * row.speed.memory_bound, text: fixed(1)},
                {title: 'expert rows', value: (row) => row.expert_rows}
              ]
            }));
  if (links.length)
    section('links', 'Links, at the best of their large calls', dataTable({
              label: 'Links',
              rows: links,
              columns: [
                {title: 'kind', value: (row) => spoken(row.kind)}, {title: 'group', value: (row) => row.group},
                {title: 'ranks', value: (row) => row.ranks.join(' '), long: true},
                {title: 'calls', value: (row) => row.calls},
                {title: 'GB/s', value: (row) => 1e-9 * row.bandwidth_bytes_per_s, text: fixed(1)}, {
                  title: 'of others GB/s',
                  value: (row) => (row.of_others_bytes_per_s === null ? null : 1e-9 * row.of_others_bytes_per_s),
                  text: (value) => (value === null ? '' : value.toFixed(1))
                },
                {title: 'lost s', value: (row) => row.lost_s}
              ]
            }));
  if (memory && memory.before_bytes !== null)
    section(
        'memory', 'What is allocated at the peak', dataTable({
          label: 'Memory',
          rows: [{phase: 'before the trace', module: '', bytes: memory.before_bytes, tensors: null}, ...memory.owned],
          columns: [
            {title: 'phase', value: (row) => row.phase}, {title: 'module', value: (row) => row.module},
            {title: 'tensors', value: (row) => row.tensors}, {title: 'bytes', value: (row) => row.bytes},
            {title: 'GiB', value: (row) => row.bytes / 2 ** 30, text: fixed(3)}
          ]
        }));
  if (changes.length)
    section('changes', 'Single changes of the run that fit and are predicted faster', dataTable({
              label: 'Changes',
              rows: changes,
              columns: [
                {title: 'change', value: (row) => row.change, long: true},
                {title: 'flags', value: ({flags}) => (flags ? flags.join(', ') : ''), long: true},
                {title: 'step s', value: (row) => row.step_time_s}
              ]
            }));
}

// Rows that fit and that no other one beats in both columns.
function undominated(rows, a, b) {
  const there = rows.filter(({status}) => status === 'fits').sort((x, y) => x[a] - y[a] || x[b] - y[b]);
  let least = Infinity;
  return there.filter((row) => {
    const better = row[b] < least;
    least = Math.min(least, row[b]);
    return better;
  });
}

/// Without the groups that say whose a field is: a phone cuts long names off, and the values are at their ends.
const fieldName = (key) => key.replace(/^(system|model_overrides)\./, '');
const pointName = (row, keys) => keys.map((key) => `${fieldName(key)} ${words(row[key])}`).join(', ');

function pointsChart(axes, rows, x, y) {
  const others = axes.filter((axis) => axis !== x), lines = new Map();
  for (const row of rows.filter((one) => typeof one[y] === 'number')) {
    const name = pointName(row, others) || y, fits = row.status === 'fits';
    const text = `${pointName(row, axes)}: ${y} ${number(row[y])}${fits ? '' : `, ${row.status}`}`;
    if (!lines.has(name)) lines.set(name, []);
    lines.get(name).push({x: row[x], y: row[y], hollow: !fits, text});
  }
  const refused = rows.filter(({status}) => status === 'refused');
  const values = [...new Set(rows.map((row) => row[x]))];
  const scaled = values.every((value) => typeof value === 'number' && value > 0);
  return chart({
    kind: 'points',
    title: `${y} by ${x}`,
    note: refused.length ? 'Hollow: does not fit. Crosses at the bottom: refused; Refused says why.' :
                           'Hollow: does not fit.',
    x: {
      title: x,
      ratio: scaled && Math.max(...values) >= 4 * Math.min(...values),
      ticks: scaled && values.length < 10 ? values : undefined
    },
    y: {title: y, fromZero: true},
    series: [
      ...[...lines].map(([name, points]) => ({name, line: true, points})),
      ...(refused.length ? [{
        name: 'refused',
        hue: 7,
        points: refused.map(
            (row) => ({x: row[x], y: 0, cross: true, text: `${pointName(row, axes)}, refused: ${row.reason}`}))
      }] :
                           [])
    ]
  });
}

// A chart of any column over any axis.
function choosableChart(axes, rows, columns) {
  const space = element('div');
  const show = () => {
    const [x, y] = [...tools.querySelectorAll('select')].map(({value}) => value);
    space.replaceChildren(pointsChart(axes, rows, x, y));
    redraw(space);
  };
  const select = (label, options, chosen) => {
    const made = options.map((option) => element('option', {selected: option === chosen}, option));
    return element('label', {}, label, element('select', {onchange: show}, ...made));
  };
  const tools =
      element('div', {class: 'tools'}, select('Across', axes, axes[0]), select('Up', columns, 'tokens_per_s_per_gpu'));
  section('chart', 'Chart', tools, space);
  show();
}

function sweepFront(axes, rows, column, title) {
  const best = undominated(rows, column, 'step_time_s');
  const others = rows.filter((row) => row.status === 'fits' && !best.includes(row));
  const point = (row) => ({
    x: row[column],
    y: row.step_time_s,
    text: `${pointName(row, axes)}: ${number(row.step_time_s)} s, ${spoken(column)} ${number(row[column])}`
  });
  return chart({
    kind: 'points',
    title,
    note: 'No other point that fits beats those on the line in both.',
    x: {title: spoken(column)},
    y: {title: 'step, s'},
    series: [
      {name: 'other points that fit', hue: 1, points: others.map(point)},
      {name: 'not beaten in both', hue: 0, front: true, points: best.map(point)}
    ]
  });
}

function sweep() {
  const {axes, columns, rows} = data.answer;
  const fitting = rows.filter(({status}) => status === 'fits').length;
  const refused = rows.filter(({status}) => status === 'refused');
  const systems = [...new Set(data.answer.systems.map(({system}) => system))];
  heading(
      `${data.answer.models.join(', ')} on ${systems.join(', ')}: sweep over ${axes.join(', ')}`,
      `${rows.length} points: ${fitting} fit, ${rows.length - fitting - refused.length} do not, ` +
          `rules refuse ${refused.length}.`);
  const numeric = columns.filter((column) => rows.some((row) => typeof row[column] === 'number'));
  const shown = numeric.filter((column) => !axes.includes(column));
  if (shown.length) choosableChart(axes, rows, shown);
  if (fitting)
    section(
        'fronts', 'Fronts', sweepFront(axes, rows, 'peak_device_memory_gib', 'Time against memory'),
        numeric.includes('num_gpus') ? sweepFront(axes, rows, 'num_gpus', 'Time against GPUs') : null);
  if (refused.length)
    section('refused', 'Refused', dataTable({
              label: 'Refused',
              rows: refused,
              columns: [
                ...axes.map((axis) => ({title: axis, value: (row) => row[axis]})),
                {title: 'reason', value: ({reason}) => reason, long: true}
              ]
            }));
  const cell = (column) => ({title: column, value: (row) => row[column], long: column === 'reason'});
  const cells = columns.filter((column) => column !== 'sweep').map(cell);
  section('rows', 'Rows', dataTable({label: 'Rows', rows, tall: true, filtered: true, columns: cells}));
  assumptions([]);
}
