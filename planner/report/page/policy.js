'use strict';
// plotly.js sets attributes named style, which the page's policy refuses. It allows the same through the object.
{
  const set = Element.prototype.setAttribute;
  Element.prototype.setAttribute = function(name, value) {
    if (name === 'style')
      this.style.cssText = value;
    else
      set.call(this, name, value);
  };
}
