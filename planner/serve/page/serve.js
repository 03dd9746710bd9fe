'use strict';
// The page of `serve`: a change of the state asks for a prediction, for what rules refuse, for the comparison with the
// pinned run and for the schedule.

let lastCheck = null;  // The newest answer of /api/check.
const predictNow = latest('/api/predict?detail=0', 0), predictMore = latest('/api/predict?detail=1', 150),
      compareNow = latest('/api/compare', 120), checkNow = latest('/api/check', 60),
      scheduleNow = latest('/api/schedule', 250);

function show() {
  showControls(lastCheck);
  showState();
  predictMore.cancel();
  scheduleNow.cancel();
  compareNow.cancel();
  predictNow(
      state.run,
      (prediction) => {
        showMistakes([]);
        showPrediction(prediction, false);
        predictMore(state.run, (more) => showPrediction(more, true), () => {});
        scheduleNow(state.run, showSchedule, () => fill('schedule'));
      },
      (error) => {
        showMistakes(mistakesIn(error));
        showErrors(mistakesIn(error));
        fill('schedule');
      });
  checkNow(state.run, (check) => {
    lastCheck = check;
    showControls(check);
  }, () => {});
  if (state.pinned)
    compareNow({runs: [state.pinned, state.run]}, showComparison, () => fill('pinned'));
  else
    fill('pinned');
}
function change(part) {
  state = {...state, ...structuredClone(part)};
  history.pushState(null, '', addressOf(state));
  show();
}
const changeRun = (run) => change({run});

// --- The search.
const search = {
  found: [],
  controller: null,
  answer: null
};

// Made once: a button that is replaced while it is pressed is not clicked.
function makeSearch() {
  const effort = element('input', {
    type: 'number',
    id: 'effort',
    min: 0.1,
    max: 600,
    step: 'any',
    value: state.effort,
    onchange: () => change({effort: Number(effort.value)})
  });
  fill(
      'plan', element('h2', {}, 'Plan'),
      paragraph('The fastest layouts for this model, system, number of GPUs, sequence and batch.'),
      element(
          'div', {class: 'buttons'}, button('Plan', startSearch, {id: 'start'}),
          button('Stop', () => search.controller.abort(), {id: 'stop'}),
          element('label', {}, 'Seconds of a core', effort)),
      element('p', {role: 'status', id: 'search-status'}), element('div', {id: 'search'}));
}

function showSearch(progress) {
  const {found, answer, errors, controller} = search;
  const some = `${found.length} ${found.length === 1 ? 'layout' : 'layouts'} found`;
  const best = progress && progress.best_s !== null ? `, best step ${number(progress.best_s)} s` : '';
  document.getElementById('start').disabled = controller !== null;
  document.getElementById('stop').disabled = controller === null;
  document.getElementById('search-status').textContent = progress ? `${spoken(progress.work)}: ${some}${best}` :
      answer ? `${answer.plans.length} plans; ${some} on the way` :
      controller ? 'search' :
                   '';
  fill(
      'search',
      controller ? element('progress', {max: 1, value: progress ? progress.share : 0, 'aria-label': 'Search'}) : null,
      errors ? element('div', {class: 'mistakes', role: 'alert'}, list(errors.map(({message}) => message))) : null,
      found.length ? frontChart(found) : null, answer && answer.plans.length ? plansTable(answer.plans) : null,
      answer && !answer.plans.length ? paragraph('Nothing fits.', 'warn') : null);
}

const layoutKey = (run) => SIZES.map((key) => run[key]).join(' ');

function takeLine(line) {
  const {progress, answer, errors} = JSON.parse(line);
  if (progress) {
    const known = new Map(search.found.map((one) => [layoutKey(one.run), one]));
    for (const one of progress.found) known.set(layoutKey(one.run), one);
    search.found = [...known.values()];
    showSearch(progress);
  }
  if (answer) search.answer = answer;
  if (errors) search.errors = errors;
}

async function startSearch() {
  const controller = new AbortController();
  Object.assign(search, {found: [], answer: null, errors: null, controller});
  showSearch(null);
  try {
    const response = await fetch('/api/plan', {
      method: 'POST',
      headers: {'Content-Type': 'application/json'},
      body: JSON.stringify({...planQuestion(state.run), effort: state.effort}),
      signal: controller.signal
    });
    if (!response.ok) throw Object.assign(new Error(`status ${response.status}`), await response.json());
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const {done, value} = await reader.read();
      if (done) break;
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      lines.forEach(takeLine);
    }
  } catch (error) {
    if (error.name !== 'AbortError') search.errors = mistakesIn(error);
  }
  search.controller = null;
  showSearch(null);
}

async function start() {
  history.replaceState(null, '', addressOf(state));  // Without the token.
  const [{fields}, {models}, {systems}] =
      await Promise.all([ask('/api/fields'), ask('/api/models'), ask('/api/systems')]);
  try {
    lastCheck = await ask('/api/check', state.run);
  } catch {
    lastCheck = await ask('/api/check', START.run);  // For the list of fields that have values to offer.
  }
  makeControls(fields, models, systems, lastCheck);
  const links = {
    question: 'Question',
    controls: 'Fields',
    answer: 'Prediction',
    pinned: 'A and B',
    plan: 'Plan',
    schedule: 'Schedule',
    state: 'This state'
  };
  document.querySelector('nav ul').append(...Object.entries(links).map(
      ([id, title]) =>
          element('li', {}, button(title, () => document.getElementById(id).scrollIntoView(), {class: 'plain'}))));
  makeSearch();
  show();
  showSearch(null);
}

addEventListener('popstate', () => {
  state = readState();
  show();
});
addEventListener('resize', () => redraw());
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => redraw());
for (const id of ['question', 'controls'])
  document.getElementById(id).addEventListener('submit', (event) => event.preventDefault());
start().catch((error) => showErrors(mistakesIn(error)));
