// The model as nested boxes (nodes, scopes, bodies of control flow), which of them are open, and the lines between them.
const scene = (() => {
  const { data } = weft;
  const BUDGET = 60; // visible boxes at first, approximately
  const FEW = 10; // visible boxes up to which one larger scope may exceed the budget
  const MOST_UNFOLDED = 6000; // visible boxes after "unfold"
  const NAMES = ["op", "domain", "version", "name", "inputs", "outputs", "attributes", "bodies", "works", "constant", "notes"];

  const nodes = data.nodes.map((row) => Object.fromEntries(NAMES.map((name, at) => [name, row[at]])));
  const values = data.values.map(([name, type, bytes, weight, size]) => ({ name, type, bytes, weight, size }));
  const works = data.works;
  const nodeBoxes = new Array(nodes.length);
  const boxes = [];
  const makers = new Map(); // value -> box that produces it
  const readers = new Map(); // value -> boxes that read it

  const make = (kind, parent, facts) => {
    const box = { id: boxes.length, kind, parent, open: false, members: [], ...facts };
    boxes.push(box);
    return box;
  };
  const addGraph = (number, box) => {
    const graph = data.graphs[number];
    const pill = (kind, value, label) => box.members.push(make(kind, box, { label, value }));
    for (const value of graph.inputs) {
      pill("input", value, values[value].name);
      makers.set(value, box.members[box.members.length - 1]);
    }
    graph.constants.forEach((number) => addNode(number, box)); // their readers show them
    addMembers(graph.tree, box);
    graph.outputs.forEach((value, at) => pill("output", value, graph.outputNames[at]));
  };
  const addNode = (number, parent) => {
    const node = nodes[number];
    const box = make("node", parent, { node, number, label: node.op });
    nodeBoxes[number] = box;
    for (const value of node.outputs) if (value >= 0) makers.set(value, box);
    return box;
  };
  const addMembers = (tree, parent) => {
    for (const member of tree) {
      if (Array.isArray(member)) {
        const scope = make("scope", parent, { label: member[0] });
        addMembers(member[1], scope);
        if (scope.members.length) parent.members.push(scope);
        continue;
      }
      const box = addNode(member, parent);
      const { node } = box;
      parent.members.push(box);
      for (const [attribute, graph] of node.bodies) {
        const body = make("body", box, { label: attribute, open: true });
        box.members.push(body);
        addGraph(graph, body);
      }
    }
  };
  const root = make("root", null, { label: data.title, open: true });
  addGraph(0, root);

  const lines = [];
  /** Add a box for an undefined value of an invalid model. */
  const addMissing = (value, reader) => {
    let graph = reader.parent;
    while (graph.kind === "scope" || graph.kind === "node") graph = graph.parent;
    const pill = make("missing", graph, { label: values[value].name, value });
    graph.members.unshift(pill);
    makers.set(value, pill);
  };
  const read = (value, box) => {
    if (value < 0) return;
    if (!makers.has(value) && values[value].weight < 0) addMissing(value, box);
    if (!readers.has(value)) readers.set(value, []);
    readers.get(value).push(box);
    const maker = makers.get(value);
    if (maker && !maker.node?.constant && maker !== box) lines.push([maker, box, value]);
  };
  for (const box of [...boxes]) {
    if (box.kind === "node" && !box.node.constant) for (const value of new Set(box.node.inputs)) read(value, box);
    if (box.kind === "output") read(box.value, box);
  }

  // -- contents of boxes ----------------------------------------------------------------------------------------------

  for (let at = boxes.length - 1; at >= 0; at -= 1) {
    const box = boxes[at];
    box.count ??= 0;
    box.works ??= new Map();
    if (box.kind === "node" && !box.node.constant) {
      box.count += 1;
      for (const work of box.node.works) box.works.set(work, (box.works.get(work) ?? 0) + 1);
    }
    const parent = box.parent;
    if (!parent || box.node?.constant) continue;
    parent.count = (parent.count ?? 0) + box.count;
    parent.works ??= new Map();
    for (const [work, times] of box.works) parent.works.set(work, (parent.works.get(work) ?? 0) + times);
  }
  works.forEach((work) => (work.size = Math.max(1, new Set(work.nodes).size)));

  /** The boxes of nodes inside a box, itself included. */
  const leaves = function* (box) {
    if (box.kind === "node") yield box;
    for (const member of box.members) yield* leaves(member);
  };
  const summary = (box) => {
    const counts = new Map();
    for (const leaf of leaves(box)) counts.set(leaf.node.op, (counts.get(leaf.node.op) ?? 0) + 1);
    const ranked = [...counts].sort((a, b) => b[1] - a[1]);
    return ranked.map(([op, count]) => (count > 1 ? `${op} ×${count}` : op));
  };

  // -- open boxes -----------------------------------------------------------------------------------------------------

  const canOpen = (box) => box.members.length > 0;
  const opened = function* (box) {
    for (const member of box.members) {
      yield member;
      if (member.open) yield* opened(member);
    }
  };
  /** Open whole levels while the visible boxes fit the budget, then the first scope of each kind, the most frequent first. */
  const openSome = (budget) => {
    const shown = [...opened(root)];
    let front = shown.filter((box) => !box.open && canOpen(box));
    let count = shown.length;
    const inner = (box) => (box.kind === "node" ? box.members.flatMap((body) => [body, ...body.members]) : box.members);
    while (front.length) {
      const next = front.flatMap(inner);
      if (count + next.length > budget) break;
      count += next.length;
      front.forEach((box) => (box.open = true));
      front = next.filter((box) => !box.open && canOpen(box));
    }
    while (front.length) {
      const kinds = new Map(); // scopes by label without numbers: `layer.0` and `layer.1` are of one kind
      for (const box of front) {
        const kind = box.label.replace(/\d+/g, "");
        kinds.set(kind, [...(kinds.get(kind) ?? []), box]);
      }
      const next = [];
      for (const [box] of [...kinds.values()].sort((a, b) => b.length - a.length)) {
        const boxes = inner(box);
        if (count + boxes.length > (count > FEW ? budget : 1.6 * budget)) continue;
        count += boxes.length;
        box.open = true;
        next.push(...boxes);
      }
      front = next.filter((box) => !box.open && canOpen(box));
    }
  };
  const foldAll = () => {
    for (const box of boxes) if (box.kind === "scope" || box.kind === "node") box.open = false;
  };
  openSome(BUDGET);

  const visible = (box) => {
    let shown = box;
    for (let outer = box.parent; outer; outer = outer.parent) if (!outer.open) shown = outer;
    return shown;
  };
  /** Open all boxes around a box. */
  const reveal = (box) => {
    let changed = false;
    for (let outer = box.parent; outer; outer = outer.parent) {
      changed ||= !outer.open;
      outer.open = true;
    }
    return changed;
  };

  // -- sizes ----------------------------------------------------------------------------------------------------------

  const FAMILY = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
  const LABEL = 10.5; // pixels of the text on a line
  const pencil = document.createElement("canvas").getContext("2d");
  const widths = new Map();
  const textWidth = (text, size, weight = 400) => {
    const key = `${weight} ${size} ${text}`;
    if (!widths.has(key)) {
      pencil.font = `${weight} ${size}px ${FAMILY}`;
      widths.set(key, pencil.measureText(text).width);
    }
    return widths.get(key);
  };
  const short = (text, most) => (text.length > most ? `${text.slice(0, Math.ceil(most / 2))}…${text.slice(-Math.floor(most / 2) + 1)}` : text);
  const shape = (type) => {
    const inside = /\[(.*)\]/.exec(type)?.[1];
    if (inside === "...") return "";
    return inside === undefined ? type : inside === "" ? "scalar" : inside.split(", ").join("×");
  };
  /** The shape of a value, shortened; with numbers instead of long names of dims. */
  const shortShape = (value, most) => {
    const text = shape(values[value]?.type ?? "");
    return short(text.length > most && values[value].size ? values[value].size : text, most);
  };
  const dtype = (type) => /^[a-z]\w*/.exec(type)?.[0] ?? "";

  /** The second line of a node's box: the shape of its weight, a constant, or its main attribute. */
  const detail = (node) => {
    const weights = node.inputs.filter((value) => value >= 0 && values[value].weight >= 0).map((value) => data.weights[values[value].weight]);
    const large = weights.find((weight) => weight.elements > 1 && weight.shape.length > 1) ?? weights.find((weight) => weight.elements > 8);
    if (large) return large.shape.join("×");
    const small = weights.find((weight) => weight.elements <= 8 && weight.statistics?.elements);
    if (small) return short(small.elements > 1 ? `[${small.statistics.elements}]` : small.statistics.elements, 24);
    const telling = node.attributes.filter(([name, text]) => text.length <= 18 && (name === "axis" || /[2-9]|-|[a-z]{3}|\d\d/.test(text.replace("NOTSET", ""))));
    const main = telling.filter(([name]) => /kernel|perm|ax[ei]s/.test(name));
    const [attribute] = [...main, ...telling.filter(([, text]) => text[0] === "["), ...telling];
    if (attribute?.[0] === "to") return dtype(values[node.outputs[0]]?.type ?? "");
    return attribute ? `${attribute[0]} ${attribute[1]}` : "";
  };
  const measure = (box) => {
    switch (box.kind) {
      case "input":
      case "output":
        box.title = short(box.label, 28);
        box.subtitle = shortShape(box.value, 28);
        break;
      case "missing":
        box.title = short(box.label, 28);
        box.subtitle = "undefined";
        break;
      case "node":
        box.title = short(box.node.op || "?", 30);
        box.subtitle = box.members.length ? `${box.count - 1} nodes inside` : short(detail(box.node), 26);
        break;
      default: {
        box.title = short(box.label, 34);
        const ops = summary(box);
        box.subtitle = `${ops.slice(0, ops.slice(0, 3).join("").length > 34 ? 2 : 3).join(", ")}${ops.length > 3 ? ", …" : ""}`;
      }
    }
    const folds = canOpen(box);
    const title = textWidth(box.title, 13, 600) + (folds ? 44 : 0);
    box.closedWidth = Math.max(folds ? 96 : 56, title + 22, textWidth(box.subtitle, 11) + 22 + (folds ? 16 : 0));
    box.closedHeight = (box.subtitle ? 40 : 27) + (folds ? 5 : 0);
    box.least = textWidth(box.title, 12, 600) + 96;
  };

  const arrange = () => {
    for (const box of opened(root)) {
      if (box.title === undefined) measure(box);
      if (!box.open) [box.width, box.height] = [box.closedWidth, box.closedHeight];
    }
    const keys = new Set();
    const shown = [];
    for (const [from, to, value] of lines) {
      const [source, target] = [visible(from), visible(to)];
      const key = `${source.id} ${target.id} ${value}`;
      if (source === target || keys.has(key)) continue;
      keys.add(key);
      shown.push([source, target, value]);
    }
    layered.arrange(root, shown, (value) => textWidth(shortShape(value, 22), LABEL));
  };

  const path = (box) => {
    const parts = [];
    for (let outer = box; outer?.parent; outer = outer.parent) parts.unshift(outer.label);
    return parts;
  };

  return {
    nodes, values, works, boxes, root, nodeBoxes, makers, readers, lines, FAMILY, LABEL, MOST_UNFOLDED,
    leaves, summary, canOpen, opened, openSome, foldAll, visible, reveal, textWidth, short, shape, shortShape, dtype, arrange, path,
  };
})();
