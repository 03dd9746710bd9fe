'use strict';
// What is shown: {run, pinned, effort}. The address holds it after its '#', as JSON; each change is a step of the
// browser's history.

const START = {
  run: {
    model: 'qwen3-30b-a3b',
    system: 'h100-sxm-80gb',
    num_gpus: 32,
    seq_len: 4096,
    global_batch: 256,
    micro_batch: 1,
    precision: 'bf16',
    tp: 1,
    pp: 2,
    ep: 8,
    dispatcher: 'alltoall',
    sharding: 'ddp-distopt'
  },
  pinned: null,
  effort: 0.9
};

function readState() {
  try {
    const found = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    if (found && typeof found.run === 'object' && found.run !== null) return {...START, ...found};
  } catch {
    // The address holds no state.
  }
  return structuredClone(START);
}
let state = readState();

// The address without the token, which stays out of what is shared.
function addressOf(shown) {
  const base = `${location.origin}${location.pathname}`;
  return `${base}#${encodeURIComponent(JSON.stringify(shown))}`;
}

// A field's value in a run file: "recompute.modules" is {"recompute": {"modules": ...}}; undefined: not stated.
function valueIn(run, key) {
  const [group, last] = key.includes('.') ? key.split('.') : [null, key];
  return group ? (run[group] || {})[last] : run[last];
}
function withValue(run, key, value) {
  const changed = structuredClone(run), [group, last] = key.includes('.') ? key.split('.') : [null, key];
  const place = group ? (changed[group] = {...changed[group]}) : changed;
  if (value === undefined)
    delete place[last];
  else
    place[last] = value;
  if (group && !Object.keys(place).length) delete changed[group];
  return changed;
}

// The answer to a question, or an error with {status, errors}.
async function ask(path, body, signal) {
  const headers = body === undefined ? {} : {'Content-Type': 'application/json'};
  const response = await fetch(
      path, {method: body === undefined ? 'GET' : 'POST', headers, body: body && JSON.stringify(body), signal});
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(`status ${response.status}`), answer);
  return answer;
}

// Asks the newest question only: an answer that a later one overtook is dropped.
function latest(path, wait) {
  let controller = null, timer = null;
  const cancel = () => {
    clearTimeout(timer);
    if (controller) controller.abort();
    controller = null;
  };
  const question = (body, take, fail) => {
    cancel();
    const mine = controller = new AbortController();
    const go = () => ask(path, body, mine.signal)
                         .then(
                             (answer) => {
                               if (mine === controller) take(answer);
                             },
                             (error) => {
                               if (mine === controller && error.name !== 'AbortError') fail(error);
                             });
    timer = setTimeout(go, wait);
  };
  return Object.assign(question, {cancel});
}
const mistakesIn = (error) =>
    error.errors || [{file: '', line: 0, field: '', message: `The server does not answer: ${error.message}`}];

const runText = (run) => JSON.stringify(run, null, 2);
const shellWord = (text) => (/^[\w.,:/=+@-]+$/.test(text) ? text : `'${String(text).replaceAll('\'', '\'\\\'\'')}'`);
const predictCommand = (run) => `foldwise predict - <<'END'\n${runText(run)}\nEND`;
// What the run file says of the question, as the arguments of `plan`.
function planQuestion(run) {
  const question = {};
  for (const [key, name] of [
           ['model', 'model'], ['system', 'system'], ['num_gpus', 'gpus'], ['seq_len', 'seq_len'],
           ['global_batch', 'global_batch'], ['precision', 'precision'], ['release', 'release']])
    if (run[key] !== undefined && typeof run[key] !== 'object') question[name] = run[key];
  return question;
}
function planCommand(question) {
  const options =
      Object.entries(question).map(([name, value]) => `--${name.replaceAll('_', '-')} ${shellWord(String(value))}`);
  return `foldwise plan ${options.join(' ')}`;
}
