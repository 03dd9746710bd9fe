// Search in pages that were opened as files: a browser starts no worker for them, so a hidden frame stands in for it.
if (location.protocol === 'file:') {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.body.appendChild(document.createElement('iframe'));
      frame.hidden = true;
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent('message', {data}));
      const script = this.inner.document.createElement('script');
      script.src = new URL(url, location.href);
      this.loaded = new Promise((resolve) => { script.onload = resolve; });
      this.inner.document.body.appendChild(script);
    }
    postMessage(data) {
      this.loaded.then(() => this.inner.dispatchEvent(new this.inner.MessageEvent('message', {data})));
    }
    terminate() {}
  };
}
