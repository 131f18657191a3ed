const charts = (() => {
  const { element, svg } = weft;
  const MOST = 300; // samples, ten minutes
  const WIDTH = 300;
  const HEIGHT = 90;

  // A line over time, with its latest and its highest value.
  class Chart {
    constructor(title, format) {
      this.title = title;
      this.format = format;
      this.samples = []; // [milliseconds, value or null]
      this.latest = element("b", "–");
      this.curve = svg("path", { class: "curve" });
      this.area = svg("path", { class: "area" });
      this.drawing = svg(
        "svg",
        { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
        ...[0.5, HEIGHT / 2, HEIGHT - 0.5].map((y) => svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: y, y2: y })),
        this.area,
        this.curve,
      );
      this.since = element("span", "");
      this.highest = element("span", "");
      const ends = element("div", null, this.since, this.highest);
      ends.className = "ends";
      this.figure = element("figure", null, element("figcaption", null, element("span", title), this.latest), this.drawing, ends);
      this.draw();
    }

    add(time, value) {
      this.samples.push([time, value]);
      if (this.samples.length > MOST) this.samples.shift();
      this.draw();
    }

    draw() {
      const known = this.samples.filter(([, value]) => value !== null);
      const last = this.samples.at(-1)?.[1] ?? null;
      const top = Math.max(...known.map(([, value]) => value), 0);
      this.latest.textContent = last === null ? "–" : this.format(last);
      this.highest.textContent = known.length ? `highest ${this.format(top)}` : "";
      const [begin, end] = [this.samples[0]?.[0] ?? 0, this.samples.at(-1)?.[0] ?? 0];
      this.since.textContent = this.samples.length > 1 ? `last ${Math.round((end - begin) / 1000)} s` : "";
      const points = known.map(([time, value]) => [
        end > begin ? ((time - begin) / (end - begin)) * WIDTH : WIDTH,
        HEIGHT - 1 - (top > 0 ? value / top : 0) * (HEIGHT - 4),
      ]);
      const line = points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
      this.curve.setAttribute("d", line);
      const closed = points.length ? `${line}L${points.at(-1)[0].toFixed(1)} ${HEIGHT}L${points[0][0].toFixed(1)} ${HEIGHT}Z` : "";
      this.area.setAttribute("d", closed);
      const summary = last === null ? "no requests yet" : `now ${this.format(last)}, highest ${this.format(top)}`;
      this.drawing.setAttribute("aria-label", `${this.title}: ${summary}`);
    }
  }

  // Requests that were answered between two states of the server, and their seconds; counters restart on a reload.
  const count = (models, before) => {
    let [requests, seconds] = [0, 0];
    for (const model of models) {
      if (!model.requests) continue;
      const old = before.get(`${model.version}/${model.name}`);
      const restarted = !old?.requests || old.requests.success > model.requests.success;
      requests += model.requests.success - (restarted ? 0 : old.requests.success);
      seconds += model.latency.total - (restarted ? 0 : old.latency.total);
    }
    return [requests, seconds];
  };

  const rates = new Chart("Requests/s", (value) => (value >= 100 || value === 0 ? value.toFixed(0) : value.toPrecision(2)));
  const latencies = new Chart("Mean latency", (value) => weft.time(value * 1e6));
  let before = null;
  let time = 0;
  const update = (status) => {
    const now = performance.now();
    if (before !== null && now > time) {
      const [requests, seconds] = count(status.models, before);
      rates.add(now, requests / ((now - time) / 1000));
      latencies.add(now, requests > 0 ? seconds / requests : null);
    }
    before = new Map(status.models.map((model) => [`${model.version}/${model.name}`, model]));
    time = now;
  };
  weft.byId("charts").append(rates.figure, latencies.figure);
  return { update, rates, latencies };
})();
