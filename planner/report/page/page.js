'use strict';
// Draws the page of the answer that it holds.

// Draws the charts of `root` that are in the page.
function redraw(root = document) {
  for (const figure of root.querySelectorAll('figure'))
    if (figure.isConnected && figure.draw) figure.draw();
}

document.querySelector('nav').append(element('ul'));
({plan, predict, compare, diagnose, sweep})[data.kind]();
origin();
redraw();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => redraw());
if (!hasPlotly) addEventListener('resize', () => redraw());
