'use strict';
// Parts that the pages of several commands have. docs/output.md says what the keys of an answer mean.

const data = JSON.parse(document.getElementById('data').textContent);
const main = document.getElementById('report');
const gib = fixed(1);

function section(id, title, ...children) {
  main.append(element('section', {id}, element('h2', {}, title), ...children.filter(Boolean)));
  document.querySelector('nav ul').append(element('li', {}, element('a', {href: `#${id}`}, title)));
}
const list = (texts) => element('ul', {}, ...texts.map((text) => element('li', {}, text)));
const paragraph = (text, kind) => element('p', {class: kind}, text);
const json = (value) => element('pre', {tabindex: '0'}, JSON.stringify(value, null, 2));
const folded = (title, ...children) => element('details', {}, element('summary', {}, title), ...children);

function heading(title, about) {
  document.querySelector('h1').textContent = title;
  document.querySelector('.about').textContent = about;
  document.title = `${title} – Foldwise`;
}

// [[what, value, besides]]: the few figures that matter most.
const figures = (entries) => main.append(element(
    'dl', {class: 'figures'},
    ...entries.map(
        ([what, value, besides]) => element(
            'div', {}, element('dt', {}, what),
            element('dd', {}, value, besides ? element('small', {}, besides) : null)))));

const interval = ({interval: between}) =>
    (between && between.step_time_s ?
         `4 of 5 measured runs: ${between.step_time_s.map((s) => number(s)).join(' to ')} s` :
         '');
const SIZES = ['tp', 'cp', 'dp', 'pp', 'vpp', 'ep', 'etp'];
const layout = (run) => `${SIZES.map((key) => key.toUpperCase() + run[key]).join(' ')}, micro-batch ${run.micro_batch}`;

function predictionFigures(prediction) {
  const {step_time_s: step, capacity_gib: capacity, peak_device_memory_gib: peak} = prediction;
  return [
    ['Step', `${number(step)} s`, interval(prediction)],
    [
      'Throughput', `${number(prediction.tokens_per_s_per_gpu, 5)} tokens/s/GPU`,
      `${number(prediction.model_tflops_per_gpu)} model TFLOPS/GPU`
    ],
    [
      'MFU', `${prediction.mfu_pct.toFixed(1)} %`,
      prediction.unread_keys_pct < 1 ?
          '' :
          `${prediction.unread_keys_pct.toFixed(0)} % of its FLOPs are for keys that attention does not read`
    ],
    ['Memory, fullest GPU', `${gib(peak)} GiB`, `of ${gib(capacity)} GiB: ${prediction.fits ? 'fits' : 'DOES NOT FIT'}`]
  ];
}

// What a whole training costs, where that was asked.
function trainingFigures(training) {
  if (!training) return [];
  const {tokens, steps, days, gpu_hours: hours, money, energy_mwh: energy, goodput} = training;
  return [
    [
      'Training', days === null ? 'does not progress' : `${number(days)} days`,
      `${number(tokens / 1e12)} T tokens, ${whole(steps)} steps`
    ],
    ...(hours === null ? [] : [['GPU-hours', whole(hours)]]),
    ...(money === null ? [] : [['Money', whole(money), 'at the price that was given']]),
    ...(energy === null ? [] : [['Energy of the GPUs', `${number(energy)} MWh`]]),
    ...(goodput ? [['Goodput', percent(goodput.share), `a checkpoint every ${number(goodput.interval_s)} s`]] : [])
  ];
}

const MEMORY = ['parameters', 'gradients', 'optimizer', 'activations', 'buffers', 'overhead'];
const PARTS = ['compute', 'recompute', 'optimizer', 'tp', 'cp', 'ep', 'pp', 'dp', 'offload_wait', 'host', 'bubble'];
const RESOURCES = {
  flops: 'FLOPs, same power limit',
  power: 'power limit',
  hbm_bandwidth: 'HBM bandwidth',
  hbm_capacity: 'HBM capacity, best change',
  nvlink: 'NVLink bandwidth',
  nic: 'NIC bandwidth',
  host: 'host speed'
};
const CAUSES = ['compute', 'exposed_communication', 'exposed_copy', 'bubble', 'host'];
const spoken = (name) => name.replaceAll('_', ' ');

function memoryChart(names, memories, capacity, title) {
  return chart({
    kind: 'bars',
    title,
    unit: 'GiB',
    across: 'stage',
    categories: names,
    note: `At the fullest moment of each pipeline stage. The dashed line is what the GPU has, ${gib(capacity)} GiB.`,
    series: MEMORY.map((name) => ({name, values: memories.map((memory) => memory[name])})),
    limit: capacity
  });
}

function partsChart(stages, critical) {
  const there = PARTS.filter((part) => stages.some((stage) => stage.parts[part] > 1e-9));
  return chart({
    kind: 'bars',
    title: 'Seconds by stage and activity',
    unit: 's',
    across: 'stage',
    note: 'Every second of a step: all bars are as long as it. Communication is what nothing hides, by process group.',
    categories: stages.map(({stage}) => `stage ${stage}${stage === critical ? ', busiest' : ''}`),
    series: there.map(
        (part) => ({name: spoken(part), hue: PARTS.indexOf(part), values: stages.map((stage) => stage.parts[part])}))
  });
}

// Bars from one total to another: steps [[name, seconds]] add up to the difference.
function waterfallChart({title, note, from, steps, to}) {
  const categories = [], values = [], bases = [], colours = [], texts = [];
  const add = (name, value, base, fill, text) => [categories, values, bases, colours, texts].forEach(
      (column, i) => column.push([name, value, base, fill, text][i]));
  let at = from ? from[1] : 0;
  if (from) add(from[0], from[1], 0, WHOLE, number(from[1]));
  for (const [name, seconds] of steps) {
    add(name, seconds, at, seconds < 0 ? LESS : MORE, signed(seconds));
    at += seconds;
  }
  add(to[0], to[1], 0, WHOLE, number(to[1]));
  const ends = values.flatMap((value, i) => (colours[i] === WHOLE ? [value] : [bases[i], bases[i] + value]));
  const low = Math.min(...ends), high = Math.max(...ends);
  // A small difference would not be seen beside the whole.
  const start = low > .5 * high ? low - .3 * (high - low) : 0;
  if (start > 0) note += ` The axis starts at ${number(start)} s.`;
  const range = [start, high + .15 * (high - start)];  // With place for the last number.
  return chart({
    kind: 'bars',
    title,
    note,
    range,
    unit: 's',
    across: 'part',
    categories,
    series: [{name: 'seconds', values, bases, colours, texts}]
  });
}

const lineName = ({cause, kind, module, group}) =>
    (kind || module || group ? [kind, module, group].filter(Boolean).map(spoken).join(' ') : spoken(cause));

function detailTable(prediction) {
  return dataTable({
    label: 'Parts of the busiest stage',
    rows: prediction.breakdown_detail,
    tall: true,
    columns: [
      {title: 'cause', value: (row) => spoken(row.cause)}, {title: 'kind', value: (row) => row.kind},
      {title: 'module', value: (row) => row.module}, {title: 'group', value: (row) => row.group},
      {title: 'seconds', value: (row) => row.seconds},
      {title: 'share %', value: (row) => 100 * row.seconds / prediction.step_time_s, text: fixed(1)}
    ]
  });
}

function predictionParts(prediction) {
  const {stages, memory, critical_stage: critical, breakdown} = prediction;
  return element(
      'div', {},
      element(
          'div', {class: 'pair'},
          memoryChart(
              memory.map(({stage}) => `stage ${stage}`), memory, prediction.capacity_gib, 'Memory by stage and cause'),
          waterfallChart({
            title: 'What the step is made of',
            note: `On pipeline stage ${critical}, the busiest.`,
            steps: CAUSES.map((cause) => [spoken(cause), breakdown[cause]]),
            to: ['step', prediction.step_time_s]
          })),
      partsChart(stages, critical), folded('Parts of the busiest stage, op by op', detailTable(prediction)));
}

function explained(explain, title) {
  if (!explain) return [];
  const {walls, sensitivities, binding, best_change: best, best_change_with_more_memory: roomier} = explain;
  const largestFirst = Object.entries(walls).sort((a, b) => b[1] - a[1]);
  const sum = ({change, step_time_s: step, gain_s: gain, peak_device_memory_gib: peak}) =>
      `${change}: ${number(step)} s (${signed(-gain)} s), ${gib(peak)} GiB`;
  const binds = binding ? RESOURCES[binding] || spoken(binding) : 'nothing gains a thousandth of the step';
  return [
    paragraph(`What binds: ${binds}. The fullest GPU uses ${percent(explain.memory_used)} of its memory.`), list([
      best ? `Best single change: ${sum(best)}` : 'No single change that fits makes it faster.',
      ...(roomier ? [`With 10 % more memory: ${sum(roomier)}`] : []),
      `${explain.changes_predicted} changes predicted, ${explain.changes_refused} refused by rules.`
    ]),
    element(
        'div', {class: 'pair'}, chart({
          kind: 'bars',
          title: `${title}: walls`,
          unit: '% of the step',
          across: 'wall',
          note: 'Shares of the busiest stage.',
          categories: largestFirst.map(([wall]) => wall),
          series: [{name: 'share', values: largestFirst.map(([, share]) => 100 * share)}]
        }),
        chart({
          kind: 'bars',
          title: 'Sensitivities',
          unit: '% of the step',
          across: 'with 10 % more',
          note: 'What 10 % more of one thing would gain; each is a prediction of its own.',
          categories: sensitivities.map(({resource}) => RESOURCES[resource] || spoken(resource)),
          series: [
            {name: 'gain', values: sensitivities.map(({gain_s: gain, step_time_s: step}) => 100 * gain / (gain + step))}
          ]
        }))
  ];
}

// The drawings of schedules, which are markup of ours: texts in them were escaped as they were drawn.
function schedules(titles = []) {
  const parts = data.pictures.flatMap(({title, svg}, i) => {
    const drawing = document.adoptNode(new DOMParser().parseFromString(svg, 'image/svg+xml').documentElement);
    const about = {class: 'picture', tabindex: '0', role: 'region', 'aria-label': `Schedule: ${title}`};
    return [titles[i] ? element('h3', {}, titles[i]) : null, element('div', about, drawing)];
  });
  if (parts.length) section('schedule', 'Schedule', ...parts);
}

function assumptions(runs) {
  const named = new Map();  // Runs by what they assume.
  for (const {name, prediction: {assumed}} of runs) {
    const key = JSON.stringify(assumed);
    named.set(key, [...(named.get(key) || []), name]);
  }
  const open =
      [...named]
          .filter(([assumed]) => assumed !== '[]')
          .flatMap(
              ([assumed, names]) =>
                  [element('h3', {}, `${names.join(', ')}: not stated, and taken instead`), list(JSON.parse(assumed))]);
  const beyond = (data.answer.beyond_fit || []).length ?
      [element('h3', {}, 'Beyond what curves were fitted to'), list(data.answer.beyond_fit)] :
      [];
  const systems = data.systems.flatMap(({name, overrides, facts}) => {
    const counts = {};
    for (const {kind} of facts) counts[kind] = (counts[kind] || 0) + 1;
    const rows = facts.map((fact) => ({...fact, field: fact.field.slice(1).replaceAll('/', '.')}));
    return [
      element('h3', {}, `The numbers of ${name}`),
      paragraph(
          `${facts.length} numbers: ${Object.entries(counts).map(([kind, count]) => `${count} ${kind}`).join(', ')}.` +
              (overrides ? ` Changed: ${words(overrides)}.` : ''),
          'quiet'),
      dataTable({
        label: `The numbers of ${name}`,
        rows,
        tall: true,
        columns: [
          {title: 'number', value: (row) => row.field}, {title: 'kind', value: (row) => row.kind},
          {title: 'value', value: (row) => row.value, text: (value) => shortened(value, 30)},
          {title: 'source', value: (row) => row.source, long: true}, {title: 'date', value: (row) => row.date},
          {title: 'note', value: (row) => row.note, long: true}
        ]
      })
    ];
  });
  if (open.length + beyond.length + systems.length)
    section('assumptions', 'Assumptions and sources', ...open, ...beyond, ...systems);
}

function origin() {
  section(
      'command', 'Command', element('pre', {class: 'wrap', tabindex: '0'}, data.command),
      paragraph(`${data.program}; answer of schema ${data.answer.schema}.`, 'quiet'),
      paragraph('The page holds the whole answer and asks for nothing over the network.', 'quiet'),
      folded('The answer as JSON', json(data.answer)));
  if (!hasPlotly)
    document.querySelector('header').append(paragraph('Built without plotly.js: charts are plain drawings.', 'warn'));
  document.querySelector('footer').textContent = hasPlotly ? 'Charts: plotly.js, MIT license, © Plotly, Inc.' : '';
}

const stageNote = (stage) =>
    (stage === null ? 'Means over the pipeline stages: the runs’ busiest ones are not the same.' :
                      `On pipeline stage ${stage}, the busiest of each.`);

// From run `a` to run `b`, the lines that differ most and the rest.
function linesChart(title, lines, [a, b], names, steps, note, most = 12) {
  const changes =
      lines.map((line) => [lineName(line), line.seconds[b] - line.seconds[a]]).filter(([, change]) => change !== 0);
  changes.sort((x, y) => Math.abs(y[1]) - Math.abs(x[1]));
  const left = changes.slice(most).reduce((sum, [, change]) => sum + change, 0);
  return waterfallChart({
    title,
    note,
    from: [names[a], steps[a]],
    steps:
        [...changes.slice(0, most), ...(changes.length > most ? [[`${changes.length - most} more lines`, left]] : [])],
    to: [names[b], steps[b]]
  });
}
