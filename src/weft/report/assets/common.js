"use strict";
const weft = (() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const COLORS = ["#4678a8", "#dd8452", "#5b9e58", "#a5769f", "#c2a03a", "#459b9e", "#c9605d", "#8b7f73"];
  const OTHER = "#8d949a";

  // -- formats and elements -------------------------------------------------------------------------------------------

  const scaled = (number, step, prefixes, unit) => {
    let power = 0;
    while (Math.abs(number) >= step && power + 1 < prefixes.length) {
      number /= step;
      power += 1;
    }
    const digits = power === 0 || Math.abs(number) >= 100 ? number.toFixed(0) : number.toPrecision(3);
    return `${digits} ${prefixes[power]}${unit}`;
  };
  const bytes = (number) => scaled(number, 1024, ["", "Ki", "Mi", "Gi", "Ti"], "B");
  const rate = (number, unit) => scaled(number, 1000, ["", "k", "M", "G", "T", "P"], unit);
  const time = (micro) => {
    if (micro < 1) return `${(micro * 1000).toFixed(0)} ns`;
    const [number, unit] = micro < 1000 ? [micro, "µs"] : micro < 1e6 ? [micro / 1000, "ms"] : [micro / 1e6, "s"];
    return `${number >= 100 ? number.toFixed(0) : number.toPrecision(3)} ${unit}`;
  };
  const percent = (part, digits = 0) => `${(part * 100).toFixed(digits)} %`;
  const element = (tag, text, ...children) => {
    const node = document.createElement(tag);
    if (text !== null) node.textContent = text;
    node.append(...children);
    return node;
  };
  const svg = (tag, attributes, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };

  // -- the tip --------------------------------------------------------------------------------------------------------

  const tip = byId("tip");
  let tipCanvas = null; // the canvas that the tip is about
  const showTip = (canvas, title, lines, x, y) => {
    tipCanvas = canvas;
    tip.replaceChildren(element("b", title), ...lines.filter(Boolean).map((line) => element("p", line)));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const wide = document.documentElement.clientWidth;
    const left = Math.min(Math.max(x + 14, 8), wide - box.width - 8);
    const below = y + 18 + box.height < window.innerHeight;
    tip.style.left = `${Math.max(left, 8) + window.scrollX}px`;
    tip.style.top = `${Math.max(below ? y + 18 : y - box.height - 12, 4) + window.scrollY}px`;
  };
  const hideTip = () => {
    tip.hidden = true;
  };

  const tipOwner = () => (tip.hidden ? null : tipCanvas);

  const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return { byId, data, COLORS, OTHER, scaled, bytes, rate, time, percent, element, svg, showTip, hideTip, tipOwner, token };
})();
