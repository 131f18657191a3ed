// Layered graph layout, from top to bottom, for each open box separately, innermost first.
//
// A closed box has `width` and `height`; the size of an open one follows from its `members`. Lines belong to values:
// all readers of a value share a trunk. A line enters and leaves an open box through a port, which is an item of the
// layout inside and an end point outside.
const layered = (() => {
  const GAP = 22;
  const LANE = 9; // between a line and its neighbour
  const BETWEEN = 34; // between layers
  const MOST_OVERHANG = 70; // of a label beyond its box
  const PAD = 16;
  const HEAD = 30;
  const SWEEPS = 8;

  let labelWidth = () => 0; // of the text beside a value's line

  /**
   * Lay out the open boxes of a tree. `lines` are [from, to, value] between closed boxes, or open boxes themselves;
   * `widthOfLabel` gives the pixels of the text beside a value's line.
   */
  const arrange = (root, lines, widthOfLabel) => {
    labelWidth = widthOfLabel;
    const inside = new Map(); // open box -> lines between its members and ports
    const open = (box) => {
      inside.set(box, { keys: new Set(), lines: [] });
      box.members.forEach((member) => member.open && open(member));
    };
    open(root);
    const add = (box, from, to, value) => {
      const frame = inside.get(box);
      const key = `${from.id ?? from} ${to.id ?? to} ${value}`;
      if (from === to || frame.keys.has(key)) return;
      frame.keys.add(key);
      frame.lines.push([from, to, value]);
    };
    const depth = (box) => (box.depth ??= box.parent ? depth(box.parent) + 1 : 0);
    for (const [from, to, value] of lines) {
      let [source, target] = [from, to];
      while (source.parent !== target.parent && source.parent !== target && target.parent !== source) {
        if (depth(source) >= depth(target)) {
          add(source.parent, source, `>${value}`, value);
          source = source.parent;
        } else {
          add(target.parent, `<${value}`, target, value);
          target = target.parent;
        }
      }
      if (source.parent === target.parent) add(source.parent, source, target, value);
    }
    place(root, inside);
    settle(root, 0, 0);
  };

  const settle = (box, x, y) => {
    box.x = x;
    box.y = y;
    if (box.open) box.members.forEach((member) => settle(member, x + member.left, y + member.top));
  };

  const place = (box, inside) => {
    for (const member of box.members) if (member.open) place(member, inside);
    const { lines } = inside.get(box);
    const items = box.members.map((member) => ({ box: member, width: member.width, height: member.height, real: true }));
    const itemOf = new Map(box.members.map((member, index) => [member, items[index]]));
    const port = (name) => {
      if (!itemOf.has(name)) {
        itemOf.set(name, { port: name, width: 2, height: 0 });
        items.push(itemOf.get(name));
      }
      return itemOf.get(name);
    };
    const edges = lines.map(([from, to, value]) => ({
      from: typeof from === "string" ? port(from) : itemOf.get(from),
      to: typeof to === "string" ? port(to) : itemOf.get(to),
      value,
    }));
    items.forEach((item, index) => Object.assign(item, { index, out: [], into: [] }));
    for (const edge of edges) {
      edge.from.out.push(edge);
      edge.to.into.push(edge);
    }
    straighten(items, edges);
    const layers = rank(items);
    const { segments, chains } = thread(items, layers);
    order(layers);
    spread(layers);
    for (const chain of chains) align(chain, layers);
    measure(box, items, layers, segments);
  };

  /** Reverse lines that close a cycle: folded boxes can depend on each other. */
  const straighten = (items, edges) => {
    const state = new Uint8Array(items.length);
    const reversed = new Set();
    for (const start of items) {
      if (state[start.index]) continue;
      const stack = [[start, 0]];
      state[start.index] = 1;
      while (stack.length) {
        const top = stack[stack.length - 1];
        const [item, at] = top;
        if (at === item.out.length) {
          state[item.index] = 2;
          stack.pop();
          continue;
        }
        top[1] += 1;
        const next = item.out[at].to;
        if (state[next.index] === 1) reversed.add(item.out[at]);
        else if (!state[next.index]) {
          state[next.index] = 1;
          stack.push([next, 0]);
        }
      }
    }
    for (const edge of reversed) {
      edge.reversed = true;
      edge.from.out.splice(edge.from.out.indexOf(edge), 1);
      edge.to.into.splice(edge.to.into.indexOf(edge), 1);
      [edge.from, edge.to] = [edge.to, edge.from];
      edge.from.out.push(edge);
      edge.to.into.push(edge);
    }
  };

  /** Assign layers: each item is below its sources; an item without sources is just above its readers. */
  const rank = (items) => {
    const first = items.some((item) => item.port?.[0] === "<") ? 1 : 0; // ports are in the first and last layers
    for (const item of items) item.layer = item.port === undefined ? first : 0;
    const waiting = items.map((item) => item.into.length);
    const ready = items.filter((item) => !item.into.length);
    for (let at = 0; at < ready.length; at += 1) {
      for (const { to } of ready[at].out) {
        to.layer = Math.max(to.layer, ready[at].layer + 1);
        waiting[to.index] -= 1;
        if (!waiting[to.index]) ready.push(to);
      }
    }
    let last = 0;
    for (const item of items) if (item.port === undefined) last = Math.max(last, item.layer);
    for (const item of items) if (item.port?.[0] === ">") item.layer = last + 1;
    for (const item of ready.filter((each) => !each.into.length && each.out.length && each.port === undefined)) {
      item.layer = Math.max(item.layer, Math.min(...item.out.map((edge) => edge.to.layer)) - 1);
    }
    const layers = Array.from({ length: last + 2 }, () => []);
    for (const item of items) layers[item.layer].push(item);
    return layers;
  };

  /** Split long lines into chains of bends, one for each layer between; lines of one value share them. */
  const thread = (items, layers) => {
    const segments = [];
    const chains = [];
    for (const item of items) item.down = [];
    for (const item of items) item.up = [];
    const join = (a, b, edge, weight) => {
      a.down.push([b, weight]);
      b.up.push([a, weight]);
      const segment = { a, b, edge, ends: b === edge.to };
      segments.push(segment);
      return segment;
    };
    for (const item of items) {
      const trunks = new Map();
      for (const edge of [...item.out].sort((a, b) => b.to.layer - a.to.layer)) {
        const key = `${edge.value} ${edge.reversed ?? false}`;
        if (!trunks.has(key)) trunks.set(key, []);
        const trunk = trunks.get(key); // its bends, by layer below the item
        let above = item;
        for (let layer = item.layer + 1; layer < edge.to.layer; layer += 1) {
          const at = layer - item.layer - 1;
          if (!trunk[at]) {
            trunk[at] = { width: 2, height: 0, layer, down: [], up: [], bend: true, value: edge.value };
            layers[layer].push(trunk[at]);
            join(above, trunk[at], edge, above === item ? 2 : 8);
          }
          above = trunk[at];
        }
        join(above, edge.to, edge, above === item ? 1 : 2);
      }
      for (const trunk of trunks.values()) if (trunk.length > 1) chains.push(trunk);
    }
    return { segments, chains };
  };

  /** Order the items of each layer by their neighbours above, then below, and keep the order with the fewest crossings. */
  const order = (layers) => {
    const renumber = (layer) => layer.forEach((item, at) => (item.at = at));
    layers.forEach(renumber);
    const sweep = (layer, side) => {
      for (const item of layer) {
        const near = item[side];
        item.wish = near.length ? near.reduce((sum, [other]) => sum + other.at, 0) / near.length : item.at;
      }
      layer.sort((a, b) => a.wish - b.wish || a.at - b.at);
      renumber(layer);
    };
    const crossings = () => layers.reduce((sum, layer) => sum + crossed(layer), 0);
    let best = null;
    let fewest = Infinity;
    const count = layers.reduce((sum, layer) => sum + layer.length, 0);
    const sweeps = count > 20000 ? 3 : SWEEPS;
    for (let round = 0; round <= sweeps && fewest; round += 1) {
      if (round) {
        if (round % 2) for (const layer of layers) sweep(layer, "up");
        else for (let at = layers.length - 1; at >= 0; at -= 1) sweep(layers[at], "down");
      }
      const count = crossings();
      if (count < fewest) {
        fewest = count;
        best = layers.map((layer) => [...layer]);
      }
    }
    best.forEach((layer, at) => {
      layers[at].splice(0, layer.length, ...layer);
      renumber(layers[at]);
    });
  };

  /** Count the crossings of lines between a layer and the next. */
  const crossed = (layer) => {
    const ends = [];
    let wide = 0;
    for (const item of layer) {
      const below = item.down.map(([other]) => other.at).sort((a, b) => a - b);
      for (const at of below) {
        ends.push(at);
        wide = Math.max(wide, at + 1);
      }
    }
    if (ends.length < 2) return 0;
    const tree = new Int32Array(wide + 1);
    let sum = 0;
    ends.forEach((end, before) => {
      let smaller = 0;
      for (let at = end + 1; at > 0; at -= at & -at) smaller += tree[at];
      sum += before - smaller;
      for (let at = end + 1; at <= wide; at += at & -at) tree[at] += 1;
    });
    return sum;
  };

  /** Set x: as near as possible to connected items, with a gap between neighbours. */
  const spread = (layers) => {
    for (const layer of layers) {
      let x = 0;
      layer.forEach((item, at) => {
        item.ahead = at ? x + item.width / 2 + gap(layer[at - 1], item) : item.width / 2;
        x = item.ahead + item.width / 2;
      });
      layer.forEach((item) => (item.x = item.ahead - x / 2));
    }
    for (let round = 0; round < 6; round += 1) {
      for (const layer of layers) pull(layer, round > 3 ? ["up", "down"] : ["up"]);
      for (let at = layers.length - 1; at >= 0; at -= 1) pull(layers[at], round > 3 ? ["up", "down"] : ["down"]);
    }
    for (const layer of layers) pull(layer, ["up"]);
  };
  const gap = (a, b) => (a.real && b.real ? GAP : a.real ? LANE + 5 + overhang(a) : b.real ? LANE + 5 : LANE);
  /** How far the label of a box's line reaches beyond the box. */
  const overhang = (item) => (item.overhang ??= item.box.open || !item.out.length ? 0 : Math.min(MOST_OVERHANG, Math.max(0, labelWidth(item.out[0].value) + 6 - item.width / 2)));

  const pull = (layer, sides) => {
    const blocks = []; // of adjacent items: [desired shift, weight, first]
    layer.forEach((item, at) => {
      let [sum, weight] = [0, 0];
      for (const side of sides) {
        for (const [other, strength] of item[side]) {
          sum += strength * (other.x + reach(other, item, side) - reach(item, other, side === "up" ? "down" : "up"));
          weight += strength;
        }
      }
      let block = weight ? [sum / weight - item.ahead, weight, at] : [item.x - item.ahead, 0.01, at];
      while (blocks.length && blocks[blocks.length - 1][0] >= block[0]) {
        const [wish, strength, first] = blocks.pop();
        block = [(wish * strength + block[0] * block[1]) / (strength + block[1]), strength + block[1], first];
      }
      blocks.push(block);
    });
    blocks.forEach(([shift, , first], number) => {
      const end = blocks[number + 1]?.[2] ?? layer.length;
      for (let at = first; at < end; at += 1) layer[at].x = layer[at].ahead + shift;
    });
  };

  /** Straighten long lines as far as their neighbours allow. */
  const align = (chain, layers) => {
    let start = 0;
    while (start < chain.length) {
      let [low, high] = [-Infinity, Infinity];
      let end = start;
      let sum = 0;
      for (; end < chain.length; end += 1) {
        const { layer, at } = chain[end];
        const [left, right] = [layers[layer][at - 1], layers[layer][at + 1]];
        const least = left ? left.x + left.width / 2 + gap(left, chain[end]) + 1 : -Infinity;
        const most = right ? right.x - right.width / 2 - gap(chain[end], right) - 1 : Infinity;
        if (Math.max(low, least) > Math.min(high, most)) break;
        [low, high] = [Math.max(low, least), Math.min(high, most)];
        sum += chain[end].x;
      }
      if (end === start) end += 1;
      else for (const x = Math.min(Math.max(sum / (end - start), low), high); start < end; start += 1) chain[start].x = x;
      start = end;
    }
  };

  /** The offset from the middle of an item at which a line to another leaves it: the port, for open boxes. */
  const reach = (item, other, side) => {
    if (!item.box?.open) return 0;
    const ports = side === "up" ? item.box.exits : item.box.entries;
    const value = other.value ?? sharedValue(item, other, side);
    return (ports.get(value) ?? item.width / 2) - item.width / 2;
  };
  const sharedValue = (item, other, side) => {
    const cache = (item.shared ??= new Map());
    const key = `${side} ${other.index}`;
    if (!cache.has(key)) {
      const edges = side === "up" ? item.out : item.into;
      cache.set(key, edges.find((edge) => (side === "up" ? edge.to : edge.from) === other)?.value);
    }
    return cache.get(key);
  };

  const measure = (box, items, layers, segments) => {
    let [left, right, y] = [Infinity, -Infinity, 0];
    for (const layer of layers) {
      for (const item of layer) {
        left = Math.min(left, item.x - item.width / 2);
        right = Math.max(right, item.x + item.width / 2);
        if (box.parent && item.real) right = Math.max(right, item.x + item.width / 2 + overhang(item));
      }
    }
    if (left === Infinity) [left, right] = [0, 40];
    const wide = Math.max(right - left + 2 * PAD, box.least ?? 0);
    const shift = (wide - right - left) / 2;
    y = box.parent ? HEAD : 0;
    layers.forEach((layer, number) => {
      if (!layer.length) return;
      const tall = Math.max(...layer.map((item) => item.height));
      for (const item of layer) {
        item.x += shift;
        item.y = y + Math.min((tall - item.height) / 2, tall > 90 ? 6 : Infinity);
        item.top = y;
        item.bottom = y + tall;
      }
      y += tall + (layers[number + 1]?.length ? crowd(layer, layers[number + 1]) : 0);
    });
    box.width = wide;
    box.height = y + (box.parent ? PAD : 0);
    box.entries = new Map();
    box.exits = new Map();
    for (const item of items) {
      if (item.real) {
        item.box.left = item.x - item.width / 2;
        item.box.top = item.y;
      } else if (item.port[0] === "<") {
        box.entries.set(Number(item.port.slice(1)), item.x);
        item.top = item.bottom = 0;
      } else {
        box.exits.set(Number(item.port.slice(1)), item.x);
        item.top = item.bottom = box.height;
      }
    }
    box.lines = segments.map((segment) => route(segment));
    box.labels = undefined; // placed when they are drawn
  };
  const crowd = (layer, next) => layer[0].port || next[0].port ? 16 : BETWEEN + Math.min(40, Math.max(0, layer.reduce((sum, item) => sum + item.down.length, 0) - 6) * 2);

  /** Route a line from one layer to the next: its ends, and the straight parts through both layers. */
  const route = ({ a, b, edge, ends }) => {
    const from = leave(a, b, edge.value);
    const to = enter(b, a, edge.value);
    return {
      value: edge.value,
      x1: from,
      y1: a.real ? a.y + a.height : a.bottom,
      x2: to,
      y2: b.real ? b.y : b.top,
      through: b.bend ? b.bottom : null,
      start: a.real ? a.bottom : null, // below a box that is lower than its layer, the line is straight
      arrow: edge.reversed ? (a.real ? -1 : 0) : ends && b.real && !(b.box.open && b.box.entries.has(edge.value)) ? 1 : 0,
      from: (edge.reversed ? edge.to : edge.from).box,
      to: (edge.reversed ? edge.from : edge.to).box,
    };
  };
  const leave = (item, other, value) => {
    if (item.box?.open && item.box.exits.has(value)) return item.x - item.width / 2 + item.box.exits.get(value);
    return item.real ? near(item, other) : item.x;
  };
  const enter = (item, other, value) => {
    if (item.box?.open && item.box.entries.has(value)) return item.x - item.width / 2 + item.box.entries.get(value);
    return item.real ? near(item, other) : item.x;
  };
  const near = (item, other) => {
    const half = Math.max(0, item.width / 2 - 12);
    const wish = other.real && !other.box.open ? (other.x + item.x) / 2 : other.x;
    return Math.min(Math.max(wish, item.x - half), item.x + half);
  };

  /** The x of a line at some y inside of its box, both relative to the box. */
  const lineX = (line, y) => {
    const start = Math.max(line.start ?? line.y1, line.y1);
    const part = line.y2 > start ? Math.min(Math.max((y - start) / (line.y2 - start), 0), 1) : 1;
    return line.x1 + (line.x2 - line.x1) * part * part * (3 - 2 * part);
  };

  return { arrange, lineX, HEAD };
})();
