'use strict';
/* Opened from the disk, a page may not start workers, and search would not answer: here a frame does a worker's work. */
if (location.protocol === 'file:') {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const frame = document.createElement('iframe');
      frame.hidden = true;
      frame.title = 'search';
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => {
        const told = new MessageEvent('message', { data });
        if (this.onmessage) this.onmessage(told);
        this.dispatchEvent(told);
      };
      this.inner.importScripts = () => undefined; // other languages only
      const script = this.inner.document.createElement('script');
      script.src = new URL(address, location.href);
      script.onload = () => {
        for (const data of this.waiting) this.tell(data);
        this.waiting = null;
      };
      this.inner.document.body.append(script);
    }

    tell(data) {
      this.inner.dispatchEvent(new this.inner.MessageEvent('message', { data }));
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.tell(data);
    }

    terminate() {
      this.inner.frameElement.remove();
    }
  };
}

/* The theme's buttons on code get names that tell them apart. */
new MutationObserver(() => {
  document.querySelectorAll('nav.md-code__nav').forEach((one, k) => {
    if (!one.ariaLabel) one.ariaLabel = `Code ${k + 1}`;
  });
}).observe(document.documentElement, { childList: true, subtree: true });
