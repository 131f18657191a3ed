// The page: camera, selection, pointer and keys, and search.
const weftView = (() => {
  const { byId, data, element, svg, showTip, hideTip, time, bytes, percent } = weft;
  const { values, works, nodeBoxes, root } = scene;
  const canvas = byId("graph");
  const map = byId("map");
  const main = document.querySelector("main");
  const isNarrow = () => window.matchMedia("(max-width: 46rem)").matches;

  // -- the camera -----------------------------------------------------------------------------------------------------

  const camera = { x: 0, y: 0, zoom: 1 }; // scene coordinates of the upper left corner
  const look = { selected: null, hits: null, value: null, work: null };
  let queued = false;
  const redraw = () => {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => {
      queued = false;
      draw();
    });
  };
  const sized = (target, width, height) => {
    const ratio = window.devicePixelRatio || 1;
    if (target.width !== Math.round(width * ratio) || target.height !== Math.round(height * ratio)) {
      target.width = Math.round(width * ratio);
      target.height = Math.round(height * ratio);
    }
    const context = target.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  };
  const area = () => ({ left: camera.x, top: camera.y, right: camera.x + canvas.clientWidth / camera.zoom, bottom: camera.y + canvas.clientHeight / camera.zoom });
  const dims = () => {
    if (look.work === null) return null;
    const lit = new Set(works[look.work].nodes.filter((one) => typeof one === "number").map((one) => scene.visible(nodeBoxes[one])));
    return (box) => lit.has(box);
  };
  const draw = () => {
    const context = sized(canvas, canvas.clientWidth, canvas.clientHeight);
    context.save();
    context.scale(camera.zoom, camera.zoom);
    context.translate(-camera.x, -camera.y);
    drawing.draw(drawing.canvasPen(context), area(), { ...look, zoom: camera.zoom, dims: dims() });
    context.restore();
    drawMap();
  };
  const LEAST = 0.02;
  const MOST = 3;
  const zoomAt = (factor, x, y) => {
    const zoom = Math.min(Math.max(camera.zoom * factor, LEAST), MOST);
    camera.x += x / camera.zoom - x / zoom;
    camera.y += y / camera.zoom - y / zoom;
    camera.zoom = zoom;
    hideTip();
    redraw();
  };
  const zoomMiddle = (factor) => zoomAt(factor, canvas.clientWidth / 2, canvas.clientHeight / 2);
  const frame = (box, most = 1) => {
    const pad = 24;
    const zoom = Math.min((canvas.clientWidth - 2 * pad) / box.width, (canvas.clientHeight - 2 * pad) / box.height, most);
    camera.zoom = Math.max(zoom, LEAST);
    camera.x = box.x + box.width / 2 - canvas.clientWidth / 2 / camera.zoom;
    camera.y = box.y + box.height / 2 - canvas.clientHeight / 2 / camera.zoom;
    redraw();
  };
  const fit = () => frame({ x: 0, y: 0, width: root.width, height: root.height }, 1.2);
  /** Fit the graph if it stays readable, else show its beginning. */
  const begin = () => {
    fit();
    const readable = isNarrow() ? 0.55 : 0.62;
    if (camera.zoom >= readable) return;
    camera.zoom = Math.max(readable, Math.min(1, (canvas.clientWidth - 48) / root.width));
    const inputs = root.members.filter((box) => box.kind === "input");
    const middle = inputs.length ? inputs.reduce((sum, box) => sum + box.x + box.width / 2, 0) / inputs.length : root.width / 2;
    camera.x = middle - canvas.clientWidth / 2 / camera.zoom;
    if (root.width * camera.zoom < canvas.clientWidth) camera.x = root.width / 2 - canvas.clientWidth / 2 / camera.zoom;
    camera.y = -(isNarrow() ? 70 : 40) / camera.zoom;
    redraw();
  };
  const centre = (box) => {
    if (camera.zoom < 0.6) camera.zoom = 0.9;
    const tall = Math.min(box.height, (canvas.clientHeight / camera.zoom) * 0.7);
    camera.x = box.x + box.width / 2 - canvas.clientWidth / 2 / camera.zoom;
    camera.y = box.y + tall / 2 - canvas.clientHeight / 2 / camera.zoom;
    redraw();
  };
  const keepInSight = (box) => {
    const visible = area();
    const margin = 30 / camera.zoom;
    if (box.x < visible.left + margin || box.x + box.width > visible.right - margin || box.y < visible.top + margin || box.y + Math.min(box.height, 80) > visible.bottom - margin) centre(box);
  };

  // -- the small map --------------------------------------------------------------------------------------------------

  let sketch = null; // cached boxes of the map
  const mapFrame = () => {
    const scale = Math.min(120 / root.width, 170 / root.height);
    return { scale, width: Math.max(24, root.width * scale + 12), height: Math.max(24, root.height * scale + 12) };
  };
  const drawMap = () => {
    const { left, top, right, bottom } = area();
    const all = left <= 0 && top <= 0 && right >= root.width && bottom >= root.height;
    map.hidden = all || isNarrow();
    if (map.hidden) return;
    const { scale, width, height } = mapFrame();
    map.style.width = `${width}px`;
    map.style.height = `${height}px`;
    if (!sketch) {
      sketch = document.createElement("canvas");
      const pen = sized(sketch, width, height);
      const plain = weft.token("--soft");
      pen.globalAlpha = 0.8;
      for (const box of scene.opened(root)) {
        if (box.open) continue;
        pen.fillStyle = drawing.paint(box).fill ?? plain;
        pen.fillRect(6 + box.x * scale, 6 + box.y * scale, Math.max(box.width * scale, 1), Math.max(box.height * scale, 1));
      }
    }
    const context = sized(map, width, height);
    context.drawImage(sketch, 0, 0, width, height);
    context.translate(6, 6);
    context.strokeStyle = weft.token("--accent");
    context.lineWidth = 1.5;
    const clip = (value, most) => Math.min(Math.max(value, -4), most + 4);
    const [x, y] = [clip(left * scale, root.width * scale), clip(top * scale, root.height * scale)];
    context.strokeRect(x, y, clip(right * scale, root.width * scale) - x, clip(bottom * scale, root.height * scale) - y);
  };
  const goOnMap = (event) => {
    const { scale } = mapFrame();
    const box = map.getBoundingClientRect();
    camera.x = (event.clientX - box.left - 6) / scale - canvas.clientWidth / 2 / camera.zoom;
    camera.y = (event.clientY - box.top - 6) / scale - canvas.clientHeight / 2 / camera.zoom;
    redraw();
  };
  map.addEventListener("pointerdown", (event) => {
    map.setPointerCapture(event.pointerId);
    goOnMap(event);
  });
  map.addEventListener("pointermove", (event) => event.buttons && goOnMap(event));

  // -- folding and selecting ------------------------------------------------------------------------------------------

  const arrange = (anchor) => {
    const before = anchor && { x: anchor.x, y: anchor.y };
    scene.arrange();
    drawing.renew();
    look.mates = mates();
    legend();
    if (look.hits) find(byId("find").value, true);
    if (before) {
      camera.x += anchor.x - before.x;
      camera.y += anchor.y - before.y;
    }
    redraw();
  };
  const toggle = (box) => {
    if (!scene.canOpen(box)) return;
    box.open = !box.open;
    arrange(box);
    camera.x = clampX(camera.x, box);
    announce(box);
    if (look.selected === box) panel.select(box);
  };
  const clampX = (x, box) => {
    const wide = canvas.clientWidth / camera.zoom;
    return box.width < wide ? Math.min(Math.max(x, box.x + box.width - wide + 20), Math.max(box.x - 20, box.x + box.width - wide + 20)) : x;
  };
  /** The visible boxes of the nodes that are fused with the selected one. */
  const mates = () => {
    const fused = look.selected?.kind === "node" ? look.selected.node.works.flatMap((work) => works[work].nodes) : [];
    return new Set(fused.filter((one) => typeof one === "number").map((one) => scene.visible(nodeBoxes[one])));
  };
  const describe = (box) => {
    if (box.kind === "node") {
      const out = box.node.outputs.find((value) => value >= 0);
      return [box.node.op, box.node.name, out === undefined ? "" : values[out].type].filter(Boolean).join(", ");
    }
    if (box.kind === "input" || box.kind === "output") return `${box.kind} ${box.label}, ${values[box.value]?.type ?? ""}`;
    if (box.kind === "missing") return `${box.label}, undefined`;
    return `${box.label}, ${box.count} nodes, ${box.open ? "open" : "closed"}`;
  };
  const announce = (box) => {
    byId("said").textContent = describe(box);
  };
  let followed = ""; // the hash that the page set itself
  const select = (box) => {
    look.selected = box;
    look.work = null;
    look.mates = mates();
    panel.light(null);
    if (box) announce(box);
    if (box && main.classList.contains("alone") && !isNarrow()) showSide(true);
    panel.select(box);
    followed = box?.kind === "node" ? `#${encodeURIComponent(box.node.name)}` : "";
    try {
      if (followed || location.hash) history.replaceState(null, "", followed || location.pathname + location.search);
    } catch {
      followed = ""; // in a frame, or after too many changes
    }
    redraw();
  };
  const go = (box, fold = false) => {
    if (box.node?.constant) return;
    if (scene.reveal(box)) arrange();
    if (fold) toggle(box);
    select(box);
    centre(box);
  };
  const light = (work) => {
    look.selected = null;
    look.work = look.work === work ? null : work;
    panel.light(look.work);
    const boxes = works[work].nodes.filter((one) => typeof one === "number").map((one) => nodeBoxes[one]);
    if (look.work !== null && boxes.length) {
      if (boxes.some((box) => scene.reveal(box))) arrange();
      const left = Math.min(...boxes.map((box) => box.x));
      const top = Math.min(...boxes.map((box) => box.y));
      const right = Math.max(...boxes.map((box) => box.x + box.width));
      const bottom = Math.max(...boxes.map((box) => box.y + box.height));
      frame({ x: left - 60, y: top - 60, width: right - left + 120, height: bottom - top + 120 });
    }
    redraw();
  };
  panel.connect(go, light);

  // -- hit tests -----------------------------------------------------------------------------------------------------

  const toScene = (x, y) => [camera.x + x / camera.zoom, camera.y + y / camera.zoom];
  const boxAt = (x, y) => {
    let hit = null;
    for (const box of scene.opened(root)) {
      if (x < box.x || x > box.x + box.width || y < box.y || y > box.y + box.height) continue;
      if (!box.open || y < box.y + layered.HEAD) hit = box;
    }
    return hit;
  };
  const onGlyph = (box, x, y) => {
    const [left, top, size] = drawing.glyph(box);
    const reach = 6;
    return x > left - reach && x < left + size + reach && y > top - reach && y < top + size + reach;
  };
  const lineAt = (x, y) => {
    const reach = 6 / camera.zoom;
    let [best, nearest] = [null, reach];
    for (const box of [root, ...scene.opened(root)]) {
      if (!box.open) continue;
      for (const line of box.lines) {
        if (y < line.y1 + box.y || y > (line.through ?? line.y2) + box.y) continue;
        const away = Math.abs(box.x + layered.lineX(line, y - box.y) - x);
        if (away < nearest) [best, nearest] = [line, away];
      }
    }
    return best;
  };
  const tipFor = (box) => {
    if (box.kind === "node") {
      const lines = [box.node.name];
      for (const value of box.node.outputs) if (value >= 0 && values[value].type) lines.push(values[value].type);
      for (const number of box.node.works.slice(0, 3)) {
        const work = works[number];
        const more = work.size > 1 ? `, ${work.size} fused nodes` : "";
        lines.push(`${work.name}${more}${work.seconds === undefined ? "" : `, ${time(work.seconds * 1e6)}`}`);
      }
      return [box.node.op, lines.slice(0, 6)];
    }
    if (box.kind === "input" || box.kind === "output") return [box.label, [`${box.kind} ${values[box.value]?.type ?? ""}`]];
    if (box.kind === "missing") return [box.label, ["This value is undefined."]];
    const lines = [`${box.count} nodes: ${scene.summary(box).slice(0, 5).join(", ")}`];
    if (data.run) lines.push(`${time(drawing.boxTime(box) * 1e6)} of ${time(data.run.seconds * 1e6)}`);
    return [scene.path(box).join(" / "), lines];
  };

  // -- pointer --------------------------------------------------------------------------------------------------------

  const fingers = new Map();
  let moved = false;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, place(event));
    moved = fingers.size > 1;
    hideTip();
  });
  canvas.addEventListener("pointermove", (event) => {
    const now = place(event);
    if (!fingers.has(event.pointerId)) {
      if (event.pointerType !== "touch") hover(event, now);
      return;
    }
    const before = fingers.get(event.pointerId);
    if (!moved && Math.hypot(now[0] - before[0], now[1] - before[1]) < 4) return;
    moved = true;
    canvas.classList.add("busy");
    if (fingers.size === 2) {
      const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
      const apart = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
      const middle = [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2];
      if (apart(before, other) > 8) zoomAt(apart(now, other) / apart(before, other), ...middle);
      camera.x -= (now[0] - before[0]) / 2 / camera.zoom;
      camera.y -= (now[1] - before[1]) / 2 / camera.zoom;
    } else {
      camera.x -= (now[0] - before[0]) / camera.zoom;
      camera.y -= (now[1] - before[1]) / camera.zoom;
    }
    fingers.set(event.pointerId, now);
    redraw();
  });
  const lift = (event) => {
    const wasDown = fingers.delete(event.pointerId);
    if (!fingers.size) canvas.classList.remove("busy");
    if (!wasDown || event.type !== "pointerup" || moved) return;
    const [x, y] = toScene(...place(event));
    const box = boxAt(x, y);
    if (!box) {
      select(null);
    } else if (scene.canOpen(box) && (onGlyph(box, x, y) || (!box.open && box.kind === "scope"))) {
      toggle(box);
      select(box);
    } else {
      select(box);
    }
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("dblclick", (event) => {
    const box = boxAt(...toScene(...place(event)));
    if (box && scene.canOpen(box) && box.kind === "node") toggle(box);
  });
  canvas.addEventListener("pointerleave", () => {
    hideTip();
    if (look.value !== null) {
      look.value = null;
      redraw();
    }
  });
  const hover = (event, [px, py]) => {
    const [x, y] = toScene(px, py);
    const box = boxAt(x, y);
    const line = box ? null : lineAt(x, y);
    canvas.classList.toggle("over", Boolean(box));
    const value = line?.value ?? null;
    if (value !== look.value) {
      look.value = value;
      redraw();
    }
    if (box) showTip(canvas, ...tipFor(box), event.clientX, event.clientY);
    else if (line) showTip(canvas, values[line.value].name, [values[line.value].type, values[line.value].bytes ? bytes(values[line.value].bytes) : ""], event.clientX, event.clientY);
    else hideTip();
  };
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const isPad = event.deltaMode === 0 && !event.ctrlKey && (event.deltaX !== 0 || Math.abs(event.deltaY) < 40 || !Number.isInteger(event.deltaY));
    if (event.shiftKey || (isPad && !event.metaKey)) {
      camera.x += (event.shiftKey && !event.deltaX ? event.deltaY : event.deltaX) / camera.zoom;
      camera.y += event.shiftKey ? 0 : event.deltaY / camera.zoom;
      hideTip();
      redraw();
    } else {
      const step = event.deltaMode === 1 ? event.deltaY * 30 : event.deltaY;
      zoomAt(Math.exp(-Math.max(-240, Math.min(240, step)) / (event.ctrlKey && Math.abs(step) < 40 ? 90 : 420)), ...place(event));
    }
  }, { passive: false });

  // -- keys -----------------------------------------------------------------------------------------------------------

  const beside = (box, step) => {
    const level = box.parent.members.filter((other) => other !== box && Math.abs(other.y + other.height / 2 - box.y - box.height / 2) < Math.max(box.height, other.height) / 2 + 4);
    const side = level.filter((other) => Math.sign(other.x - box.x) === step);
    return side.sort((a, b) => Math.abs(a.x - box.x) - Math.abs(b.x - box.x))[0];
  };
  const along = (box, down) => {
    const neighbours = new Set();
    for (const [from, to] of scene.lines) {
      const [near, far] = down ? [from, to] : [to, from];
      if (scene.visible(near) === box && scene.visible(far) !== box) neighbours.add(scene.visible(far));
    }
    const ordered = [...neighbours].sort((a, b) => Math.abs(a.x + a.width / 2 - box.x - box.width / 2) - Math.abs(b.x + b.width / 2 - box.x - box.width / 2));
    return ordered.sort((a, b) => (down ? a.y - b.y : b.y - a.y))[0] ?? (box.open ? box.members[down ? 0 : box.members.length - 1] : undefined);
  };
  const step = (key) => {
    const from = look.selected ?? null;
    if (!from) return root.members.find((box) => box.kind === "input") ?? root.members[0];
    if (key === "ArrowDown" || key === "ArrowUp") return along(from, key === "ArrowDown");
    return beside(from, key === "ArrowRight" ? 1 : -1);
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.startsWith("Arrow")) {
      event.preventDefault();
      const next = step(event.key);
      if (next) {
        select(next);
        keepInSight(next);
      }
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (look.selected && scene.canOpen(look.selected)) {
        toggle(look.selected);
        keepInSight(look.selected);
      } else if (look.selected) {
        showSide(true);
        panel.select(look.selected);
        byId("sheet").focus();
      }
    } else if (event.key === "Backspace" && look.selected?.parent?.parent) {
      select(look.selected.parent);
      toggle(look.selected);
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const act = { "+": () => zoomMiddle(1.4), "=": () => zoomMiddle(1.4), "-": () => zoomMiddle(1 / 1.4), f: fit, "/": () => byId("find").focus(), Escape: letGo }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  const letGo = () => {
    hideTip();
    if (look.selected || look.work !== null) select(null);
    else if (isNarrow()) showSide(false);
    canvas.focus();
  };

  // -- search ---------------------------------------------------------------------------------------------------------

  const field = byId("find");
  const hits = byId("hits");
  const MOST_HITS = 100;
  let index = null;
  let marked = -1;
  const entries = () => {
    index ??= scene.boxes.filter((box) => box.parent && box.kind !== "body" && !box.node?.constant).map((box) => {
      const words = scene.path(box);
      if (box.node) {
        words.push(box.node.name, box.node.domain);
        const weights = box.node.inputs.filter((value) => value >= 0 && values[value].weight >= 0);
        for (const value of [...weights, ...box.node.outputs]) if (value >= 0) words.push(values[value].name, values[value].type, scene.shape(values[value].type));
      } else if (box.value !== undefined) words.push(values[box.value]?.type ?? "");
      return [box, words.join("\n").toLowerCase()];
    });
    return index;
  };
  const find = (text, quiet = false) => {
    const query = text.trim().toLowerCase().replace(/\s*[x×]\s*(?=\d)/g, "×").split(/\s+/).filter(Boolean);
    const matches = query.length ? entries().filter(([, words]) => query.every((word) => words.includes(word))).map(([box]) => box) : [];
    look.hits = query.length ? new Set(matches.filter((box) => !box.open).map(scene.visible)) : null;
    redraw();
    if (quiet) return;
    const rank = (box) => (box.label.toLowerCase() === query[0] ? 0 : box.label.toLowerCase().startsWith(query[0]) ? 1 : box.node?.name.toLowerCase().includes(query[0]) ? 2 : 3);
    const best = matches.map((box) => [rank(box), box]).sort((a, b) => a[0] - b[0]).slice(0, MOST_HITS).map(([, box]) => box);
    marked = -1;
    hits.replaceChildren(...best.map((box, at) => {
      const around = scene.path(box).slice(0, -1).join("/");
      const where = box.kind === "node" ? (box.node.name.includes("/") || !around ? box.node.name : `${box.node.name} in ${around}`) : box.kind === "missing" ? "undefined" : box.kind === "scope" ? `${box.count} nodes in ${around || "the model"}` : `${box.kind} ${values[box.value]?.type ?? ""}`;
      const item = element("li", box.label || "?", element("small", where));
      item.id = `hit-${at}`;
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", "false");
      item.addEventListener("pointerdown", (event) => event.preventDefault());
      item.addEventListener("click", () => {
        go(box);
        closeHits();
        canvas.focus();
      });
      return item;
    }));
    if (query.length && (matches.length > MOST_HITS || !matches.length)) {
      const note = element("li", null, element("small", matches.length ? `and ${matches.length - MOST_HITS} more` : "No node, operator, shape or weight matches all words."));
      note.setAttribute("role", "presentation");
      hits.append(note);
    }
    hits.hidden = !query.length;
    field.setAttribute("aria-expanded", String(!hits.hidden));
    byId("said").textContent = query.length ? `${matches.length} found` : "";
  };
  const closeHits = () => {
    hits.hidden = true;
    field.setAttribute("aria-expanded", "false");
    field.removeAttribute("aria-activedescendant");
  };
  const mark = (at) => {
    const options = hits.querySelectorAll("[role=option]");
    if (!options.length) return;
    options[marked]?.setAttribute("aria-selected", "false");
    marked = (at + options.length) % options.length;
    options[marked].setAttribute("aria-selected", "true");
    options[marked].scrollIntoView({ block: "nearest" });
    field.setAttribute("aria-activedescendant", options[marked].id);
  };
  field.addEventListener("input", () => find(field.value));
  field.addEventListener("focus", () => field.value && find(field.value));
  field.addEventListener("blur", () => setTimeout(closeHits, 150));
  field.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      mark(marked + (event.key === "ArrowDown" ? 1 : -1));
    } else if (event.key === "Enter") {
      hits.querySelectorAll("[role=option]")[Math.max(marked, 0)]?.click();
    } else if (event.key === "Escape") {
      field.value = "";
      find("");
      closeHits();
      canvas.focus();
    }
  });

  // -- toolbar --------------------------------------------------------------------------------------------------------

  const showSide = (open) => {
    main.classList.toggle("alone", !open);
    byId("side").setAttribute("aria-expanded", String(open));
    redraw();
  };
  const legend = () => {
    sketch = null;
    const mode = drawing.MODES[drawing.mode()];
    const swatch = (fill, text) => element("span", null, svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { width: 10, height: 10, rx: 2, fill })), document.createTextNode(text));
    const parts = [];
    if (mode.palette) parts.push(...mode.palette.order.slice(0, 8).map((key) => swatch(mode.palette.of.get(key), scene.short(key, 30))), ...(mode.palette.order.length > 8 ? [swatch(weft.OTHER, "others")] : []));
    else if (mode.part) {
      const steps = Array.from({ length: 12 }, (_, at) => svg("rect", { x: at * 5, width: 5.2, height: 10, fill: drawing.heat(at / 11) }));
      parts.push(element("span", null, document.createTextNode("0"), svg("svg", { class: "scale", viewBox: "0 0 60 10", preserveAspectRatio: "none", "aria-hidden": "true" }, ...steps), document.createTextNode(mode.most())));
    } else parts.push(element("span", "Same colour: one fused group. No colour: no work at run time."));
    byId("legend").classList.toggle("words", !mode.palette && !mode.part);
    byId("legend").replaceChildren(...parts);
  };
  for (const [name, { label }] of Object.entries(drawing.MODES)) {
    const option = element("option", label);
    option.value = name;
    byId("colour").append(option);
  }
  byId("colour").value = drawing.mode();
  byId("colour").addEventListener("change", (event) => {
    drawing.setMode(event.target.value);
    legend();
    redraw();
  });
  const press = (id, action) => byId(id).addEventListener("click", action);
  press("smaller", () => zoomMiddle(1 / 1.4));
  press("larger", () => zoomMiddle(1.4));
  press("fit", fit);
  press("unfold", () => {
    scene.openSome(scene.MOST_UNFOLDED);
    arrange();
    begin();
  });
  press("fold", () => {
    scene.foldAll();
    if (look.selected) look.selected = scene.visible(look.selected);
    arrange();
    begin();
  });
  press("export", () => {
    const address = URL.createObjectURL(new Blob([drawing.asSvg()], { type: "image/svg+xml" }));
    const anchor = element("a", null);
    anchor.href = address;
    anchor.download = `${data.title.replace(/\.onnx$/, "")}.svg`;
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  });
  const repaint = () => {
    drawing.setMode(drawing.mode());
    legend();
    redraw();
  };
  press("theme", () => {
    const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    repaint();
  });
  press("side", () => showSide(main.classList.contains("alone")));

  // -- start ----------------------------------------------------------------------------------------------------------

  if (data.problem) {
    byId("problem").textContent = `weft cannot compile this model, so the page has no kernels. ${data.problem}`;
    byId("problem").hidden = false;
  }
  const follow = () => {
    let name = "";
    try {
      name = decodeURIComponent(location.hash.slice(1));
    } catch {
      return; // a hash that is not valid
    }
    const box = name && nodeBoxes.find((each) => each?.node.name === name);
    if (box && location.hash !== followed) go(box);
  };
  document.querySelector("h1").title = data.title;
  if (isNarrow()) showSide(false);
  scene.arrange();
  drawing.renew();
  legend();
  panel.show("model");
  begin();
  follow();
  window.addEventListener("hashchange", follow);
  let width = canvas.clientWidth;
  new ResizeObserver(() => {
    camera.x -= (canvas.clientWidth - width) / 2 / camera.zoom;
    width = canvas.clientWidth;
    redraw();
  }).observe(canvas);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  draw();
  performance.mark("weft-drawn");
  return { area, select, go };
})();
