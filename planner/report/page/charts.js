'use strict';
// Charts: by plotly.js where the page has it, else plainer ones in SVG. Either way the numbers stand below as a table.
//   {kind: 'bars', title, note, unit, categories, series: [{name, hue, values, bases, colours, texts}], limit, range}
//     horizontal, stacked; with `bases` each bar starts where its base says; `limit` is a line, `hue` keeps a colour
//     where series come and go, `range` what the axis shows;
//   {kind: 'points', title, note, x: {title, ratio, ticks}, y: {title, fromZero}, series: [{name, hue, line, front,
//   points:
//   [{x, y, low, high, text, hollow, cross, choose}]}]}
//     a `front` is a line in steps: between its points nothing is claimed;
//     `cross` draws a point as a cross, `choose` is called when it is clicked;
//     across are categories where an `x` is a text, with `ratio` logarithms; low to high is an interval of y.

// Okabe and Ito's colours, told apart by colour-blind readers too, and four more.
const COLOURS = [
  '#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00', '#b5a914', '#8c8c8c', '#7b5fb0', '#3d9aa1',
  '#a86b43'
];
const MORE = '#d55e00', LESS = '#009e73', WHOLE = '#6b7a8a';
const colour = (i) => COLOURS[i % COLOURS.length];
const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const hasPlotly = typeof Plotly !== 'undefined';

// Plotly takes some markup in its texts.
const plain = (text) => String(text).replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
const shortened = (text, most) => (text.length <= most ? text : text.slice(0, most - 1) + '…');

// A figure whose draw() is to be called once it has a width, and again when that or the colours change.
function chart(spec) {
  const space = element('div', {class: 'chart', role: 'img', 'aria-label': `${spec.title}. The numbers stand below.`});
  const figure = element(
      'figure', {}, element('h3', {}, spec.title), spec.note ? element('figcaption', {}, spec.note) : null, space,
      element('details', {}, element('summary', {}, 'Numbers'), numbersOf(spec)));
  figure.draw = () =>
      (hasPlotly ? drawWithPlotly(space, spec) : space.replaceChildren(drawnAsSvg(space.clientWidth, spec)));
  return figure;
}

function numbersOf(spec) {
  if (spec.kind === 'bars')
    return dataTable({
      label: spec.title,
      rows: spec.categories.map((_, i) => i),
      filtered: false,
      columns: [
        {title: spec.across || '', value: (i) => spec.categories[i], long: true},
        ...spec.series.map(({name, values}) => ({title: `${name}, ${spec.unit}`, value: (i) => values[i]}))
      ]
    });
  const rows = spec.series.flatMap(({name, points}) => points.map((point) => ({name, ...point})));
  return dataTable({
    label: spec.title,
    rows,
    filtered: false,
    tall: rows.length > 15,
    columns: [
      {title: 'line', value: (row) => row.name}, {title: spec.x.title, value: (row) => row.x},
      {title: spec.y.title, value: (row) => row.y}, {title: 'which', value: (row) => row.text, long: true}
    ]
  });
}

const barsHeight = (spec) => 24 * spec.categories.length;

// Of points some of which have one.
function intervals(points, color) {
  if (points.every(({low}) => low === undefined)) return undefined;
  return {
    type: 'data',
    symmetric: false,
    thickness: 1,
    width: 3,
    color,
    array: points.map(({y, high}) => (high === undefined ? 0 : high - y)),
    arrayminus: points.map(({y, low}) => (low === undefined ? 0 : y - low))
  };
}

function plotlyTraces(spec, width) {
  const most = width < 450 ? 18 : 40;
  if (spec.kind === 'bars') {
    const categories = spec.categories.map((name) => plain(shortened(name, most)));
    const bars = spec.series.map(
        ({name, hue, values, bases, colours, texts}, i) => ({
          type: 'bar',
          orientation: 'h',
          name: plain(name),
          x: values,
          y: categories.map((_, row) => row),
          base: bases,
          marker: {color: colours || colour(hue ?? i)},
          text: (texts || values.map((value) => number(value, 3))).map(plain),
          textposition: spec.series.length > 1 ? 'none' : 'auto',
          cliponaxis: false,
          customdata: values.map(
              (value, row) =>
                  plain(`${spec.categories[row]}: ${name} ${texts ? texts[row] : number(value)} ${spec.unit}`)),
          hovertemplate: '%{customdata}<extra></extra>'
        }));
    return {traces: bars, categories};
  }
  const traces = spec.series.map(({name, hue, line, front, points}, i) => ({
                                   type: 'scatter',
                                   name: plain(name),
                                   mode: line || front ? 'lines+markers' : 'markers',
                                   x: points.map(({x}) => (typeof x === 'string' ? plain(x) : x)),
                                   y: points.map(({y}) => y),
                                   line: {color: colour(hue ?? i), width: 2, shape: front ? 'hv' : 'linear'},
                                   marker: {
                                     color: colour(hue ?? i),
                                     size: 9,
                                     symbol: points.map(
                                         ({hollow, cross}) =>
                                             (cross      ? 'x-thin-open' :
                                                  hollow ? 'circle-open' :
                                                           'circle'))
                                   },
                                   error_y: intervals(points, colour(hue ?? i)),
                                   customdata: points.map(({text}) => plain(text)),
                                   hovertemplate: '%{customdata}<extra></extra>'
                                 }));
  return {traces};
}

function drawWithPlotly(space, spec) {
  const width = space.clientWidth, {traces, categories} = plotlyTraces(spec, width);
  const axis = {gridcolor: themed('line'), zerolinecolor: themed('line'), linecolor: themed('line'), automargin: true};
  const layout = {
    font: {family: 'system-ui, sans-serif', size: 12, color: themed('ink')},
    paper_bgcolor: 'rgba(0,0,0,0)',
    plot_bgcolor: 'rgba(0,0,0,0)',
    margin: {l: 10, r: 30, t: 10, b: 40},
    showlegend: spec.series.length > 1,
    hoverlabel: {align: 'left'},
    legend: {orientation: 'h', y: 1, yanchor: 'bottom', x: 0, xanchor: 'left'},
    hovermode: 'closest',
    dragmode: width > 600 ? 'zoom' : false
  };
  if (spec.kind === 'bars') {
    const legendRows = spec.series.length > 1 ? Math.ceil(spec.series.length * 130 / Math.max(width - 100, 200)) : 0;
    Object.assign(layout, {
      barmode: spec.series.some(({bases}) => bases) ? 'overlay' : 'relative',
      height: barsHeight(spec) + 80 + 22 * legendRows,
      bargap: .25,
      xaxis: {...axis, title: {text: plain(spec.unit)}, range: spec.range},
      yaxis: {
        ...axis,
        autorange: 'reversed',
        tickvals: categories.map((_, i) => i),
        ticktext: categories,
        showgrid: false,
        zeroline: false
      }
    });
    if (spec.limit)
      layout.shapes = [{
        type: 'line',
        x0: spec.limit,
        x1: spec.limit,
        yref: 'paper',
        y0: 0,
        y1: 1,
        line: {color: themed('warn'), width: 2, dash: 'dash'}
      }];
  } else {
    const texts = spec.series.some(({points}) => points.some(({x}) => typeof x === 'string'));
    const type = texts ? 'category' : spec.x.ratio ? 'log' : 'linear';
    Object.assign(layout, {
      height: 380,
      xaxis: {...axis, title: {text: plain(spec.x.title)}, type},
      yaxis: {...axis, title: {text: plain(spec.y.title)}, rangemode: spec.y.fromZero ? 'tozero' : 'normal'}
    });
    if (spec.x.ticks) Object.assign(layout.xaxis, {tickvals: spec.x.ticks, ticktext: spec.x.ticks.map(String)});
  }
  Plotly.react(space, traces, layout, {responsive: true, displaylogo: false, displayModeBar: false});
  if (spec.kind !== 'points') return;
  space.removeAllListeners('plotly_click');
  space.on('plotly_click', ({points: [point]}) => spec.series[point.curveNumber].points[point.pointNumber].choose?.());
}

function svgElement(tag, attributes, ...children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes))
    if (value !== undefined) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Round steps, of 1, 2 or 5 times a power of ten, from low to high.
function ticks(low, high, most) {
  const power = 10 ** Math.floor(Math.log10((high - low) / most || 1));
  const step = power * [1, 2, 5, 10].find((factor) => (high - low) / (factor * power) <= most);
  const result = [];
  for (let i = Math.ceil(low / step); i * step <= high + 1e-9 * step; ++i) result.push(i * step);
  return result;
}

const rounded = (tick) => Number(tick.toPrecision(9));

function drawnAsSvg(width, spec) {
  const names = spec.series.length > 1 ? spec.series.map(({name, hue}, i) => ({name, fill: colour(hue ?? i)})) : [];
  const parts = [];
  const text = (x, y, value, anchor = 'start') =>
      parts.push(svgElement('text', {x, y, 'text-anchor': anchor, 'font-size': 12}, String(value)));
  const line = (x1, y1, x2, y2, kind) => parts.push(svgElement('line', {x1, y1, x2, y2, class: kind}));
  let top = 8, x = 0;
  for (const {name, fill} of names) {
    const wide = 26 + 7 * name.length;
    if (x + wide > width && x > 0) [x, top] = [0, top + 18];
    parts.push(svgElement('rect', {x, y: top, width: 12, height: 12, fill}));
    text(x + 16, top + 10, name);
    x += wide;
  }
  top += names.length ? 24 : 0;
  const bottom = spec.kind === 'bars' ? svgBars(spec, width, top, {parts, text, line}) :
                                        svgPoints(spec, width, top, {parts, text, line});
  return svgElement('svg', {width, height: bottom, viewBox: `0 0 ${width} ${bottom}`}, ...parts);
}

function svgBars(spec, width, top, {parts, text, line}) {
  const left = Math.min(.4 * width, 12 + 7 * Math.max(...spec.categories.map((name) => name.length)));
  const edges = [0, ...(spec.limit ? [spec.limit] : [])];
  spec.categories.forEach((_, row) => {
    let sum = 0;
    for (const {values, bases} of spec.series) {
      const start = bases ? bases[row] : sum;
      edges.push(start, start + (values[row] || 0));
      sum += values[row] || 0;
    }
  });
  const [low, high] = spec.range || [Math.min(...edges), Math.max(...edges) || 1],
              at = (value) => left + (width - left - 16) * (Math.max(value, low) - low) / (high - low || 1);
  const bottom = top + barsHeight(spec);
  for (const tick of ticks(low, high, width < 600 ? 4 : 8)) {
    line(at(tick), top, at(tick), bottom, 'frame');
    text(at(tick), bottom + 16, rounded(tick), 'middle');
  }
  text(width - 16, bottom + 34, spec.unit, 'end');
  spec.categories.forEach((name, row) => {
    const y = top + 24 * row;
    text(left - 6, y + 16, shortened(name, Math.floor((left - 10) / 7)), 'end');
    let sum = 0;
    spec.series.forEach(({name: part, hue, values, bases, colours}, i) => {
      const value = values[row] || 0, from = bases ? bases[row] : sum, x0 = at(Math.min(from, from + value)),
            x1 = at(Math.max(from, from + value));
      sum += value;
      parts.push(svgElement(
          'rect', {
            class: 'mark',
            x: x0,
            y: y + 3,
            width: Math.max(0, x1 - x0),
            height: 18,
            fill: colours ? colours[row] : colour(hue ?? i)
          },
          svgElement('title', {}, `${name}: ${part} ${number(value)} ${spec.unit}`)));
    });
  });
  if (spec.limit) line(at(spec.limit), top, at(spec.limit), bottom, 'limit');
  return bottom + 40;
}

function svgPoints(spec, width, top, {parts, text, line}) {
  const points = spec.series.flatMap((series) => series.points).filter(({y}) => typeof y === 'number');
  const names = [...new Set(points.map((point) => point.x))], byName = names.some((x) => typeof x === 'string');
  const place = (x) => (byName ? names.indexOf(x) : spec.x.ratio ? Math.log(x) : x);
  const range = (values) => [Math.min(...values), Math.max(...values)];
  const [x0, x1] = range(points.map(({x}) => place(x))), left = 56, bottom = top + 280;
  const [y0, y1] =
      range([...(spec.y.fromZero ? [0] : []), ...points.flatMap(({y, low, high}) => [low ?? y, high ?? y])]);
  const px = (x) => left + 12 + (width - left - 40) * (place(x) - x0) / (x1 - x0 || 1),
        py = (y) => bottom - 12 - (bottom - top - 24) * (y - y0) / (y1 - y0 || 1);
  for (const tick of ticks(y0, y1, 6)) {
    line(left, py(tick), width - 16, py(tick), 'frame');
    text(left - 6, py(tick) + 4, rounded(tick), 'end');
  }
  for (const tick of byName ? names : spec.x.ticks || ticks(x0, x1, width < 600 ? 4 : 8))
    text(px(tick), bottom + 16, typeof tick === 'string' ? shortened(tick, 14) : rounded(tick), 'middle');
  text(width - 16, bottom + 34, spec.x.title, 'end');
  text(0, bottom + 34, `up: ${spec.y.title}`);
  spec.series.forEach((series, i) => {
    const fill = colour(series.hue ?? i);
    const shown = series.points.filter(({y}) => typeof y === 'number');
    const corner = (i) => (series.front && i > 0 ? `${px(shown[i].x)},${py(shown[i - 1].y)} ` : '');
    if (series.line || series.front)
      parts.push(svgElement('polyline', {
        points: shown.map(({x, y}, at) => `${corner(at)}${px(x)},${py(y)}`).join(' '),
        fill: 'none',
        stroke: fill,
        'stroke-width': 2
      }));
    for (const {x, y, low, high, text: tip, hollow, cross, choose} of shown) {
      if (low !== undefined)
        parts.push(svgElement('line', {x1: px(x), x2: px(x), y1: py(low), y2: py(high), stroke: fill}));
      const at = [px(x), py(y)];
      const mark = cross ? svgElement(
                               'path', {
                                 class: 'mark',
                                 d: `M${at[0] - 4},${at[1] - 4} l8,8 m0,-8 l-8,8`,
                                 stroke: fill,
                                 'stroke-width': 1.5,
                                 fill: 'none'
                               },
                               svgElement('title', {}, tip)) :
                           svgElement(
                               'circle', {
                                 class: choose ? 'mark choose' : 'mark',
                                 cx: at[0],
                                 cy: at[1],
                                 r: 4.5,
                                 stroke: fill,
                                 'stroke-width': 1.5,
                                 fill: hollow ? 'none' : fill
                               },
                               svgElement('title', {}, tip));
      if (choose) mark.addEventListener('click', choose);
      parts.push(mark);
    }
  });
  return bottom + 44;
}
