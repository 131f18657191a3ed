// Draw the scene on a canvas or as SVG: boxes, lines and labels, coloured by kernel, operator, time or other properties.
const drawing = (() => {
  const { data, COLORS, OTHER, bytes, time, percent, token } = weft;
  const { nodes, values, works } = scene;

  // -- colours --------------------------------------------------------------------------------------------------------

  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const HUES = ["#3f6f9f", "#b8652f", "#4a8748", "#8a5f93", "#8f7420", "#2f7f86", "#b04f52", "#6b6459", "#5b5ea6", "#a1527a", "#5f7f2f", "#356f5f"];
  const hue = (number) => HUES[(number * 5) % HUES.length];
  const mix = (from, to, part) => {
    const parts = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
    const [a, b] = [parts(from), parts(to)];
    return `#${a.map((value, at) => Math.round(value + (b[at] - value) * part).toString(16).padStart(2, "0")).join("")}`;
  };
  const heat = (part) => {
    const [cold, warm, hot] = isDark() ? ["#23282c", "#8a4b2a", "#ff6b4a"] : ["#ffffff", "#f3b376", "#b3261e"];
    return part < 0.5 ? mix(cold, warm, part * 2) : mix(warm, hot, part * 2 - 1);
  };
  const inkOn = (color) => {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
    return 0.299 * r + 0.587 * g + 0.114 * b > 150 ? "#1f2328" : "#ffffff";
  };
  const ranked = (keys) => {
    const counts = new Map();
    for (const key of keys) if (key) counts.set(key, (counts.get(key) ?? 0) + 1);
    return [...counts].sort((a, b) => b[1] - a[1]).map(([key]) => key);
  };
  const palette = (keys) => {
    const order = ranked(keys);
    return { order, of: new Map(order.map((key, at) => [key, at < COLORS.length ? COLORS[at] : OTHER])) };
  };

  const shown = nodes.filter((node) => !node.constant);
  const seconds = (work) => works[work].seconds ?? 0;
  const mainWork = (node) => node.works.reduce((best, work) => (best === undefined || seconds(work) > seconds(best) ? work : best), undefined);
  const nodeTime = (node) => node.works.reduce((sum, work) => sum + seconds(work), 0);
  const nodeBytes = (node) => node.outputs.reduce((sum, value) => sum + (value >= 0 ? values[value].bytes ?? 0 : 0), 0);
  const nodeType = (node) => (node.outputs[0] >= 0 ? scene.dtype(values[node.outputs[0]].type) : "");
  const nodeDevice = (node) => (node.works.length ? works[mainWork(node)].device : "");
  const ops = palette(shown.map((node) => node.op));
  const types = palette(shown.map(nodeType));
  const devices = palette(shown.map(nodeDevice));
  let mostTime = 1; // of a visible box
  const mostBytes = shown.reduce((most, node) => Math.max(most, nodeBytes(node)), 0) || 1;

  const MODES = {
    ...(works.length ? { kernel: { label: "kernel", of: (node) => (node.works.length ? hue(mainWork(node)) : null) } } : {}),
    op: { label: "operator", of: (node) => ops.of.get(node.op), palette: ops },
    ...(data.run ? { time: { label: "time", part: (node) => nodeTime(node) / mostTime, most: () => time(mostTime * 1e6) } } : {}),
    memory: { label: "memory of results", part: (node) => Math.sqrt(nodeBytes(node) / mostBytes), most: () => bytes(mostBytes) },
    type: { label: "type of results", of: (node) => types.of.get(nodeType(node)), palette: types },
    ...(works.length ? { device: { label: "device", of: (node) => devices.of.get(nodeDevice(node)), palette: devices } } : {}),
  };
  let mode = data.run ? "time" : works.length ? "kernel" : "op";
  const setMode = (name) => {
    mode = name;
    for (const box of scene.boxes) box.paint = undefined;
  };
  /** Update the scale of times after the visible boxes changed: the slowest has the warmest colour. */
  const renew = () => {
    if (!data.run) return;
    mostTime = 0;
    for (const box of scene.opened(scene.root)) if (!box.open) mostTime = Math.max(mostTime, box.kind === "node" && !box.members.length ? nodeTime(box.node) : boxTime(box));
    mostTime ||= 1;
    if (mode === "time") setMode(mode);
  };
  const boxTime = (box) => [...box.works].reduce((sum, [work, times]) => sum + (seconds(work) * times) / works[work].size, 0);

  const isPill = (box) => box.kind === "input" || box.kind === "output" || box.kind === "missing";

  /** The fill of a box, null if neutral; for a closed scope also the fills of its members with their counts. */
  const paint = (box) => {
    if (box.paint !== undefined) return box.paint;
    const { of, part } = MODES[mode];
    const fillOf = (node) => (part ? heat(part(node)) : (of(node) ?? null));
    if (box.kind === "node" && !box.members.length) return (box.paint = { fill: fillOf(box.node) });
    if (isPill(box)) return (box.paint = { fill: null });
    const counts = new Map();
    for (const leaf of scene.leaves(box)) {
      const fill = fillOf(leaf.node);
      counts.set(fill, (counts.get(fill) ?? 0) + 1);
    }
    let fill = null;
    if (mode === "time") fill = heat(Math.min(1, boxTime(box) / mostTime));
    const parts = [...counts].sort((a, b) => (a[0] === null) - (b[0] === null) || b[1] - a[1]);
    return (box.paint = { fill, parts: mode === "time" ? [] : parts });
  };

  // -- pens -----------------------------------------------------------------------------------------------------------

  const canvasPen = (context) => ({
    rect: (x, y, width, height, radius, fill, stroke, line = 1) => {
      context.beginPath();
      if (radius && context.roundRect) context.roundRect(x, y, width, height, radius);
      else context.rect(x, y, width, height);
      if (fill) {
        context.fillStyle = fill;
        context.fill();
      }
      if (stroke) {
        context.strokeStyle = stroke;
        context.lineWidth = line;
        context.stroke();
      }
    },
    text: (content, x, y, size, weight, fill, align = "left") => {
      context.font = `${weight} ${size}px ${scene.FAMILY}`;
      context.textAlign = align;
      context.textBaseline = "middle";
      context.fillStyle = fill;
      context.fillText(content, x, y);
    },
    line: (points, stroke, width) => {
      context.beginPath();
      trace(points, (x, y) => context.moveTo(x, y), (x, y) => context.lineTo(x, y), (...c) => context.bezierCurveTo(...c));
      context.strokeStyle = stroke;
      context.lineWidth = width;
      context.stroke();
    },
    arrow: (x, y, size, fill) => {
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(x - size * 0.6, y - size);
      context.lineTo(x + size * 0.6, y - size);
      context.fillStyle = fill;
      context.fill();
    },
    fade: (part) => (context.globalAlpha = part),
  });

  const escaped = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "�");
  const svgPen = (out) => {
    const n = (value) => Number(value.toFixed(1));
    let alpha = "";
    return {
      rect: (x, y, width, height, radius, fill, stroke, line = 1) => {
        out.push(`<rect x="${n(x)}" y="${n(y)}" width="${n(width)}" height="${n(height)}" rx="${radius}" fill="${fill || "none"}"${stroke ? ` stroke="${stroke}" stroke-width="${line}"` : ""}${alpha}/>`);
      },
      text: (content, x, y, size, weight, fill, align = "left") => {
        const anchor = { left: "start", center: "middle", right: "end" }[align];
        out.push(`<text x="${n(x)}" y="${n(y)}" font-size="${size}" font-weight="${weight}" fill="${fill}" text-anchor="${anchor}" dominant-baseline="central"${alpha}>${escaped(content)}</text>`);
      },
      line: (points, stroke, width) => {
        const parts = [];
        trace(points, (x, y) => parts.push(`M${n(x)} ${n(y)}`), (x, y) => parts.push(`L${n(x)} ${n(y)}`), (...c) => parts.push(`C${c.map(n).join(" ")}`));
        out.push(`<path d="${parts.join("")}" fill="none" stroke="${stroke}" stroke-width="${width}"${alpha}/>`);
      },
      arrow: (x, y, size, fill) => out.push(`<path d="M${n(x)} ${n(y)}l${n(-size * 0.6)} ${n(-size)}h${n(size * 1.2)}z" fill="${fill}"${alpha}/>`),
      fade: (part) => (alpha = part < 1 ? ` opacity="${part}"` : ""),
    };
  };

  const trace = ([x1, y1, x2, y2, start, through], move, line, curve) => {
    move(x1, y1);
    if (start > y1) line(x1, start);
    const top = Math.max(start, y1);
    const bend = Math.abs(x2 - x1) < 0.5 ? 0 : Math.min((y2 - top) / 2, 40);
    if (bend) curve(x1, top + bend, x2, y2 - bend, x2, y2);
    else line(x2, y2);
    if (through > y2) line(x2, through);
  };

  // -- drawing --------------------------------------------------------------------------------------------------------

  const GLYPH = 15;
  /** The position of the plus or minus sign of a box: [x, y, size]. */
  const glyph = (box) => (box.open ? [box.x + 9, box.y + 8, GLYPH] : [box.x + box.width - GLYPH - 8, box.y + 8, GLYPH]);

  /**
   * Draw the boxes and lines inside an area. `look` has the selected box, search hits, highlighted work, hovered value
   * and the zoom, which decides the level of detail.
   */
  const draw = (pen, area, look) => {
    const colors = Object.fromEntries(["ink", "soft", "line", "panel", "accent", "grid", "page", "peak"].map((name) => [name, token(`--${name}`)]));
    const edge = isDark() ? "#5b646b" : "#a9b0b5";
    colors.rim = isDark() ? "#474f55" : mix(colors.line, "#667079", 0.35);
    colors.inner = mix(colors.page, colors.ink, 0.035);
    const inside = (x, y, width, height) => x < area.right && x + width > area.left && y < area.bottom && y + height > area.top;
    const frames = [scene.root];
    const boxes = [];
    for (const box of scene.opened(scene.root)) {
      if (box.open) frames.push(box);
      if (inside(box.x - 4, box.y - 4, box.width + 8, box.height + 8)) (box.open ? drawFrame : (_, each) => boxes.push(each))(pen, box, colors, look);
    }
    for (const frame of frames) {
      if (frame !== scene.root && !inside(frame.x, frame.y, frame.width, frame.height)) continue;
      drawLines(pen, frame, { area, colors, edge, look });
      if (look.zoom > 0.68) drawLabels(pen, frame, { inside, colors, look });
      if (look.zoom >= 0.28 && frame !== scene.root) drawTitle(pen, frame, colors);
    }
    for (const box of boxes) drawBox(pen, box, colors, look);
  };

  const TALL = 12; // pixels of a label
  /** The labels of a frame's lines, where they overlap neither boxes nor lines nor each other. */
  const placeLabels = (frame) => {
    const labels = [];
    const taken = frame.members.map((box) => [box.left, box.top, box.left + box.width, box.top + box.height]);
    const isFree = ([left, top, right, bottom]) =>
      (frame === scene.root || (left >= 4 && right <= frame.width - 4)) &&
      !taken.some(([l, t, r, b]) => left < r && right > l && top < b && bottom > t) &&
      !frame.lines.some((line) => {
        if (bottom < line.y1 || top > (line.through ?? line.y2)) return false;
        const ends = [layered.lineX(line, top), layered.lineX(line, bottom)];
        return left < Math.max(...ends) + 3 && right > Math.min(...ends) - 3;
      });
    const named = new Set();
    for (const line of frame.lines) {
      if (!line.from || line.from.open || line.from.kind === "input" || named.has(line.value)) continue;
      named.add(line.value);
      for (const [length, y, side] of [[22, 11, 1], [22, 11, -1], [22, 23, 1], [22, 23, -1], [12, 11, 1], [12, 11, -1]]) {
        const text = scene.shortShape(line.value, length);
        const wide = scene.textWidth(text, scene.LABEL);
        const x = layered.lineX(line, line.y1 + y) + (side > 0 ? 6 : -6 - wide);
        const place = [x, line.y1 + y - TALL / 2, x + wide, line.y1 + y + TALL / 2];
        if (!text || !isFree(place)) continue;
        labels.push({ text, x, y: line.y1 + y, wide, line });
        taken.push(place);
        break;
      }
    }
    return labels;
  };
  const drawLabels = (pen, frame, { inside, colors, look }) => {
    frame.labels ??= placeLabels(frame);
    for (const { text, x, y, wide, line } of frame.labels) {
      if (inside(frame.x + x, frame.y + y - TALL / 2, wide, TALL)) pen.text(text, frame.x + x, frame.y + y, scene.LABEL, 400, isLit(line, look) ? colors.ink : colors.soft);
    }
  };
  const isLit = (line, look) => look.value === line.value || Boolean(look.selected && (line.from === look.selected || line.to === look.selected));

  const ground = (frame, colors) => ((frame.depth ?? 0) % 2 ? colors.inner : colors.page);
  const drawFrame = (pen, box, colors, look) => {
    pen.rect(box.x, box.y, box.width, box.height, 9, ground(box, colors), box === look.selected ? colors.accent : colors.line, box === look.selected ? 2 : 1);
  };
  const drawTitle = (pen, box, colors) => {
    drawGlyph(pen, box, colors, colors.soft);
    const label = box.kind === "node" ? `${box.title} ${box.node.name}` : box.title;
    const text = scene.short(label, Math.max(8, Math.floor((box.width - 60) / 7)));
    pen.rect(box.x + 28, box.y + 8, scene.textWidth(text, 12, 600) + 6, 16, 3, ground(box, colors));
    pen.text(text, box.x + 31, box.y + 16, 12, 600, colors.soft);
  };

  const drawGlyph = (pen, box, colors, ink) => {
    const [x, y, size] = glyph(box);
    pen.rect(x, y, size, size, 4, null, ink, 1);
    pen.line([x + 4, y + size / 2, x + size - 4, y + size / 2, -Infinity, -Infinity], ink, 1.4);
    if (!box.open) pen.line([x + size / 2, y + 4, x + size / 2, y + size - 4, -Infinity, -Infinity], ink, 1.4);
  };

  const drawLines = (pen, frame, { area, colors, edge, look }) => {
    for (const line of frame.lines ?? []) {
      const [x1, y1, x2, y2] = [line.x1 + frame.x, line.y1 + frame.y, line.x2 + frame.x, line.y2 + frame.y];
      const end = line.through === null ? y2 : line.through + frame.y;
      if (Math.max(x1, x2) < area.left || Math.min(x1, x2) > area.right || end < area.top || y1 > area.bottom) continue;
      const lit = isLit(line, look);
      const fused = mode === "kernel" && line.from?.kind === "node" && line.to?.kind === "node" && !line.from.members.length && together(line.from.node, line.to.node);
      const color = lit ? colors.accent : fused ? paint(line.from).fill : edge;
      const width = lit ? 2.2 : fused ? 3 : 1.2;
      pen.fade(look.dims && !lit && !(fused && look.dims(line.from)) ? 0.3 : 1);
      pen.line([x1, y1, x2, y2, line.start === null ? -Infinity : line.start + frame.y, line.through === null ? -Infinity : end], color, width);
      if (line.arrow && look.zoom > 0.25) line.arrow > 0 ? pen.arrow(x2, y2, 7, color) : pen.arrow(x1, y1 + 7, 7, color);
    }
    pen.fade(1);
  };
  const together = (a, b) => a.works.some((work) => b.works.includes(work));

  const drawBox = (pen, box, colors, look) => {
    const { fill, parts } = paint(box);
    const pill = isPill(box);
    const folds = scene.canOpen(box);
    const body = fill ?? colors.panel;
    const ink = fill ? inkOn(fill) : colors.ink;
    pen.fade(look.dims && !look.dims(box) ? 0.35 : 1);
    if (folds) pen.rect(box.x + 4, box.y + 4, box.width, box.height, 8, colors.grid, colors.line);
    pen.rect(box.x, box.y, box.width, box.height, pill ? box.height / 2 : 7, pill ? colors.grid : body, fill && !folds && inkOn(fill) === "#ffffff" ? null : look.zoom < 0.2 ? null : box.kind === "missing" ? colors.peak : colors.rim);
    if (parts?.length) drawParts(pen, box, parts, colors);
    if (look.zoom > 0.3) {
      const middle = box.x + box.width / 2;
      const [x, align] = folds ? [box.x + 11, "left"] : [middle, "center"];
      const tall = box.height - (folds ? 5 : 0);
      pen.text(box.title, x, box.subtitle ? box.y + 14 : box.y + tall / 2, 13, 600, ink, align);
      const subtitle = mode === "time" && folds ? `${time(boxTime(box) * 1e6)}` : box.subtitle;
      if (subtitle) pen.text(subtitle, x, box.y + 29, 11, 400, fill ? ink : colors.soft, align);
      if (folds) drawGlyph(pen, box, colors, fill ? ink : colors.soft);
    }
    pen.fade(1);
    if (look.mates?.has(box) && box !== look.selected) pen.rect(box.x - 3, box.y - 3, box.width + 6, box.height + 6, 9, null, colors.accent, 2 / Math.min(1, look.zoom));
    if (look.hits?.has(box)) {
      pen.fade(0.6);
      pen.rect(box.x - 3, box.y - 3, box.width + 6, box.height + 6, 9, null, colors.accent, 1.5 / Math.min(1, look.zoom));
      pen.fade(1);
    }
    if (box === look.selected) pen.rect(box.x - 3.5, box.y - 3.5, box.width + 7, box.height + 7, 10, null, colors.accent, 3 / Math.min(1, look.zoom));
  };
  const drawParts = (pen, box, parts, colors) => {
    const total = parts.reduce((sum, [, count]) => sum + count, 0);
    let x = box.x + 10;
    const wide = box.width - 20;
    for (const [fill, count] of parts.slice(0, 40)) {
      const part = (wide * count) / total;
      pen.rect(x, box.y + box.height - 7, part, 3.5, 0, fill ?? colors.line);
      x += part;
    }
  };

  const asSvg = () => {
    const { width, height } = scene.root;
    const out = [];
    const area = { left: -Infinity, top: -Infinity, right: Infinity, bottom: Infinity };
    draw(svgPen(out), area, { zoom: 1 });
    const size = `width="${Math.ceil(width + 40)}" height="${Math.ceil(height + 40)}"`;
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size} viewBox="-20 -20 ${Math.ceil(width + 40)} ${Math.ceil(height + 40)}" font-family="system-ui, sans-serif"><title>${escaped(data.title)}</title><rect x="-20" y="-20" width="100%" height="100%" fill="${token("--page")}"/>${out.join("")}</svg>`;
  };

  return { MODES, mode: () => mode, setMode, renew, paint, heat, hue, draw, canvasPen, asSvg, glyph, nodeTime, nodeBytes, nodeDevice, mainWork, boxTime, percent };
})();
