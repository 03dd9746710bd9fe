'use strict';
// The page of `plan`.

const recomputed = ({recompute}) =>
    (recompute.granularity === 'selective' ? words(recompute.modules) : recompute.granularity);

function offloaded({offload}) {
  const layers = offload.num_layers ? [`${offload.num_layers} layers`] : [];
  return [
    ...layers, ...(offload.modules || []), offload.optimizer_cpu_offload ? 'optimizer' : '',
    offload.optimizer_states ? 'optimizer states' : ''
  ].filter(Boolean)
      .join(' ');
}

const share = (of) => ({prediction}) => 100 * prediction.breakdown[of] / prediction.step_time_s;

const planColumns = (groups) =>
    [{title: '#', value: ({rank}) => rank, text: String},
     {title: 'step s', value: ({prediction}) => prediction.step_time_s},
     ...SIZES.map((key) => ({title: key.toUpperCase(), value: ({run}) => run[key], text: String})),
     {title: 'mbs', value: ({run}) => run.micro_batch, text: String, hint: 'micro-batch'},
     {title: 'GiB', value: ({prediction}) => prediction.peak_device_memory_gib, text: gib, hint: 'of the fullest GPU'},
     {
       title: 'left',
       value: ({prediction}) => prediction.capacity_gib - prediction.peak_device_memory_gib,
       text: gib,
       hint: 'GiB free on the fullest GPU'
     },
     {title: 'MFU', value: ({prediction}) => prediction.mfu_pct, text: fixed(1)},
     {title: 'comm %', value: share('exposed_communication'), text: fixed(1)},
     {title: 'bubble %', value: share('bubble'), text: fixed(1)},
     {title: 'host %', value: share('host'), text: fixed(1)}, {
       title: 'group',
       value: ({rank}) => groups.findIndex(([first, last]) => first <= rank - 1 && rank - 1 <= last) + 1 || null,
       text: String,
       hint: 'plans of one group are within 3 %, which the model cannot tell apart'
     },
     {title: 'precision', value: ({run}) => run.precision}, {title: 'dispatcher', value: ({run}) => run.dispatcher},
     {title: 'recompute', value: ({run}) => recomputed(run)}, {title: 'offload', value: ({run}) => offloaded(run)},
     {title: 'sharding', value: ({run}) => run.sharding},
     ...[0, 1].map((end) => ({
                     title: ['from s', 'to s'][end],
                     value: ({prediction}) => prediction.interval && prediction.interval.step_time_s[end],
                     hint: '4 of 5 measured runs lie between from and to'
                   })),
     {
       title: 'TFLOPS',
       value: ({prediction}) => prediction.model_tflops_per_gpu,
       text: fixed(0),
       hint: 'of the model, by GPU'
     }];

// Columns that say the same in every row are hidden; what they say.
function differing(columns, rows) {
  const kept = ['#', 'step s', 'GiB'], equal = [];
  const shown = columns.map((column) => {
    const texts = new Set(rows.map((row) => (column.text || words)(column.value(row))));
    if (rows.length < 2 || texts.size > 1 || kept.includes(column.title)) return column;
    const [text] = texts;
    equal.push(`${column.title} ${text || 'none'}`);
    return {...column, hidden: true};
  });
  return {columns: shown, equal: equal.join(', ')};
}

// choose(plan): what a click on its point does.
function planPoints(plans, choose) {
  return plans.map(
      ({run, prediction}, i) => ({
        choose: () => choose(plans[i]),
        x: prediction.peak_device_memory_gib,
        y: prediction.step_time_s,
        low: prediction.interval?.step_time_s[0],
        high: prediction.interval?.step_time_s[1],
        text: `${number(prediction.step_time_s)} s, ${gib(prediction.peak_device_memory_gib)} GiB: ${layout(run)}`
      }));
}

// `rows`: the plans with their numbers.
function front(answer, rows, choose) {
  const onFront = answer.pareto.map(({number}) => rows[number - 1])
                      .sort((a, b) => a.prediction.peak_device_memory_gib - b.prediction.peak_device_memory_gib);
  const charts = [chart({
    kind: 'points',
    title: 'Time against memory',
    x: {title: 'GiB on the fullest GPU'},
    y: {title: 'step, s'},
    note: 'No other plan that was found beats those on the line in both. Bars: where 4 of 5 measured runs lie; much ' +
        'of that error is common to the plans of one system. A click on a point shows its plan.',
    series: [
      {name: 'other plans', hue: 1, points: planPoints(rows.filter((row) => !onFront.includes(row)), choose)},
      {name: 'not beaten in both', hue: 0, front: true, points: planPoints(onFront, choose)}
    ]
  })];
  const tried = (answer.tried || []).filter(({step_time_s: step}) => step !== null);
  const point = ({num_gpus: gpus, step_time_s: step, within}) =>
      ({x: gpus, y: step, hollow: !within, text: `${gpus} GPUs: ${number(step)} s`});
  if (answer.problem.objective === 'gpus' && tried.length)
    charts.push(chart({
      kind: 'points',
      title: 'Time against GPUs',
      x: {title: 'GPUs'},
      y: {title: 'step, s'},
      note: `The fastest plan of each size; hollow: not within ${number(answer.problem.max_step_time_s)} s.`,
      series:
          [{name: 'fastest plan', line: true, points: [...tried].sort((a, b) => a.num_gpus - b.num_gpus).map(point)}]
    }));
  section('fronts', 'Fronts', ...charts);
}

const layoutColumns = [
  ...SIZES.map((key) => ({title: key.toUpperCase(), value: ({run}) => run[key]})),
  {title: 'mbs', value: ({run}) => run.micro_batch, hint: 'micro-batch'}
];

// What is short where nothing fits, and with what something does.
function shortageParts({cause, may_use_gib: usable, nearest, ways}) {
  const parts = [paragraph(`What lacks: ${spoken(cause)}. A plan may use ${gib(usable)} GiB of a GPU.`)];
  if (nearest.length)
    parts.push(element('h3', {}, 'The nearest'), dataTable({
                 label: 'The nearest',
                 rows: nearest,
                 columns: [
                   {title: 'over by GiB', value: (row) => row.over_gib, text: gib},
                   {title: 'GiB', value: (row) => row.peak_device_memory_gib, text: gib},
                   {title: 'on the host over by GiB', value: (row) => row.host_over_gib, text: gib},
                   {title: 'stage', value: (row) => row.stage}, {title: 'fullest in', value: (row) => row.moment},
                   ...layoutColumns
                 ]
               }));
  if (ways && ways.length)
    parts.push(element('h3', {}, 'With what something fits'), dataTable({
                 label: 'With what something fits',
                 rows: ways,
                 columns: [
                   ...[['GPUs', 'num_gpus'], ['global batch', 'global_batch'], ['sequence', 'seq_len'],
                       ['step s', 'step_time_s']]
                       .map(([title, key]) => ({title, value: (row) => row[key]})),
                   {title: 'GiB', value: (row) => row.peak_device_memory_gib, text: gib}, ...layoutColumns
                 ]
               }));
  return parts;
}

function alternatives(answer) {
  const rows = answer.alternatives.filter(({slower_pct: slower}) => slower !== null);
  if (!rows.length) return [];
  return [chart({
    kind: 'bars',
    title: 'What the choices of plan 1 earn',
    unit: '% slower without',
    across: 'choice taken back',
    note: 'The fastest plan found without each, all else chosen anew. Below 3 % the model cannot tell.',
    categories: rows.map(({choice}) => choice),
    series: [{name: 'slower', values: rows.map(({slower_pct: slower}) => slower)}]
  })];
}

function whyNot(questions, first) {
  for (const [i, {set, refused, shortage, plan, slower_s: slower, waterfall}] of questions.entries()) {
    const parts = [];
    if (refused.length)
      parts.push(paragraph('Rules refuse it:'), list(refused));
    else if (plan) {
      const against = first ? `, ${signed(slower)} s against plan 1` : '';
      parts.push(paragraph(`${layout(plan.run)}: ${number(plan.step_time_s)} s${against}.`));
      if (waterfall && first)
        parts.push(linesChart(
            'Where the difference goes', waterfall.lines, [0, 1], ['plan 1', 'with it'],
            [first.prediction.step_time_s, plan.step_time_s], stageNote(waterfall.stage)));
    } else if (shortage)
      parts.push(...shortageParts(shortage));
    section(`why-not-${i + 1}`, `Why not ${words(set)}`, ...parts);
  }
}

// What measured runs say of plan 1, what nobody ran, and how likely each choice is the fastest.
function certainty({decision, problem}, first) {
  const {level, nearest, lacks} = first.evidence;
  const needs = first.requires.map(
      ({library, version, because}) => `${library}${version ? ` ${version} or newer` : ''}, for ${because}`);
  const levels = {
    run: `A measured run has all of its choices together: ${nearest}.`,
    parts: `Each of its choices stands in a measured run, not all in one. The nearest: ${nearest}.`,
    any: `Not all of its choices were measured. The nearest run: ${nearest}.`
  };
  const parts = [
    paragraph(`Megatron-Core ${problem.release}. ${nearest ? levels[level] : 'No measured run is near it.'}`),
    lacks.length ? paragraph('Never run together:') : null, lacks.length ? list(lacks) : null,
    needs.length ? paragraph('It needs:') : null, needs.length ? list(needs) : null
  ];
  if (decision) {
    const unproven = decision.faster_unproven;
    if (unproven.length)
      parts.push(element('h3', {}, 'Faster, but never run together'), dataTable({
                   label: 'Faster, but never run together',
                   rows: unproven,
                   columns: [
                     {title: 'faster by %', value: ({gain_pct: gain}) => gain, text: fixed(1)}, ...layoutColumns,
                     {title: 'what nobody ran', value: ({evidence}) => evidence.lacks.join('; '), long: true}
                   ]
                 }));
    parts.push(element('h3', {}, 'How sure the order is'), dataTable({
                 label: 'How sure the order is',
                 rows: decision.choices,
                 columns: [
                   {title: 'choice', value: ({name}) => name, long: true}, {
                     title: 'is the fastest with',
                     value: ({best_probability: probability}) => probability,
                     text: (value) => percent(value, 0)
                   },
                   {title: 'expected loss %', value: (row) => row.expected_loss_pct, text: fixed(1)},
                   {title: 'never measured', value: ({unmeasured}) => unmeasured.join(', '), long: true}
                 ]
               }));
  }
  section('certainty', 'How sure', ...parts);
}

function plan() {
  const {problem, search, plans, shortage} = data.answer;
  const rows = plans.map((planned, i) => ({...planned, rank: i + 1})), first = rows[0];
  const {seq_len: sequence, global_batch: batch, precision} = problem;
  heading(
      `${problem.model} on ${problem.num_gpus} ${problem.system}`,
      `Plans for sequences of ${sequence} tokens, global batch ${batch}, ${precision.join(', ')}; ` +
          `objective: ${problem.objective}. Megatron-Core ${problem.release}.`);
  const least = `nothing is faster than ${number(search.least_s)} s`;
  const proof = search.proven ? 'Nothing is faster than plan 1: proven.' :
                                `Not proven: the search ended knowing only that ${least}.`;
  if (first) {
    figures([...predictionFigures(first.prediction), ...trainingFigures(first.training)]);
    if (problem.objective === 'time') main.append(paragraph(proof));
    const shown = element('div');
    const show = (row) => {
      shown.replaceChildren(
          paragraph(`${layout(row.run)}.`), list([...row.why]), predictionParts(row.prediction),
          folded('Its run file', json(row.run)));
      redraw(shown);
      for (const title of document.querySelectorAll('#plan h2, nav a[href="#plan"]'))
        title.textContent = `Plan ${row.rank}`;
    };
    const open = (row) => {
      show(row);
      document.getElementById('plan').scrollIntoView();
    };
    const {columns, equal} = differing(planColumns(data.answer.groups), rows);
    section(
        'ranking', 'Ranking', paragraph('The fastest of each layout. Its number shows a plan below.', 'quiet'),
        dataTable({label: 'plan', rows, columns, choose: show, filtered: true}),
        equal ? paragraph(`Equal in all: ${equal}.`, 'quiet') : null);
    section('plan', 'Plan 1', shown);
    document.querySelector('#plan h2').setAttribute('aria-live', 'polite');
    show(first);
    certainty(data.answer, first);
    front(data.answer, rows, open);
    section('explain', 'What would help', ...explained(data.answer.explain, 'Plan 1'), ...alternatives(data.answer));
    schedules(['Plan 1']);
  } else {
    const none = search.proven ? 'Nothing fits' : 'Nothing that fits was found';
    section('shortage', data.answer.tried ? 'No plan' : none, ...(shortage ? shortageParts(shortage) : []));
  }
  whyNot(data.answer.why_not, first);
  if (data.answer.tried)
    section('tried', 'Searches', dataTable({
              label: 'Searches',
              rows: data.answer.tried,
              columns: [
                {title: 'GPUs', value: (row) => row.num_gpus},
                {title: 'GiB allowed', value: (row) => row.memory_allowed_gib, text: gib},
                {title: 'step s', value: (row) => row.step_time_s},
                {title: 'GiB', value: (row) => row.peak_device_memory_gib, text: gib}, {
                  title: 'within the limit',
                  value: ({within, proven}) => (within ? 'yes' : `none${proven ? ': proven' : ' found'}`)
                }
              ]
            }));
  section(
      'search', 'Search',
      paragraph(
          `${search.enumerated.toExponential(2)} candidates; ${search.nodes} bounded, ${search.composed} composed, ` +
          `${search.simulated} simulated in ${number(search.seconds)} s.`),
      dataTable({
        label: 'What refused candidates',
        rows: Object.entries(search.rejected_by_rule).sort((a, b) => b[1] - a[1]),
        tall: true,
        columns: [
          {title: 'rule', value: ([rule]) => rule, long: true},
          {title: 'candidates refused', value: ([, count]) => count, text: (count) => count.toExponential(2)}
        ]
      }));
  assumptions(rows.map((row) => ({name: `Plan ${row.rank}`, prediction: row.prediction})));
}
