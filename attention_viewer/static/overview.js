// All heads at a glance: a grid of small maps, sortable by what the heads do.

import { SCALES, step, weightColors } from "./color.js";
import { html, select } from "./dom.js";
import { MAPS, MEASURES, TYPES, headName, headType } from "./heads.js";
import { WEIGHTS } from "./snapshot.js";

const MIN_SIZE = 26; // pixels of a small map
const MAX_SIZE = 84;
const BORDER = 6; // around it
const AXIS = 16; // for the layers' numbers
const ORDERS = [
  ["layers", "by layer"],
  ["high", "highest first"],
  ["low", "lowest first"],
];

export class Overview {
  constructor(app) {
    this.app = app;
    this.controls = html("div", { class: "fields" });
    this.grids = html("div");
    this.element = html("div", { class: "overview" }, this.controls, this.grids);
    this.sections = new Map(); // name of a map -> Section, kept from step to step
  }

  draw() {
    this.#drawControls();
    const maps = Object.values(this.app.snapshot.maps);
    const width = this.element.clientWidth - AXIS;
    const elements = maps.map((map) => {
      if (!this.sections.has(map.name))
        this.sections.set(map.name, new Section(this.app, map.name));
      const section = this.sections.get(map.name);
      section.draw(map, Math.floor(width / (map.heads + 1)) - BORDER);
      return section.element;
    });
    const isDrawn = elements.every((element, i) => this.grids.children[i] === element);
    if (!isDrawn || this.grids.children.length > elements.length)
      this.grids.replaceChildren(...elements);
  }

  #drawControls() {
    const { state, store } = this.app;
    const { names } = store.measures;
    const key = JSON.stringify([state.measure, state.order, names]);
    if (this.drawnControls === key) return; // an open list must not close at the next step
    this.drawnControls = key;
    const measures = names.map((name) => [name, MEASURES[name]?.[0] ?? name]);
    const choices = [["type", "what it does"], ...measures];
    this.controls.replaceChildren(
      select("Heads by", choices, state.measure, (measure) => this.app.update({ measure })),
      select("order", ORDERS, state.order, (order) => this.app.update({ order })),
    );
  }
}

/** The heads of one kind of attention. */
class Section {
  constructor(app, name) {
    this.app = app;
    const { long, about } = MAPS[name] ?? { long: name, about: "" };
    this.content = html("div");
    this.element = html("section", {}, html("h3", { title: about }, long), this.content);
  }

  draw(map, room) {
    const { state } = this.app;
    this.element.classList.toggle("chosen", map.name === state.map);
    const size = Math.max(MIN_SIZE, Math.min(MAX_SIZE, room));
    const key = JSON.stringify([map.layers, map.heads, size, state.order === "layers"]);
    if (key !== this.drawn) this.#build(map, size);
    this.drawn = key;
    for (const cell of [...this.cells, ...this.means]) cell.paint(map, size);
    for (const cell of this.cells) this.#describe(cell, map);
    if (state.order === "layers") return;
    const sign = state.order === "high" ? -1 : 1;
    const sorted = [...this.cells].sort((a, b) => sign * (a.value - b.value));
    this.content.append(...sorted.map(({ button }) => button));
  }

  /** Makes the cells and puts them into their places. */
  #build(map, size) {
    this.cells = map.allHeads().map((head) => new Cell(this.app, map.name, `${head}`, [head]));
    this.means = [];
    if (this.app.state.order !== "layers") {
      this.content.className = "sorted";
      this.content.removeAttribute("style");
      this.content.replaceChildren();
      return;
    }
    const axis = (text) => html("span", { class: "axis" }, text);
    const heads = Array.from({ length: map.heads }, (_, head) => axis(`${head + 1}`));
    const rows = Array.from({ length: map.layers }, (_, layer) => {
      const ofLayer = this.cells.filter(({ heads: [[other]] }) => other === layer);
      const mean = new Cell(
        this.app,
        map.name,
        `mean ${layer}`,
        ofLayer.flatMap((cell) => cell.heads),
      );
      mean.lines = [`layer ${layer + 1}`, "mean of its heads"];
      this.means.push(mean);
      return [axis(`${layer + 1}`), ...[...ofLayer, mean].map(({ button }) => button)];
    });
    this.content.className = "grid";
    this.content.style.gridTemplateColumns = `${AXIS - 2}px repeat(${map.heads + 1}, ${size + 4}px)`;
    this.content.replaceChildren(axis(""), ...heads, axis("mean"), ...rows.flat());
  }

  /** Writes below a cell what the head does, or its measure. */
  #describe(cell, map) {
    const { state, store, index } = this.app;
    const [head] = cell.heads;
    const values = store.measures.all(index, map.name, head);
    const type = headType(values, map.name);
    const isMeasured = state.measure !== "type";
    const value = values[state.measure];
    const shown = isMeasured ? (value?.toFixed(2) ?? "–") : type;
    const place = state.order === "layers" ? "" : `${head[0] + 1}.${head[1] + 1} `;
    cell.value = values[isMeasured ? state.measure : "entropy"] ?? -1;
    cell.caption.textContent = place + shown;
    cell.lines = [
      headName(head),
      type && `mostly: ${TYPES[type]}`,
      ...store.measures
        .of(map.name)
        .map((name) => `${MEASURES[name]?.[0] ?? name}: ${values[name]?.toFixed(2) ?? "–"}`),
    ];
  }
}

/** A small map: of one head, or the mean of a layer's heads. */
class Cell {
  lines = []; // of the tooltip

  constructor(app, mapName, key, heads) {
    Object.assign(this, { app, mapName, heads });
    this.canvas = html("canvas");
    this.caption = html("span", { class: "caption" });
    this.button = html(
      "button",
      {
        class: "head",
        "data-head": `${mapName} ${key}`,
        "aria-label": `${MAPS[mapName]?.long ?? mapName}, ${key}`,
        click: (event) => this.#select(event),
        pointerenter: (event) => app.tooltip.show(event, this.lines),
        pointerleave: () => app.tooltip.hide(),
      },
      this.canvas,
      this.caption,
    );
  }

  paint(map, size) {
    const { state } = this.app;
    const isOn = map.name === state.map && String(this.heads) === String(state.heads);
    const isAmong =
      this.heads.length === 1 && state.heads.some((head) => String(head) === String(this.heads));
    this.button.classList.toggle("on", isOn || (map.name === state.map && isAmong));
    const height = Math.max(
      size * 0.35,
      Math.min(size * 1.6, (size * map.numRows) / map.numColumns),
    );
    this.canvas.style.width = `${size}px`;
    this.canvas.style.height = `${height}px`;
    // Sharp squares where they are larger than pixels; else a diagonal would lose its pixels.
    this.canvas.classList.toggle("enlarged", map.numColumns <= size);
    paint(this.canvas, map, this.heads, state.scale);
  }

  #select({ shiftKey, ctrlKey, metaKey }) {
    const { app, mapName, heads } = this;
    const isAdded = (shiftKey || ctrlKey || metaKey) && mapName === app.state.map;
    if (isAdded && heads.length === 1) app.toggleHead(heads[0]);
    else app.update({ map: mapName, heads });
  }
}

/** Draws the mean of some heads, one pixel a weight. */
export function paint(canvas, map, heads, scale) {
  const { numRows, numColumns } = map;
  if (canvas.width !== numColumns) canvas.width = numColumns;
  if (canvas.height !== numRows) canvas.height = numRows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(numColumns, numRows);
  const pixels = new Uint32Array(image.data.buffer);
  const colors = weightColors().map(([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r);
  const { position } = SCALES[scale];
  if (heads.length === 1 && scale !== "row") {
    // Hundreds of heads are drawn at each step of the slider: a table spares most of the work.
    const table = Uint32Array.from(WEIGHTS, (weight) => colors[step(position(weight))]);
    const codes = map.codesOf(heads[0]);
    for (let i = 0; i < codes.length; i++) pixels[i] = table[codes[i]];
  } else {
    const values = map.mean(heads);
    for (let start = 0; start < values.length; start += numColumns) {
      const row = values.subarray(start, start + numColumns);
      const rowMax = Math.max(...row);
      row.forEach((value, i) => (pixels[start + i] = colors[step(position(value, rowMax))]));
    }
  }
  context.putImageData(image, 0, 0);
}
