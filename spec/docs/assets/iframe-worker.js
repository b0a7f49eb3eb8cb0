// A browser starts no worker from a file. When the site is opened from disk, what the search would run in a worker runs
// in a hidden frame. Without this file the site's builder would fetch something like it from the network.
// As with a worker, messages are copied, and arrive later, never within the call that posts them.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      this.inside = this.frame.contentWindow;
      this.inside.postMessage = (data) => {
        const copy = structuredClone(data);
        setTimeout(() => this.onmessage?.(new MessageEvent("message", { data: copy })));
      };
      const script = this.inside.document.createElement("script");
      this.loaded = new Promise((resolve) => {
        script.onload = resolve;
      });
      script.src = url;
      this.inside.document.body.appendChild(script);
    }
    postMessage(data) {
      const copy = this.inside.structuredClone(data);
      this.loaded.then(() =>
        setTimeout(() => this.inside.onmessage?.(new this.inside.MessageEvent("message", { data: copy }))),
      );
    }
    terminate() {
      this.frame.remove();
    }
  };
}
