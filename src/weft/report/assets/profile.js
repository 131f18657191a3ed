(() => {
  const { byId, data, COLORS, OTHER, bytes, rate, time, percent, element, svg, showTip, hideTip, tipOwner, token } = weft;
  const HOST = -1;

  // -- facts ----------------------------------------------------------------------------------------------------------

  const perSecond = data.length ? (data.flops / data.length) * 1e6 : 0;
  const busy = data.occupancy.reduce((sum, part) => sum + part, 0) / Math.max(data.occupancy.length, 1);
  const facts = [
    ["One run", time(data.length), `median of ${data.runs}`],
    ["Device", data.device, `${data.threads} ${data.threads === 1 ? "thread" : "threads"}, ${percent(busy)} busy`],
    ["Arithmetic", rate(perSecond, "FLOP/s"), `${percent(perSecond / data.peakFlops)} of ${rate(data.peakFlops, "FLOP/s")}`],
    ["Peak live bytes", bytes(data.peak ? data.peak[1] : 0), `in an arena of ${bytes(data.arena)}`],
  ];
  for (const [name, value, more] of facts) {
    byId("facts").append(element("div", null, element("dt", name), element("dd", value, element("small", more))));
  }

  // -- kinds of kernels and their colors ------------------------------------------------------------------------------

  const kindOf = (name) => name.split(/[_ ]/)[0];
  const spanKind = (name, thread) => (thread === HOST ? "host" : kindOf(data.names[name]));
  const kinds = new Map();
  let worked = 0;
  for (const [, name, thread, , length] of data.spans) {
    kinds.set(spanKind(name, thread), (kinds.get(spanKind(name, thread)) ?? 0) + length);
    worked += length;
  }
  const ranked = [...kinds].sort((a, b) => b[1] - a[1]);
  const colors = new Map();
  for (const [kind] of ranked) {
    if (kind !== "host" && colors.size < COLORS.length) colors.set(kind, COLORS[colors.size]);
  }
  const colorOf = (kind) => colors.get(kind) ?? OTHER;
  for (const [kind, length] of ranked) {
    const mark = svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
    mark.append(svg("rect", { width: 10, height: 10, rx: 2, fill: colorOf(kind) }));
    byId("legend").append(element("li", null, mark, document.createTextNode(kind), element("span", percent(length / worked, 1))));
  }

  // -- the visible time range ----------------------------------------------------------------------------------------

  const whole = Math.max(data.length, 1e-3);
  const view = { from: 0, to: whole };
  const charts = [];
  let queued = false;
  const redraw = () => {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => {
      queued = false;
      for (const chart of charts) chart.draw();
    });
  };
  const show = (from, to) => {
    const width = Math.min(whole, Math.max(to - from, whole / 20000));
    view.from = Math.min(Math.max(0, from), whole - width);
    view.to = view.from + width;
    redraw();
  };
  const zoom = (factor, around) => {
    show(around - (around - view.from) / factor, around + (view.to - around) / factor);
  };
  for (const button of document.querySelectorAll("[data-zoom]")) {
    const factor = Number(button.dataset.zoom);
    button.addEventListener("click", () => (factor ? zoom(factor, (view.from + view.to) / 2) : show(0, whole)));
  }

  let chosen = null; // number of the highlighted kernel
  const rows = new Map();
  const choose = (kernel) => {
    if (kernel === chosen) return;
    rows.get(chosen)?.classList.remove("chosen");
    rows.get(kernel)?.classList.add("chosen");
    chosen = kernel;
    redraw();
  };

  // -- drawing --------------------------------------------------------------------------------------------------------

  const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif";

  const prepare = (canvas, height) => {
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth;
    canvas.style.height = `${height}px`;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = FONT;
    const left = width < 560 ? 58 : 76;
    const scale = (width - left) / (view.to - view.from);
    return { context, width, height, left, at: (when) => left + (when - view.from) * scale, scale };
  };

  const niceStep = (span, count) => {
    const raw = span / count;
    const power = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw);
  };

  const timeAxis = (frame, top, bottom) => {
    const { context, width, at } = frame;
    const step = niceStep(view.to - view.from, Math.max(2, Math.floor(width / 110)));
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    for (let when = Math.ceil(view.from / step) * step; when <= view.to; when += step) {
      const x = Math.round(at(when)) + 0.5;
      context.fillStyle = token("--grid");
      context.fillRect(x - 0.5, top, 1, bottom - top);
      const label = when < step / 2 ? "0" : time(when).replace(/\.0+ |(\.\d*?)0+ /, "$1 ");
      if (x + context.measureText(label).width + 4 < width) {
        context.fillStyle = token("--soft");
        context.fillText(label, x + 3, top - 4);
      }
    }
  };

  const clipped = (frame, top, bottom, work) => {
    frame.context.save();
    frame.context.beginPath();
    frame.context.rect(frame.left, top, frame.width - frame.left, bottom - top);
    frame.context.clip();
    work();
    frame.context.restore();
  };

  // -- timeline -------------------------------------------------------------------------------------------------------

  const threads = [...new Set(data.spans.map((span) => span[2]))].sort((a, b) => a - b);
  for (let thread = 0; thread < data.threads; thread += 1) if (!threads.includes(thread)) threads.push(thread);
  threads.sort((a, b) => a - b);
  const lanes = new Map(threads.map((thread, lane) => [thread, lane]));
  const LANE = 34;
  const TOP = 20;
  const timeline = byId("timeline");
  timeline.setAttribute("aria-label", "Kernels by thread over time. Arrow keys go from one to the next.");
  if (data.leftOut) byId("timeline-note").textContent = `${data.leftOut} of the shortest spans are not drawn.`;

  const drawTimeline = () => {
    const frame = prepare(timeline, TOP + threads.length * LANE + 4);
    const { context, left, at, width } = frame;
    timeAxis(frame, TOP, frame.height);
    context.textBaseline = "middle";
    for (const [thread, lane] of lanes) {
      const middle = TOP + lane * LANE + LANE / 2;
      context.fillStyle = token("--ink");
      context.fillText(thread === HOST ? "host" : `thread ${thread}`, 0, thread === HOST ? middle : middle - 7);
      if (thread !== HOST) {
        context.fillStyle = token("--soft");
        context.fillText(percent(data.occupancy[thread] ?? 0), 0, middle + 8);
      }
    }
    clipped(frame, TOP, frame.height, () => {
      context.textBaseline = "middle";
      const filled = new Map(); // lane -> the last drawn pixel: spans that share it are skipped
      for (const [kernel, name, thread, start, length] of data.spans) {
        if (start > view.to || start + length < view.from) continue;
        const lane = lanes.get(thread);
        const x = Math.max(at(start), left);
        const end = Math.min(at(start + length), width);
        if (end < (filled.get(lane) ?? -1) && chosen === null) continue;
        const wide = Math.max(end - x, 0.75);
        filled.set(lane, x + wide);
        context.globalAlpha = chosen === null || chosen === kernel ? 1 : 0.25;
        context.fillStyle = colorOf(spanKind(name, thread));
        context.fillRect(x, TOP + lane * LANE + 3, wide > 3 ? wide - 0.75 : wide, LANE - 6);
        const room = wide - 10;
        if (room > 24 && context.measureText(data.names[name]).width < room) {
          context.fillStyle = "#ffffff";
          context.fillText(data.names[name], x + 5, TOP + lane * LANE + LANE / 2 + 0.5);
        }
      }
      context.globalAlpha = 1;
    });
  };

  const describeSpan = (index) => {
    const [kernel, name, thread, start, length] = data.spans[index];
    const facts = data.kernels[kernel];
    const nodes = facts.nodes.slice(0, 6).join(", ") + (facts.nodes.length > 6 ? `, and ${facts.nodes.length - 6} more` : "");
    const where = thread === HOST ? "host" : `thread ${thread}`;
    const speed = [facts.flops && rate(facts.flops, "FLOP/s"), facts.bytes && rate(facts.bytes, "B/s")].filter(Boolean);
    const bound = facts.tiles ? `${facts.bound}, ${facts.tiles}` : facts.bound;
    return {
      kernel,
      title: data.names[name],
      lines: [
        nodes,
        `${time(length)} on ${where}, from ${time(start)} on`,
        facts.roofline === null ? "" : `${speed.join(", ")}: ${percent(facts.roofline)} of the roofline (${bound})`,
      ],
    };
  };

  const spanAt = (x, y, reach) => {
    const frame = prepareOnly(timeline);
    const thread = threads[Math.floor((y - TOP) / LANE)];
    const when = view.from + (x - frame.left) / frame.scale;
    let best = null;
    let distance = reach / frame.scale;
    data.spans.forEach(([, , spanThread, start, length], index) => {
      if (spanThread !== thread) return;
      const away = when < start ? start - when : Math.max(0, when - start - length);
      if (away < distance) {
        best = index;
        distance = away;
      }
    });
    return best;
  };
  const prepareOnly = (canvas) => {
    const width = canvas.clientWidth;
    const left = width < 560 ? 58 : 76;
    return { left, scale: (width - left) / (view.to - view.from) };
  };

  // -- arena ----------------------------------------------------------------------------------------------------------

  const arena = byId("arena");
  const STRIP = 46;
  const GAP = 26;
  arena.setAttribute("aria-label", "Tensors in the arena over time. Arrow keys go from one to the next.");
  const peakKernel = data.peak ? data.kernels[data.peak[2]] : null;
  byId("arena-note").textContent = data.arena
    ? `Live bytes above; below, every tensor at its offset in the arena of ${bytes(data.arena)}. ` +
      `The peak, ${bytes(data.peak[1])}, is reached in ${peakKernel.name} (${peakKernel.nodes.slice(0, 3).join(", ")}).`
    : "This run needs no arena.";

  const arenaFrame = () => {
    const height = arena.clientWidth < 560 ? 330 : 400;
    const top = TOP + STRIP + GAP;
    return { height, top, bottom: height - 4, up: (address) => height - 4 - (address / data.arena) * (height - 4 - top) };
  };

  const marks = (most) => {
    let step = 1;
    while (most / step > 5) step *= 2;
    const even = [];
    for (let address = 0; address < most - step / 2; address += step) even.push(address);
    return [...even, most];
  };

  const drawLive = (frame) => {
    const { context, at } = frame;
    const most = data.peak[1] || 1;
    const y = (live) => TOP + STRIP - (live / most) * (STRIP - 4);
    context.beginPath();
    context.moveTo(at(0), y(0));
    let last = 0;
    for (const [when, live] of data.memory) {
      context.lineTo(at(when), y(last));
      context.lineTo(at(when), y(live));
      last = live;
    }
    context.lineTo(at(whole), y(last));
    context.lineTo(at(whole), y(0));
    context.globalAlpha = 0.16;
    context.fillStyle = token("--accent");
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = token("--accent");
    context.lineWidth = 1.25;
    context.stroke();
  };

  const drawPeak = (frame) => {
    const { context, at, width } = frame;
    const x = Math.round(at(data.peak[0])) + 0.5;
    if (x < frame.left || x > width) return;
    context.strokeStyle = token("--peak");
    context.setLineDash([4, 3]);
    context.beginPath();
    context.moveTo(x, TOP);
    context.lineTo(x, frame.height - 4);
    context.stroke();
    context.setLineDash([]);
    const label = `peak ${bytes(data.peak[1])}`;
    const right = x + context.measureText(label).width + 8 < width;
    context.textAlign = right ? "left" : "right";
    context.textBaseline = "middle";
    context.fillStyle = token("--peak");
    context.fillText(label, right ? x + 5 : x - 5, TOP + STRIP + GAP / 2);
    context.textAlign = "left";
  };

  let lit = null; // number of the tensor under the pointer
  const drawArena = () => {
    if (!data.arena) {
      arena.hidden = true;
      return;
    }
    const { height, top, bottom, up } = arenaFrame();
    const frame = prepare(arena, height);
    const { context, at, left } = frame;
    timeAxis(frame, TOP, bottom);
    context.fillStyle = token("--soft");
    context.textBaseline = "top";
    context.fillText("live", 0, TOP);
    context.textBaseline = "middle";
    for (const address of marks(data.arena)) {
      const y = up(address);
      context.fillStyle = token("--soft");
      context.fillText(address ? bytes(address) : "0", 0, Math.min(y, bottom - 6));
      context.fillStyle = token("--line");
      context.fillRect(left, Math.round(y), frame.width - left, 1);
    }
    clipped(frame, TOP, height, () => {
      drawLive(frame);
      data.tensors.forEach(([name, , offset, size, start, end], index) => {
        if (start > view.to || end < view.from) return;
        const x = at(start);
        const y = up(offset + size);
        const wide = Math.max(at(end) - x, 1);
        const tall = Math.max(up(offset) - y, 1);
        const color = COLORS[index % COLORS.length];
        context.globalAlpha = index === lit ? 0.95 : 0.55;
        context.fillStyle = color;
        context.fillRect(x, y, wide, tall);
        context.globalAlpha = 1;
        if (wide > 4 && tall > 4) {
          context.strokeStyle = token("--panel");
          context.lineWidth = 1;
          context.strokeRect(x + 0.5, y + 0.5, wide - 1, tall - 1);
        }
        if (tall > 15 && wide - 10 > context.measureText(name).width) {
          context.fillStyle = token("--ink");
          context.fillText(name, Math.max(x, left) + 5, y + tall / 2);
        }
      });
      drawPeak(frame);
    });
  };

  const describeTensor = (index) => {
    const [name, nodes, offset, size, start, end] = data.tensors[index];
    return {
      title: name,
      lines: [
        nodes.slice(0, 6).join(", ") + (nodes.length > 6 ? `, and ${nodes.length - 6} more` : ""),
        `${bytes(size)} at ${offset.toLocaleString("en")}`,
        `from ${time(start)} to ${time(end)}`,
      ],
    };
  };

  const tensorAt = (x, y, reach) => {
    const frame = prepareOnly(arena);
    const { up } = arenaFrame();
    let best = null;
    let distance = reach;
    data.tensors.forEach(([, , offset, size, start, end], index) => {
      const from = frame.left + (start - view.from) * frame.scale;
      const to = frame.left + (end - view.from) * frame.scale;
      const away = Math.max(from - x, x - to, up(offset + size) - y, y - up(offset), 0);
      if (away < distance) {
        best = index;
        distance = away;
      }
    });
    return best;
  };

  // -- pointer, touch and keys on a chart -------------------------------------------------------------------------------

  const attach = (canvas, count, find, describe, light, place) => {
    const fingers = new Map();
    let dragged = false;
    let current = -1;
    const point = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const tell = (index, x, y) => {
      light(index);
      if (index === null) {
        hideTip();
        return;
      }
      current = index;
      const { title, lines } = describe(index);
      showTip(canvas, title, lines, x, y);
    };
    const look = (event) => {
      tell(find(...point(event), event.pointerType === "touch" ? 14 : 3), event.clientX, event.clientY);
    };
    canvas.addEventListener("pointerdown", (event) => {
      fingers.set(event.pointerId, point(event)[0]);
      dragged = false;
      if (event.pointerType !== "touch") canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = fingers.get(event.pointerId);
      if (before === undefined) {
        look(event);
        return;
      }
      const now = point(event)[0];
      const { left, scale } = prepareOnly(canvas);
      const others = [...fingers].filter(([id]) => id !== event.pointerId).map(([, x]) => x);
      if (others.length) {
        const middle = view.from + ((now + others[0]) / 2 - left) / scale;
        const apart = Math.abs(before - others[0]);
        if (apart > 8) zoom(Math.abs(now - others[0]) / apart, middle);
        dragged = true;
      } else if (dragged || Math.abs(now - before) > 4) {
        show(view.from - (now - before) / scale, view.to - (now - before) / scale);
        dragged = true;
        hideTip();
      } else {
        return;
      }
      fingers.set(event.pointerId, now);
    });
    const release = (event) => {
      fingers.delete(event.pointerId);
      if (event.type === "pointerup" && !dragged) look(event);
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", (event) => {
      fingers.delete(event.pointerId);
      if (event.pointerType !== "touch") tell(null);
    });
    canvas.addEventListener("wheel", (event) => {
      const { left, scale } = prepareOnly(canvas);
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        zoom(Math.exp(-event.deltaY / 300), view.from + (point(event)[0] - left) / scale);
      } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        show(view.from + event.deltaX / scale, view.to + event.deltaX / scale);
      }
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape" || event.key === "Tab") tell(null);
      if (event.key === "+" || event.key === "-") zoom(event.key === "+" ? 2 : 0.5, (view.from + view.to) / 2);
      if (!step || !count) return;
      event.preventDefault();
      current = Math.min(Math.max(current + step, 0), count - 1);
      const [start, end, y] = place(current);
      if (start < view.from || end > view.to) {
        const half = Math.max((view.to - view.from) / 2, (end - start) / 2);
        show((start + end) / 2 - half, (start + end) / 2 + half);
      }
      const box = canvas.getBoundingClientRect();
      const { left, scale } = prepareOnly(canvas);
      tell(current, box.left + left + (Math.max(start, view.from) - view.from) * scale, box.top + y);
    });
    canvas.addEventListener("blur", () => tipOwner() === canvas && tell(null));
  };

  attach(
    timeline, data.spans.length, spanAt, describeSpan,
    (index) => choose(index === null ? null : data.spans[index][0]),
    (index) => [data.spans[index][3], data.spans[index][3] + data.spans[index][4], TOP + (lanes.get(data.spans[index][2]) + 0.5) * LANE],
  );
  attach(
    arena, data.tensors.length, tensorAt, describeTensor,
    (index) => {
      if (lit !== index) {
        lit = index;
        redraw();
      }
    },
    (index) => [data.tensors[index][4], data.tensors[index][5], arenaFrame().up(data.tensors[index][2] + data.tensors[index][3])],
  );
  document.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch" && !event.target.closest("canvas")) {
      hideTip();
      choose(null);
    }
  });

  // -- kernels --------------------------------------------------------------------------------------------------------

  const bar = (part) => svg(
    "svg", { class: "bar", viewBox: "0 0 100 3", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "track", width: 100, height: 3 }),
    svg("rect", { class: "part", width: Math.min(Math.max(part, 0), 1) * 100, height: 3 }),
  );
  const COLUMNS = [
    ["Kernel", (kernel) => kernel.name, (kernel) => [element("strong", kernel.name), nodesOf(kernel)], true],
    ["Time", (kernel) => kernel.time, (kernel) => [time(kernel.time)]],
    ["Share", (kernel) => kernel.share, (kernel) => [percent(kernel.share, 1), bar(kernel.share / most)]],
    ["Launches", (kernel) => kernel.launches, (kernel) => [String(kernel.launches)]],
    ["FLOP/s", (kernel) => kernel.flops, (kernel) => [kernel.flops ? rate(kernel.flops, "") : "–"]],
    ["B/s", (kernel) => kernel.bytes, (kernel) => [kernel.bytes ? rate(kernel.bytes, "") : "–"]],
    ["Of roofline", (kernel) => kernel.roofline ?? -1,
      (kernel) => (kernel.roofline === null ? ["–"] : [percent(kernel.roofline), bar(kernel.roofline)])],
    ["Bound by", (kernel) => kernel.bound, (kernel) => [kernel.bound], true],
  ];
  const most = Math.max(...data.kernels.map((kernel) => kernel.share), 1e-9);
  const SHOWN_NODES = 3;
  const nodesOf = (kernel) => {
    const first = kernel.nodes.slice(0, SHOWN_NODES).join(", ");
    if (kernel.nodes.length <= SHOWN_NODES) {
      const line = element("span", first);
      line.className = "nodes";
      return line;
    }
    const rest = kernel.nodes.slice(SHOWN_NODES);
    const more = element("details", null, element("summary", `${first}, and ${rest.length} more`), rest.join(", "));
    more.className = "nodes";
    return more;
  };

  const body = document.querySelector("#kernels tbody");
  data.kernels.forEach((kernel, number) => {
    const row = element("tr", null);
    for (const [label, , cell] of COLUMNS) {
      const content = element("td", null, ...cell(kernel));
      content.dataset.label = label;
      row.append(content);
    }
    row.addEventListener("pointerenter", (event) => event.pointerType !== "touch" && choose(number));
    row.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && choose(null));
    row.addEventListener("click", (event) => {
      if (!event.target.closest("summary")) choose(chosen === number ? null : number);
    });
    rows.set(number, row);
  });

  const sorting = { column: 1, down: true };
  const headers = [];
  const arrange = () => {
    const [, key] = COLUMNS[sorting.column];
    const query = byId("find").value.trim().toLowerCase();
    const fits = (kernel) => !query || [kernel.name, ...kernel.nodes].some((text) => text.toLowerCase().includes(query));
    const order = data.kernels.map((kernel, number) => [kernel, number]).filter(([kernel]) => fits(kernel));
    order.sort(([a], [b]) => {
      const [left, right] = [key(a), key(b)];
      const ahead = typeof left === "string" ? left.localeCompare(right) : left - right;
      return sorting.down ? -ahead : ahead;
    });
    body.replaceChildren(...order.map(([, number]) => rows.get(number)));
    headers.forEach((header, column) => {
      if (column === sorting.column) header.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
      else header.removeAttribute("aria-sort");
    });
    byId("order").value = String(sorting.column);
    const products = Object.entries(data.peakProducts).map(([kind, speed]) => `, ${rate(speed, "FLOP/s")} of ${kind}`);
    const roof = `${rate(data.peakFlops, "FLOP/s")}${products.join("")} and ${rate(data.peakBandwidth, "B/s")}`;
    byId("kernels-note").textContent =
      `${order.length} of ${data.kernels.length}. The roofline is ${roof}, measured on the same number of threads; ` +
      "more than 100 % means cached data, or an algorithm that needs fewer operations.";
  };
  COLUMNS.forEach(([label, , , text], column) => {
    const button = element("button", label);
    button.type = "button";
    button.addEventListener("click", () => {
      sorting.down = sorting.column === column ? !sorting.down : !text;
      sorting.column = column;
      arrange();
    });
    const header = element("th", null, button);
    header.scope = "col";
    headers.push(header);
    const option = element("option", label);
    option.value = String(column);
    byId("order").append(option);
  });
  document.querySelector("#kernels thead tr").append(...headers);
  byId("order").addEventListener("change", (event) => {
    sorting.column = Number(event.target.value);
    sorting.down = !COLUMNS[sorting.column][3];
    arrange();
  });
  byId("find").addEventListener("input", arrange);
  arrange();

  // -- start ----------------------------------------------------------------------------------------------------------

  charts.push({ draw: drawTimeline }, { draw: drawArena });
  new ResizeObserver(redraw).observe(document.body);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  redraw();
})();
