// The details panel: the model, the selected box, kernels and weights.
const panel = (() => {
  const { byId, data, bytes, rate, time, percent, element, svg } = weft;
  const { nodes, values, works, nodeBoxes } = scene;
  const sheet = byId("sheet");
  const MOST_ROWS = 200;
  let go = () => {}; // select a box and show it
  let light = () => {}; // highlight the nodes of a kernel

  const classed = (name, tag, text, ...children) => {
    const created = element(tag, text, ...children);
    created.className = name;
    return created;
  };
  const row = (name, content) => classed("row", "div", null, element("span", name), typeof content === "string" ? element("span", content) : content);
  const link = (text, action) => {
    const created = classed("link", "button", text);
    created.type = "button";
    created.addEventListener("click", action);
    return created;
  };
  const swatch = (fill) => svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { width: 10, height: 10, rx: 2, fill }));
  const bar = (part) => svg(
    "svg", { class: "bar", viewBox: "0 0 100 3", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "track", width: 100, height: 3 }),
    svg("rect", { class: "part", width: Math.min(Math.max(part, 0), 1) * 100, height: 3 }),
  );
  const number = (value) => (value === null || value === undefined ? "–" : Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(Number(value.toPrecision(4))));
  const count = (amount, thing) => `${amount.toLocaleString("en")} ${thing}${amount === 1 ? "" : "s"}`;
  const copyButton = (text) => {
    const created = classed("small", "button", "Copy name");
    created.type = "button";
    created.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        const field = element("textarea", text); // file: pages have no other access to the clipboard
        document.body.append(field);
        field.select();
        document.execCommand("copy");
        field.remove();
      }
      created.textContent = "Copied";
      setTimeout(() => (created.textContent = "Copy name"), 1200);
    });
    return created;
  };
  const nodeLink = (box) => link(box.kind === "node" ? `${box.node.op} ${box.node.name}` : box.label, () => go(box));

  /** The first rows, and a button for more. */
  const listed = (items, make) => {
    const holder = element("div", null);
    let shown = 0;
    const more = link("", () => extend());
    const extend = () => {
      more.remove();
      holder.append(...items.slice(shown, shown + MOST_ROWS).map(make));
      shown += MOST_ROWS;
      if (shown < items.length) {
        more.textContent = `Show more (${items.length - shown} left)`;
        holder.append(more);
      }
    };
    extend();
    return holder;
  };

  // -- the model ------------------------------------------------------------------------------------------------------

  const showModel = () => {
    const drawn = nodes.filter((node) => !node.constant).length;
    const parameters = data.weights.reduce((sum, weight) => sum + weight.elements, 0);
    const stored = data.weights.reduce((sum, weight) => sum + (weight.bytes ?? 0), 0);
    const facts = [
      ["Nodes", drawn.toLocaleString("en") + (drawn < nodes.length ? ` and ${count(nodes.length - drawn, "constant")}` : "")],
      ["Weights", data.weights.length ? `${rate(parameters, "").trim()} in ${count(data.weights.length, "tensor")}, ${bytes(stored)}` : "none"],
      ["File", data.external ? `${bytes(data.size + data.external)}, ${bytes(data.external)} of it external data` : bytes(data.size)],
      ...data.about,
    ];
    if (data.kernels) facts.push(["Kernels", `${data.kernels} on ${data.device}`]);
    const left = works.filter((work) => work.device === "host").length;
    if (left && works.length) facts.push(["Host", count(left, "step")]);
    const flops = works.reduce((sum, work) => sum + (work.flops ?? 0), 0);
    if (flops) facts.push(["Arithmetic", rate(flops, "FLOP")]);
    if (data.run) {
      facts.push(["One run", `${time(data.run.seconds * 1e6)}, median of ${data.run.runs}`], ["Threads", String(data.run.threads)], ["Arena", bytes(data.run.arena)]);
    }
    const sizes = Object.entries(data.sizes);
    if (sizes.length) facts.push(["Sizes", sizes.map(([name, size]) => `${name} = ${size}`).join(", ")]);
    sheet.append(element("h2", data.title), ...facts.map(([name, text]) => row(name, text)));
    const main = data.graphs[0];
    const valueRows = (title, list, names) => {
      sheet.append(element("h3", title));
      sheet.append(listed(list, (value) => {
        const box = scene.root.members.find((member) => member.kind === names && member.value === value);
        const label = box ? box.label : values[value].name;
        return classed("value", "div", null, box ? link(label, () => go(box)) : element("span", label), classed("type", "div", values[value]?.type ?? ""));
      }));
    };
    valueRows("Inputs", main.inputs, "input");
    valueRows("Outputs", main.outputs, "output");
    if (data.properties.length) sheet.append(element("h3", "Metadata"), ...data.properties.map(([name, text]) => row(name, text)));
    const ops = scene.summary(scene.root);
    sheet.append(element("h3", "Operators"), element("p", ops.join(", ")));
    sheet.append(element("h3", "Keys"), classed("soft", "p", "Arrows follow lines. Enter opens or closes a box. / searches, + and − zoom, f fits the graph, Esc deselects. Wheel or pinch zooms, dragging moves."));
  };

  // -- a box ----------------------------------------------------------------------------------------------------------

  const histogram = (weight) => {
    const { statistics } = weight;
    if (!statistics?.histogram.length) return [];
    const most = Math.max(...statistics.histogram);
    const wide = 100 / statistics.histogram.length;
    const bars = statistics.histogram.map((amount, at) => {
      const tall = amount ? Math.max((amount / most) * 40, 0.8) : 0;
      return svg("rect", { x: at * wide, y: 40 - tall, width: wide * 0.86, height: tall });
    });
    const label = `Histogram of values from ${number(statistics.least)} to ${number(statistics.most)}`;
    return [
      svg("svg", { class: "histogram", viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img", "aria-label": label }, ...bars),
      classed("ends", "div", null, element("span", number(statistics.least)), element("span", number(statistics.most))),
    ];
  };
  const weightFacts = (weight) => {
    const parts = [];
    const { statistics } = weight;
    if (weight.error) parts.push(classed("soft", "p", weight.error));
    if (!statistics) return parts;
    if (statistics.elements) parts.push(classed("soft", "p", statistics.elements));
    parts.push(...histogram(weight));
    if (statistics.least !== null && weight.elements > 1) {
      const more = [`mean ${number(statistics.mean)}`, `deviation ${number(statistics.deviation)}`];
      if (statistics.least === statistics.most) more.unshift(`all ${number(statistics.least)}`);
      if (statistics.zeros) more.push(`${percent(statistics.zeros, 1)} zeros`);
      parts.push(classed("soft", "p", more.join(", ")));
    }
    if (statistics.not_finite) parts.push(classed("soft", "p", `${count(statistics.not_finite, "element")} not finite`));
    if (statistics.sampled < weight.elements) parts.push(classed("soft", "p", `From a sample of ${count(statistics.sampled, "element")}.`));
    return parts;
  };
  const valueEntry = (value, label, isInput) => {
    if (value < 0) return classed("value", "div", null, element("span", label), classed("type", "div", "omitted"));
    const { name, type, bytes: size, weight } = values[value];
    const entry = classed("value", "div", null, element("span", name));
    entry.append(classed("type", "div", [type || "type unknown", size ? bytes(size) : ""].filter(Boolean).join(", ")));
    if (values[value].size) entry.append(classed("type", "div", `with these sizes: ${values[value].size}`));
    if (weight >= 0) entry.append(...weightFacts(data.weights[weight]));
    const maker = scene.makers.get(value);
    if (isInput && maker && !maker.node?.constant) entry.append(element("div", null, document.createTextNode("from "), nodeLink(maker)));
    if (isInput && maker?.node?.constant && weight < 0) entry.append(classed("soft", "p", maker.node.attributes.map(([, text]) => text).join(", ")));
    if (!isInput) {
      const readers = scene.readers.get(value) ?? [];
      readers.slice(0, 12).forEach((reader) => entry.append(element("div", null, document.createTextNode("to "), nodeLink(reader))));
      if (readers.length > 12) entry.append(classed("soft", "p", `and ${readers.length - 12} more`));
    }
    return entry;
  };
  const workFacts = (work) => {
    const facts = [];
    if (work.seconds !== undefined) facts.push(["Time", `${time(work.seconds * 1e6)}, ${percent(work.share, 1)} of all`]);
    facts.push(["Device", work.device]);
    if (work.template) facts.push(["Template", work.template]);
    if (work.reason) facts.push(["Why", work.reason]);
    if (work.launches) facts.push(["Launches", String(work.launches)]);
    if (work.flops) facts.push(["Arithmetic", rate(work.flops, "FLOP") + (work.seconds ? `, ${rate(work.flops / work.seconds, "FLOP/s")}` : "")]);
    if (work.bytes) facts.push(["Memory traffic", bytes(work.bytes) + (work.seconds ? `, ${rate(work.bytes / work.seconds, "B/s")}` : "")]);
    if (work.roofline) facts.push(["Roofline", `${percent(work.roofline)}, bound by ${work.bound}`]);
    if (work.arena) facts.push(["In the arena", bytes(work.arena)]);
    return facts.map(([name, text]) => row(name, text));
  };
  const workNodes = (work, except) => work.nodes
    .filter((one) => one !== except)
    .map((one) => element("div", null, typeof one === "string" ? document.createTextNode(one) : nodeLink(nodeBoxes[one])));

  const showNode = (box) => {
    const { node } = box;
    const domain = [node.domain, node.version ? `opset ${node.version}` : ""].filter(Boolean).join(", ");
    sheet.append(classed("top-line", "div", null, element("h2", node.op || "(no operator)"), copyButton(node.name)), element("p", node.name), classed("soft", "p", domain));
    if (scene.canOpen(box)) sheet.append(link(box.open ? "Close" : `Open the ${count(box.count - 1, "node")} inside`, () => go(box, true)));
    for (const number of node.works) {
      const work = works[number];
      sheet.append(element("h3", node.works.length > 1 ? `Kernel ${work.name}` : "Kernel"));
      if (node.works.length === 1) sheet.append(row("Name", link(work.name, () => light(number))));
      sheet.append(...workFacts(work));
      const others = workNodes(work, box.number);
      if (others.length) sheet.append(classed("soft", "p", "Fused with"), ...others);
    }
    if (!node.works.length && works.length && !box.members.length) {
      sheet.append(element("h3", "Kernel"), classed("soft", "p", "None: the node does no work at run time. Its result is a constant, a view of its input, or unused."));
    }
    const attributes = node.attributes.filter(([name]) => !node.bodies.some(([body]) => body === name));
    if (attributes.length) sheet.append(element("h3", "Attributes"), ...attributes.map(([name, text]) => row(name, text)));
    if (node.inputs.length) sheet.append(element("h3", "Inputs"), ...node.inputs.map((value) => valueEntry(value, "(omitted)", true)));
    if (node.outputs.length) sheet.append(element("h3", "Outputs"), ...node.outputs.map((value) => valueEntry(value, "(unused)", false)));
    if (node.notes.length) sheet.append(element("h3", "Notes"), ...node.notes.map(([name, text]) => row(name, text)));
  };

  const showScope = (box) => {
    sheet.append(classed("top-line", "div", null, element("h2", box.label), copyButton(scene.path(box).join("/"))), classed("soft", "p", scene.path(box).join(" / ")));
    sheet.append(link(box.open ? "Close" : "Open", () => go(box, true)));
    sheet.append(row("Nodes", String(box.count)));
    if (box.works.size) sheet.append(row("Fused groups", String(box.works.size)));
    if (data.run) sheet.append(row("Time", `${time(drawing.boxTime(box) * 1e6)}, ${percent(drawing.boxTime(box) / (works.reduce((sum, work) => sum + (work.seconds ?? 0), 0) || 1), 1)} of all`));
    const weights = new Set([...scene.leaves(box)].flatMap((leaf) => leaf.node.inputs).filter((value) => value >= 0 && values[value].weight >= 0));
    const size = [...weights].reduce((sum, value) => sum + (values[value].bytes ?? 0), 0);
    if (weights.size) sheet.append(row("Weights", `${count(weights.size, "tensor")}, ${bytes(size)}`));
    sheet.append(element("h3", "Operators"), element("p", scene.summary(box).join(", ")));
  };

  const showSelection = () => {
    if (!selected) {
      sheet.append(classed("soft", "p", "Choose a box in the graph, or search for one."));
    } else if (selected.kind === "node") {
      showNode(selected);
    } else if (selected.kind === "missing") {
      sheet.append(element("h2", selected.label), element("p", "Undefined: no input, weight or node produces this value."), valueEntry(selected.value, "", false));
    } else if (selected.kind === "input" || selected.kind === "output") {
      sheet.append(classed("top-line", "div", null, element("h2", selected.label), copyButton(selected.label)), classed("soft", "p", `An ${selected.kind} of the ${selected.parent.parent ? "body" : "model"}`), valueEntry(selected.value, "", selected.kind === "output"));
    } else {
      showScope(selected);
    }
  };

  // -- lists ----------------------------------------------------------------------------------------------------------

  let lit = null;
  const showKernels = () => {
    if (!works.length) {
      sheet.append(classed("soft", "p", data.problem ? "The model cannot be compiled." : "This device builds no kernels."));
      return;
    }
    const order = works.map((work, at) => [work, at]);
    const weight = data.run ? (work) => work.seconds : (work) => work.flops ?? 0;
    order.sort(([a], [b]) => weight(b) - weight(a));
    const most = Math.max(...order.map(([work]) => weight(work)), 1e-12);
    sheet.append(classed("soft", "p", `${count(works.length, "fused group")}, ${data.run ? "the slowest first" : "most FLOPs first"}.`));
    sheet.append(listed(order, ([work, at]) => {
      const first = work.nodes.slice(0, 3).map((one) => (typeof one === "string" ? one : nodes[one].op)).join(" + ");
      const figure = data.run ? time(work.seconds * 1e6) : work.flops ? rate(work.flops, "FLOP") : "";
      const item = classed("item", "button", null,
        classed("top", "span", null, swatch(drawing.hue(at)), element("span", work.name), element("span", figure)),
        element("small", first + (work.nodes.length > 3 ? ` and ${work.nodes.length - 3} more` : "") + (work.device === "host" ? ", on the host" : "")),
        bar(weight(work) / most));
      item.type = "button";
      item.classList.toggle("chosen", lit === at);
      item.addEventListener("click", () => light(at));
      return item;
    }));
  };

  const showWeights = () => {
    const order = [...data.weights].sort((a, b) => (b.bytes ?? 0) - (a.bytes ?? 0));
    if (!order.length) sheet.append(classed("soft", "p", "The model has no weights."));
    sheet.append(listed(order, (weight) => {
      const reader = scene.readers.get(weight.value)?.[0];
      const item = classed("item", "button", null,
        classed("top", "span", null, element("span", values[weight.value].name), element("span", weight.bytes === null ? "" : bytes(weight.bytes))),
        element("small", `${weight.dtype}[${weight.shape.join(", ")}]`),
        ...weightFacts(weight));
      item.type = "button";
      item.addEventListener("click", () => reader && go(reader));
      return item;
    }));
  };

  // -- tabs -----------------------------------------------------------------------------------------------------------

  const TABS = { model: ["Model", showModel], node: ["Node", showSelection], kernels: ["Kernels", showKernels], weights: ["Weights", showWeights] };
  const buttons = new Map();
  let current = "model";
  let selected = null;
  for (const [name, [label]] of Object.entries(TABS)) {
    const button = element("button", label);
    button.type = "button";
    button.id = `tab-${name}`;
    button.setAttribute("role", "tab");
    button.setAttribute("aria-controls", "sheet");
    button.addEventListener("click", () => show(name));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const names = Object.keys(TABS);
      const next = names[(names.indexOf(name) + step + names.length) % names.length];
      show(next);
      buttons.get(next).focus();
    });
    buttons.set(name, button);
    byId("tabs").append(button);
  }
  const show = (name) => {
    const same = current === name;
    current = name;
    for (const [tab, button] of buttons) {
      button.setAttribute("aria-selected", String(tab === name));
      button.tabIndex = tab === name ? 0 : -1;
    }
    sheet.setAttribute("aria-labelledby", `tab-${name}`);
    const scrolled = same && name !== "node" ? sheet.scrollTop : 0;
    sheet.replaceChildren();
    TABS[name][1]();
    sheet.scrollTop = scrolled;
  };

  return {
    show,
    current: () => current,
    select: (box) => {
      selected = box;
      if (box || current === "node") show("node");
    },
    light: (work) => {
      lit = work;
      if (current === "kernels") show("kernels");
    },
    connect: (goTo, lightUp) => {
      go = goTo;
      light = lightUp;
    },
  };
})();
