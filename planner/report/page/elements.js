'use strict';
// Elements, numbers as text, and tables whose headers sort and whose input filters. Text of an answer only ever becomes
// a text node.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (name.startsWith('on'))
      made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false)
      made.setAttribute(name, value === true ? '' : value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Four significant digits, as the commands print; whole numbers whole.
function number(value, digits = 4) {
  if (value === null || value === undefined) return '';
  if (typeof value !== 'number') return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
  const size = Math.abs(value);
  if (size >= 1e15 || size < 1e-6) return value.toExponential(digits - 1);
  return value.toFixed(Math.max(0, digits - 1 - Math.floor(Math.log10(size))));
}
const fixed = (digits) => (value) => (typeof value === 'number' ? value.toFixed(digits) : '');
const yesOrNo = (value) => (value === null ? '' : value ? 'yes' : 'NO');
const whole = (value) => Math.round(value).toLocaleString('en');
const signed = (value, digits = 3) => (value > 0 ? '+' : '') + number(value, digits);
const percent = (share, digits = 1) => (100 * share).toFixed(digits) + ' %';

// What a person calls a value of a run file.
function words(value) {
  if (value === null || value === undefined) return '';
  if (Array.isArray(value)) return value.map(words).join(' ');
  if (typeof value === 'object') return Object.entries(value).map(([key, part]) => `${key} ${words(part)}`).join(', ');
  return String(value);
}

// A filter: words that a row's text has, or comparisons of a column, all of them: "deepep pp=1 step<14".
function filterOf(text, columns) {
  const tests = [], unknown = [];
  for (const term of text.trim().split(/\s+/).filter(Boolean)) {
    const compared = term.match(/^([^<>=!]+)(<=|>=|!=|=|<|>)(.+)$/);
    if (!compared) {
      tests.push((row) => columns.some((column) => column.shown(row).toLowerCase().includes(term.toLowerCase())));
      continue;
    }
    const [, name, operator, wanted] = compared;
    const plain = (title) => title.toLowerCase().replace(/\s+/g, '');
    const column = columns.find(({title}) => plain(title) === plain(name)) ||
        columns.find(({title}) => plain(title).startsWith(plain(name)));
    if (!column) {
      unknown.push(name);
      continue;
    }
    tests.push((row) => {
      const value = column.value(row), numbers = typeof value === 'number' && !isNaN(wanted);
      if (value === null || value === undefined) return false;
      const [a, b] = numbers ? [value, Number(wanted)] : [column.shown(row).toLowerCase(), wanted.toLowerCase()];
      return {'=': a === b, '!=': a !== b, '<': a < b, '>': a > b, '<=': a <= b, '>=': a >= b}[operator];
    });
  }
  return {unknown, passes: (row) => tests.every((test) => test(row))};
}

// Numbers by size, texts by the alphabet, what is not there last.
function inOrder(a, b, descending) {
  const none = (value) => value === null || value === undefined || value === '';
  if (none(a) || none(b)) return none(a) - none(b);
  const numbers = typeof a === 'number' && typeof b === 'number';
  const upwards = numbers ? a - b : String(a).localeCompare(String(b), 'en', {numeric: true});
  return descending ? -upwards : upwards;
}

const MOST_ROWS = 1000;  // That a table shows at once.

// columns: [{title, value(row), text(value), hint, long, hidden}], hidden ones for the filter alone; choose(row): rows
// get a button in the first column.
function dataTable({label, columns, rows, choose, tall = false, filtered = rows.length > 4}) {
  columns = columns.map((column) => {
    const text = column.text || ((value) => (typeof value === 'number' ? number(value) : words(value)));
    return {
      ...column,
      text,
      shown: (row) => text(column.value(row)),
      numeric: rows.some((row) => typeof column.value(row) === 'number')
    };
  });
  const all = columns;
  columns = columns.filter(({hidden}) => !hidden);
  let by = null, descending = false, passes = () => true, chosen = choose ? rows[0] : null;
  const body = element('tbody'), count = element('span', {role: 'status', class: 'quiet'});
  const heads = columns.map((column) => {
    const button = element('button', {type: 'button', title: column.hint, onclick: () => sortBy(column)}, column.title);
    return element('th', {scope: 'col', 'aria-sort': 'none', class: column.numeric ? 'number' : null}, button);
  });

  function sortBy(column) {
    [by, descending] = [column, by === column && !descending];
    for (const head of heads) head.setAttribute('aria-sort', 'none');
    heads[columns.indexOf(by)].setAttribute('aria-sort', descending ? 'descending' : 'ascending');
    show();
  }
  function chooser(row, text) {
    const use = () => {
      chosen = row;
      show();
      choose(row);
      body.querySelector('[aria-pressed="true"]').focus();
    };
    const name = `Show ${label} ${text}`;
    return element(
        'button',
        {type: 'button', class: 'choose', 'aria-pressed': String(row === chosen), 'aria-label': name, onclick: use},
        text);
  }
  function cell(row, column, first) {
    const text = column.shown(row);
    return element(
        'td',
        {class: column.numeric ? 'number' :
             column.long       ? 'long' :
                                 'short'},
        first && choose ? chooser(row, text) : text);
  }
  function show() {
    const list = rows.filter(passes);
    if (by) list.sort((a, b) => inOrder(by.value(a), by.value(b), descending));
    body.replaceChildren(...list.slice(0, MOST_ROWS)
                             .map(
                                 (row) => element(
                                     'tr', {class: row === chosen ? 'chosen' : null},
                                     ...columns.map((column, i) => cell(row, column, i === 0)))));
    count.textContent = list.length === rows.length ? `${rows.length} rows` : `${list.length} of ${rows.length} rows`;
    if (list.length > MOST_ROWS) count.textContent += `; shown are the first ${MOST_ROWS}`;
  }
  const example = columns.find(({title}) => /^\w+$/.test(title)) || columns[0];
  const input = element('input', {type: 'search', placeholder: `words, or ${example.title}=…`, oninput: use});
  function use() {
    const wanted = filterOf(input.value, all);
    input.setAttribute('aria-invalid', String(wanted.unknown.length > 0));
    passes = wanted.passes;
    show();
    if (wanted.unknown.length) count.textContent += `; no column ${wanted.unknown.join(', ')}`;
  }
  use();
  const scroll = element(
      'div', {class: tall ? 'scroll tall' : 'scroll', tabindex: '0', role: 'region', 'aria-label': label},
      element('table', {class: choose ? 'chosen-by' : null}, element('thead', {}, element('tr', {}, ...heads)), body));
  const tools = element('div', {class: 'tools'}, element('label', {}, 'Filter', input), count);
  return filtered ? element('div', {}, tools, scroll) : scroll;
}
