// Search runs in a worker, which browsers refuse to pages that are opened as files. There, a hidden frame takes its place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const start = new URL(url, location.href);
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const load = (source) =>
        new Promise((done, failed) => {
          const script = frame.contentDocument.createElement("script");
          script.src = new URL(source, start);
          script.onload = done;
          script.onerror = failed;
          frame.contentDocument.body.append(script);
        });
      inside.importScripts = (...sources) => Promise.all(sources.map(load));
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside = inside;
      this.ready = load(start);
    }

    postMessage(data) {
      const { inside } = this;
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
