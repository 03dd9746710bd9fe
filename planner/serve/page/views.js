'use strict';
// What answers look like: with the charts and the words of the page of --html.

// Draws the charts below `root`, which are in the page.
function redraw(root = document) {
  for (const figure of root.querySelectorAll('figure'))
    if (figure.isConnected && figure.draw) figure.draw();
}
function fill(id, ...children) {
  const place = document.getElementById(id);
  place.replaceChildren(...children.filter(Boolean));
  redraw(place);
}
const figureList = (entries) => element(
    'dl', {class: 'figures'},
    ...entries.map(
        ([what, value, besides]) => element(
            'div', {}, element('dt', {}, what),
            element('dd', {}, value, besides ? element('small', {}, besides) : null))));
const button = (text, onclick, attributes = {}) => element('button', {type: 'button', onclick, ...attributes}, text);

// What is there at once; the rest follows.
function firstCharts({memory, capacity_gib: capacity, critical_stage: critical, breakdown, step_time_s: step}) {
  return element(
      'div', {class: 'pair'},
      memoryChart(memory.map(({stage}) => `stage ${stage}`), memory, capacity, 'Memory by stage and cause'),
      waterfallChart({
        title: 'What the step is made of',
        note: `On pipeline stage ${critical}, the busiest.`,
        steps: CAUSES.map((cause) => [spoken(cause), breakdown[cause]]),
        to: ['step', step]
      }));
}

function showPrediction(prediction, whole) {
  const open = document.querySelector('#answer details')?.open;
  const assumed =
      folded(`${prediction.assumed.length} values taken for what the run leaves open`, list(prediction.assumed));
  fill(
      'answer', element('h2', {}, 'Prediction'), figureList(predictionFigures(prediction)),
      element(
          'div', {class: 'buttons'}, button('Pin as A', () => change({pinned: state.run})),
          state.pinned ? button('Unpin', () => change({pinned: null})) : null,
          state.pinned ? button('Swap A and B', () => change({run: state.pinned, pinned: state.run})) : null),
      whole ? predictionParts(prediction) : firstCharts(prediction), prediction.assumed.length ? assumed : null);
  const details = document.querySelector('#answer details');
  if (open && details) details.open = true;
}

function showErrors(errors) {
  fill(
      'answer', element('h2', {}, 'Refused'),
      element(
          'div', {class: 'mistakes', role: 'alert'},
          list(errors.map(
              ({field, message}) => (field ? `${field.slice(1).replaceAll('/', '.')}: ${message}` : message)))),
      state.pinned ? element('div', {class: 'buttons'}, button('Back to A', () => change({run: state.pinned}))) : null);
}

function showComparison({runs, differences, explanation, seconds: {step: steps}, stage, distances}) {
  const names = ['A', 'B'];
  const row = (title, of, text = number) => ({title, values: runs.map(({prediction}) => text(of(prediction)))});
  const rows = [
    row('step s', ({step_time_s: step}) => step),
    row('tokens/s/GPU', ({tokens_per_s_per_gpu: tokens}) => tokens, (value) => number(value, 5)),
    row('MFU %', ({mfu_pct: mfu}) => mfu, fixed(1)),
    row('GiB, fullest GPU', ({peak_device_memory_gib: peak}) => peak, gib), row('fits', ({fits}) => fits, yesOrNo)
  ];
  const besides = names.map((name, i) => ({title: name, value: ({values}) => values[i], long: true}));
  const {slower_pct: slower, error_pct: error, exceeds_error: exceeds} = distances[0];
  const [ofA, ofB] = runs.map(({run}) => run.global_batch * run.seq_len);
  fill(
      'pinned', element('h2', {}, 'A, pinned, beside B'),
      paragraph(`${ofA === ofB ? '' : 'Steps hold different work, so time per token is compared. '}B is ${
          Math.abs(slower).toFixed(2)} % ${slower < 0 ? 'faster' : 'slower'} than A: ${
          exceeds ? 'more than the' :
                    'inside of the'} ${+ error.toPrecision(3)} % within which the model cannot tell such runs apart.`),
      dataTable(
          {label: 'A beside B', rows, filtered: false, columns: [{title: '', value: ({title}) => title}, ...besides]}),
      differences.length ? element('h3', {}, 'What differs') : paragraph('No field differs.'),
      differences.length ? dataTable({
        label: 'What differs',
        rows: differences,
        filtered: false,
        columns: [{title: 'field', value: ({field}) => field}, ...besides]
      }) :
                           null,
      linesChart('From A to B', explanation, [0, 1], names, steps, stageNote(stage)));
}

// Points that no other beats in both time and memory, by memory.
function frontOf(points) {
  let least = Infinity;
  return [...points].sort((a, b) => a.x - b.x || a.y - b.y).filter(({y}) => {
    const better = y < least;
    least = Math.min(least, y);
    return better;
  });
}

function frontChart(found) {
  const points = found.map(
      ({step_time_s: step, peak_device_memory_gib: peak, run}) =>
          ({x: peak, y: step, text: `${number(step)} s, ${gib(peak)} GiB: ${layout(run)}`}));
  const front = frontOf(points);
  return chart({
    kind: 'points',
    title: 'Plans found: time against memory',
    note: 'No other plan that was found beats those on the line in both. Each point is the best of its layout.',
    x: {title: 'memory of the fullest GPU, GiB'},
    y: {title: 'step, s'},
    series: [
      {name: 'beaten in both', hue: 1, points: points.filter((point) => !front.includes(point))},
      {name: 'not beaten in both', hue: 0, front: true, points: front}
    ]
  });
}

function plansTable(plans) {
  return dataTable({
    label: 'plan',
    rows: plans.map((plan, i) => ({...plan, rank: i + 1})),
    filtered: false,
    choose: ({run}) => change({run: usable(run)}),
    columns: [
      {title: '#', value: ({rank}) => rank, text: String},
      {title: 'step s', value: ({prediction}) => prediction.step_time_s},
      ...SIZES.map((key) => ({title: key.toUpperCase(), value: ({run}) => run[key], text: String})),
      {title: 'mbs', value: ({run}) => run.micro_batch, text: String},
      {title: 'GiB', value: ({prediction}) => prediction.peak_device_memory_gib, text: gib},
      {title: 'MFU', value: ({prediction}) => prediction.mfu_pct, text: fixed(1)},
      {title: 'dispatcher', value: ({run}) => run.dispatcher}
    ]
  });
}
// A plan's run as a state to go on from: what follows from other sizes is left open, so that they can be changed.
function usable(run) {
  const {dp, id, chosen, ...rest} = run;
  return rest;
}

function showSchedule({title, svg}) {
  const drawing = document.adoptNode(new DOMParser().parseFromString(svg, 'image/svg+xml').documentElement);
  fill(
      'schedule', element('h2', {}, 'Schedule'),
      element('div', {class: 'picture', tabindex: '0', role: 'region', 'aria-label': `Schedule: ${title}`}, drawing));
}

const copied = (text) =>
    button('Copy', (event) => navigator.clipboard.writeText(text).then(() => event.target.textContent = 'Copied'));

function showState() {
  const text = element('textarea', {id: 'run-file', spellcheck: 'false', 'aria-label': 'Run file'});
  text.value = runText(state.run);
  const wrong = element('small', {class: 'warn', role: 'status'});
  const use = () => {
    try {
      const run = JSON.parse(text.value);
      if (typeof run !== 'object' || run === null || Array.isArray(run)) throw new Error('expected one object');
      change({run});
    } catch (error) {
      wrong.textContent = `Not a run file: ${error.message}`;
    }
  };
  const question = planQuestion(state.run), address = addressOf(state);
  fill(
      'state', element('h2', {}, 'This state'), element('h3', {}, 'Run file'), text,
      element('div', {class: 'buttons'}, button('Use', use), copied(runText(state.run)), wrong),
      element('h3', {}, 'Commands'),
      element('pre', {class: 'wrap', id: 'command', tabindex: '0'}, predictCommand(state.run)),
      element('pre', {class: 'wrap', id: 'plan-command', tabindex: '0'}, planCommand(question)),
      element('h3', {}, 'Address'),
      element('div', {class: 'buttons'}, element('a', {href: address}, 'This state'), copied(address)));
}
