'use strict';
// The page of an answer: docs/output.md says what its keys mean.

const data = JSON.parse(document.getElementById('data').textContent);
const main = document.getElementById('report');
const gib = fixed(1);

function section(id, title, ...children) {
  main.append(element('section', {id}, element('h2', {}, title), ...children));
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
const figures = (entries) => main.append(element('dl', {class: 'figures'}, ...entries.map(([what, value, besides]) =>
  element('div', {}, element('dt', {}, what), element('dd', {}, value, besides ? element('small', {}, besides) : null)))));

const interval = ({interval: between}) => (between ? `9 of 10 measured runs: ${between.step_time_s.map((s) => number(s)).join(' to ')} s` : '');
const layout = (run) => `TP${run.tp} CP${run.cp} DP${run.dp} PP${run.pp} VPP${run.vpp} EP${run.ep} ETP${run.etp}, micro-batch ${run.micro_batch}`;

function predictionFigures(prediction) {
  const {step_time_s: step, capacity_gib: capacity, peak_device_memory_gib: peak} = prediction;
  return [
    ['Step', `${number(step)} s`, interval(prediction)],
    ['Throughput', `${number(prediction.tokens_per_s_per_gpu, 5)} tokens/s/GPU`, `${number(prediction.model_tflops_per_gpu)} model TFLOPS/GPU`],
    ['MFU', `${prediction.mfu_pct.toFixed(1)} %`],
    ['Memory, fullest GPU', `${gib(peak)} GiB`, `of ${gib(capacity)} GiB: ${prediction.fits ? 'fits' : 'DOES NOT FIT'}`]];
}

// ---- What a prediction is made of -------------------------------------------------------------------------------------

const MEMORY = ['parameters', 'gradients', 'optimizer', 'activations', 'buffers', 'overhead'];
const PARTS = ['compute', 'recompute', 'optimizer', 'tp', 'cp', 'ep', 'pp', 'dp', 'offload_wait', 'host', 'bubble'];
const RESOURCES = {
  flops: 'FLOPs, same power limit', power: 'power limit', hbm_bandwidth: 'HBM bandwidth', hbm_capacity: 'HBM capacity, best change', nvlink: 'NVLink bandwidth',
  nic: 'NIC bandwidth', host: 'host speed'};
const CAUSES = ['compute', 'exposed_communication', 'exposed_copy', 'bubble', 'host'];
const spoken = (name) => name.replaceAll('_', ' ');

function memoryChart(names, memories, capacity, title) {
  return chart({kind: 'bars', title, unit: 'GiB', across: 'stage', categories: names,
                note: `At the fullest moment of each pipeline stage. The dashed line is what the GPU has, ${gib(capacity)} GiB.`,
                series: MEMORY.map((name) => ({name, values: memories.map((memory) => memory[name])})),
                limit: capacity});
}

function partsChart(stages, critical) {
  const there = PARTS.filter((part) => stages.some((stage) => stage.parts[part] > 0));
  return chart({kind: 'bars', title: 'Seconds by stage and activity', unit: 's', across: 'stage',
                note: 'Every second of a step: all bars are as long as the step. Communication is what nothing hides, by process group.',
                categories: stages.map(({stage}) => `stage ${stage}${stage === critical ? ', busiest' : ''}`),
                series: there.map((part) => ({name: spoken(part), values: stages.map((stage) => stage.parts[part])}))});
}

// Bars from one total to another: steps [[name, seconds]] add up to the difference.
function waterfallChart({title, note, from, steps, to}) {
  const categories = [], values = [], bases = [], colours = [], texts = [];
  const add = (name, value, base, fill, text) => [categories, values, bases, colours, texts].forEach((column, i) => column.push([name, value, base, fill, text][i]));
  let at = from ? from[1] : 0;
  if (from) add(from[0], from[1], 0, WHOLE, number(from[1]));
  for (const [name, seconds] of steps) {
    add(name, seconds, at, seconds < 0 ? LESS : MORE, signed(seconds));
    at += seconds;
  }
  add(to[0], to[1], 0, WHOLE, number(to[1]));
  const ends = values.flatMap((value, i) => (colours[i] === WHOLE ? [value] : [bases[i], bases[i] + value])), low = Math.min(...ends), high = Math.max(...ends);
  const start = low > .5 * high ? low - .3 * (high - low) : 0;  // A small difference would not be seen beside the whole.
  if (start > 0) note += ` The axis starts at ${number(start)} s.`;
  const range = [start, high + .15 * (high - start)];  // With place for the last number.
  return chart({kind: 'bars', title, note, range, unit: 's', across: 'part', categories, series: [{name: 'seconds', values, bases, colours, texts}]});
}

const lineName = ({cause, kind, module, group}) => (kind || module || group ? [kind, module, group].filter(Boolean).map(spoken).join(' ') : spoken(cause));

function detailTable(prediction) {
  return dataTable({label: 'Parts of the busiest stage', rows: prediction.breakdown_detail, tall: true, columns: [
    {title: 'cause', value: (row) => spoken(row.cause)}, {title: 'kind', value: (row) => row.kind}, {title: 'module', value: (row) => row.module},
    {title: 'group', value: (row) => row.group}, {title: 'seconds', value: (row) => row.seconds},
    {title: 'share %', value: (row) => 100 * row.seconds / prediction.step_time_s, text: fixed(1)}]});
}

function predictionParts(prediction) {
  const {stages, memory, critical_stage: critical, breakdown} = prediction;
  return element('div', {},
    element('div', {class: 'pair'},
      memoryChart(memory.map(({stage}) => `stage ${stage}`), memory, prediction.capacity_gib, 'Memory by stage and cause'),
      waterfallChart({title: 'What the step is made of', note: `On pipeline stage ${critical}, the busiest.`,
                      steps: CAUSES.map((cause) => [spoken(cause), breakdown[cause]]), to: ['step', prediction.step_time_s]})),
    partsChart(stages, critical),
    folded('Parts of the busiest stage, op by op', detailTable(prediction)));
}

function explained(explain, title) {
  if (!explain) return [];
  const {walls, sensitivities, binding, best_change: best, best_change_with_more_memory: roomier} = explain;
  const largestFirst = Object.entries(walls).sort((a, b) => b[1] - a[1]);
  const sum = (change) => `${change.change}: ${number(change.step_time_s)} s (${signed(-change.gain_s)} s), ${gib(change.peak_device_memory_gib)} GiB`;
  return [
    paragraph(`What binds: ${binding ? RESOURCES[binding] || spoken(binding) : 'nothing gains a thousandth of the step'}. The fullest GPU uses ${percent(explain.memory_used)} of its memory.`),
    list([best ? `Best single change: ${sum(best)}` : 'No single change that fits makes it faster.',
          ...(roomier ? [`With 10 % more memory: ${sum(roomier)}`] : []),
          `${explain.changes_predicted} changes predicted, ${explain.changes_refused} refused by rules.`]),
    element('div', {class: 'pair'},
      chart({kind: 'bars', title: `${title}: walls`, unit: '% of the step', across: 'wall', note: 'Shares of the busiest stage.',
             categories: largestFirst.map(([wall]) => wall), series: [{name: 'share', values: largestFirst.map(([, share]) => 100 * share)}]}),
      chart({kind: 'bars', title: 'Sensitivities', unit: '% of the step', across: 'with 10 % more',
             note: 'What 10 % more of one thing would gain; each is a prediction of its own.', categories: sensitivities.map(({resource}) => RESOURCES[resource] || spoken(resource)),
             series: [{name: 'gain', values: sensitivities.map(({gain_s: gain, step_time_s: step}) => 100 * gain / (gain + step))}]}))];
}

function schedules(titles) {
  const pictures = data.pictures.filter(({name}) => name === 'schedule');
  if (!pictures.length) return;
  section('schedule', 'Schedule', ...pictures.flatMap(({title, svg}, i) => [
    titles ? element('h3', {}, titles[i]) : null,
    element('div', {class: 'picture', tabindex: '0', role: 'region', 'aria-label': `Schedule: ${title}`},
            document.adoptNode(new DOMParser().parseFromString(svg, 'image/svg+xml').documentElement))]).filter(Boolean));
}

// ---- Where the numbers come from --------------------------------------------------------------------------------------

function assumptions(runs) {
  const named = new Map();  // Runs by what they assume.
  for (const {name, prediction: {assumed}} of runs) named.set(JSON.stringify(assumed), [...(named.get(JSON.stringify(assumed)) || []), name]);
  const open = [...named].filter(([assumed]) => assumed !== '[]').flatMap(([assumed, names]) => [element('h3', {}, `${names.join(', ')}: not stated, and taken instead`), list(JSON.parse(assumed))]);
  const beyond = (data.answer.beyond_fit || []).length ? [element('h3', {}, 'Beyond what curves were fitted to'), list(data.answer.beyond_fit)] : [];
  const systems = data.systems.flatMap(({name, overrides, facts}) => {
    const counts = {};
    for (const {kind} of facts) counts[kind] = (counts[kind] || 0) + 1;
    const rows = facts.map((fact) => ({...fact, field: fact.field.slice(1).replaceAll('/', '.')}));
    return [element('h3', {}, `The numbers of ${name}`),
            paragraph(`${facts.length} numbers: ${Object.entries(counts).map(([kind, count]) => `${count} ${kind}`).join(', ')}.` + (overrides ? ` Changed: ${words(overrides)}.` : ''), 'quiet'),
            dataTable({label: `The numbers of ${name}`, rows, tall: true, columns: [
              {title: 'number', value: (row) => row.field}, {title: 'kind', value: (row) => row.kind}, {title: 'value', value: (row) => row.value, text: (value) => shortened(value, 30)},
              {title: 'source', value: (row) => row.source, long: true}, {title: 'date', value: (row) => row.date}, {title: 'note', value: (row) => row.note, long: true}]})];
  });
  if (open.length + beyond.length + systems.length) section('assumptions', 'Assumptions and sources', ...open, ...beyond, ...systems);
}

function origin() {
  section('command', 'Command', element('pre', {class: 'wrap', tabindex: '0'}, data.command),
          paragraph(`${data.program}; answer of schema ${data.answer.schema}. The page holds the whole answer and asks for nothing over the network.`, 'quiet'),
          folded('The answer as JSON', json(data.answer)));
  if (!hasPlotly) document.querySelector('header').append(paragraph('Built without plotly.js: charts are plain drawings.', 'warn'));
  document.querySelector('footer').textContent = hasPlotly ? 'Charts: plotly.js, MIT license, © Plotly, Inc.' : '';
}

// ---- plan -------------------------------------------------------------------------------------------------------------

const recomputed = ({recompute}) => (recompute.granularity === 'selective' ? words(recompute.modules) : recompute.granularity);

function offloaded({offload}) {
  const layers = offload.num_layers ? [`${offload.num_layers} layers`] : [];
  return [...layers, ...(offload.modules || []), offload.optimizer_cpu_offload ? 'optimizer' : '', offload.optimizer_states ? 'optimizer states' : ''].filter(Boolean).join(' ');
}

const share = (of) => ({prediction}) => 100 * prediction.breakdown[of] / prediction.step_time_s;

const planColumns = (groups) => [
  {title: '#', value: ({rank}) => rank, text: String},
  {title: 'step s', value: ({prediction}) => prediction.step_time_s},
  ...['tp', 'cp', 'dp', 'pp', 'vpp', 'ep', 'etp'].map((key) => ({title: key.toUpperCase(), value: ({run}) => run[key], text: String})),
  {title: 'mbs', value: ({run}) => run.micro_batch, text: String, hint: 'micro-batch'},
  {title: 'GiB', value: ({prediction}) => prediction.peak_device_memory_gib, text: gib, hint: 'of the fullest GPU'},
  {title: 'left', value: ({prediction}) => prediction.capacity_gib - prediction.peak_device_memory_gib, text: gib, hint: 'GiB free on the fullest GPU'},
  {title: 'MFU', value: ({prediction}) => prediction.mfu_pct, text: fixed(1)},
  {title: 'comm %', value: share('exposed_communication'), text: fixed(1)}, {title: 'bubble %', value: share('bubble'), text: fixed(1)}, {title: 'host %', value: share('host'), text: fixed(1)},
  {title: 'group', value: ({rank}) => groups.findIndex(([first, last]) => first <= rank - 1 && rank - 1 <= last) + 1 || null, text: String,
   hint: 'plans of one group are within 3 %, which the model cannot tell apart'},
  {title: 'precision', value: ({run}) => run.precision}, {title: 'dispatcher', value: ({run}) => run.dispatcher},
  {title: 'recompute', value: ({run}) => recomputed(run)}, {title: 'offload', value: ({run}) => offloaded(run)}, {title: 'sharding', value: ({run}) => run.sharding},
  ...[0, 1].map((end) => ({title: ['from s', 'to s'][end], value: ({prediction}) => prediction.interval && prediction.interval.step_time_s[end], hint: '9 of 10 measured runs lie between from and to'})),
  {title: 'TFLOPS', value: ({prediction}) => prediction.model_tflops_per_gpu, text: fixed(0), hint: 'of the model, by GPU'}];

function planPoints(plans) {
  return plans.map(({run, prediction}) => ({
    x: prediction.peak_device_memory_gib, y: prediction.step_time_s, low: prediction.interval?.step_time_s[0], high: prediction.interval?.step_time_s[1],
    text: `${number(prediction.step_time_s)} s, ${gib(prediction.peak_device_memory_gib)} GiB: ${layout(run)}`}));
}

function front(answer) {
  const onFront = [...answer.pareto].sort((a, b) => a.prediction.peak_device_memory_gib - b.prediction.peak_device_memory_gib);
  const runs = new Set(onFront.map(({run}) => JSON.stringify(run)));
  const charts = [chart({kind: 'points', title: 'Time against memory', x: {title: 'GiB on the fullest GPU'}, y: {title: 'step, s'},
    note: 'No other plan that was found beats those on the line in both. Bars: where 9 of 10 measured runs lie; much of that error is common to the plans of one system.',
    series: [{name: 'not beaten in both', line: true, points: planPoints(onFront)}, {name: 'other plans', points: planPoints(answer.plans.filter(({run}) => !runs.has(JSON.stringify(run))))}]})];
  const tried = (answer.tried || []).filter(({step_time_s: step}) => step !== null);
  if (answer.problem.objective === 'gpus' && tried.length)
    charts.push(chart({kind: 'points', title: 'Time against GPUs', x: {title: 'GPUs'}, y: {title: 'step, s'},
      note: `The fastest plan of each size; hollow: not within ${number(answer.problem.max_step_time_s)} s.`,
      series: [{name: 'fastest plan', line: true, points: [...tried].sort((a, b) => a.num_gpus - b.num_gpus).map((t) => ({
        x: t.num_gpus, y: t.step_time_s, hollow: !t.within, text: `${t.num_gpus} GPUs: ${number(t.step_time_s)} s`}))}]}));
  section('fronts', 'Fronts', ...charts);
}

function alternatives(answer) {
  const rows = answer.alternatives.filter(({slower_pct: slower}) => slower !== null);
  if (!rows.length) return [];
  return [chart({kind: 'bars', title: 'What the choices of plan 1 earn', unit: '% slower without', across: 'choice taken back',
                 note: 'The fastest plan found without each, all else chosen anew. Below 3 % the model cannot tell.',
                 categories: rows.map(({choice}) => choice), series: [{name: 'slower', values: rows.map(({slower_pct: slower}) => slower)}]})];
}

function whyNot(questions, first) {
  for (const [i, {set, refused, shortage, plan, slower_s: slower, waterfall}] of questions.entries()) {
    const parts = [];
    if (refused.length) parts.push(paragraph('Rules refuse it:'), list(refused));
    else if (plan) {
      parts.push(paragraph(`${layout(plan.run)}: ${number(plan.step_time_s)} s, ${signed(slower)} s against plan 1.`));
      if (waterfall) parts.push(linesChart('Where the difference goes', waterfall.lines, [0, 1], ['plan 1', 'with it'], [first.prediction.step_time_s, plan.step_time_s], waterfall.stage));
    } else if (shortage) parts.push(json(shortage));
    section(`why-not-${i + 1}`, `Why not ${words(set)}`, ...parts);
  }
}

function plan() {
  const {problem, search, plans, shortage} = data.answer;
  const rows = plans.map((planned, i) => ({...planned, rank: i + 1})), first = rows[0];
  heading(`${problem.model} on ${problem.num_gpus} ${problem.system}`,
          `Plans for sequences of ${problem.seq_len} tokens, global batch ${problem.global_batch}, ${problem.precision.join(', ')}; objective: ${problem.objective}.`);
  const bound = search.proven ? 'Nothing is faster than plan 1: proven.' : `Not proven: the search ended knowing only that nothing is faster than ${number(search.least_s)} s.`;
  if (first) {
    figures(predictionFigures(first.prediction));
    if (problem.objective === 'time') main.append(paragraph(bound));
    const shown = element('div', {'aria-live': 'polite'});
    const show = (row) => {
      shown.replaceChildren(
        paragraph(`${layout(row.run)}.`), list([...row.why]), predictionParts(row.prediction), folded('Its run file', json(row.run)));
      redraw(shown);
      document.querySelector('#plan h2').textContent = `Plan ${row.rank}`;
    };
    section('ranking', 'Ranking', paragraph('The fastest of each layout. Its number shows a plan below.', 'quiet'), dataTable({label: 'plan', rows, columns: planColumns(data.answer.groups), choose: show, filtered: true}));
    section('plan', 'Plan 1', shown);
    show(first);
    front(data.answer);
    section('explain', 'What would help', ...explained(data.answer.explain, 'Plan 1'), ...alternatives(data.answer));
    schedules(['Plan 1']);
  } else {
    section('shortage', 'Nothing fits', shortage ? json(shortage) : null);
  }
  whyNot(data.answer.why_not, first);
  section('search', 'Search', paragraph(`${search.enumerated.toExponential(2)} candidates; ${search.nodes} bounded, ${search.composed} composed, ${search.simulated} simulated in ${number(search.seconds)} s. ${bound}`),
          dataTable({label: 'What refused candidates', rows: Object.entries(search.rejected_by_rule), tall: true, columns: [
            {title: 'rule', value: ([rule]) => rule, long: true}, {title: 'candidates refused', value: ([, count]) => count, text: (count) => count.toExponential(2)}]}));
  assumptions(rows.map((row) => ({name: `Plan ${row.rank}`, prediction: row.prediction})));
}

// ---- predict, compare, sweep ------------------------------------------------------------------------------------------

function predict() {
  const {run, fitting, explain, communication} = data.answer;
  heading(`${run.model} on ${run.num_gpus} ${run.system}${run.id ? `: ${run.id}` : ''}`, `${layout(run)}; ${run.precision}, sequences of ${run.seq_len} tokens, global batch ${run.global_batch}.`);
  figures(predictionFigures(data.answer));
  section('run', 'Prediction', predictionParts(data.answer), folded('The run file', json(run)));
  if (fitting) section('fitting', 'What would make it fit', dataTable({label: 'Changes that make it fit', rows: fitting.changes, columns: [
    {title: 'change', value: (row) => row.change, long: true}, {title: 'step s', value: (row) => row.step_time_s}, {title: 'cost s', value: (row) => row.cost_s},
    {title: 'GiB', value: (row) => row.peak_device_memory_gib, text: gib}, {title: 'fits', value: (row) => (row.fits ? 'yes' : 'no')}]}));
  section('explain', 'What would help', ...explained(explain, 'This run'));
  if (communication.entries.length) section('communication', 'Communication', paragraph('Of the busiest stage, in a step.', 'quiet'), dataTable({
    label: 'Communication', rows: communication.entries, columns: [
      ...['kind', 'group', 'tier'].map((key) => ({title: key, value: (row) => spoken(row[key])})), {title: 'GB sent', value: (row) => row.bytes / 1e9, hint: '10^9 bytes by one GPU'},
      {title: 'exposed s', value: (row) => row.exposed_s}, {title: 'hidden s', value: (row) => row.hidden_s}]}));
  schedules();
  assumptions([{name: 'The run file', prediction: data.answer}]);
}

// From run `a` to run `b`, the lines that differ most and the rest.
function linesChart(title, lines, [a, b], names, steps, stage, most = 12) {
  const changes = lines.map((line) => [lineName(line), line.seconds[b] - line.seconds[a]]).filter(([, change]) => change !== 0);
  changes.sort((x, y) => Math.abs(y[1]) - Math.abs(x[1]));
  const left = changes.slice(most).reduce((sum, [, change]) => sum + change, 0);
  return waterfallChart({title, note: stage === null ? 'Means over the pipeline stages: the runs’ busiest ones are not the same.' : `On pipeline stage ${stage}, the busiest of each.`,
    from: [names[a], steps[a]], steps: [...changes.slice(0, most), ...(changes.length > most ? [[`${changes.length - most} more lines`, left]] : [])], to: [names[b], steps[b]]});
}

const runName = (i) => (i < 26 ? String.fromCharCode(65 + i) : `R${i + 1}`);

function distanceText({slower_pct: slower, error_pct: error, exceeds_error: exceeds}, name) {
  const how = `${name} is ${Math.abs(slower).toFixed(2)} % ${slower < 0 ? 'faster' : 'slower'} than A: `;
  if (error !== null) return how + `${exceeds ? 'more than the' : 'inside of the'} ${error} % within which the model cannot tell runs apart.`;
  return how + (exceeds ? 'their intervals do not overlap.' : 'their intervals overlap, and no measured pairs of such runs say more.');
}

function compare() {
  const {runs, differences, explanation, seconds, stage, distances} = data.answer;
  const names = runs.map((_, i) => runName(i));
  heading(runs.map(({run, file}, i) => `${names[i]}: ${run.id || file}`).join(' – '), `${runs.length} runs side by side.`);
  section('runs', 'Runs', dataTable({label: 'Runs', rows: runs.map((entry, i) => ({...entry, name: names[i]})), columns: [
    {title: 'run', value: (row) => row.name}, {title: 'file', value: (row) => row.run.id || row.file, long: true}, ...planColumns([]).slice(1).filter(({title}) => title !== 'group'),
    {title: 'fits', value: (row) => (row.prediction.fits ? 'yes' : 'NO')}]}), list(distances.map((distance, i) => distanceText(distance, names[i + 1]))));
  section('differences', 'What differs', dataTable({label: 'What differs', rows: differences, columns: [
    {title: 'field', value: (row) => row.field}, ...names.map((name, i) => ({title: name, value: (row) => row.values[i], long: true}))]}));
  const steps = seconds.step;
  section('waterfall', 'Where the difference goes', ...names.slice(1).map((name, i) => linesChart(`From A to ${name}`, explanation, [0, i + 1], names, steps, stage)),
          folded('Every line', dataTable({label: 'Every line', rows: explanation, tall: true, columns: [
            ...['cause', 'kind', 'module', 'group'].map((key) => ({title: key, value: (row) => spoken(row[key] || '')})), ...names.map((name, i) => ({title: `${name} s`, value: (row) => row.seconds[i]})),
            ...names.slice(1).map((name, i) => ({title: `${name} − A`, value: (row) => row.seconds[i + 1] - row.seconds[0], text: (value) => signed(value, 4)}))]})));
  distances.forEach(({single_changes: changes}, i) => {
    if (changes && changes.length) section(`changes-${names[i + 1]}`, `A with one field of ${names[i + 1]}`, dataTable({label: 'Single changes', rows: changes, columns: [
      {title: 'field', value: (row) => row.field}, {title: 'step s', value: (row) => row.step_time_s}, {title: 'change s', value: (row) => row.change_s, text: (value) => (value === null ? '' : signed(value, 4))},
      {title: 'of the way %', value: (row) => (row.share === null ? null : 100 * row.share), text: fixed(0)}, {title: 'fits', value: (row) => (row.fits === null ? '' : row.fits ? 'yes' : 'NO')},
      {title: 'refused', value: (row) => row.refused.map(({reason}) => reason).join(' '), long: true}]}));
  });
  section('memory', 'Memory', ...runs.map(({prediction: {memory, capacity_gib: capacity}}, i) => memoryChart(memory.map((at) => `stage ${at.stage}`), memory, capacity, `${names[i]}: by stage and cause`)));
  schedules(names);
  assumptions(runs.map(({prediction}, i) => ({name: names[i], prediction})));
}

// Rows that no other beats in both columns.
function undominated(rows, a, b) {
  const there = rows.filter((row) => row.status === 'fits' && row[a] !== null && row[b] !== null);
  return there.filter((row) => !there.some((other) => other[a] <= row[a] && other[b] <= row[b] && (other[a] < row[a] || other[b] < row[b]))).sort((x, y) => x[a] - y[a]);
}

function sweep() {
  const {axes, columns, rows} = data.answer;
  const numeric = columns.filter((column) => !axes.includes(column) && rows.some((row) => typeof row[column] === 'number'));
  const pointName = (row, keys) => keys.map((key) => `${key} ${words(row[key])}`).join(', ');
  heading(`Sweep over ${axes.join(', ')}`, `${rows.length} points: ${rows.filter(({status}) => status === 'fits').length} fit.`);
  const space = element('div');
  const select = (label, options, chosen, change) => element('label', {}, label, element('select', {onchange: change}, ...options.map((option) => element('option', {selected: option === chosen}, option))));
  const show = () => {
    const [x, y] = [...tools.querySelectorAll('select')].map(({value}) => value), others = axes.filter((axis) => axis !== x), lines = new Map();
    for (const row of rows.filter((one) => typeof one[y] === 'number')) {
      const name = pointName(row, others) || y;
      if (!lines.has(name)) lines.set(name, []);
      lines.get(name).push({x: row[x], y: row[y], hollow: row.status !== 'fits', text: `${pointName(row, axes)}: ${y} ${number(row[y])}${row.status === 'fits' ? '' : `, ${row.status}`}`});
    }
    const values = [...new Set(rows.map((row) => row[x]))], whole = values.every((value) => typeof value === 'number' && value > 0);
    const across = {title: x, ratio: whole && Math.max(...values) >= 4 * Math.min(...values), ticks: whole && values.length < 10 ? values : undefined};
    space.replaceChildren(chart({kind: 'points', title: `${y} by ${x}`, note: 'Hollow: does not fit. What is refused is missing.', x: across, y: {title: y, fromZero: true},
                                 series: [...lines].map(([name, points]) => ({name, line: true, points}))}));
    redraw(space);
  };
  const tools = element('div', {class: 'tools'}, select('Across', axes, axes[0], () => show()), select('Up', numeric, 'tokens_per_s_per_gpu', () => show()));
  const drawing = hasPlotly ? null : data.pictures.find(({name}) => name === 'chart');
  section('chart', 'Chart', tools, space, drawing ? element('div', {class: 'picture'}, element('img', {alt: drawing.title, src: URL.createObjectURL(new Blob([drawing.svg], {type: 'image/svg+xml'}))})) : null);
  show();
  const fronts = [['peak_device_memory_gib', 'Time against memory'], ['num_gpus', 'Time against GPUs']].filter(([column]) => rows.some((row) => typeof row[column] === 'number'));
  section('fronts', 'Fronts', ...fronts.map(([column, title]) => {
    const point = (row) => ({x: row[column], y: row.step_time_s, text: `${pointName(row, axes)}: ${number(row.step_time_s)} s, ${spoken(column)} ${number(row[column])}`});
    const best = undominated(rows, column, 'step_time_s');
    return chart({kind: 'points', title, note: 'No other point that fits beats those on the line in both.', x: {title: spoken(column)}, y: {title: 'step, s'},
                  series: [{name: 'not beaten in both', line: true, points: best.map(point)}, {name: 'other points that fit', points: rows.filter((row) => row.status === 'fits' && !best.includes(row)).map(point)}]});
  }));
  section('rows', 'Rows', dataTable({label: 'Rows', rows, tall: true, filtered: true, columns: columns.filter((column) => column !== 'sweep').map((column) => ({title: column, value: (row) => row[column], long: column === 'reason'}))}));
  assumptions([]);
}

// ---- All of it --------------------------------------------------------------------------------------------------------

// Draws the charts of `root` that are in the page.
function redraw(root = document) {
  for (const figure of root.querySelectorAll('figure')) if (figure.isConnected && figure.draw) figure.draw();
}

document.querySelector('nav').append(element('ul'));
({plan, predict, compare, sweep})[data.kind]();
origin();
redraw();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => redraw());
if (!hasPlotly) addEventListener('resize', () => redraw());
