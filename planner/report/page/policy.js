'use strict';
// plotly.js sets attributes named style, which the page's policy refuses: it allows the same through the object. The
// style element that plotly.js makes for maps, which no page has, is left out.
{
  const set = Element.prototype.setAttribute, append = document.head.appendChild;
  Element.prototype.setAttribute = function(name, value) {
    if (name === 'style')
      this.style.cssText = value;
    else
      set.call(this, name, value);
  };
  document.head.appendChild = (node) =>
      node.localName === 'style' && node.textContent ? node : append.call(document.head, node);
}
