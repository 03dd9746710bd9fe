'use strict';
// A control for every field of a run file, from the table of fields (/api/fields). /api/check says which values rules
// refuse: those are greyed, with the rule's words below.

const QUESTION = ['model', 'system', 'num_gpus', 'seq_len', 'global_batch', 'precision', 'release'];
const WITHOUT = ['model_overrides', 'system_overrides'];  // Objects: in the run file below.
const GROUPS = {
  '': 'Sizes and choices',
  recompute: 'Recomputation',
  offload: 'Offloading',
  lora: 'LoRA',
  overlaps: 'Overlaps',
  cuda_graph: 'CUDA graphs',
  optimizer: 'Optimizer',
  software: 'Software'
};
const controls = new Map();  // By key: {show(check), mistake(text)}.
const shownValue = (value) =>
    (value === null || value === undefined || (Array.isArray(value) && !value.length) ? 'none' :
         Array.isArray(value)                                                         ? value.join('+') :
                                                                                        String(value));
const refusal = ({rule, reason}) => (rule ? `${rule}: ${reason}` : reason);

function makeControl(field, names) {
  const {key, type, low, high, doc, unit, applies, flags} = field;
  const id = `field-${key.replaceAll('.', '-')}`;
  const last = key.split('.').pop();
  const hint =
      [doc, unit && `In ${unit}.`, applies && `Only where ${applies}.`, flags.join(' ')].filter(Boolean).join(' ');
  const label = element('label', {for: id, title: hint
  }, last);
  const mistake = element('small', {class: 'mistake'}), refused = element('div');
  const box = element('div', {class: 'control', 'data-key': key}, label);
  const change = (value) => changeRun(withValue(state.run, key, value));
  let input = null, set = null;

  if (type === 'list of names') {
    const boxes = field.names.map((name) => element('input', {
                                    type: 'checkbox',
                                    onchange: () => change(field.names.filter((_, i) => boxes[i].checked)),
                                    'aria-label': `${key} ${name}`
                                  }));
    input = element(
        'div', {class: 'names', id, role: 'group', 'aria-label': key},
        ...field.names.map((name, i) => element('label', {}, boxes[i], ` ${name}`)));
    set = (stated, effective) => {
      const on = stated || effective || [];
      boxes.forEach((one, i) => one.checked = on.includes(field.names[i]));
    };
  } else if (names || type === 'name' || type === 'boolean' || field.offered) {
    input = element(
        'select', {id, title: hint, onchange: () => change(input.value === '' ? undefined : JSON.parse(input.value))});
    set = (stated, effective, values) => {
      const offered = values && values.length ? values : (names || []).map((value) => ({value, refused: []}));
      const text = JSON.stringify(stated);
      const options = [];
      if (!names) options.push(element('option', {value: ''}, `default: ${shownValue(effective)}`));
      if (stated !== undefined && !offered.some(({value}) => JSON.stringify(value) === text))
        offered.push({value: stated, refused: []});
      for (const {value, refused: against} of offered) {
        const why = against.map(refusal).join(' ');
        options.push(element(
            'option', {
              value: JSON.stringify(value),
              disabled: against.length > 0 && JSON.stringify(value) !== text,
              title: why,
              selected: JSON.stringify(value) === text
            },
            typeof value === 'object' && value !== null && !Array.isArray(value) ? 'in the run file' :
                                                                                   shownValue(value)));
      }
      input.replaceChildren(...options);
      input.value = stated === undefined ? '' : text;
    };
  } else {
    const numeric = type === 'integer' || type === 'number';
    input = element('input', {
      id,
      title: hint,
      type: numeric ? 'number' : 'text',
      min: low,
      max: high,
      step: type === 'number' ? 'any' : 1,
      onchange: () => {
        if (input.value === '') return change(undefined);
        if (type === 'list of integers') return change(input.value.split(/[\s,]+/).filter(Boolean).map(Number));
        change(numeric ? Number(input.value) : input.value);
      }
    });
    set = (stated, effective) => {
      if (document.activeElement !== input)
        input.value = stated === undefined || stated === null ? '' : Array.isArray(stated) ? stated.join(' ') : stated;
      input.placeholder = effective === undefined || effective === null ? '' : shownValue(effective);
    };
  }
  box.append(input, refused, mistake);
  controls.set(key, {
    input,
    mistake: (text) => {
      mistake.textContent = text;
      input.setAttribute('aria-invalid', String(text !== ''));
    },
    show: (check) => {
      const found = check && check.fields[key], stated = valueIn(state.run, key);
      set(stated, found ? found.value : undefined, found ? structuredClone(found.values) : null);
      box.classList.toggle('stated', stated !== undefined);
      box.classList.toggle('idle', Boolean(found && !found.applies));
      const bad = found ? found.values.filter(({refused: against}) => against.length) : [];
      refused.replaceChildren(...(bad.length ? [refusedList(bad)] : []));
    }
  });
  return box;
}

// The rule's words, of each value that is greyed.
function refusedList(bad) {
  return folded(
      `${bad.length} ${bad.length > 1 ? 'values' : 'value'} refused: ${
          bad.map(({value}) => shownValue(value)).join(', ')}`,
      element(
          'ul', {class: 'refused'},
          ...bad.map(
              ({value, refused: against}) =>
                  element('li', {}, `${shownValue(value)}: ${against.map(refusal).join(' ')}`))));
}

function makeControls(fields, models, systems, first) {
  const names = {model: models, system: systems};
  const form = document.getElementById('controls');
  const known = new Map(fields.map((field) => [field.key, field]));
  const offered = (field) =>
      ({...field, offered: Boolean(first && first.fields[field.key] && first.fields[field.key].values.length)});
  const make = (key) => makeControl(offered(known.get(key)), names[key]);
  document.getElementById('question').append(...QUESTION.map(make));
  for (const [group, title] of Object.entries(GROUPS)) {
    const keys = fields.map(({key}) => key)
                     .filter(
                         (key) => (key.includes('.') ? key.split('.')[0] : '') === group && !QUESTION.includes(key) &&
                             !WITHOUT.includes(key));
    const parts = keys.map(make);
    form.append(
        ...(group === '' ? [element('h2', {}, title), ...parts] :
                           [element('details', {}, element('summary', {}, title), ...parts)]));
  }
}

function showControls(check) {
  for (const control of controls.values()) control.show(check);
}

// Mistakes at the controls of their fields; those of no control are returned.
function showMistakes(errors) {
  const texts = new Map();
  for (const {field, message} of errors) {
    const key = field.slice(1).replaceAll('/', '.');
    texts.set(key, [texts.get(key), message].filter(Boolean).join(' '));
  }
  for (const [key, control] of controls) control.mistake(texts.get(key) || '');
}
